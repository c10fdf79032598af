//! `ask`, `progress`, `status` and `emit`: outside a task, and inside one where the test is the supervisor.

use std::{
    fs::File,
    io::{BufRead, BufReader, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    process::Stdio,
    thread,
};

use serde_json::{Value, json};

use crate::{
    kit::TempDir,
    user::{CommandResult, RunningCommand, User},
};

/// Where a command finds its task.
const DIR: &str = "TASKWIRE_TASK_DIR";
/// A pixel, as far as anybody looks.
const IMAGE: &[u8] = b"\x89PNG\r\n\x1a\n\0";
const IMAGE_BASE64: &str = "iVBORw0KGgoA";

/// A task whose supervisor is the test.
struct Task {
    user: User,
    dir: TempDir,
}

impl Task {
    fn new() -> Self {
        Self { user: User::new(), dir: TempDir::new() }
    }

    /// Runs a command in it, and answers each of its messages; with nothing, the connection is closed. Returns the
    /// messages after the hello.
    fn run(
        &self,
        args: &[&str],
        input: Option<&str>,
        answer: impl FnMut(&Value) -> Option<String> + Send + 'static,
    ) -> (CommandResult, Vec<Value>) {
        let listener = UnixListener::bind(self.socket()).expect("a socket");
        let result = self.run_at(self.dir.path(), listener, args, input, answer);
        std::fs::remove_file(self.socket()).expect("the socket");
        result
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("sock")
    }

    fn run_at(
        &self,
        dir: &Path,
        listener: UnixListener,
        args: &[&str],
        input: Option<&str>,
        answer: impl FnMut(&Value) -> Option<String> + Send + 'static,
    ) -> (CommandResult, Vec<Value>) {
        let address = listener.local_addr().expect("an address").as_pathname().expect("a path").to_owned();
        let supervisor = thread::spawn(move || supervise(&listener, answer));
        let mut command = self.user.command(args);
        command.env(DIR, dir);
        if let Some(input) = input {
            command.stdin(Stdio::from(File::open(self.user.write("input", input)).expect("a file")));
        }
        let ended = RunningCommand::start(&mut command).end();
        // For a supervisor to whom nobody came.
        let _ = UnixStream::connect(address);
        let mut messages = supervisor.join().expect("a supervisor that does not panic");
        if !messages.is_empty() {
            assert_eq!(messages.remove(0), json!({"hello": "inside"}));
        }
        (ended, messages)
    }

    /// Runs a command whose notes are all taken.
    fn run_accepting(&self, args: &[&str], input: Option<&str>) -> (CommandResult, Vec<Value>) {
        self.run(args, input, |_| Some(r#"{"ok":{}}"#.to_owned()))
    }

    /// The notes of a command that must do well.
    #[track_caller]
    fn notes(&self, args: &[&str], input: Option<&str>) -> Vec<Value> {
        let (ended, messages) = self.run_accepting(args, input);
        assert_eq!((ended.code, ended.out.as_str(), ended.err.as_str()), (Some(0), "", ""), "{args:?}");
        messages.into_iter().map(|said| said["note"].clone()).collect()
    }

    /// Asks, and gets this answer.
    fn ask(&self, args: &[&str], answer: Value) -> (CommandResult, Value) {
        self.ask_raw(args, json!({"answer": {"key": "ask-1", "value": answer}}).to_string())
    }

    /// Asks, and gets this back.
    fn ask_raw(&self, args: &[&str], reply: String) -> (CommandResult, Value) {
        let args: Vec<&str> = ["ask"].iter().chain(args).copied().collect();
        let (ended, mut messages) = self.run(&args, None, move |_| Some(reply.clone()));
        assert!(messages.len() <= 1, "a question is asked once: {messages:?}");
        (ended, messages.pop().unwrap_or_default())
    }
}

/// Takes one connection to its end, and gives what was said.
fn supervise(listener: &UnixListener, mut answer: impl FnMut(&Value) -> Option<String>) -> Vec<Value> {
    let (stream, _) = listener.accept().expect("a connection");
    let mut messages = Vec::new();
    for line in BufReader::new(&stream).lines().map_while(Result::ok) {
        let said: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let reply = if said.get("hello").is_some() { Some(String::new()) } else { answer(&said).map(|reply| reply + "\n") };
        messages.push(said);
        match reply {
            // Who got what they wanted need not read on.
            Some(reply) => drop((&stream).write_all(reply.as_bytes())),
            None => break,
        }
    }
    messages
}

/// How it ended, what it printed and what it said.
fn all(ended: &CommandResult) -> (Option<i32>, &str, &str) {
    (ended.code, &ended.out, &ended.err)
}

fn accept(content: Value) -> Value {
    json!({"action": "accept", "content": content})
}

/// Exactly one line, which begins like this.
#[track_caller]
fn is_hint(text: &str, command: &str) {
    assert!(text.starts_with(&format!("taskwire {command}: not run by a task, so ")), "{text}");
    assert!(text.contains("`taskwire serve`") && text.lines().count() == 1 && text.ends_with('\n'), "{text}");
}

#[test]
fn outside_a_task_reports_do_nothing_but_say_so() {
    let user = User::new();
    let image = user.path("a.png");
    std::fs::write(&image, IMAGE).expect("a file");
    for args in [
        ["progress", "3/10"].as_slice(),
        &["progress", "3", "--total", "10", "--message", "-x"],
        &["status", "working", "hard"],
        &["status", "--verbose", "-x"],
        &["emit", "text"],
        &["emit", "--error"],
        &["emit", "--image", &image],
        &["emit", "--result", "{}"],
    ] {
        let ended = user.run(args);
        assert_eq!((ended.code, ended.out.as_str()), (Some(0), ""), "{args:?}: {ended:?}");
        is_hint(&ended.err, args[0]);
    }
    let ended = user.run(&["status", "working"]);
    let expected = "taskwire status: not run by a task, so this has no effect. (It has one in commands that `taskwire serve` runs as \
                    tools.)\n";
    assert_eq!(ended.err, expected);
}

#[test]
fn outside_a_task_what_is_piped_in_is_read_to_its_end() {
    let user = User::new();
    // Much more than a pipe holds: who writes it would be stopped.
    let ended = user.run_with(&["emit", "-"], &"x".repeat(1 << 20));
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), ""));
    is_hint(&ended.err, "emit");
}

#[test]
fn outside_a_task_nobody_can_be_asked_but_a_default_answers() {
    let user = User::new();
    for args in [["ask", "Who?"].as_slice(), &["ask", "Sure?", "--confirm"], &["ask", "Go", "--url", "https://example.com"]] {
        let ended = user.run(args);
        assert_eq!((ended.code, ended.out.as_str()), (Some(3), ""), "{args:?}");
        is_hint(&ended.err, "ask");
        assert!(ended.err.contains("so nobody can be asked") && ended.err.contains("--default"), "{}", ended.err);
    }
    let schema = r#"{"type": "object", "properties": {"n": {"type": "integer"}}}"#;
    let cases: &[(&[&str], i32, &str)] = &[
        (&["--default", "Ada"], 0, "Ada\n"),
        (&["--default", ""], 0, "\n"),
        (&["--default", "-1"], 0, "-1\n"),
        (&["--choice", "a", "--choice", "b", "--default", "b"], 0, "b\n"),
        (&["--confirm", "--default", "yes"], 0, ""),
        (&["--confirm", "--default", "No"], 1, ""),
        (&["--schema", schema, "--default", "{\"n\":\n 1}"], 0, "{\"n\":  1}\n"),
    ];
    for &(args, code, out) in cases {
        let args: Vec<&str> = ["ask", "Who?"].iter().chain(args).copied().collect();
        assert_eq!(all(&user.run(&args)), (Some(code), out, ""), "{args:?}");
    }
}

#[test]
fn an_empty_directory_in_the_environment_is_none() {
    let user = User::new();
    let ended = RunningCommand::start(user.command(&["status", "x"]).env(DIR, "")).end();
    assert_eq!(ended.code, Some(0));
    is_hint(&ended.err, "status");
}

#[test]
fn a_command_line_that_is_wrong_is_refused_also_outside_a_task() {
    let user = User::new();
    let text = user.write("a.txt", "text");
    let large = user.write("large.png", &"x".repeat(751 * 1024));
    let missing = user.path("missing.png");
    let cases: &[(&[&str], &str)] = &[
        (&["ask"], "MESSAGE"),
        (&["ask", ""], "a question of no words"),
        (&["ask", "Who?", "--message", "Who?"], "cannot be used with"),
        (&["ask", "Who?", "--confirm", "--choice", "a"], "cannot be used with"),
        (&["ask", "Who?", "--confirm", "--schema", "{}"], "cannot be used with"),
        (&["ask", "Who?", "--url", "https://example.com", "--default", "x"], "cannot be used with"),
        (&["ask", "Who?", "--url", "example"], "--url: an address begins like https://"),
        (&["ask", "Who?", "--key", ""], "--key"),
        (&["ask", "Who?", "--schema", "{"], "--schema: this is not JSON"),
        (&["ask", "Who?", "--schema", "@/no/such/file"], "--schema: cannot read /no/such/file"),
        (&["ask", "Who?", "--schema", "{\"type\": \"string\"}"], "--schema: a form is an object"),
        (&["ask", "Who?", "--choice", "a", "--default", "b"], "`b` is none of the choices: a"),
        (&["ask", "Who?", "--confirm", "--default", "b"], "`b` is neither yes nor no"),
        (&["progress"], "DONE"),
        (&["progress", "many"], "3/10 or 40%"),
        (&["progress", "nan"], "3/10 or 40%"),
        (&["progress", "3", "--total", "inf"], "3/10 or 40%"),
        (&["progress", "5/0"], "out of 0 says nothing"),
        (&["progress", "5", "--total", "0"], "out of 0 says nothing"),
        (&["progress", "40%", "--total", "10"], "leave --total away"),
        (&["status"], "MESSAGE"),
        (&["status", "", " "], "a status of no words"),
        (&["emit"], "TEXT"),
        (&["emit", "--json", "{}"], "--json: a content block is"),
        (&["emit", "--json", "{\"type\": \"image\", \"data\": \"\"}"], "needs the text `mimeType`"),
        (&["emit", "--result", "yes"], "--result: this is not JSON"),
        (&["emit", "--image", &text], "--mime-type"),
        (&["emit", "--image", &missing], "cannot read"),
        (&["emit", "--image", &large], "is too large: at most 750 KiB"),
        (&["emit", "x", "--name", "n"], "--link"),
    ];
    for &(args, words) in cases {
        let ended = user.run(args);
        assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""), "{args:?}: {ended:?}");
        assert!(ended.err.contains(words), "{args:?}: `{words}` in: {}", ended.err);
    }
}

#[test]
fn a_task_that_is_over_is_an_error_and_not_an_outside() {
    let task = Task::new();
    let gone = task.dir.join("gone");
    let empty = task.dir.join("empty");
    std::fs::create_dir(&empty).expect("a directory");
    let left = task.dir.join("left");
    std::fs::create_dir(&left).expect("a directory");
    // A socket that nobody listens to any more.
    drop(UnixListener::bind(Path::new(&left).join("sock")).expect("a socket"));
    for dir in [&gone, &empty, &left] {
        for args in [["ask", "Who?", "--default", "x"].as_slice(), &["progress", "1"], &["status", "x"], &["emit", "x"]] {
            let ended = RunningCommand::start(task.user.command(args).env(DIR, dir)).end();
            assert_eq!((ended.code, ended.out.as_str()), (Some(3), ""), "{dir} {args:?}: {ended:?}");
            assert!(ended.err.starts_with("taskwire: the task of this command is over: ") && ended.err.contains(dir), "{}", ended.err);
        }
    }
}

#[test]
fn every_form_of_progress_arrives() {
    let task = Task::new();
    let progress =
        |done: f64, total: Option<f64>, message: Option<&str>| json!({"progress": {"done": done, "total": total, "message": message}});
    let cases: [(&[&str], Value); 5] = [
        (&["3"], progress(3.0, None, None)),
        (&["3/10"], progress(3.0, Some(10.0), None)),
        (&["40%"], progress(40.0, Some(100.0), None)),
        (&["3", "--total", "10"], progress(3.0, Some(10.0), None)),
        (&["0.5", "--message", "- half\n"], progress(0.5, None, Some("- half\n"))),
    ];
    for (args, expected) in cases {
        let args: Vec<&str> = ["progress"].iter().chain(args).copied().collect();
        assert_eq!(task.notes(&args, None), [expected], "{args:?}");
    }
}

#[test]
fn a_status_is_all_its_words() {
    let task = Task::new();
    assert_eq!(task.notes(&["status", "reading", "--all", "é\u{1b}"], None), [json!({"status": {"message": "reading --all é\u{1b}"}})]);
}

#[test]
fn text_is_emitted_as_lines_and_standard_input_as_it_is() {
    let task = Task::new();
    let text = |text: &str| json!({"block": {"block": {"type": "text", "text": text}}});
    assert_eq!(task.notes(&["emit", "two words"], None), [text("two words\n")]);
    assert_eq!(task.notes(&["emit", "hello", "from", "-"], None), [text("hello from -\n")]);
    assert_eq!(task.notes(&["emit", "two", "words", "--error"], None)[0], text("two words\n"));
    assert_eq!(task.notes(&["emit", "a line\n"], None), [text("a line\n")]);
    assert_eq!(task.notes(&["emit", "--", "-x"], None), [text("-x\n")]);
    assert_eq!(task.notes(&["emit", "-"], Some("no end")), [text("no end")]);
    assert_eq!(task.notes(&["emit", "-"], Some("")), Vec::<Value>::new());
}

#[test]
fn a_long_text_arrives_whole_in_pieces_that_are_small() {
    let task = Task::new();
    let long: String = (0..100_000).map(|n| format!("zeile {n} é€😀\n")).collect();
    let notes = task.notes(&["emit", "-"], Some(&long));
    let texts: Vec<&str> = notes.iter().map(|note| note["block"]["block"]["text"].as_str().expect("text")).collect();
    assert!(texts.iter().all(|text| text.len() <= 32 * 1024));
    assert!(texts.concat() == long, "to the byte");
}

#[test]
fn images_sounds_links_and_blocks_have_the_shape_of_the_protocol() {
    let task = Task::new();
    let [png, jpg, mp3, own] = ["a.png", "b.JPG", "c.mp3", "own"].map(|name| {
        let path = task.user.path(name);
        std::fs::write(&path, IMAGE).expect("a file");
        path
    });
    let block = |block: Value| json!({"block": {"block": block}});
    let image = |kind: &str| block(json!({"type": "image", "data": IMAGE_BASE64, "mimeType": kind}));
    assert_eq!(task.notes(&["emit", "--image", &png], None), [image("image/png")]);
    assert_eq!(task.notes(&["emit", "--image", &jpg], None), [image("image/jpeg")]);
    assert_eq!(task.notes(&["emit", "--image", &own, "--mime-type", "image/x-own"], None), [image("image/x-own")]);
    let sound = block(json!({"type": "audio", "data": IMAGE_BASE64, "mimeType": "audio/mpeg"}));
    assert_eq!(task.notes(&["emit", "--audio", &mp3], None), std::slice::from_ref(&sound));
    let link = |name: &str| block(json!({"type": "resource_link", "uri": "https://example.com/r.pdf", "name": name}));
    assert_eq!(task.notes(&["emit", "--link", "https://example.com/r.pdf"], None), [link("r.pdf")]);
    assert_eq!(task.notes(&["emit", "--link", "https://example.com/r.pdf", "--name", "report"], None), [link("report")]);
    let own = json!({"type": "text", "text": "x", "annotations": {"priority": 1}});
    assert_eq!(task.notes(&["emit", "--json", &own.to_string()], None), [block(own.clone())]);
    assert_eq!(task.notes(&["emit", "--json", "@-"], Some(&own.to_string())), [block(own.clone())]);
    // All of it at once, in the order that the help promises.
    let text = own.to_string();
    let args = ["emit", "--audio", &mp3, "--error", "--image", &png, "--json", &text, "--result", "[1]", "text"];
    let expected = [
        block(json!({"type": "text", "text": "text\n"})),
        block(own),
        image("image/png"),
        sound,
        json!({"result": {"structured": [1], "is_error": true}}),
    ];
    assert_eq!(task.notes(&args, None), expected);
}

#[test]
fn a_result_or_a_failure_is_said() {
    let task = Task::new();
    let result = |structured: Value, is_error: bool| json!({"result": {"structured": structured, "is_error": is_error}});
    assert_eq!(task.notes(&["emit", "--result", "{\"rows\": 17}"], None), [result(json!({"rows": 17}), false)]);
    assert_eq!(task.notes(&["emit", "--error"], None), [result(Value::Null, true)]);
    let file = task.user.write("result.json", "{\n\"rows\":\n17}");
    assert_eq!(task.notes(&["emit", "--result", &format!("@{file}")], None), [result(json!({"rows": 17}), false)]);
}

#[test]
fn a_text_is_asked_for_and_printed_exactly() {
    let task = Task::new();
    let schema = |field: Value| json!({"type": "object", "properties": {"answer": field}, "required": ["answer"]});
    let hostile = "a\u{1b}[31m\u{202e}\n'$(x)'";
    let (ended, said) = task.ask(&["Who\nare you?"], accept(json!({"answer": hostile})));
    assert_eq!(all(&ended), (Some(0), format!("{hostile}\n").as_str(), ""));
    let question = json!({"message": "Who\nare you?", "schema": schema(json!({"type": "string", "title": "Answer"}))});
    assert_eq!(said, json!({"ask": {"question": question}}), "without a key of its own");
    let (ended, said) = task.ask(&["--message", "-?", "--key", "name", "--default", "Ada"], accept(json!({"answer": ""})));
    assert_eq!(all(&ended), (Some(0), "\n", ""), "an empty answer is one");
    let question = json!({"message": "-?", "schema": schema(json!({"type": "string", "title": "Answer", "default": "Ada"}))});
    assert_eq!(said, json!({"ask": {"key": "name", "question": question}}));
}

#[test]
fn one_of_the_choices_is_asked_for() {
    let task = Task::new();
    let args = ["Where?", "--choice", "eu", "--choice", "-us", "--choice", "eu"];
    let (ended, said) = task.ask(&args, accept(json!({"answer": "-us"})));
    assert_eq!(all(&ended), (Some(0), "-us\n", ""));
    assert_eq!(said["ask"]["question"]["schema"]["properties"]["answer"]["enum"], json!(["eu", "-us"]));
    let (ended, _) = task.ask(&args, accept(json!({"answer": "uk"})));
    assert_eq!((ended.code, ended.out.as_str()), (Some(3), ""), "never what was not offered");
    assert!(ended.err.starts_with("taskwire: the answer does not fit: "), "{}", ended.err);
}

#[test]
fn a_confirmation_is_an_exit_code() {
    let task = Task::new();
    for (answer, code) in [
        (accept(json!({"confirm": true})), 0),
        (accept(json!({"confirm": false})), 1),
        (json!({"action": "decline"}), 1),
        (json!({"action": "cancel"}), 1),
        (accept(json!({"confirm": "true"})), 3),
        (accept(json!({})), 3),
        (json!({"action": "accept"}), 3),
    ] {
        let (ended, said) = task.ask(&["Sure?", "--confirm"], answer.clone());
        assert_eq!((ended.code, ended.out.as_str()), (Some(code), ""), "{answer}: {ended:?}");
        assert_eq!(ended.err.is_empty(), code != 3, "{answer}: {ended:?}");
        assert_eq!(said["ask"]["question"]["schema"]["properties"]["confirm"]["type"], "boolean");
    }
}

#[test]
fn a_form_is_asked_for_as_it_is_written_and_printed_on_one_line() {
    let task = Task::new();
    let schema = r#"{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}"#;
    let file = task.user.write("form.json", schema);
    for source in [schema.to_owned(), format!("@{file}")] {
        let (ended, said) = task.ask(&["How many?", "--schema", &source], accept(json!({"n": 3})));
        assert_eq!(all(&ended), (Some(0), "{\"n\":3}\n", ""));
        assert_eq!(said["ask"]["question"]["schema"], serde_json::from_str::<Value>(schema).expect("JSON"));
    }
    let (ended, _) = task.ask(&["How many?", "--schema", schema], accept(json!({"n": "three"})));
    assert_eq!((ended.code, ended.out.as_str()), (Some(3), ""));
    assert!(ended.err.contains("`n`"), "the field is named: {}", ended.err);
}

#[test]
fn a_page_is_agreed_to_or_not() {
    let task = Task::new();
    let args = ["Please sign in", "--url", "https://example.com/login"];
    let (ended, said) = task.ask(&args, json!({"action": "accept"}));
    assert_eq!(all(&ended), (Some(0), "", ""));
    assert_eq!(said, json!({"ask": {"question": {"message": "Please sign in", "url": "https://example.com/login"}}}));
    let (ended, _) = task.ask(&args, json!({"action": "decline"}));
    assert_eq!(all(&ended), (Some(1), "", ""));
}

#[test]
fn who_says_no_or_nothing_is_told_by_the_exit_code_alone() {
    let task = Task::new();
    for action in ["decline", "cancel"] {
        for args in [["Who?"].as_slice(), &["Who?", "--choice", "a"], &["Who?", "--default", "Ada"]] {
            let (ended, _) = task.ask(args, json!({"action": action, "content": {"answer": "a"}}));
            assert_eq!(all(&ended), (Some(1), "", ""), "{action}: a default is no answer to a no");
        }
    }
}

#[test]
fn why_nobody_can_be_asked_is_said_and_nothing_in_it_reaches_the_terminal() {
    let task = Task::new();
    let reply = json!({"error": "the client cannot be asked\u{1b}[2J"}).to_string();
    let (ended, _) = task.ask_raw(&["Who?", "--default", "Ada"], reply);
    assert_eq!(all(&ended), (Some(3), "", "taskwire: the client cannot be asked^[[2J\n"));
    let (ended, messages) = task.run(&["status", "x"], None, |_| Some(json!({"error": "too many"}).to_string()));
    assert_eq!((all(&ended), messages.len()), ((Some(3), "", "taskwire: too many\n"), 1));
}

#[test]
fn a_supervisor_that_talks_nonsense_is_not_believed() {
    let task = Task::new();
    for reply in ["nonsense", "", "{}", "[]", "{\"ok\":{}}", "{\"answer\":{\"value\":{\"action\":\"accept\"}}}", "{\"answer\":1}"] {
        let (ended, _) = task.ask_raw(&["Who?"], reply.to_owned());
        assert_eq!((ended.code, ended.out.as_str()), (Some(3), ""), "{reply}: {ended:?}");
    }
    let (ended, _) = task.run(&["status", "x"], None, |_| Some("nonsense".to_owned()));
    assert_eq!(ended.code, Some(3));
    assert!(ended.err.contains("not understood"), "{}", ended.err);
}

#[test]
fn a_supervisor_that_closes_ends_the_wait() {
    let task = Task::new();
    for args in [["ask", "Who?", "--default", "x"].as_slice(), &["ask", "Sure?", "--confirm"], &["progress", "1"], &["status", "x"]] {
        let (ended, messages) = task.run(args, None, |_| None);
        assert_eq!((ended.code, ended.out.as_str(), messages.len()), (Some(3), "", 1), "{args:?}");
        assert!(ended.err.starts_with("taskwire: the connection to the task was closed"), "{}", ended.err);
    }
}

#[test]
fn a_supervisor_that_closes_in_the_middle_of_a_text_stops_the_rest() {
    let task = Task::new();
    let mut left = 3;
    let (ended, messages) = task.run(&["emit", "-", "--error"], Some(&"x".repeat(1 << 20)), move |_| {
        left -= 1;
        (left > 0).then(|| r#"{"ok":{}}"#.to_owned())
    });
    assert_eq!((ended.code, messages.len()), (Some(3), 3), "{}", ended.err);
    assert!(messages.iter().all(|said| said["note"].get("block").is_some()), "no result after half a text");
}

#[test]
#[cfg(target_os = "linux")]
fn a_task_deep_in_the_file_system_is_found() {
    use std::os::fd::AsRawFd;

    let task = Task::new();
    let deep = task.dir.path().join("d".repeat(120));
    std::fs::create_dir(&deep).expect("a directory");
    let open = File::open(&deep).expect("a directory");
    let listener = UnixListener::bind(format!("/proc/self/fd/{}/sock", open.as_raw_fd())).expect("a socket");
    let (ended, messages) = task.run_at(&deep, listener, &["status", "deep"], None, |_| Some(r#"{"ok":{}}"#.to_owned()));
    assert_eq!(all(&ended), (Some(0), "", ""));
    assert_eq!(messages, [json!({"note": {"status": {"message": "deep"}}})]);
}

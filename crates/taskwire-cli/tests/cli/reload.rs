//! A server that reads its configuration again, by `taskwire reload` and by SIGHUP: what is new holds, what runs goes on, and
//! what is wrong changes nothing.

use std::{io::Write, os::unix::fs::PermissionsExt, process::Command};

use serde_json::{Value, json};

use crate::{
    kit::{Process, Server, TempDir, request},
    user::{CommandResult, RunningCommand, User},
};

/// One tool that says a word.
fn says(name: &str, word: &str) -> String {
    format!("[[tool]]\nname = \"{name}\"\ndescription = \"Says a word\"\ncommand = [\"echo\", \"{word}\"]\n\n")
}

/// A tool that says that it runs, waits until somebody writes to the pipe, and says what that was.
fn waits(name: &str, pipe: &str) -> String {
    let command = format!("[\"sh\", \"-c\", 'echo waiting; cat \"$1\"', \"sh\", \"{pipe}\"]");
    format!("[[tool]]\nname = \"{name}\"\ndescription = \"Waits for a word\"\ncommand = {command}\n\n")
}

/// A pipe with a name.
fn pipe(user: &User, name: &str) -> String {
    let path = user.path(name);
    assert!(Command::new("mkfifo").arg(&path).status().expect("`mkfifo` can be run").success());
    path
}

/// A server that runs with a file, and its user.
struct Served {
    user: User,
    running: RunningCommand,
    file: String,
    url: String,
}

impl Served {
    fn with(config: &str) -> Self {
        let user = User::new();
        let file = user.write("taskwire.toml", config);
        let (running, url) = start(&user, &file);
        Self { user, running, file, url }
    }

    fn data(&self) -> String {
        self.user.path("data")
    }

    /// Changes the file.
    fn write(&self, config: &str) {
        self.user.write("taskwire.toml", config);
    }

    fn reload(&self) -> CommandResult {
        self.user.run(&["reload", &self.file, "--data", &self.data()])
    }

    /// Reads the file again, which must work, and gives what it says.
    #[track_caller]
    fn reloaded(&self) -> String {
        let ended = self.reload();
        assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{ended:?}");
        ended.out
    }

    fn tools(&self) -> Vec<String> {
        let tools = self.user.run(&["tools", &self.url, "--json"]).json();
        tools.iter().map(|tool| tool["name"].as_str().expect("a name").to_owned()).collect()
    }

    fn call(&self, tool: &str) -> String {
        let ended = self.user.run(&["call", &self.url, tool]);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended.out
    }
}

fn start(user: &User, file: &str) -> (RunningCommand, String) {
    let mut running = user.start(&["serve", file, "--listen", "127.0.0.1:0", "--data", &user.path("data")]);
    let url = running.out.line_with("  endpoint  ");
    (running, url)
}

#[test]
fn tools_are_added_changed_and_taken_away() {
    let served = Served::with(&[says("a", "one"), says("b", "two"), says("c", "three")].concat());
    assert_eq!(served.tools(), ["a", "b", "c"]);
    assert_eq!(served.reloaded(), "unchanged: 3\n");
    served.write(&[says("d", "four"), says("b", "other"), says("c", "three")].concat());
    assert_eq!(served.tools(), ["a", "b", "c"], "nobody has told it yet");
    assert_eq!(served.reloaded(), "added: d; changed: b; removed: a; unchanged: 1\n");
    assert_eq!(served.tools(), ["d", "b", "c"]);
    assert_eq!((served.call("d"), served.call("b")), ("four\n".to_owned(), "other\n".to_owned()));
    let gone = served.user.run(&["call", &served.url, "a"]);
    assert_ne!(gone.code, Some(0), "{gone:?}");
    served.write("demo = true\n");
    let changes = served.reloaded();
    assert!(changes.starts_with("added: countdown, ") && changes.ends_with("; removed: d, b, c; unchanged: 0\n"), "{changes}");
    assert_eq!(served.tools().len(), 6);
}

#[test]
fn a_signal_does_the_same_and_the_log_tells() {
    let mut served = Served::with(&says("a", "one"));
    served.write(&[says("a", "one"), says("b", "two")].concat());
    served.running.signal("HUP");
    served.running.err.until("configuration read again: added: b; unchanged: 1");
    assert_eq!(served.tools(), ["a", "b"]);
    served.write("[[tool]]\nname = \"a\"\ncommand = [\"echo\", \"{x}\"]\n");
    served.running.signal("HUP");
    let log = served.running.err.until("the old configuration stays: ");
    assert!(!log.contains("panicked"), "{log}");
    served.running.err.until("line 3, column 11");
    assert_eq!(served.tools(), ["a", "b"]);
    served.write(&says("b", "two"));
    served.running.signal("HUP");
    served.running.err.until("configuration read again: removed: a; unchanged: 1");
    assert_eq!(served.call("b"), "two\n");
}

#[test]
fn who_listens_is_told_also_on_stdio_and_only_of_changes() {
    let user = User::new();
    let (file, data) = (user.write("taskwire.toml", &says("a", "one")), user.path("data"));
    let (process, mut input) = Process::with_input(&["serve", &file, "--stdio", "--data", &data]);
    let mut ask = |id: u64, method: &str, params: Value| writeln!(input, "{}", request(id, method, params)).expect("writable");
    let next = || -> Value { serde_json::from_str(&process.line().expect("a message")).expect("JSON") };
    ask(1, "subscriptions/listen", json!({"notifications": {"toolsListChanged": true}}));
    assert_eq!(next()["method"], "notifications/subscriptions/acknowledged");
    let reload = || user.run(&["reload", "--data", &data]);
    assert_eq!(reload().out, "unchanged: 1\n");
    user.write("taskwire.toml", "[[tool]]\n");
    assert_eq!(reload().code, Some(2));
    // Had either of these been a change, its notification would come before this response.
    ask(2, "tools/list", json!({}));
    let list = next();
    assert_eq!((&list["id"], &list["result"]["tools"][0]["name"]), (&json!(2), &json!("a")), "{list}");
    user.write("taskwire.toml", &[says("a", "one"), says("b", "two")].concat());
    assert_eq!(reload().out, "added: b; unchanged: 1\n");
    let notification = next();
    assert_eq!(notification["method"], "notifications/tools/list_changed", "{notification}");
    ask(3, "tools/list", json!({}));
    let list = next();
    assert_eq!((&list["id"], &list["result"]["tools"][1]["name"]), (&json!(3), &json!("b")), "{list}");
}

#[test]
fn a_running_task_goes_on_with_what_it_began_with() {
    let user = User::new();
    let (first, second) = (pipe(&user, "first"), pipe(&user, "second"));
    let file = user.write("taskwire.toml", &[waits("changed", &first), waits("removed", &second)].concat());
    let (running, url) = start(&user, &file);
    let served = Served { user, running, file, url };
    let mut changed = served.user.start(&["call", &served.url, "changed"]);
    let mut removed = served.user.start(&["call", &served.url, "removed"]);
    changed.out.until("waiting\n");
    removed.out.until("waiting\n");
    served.write(&says("changed", "new"));
    assert_eq!(served.reloaded(), "changed: changed; removed: removed; unchanged: 0\n");
    assert_eq!(served.call("changed"), "new\n");
    for (task, path, words) in [(changed, &first, "still the first\n"), (removed, &second, "still there\n")] {
        std::fs::write(path, words).expect("somebody reads");
        let ended = task.end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert!(ended.out.contains(words) && !ended.out.contains("new"), "{ended:?}");
    }
}

#[test]
fn a_file_that_cannot_be_used_is_refused_with_its_place_and_the_old_one_stays() {
    let served = Served::with(&says("a", "one"));
    for (config, location, words) in [
        ("[[tool]\n", "line 1, column ", ""),
        ("[[tool]]\nname = \"a\"\ncommand = [\"echo\"]\ncwdd = \".\"\n", "line 4, column 1\n", "did you mean `cwd`?"),
        ("[[tool]]\nname = \"a\"\n", "line 1, column 1\n", "missing field `command`"),
        ("[[tool]]\nname = \"a\"\ncommand = [\"echo\", \"{x}\"]\n", "line 3, column 11\n", "x"),
        ("[[tool]]\nname = \"b\"\ncommand = [\"echo\"]\n[[tool]]\nname = \"b\"\ncommand = [\"echo\"]\n", "line 5, column 8\n", "already"),
        ("page_len = 0\n", "line 1, column 12\n", "`page_len` must be"),
    ] {
        served.write(config);
        let ended = served.reload();
        assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""), "{ended:?}");
        assert!(ended.err.starts_with(&format!("taskwire: {} cannot be used: {location}", served.file)), "{ended:?}");
        assert!(ended.err.contains(words) && ended.err.contains(" | ") && ended.err.contains('^'), "{ended:?}");
        assert_eq!(served.tools(), ["a"], "{config}");
    }
    std::fs::remove_file(&served.file).expect("removed");
    let ended = served.reload();
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.err.starts_with(&format!("taskwire: cannot read {}", served.file)), "{ended:?}");
    assert_eq!(served.call("a"), "one\n");
    served.write(&says("b", "two"));
    assert_eq!(served.reloaded(), "added: b; removed: a; unchanged: 0\n");
}

#[test]
fn a_key_that_needs_a_restart_is_named() {
    let served = Served::with(&says("a", "one"));
    let more = "listen = \"127.0.0.1:1\"\npage_len = 3\nhold = \"45s\"\n[http]\nkeep_alive = \"7s\"\n";
    served.write(&format!("{more}{}{}", says("a", "one"), says("b", "two")));
    let expected = "added: b; unchanged: 1\nneeds a restart: `http.keep_alive`, `page_len`\n";
    assert_eq!(served.reloaded(), expected, "what the command line decides and what is as it was does not count");
    assert_eq!(served.reloaded(), expected.replace("added: b; unchanged: 1", "unchanged: 2"), "it still does");
    served.write(&says("a", "one"));
    assert_eq!(served.reloaded(), "removed: b; unchanged: 1\n");
}

#[test]
fn a_new_tool_with_a_rule_of_its_own_is_not_served_before_the_restart_that_its_rule_needs() {
    let auth = |rules: &str| {
        let tokens = "tokens = [{ token = \"s3cret\", caller = \"me\", scopes = [\"use\"] }]";
        format!("[auth]\n{tokens}\nscopes = {{ {rules} }}\n\n")
    };
    let tools = |user: &User, url: &str| -> Vec<String> {
        let listed = user.run(&["tools", url, "--json", "--token", "s3cret"]).json();
        listed.iter().map(|tool| tool["name"].as_str().expect("a name").to_owned()).collect()
    };
    let served = Served::with(&[auth("\"tool:a\" = [\"use\"]"), says("a", "one")].concat());
    let rules = auth("\"tool:a\" = [\"use\"], \"tool:c\" = [\"deploy\"]");
    served.write(&[rules, says("a", "one"), says("b", "two"), says("c", "three")].concat());
    let words =
        "\nneeds a restart: `auth.scopes.tool:c`\nnot served before a restart, because `[auth] scopes` has a new rule for each: c\n";
    assert_eq!(served.reloaded(), format!("added: b; unchanged: 1{words}"));
    assert_eq!(tools(&served.user, &served.url), ["a", "b"]);
    assert_eq!(served.reloaded(), format!("unchanged: 2{words}"), "it still waits");
    assert_eq!(tools(&served.user, &served.url), ["a", "b"]);
    let Served { user, running, file, .. } = served;
    running.signal("TERM");
    assert_eq!(running.end().code, Some(0));
    let (_running, url) = start(&user, &file);
    assert_eq!(tools(&user, &url), ["a", "b", "c"]);
    let call = |tool: &str| user.run(&["call", &url, tool, "--token", "s3cret"]);
    assert_eq!(call("a").out, "one\n");
    let refused = call("c");
    assert!(refused.code != Some(0) && refused.err.contains("deploy"), "{refused:?}");
}

#[test]
fn where_no_server_is_nobody_is_told() {
    let user = User::new();
    let data = user.path("data");
    let words = format!("taskwire: no server has its tasks in {data}: if it has them elsewhere, name its directory with --data\n");
    let nobody = |user: &User| {
        let ended = user.run(&["reload", "--data", &data]);
        assert_eq!((ended.code, ended.out.as_str(), ended.err.as_str()), (Some(3), "", words.as_str()));
    };
    nobody(&user);
    let file = user.write("taskwire.toml", &says("a", "one"));
    let (mut running, _) = start(&user, &file);
    let mode = std::fs::metadata(user.path("data/control")).expect("a socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "for its user alone");
    assert_eq!(user.run(&["reload", "--data", &user.path("elsewhere")]).code, Some(3), "it is not there");
    assert_eq!(user.run(&["reload", "--data", &data]).code, Some(0));
    running.kill();
    nobody(&user);
    let (running, _) = start(&user, &file);
    assert_eq!(user.run(&["reload", "--data", &data]).out, "unchanged: 1\n", "what a dead one left is no hindrance");
    running.signal("TERM");
    assert_eq!(running.end().code, Some(0));
    nobody(&user);
}

#[test]
fn the_directory_may_come_from_the_file() {
    let user = User::new();
    let data = user.path("data");
    let file = user.write("taskwire.toml", &format!("data = \"{data}\"\n{}", says("a", "one")));
    let (_running, _) = start(&user, &file);
    assert_eq!(user.run(&["reload", &file]).out, "unchanged: 1\n");
    let other = user.write("other.toml", &format!("data = \"{data}\"\n{}", says("b", "two")));
    user.run(&["reload", &other]).is_refusal(&format!("this server reads {file}, not {other}"));
    let broken = user.write("broken.toml", "data = 1\n");
    let ended = user.run(&["reload", &broken]);
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.err.contains("broken.toml cannot be used: line 1, column 8\n"), "{ended:?}");
}

#[test]
fn a_server_without_a_file_has_nothing_to_read_again() {
    let (dir, user) = (TempDir::new(), User::new());
    let data = dir.join("data");
    let server = Server::start(&data);
    let words = "this server was started without a configuration file: there is nothing to read again";
    user.run(&["reload", "--data", &data]).is_refusal(words);
    assert_eq!(server.probe("/readyz").0, 200);
}

#[test]
fn what_the_server_does_not_understand_is_refused_and_harms_nothing() {
    let served = Served::with(&says("a", "one"));
    for words in ["", "\n", "hello\n", "{\"stop\":{}}\n", "\u{0}\n"] {
        let mut stream = std::os::unix::net::UnixStream::connect(served.user.path("data/control")).expect("connects");
        stream.write_all(words.as_bytes()).expect("written");
        stream.shutdown(std::net::Shutdown::Write).expect("told");
        let reply = std::io::read_to_string(stream).expect("a reply");
        assert!(reply.starts_with("{\"refused\":\"the server does not understand that"), "{words:?}: {reply}");
    }
    assert_eq!(served.reloaded(), "unchanged: 1\n");
}

#[test]
fn what_is_probably_not_meant_so_is_said_beside_the_changes() {
    let mut served = Served::with(&says("a", "one"));
    served.write("[[tool]]\nname = \"a\"\ndescription = \"Says a word\"\ncommand = [\"no-such-program-here\"]\n");
    let ended = served.reload();
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), "changed: a; unchanged: 0\n"), "{ended:?}");
    let words = format!("{}: tool `a`: the program `no-such-program-here` is not found in PATH: is it installed?", served.file);
    assert_eq!(ended.err, format!("warning: {words}\n"));
    served.running.err.until(&words);
    served.write(
        "[[tool]]\nname = \"a\"\ndescription = \"Says a word\"\ncommand = [\"echo\", \"{z}\"]\ninput = { z = { type = \"array\" } }\n",
    );
    let words = format!("{}: tool `a`: `/properties/z` is an array without `items`: OpenAI, Gemini and VS Code", served.file);
    let ended = served.reload();
    assert!(ended.err.starts_with(&format!("warning: {words}")), "what some clients refuse is said, too: {ended:?}");
    let input = "input = { x = { type = \"string\" } }\n";
    served.write(&format!("[[tool]]\nname = \"a\"\ndescription = \"Says a word\"\ncommand = [\"sh\", \"{{x}}\"]\n{input}"));
    let words = format!("{}: tool `a`: \"{{x}}\": whoever calls chooses the file that sh runs", served.file);
    let ended = served.reload();
    assert!(ended.err.starts_with(&format!("warning: {words}")), "and what may be run: {ended:?}");
    served.write(&format!("[[tool]]\nname = \"a\"\ndescription = \"Says a word\"\ncommand = [\"awk\", \"{{x}}\"]\n{input}"));
    let ended = served.reload();
    assert!(ended.code != Some(0) && ended.err.contains("line 4, column 11"), "what would surely be is refused: {ended:?}");
}

#[test]
fn a_file_that_was_named_from_where_one_was_is_found_unchanged() {
    let user = User::new();
    std::fs::create_dir(user.path("sub")).expect("a directory");
    let config = format!("data = \"tasks\"\n{}", says("a", "one"));
    for file in ["taskwire.toml", "./taskwire.toml", "sub/taskwire.toml"] {
        user.write(file, &config);
        let here = |args: &[&str]| RunningCommand::start(user.command(args).current_dir(user.path(".")));
        let mut server = here(&["serve", file, "--listen", "127.0.0.1:0"]);
        server.out.line_with("  endpoint  ");
        let ended = here(&["reload", file]).end();
        assert_eq!((ended.code, ended.out.as_str(), ended.err.as_str()), (Some(0), "unchanged: 1\n", ""), "{file}");
        server.signal("TERM");
        assert_eq!(server.end().code, Some(0), "{file}");
    }
}

#[test]
fn a_description_that_says_only_what_is_run_earns_a_warning() {
    let mut served = Served::with("[[tool]]\nname = \"a\"\ncommand = [\"sh\", \"-c\", \"echo one\"]\n");
    let words =
        "tool `a`: its description says only which program it runs: models choose tools by it, so say in `description` what it does";
    served.running.err.until(&format!("warning: {}: {words}\n", served.file));
    assert_eq!(served.reload().err, format!("warning: {}: {words}\n", served.file));
    served.write("[[tool]]\nname = \"a\"\ndescription = \"Says one\"\ncommand = [\"sh\", \"-c\", \"echo one\"]\n");
    assert_eq!(served.reloaded(), "changed: a; unchanged: 0\n");
}

#[test]
fn where_nobody_is_found_the_directory_is_named_from_the_root() {
    let user = User::new();
    let file = user.write("taskwire.toml", &format!("data = \"nowhere\"\n{}", says("a", "one")));
    let dir = TempDir::new();
    let here = dir.path().canonicalize().expect("a directory");
    let reload = |args: &[&str]| RunningCommand::start(user.command(args).current_dir(&here)).end();
    let ended = reload(&["reload", &file]);
    let expected = format!("no server has its tasks in {} (as {file} says): ", user.path("nowhere"));
    assert_eq!(ended.code, Some(3), "{ended:?}");
    assert!(ended.err.starts_with(&format!("taskwire: {expected}")), "{ended:?}");
    let ended = reload(&["reload"]);
    assert!(ended.err.starts_with(&format!("taskwire: no server has its tasks in {}/.taskwire: ", here.display())), "{ended:?}");
}

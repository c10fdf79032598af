//! `taskwire call` in a script: arguments in, output and exit code out.

use std::{net::TcpListener, sync::mpsc};

use serde_json::{Value, json};
use taskwire::{
    server::{Config, Tokens},
    tool::{CallResult, Content, Ctx, TaskMode, Tool, ToolError},
};

use crate::{
    fixture::{Gate, ScriptedServer, TestServer, echo, says, steps},
    kit::{Server, TIMEOUT, TempDir},
    user::{RunningCommand, User},
};

/// The output of the demo server's story, which comes word by word.
const STORY: &str = "Once there was a lighthouse that answered every ship. One night the lamp went out in the middle of a \
sentence. The keeper lit it again, read in the log where the light had stopped, and finished the word. The ships had waited. \
Nobody was lost, and nobody was told the same thing twice.";

/// Text that is for a terminal alone.
fn is_plain(text: &str) -> bool {
    !text.contains(['\x1b', '\r', '⠋', '━'])
}

// Output.

#[test]
fn output_goes_to_standard_output_and_everything_else_does_not() {
    let (dir, user) = (TempDir::new(), User::new());
    let server = Server::start(&dir.join("data"));
    let ended = user.run(&["call", &server.url(), "countdown", "from=2"]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), "2…\n1…\nLift-off!\n"), "{ended:?}");
    assert!(ended.err.lines().all(|line| line.starts_with("taskwire: ")), "{}", ended.err);
    let task = ended.err.lines().find_map(|line| line.strip_prefix("taskwire: task ")).expect("the task is named");
    assert_eq!(task.len(), 32, "the whole id: {task}");
    assert!(is_plain(&ended.out) && is_plain(&ended.err), "no colours and nothing that moves in a pipe: {ended:?}");
}

#[test]
fn a_result_that_was_streamed_is_told_once_and_ends_its_line() {
    let (dir, user) = (TempDir::new(), User::new());
    let server = Server::start(&dir.join("data"));
    for era in ["modern", "legacy"] {
        let ended = user.run(&["call", &server.url(), "tell_story", "pause_ms=5", "--era", era]);
        assert_eq!((ended.code, ended.out), (Some(0), format!("{STORY}\n")), "{era}: {}", ended.err);
    }
}

#[test]
fn without_streaming_there_is_only_the_result() {
    let (user, gate) = (User::new(), Gate::closed());
    let fixture = TestServer::serve([steps("steps", &gate, ["one\n", "two\n"], "done")]);
    gate.open(3);
    let ended = user.run(&["call", &fixture.url(), "steps", "--no-stream"]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), "done\n"), "{ended:?}");
}

#[test]
fn what_a_tool_writes_reaches_a_pipe_as_it_is() {
    let (user, gate) = (User::new(), Gate::closed());
    let text = "\x1b[2J\x1b]0;title\x07\u{9b}m\ttab\rreturn\0";
    let fixture = TestServer::serve([steps("steps", &gate, [text], text)]);
    gate.open(2);
    let ended = user.run(&["call", &fixture.url(), "steps"]);
    assert_eq!((ended.code, ended.out), (Some(0), format!("{text}\n")));
}

#[test]
fn content_that_is_no_text_is_a_line_about_it() {
    let body = |_: Ctx| async {
        let blocks = [
            Content::text("see:"),
            Content::image(&[0; 12_300], "image/png"),
            Content::link("file:///a.txt", "a"),
            Content::resource("file:///b.txt", "text/plain", "inside"),
        ];
        Ok::<CallResult, ToolError>(CallResult::of(blocks))
    };
    let value = |_: Ctx| async {
        Ok::<CallResult, ToolError>(CallResult { structured_content: Some(json!({"n": 1}).into()), ..CallResult::default() })
    };
    let tools =
        [Tool::raw("show", "Shows", json!({"type": "object"}), body), Tool::raw("value", "Counts", json!({"type": "object"}), value)];
    let (user, fixture) = (User::new(), TestServer::serve(tools));
    let ended = user.run(&["call", &fixture.url(), "show"]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), "see:\n[image image/png, 12.3 kB]\nfile:///a.txt\ninside\n"), "{ended:?}");
    let ended = user.run(&["call", &fixture.url(), "value"]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), "{\n  \"n\": 1\n}\n"), "{ended:?}");
}

#[test]
fn a_reader_that_has_seen_enough_leaves_the_task_running() {
    let (dir, user) = (TempDir::new(), User::new());
    let server = Server::start(&dir.join("data"));
    let mut running = user.start(&["call", &server.url(), "count_far"]);
    let task = running.task();
    running.out.until("1\n");
    let ended = running.end_unread();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let way_back = format!("taskwire: left running; come back with: taskwire watch {}", &task[..12]);
    assert!(ended.err.contains(&way_back), "`{way_back}` in: {}", ended.err);
    assert_eq!(user.task(&task)["status"], "working");
}

// Exit codes.

#[test]
fn each_way_to_fail_has_a_code_of_its_own() {
    let (dir, user) = (TempDir::new(), User::new());
    let server = Server::start(&dir.join("data"));
    let url = server.url();
    let so_far = "Everything is going well so far.\n";
    // All at once: each takes its time.
    let tool = user.start(&["call", &url, "fail"]);
    let request = user.start(&["call", &url, "fail", "how=request"]);
    let bug = user.start(&["call", &url, "fail", "how=panic"]);
    let ended = tool.end();
    assert_eq!((ended.code, ended.out), (Some(1), format!("{so_far}The bridge is out: choose another way.\n")), "{}", ended.err);
    let ended = request.end();
    assert_eq!((ended.code, ended.out.as_str()), (Some(5), so_far), "{}", ended.err);
    assert!(ended.err.ends_with("taskwire: the task failed: the bridge is out (code 1001)\n"), "{}", ended.err);
    let ended = bug.end();
    assert_eq!((ended.code, ended.out.as_str()), (Some(5), so_far), "{}", ended.err);
    assert!(ended.err.contains("taskwire: the task failed: "), "{}", ended.err);
}

#[test]
fn what_does_not_fit_the_schema_has_one_code_whoever_finds_it() {
    let body = |_: Ctx| async { Err::<String, _>(ToolError::protocol(-32602, "no such city")) };
    let schema = json!({"type": "object", "properties": {"days": {"type": "integer", "minimum": 1}, "city": {"type": "string"}}});
    let tool = Tool::raw("weather", "Tells the weather", schema, body).task(TaskMode::Never);
    let (user, fixture) = (User::new(), TestServer::serve([tool]));
    let url = fixture.url();
    user.run(&["call", &url, "weather", "days=few"]).is_refusal("`days` must be an integer, not `few`");
    user.run(&["call", &url, "weather", "days=0"]).is_refusal("the arguments of `weather` do not fit: `days`: 0 is less than 1");
    user.run(&["call", &url, "weather", "{\"city\": 7}"])
        .is_refusal("the arguments of `weather` do not fit: `city`: 7 is not of type \"string\"");
    user.run(&["call", &url, "weather", "city=Nowhere"]).is_refusal("no such city (code -32602)");
    let last = user.run(&["call", &url, "weather", "city=Nowhere", "--json"]).json().pop().expect("a last line");
    assert_eq!((&last["kind"], &last["code"]), (&json!("usage"), &json!(-32602)), "{last}");
}

#[test]
fn a_task_that_was_cancelled_elsewhere_has_a_code_of_its_own() {
    let (user, gate) = (User::new(), Gate::closed());
    let fixture = TestServer::serve([steps("steps", &gate, ["begun", "never"], "never")]);
    let mut running = user.start(&["call", &fixture.url(), "steps"]);
    let task = running.task();
    gate.open(1);
    running.out.until("begun");
    assert_eq!(user.run(&["cancel", &task]).code, Some(0));
    let ended = running.end();
    assert_eq!((ended.code, ended.out.as_str()), (Some(4), "begun\n"), "the line is ended: {ended:?}");
    assert!(ended.err.lines().last().is_some_and(|line| line.starts_with("taskwire: cancelled")), "{ended:?}");
}

#[test]
fn a_server_that_is_not_there_is_given_up_soon() {
    let user = User::new();
    let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port that is free again").port();
    let url = format!("http://127.0.0.1:{port}/mcp");
    let ended = user.run(&["call", &url, "countdown"]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(3), ""), "{ended:?}");
    assert!(ended.err.starts_with(&format!("taskwire: cannot reach {url}: ")), "{}", ended.err);
    assert!(user.ledger().entries().expect("a list").is_empty(), "nothing was sent, and nothing is remembered");
}

#[test]
fn an_error_instead_of_an_answer_is_the_protocols() {
    let body = |_: Ctx| async { Err::<String, _>(ToolError::protocol(1002, "not today")) };
    let tool = Tool::raw("moody", "Answers or not", json!({"type": "object"}), body).task(TaskMode::Never);
    let (user, fixture) = (User::new(), TestServer::serve([tool]));
    let ended = user.run(&["call", &fixture.url(), "moody"]);
    assert_eq!((ended.code, ended.out.as_str(), ended.err.as_str()), (Some(3), "", "taskwire: not today (code 1002)\n"));
    let ended = user.run(&["call", &fixture.url(), "moody", "--json"]);
    assert_eq!(ended.code, Some(3));
    let lines = ended.json();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!((&lines[0]["event"], &lines[0]["kind"], &lines[0]["code"]), (&json!("error"), &json!("protocol"), &json!(1002)));
}

// Arguments.

#[test]
fn arguments_become_what_the_tool_wants() {
    let (user, fixture) = (User::new(), TestServer::serve([echo()]));
    let url = fixture.url();
    let note = user.write("note.txt", "from a\nfile");
    let object = user.write("args.json", "{\"text\": \"of a file\", \"count\": 7}");
    let (of_note, of_object, deep) = (format!("text@={note}"), format!("@{object}"), format!("deep:=@{object}"));
    for (words, input, expected) in [
        (&["text=5", "count=5", "ratio=0.5", "sure=yes"] as &[&str], "", json!({"text": "5", "count": 5, "ratio": 0.5, "sure": true})),
        (&["text=a=b", "tags=x", "tags=y", "colour=red"], "", json!({"text": "a=b", "tags": ["x", "y"], "colour": "red"})),
        (&["text:=\"t\"", "tags:=[\"z\"]", "deep={\"a\":[1]}"], "", json!({"text": "t", "tags": ["z"], "deep": {"a": [1]}})),
        (&["{\"text\": \"x\", \"more\": null}", "count=1"], "", json!({"text": "x", "more": null, "count": 1})),
        (&[of_note.as_str()], "", json!({"text": "from a\nfile"})),
        (&["text@=-"], "typed\n", json!({"text": "typed\n"})),
        (&["text=-"], "typed\n", json!({"text": "-"})),
        (&["text=@ada", "tags=@x", "tags=-"], "", json!({"text": "@ada", "tags": ["@x", "-"]})),
        (&["text=x", "deep:=-"], "{\"b\": 2}", json!({"text": "x", "deep": {"b": 2}})),
        (&["-"], "{\"text\": \"all of it\"}", json!({"text": "all of it"})),
        (&[of_object.as_str(), "count=8"], "", json!({"text": "of a file", "count": 8})),
        (&["text=x", deep.as_str()], "", json!({"text": "x", "deep": {"text": "of a file", "count": 7}})),
    ] {
        let args: Vec<&str> = ["call", url.as_str(), "echo"].into_iter().chain(words.iter().copied()).collect();
        let ended = user.run_with(&args, input);
        assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{words:?}");
        assert_eq!(serde_json::from_str::<Value>(&ended.out).expect("JSON"), expected, "{words:?}");
    }
}

#[test]
fn what_cannot_be_meant_is_refused_with_what_may_have_been() {
    let (user, fixture) = (User::new(), TestServer::serve([echo(), says("say", &Gate::closed(), "", TaskMode::Never)]));
    let url = fixture.url();
    let all = "Its parameters: text (string, required), colour (red|green, optional), count (integer, optional), deep (object, optional), \
               ratio (number, optional), sure (boolean, optional), tags (array, optional)";
    for (words, expected) in [
        (&["ecko"] as &[&str], format!("{url} has no tool `ecko`; did you mean `echo`? `taskwire tools {url}` lists them")),
        (&["zzzzzzzz"], format!("{url} has no tool `zzzzzzzz`: `taskwire tools {url}` lists them")),
        (&["echo", "text=x", "cuont=3"], format!("`echo` has no parameter `cuont`; did you mean `count`? {all}")),
        (&["echo", "text=x", "count=few"], "`count` must be an integer, not `few`".to_owned()),
        (&["echo", "text=x", "sure=perhaps"], "`sure` must be true or false, not `perhaps`".to_owned()),
        (&["echo", "text=x", "colour=rad"], "`colour` must be one of `red`, `green`, not `rad`; did you mean `red`?".to_owned()),
        (&["echo", "text=x", "text=y"], "`text` is given twice".to_owned()),
        (&["echo", "count=1"], format!("`echo` needs `text`. {all}")),
        (&["echo", "what"], "`what` is neither key=value, key:=json nor a JSON object".to_owned()),
        (&["echo", "text=x", "--header", "x"], "a --header is not 'NAME: VALUE'".to_owned()),
    ] {
        let args: Vec<&str> = ["call", url.as_str()].into_iter().chain(words.iter().copied()).collect();
        user.run(&args).is_refusal(&expected);
    }
    for (word, beginning) in [("text:=x", "taskwire: `text:=x` is not JSON: "), ("text@=missing", "taskwire: cannot read missing: ")] {
        let ended = user.run(&["call", &url, "echo", word]);
        assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""));
        assert!(ended.err.starts_with(beginning), "{}", ended.err);
    }
    user.run(&["call", &url]).is_refusal(&format!("which tool? `taskwire tools {url}` lists them"));
    let ended = user.run(&["call"]);
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.err.contains("Usage: taskwire call"), "{}", ended.err);
}

// For programs.

/// What every line of `--json` is.
fn check_events(lines: &[Value]) {
    for line in lines {
        let event = line["event"].as_str().unwrap_or_default();
        assert!(["task", "partial", "status", "input", "result", "error"].contains(&event), "{line}");
    }
}

#[test]
fn programs_get_an_object_a_line() {
    let (user, gate) = (User::new(), Gate::closed());
    let fixture = TestServer::serve([steps("steps", &gate, ["one\n", "two\n"], "done"), echo()]);
    gate.open(3);
    let ended = user.run(&["call", &fixture.url(), "steps", "--json"]);
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{ended:?}");
    let lines = ended.json();
    check_events(&lines);
    let task = lines[0]["taskId"].as_str().expect("a task");
    assert_eq!(lines[0], json!({"event": "task", "taskId": task, "server": fixture.url(), "era": "modern", "tool": "steps"}));
    let partials: Vec<&Value> = lines.iter().filter(|line| line["event"] == "partial").collect();
    let partial =
        |seq: u64, text: &str| json!({"event": "partial", "taskId": task, "seq": seq, "content": [{"type": "text", "text": text}]});
    assert_eq!(partials, [&partial(0, "one\n"), &partial(1, "two\n")]);
    let last = lines.last().expect("a last line");
    assert_eq!((&last["event"], &last["taskId"], &last["isError"]), (&json!("result"), &json!(task), &json!(false)));
    assert_eq!(last["result"]["content"], json!([{"type": "text", "text": "done"}]));

    let ended = user.run(&["call", &fixture.url(), "echo", "text=x", "--json"]);
    let lines = ended.json();
    assert_eq!((lines.len(), &lines[0]["event"], lines[0].get("taskId")), (1, &json!("result"), None), "no task, no id: {lines:?}");
}

#[test]
fn programs_are_told_how_it_failed() {
    let (dir, user) = (TempDir::new(), User::new());
    let server = Server::start(&dir.join("data"));
    let url = server.url();
    let tool = user.start(&["call", &url, "fail", "--json"]);
    let request = user.start(&["call", &url, "fail", "how=request", "--json"]);
    let ended = tool.end();
    let last = ended.json().pop().expect("a last line");
    assert_eq!((ended.code, &last["event"], &last["isError"]), (Some(1), &json!("result"), &json!(true)));
    let ended = request.end();
    let lines = ended.json();
    check_events(&lines);
    let task = &lines.iter().find(|line| line["event"] == "task").expect("it became a task")["taskId"];
    let last = lines.last().expect("a last line");
    let expected = json!({"event": "error", "taskId": task, "kind": "failed", "message": "the bridge is out", "code": 1001});
    assert_eq!((ended.code, last, ended.err.as_str()), (Some(5), &expected, ""));
    let ended = user.run(&["call", &url, "countdwn", "--json"]);
    assert_eq!(ended.code, Some(2));
    let message = format!("{url} has no tool `countdwn`; did you mean `countdown`? `taskwire tools {url}` lists them");
    assert_eq!(ended.json(), [json!({"event": "error", "kind": "usage", "message": message})]);
    assert_eq!(ended.err, format!("taskwire: {message}\n"));
}

// Coming and going.

#[test]
fn a_detached_call_prints_its_task_and_returns() {
    let (user, gate) = (User::new(), Gate::closed());
    let fixture = TestServer::serve([steps("steps", &gate, ["one"], "done"), echo()]);
    let task = user.detach(&fixture.url(), "steps");
    assert_eq!(task.len(), 32, "{task}");
    assert_eq!(user.task(&task)["status"], "working");
    let lines = user.run(&["call", &fixture.url(), "steps", "--detach", "--json"]).json();
    assert_eq!((lines.len(), &lines[0]["event"], &lines[0]["tool"]), (1, &json!("task"), &json!("steps")), "{lines:?}");
    let ended = user.run(&["call", &fixture.url(), "echo", "text=x", "--detach"]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), "{\"text\":\"x\"}\n"), "what has ended cannot be left: {ended:?}");
}

#[test]
fn an_interrupt_and_a_termination_leave_the_task_running() {
    let (user, gate) = (User::new(), Gate::closed());
    let fixture = TestServer::serve([steps("steps", &gate, ["one"], "done")]);
    for signal in ["INT", "TERM"] {
        let mut running = user.start(&["call", &fixture.url(), "steps"]);
        let task = running.task();
        running.signal(signal);
        let ended = running.end();
        assert_eq!((ended.code, ended.out.as_str()), (Some(0), ""), "{signal}: {ended:?}");
        let lines: Vec<&str> = ended.err.lines().skip(1).collect();
        let way_back = lines.first().and_then(|line| line.strip_prefix("taskwire: left running; come back with: taskwire watch "));
        let prefix = way_back.filter(|prefix| prefix.len() >= 12 && task.starts_with(prefix)).unwrap_or_else(|| panic!("{ended:?}"));
        let cancel = format!("taskwire: Ctrl-C again cancels it, and so does: taskwire cancel {prefix}");
        assert_eq!(lines[1..], [cancel][..usize::from(signal == "INT")], "{signal}");
        assert_eq!(user.task(&task)["status"], "working", "{signal}");
    }
}

#[test]
fn a_second_interrupt_cancels_the_task_and_so_does_the_first_of_who_said_so() {
    let (user, gate) = (User::new(), Gate::closed());
    let fixture = TestServer::serve([steps("steps", &gate, ["one"], "done")]);
    let mut running = user.start(&["call", &fixture.url(), "steps"]);
    let task = running.task();
    running.signal("INT");
    running.err.until("taskwire: Ctrl-C again cancels it");
    running.signal("INT");
    let ended = running.end();
    assert_eq!((ended.code, ended.out.as_str()), (Some(4), ""), "{ended:?}");
    assert!(ended.err.contains("taskwire: cancelling…\ntaskwire: cancelled"), "{}", ended.err);
    assert_eq!(user.task(&task)["status"], "cancelled");

    let mut running = user.start(&["call", &fixture.url(), "steps", "--cancel-on-interrupt"]);
    let task = running.task();
    running.signal("INT");
    let ended = running.end();
    assert_eq!(ended.code, Some(4), "{ended:?}");
    assert!(!ended.err.contains("left running") && ended.err.contains("taskwire: cancelling…\ntaskwire: cancelled"), "{}", ended.err);
    assert_eq!(user.task(&task)["status"], "cancelled");
}

#[test]
fn programs_are_told_that_a_task_is_left_or_cancelled() {
    let (user, gate) = (User::new(), Gate::closed());
    let fixture = TestServer::serve([steps("steps", &gate, ["one"], "done")]);
    let url = fixture.url();
    let args = ["call", url.as_str(), "steps", "--json", "--cancel-on-interrupt"];
    for (signal, args, code) in [("TERM", &args[..4], 0), ("INT", &args[..4], 0), ("INT", &args[..], 4)] {
        let mut running = user.start(args);
        running.out.until("\"event\":\"task\"");
        running.signal(signal);
        let ended = running.end();
        assert_eq!((ended.code, ended.err.as_str()), (Some(code), ""), "{ended:?}");
        let lines = ended.json();
        check_events(&lines);
        let task = lines[0]["taskId"].clone();
        let last = lines.last().expect("a last line");
        if code == 0 {
            assert_eq!(*last, json!({"event": "status", "taskId": task, "detached": true}));
        } else {
            assert!(lines.contains(&json!({"event": "status", "taskId": task, "cancelling": true})), "{lines:?}");
            assert_eq!((&last["event"], &last["kind"]), (&json!("error"), &json!("cancelled")));
        }
    }
}

/// Says that it ends, however it does.
struct Farewell(mpsc::Sender<&'static str>);

impl Drop for Farewell {
    fn drop(&mut self) {
        let _ = self.0.send("over");
    }
}

/// A call that is never a task and waits in silence; that it has begun, and that it is over.
fn hold(gate: &Gate) -> (Tool, mpsc::Receiver<&'static str>) {
    let (sender, signals) = mpsc::channel();
    let gate = gate.clone();
    let body = move |ctx: Ctx| {
        let (gate, sender) = (gate.clone(), sender.clone());
        async move {
            let farewell = Farewell(sender);
            farewell.0.send("begun").map_err(|_| ToolError::new("nobody waits"))?;
            gate.pass(&ctx).await?;
            Ok::<&'static str, ToolError>("held")
        }
    };
    (Tool::raw("hold", "Holds", json!({"type": "object"}), body).task(TaskMode::Never), signals)
}

#[test]
fn a_call_that_is_no_task_is_given_up_and_its_server_told() {
    let (user, gate) = (User::new(), Gate::closed());
    let (tool, signals) = hold(&gate);
    let fixture = TestServer::serve([tool]);
    let running = user.start(&["call", &fixture.url(), "hold", "--cancel-on-interrupt"]);
    assert_eq!(signals.recv_timeout(TIMEOUT), Ok("begun"));
    running.signal("INT");
    let ended = running.end();
    let words = "taskwire: cancelling…\ntaskwire: given up\n";
    assert_eq!((ended.code, ended.out.as_str(), ended.err.as_str()), (Some(4), "", words));
    assert_eq!(signals.recv_timeout(TIMEOUT), Ok("over"), "nobody opened the gate");
    assert!(user.ledger().entries().expect("a list").is_empty(), "there is nothing to come back to");

    let mut running = user.start(&["call", &fixture.url(), "hold"]);
    assert_eq!(signals.recv_timeout(TIMEOUT), Ok("begun"));
    running.signal("INT");
    let way_back = running.err.until("taskwire: Ctrl-C again gives it up\n");
    assert!(way_back.starts_with("taskwire: left running; come back with: taskwire watch "), "{way_back}");
    running.signal("INT");
    let ended = running.end();
    assert_eq!((ended.code, ended.err), (Some(4), format!("{way_back}{words}")));
    assert_eq!(signals.recv_timeout(TIMEOUT), Ok("over"), "nobody opened the gate");
}

#[test]
fn a_result_that_comes_before_the_call_was_left_is_shown() {
    let (user, gate) = (User::new(), Gate::closed());
    let (tool, signals) = hold(&gate);
    let fixture = TestServer::serve([tool]);
    let mut running = user.start(&["call", &fixture.url(), "hold"]);
    assert_eq!(signals.recv_timeout(TIMEOUT), Ok("begun"));
    running.signal("INT");
    running.err.until("taskwire: Ctrl-C again gives it up\n");
    gate.open(1);
    let ended = running.end();
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), "held\n"), "nobody else would get it: {ended:?}");
}

#[test]
fn an_interrupt_gives_up_what_could_not_be_found_again() {
    let user = User::new();
    let (scripted, called) = ScriptedServer::silent();
    let running = user.start(&["call", &scripted.url(), "hold"]);
    called.recv_timeout(TIMEOUT).expect("it is called");
    running.signal("INT");
    let ended = running.end();
    assert_eq!((ended.code, ended.out.as_str(), ended.err.as_str()), (Some(4), "", "taskwire: given up\n"), "it knows no keys");
}

#[test]
fn a_call_that_is_no_task_yet_can_be_left_and_come_back_to() {
    let (user, gate) = (User::new(), Gate::closed());
    let (tool, signals) = hold(&gate);
    let fixture = TestServer::serve([tool]);
    let url = fixture.url();
    for (json, signal) in [(false, "TERM"), (true, "TERM"), (true, "INT")] {
        let args = ["call", url.as_str(), "hold", "--json"];
        let running = user.start(if json { &args } else { &args[..3] });
        assert_eq!(signals.recv_timeout(TIMEOUT), Ok("begun"));
        running.signal(signal);
        let ended = running.end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let sent = user.run(&["tasks", "--json"]).json().pop().expect("it is listed");
        let prefix = sent["prefix"].as_str().expect("a prefix");
        assert_eq!((&sent["status"], &sent["taskId"]), (&json!("sent"), &Value::Null), "{sent}");
        if json {
            let last = ended.json().pop().expect("a last line");
            assert_eq!((&last["event"], &last["detached"]), (&json!("status"), &json!(true)), "{last}");
            assert!(last["key"].as_str().is_some_and(|key| key.starts_with(prefix)), "{last}");
        } else {
            let way_back = format!("taskwire: left running; come back with: taskwire watch {prefix}\n");
            assert_eq!((ended.out.as_str(), ended.err), ("", way_back));
        }
        gate.open(1);
        let watched = user.run(&["watch", prefix]);
        assert_eq!((watched.code, watched.out.as_str()), (Some(0), "held\n"), "{watched:?}");
        assert_eq!(signals.recv_timeout(TIMEOUT), Ok("over"));
        assert_eq!(signals.try_recv(), Err(mpsc::TryRecvError::Empty), "the work was done once");
        user.run(&["tasks", "--prune"]);
    }
}

#[test]
fn the_way_back_to_a_call_leads_to_its_task_as_well() {
    let (dir, user) = (TempDir::new(), User::new());
    let server = Server::start(&dir.join("data"));
    let mut running = user.start(&["call", &server.url(), "bake", "--json"]);
    // The progress comes before the call becomes a task.
    running.out.until("mixing");
    running.signal("TERM");
    let ended = running.end();
    let key = ended.json().pop().and_then(|last| last["key"].as_str().map(ToOwned::to_owned));
    let key = key.unwrap_or_else(|| panic!("no key: {ended:?}"));
    let mut watching = user.start(&["watch", &key[..12], "--json"]);
    let task = watching.out.line_of("a task", |line| {
        let line: Value = serde_json::from_str(line).expect("JSON");
        line["taskId"].as_str().map(ToOwned::to_owned)
    });
    watching.kill();
    assert_eq!(user.task(&key[..12])["taskId"], task.as_str(), "what was once said to lead there goes on doing so");
}

#[test]
fn who_gives_up_before_there_is_a_connection_is_not_kept_waiting() {
    let user = User::new();
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/mcp", silent.local_addr().expect("an address"));
    for signal in ["INT", "TERM"] {
        let running = user.start(&["call", &url, "echo", "--json"]);
        let _held = silent.accept().expect("it connects");
        running.signal(signal);
        let ended = running.end();
        assert_eq!((ended.code, ended.err.as_str()), (Some(4), "taskwire: given up\n"), "{signal}: {ended:?}");
        assert_eq!(ended.json(), [json!({"event": "error", "kind": "cancelled", "message": "given up"})], "{signal}");
    }
}

#[test]
fn a_question_for_a_language_model_is_not_answered_by_anybody() {
    let user = User::new();
    let scripted = ScriptedServer::asking(r#"{"m":{"method":"sampling/createMessage","params":{"messages":[],"maxTokens":5}}}"#);
    let words = format!("{} asks for sampling/createMessage, which this client does not offer", scripted.url());
    let ended = user.run(&["call", &scripted.url(), "ask"]);
    assert_eq!((ended.code, ended.out.as_str(), ended.err), (Some(3), "", format!("taskwire: {words}\n")));
    let ended = user.run(&["call", &scripted.url(), "ask", "--json"]);
    assert_eq!(ended.code, Some(3), "{ended:?}");
    let last = ended.json().pop().expect("a last line");
    assert_eq!(last, json!({"event": "error", "kind": "protocol", "message": words}));
    assert!(scripted.take_requests().iter().all(|request| !request.contains("inputResponses")), "nothing is made up");
}

#[test]
fn a_call_survives_the_death_of_its_server() {
    let (dir, user) = (TempDir::new(), User::new());
    let first = Server::start(&dir.join("data"));
    let port = first.port;
    let mut running = user.start(&["call", &first.url(), "count_far", "to=12"]);
    running.out.until("3\n");
    first.process.kill();
    running.err.until("taskwire: connection lost (");
    let _second = Server::start_at(port, &dir.join("data"));
    running.err.until("taskwire: connected again\n");
    let ended = running.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let lines: Vec<&str> = ended.out.lines().filter(|line| !line.starts_with("(attempt 2: going on with ")).collect();
    let numbers = (1..=12).map(|n: u32| n.to_string());
    let expected: Vec<String> = numbers.chain(["Counted to 12 in 2 attempts.".to_owned()]).collect();
    assert_eq!(lines, expected, "each number once: {}", ended.out);
}

// Servers.

#[test]
fn a_server_can_be_a_program_that_is_started() {
    let (dir, user) = (TempDir::new(), User::new());
    let program = env!("CARGO_BIN_EXE_taskwire");
    let data = dir.join("data");
    user.configure(&format!("[server.own]\ncommand = [\"{program}\", \"serve\", \"--stdio\", \"--data\", \"{data}\"]\n"));
    let line = format!("stdio:'{program}' serve --stdio --data '{data}'");
    // The second could not have the directory if the first were still there.
    for server in [line.as_str(), "own"] {
        let ended = user.run(&["call", server, "countdown", "from=1"]);
        assert_eq!((ended.code, ended.out.as_str()), (Some(0), "1…\nLift-off!\n"), "{server}: {ended:?}");
    }
    let ended = user.run(&["call", "stdio:no-such-program", "countdown"]);
    assert_eq!(ended.code, Some(3), "{ended:?}");
    assert!(ended.err.contains("no-such-program"), "{}", ended.err);
}

#[test]
fn a_server_that_ends_is_told_with_its_exit_code_and_its_last_lines() {
    let user = User::new();
    user.configure("[server.broken]\ncommand = [\"sh\", \"-c\", \"echo Traceback >&2; echo 'no module named mcp' >&2; exit 7\"]\n");
    let ended = user.run(&["tools", "broken"]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(3), ""), "{ended:?}");
    let words = ": the server ended with exit code 7; its last lines:\n  Traceback\n  no module named mcp\n";
    assert!(ended.err.starts_with("taskwire: cannot reach stdio:sh -c ") && ended.err.ends_with(words), "{ended:?}");
    assert!(!ended.err.contains("has not answered yet"), "{ended:?}");
}

#[test]
fn a_server_has_a_name_in_the_configuration() {
    let (user, fixture) = (User::new(), TestServer::serve([echo()]));
    let file = user.configure(&format!("[server.demo]\nurl = \"{}\"\n", fixture.url()));
    let ended = user.run(&["call", "demo", "echo", "text=x"]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), "{\"text\":\"x\"}\n"), "{ended:?}");
    let neither = |name: &str| format!("`{name}` is neither a URL, nor stdio:<command line>, nor a server in {file}");
    user.run(&["call", "demp", "echo"]).is_refusal(&format!("{}; did you mean `demo`?", neither("demp")));
    user.run(&["call", "h:x", "echo"]).is_refusal(&neither("h:x"));
    user.configure("[server.demo]\nurll = \"http://h/mcp\"\n");
    let ended = user.run(&["call", "demo", "echo"]);
    assert_eq!(ended.code, Some(2));
    for expected in [format!("taskwire: {file} cannot be used: ").as_str(), "line 2", "did you mean `url`?"] {
        assert!(ended.err.contains(expected), "`{expected}` in: {}", ended.err);
    }
}

#[test]
fn a_default_server_need_not_be_named() {
    let (user, fixture) = (User::new(), TestServer::serve([echo()]));
    let url = fixture.url();
    let file = user.configure(&format!("default = \"demo\"\n\n[server.demo]\nurl = \"{url}\"\n\n[server.echo]\nurl = \"{url}\"\n"));
    for args in [&["call", "demo", "echo", "text=x"] as &[&str], &["call", &url, "echo", "text=x"], &["call", "echo", "echo", "text=x"]] {
        assert_eq!(user.run(args).out, "{\"text\":\"x\"}\n", "a word that names a server is the server: {args:?}");
    }
    user.run(&["call", "echo"]).is_refusal("which tool? `taskwire tools echo` lists them");
    user.configure(&format!("default = \"demo\"\n\n[server.demo]\nurl = \"{url}\"\n"));
    assert_eq!(user.run(&["call", "echo", "text=x"]).out, "{\"text\":\"x\"}\n");
    assert!(user.run(&["tools"]).out.contains("Gives its arguments back"));
    assert!(user.run(&["tools", "echo"]).out.ends_with("taskwire call demo echo 'text=…'\n"));
    user.run(&["call", "ecko", "text=x"]).is_refusal("demo has no tool `ecko`; did you mean `echo`? `taskwire tools demo` lists them");
    user.configure(&format!("[server.demo]\nurl = \"{url}\"\n"));
    user.run(&["tools"]).is_refusal(&format!("which server? Name one, or set `default = \"NAME\"` in {file}"));
    user.run(&["tools", "echo"]).is_refusal(&format!("`echo` is neither a URL, nor stdio:<command line>, nor a server in {file}"));
}

#[test]
fn an_address_without_a_scheme_means_what_it_says() {
    let (user, fixture) = (User::new(), TestServer::serve([echo()]));
    let port = fixture.port;
    for server in [format!("localhost:{port}/mcp"), format!("127.0.0.1:{port}/mcp"), format!("127.0.0.1:{port}")] {
        let ended = user.run(&["call", &server, "echo", "text=x"]);
        assert_eq!((ended.code, ended.out.as_str()), (Some(0), "{\"text\":\"x\"}\n"), "{server}: {ended:?}");
    }
    user.configure(&format!("[server.demo]\nurl = \"127.0.0.1:{port}/mcp\"\n"));
    assert_eq!(user.run(&["call", "demo", "echo", "text=x"]).code, Some(0), "in the file as well");
}

#[test]
fn https_to_a_port_of_plain_http_says_so() {
    let (user, fixture) = (User::new(), TestServer::serve([echo()]));
    let url = format!("https://127.0.0.1:{}/mcp", fixture.port);
    let ended = user.run(&["tools", &url]);
    let words = format!("taskwire: cannot reach {url}: it does not speak https there, but probably plain http: use http:// instead\n");
    assert_eq!((ended.code, ended.out.as_str(), ended.err), (Some(3), "", words));
}

#[test]
fn the_nearest_token_is_sent() {
    let config = Config { auth: std::sync::Arc::new(Tokens::default().with_token("s3cret", "me")), ..Config::default() };
    let (user, fixture) = (User::new(), TestServer::serve_with([echo()], config));
    let url = fixture.url();
    let call = |server: &str, more: &[&str], variables: &[(&str, &str)]| {
        let args: Vec<&str> = ["call", server, "echo", "text=x"].into_iter().chain(more.iter().copied()).collect();
        let ended = RunningCommand::start(user.command(&args).envs(variables.iter().copied())).end();
        assert!(!ended.err.contains("s3cret") && !ended.out.contains("s3cret"), "a token is not for logs: {ended:?}");
        (ended.code, ended.err)
    };
    let (code, words) = call(&url, &[], &[]);
    assert_eq!(code, Some(3));
    assert!(words.starts_with(&format!("taskwire: {url} refuses access")) && words.contains("give a token"), "{words}");
    assert_eq!(call(&url, &["--token", "s3cret"], &[]).0, Some(0));
    assert_eq!(call(&url, &["--header", "Authorization: Bearer s3cret"], &[]).0, Some(0));
    assert_eq!(call(&url, &[], &[("TASKWIRE_TOKEN", "s3cret")]).0, Some(0));
    assert_eq!(call(&url, &["--token", "wrong"], &[("TASKWIRE_TOKEN", "s3cret")]).0, Some(3), "the nearer one counts");
    user.configure(&format!("[server.mine]\nurl = \"{url}\"\ntoken = \"env:MINE\"\n"));
    assert_eq!(call("mine", &[], &[("MINE", "s3cret"), ("TASKWIRE_TOKEN", "wrong")]).0, Some(0));
    assert_eq!(call(&url, &[], &[("MINE", "s3cret")]).0, Some(0), "by its address it is the same server");
    let (code, words) = call("mine", &[], &[]);
    assert_eq!((code, words.as_str()), (Some(2), "taskwire: the token of `mine` is to come from $MINE, which is not set\n"));
}

#[test]
fn a_token_for_no_server_in_particular_is_kept_from_those_it_may_not_be_for() {
    let (user, scripted) = (User::new(), ScriptedServer::closed());
    let (here, named) = (scripted.url(), "mine");
    // The same machine, by an address that says nothing about it.
    let anywhere = format!("http://0.0.0.0:{}/mcp", scripted.port);
    let tools = |server: &str| {
        let ended = RunningCommand::start(user.command(&["tools", server]).env("TASKWIRE_TOKEN", "s3cret")).end();
        assert_eq!((ended.code, ended.out.as_str()), (Some(3), ""), "{ended:?}");
        let heard = scripted.take_requests();
        assert!(!heard.is_empty(), "{server} was asked");
        (ended.err, heard.iter().any(|request| request.contains("s3cret")))
    };
    let withheld = "; $TASKWIRE_TOKEN was not sent: it is for this machine and https only, and for servers that client.toml does not \
                    name\n";
    let (words, was_sent) = tools(&here);
    assert!(was_sent && !words.contains("TASKWIRE_TOKEN"), "{words}");
    let (words, was_sent) = tools(&anywhere);
    assert!(!was_sent && words.ends_with(withheld), "{words}");
    user.configure(&format!("[server.{named}]\nurl = \"{here}\"\n"));
    for server in [named, here.as_str()] {
        let (words, was_sent) = tools(server);
        assert!(!was_sent && words.ends_with(withheld), "{server}: {words}");
    }
}

#[test]
fn an_address_with_a_password_in_it_is_refused() {
    User::new()
        .run(&["call", "http://me:s3cret@h/mcp", "echo"])
        .is_refusal("http://…@h has a name or a password in it, which would be kept and shown: use --token or --header");
}

#[test]
fn signing_in_is_for_servers_with_an_address_and_without_a_token() {
    let user = User::new();
    let words = "`--oauth` is for servers with a URL: stdio:server --stdio cannot be signed in to";
    user.run(&["call", "stdio:server --stdio", "echo", "--oauth"]).is_refusal(words);
    let ended = user.run(&["call", "http://127.0.0.1:1/mcp", "echo", "--oauth", "--token", "s3cret"]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""), "{ended:?}");
    assert!(ended.err.contains("'--oauth' cannot be used with '--token <TOKEN>'") && !ended.err.contains("s3cret"), "{}", ended.err);
    for (server, words) in [
        ("url = \"http://127.0.0.1:1/mcp\"\ntoken = \"s3cret\"", "`server.a` has both a `token` and `oauth`: one is enough"),
        ("command = [\"server\"]", "`server.a`: `oauth` is for servers with a `url`"),
    ] {
        let file = user.configure(&format!("[server.a]\n{server}\noauth = true\n"));
        user.run(&["call", "a", "echo"]).is_refusal(&format!("{file} cannot be used: {words}"));
    }
}

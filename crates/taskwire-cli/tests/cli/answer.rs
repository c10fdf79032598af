//! `taskwire answer`: questions of a task, answered from another process than the one that waits.

use serde_json::{Value, json};
use taskwire::tool::{Question, TaskMode, Tool};

use crate::{
    fixture::{Gate, ScriptedServer, TestServer, asks, steps},
    kit::{Server, TempDir},
    user::{RunningCommand, User},
};

const PAGE: &str = "https://example.com/sign?in=1";

/// A form with all that a form can want.
fn size() -> Question {
    let schema = json!({
        "type": "object",
        "properties": {
            "colour": {"type": "string", "enum": ["red", "green"], "default": "green"},
            "width": {"type": "integer", "minimum": 1, "maximum": 99},
        },
        "required": ["width"],
    });
    Question::form("Which size?", schema)
}

/// Calls a tool that asks, and waits for the way to answer: the task, and what follows its name.
#[track_caller]
fn asked(user: &User, url: &str, args: &[&str]) -> (RunningCommand, String, String) {
    let args: Vec<&str> = ["call", url].into_iter().chain(args.iter().copied()).collect();
    let mut running = user.start(&args);
    let task = running.task();
    let way = running.err.line_with("taskwire: answer it with: taskwire answer ");
    let (prefix, rest) = way.split_once(' ').expect("a task and a key");
    assert!(prefix.len() >= 12 && task.starts_with(prefix), "{way}");
    (running, task, rest.to_owned())
}

/// The answer that the tool got.
#[track_caller]
fn answer_of(running: RunningCommand) -> Value {
    let ended = running.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    serde_json::from_str(&ended.out).expect("JSON")
}

#[test]
fn a_question_is_answered_from_another_process() {
    let (dir, user) = (TempDir::new(), User::new());
    let server = Server::start(&dir.join("data"));
    for era in ["modern", "legacy"] {
        let (mut running, task, way) = asked(&user, &server.url(), &["greet_me", "--era", era]);
        assert_eq!(way, "name name=…", "{era}");
        assert!(running.err.until("answer it with").contains("taskwire: the task asks: What is your name?\n"), "{}", running.err.text());
        let answered = user.run(&["answer", &task[..20], "name", "name=Ada"]);
        let expected = format!("taskwire: answered name of {task}\n");
        assert_eq!((answered.code, answered.out.as_str(), answered.err), (Some(0), "", expected), "{era}");
        let ended = running.end();
        assert_eq!((ended.code, ended.out.as_str()), (Some(0), "Hello, Ada!\n"), "{era}: {ended:?}");
    }
}

#[test]
fn the_only_field_needs_no_name_and_a_form_can_be_declined() {
    let (dir, user) = (TempDir::new(), User::new());
    let server = Server::start(&dir.join("data"));
    let stranger = "Then I shall greet a stranger: hello!\n";
    for (answer, expected) in [
        (&["Eve"] as &[&str], "Hello, Eve!\n"),
        (&["{\"name\": \"Mallory\"}"], "Hello, Mallory!\n"),
        (&["name:=\"Bob\""], "Hello, Bob!\n"),
        (&["@ada"], "Hello, @ada!\n"),
        (&["--decline"], stranger),
        (&["--cancel"], stranger),
    ] {
        let (running, task, _) = asked(&user, &server.url(), &["greet_me"]);
        let args: Vec<&str> = ["answer", task.as_str(), "name"].into_iter().chain(answer.iter().copied()).collect();
        assert_eq!(user.run(&args).code, Some(0), "{answer:?}");
        assert_eq!(running.end().out, expected, "{answer:?}");
    }
}

#[test]
fn an_answer_that_does_not_fit_is_not_sent() {
    let (user, fixture) = (User::new(), TestServer::serve([asks("size", "size", size(), TaskMode::Always)]));
    let (running, task, way) = asked(&user, &fixture.url(), &["size"]);
    assert_eq!(way, "size width=…", "what must be filled in");
    let all = "width (integer, required), colour (red|green, optional)";
    for (answer, expected) in [
        (&["size", "width=0"] as &[&str], "the answer to `size` does not fit: `width`: 0 is less than 1".to_owned()),
        (&["size", "{\"width\": 100}"], "the answer to `size` does not fit: `width`: 100 is more than 99".to_owned()),
        (&["size", "width=wide"], "`width` must be an integer, not `wide`".to_owned()),
        (&["size", "width=1", "colour=blue"], "`colour` must be one of `red`, `green`, not `blue`".to_owned()),
        (&["size", "widht=3"], format!("`size` has no parameter `widht`; did you mean `width`? Its parameters: {all}")),
        (&["size", "colour=red"], format!("`size` needs `width`. Its parameters: {all}")),
        (&["size", "--accept"], "the answer to `size` does not fit: `width`: this must be filled in".to_owned()),
        (&["size"], format!("`size` wants: {all}; give them as key=value")),
        (&["siez", "width=3"], "there is no open question `siez`; open: `size`".to_owned()),
        (&["width=0"], "the answer to `size` does not fit: `width`: 0 is less than 1".to_owned()),
    ] {
        let args: Vec<&str> = ["answer", task.as_str()].into_iter().chain(answer.iter().copied()).collect();
        user.run(&args).is_refusal(&expected);
    }
    assert_eq!(user.run(&["answer", &task, "size", "--accept", "--decline"]).code, Some(2), "one or the other");
    assert_eq!(user.run(&["answer", &task, "size", "width=3", "colour=red"]).code, Some(0), "it is still open");
    assert_eq!(answer_of(running), json!({"action": "accept", "content": {"colour": "red", "width": 3}}));
    let late = user.run(&["answer", &task, "size", "width=4"]);
    late.is_refusal("the task has ended (completed): nothing is asked any more");
}

#[test]
fn the_server_is_asked_once_which_question_is_open() {
    // As the page of the Tasks extension shows it.
    let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]});
    let question = json!({"method": "elicitation/create", "params": {"mode": "form", "message": "Your name?", "requestedSchema": schema}});
    let (user, scripted) = (
        User::new(),
        ScriptedServer::showing(json!({
            "resultType": "complete", "taskId": "t1", "status": "input_required", "createdAt": "2025-11-25T10:30:00Z",
            "lastUpdatedAt": "2025-11-25T10:50:00Z", "ttlMs": 3_600_000, "pollIntervalMs": 5000, "inputRequests": {"name": question},
        })),
    );
    let ended = user.run(&["answer", &format!("{}#t1", scripted.url()), "Ada"]);
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), "taskwire: answered name of t1\n"), "{ended:?}");
    let asked: Vec<String> = scripted.methods().into_iter().filter(|method| method.starts_with("tasks/")).collect();
    assert_eq!(asked, ["tasks/get", "tasks/update"], "a second look so soon would be one more than the server wants");
}

/// Asks for a region, and comes to the answer.
fn region() -> Tool {
    let schema = json!({"type": "object", "properties": {"region": {"type": "string", "enum": ["eu", "us"]}}, "required": ["region"]});
    asks("deploy", "where", Question::form("Which region?", schema), TaskMode::Always)
}

#[test]
fn the_only_question_needs_no_key() {
    let tools = [region(), asks("size", "size", size(), TaskMode::Always)];
    let (user, fixture) = (User::new(), TestServer::serve(tools));
    for era in ["modern", "legacy"] {
        let (running, task, _) = asked(&user, &fixture.url(), &["deploy", "--era", era]);
        assert!(running.err.text().contains("taskwire: the task asks: Which region? (eu, us)\n"), "{era}: {}", running.err.text());
        // In a session only a client that follows the task is sent a question.
        if era == "modern" {
            let got = user.run(&["get", &task]).out;
            assert!(got.contains("question  where: Which region? (eu, us)\n"), "{got}");
            user.run(&["answer", &task, "zz"]).is_refusal(
                "there is no open question `zz`; open: `where`; and as its answer: `region` must be one of `eu`, `us`, not `zz`",
            );
        }
        assert_eq!(user.run(&["answer", &task, "us"]).code, Some(0), "{era}");
        assert_eq!(answer_of(running), json!({"action": "accept", "content": {"region": "us"}}), "{era}");
    }
    let (running, task, _) = asked(&user, &fixture.url(), &["size"]);
    assert_eq!(user.run(&["answer", &task, "width=3", "colour=red"]).code, Some(0));
    assert_eq!(answer_of(running), json!({"action": "accept", "content": {"colour": "red", "width": 3}}));
}

#[test]
fn a_word_that_is_the_key_or_nearly_so_is_no_answer() {
    let (dir, user) = (TempDir::new(), User::new());
    let server = Server::start(&dir.join("data"));
    let (running, task, _) = asked(&user, &server.url(), &["greet_me"]);
    user.run(&["answer", &task, "name"]).is_refusal("`name` wants: name (string, required); give them as key=value");
    user.run(&["answer", &task, "nmae"]).is_refusal(&format!(
        "there is no open question `nmae`; did you mean `name`? If it is the answer: taskwire answer {task} name nmae"
    ));
    assert_eq!(user.run(&["answer", &task, "Ada"]).code, Some(0));
    assert_eq!(running.end().out, "Hello, Ada!\n");
}

#[test]
fn who_names_no_question_is_told_which_are_open_and_how_to_answer_them() {
    let gate = Gate::closed();
    let tools = [asks("size", "size", size(), TaskMode::Always), steps("busy", &gate, ["never"], "never")];
    let (user, fixture) = (User::new(), TestServer::serve(tools));
    let (running, task, _) = asked(&user, &fixture.url(), &["size"]);
    let asked_for = "size: Which size? (colour: red, green)";
    let open = format!("which question? Name one that is open:\n  {asked_for}\n    taskwire answer {task} size width=…");
    user.run(&["answer", &task]).is_refusal(&open);
    assert_eq!(user.run(&["answer", &task, "--decline"]).code, Some(0), "there is only one");
    assert_eq!(answer_of(running)["action"], "decline");
    user.run(&["answer", &task]).is_refusal("the task has ended (completed): nothing is asked any more");
    let busy = user.detach(&fixture.url(), "busy");
    user.run(&["answer", &busy]).is_refusal("the task asks nothing");
    let (_running, task, _) = asked(&user, &fixture.url(), &["size", "--era", "legacy"]);
    let ended = user.run(&["answer", &task]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""), "{ended:?}");
    assert!(ended.err.starts_with("taskwire: which question? ") && ended.err.contains(&task), "{ended:?}");
}

#[test]
fn a_form_can_be_accepted_as_it_is() {
    let schema = json!({"type": "object", "properties": {"sure": {"type": "boolean", "default": true}}});
    let tool = asks("sure", "sure", Question::form("Sure?", schema), TaskMode::Always);
    let (user, fixture) = (User::new(), TestServer::serve([tool]));
    let (running, task, _) = asked(&user, &fixture.url(), &["sure"]);
    assert_eq!(user.run(&["answer", &task, "sure", "--accept"]).code, Some(0));
    assert_eq!(answer_of(running), json!({"action": "accept", "content": {"sure": true}}));
}

#[test]
fn a_page_is_only_ever_named_and_somebody_agrees_or_not() {
    let tool = asks("sign", "sign_in", Question::url("Sign in, please", PAGE), TaskMode::Always);
    let (user, fixture) = (User::new(), TestServer::serve([tool]));
    for (flag, action) in [("--accept", "accept"), ("--decline", "decline"), ("--cancel", "cancel")] {
        let (mut running, task, way) = asked(&user, &fixture.url(), &["sign"]);
        assert_eq!(way, "sign_in --accept");
        let words = running.err.until("answer it with");
        assert!(words.contains(&format!("taskwire: the task asks: Sign in, please\ntaskwire: {PAGE}\n")), "{words}");
        let neither = "`sign_in` asks to visit a page: answer with --accept, --decline or --cancel";
        user.run(&["answer", &task, "sign_in", "x=1"]).is_refusal(neither);
        user.run(&["answer", &task, "sign_in"]).is_refusal(neither);
        assert_eq!(user.run(&["answer", &task, "sign_in", flag]).code, Some(0), "{flag}");
        assert_eq!(answer_of(running)["action"], action);
    }
}

#[test]
fn programs_get_all_that_is_needed_to_answer() {
    let tools =
        [asks("size", "size", size(), TaskMode::Always), asks("sign", "sign_in", Question::url("Sign in, please", PAGE), TaskMode::Always)];
    let (user, fixture) = (User::new(), TestServer::serve(tools));
    for (tool, key, kind, answer) in [("size", "size", "form", "width=2"), ("sign", "sign_in", "url", "--accept")] {
        let mut running = user.start(&["call", &fixture.url(), tool, "--json"]);
        let asked = running.out.line_of("a question", |line| {
            let line: Value = serde_json::from_str(line).expect("JSON");
            (line["event"] == "input").then_some(line)
        });
        assert_eq!((&asked["key"], &asked["kind"]), (&json!(key), &json!(kind)));
        let task = asked["taskId"].as_str().expect("of a task");
        match kind {
            "form" => assert_eq!((&asked["message"], &asked["schema"]["required"]), (&json!("Which size?"), &json!(["width"]))),
            _ => assert_eq!(asked["url"], PAGE),
        }
        let looked = &user.task(task)["inputs"][0];
        assert_eq!((&looked["key"], &looked["kind"]), (&json!(key), &json!(kind)), "one look says the same");
        assert_eq!(user.run(&["answer", task, key, answer]).code, Some(0));
        let ended = running.end();
        assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{ended:?}");
        let lines = ended.json();
        assert!(lines.contains(&json!({"event": "status", "taskId": task, "settled": key})), "{lines:?}");
    }
}

#[test]
fn a_call_that_is_no_task_is_not_kept_waiting() {
    let (user, fixture) = (User::new(), TestServer::serve([asks("size", "size", size(), TaskMode::Never)]));
    let ended = user.run(&["call", &fixture.url(), "size"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let asked = "taskwire: the tool asks: Which size? (colour: red, green)\n";
    assert_eq!(ended.err, format!("{asked}taskwire: nobody can be asked here: answered with `cancel`\n"));
    assert_eq!(serde_json::from_str::<Value>(&ended.out).expect("JSON")["action"], "cancel");
}

#[test]
fn who_comes_later_is_asked_as_well() {
    let (user, fixture) = (User::new(), TestServer::serve([asks("size", "size", size(), TaskMode::Always)]));
    let (mut first, task, _) = asked(&user, &fixture.url(), &["size"]);
    first.kill();
    let mut second = user.start(&["watch", &task]);
    second.err.until(&format!("taskwire: answer it with: taskwire answer {} size width=…\n", &task[..12]));
    let got = user.run(&["get", &task]);
    let asked_for = "size: Which size? (colour: red, green)";
    let question = format!("question  {asked_for}\n          taskwire answer {} size width=…\n", &task[..12]);
    assert!(got.out.contains("status    input_required\n") && got.out.contains(&question), "{}", got.out);
    assert_eq!(user.run(&["answer", &task, "size", "7"]).code, Some(2), "of two fields it is not clear which");
    assert_eq!(user.run(&["answer", &task, "size", "width=7"]).code, Some(0));
    assert_eq!(answer_of(second)["content"]["width"], 7);
}

//! What a command can say and ask while it runs: `taskwire ask`, `progress`, `status` and `emit`, called inside it.

use serde_json::{Value, json};

use super::{
    command_server::{CommandServer, result_text, text_of},
    server_dir::{ServerDir, tool},
};
use crate::user::{RunningCommand, User};

/// A picture of one point.
const POINT: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

/// A server directory with one tool, `run`, a script of the shell.
fn server_dir(script: &str) -> ServerDir {
    let server_dir = ServerDir::new(&tool("run", "command = [\"sh\", \"run.sh\"]\ntask = \"always\""));
    server_dir.write("run.sh", &format!("echo start >> starts\n{script}"));
    server_dir
}

/// Calls it, and waits until it asks: the task.
#[track_caller]
fn asked(user: &User, server: &CommandServer, key: &str) -> (RunningCommand, String) {
    let mut running = user.start(&["call", &server.url(), "run"]);
    let task = running.task();
    let way = running.err.line_with("taskwire: answer it with: taskwire answer ");
    assert_eq!(way.split(' ').nth(1), Some(key), "{way}");
    (running, task)
}

#[track_caller]
fn answer(user: &User, words: &[&str]) {
    let words: Vec<&str> = ["answer"].into_iter().chain(words.iter().copied()).collect();
    let answered = user.run(&words);
    assert_eq!(answered.code, Some(0), "{answered:?}");
}

/// What the call came to.
#[track_caller]
fn out(running: RunningCommand) -> String {
    let ended = running.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    ended.out
}

#[test]
fn a_command_asks_and_is_answered() {
    let server_dir = server_dir("name=$(taskwire ask 'What is your name?') || exit 9\necho \"Hello, $name!\"\n");
    let (server, user) = (server_dir.start(), User::new());
    for (value, expected) in [("Ada", "Hello, Ada!\n"), ("$(id) `id` \"x\" 'y'", "Hello, $(id) `id` \"x\" 'y'!\n")] {
        let (mut running, task) = asked(&user, &server, "ask-1");
        assert!(running.err.until("answer it with").contains("taskwire: the task asks: What is your name?\n"), "{}", running.err.text());
        answer(&user, &[&task, "ask-1", value]);
        assert_eq!(out(running), expected);
    }
    server_dir.is_quiet();
}

#[test]
fn a_command_that_waits_for_an_answer_leaves_its_place_to_others() {
    let keys = "command = [\"sh\", \"run.sh\", \"{step}\"]\ninput = { step = { type = \"string\" } }\ntask = \"always\"\nconcurrency = 1";
    let server_dir = ServerDir::new(&tool("run", keys));
    server_dir.write(
        "run.sh",
        "[ $1 != ask ] || taskwire ask --key sure 'Sure?' > /dev/null\necho $1 >> notes\nwhile [ ! -e go-$1 ]; do sleep 0.01; done\n",
    );
    let mut server = server_dir.start();
    let begin = |server: &CommandServer, step: &str| server.begin("run", json!({"step": step}));
    let asks = begin(&server, "ask");
    let is_asked =
        |server: &CommandServer| server.poll_until(&asks, "a question", |task| (task["status"] == "input_required").then_some(()));
    is_asked(&server);
    let first = begin(&server, "one");
    assert_eq!(server_dir.lines("notes", 1), ["one"]);
    // It has no place after a restart either.
    server.kill();
    server = server_dir.start();
    is_asked(&server);
    server_dir.write("go-one", "");
    server.result(&first);
    let second = begin(&server, "two");
    assert_eq!(server_dir.lines("notes", 2), ["one", "two"]);
    // Answered, it goes on at once, above the limit; the next one waits for both.
    server.ask("tasks/update", json!({"taskId": asks, "inputResponses": {"sure": {"action": "accept", "content": {"answer": "yes"}}}}));
    assert_eq!(server_dir.lines("notes", 3), ["one", "two", "ask"]);
    let third = begin(&server, "three");
    server_dir.write("go-two", "");
    server.result(&second);
    assert!(server.message_with(&third, "waiting").contains("`concurrency`"));
    server_dir.write("go-ask", "");
    server.result(&asks);
    assert_eq!(server_dir.lines("notes", 4)[3], "three");
    server_dir.write("go-three", "");
    server.result(&third);
    server_dir.is_quiet();
}

#[test]
fn what_was_written_before_a_question_is_seen_before_it() {
    let server_dir = server_dir("echo before\ntaskwire ask --key sure 'Sure?' > /dev/null\necho after\n");
    let (server, user) = (server_dir.start(), User::new());
    let (mut running, task) = asked(&user, &server, "sure");
    running.out.until("before\n");
    answer(&user, &[&task, "sure", "yes"]);
    assert_eq!(out(running), "before\nafter\n");
}

#[test]
fn a_command_lets_choose() {
    let server_dir = server_dir("taskwire ask 'Which?' --choice red --choice 'light green'\n");
    let (server, user) = (server_dir.start(), User::new());
    let (running, task) = asked(&user, &server, "ask-1");
    assert_ne!(user.run(&["answer", &task, "ask-1", "blue"]).code, Some(0), "it is none of them");
    answer(&user, &[&task, "ask-1", "light green"]);
    assert_eq!(out(running), "light green\n");
}

#[test]
fn a_command_asks_for_a_form() {
    let schema = r#"{"type":"object","properties":{"width":{"type":"integer"},"name":{"type":"string"}},"required":["width"]}"#;
    let server_dir = server_dir(&format!("taskwire ask 'Size?' --key size --schema '{schema}'\n"));
    let (server, user) = (server_dir.start(), User::new());
    let (running, task) = asked(&user, &server, "size");
    answer(&user, &[&task, "size", "width=3", "name=x y"]);
    let answered: Value = serde_json::from_str(&out(running)).expect("a line of JSON");
    assert_eq!(answered, json!({"width": 3, "name": "x y"}));
}

#[test]
fn a_confirmation_is_an_exit_code() {
    let server_dir = server_dir("taskwire ask 'Delete all?' --confirm > out; echo \"code $?\"; cat out\n");
    let (server, user) = (server_dir.start(), User::new());
    for (words, code) in [(["confirm=true"], 0), (["confirm=false"], 1), (["--decline"], 1), (["--cancel"], 1)] {
        let (running, task) = asked(&user, &server, "ask-1");
        answer(&user, &[&task, "ask-1", words[0]]);
        assert_eq!(out(running), format!("code {code}\n"), "{words:?}");
    }
}

#[test]
fn who_declines_gives_nothing() {
    let server_dir = server_dir("name=$(taskwire ask 'What is your name?'); echo \"code $? name <$name>\"\n");
    let (server, user) = (server_dir.start(), User::new());
    for word in ["--decline", "--cancel"] {
        let (running, task) = asked(&user, &server, "ask-1");
        answer(&user, &[&task, "ask-1", word]);
        assert_eq!(out(running), "code 1 name <>\n", "{word}");
    }
}

#[test]
fn questions_have_numbers_unless_they_have_names() {
    let script = "taskwire ask One\ntaskwire ask --key two Two\ntaskwire ask Three\ntaskwire ask --key two Two\n";
    let server_dir = server_dir(script);
    let server = server_dir.start();
    let id = server.begin("run", json!({}));
    for (key, value) in [("ask-1", "1"), ("two", "2"), ("ask-2", "3")] {
        let fields =
            server.poll_until(&id, key, |task| task["inputRequests"][key]["params"]["requestedSchema"]["properties"].as_object().cloned());
        let content: Value = fields.keys().map(|field| (field.clone(), json!(value))).collect();
        server.ask("tasks/update", json!({"taskId": id, "inputResponses": {key: {"action": "accept", "content": content}}}));
    }
    assert_eq!(result_text(&server.result(&id)), "1\n2\n3\n2\n", "the same question has the same answer");
}

#[test]
fn an_answer_that_does_not_fit_is_refused_and_the_command_waits_for_one_that_does() {
    let schema = r#"{"type":"object","properties":{"width":{"type":"integer","minimum":1}},"required":["width"]}"#;
    let server_dir = server_dir(&format!(
        "region=$(taskwire ask 'Which?' --key region --choice eu --choice us) || exit 9\n\
         taskwire ask 'Sure?' --key sure --confirm || exit 8\n\
         size=$(taskwire ask 'Size?' --key size --schema '{schema}') || exit 7\n\
         echo \"$region $size\"\n"
    ));
    let server = server_dir.start();
    let id = server.begin("run", json!({}));
    let accept = |content: Value| json!({"action": "accept", "content": content});
    let never = [json!({}), json!({"action": "perhaps"}), json!({"action": 7}), json!({"action": "accept"}), json!({"content": {}})];
    let steps = [
        ("region", vec![accept(json!({"answer": "moon"})), accept(json!({"answer": 1}))], accept(json!({"answer": "eu"}))),
        ("sure", vec![accept(json!({"confirm": "true"})), accept(json!({"answer": true}))], accept(json!({"confirm": true}))),
        ("size", vec![accept(json!({"width": 0})), accept(json!({"width": "3"}))], accept(json!({"width": 3.0}))),
    ];
    for (key, misfits, good) in steps {
        let asked = server.poll_until(&id, key, |task| task["inputRequests"][key].as_object().cloned());
        for bad in never.iter().chain(&misfits) {
            let refused = server.send("tasks/update", json!({"taskId": id, "inputResponses": {key: bad}}));
            assert_eq!(refused["error"]["code"], -32602, "{key}: {bad}: {refused}");
            let now = server.ask("tasks/get", json!({"taskId": id}));
            assert_eq!((&now["status"], now["inputRequests"][key].as_object()), (&json!("input_required"), Some(&asked)), "{key}: {bad}");
        }
        server.ask("tasks/update", json!({"taskId": id, "inputResponses": {key: good}}));
    }
    assert_eq!(result_text(&server.result(&id)), "eu {\"width\":3}\n");
    assert_eq!(server_dir.read("starts"), "start\n");
    server_dir.is_quiet();
}

#[test]
fn a_question_outlives_the_server() {
    let server_dir = server_dir("echo before\nname=$(taskwire ask 'What is your name?') || exit 9\necho \"Hello, $name!\"\n");
    let mut server = server_dir.start();
    let id = server.begin("run", json!({}));
    let open = |server: &CommandServer| server.poll_until(&id, "a question", |task| task["inputRequests"]["ask-1"].as_object().cloned());
    let before = open(&server);
    for _ in 0..2 {
        server.kill();
        server = server_dir.start();
        assert_eq!(open(&server), before, "it is the same question");
    }
    let user = User::new();
    answer(&user, &[&format!("{}#{id}", server.url()), "ask-1", "Ada"]);
    assert_eq!(result_text(&server.result(&id)), "before\nHello, Ada!\n");
    assert_eq!((server.text(&id).as_str(), server_dir.read("starts").as_str()), ("before\nHello, Ada!\n", "start\n"));
    server_dir.is_quiet();
}

#[test]
fn an_answer_that_the_server_did_not_outlive_is_given_by_the_next() {
    let server_dir = server_dir("name=$(taskwire ask 'What is your name?') || exit 9\necho \"Hello, $name!\"\n");
    let mut server = server_dir.start();
    for round in 0..4 {
        let id = server.begin("run", json!({}));
        server.poll_until(&id, "a question", |task| task["inputRequests"]["ask-1"].as_object().cloned());
        let content = json!({"action": "accept", "content": {"answer": "Ada"}});
        server.ask("tasks/update", json!({"taskId": id, "inputResponses": {"ask-1": content}}));
        server.kill();
        server = server_dir.start();
        assert_eq!(result_text(&server.result(&id)), "Hello, Ada!\n", "round {round}");
    }
    assert_eq!(server_dir.read("starts"), "start\n".repeat(4));
    server_dir.is_quiet();
}

#[test]
fn a_cancelled_task_does_not_wait_for_an_answer() {
    let server_dir = server_dir("taskwire ask 'What is your name?'\n");
    let server = server_dir.start();
    let id = server.begin("run", json!({}));
    server.poll_until(&id, "a question", |task| task["inputRequests"]["ask-1"].as_object().cloned());
    server.cancel(&id);
    assert_eq!(server.ended(&id)["status"], "cancelled");
    server_dir.is_quiet();
}

#[test]
fn a_command_says_how_it_is_getting_on() {
    let script = "
step() { while [ ! -e \"go-$1\" ]; do sleep 0.01; done; }
taskwire progress 3 --total 10; step 1
taskwire progress 4/10 --message baking; step 2
taskwire status -- cooling down; step 3
taskwire progress 60%; step 4
echo done
";
    let server_dir = server_dir(script);
    let server = server_dir.start();
    let id = server.begin("run", json!({}));
    for (n, message) in ["3/10", "baking (4/10)", "cooling down (4/10)", "cooling down (60/100)"].into_iter().enumerate() {
        assert_eq!(server.message_with(&id, message), message);
        server_dir.write(&format!("go-{}", n + 1), "");
    }
    assert_eq!(result_text(&server.result(&id)), "done\n");
}

#[test]
fn a_command_emits_what_is_no_text() {
    let script = format!(
        "echo '{POINT}' | base64 -d > point.png\necho before\ntaskwire emit --image point.png\necho after\n\
         taskwire emit 'some text'\ntaskwire emit --json '{{\"type\":\"text\",\"text\":\"as JSON\"}}'\n\
         taskwire emit --link https://example.com/x --name x\ntaskwire emit --result '{{\"n\": 1}}'\n"
    );
    let server_dir = server_dir(&script);
    let server = server_dir.start();
    let id = server.begin("run", json!({}));
    let (result, blocks) = (server.result(&id), server.blocks(&id));
    assert_eq!((&result["structuredContent"], result["isError"] == true), (&json!({"n": 1}), false), "{result}");
    let content = result["content"].as_array().expect("content");
    for blocks in [&blocks, content] {
        let at = |kind: &str| blocks.iter().position(|block| block["type"] == kind).unwrap_or_else(|| panic!("no {kind}: {blocks:?}"));
        let (image, link) = (at("image"), at("resource_link"));
        assert_eq!(blocks[image], json!({"type": "image", "data": POINT, "mimeType": "image/png"}));
        assert_eq!((&blocks[link]["uri"], &blocks[link]["name"]), (&json!("https://example.com/x"), &json!("x")));
        assert_eq!(text_of(&blocks[..image]), "before\n", "all in the order in which it was said: {blocks:?}");
        let rest = text_of(&blocks[image..]);
        assert!(rest.starts_with("after\nsome text") && rest.contains("as JSON"), "{rest:?}");
    }
    assert_eq!(server_dir.read("starts"), "start\n");
    server_dir.is_quiet();
}

#[test]
fn children_of_children_are_inside_too_and_many_at_once_may_speak() {
    let script = "
for n in 1 2 3 4 5 6 7 8; do (sh -c \"taskwire emit 'word $n'\") & done
wait
setsid sh -c 'taskwire emit last'
";
    let server_dir = server_dir(script);
    let server = server_dir.start();
    let text = server.text(&server.begin("run", json!({})));
    for n in 1..=8 {
        assert_eq!(text.matches(&format!("word {n}")).count(), 1, "{text:?}");
    }
    assert!(text.trim_end().ends_with("last"), "{text:?}");
}

#[test]
fn outside_a_task_there_is_a_hint_and_a_default() {
    let user = User::new();
    for words in [["progress", "3"], ["status", "x"], ["emit", "x"]] {
        let ended = user.run(&words);
        assert_eq!((ended.code, ended.out.as_str()), (Some(0), ""), "{words:?}: {ended:?}");
        let hint = "not run by a task, so this has no effect. (It has one in commands that `taskwire serve` runs as tools.)";
        assert_eq!(ended.err, format!("taskwire {}: {hint}\n", words[0]));
    }
    let ended = user.run(&["ask", "Which?", "--default", "this one"]);
    assert_eq!((ended.code, ended.out.as_str(), ended.err.as_str()), (Some(0), "this one\n", ""));
    let ended = user.run(&["ask", "Which?"]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(3), ""), "{ended:?}");
    assert!(ended.err.starts_with("taskwire ask: "), "{ended:?}");
    assert_eq!(user.run(&["ask"]).code, Some(2));
}

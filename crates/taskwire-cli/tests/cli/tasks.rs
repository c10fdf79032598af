//! `taskwire tasks`, `get` and `cancel`: what this user has started, and what has become of it.

use std::time::Duration;

use serde_json::{Value, json};
use taskwire::{
    client::{CallRecorder, Era, Reference, Status},
    clock::{Clock, SystemClock},
    core::{Payload, Timestamp},
    server::Config,
};

use crate::{
    fixture::{Gate, ScriptedServer, TestServer, steps},
    kit::{Server, TempDir},
    user::{CommandResult, User},
};

/// A server that is not there.
const NOWHERE: &str = "http://127.0.0.1:1/mcp";

fn ago(span: Duration) -> Timestamp {
    let span = i64::try_from(span.as_millis()).expect("some time");
    Timestamp::from_millis(SystemClock.now().as_millis() - span)
}

fn reference(server: &str, task: Option<&str>) -> Reference {
    Reference {
        server: server.to_owned(),
        era: Era::Modern,
        task: task.map(ToOwned::to_owned),
        tool: "job".to_owned(),
        key: Some("0123456789abcdef0123456789abcdef".to_owned()),
        session: None,
        args: task.is_none().then(|| Payload::from(json!({}))),
        next: 0,
    }
}

/// Puts a task into what this user's client remembers, as it would be after `span`.
fn remember(user: &User, server: &str, task: &str, status: Status, span: Duration) {
    let (ledger, at) = (user.ledger(), ago(span));
    let mut reference = reference(server, Some(task));
    reference.key = None;
    let entry = ledger.find_or_add(&reference, at).expect("an entry");
    ledger.update_status(entry, status, None, at).expect("noted");
}

/// The cells of a table, row by row.
fn cells(ended: &CommandResult) -> Vec<Vec<String>> {
    ended.out.lines().map(|line| line.split_whitespace().map(ToOwned::to_owned).collect()).collect()
}

#[test]
fn without_tasks_it_says_how_to_start_one() {
    let ended = User::new().run(&["tasks"]);
    let hint = "taskwire: no tasks: `taskwire call SERVER TOOL` starts one\n";
    assert_eq!((ended.code, ended.out.as_str(), ended.err.as_str()), (Some(0), "", hint));
}

#[test]
fn tasks_are_a_table_with_a_way_back_in() {
    let (user, gate) = (User::new(), Gate::closed());
    let fixture = TestServer::serve([steps("steps", &gate, [] as [&str; 0], "done"), steps("other", &Gate::closed(), ["x"], "done")]);
    let (oldest, older, newest) =
        (user.detach(&fixture.url(), "steps"), user.detach(&fixture.url(), "other"), user.detach(&fixture.url(), "other"));
    gate.open(1);
    assert_eq!(user.run(&["watch", &oldest]).out, "done\n");
    assert_eq!(user.run(&["cancel", &newest, "--wait"]).code, Some(0));
    let ended = user.run(&["tasks"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let rows = cells(&ended);
    assert_eq!(rows[0], ["AGE", "STATUS", "TOOL", "SERVER", "TASK"]);
    let url = fixture.url();
    for (row, status, tool, task) in
        [(1, "cancelled", "other", &newest), (2, "working", "other", &older), (3, "completed", "steps", &oldest)]
    {
        let [age, shown @ .., prefix] = rows[row].as_slice() else { panic!("{ended:?}") };
        assert!(age.ends_with('s'), "{age}");
        assert_eq!(shown, [status, tool, url.as_str()]);
        assert!(prefix.len() >= 12 && task.starts_with(prefix.as_str()), "{prefix} of {task}");
        assert_eq!(user.task(prefix)["taskId"], task.as_str(), "the way back leads there");
    }
    assert_eq!(ended.err, format!("taskwire: go on with: taskwire watch {}\n", rows[2][4]), "the newest that is open");
    assert!(!ended.out.contains('\x1b'), "no colours in a pipe");
    // By a name, if it has one.
    user.configure(&format!("[server.demo]\nurl = \"{url}\"\n"));
    assert_eq!(cells(&user.run(&["tasks"]))[1][3], "demo");
}

#[test]
fn programs_get_a_task_a_line() {
    let (user, gate) = (User::new(), Gate::closed());
    let fixture = TestServer::serve([steps("steps", &gate, ["x"], "done")]);
    let (older, newer) = (user.detach(&fixture.url(), "steps"), user.detach(&fixture.url(), "steps"));
    let ended = user.run(&["tasks", "--json"]);
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{ended:?}");
    let lines = ended.json();
    assert_eq!(lines.iter().map(|line| &line["taskId"]).collect::<Vec<_>>(), [newer.as_str(), older.as_str()]);
    for line in &lines {
        let expected = json!({"server": fixture.url(), "era": "modern", "tool": "steps", "status": "working", "fresh": true});
        for (key, value) in expected.as_object().expect("an object") {
            assert_eq!(line[key], *value, "{line}");
        }
        let prefix = line["prefix"].as_str().expect("a prefix");
        assert!(line["taskId"].as_str().is_some_and(|task| task.starts_with(prefix)), "{line}");
        assert!(line["createdAt"].is_string() && line["updatedAt"].is_string(), "{line}");
    }
}

#[test]
fn a_server_that_cannot_be_asked_leaves_doubt() {
    let (dir, user) = (TempDir::new(), User::new());
    let server = Server::start(&dir.join("data"));
    let task = user.detach(&server.url(), "count_far");
    assert_eq!(cells(&user.run(&["tasks"]))[1][1], "working");
    assert_eq!(cells(&user.run(&["tasks", "--offline"]))[1][1], "working?", "nobody was asked");
    let port = server.port;
    server.process.kill();
    let ended = user.run(&["tasks"]);
    assert_eq!((ended.code, cells(&ended)[1][1].as_str()), (Some(0), "working?"), "{ended:?}");
    assert_eq!(user.run(&["tasks", "--json", "--offline"]).json()[0]["fresh"], false);
    // Somebody else is there now.
    let _other = Server::start_at(port, &dir.join("other"));
    let ended = user.run(&["tasks"]);
    assert_eq!(cells(&ended)[1][1], "gone", "{ended:?}");
    let ended = user.run(&["get", &task]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(3), ""), "{ended:?}");
    let ended = user.run(&["tasks", "--prune"]);
    assert!(ended.err.starts_with("taskwire: forgot 1 task\n"), "{}", ended.err);
    assert!(user.run(&["tasks", "--all"]).out.is_empty());
}

#[test]
fn what_ended_long_ago_is_shown_to_who_asks_until_it_is_forgotten() {
    let (user, hour) = (User::new(), Duration::from_secs(3600));
    remember(&user, NOWHERE, &"a".repeat(32), Status::Completed, 48 * hour);
    let ended = user.run(&["tasks"]);
    let hint = "taskwire: nothing is running: `taskwire tasks --all` shows what has ended\n";
    assert_eq!((ended.code, ended.out.as_str(), ended.err.as_str()), (Some(0), "", hint));
    remember(&user, NOWHERE, &"b".repeat(32), Status::Failed, hour);
    let statuses = |args: &[&str]| cells(&user.run(args)).into_iter().skip(1).map(|row| row[row.len() - 4].clone()).collect::<Vec<_>>();
    assert_eq!(statuses(&["tasks"]), ["failed"]);
    assert_eq!(statuses(&["tasks", "--all"]), ["failed", "completed"]);
    let ended = user.run(&["tasks", "--all", "--prune"]);
    assert_eq!((ended.out.as_str(), ended.err.lines().next()), ("", Some("taskwire: forgot 2 tasks")), "{ended:?}");
    assert_eq!(statuses(&["tasks", "--all"]), [] as [&str; 0]);
}

#[test]
fn what_is_struck_out_is_forgotten_here_and_goes_on_there() {
    let (user, gate) = (User::new(), Gate::closed());
    let fixture = TestServer::serve([steps("steps", &gate, ["x"], "done")]);
    let (first, second) = (user.detach(&fixture.url(), "steps"), user.detach(&fixture.url(), "steps"));
    let ended = user.run(&["tasks", "--forget", &first, "zzz"]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""), "{ended:?}");
    assert!(ended.err.starts_with("taskwire: no task that was started from here begins with `zzz`"), "{}", ended.err);
    assert_eq!(user.run(&["tasks", "--json"]).json().len(), 2, "all or nothing");
    let ended = user.run(&["tasks", "--forget", &first[..20]]);
    assert_eq!((ended.code, ended.out.as_str(), ended.err.as_str()), (Some(0), "", "taskwire: forgot 1 task\n"));
    let left: Vec<Value> = user.run(&["tasks", "--all", "--json"]).json().iter().map(|line| line["taskId"].clone()).collect();
    assert_eq!(left, [json!(second)]);
    assert_eq!(user.run(&["get", &first]).code, Some(2), "it has no name here any more");
    assert_eq!(user.task(&format!("{}#{first}", fixture.url()))["status"], "working", "nothing was cancelled");
}

#[test]
fn programs_are_not_started_to_be_asked_about_their_tasks() {
    let user = User::new();
    let mark = user.path("mark");
    remember(&user, &format!("stdio:touch {mark}"), &"c".repeat(32), Status::Working, Duration::ZERO);
    let ended = user.run(&["tasks", "--json"]);
    assert_eq!((&ended.json()[0]["status"], &ended.json()[0]["fresh"]), (&json!("working"), &json!(false)));
    assert!(!std::path::Path::new(&mark).exists(), "it was not started");
}

#[test]
fn a_call_whose_answer_was_never_seen_is_listed_and_not_mistaken_for_a_task() {
    let user = User::new();
    user.ledger().find_or_add(&reference(NOWHERE, None), ago(Duration::ZERO)).expect("an entry");
    let ended = user.run(&["tasks"]);
    let rows = cells(&ended);
    assert_eq!(rows[1][1..], ["sent", "job", NOWHERE, "0123456789ab"], "{ended:?}");
    assert_eq!(ended.err, "", "whether it can be gone on with is not known");
    for command in ["get", "cancel"] {
        user.run(&[command, "0123456789ab"])
            .is_refusal("this call is not a task yet: `taskwire watch 0123456789ab` sends it again, with the same key, and finds out");
    }
}

#[test]
fn a_call_that_was_sent_long_ago_is_not_sent_again_by_accident() {
    let (user, hour) = (User::new(), Duration::from_secs(3600));
    user.ledger().find_or_add(&reference(NOWHERE, None), ago(25 * hour)).expect("an entry");
    user.run(&["watch", "0123456789ab"]).is_refusal(
        "this call was sent 1d 01h ago and its reply was never seen. The server may have forgotten it and would run it again: \
         `taskwire watch 0123456789ab --resend` sends it, `taskwire tasks --forget` removes it from the list",
    );
    let ended = user.run(&["tasks", "--offline", "--prune"]);
    assert_eq!((ended.out.as_str(), ended.err.lines().next()), ("", Some("taskwire: forgot 1 task")), "{ended:?}");
}

#[test]
fn what_is_for_one_server_is_not_told_to_several() {
    let user = User::new();
    for (server, name) in [(NOWHERE, "a"), ("http://127.0.0.1:2/mcp", "b")] {
        remember(&user, server, &name.repeat(32), Status::Working, Duration::ZERO);
    }
    user.run(&["tasks", "--token", "s3cret"])
        .is_refusal("--token, --oauth, --header and --era are for one server, and these tasks are at 2: say it in client.toml");
}

// On a server.

/// A server with a tool that never ends.
fn endless(config: Config) -> TestServer {
    TestServer::serve_with([steps("steps", &Gate::closed(), ["x"], "done")], config)
}

/// The ids of the tasks that are listed, an object a line.
fn ids(ended: &CommandResult) -> Vec<String> {
    ended.json().iter().map(|line| line["taskId"].as_str().expect("an id").to_owned()).collect()
}

/// Lists the tasks of the caller and follows them, from elsewhere than where they were started.
fn lists_from_elsewhere(era: &str, tool: &Value) {
    let (owner, other, fixture) = (User::new(), User::new(), endless(Config::default()));
    let url = fixture.url();
    let none = other.run(&["tasks", &url, "--era", era]);
    assert_eq!((none.code, none.out.as_str(), none.err), (Some(0), "", format!("taskwire: {url} has no tasks of yours\n")));
    let (older, newer) = (owner.detach(&url, "steps"), owner.detach(&url, "steps"));
    let ended = other.run(&["tasks", &url, "--json", "--era", era]);
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{ended:?}");
    assert_eq!(ids(&ended), [newer.as_str(), older.as_str()]);
    let first = &ended.json()[0];
    for (key, value) in [("server", &json!(url)), ("era", &json!(era)), ("tool", tool), ("status", &json!("working"))] {
        assert_eq!(first[key], *value, "{first}");
    }
    assert!(first["createdAt"].is_string() && first["updatedAt"].is_string(), "{first}");
    assert!(other.run(&["tasks"]).out.is_empty(), "to list is not to adopt");

    let ended = other.run(&["tasks", &url, "--era", era]);
    let (rows, named) = (cells(&ended), format!("{url}#{newer}"));
    assert_eq!(rows[0], ["AGE", "STATUS", "TOOL", "TASK"]);
    assert_eq!(rows[1][1..], ["working", tool.as_str().unwrap_or("-"), named.as_str()], "{ended:?}");
    assert_eq!(ended.err, format!("taskwire: go on with: taskwire watch {named}\n"));
    let ended = owner.run(&["tasks", &url, "--era", era]);
    let own = cells(&ended);
    assert!(newer.starts_with(own[1][3].as_str()) && own[1][2] == "steps", "what is known here has a short name: {ended:?}");
    assert_eq!(other.task(&rows[2][3])["taskId"], older.as_str());
    assert_eq!(other.run(&["cancel", &rows[2][3], "--wait"]).code, Some(0));
    assert_eq!(owner.task(&older)["status"], "cancelled");
}

#[test]
fn a_server_lists_the_tasks_of_the_caller_whoever_started_them() {
    lists_from_elsewhere("modern", &json!("steps"));
}

#[test]
fn in_a_session_a_server_lists_them_as_well() {
    lists_from_elsewhere("legacy", &Value::Null);
}

#[test]
fn a_long_list_is_shown_by_its_first_page_or_wholly() {
    let (user, fixture) = (User::new(), endless(Config { page_len: 2, ..Config::default() }));
    let url = fixture.url();
    let mut all: Vec<String> = (0..3).map(|_| user.detach(&url, "steps")).collect();
    all.reverse();
    for json in [false, true] {
        let args = ["tasks", url.as_str(), "--era", "legacy", "--json"];
        let ended = user.run(if json { &args } else { &args[..4] });
        assert_eq!(ended.out.lines().count(), if json { 2 } else { 3 }, "{ended:?}");
        assert_eq!(ended.err, format!("taskwire: there are more: taskwire tasks {url} --all\n"));
    }
    let ended = user.run(&["tasks", &url, "--all", "--json", "--era", "legacy"]);
    assert_eq!((ids(&ended), ended.err.as_str()), (all, ""));
}

#[test]
fn a_server_that_lists_no_tasks_is_told_in_words() {
    let (user, scripted) = (User::new(), ScriptedServer::asking("{}"));
    let ended = user.run(&["tasks", &scripted.url()]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(3), ""), "{ended:?}");
    assert!(ended.err.starts_with(&format!("taskwire: {} does not list tasks: ", scripted.url())), "{ended:?}");
    let ended = user.run(&["tasks", &scripted.url(), "--prune"]);
    assert_eq!(ended.code, Some(2), "what is remembered here is another list: {ended:?}");
}

#[test]
fn an_id_that_is_not_known_here_is_looked_for_at_the_default_server() {
    let (owner, other, fixture) = (User::new(), User::new(), endless(Config::default()));
    let task = owner.detach(&fixture.url(), "steps");
    let ended = other.run(&["get", &task]);
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.err.contains("one that was started elsewhere is SERVER#ID"), "{ended:?}");
    other.configure(&format!("default = \"demo\"\n\n[server.demo]\nurl = \"{}\"\n", fixture.url()));
    assert_eq!(other.task(&task)["status"], "working");
    let listed = other.run(&["tasks", "demo", "--era", "legacy"]);
    assert_eq!(cells(&listed)[1][3], task, "by its id alone: {listed:?}");
    assert_eq!(other.run(&["tasks"]).out, "", "without a server it is what was started from here");
    assert_eq!(other.run(&["cancel", &task, "--wait"]).code, Some(0));
    assert_eq!(owner.task(&task)["status"], "cancelled");
    let unknown = other.run(&["get", "zzz"]);
    assert_eq!(unknown.code, Some(3), "the server was asked: {unknown:?}");
}

#[test]
fn one_look_at_a_task_tells_all_about_it() {
    let (user, gate) = (User::new(), Gate::closed());
    let fixture = TestServer::serve([steps("steps", &gate, ["x"], "a result")]);
    let task = user.detach(&fixture.url(), "steps");
    let ended = user.run(&["get", &task]);
    let beginning = format!("task      {task}\nserver    {}\ntool      steps\nstatus    working\ncreated   ", fixture.url());
    assert!(ended.out.starts_with(&beginning), "{}", ended.out);
    let updated = ended.out.lines().last().expect("a line");
    assert!(updated.starts_with("updated   ") && updated.ends_with(" ago)"), "{updated}");
    gate.open(2);
    assert_eq!(user.run(&["watch", &task]).code, Some(0));
    let ended = user.run(&["get", &task]);
    assert!(ended.out.contains("\nstatus    completed\n") && ended.out.ends_with(" ago)\n\na result\n"), "{}", ended.out);
    let object = user.task(&task);
    assert_eq!((&object["taskId"], &object["status"], &object["inputs"]), (&json!(task), &json!("completed"), &json!([])));
    assert_eq!(object["result"]["content"][0]["text"], "a result");
}

#[test]
fn a_failed_task_is_told_with_its_error() {
    let (dir, user) = (TempDir::new(), User::new());
    let server = Server::start(&dir.join("data"));
    let mut running = user.start(&["call", &server.url(), "fail", "how=request"]);
    let task = running.task();
    assert_eq!(running.end().code, Some(5));
    let ended = user.run(&["get", &task]);
    assert_eq!(ended.code, Some(0), "it was found, however it is: {ended:?}");
    assert!(ended.out.contains("\nstatus    failed\n"), "{}", ended.out);
    assert!(ended.out.ends_with("\nerror     the bridge is out (code 1001)\n"), "{}", ended.out);
    let error: Value = user.task(&task)["error"].clone();
    assert_eq!((&error["code"], &error["message"]), (&json!(1001), &json!("the bridge is out")));
}

#[test]
fn a_task_is_understood_in_the_form_of_the_documents_examples() {
    // Their text says `complete` of such a result, and their examples say `task`.
    let state = json!({
        "resultType": "task", "taskId": "t1", "status": "failed", "createdAt": "2025-11-25T10:30:00Z",
        "lastUpdatedAt": "2025-11-25T10:40:00Z", "ttlMs": 3_600_000, "statusMessage": "The tool failed: too many requests",
        "error": {"code": -32603, "message": "too many requests"},
    });
    let (user, scripted) = (User::new(), ScriptedServer::showing(state));
    let ended = user.run(&["get", &format!("{}#t1", scripted.url())]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.out.contains("\nstatus    failed\nmessage   The tool failed: too many requests\n"), "{}", ended.out);
    assert!(ended.out.ends_with("\nerror     too many requests (code -32603)\n"), "{}", ended.out);
}

#[test]
fn cancelling_is_asked_for_and_can_be_waited_for() {
    let (user, gate) = (User::new(), Gate::closed());
    let fixture = TestServer::serve([steps("steps", &gate, ["x"], "done")]);
    let task = user.detach(&fixture.url(), "steps");
    let ended = user.run(&["cancel", &task[..20]]);
    let asked = format!("taskwire: asked to cancel {task}\n");
    assert_eq!((ended.code, ended.out.as_str(), &ended.err), (Some(0), "", &asked));
    let task = user.detach(&fixture.url(), "steps");
    let asked = format!("taskwire: asked to cancel {task}\n");
    let ended = user.run(&["cancel", &task, "--wait"]);
    assert_eq!((ended.code, ended.out.as_str(), ended.err), (Some(0), "", format!("{asked}taskwire: ended: cancelled\n")));
    let ended = user.run(&["cancel", &task, "--wait"]);
    let over = "taskwire: nothing to cancel: the task has ended (cancelled)\n";
    assert_eq!((ended.code, ended.out.as_str(), ended.err.as_str()), (Some(0), "", over), "again does no harm");
    let ended = user.run(&["cancel", "zzz"]);
    assert_eq!(ended.code, Some(2), "{ended:?}");
}

//! `taskwire store move`: clients, tasks and commands go on when their store has moved, and what cannot be moved is refused.

use serde_json::{Value, json};
use taskwire_testkit::{Installation, Server as Database};

use crate::{
    commands::{
        command_server::{CommandServer, result_text},
        server_dir::{ServerDir, tool, until},
    },
    kit::{Server, TempDir, refusal, run},
    user::User,
};

const ANY_PORT: &str = "127.0.0.1:0";
const PASSWORD: &str = "xyzzy";
/// How far the call of the long test counts: five numbers a second.
const FAR: u32 = 60;

/// Notes that it was started, and greets whoever answers.
const GREET: &str = "echo start >> starts\nname=$(taskwire ask --key name 'What is your name?') || exit 9\necho \"Hello, $name!\"\n";

/// Notes that it was started, and ends when it is let go.
const GATED: &str = "echo start >> starts\nwhile [ ! -e go ]; do sleep 0.01; done\necho done\n";

/// The configuration of a server with the demo tools and a command that is this script, whose tasks are in `store`.
fn configuration(store: &str) -> String {
    let store = if store.is_empty() { String::new() } else { format!("store = \"{store}\"\norphan_after = \"8s\"\n") };
    let keys = "command = [\"sh\", \"run.sh\"]\ntask = \"always\"\nkill_after = \"1s\"\non_interrupt = \"retry\"";
    format!("{store}demo = true\ndrain = \"1s\"\n{}", tool("run", keys))
}

/// What was moved.
#[track_caller]
fn moved(args: &[&str]) -> Value {
    let moved = User::new().run(&[&["store", "move", "--json"][..], args].concat());
    assert_eq!(moved.code, Some(0), "{moved:?}");
    moved.json().pop().unwrap_or_else(|| panic!("nothing was said: {moved:?}"))
}

#[track_caller]
fn is_refused(exit: i32, args: &[&str], words: &str) {
    let refused = User::new().run(&[&["store", "move"][..], args].concat());
    assert_eq!(refused.code, Some(exit), "{refused:?}");
    assert!(refused.err.contains(words), "`{words}` in {refused:?}");
    assert!(!refused.err.contains(PASSWORD) && !refused.out.contains(PASSWORD), "{refused:?}");
}

#[track_caller]
fn is_asked(server: &CommandServer, id: &str) {
    server.poll_until(id, "a question", |task| (task["status"] == "input_required").then_some(()));
}

#[test]
#[ignore = "needs PostgreSQL"]
fn clients_and_commands_go_on_where_they_were_when_their_store_has_moved() {
    let database = Database::start_fast(&Installation::of(18));
    let dir = ServerDir::new(&configuration(""));
    dir.write("run.sh", GREET);
    let (data, back) = (dir.path("data"), dir.path("back"));
    let (server, user) = (dir.start(), User::new());
    let done = server.begin("count_far", json!({"to": 3}));
    let result = server.result(&done);
    let greets = server.begin("run", json!({}));
    is_asked(&server, &greets);
    let mut calling = user.start(&["call", &server.url(), "count_far", &format!("to={FAR}")]);
    calling.out.until("5\n");
    is_refused(3, &[&data, &database.url()], "is in use by process");
    assert_eq!(server.stop().code(), Some(0));
    let said = moved(&[&data, &database.url()]);
    assert_eq!((&said["tasks"], &said["open"], &said["running"]), (&json!(3), &json!(2), &json!([greets])), "{said}");
    let refused = refusal(1, &["serve", "--listen", ANY_PORT, "--data", &data]);
    assert!(refused.contains("were moved to the schema taskwire"), "{refused}");
    dir.write("taskwire.toml", &configuration(&database.url()));
    let server = dir.start();
    assert_eq!((server.result(&done), server.text(&done).as_str()), (result, "1\n2\n3\n"));
    is_asked(&server, &greets);
    server.ask("tasks/update", json!({"taskId": greets, "inputResponses": {"name": {"action": "accept", "content": {"answer": "Ada"}}}}));
    assert_eq!(result_text(&server.result(&greets)), "Hello, Ada!\n");
    assert_eq!(dir.read("starts"), "start\n", "the command was started once");
    let called = calling.end();
    assert_eq!(called.code, Some(0), "{called:?}");
    let told: Vec<u32> = called.out.lines().filter_map(|line| line.parse().ok()).collect();
    assert_eq!(told, (1..=FAR).collect::<Vec<_>>(), "each number once, in order: {called:?}");
    is_refused(3, &[&database.url(), &back], "is in use by");
    assert_eq!(server.stop().code(), Some(0));
    let said = moved(&[&database.url(), &back]);
    assert_eq!((&said["tasks"], &said["open"], &said["running"]), (&json!(3), &json!(0), &json!([])), "{said}");
    let (code, _, errors) = run(&["serve", &dir.path("taskwire.toml"), "--listen", ANY_PORT, "--data", &dir.path("other")]);
    assert!(code == Some(1) && errors.contains("were moved to the directory"), "{errors}");
    let server = Server::start(&back);
    let task = server.ask("tasks/get", json!({"taskId": greets}));
    assert_eq!((&task["status"], result_text(&task["result"]).as_str()), (&json!("completed"), "Hello, Ada!\n"));
    dir.is_quiet();
}

#[test]
#[ignore = "needs PostgreSQL"]
fn a_command_whose_files_stay_behind_is_over_before_it_is_started_again() {
    let database = Database::start_fast(&Installation::of(18));
    let dir = ServerDir::new(&configuration(&database.url()));
    dir.write("run.sh", GATED);
    let server = dir.start();
    let id = server.begin("run", json!({}));
    dir.lines("starts", 1);
    assert_eq!(server.stop().code(), Some(0));
    let (file, back) = (dir.path("taskwire.toml"), dir.path("back"));
    let said = moved(&[&database.url(), &back, "--config", &file]);
    assert_eq!(said["open"], 1, "{said}");
    assert!(dir.processes_of(&id).is_empty(), "it was waited for: {:?}", dir.processes_of(&id));
    dir.write("taskwire.toml", &configuration(""));
    let server = Server::configured(&file, &back);
    dir.lines("starts", 2);
    dir.write("go", "");
    let task = until("its end", || Some(server.ask("tasks/get", json!({"taskId": id}))).filter(|task| task["status"] != "working"));
    assert_eq!((&task["status"], result_text(&task["result"]).as_str()), (&json!("completed"), "done\n"), "{task}");
    assert_eq!(dir.read("starts").lines().count(), 2);
    dir.is_quiet();
}

#[test]
fn what_cannot_be_moved_is_refused_and_no_password_is_shown() {
    let dir = TempDir::new();
    let (data, absent) = (dir.join("data"), dir.join("absent"));
    drop(Server::start(&data));
    is_refused(3, &[&absent, "postgres://db.example/tasks"], "there are no tasks in");
    is_refused(3, &[&data, &absent], "both are directories");
    is_refused(2, &[&data, "memory:"], "tasks in memory");
    is_refused(2, &[&data, ""], "a store has a name");
    is_refused(2, &[&data, "env:TASKWIRE_TEST_NO_SUCH_VARIABLE"], "is not set");
    for url in ["mysql://me:xyzzy@db/tasks", "postgres:/me:xyzzy@db/tasks", "postgresme:xyzzy://db"] {
        is_refused(2, &[&data, url], "`postgres://");
        is_refused(2, &[url, &absent], "`postgres://");
    }
    is_refused(3, &[&data, &format!("postgres://me:{PASSWORD}@127.0.0.1:1/tasks?connect_timeout=1")], "cannot be reached");
    is_refused(3, &[&data, "postgres://db.example/tasks", "--schema", "no-name"], "cannot be the name of the schema");
    is_refused(2, &[&data, "postgres://db.example/tasks", "--config", &absent], "cannot read");
    assert!(!std::path::Path::new(&absent).exists(), "nothing was made");
    drop(Server::start(&data));
}

#[test]
fn the_help_says_what_moves_and_what_it_needs() {
    let (code, text, _) = run(&["store", "move", "--help"]);
    assert_eq!(code, Some(0));
    for promised in
        ["Usage: taskwire store move [OPTIONS] <FROM> <TO>", "--skip-damaged", "--schema <NAME>", "Exit codes:", "make it again"]
    {
        assert!(text.contains(promised), "`{promised}` in: {text}");
    }
    let (code, _, errors) = run(&["store"]);
    assert_eq!(code, Some(2));
    assert!(errors.contains("taskwire store <COMMAND>"), "{errors}");
}

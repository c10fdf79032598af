//! `taskwire store backup` and `taskwire store restore`: a copy that is made while the server works has all that was acknowledged before.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use serde_json::{Value, json};

use crate::{
    commands::{
        command_server::result_text,
        server_dir::{ServerDir, tool, until},
    },
    kit::{Server, TempDir, run},
    user::User,
};

const SAY: &str = "command = [\"echo\", \"hello {n}\"]\ninput = { n = { type = \"integer\" } }\ntask = \"always\"";
const RUN: &str = "command = [\"sh\", \"run.sh\"]\ntask = \"always\"";
/// Notes that it was started, and ends when it is let go.
const GATED: &str = "echo start >> starts\nwhile [ ! -e go ]; do sleep 0.01; done\necho done\n";
/// Tasks that are there when a backup begins; at least so many more are made while or after it is, and not more than so many.
const TASKS: usize = 30;
const TASKS_MAX: usize = 500;

/// What was copied.
#[track_caller]
fn copied(args: &[&str]) -> Value {
    let ended = User::new().run(&[&["store"][..], args, &["--json"][..]].concat());
    assert_eq!(ended.code, Some(0), "{ended:?}");
    ended.json().pop().unwrap_or_else(|| panic!("nothing was said: {ended:?}"))
}

#[track_caller]
fn is_refused(exit: i32, args: &[&str], words: &str) {
    let refused = User::new().run(&[&["store"][..], args].concat());
    assert_eq!(refused.code, Some(exit), "{refused:?}");
    assert!(refused.err.contains(words), "`{words}` in {refused:?}");
}

#[test]
fn what_was_acknowledged_before_a_backup_under_load_is_served_from_it_and_lost_commands_say_so() {
    let dir = ServerDir::new(&format!("limits.disk_reserve_bytes = 0\n{}{}", tool("say", SAY), tool("run", RUN)));
    dir.write("run.sh", GATED);
    let (data, file, new) = (dir.path("data"), dir.path("monday.backup"), dir.path("new"));
    let server = dir.start();
    let runs = server.begin("run", json!({}));
    dir.lines("starts", 1);
    let before: Vec<String> = (0..TASKS).map(|n| server.begin("say", json!({"n": n}))).collect();
    before.iter().for_each(|id| assert_ne!(server.result(id)["isError"], true));
    let is_over = AtomicBool::new(false);
    let said = thread::scope(|scope| {
        scope.spawn(|| {
            let is_needed = |made: &usize| *made < TASKS || !is_over.load(Ordering::Acquire);
            for n in (0..TASKS_MAX).take_while(is_needed) {
                server.begin("say", json!({"n": n}));
            }
        });
        let said = copied(&["backup", &data, &file]);
        is_over.store(true, Ordering::Release);
        said
    });
    assert!(said["tasks"].as_u64().expect("a number") > TASKS as u64, "{said}");
    assert_eq!(fs::metadata(&file).expect("there").permissions().mode() & 0o777, 0o600);
    is_refused(3, &["backup", &data, &file], "already");
    is_refused(3, &["restore", &file, &data], "is not empty");
    assert_eq!(server.stop().code(), Some(0));
    let restored = copied(&["restore", &file, &new]);
    assert_eq!(restored["tasks"], said["tasks"], "{restored}");
    assert!(restored["lost"].as_array().expect("tasks").contains(&json!(runs)), "{restored}");
    is_refused(3, &["restore", &file, &new], "is not empty");
    let server = Server::configured(&dir.path("taskwire.toml"), &new);
    for (n, id) in before.iter().enumerate() {
        let task = server.ask("tasks/get", json!({"taskId": id}));
        assert_eq!((&task["status"], result_text(&task["result"])), (&json!("completed"), format!("hello {n}\n")), "{task}");
    }
    let get = || Some(server.ask("tasks/get", json!({"taskId": runs}))).filter(|task| task["status"] != "working");
    let lost = until("the end of the lost command", get);
    assert!(lost["status"] == "failed" && lost.to_string().contains("the command was lost"), "{lost}");
    assert_eq!(dir.read("starts"), "start\n", "it was not started again");
}

#[test]
fn what_cannot_be_backed_up_or_restored_is_refused_and_no_password_is_shown() {
    let dir = TempDir::new();
    let (data, file, new) = (dir.join("data"), dir.join("backup"), dir.join("new"));
    is_refused(3, &["backup", &data, &file], &data);
    fs::create_dir(&data).expect("a directory");
    is_refused(3, &["backup", &data, &file], "there are no tasks in");
    is_refused(3, &["restore", &file, &new], &file);
    for url in ["postgres://me:xyzzy@db/tasks", "env:DATABASE_URL"] {
        is_refused(2, &["backup", url, &file], "pg_dump");
        is_refused(2, &["restore", &file, url], "pg_dump");
    }
    let refused = User::new().run(&["store", "backup", "postgres://me:xyzzy@db/tasks", &file]);
    assert!(!refused.err.contains("xyzzy"), "{refused:?}");
    fs::write(&file, "no backup").expect("a file");
    is_refused(3, &["restore", &file, &new], "not a database");
    assert!(!fs::exists(&new).expect("it can be looked for"), "nothing was made");
}

#[test]
fn the_help_says_what_a_backup_has_and_what_it_has_not() {
    let (code, text, _) = run(&["store", "backup", "--help"]);
    assert_eq!(code, Some(0));
    for promised in ["Usage: taskwire store backup [OPTIONS] <DIR> <FILE>", "A server may go on meanwhile", "pg_dump", "Exit codes:"] {
        assert!(text.contains(promised), "`{promised}` in: {text}");
    }
    let (code, text, _) = run(&["store", "restore", "--help"]);
    assert_eq!(code, Some(0));
    assert!(text.contains("Commands that ran when the backup was made are lost"), "{text}");
}

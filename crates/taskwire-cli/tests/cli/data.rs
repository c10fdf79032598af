//! A data directory that somebody else has changed: before the server starts, while it runs, and while it was down.

use std::{
    fs::{self, OpenOptions, Permissions},
    os::unix::fs::{DirBuilderExt, PermissionsExt, chown, symlink},
    path::{Path, PathBuf},
    thread,
};

use rusqlite::Connection;
use serde_json::{Value, json};

use crate::{
    kit::{POLLS_MAX, Server, TempDir, refusal, run, signal},
    user::User,
};

/// Refuses to serve from a directory, and gives the words in which it does.
fn refused(data: &str) -> String {
    let words = refusal(1, &["serve", "--listen", "127.0.0.1:0", "--data", data]);
    assert!(words.contains(data), "the directory is named: {words}");
    words
}

/// A directory with these rights, whatever the usual ones are.
fn made(dir: &TempDir, mode: u32) -> String {
    let data = dir.join("data");
    fs::DirBuilder::new().mode(0o700).create(&data).expect("a directory");
    fs::set_permissions(&data, Permissions::from_mode(mode)).expect("it is ours");
    data
}

fn mode(path: &str) -> u32 {
    fs::metadata(path).expect("there").permissions().mode() & 0o777
}

#[test]
fn a_server_that_keeps_its_tasks_in_memory_does_not_touch_those_that_are_kept() {
    let dir = TempDir::new();
    let data = dir.join("data");
    drop(Server::start(&data));
    let words = refusal(1, &["serve", "--listen", "127.0.0.1:0", "--data", &data, "--store", "memory:"]);
    assert!(words.contains(&data) && words.contains("choose another directory"), "{words}");
    let (exit, _, words) = run(&["serve", "--store", "redis://there"]);
    assert!(exit == Some(2) && words.contains("no store is called `redis`") && words.contains("`memory:`"), "{words}");
}

// Whose it is.

#[test]
fn a_directory_that_others_can_write_to_is_refused_with_what_mends_it() {
    for others in [0o777, 0o770, 0o702] {
        let dir = TempDir::new();
        let data = made(&dir, others);
        let words = refused(&data);
        assert!(words.contains(&format!("(mode {others:04o})")) && words.contains(&format!("`chmod 700 {data}`")), "{words}");
        assert_eq!((fs::read_dir(&data).expect("there").count(), mode(&data)), (0, others), "nothing was changed");
    }
    let dir = TempDir::new();
    let data = made(&dir, 0o700);
    fs::DirBuilder::new().mode(0o700).create(format!("{data}/spool")).expect("a directory");
    fs::set_permissions(format!("{data}/spool"), Permissions::from_mode(0o777)).expect("opened to all");
    assert!(refused(&data).contains(&format!("`chmod 700 {data}/spool`")));
}

#[test]
fn a_directory_of_somebody_else_is_refused_with_what_mends_it() {
    // Only the first user can give something away; what is theirs is refused to any other.
    let dir = TempDir::new();
    if !rustix::process::geteuid().is_root() {
        assert!(refused("/").contains("belongs to user 0"));
        return;
    }
    let data = made(&dir, 0o700);
    chown(&data, Some(12_345), Some(12_345)).expect("given away");
    let words = refused(&data);
    assert!(words.contains("belongs to user 12345") && words.contains(&format!("`chown -R 0 {data}`")), "{words}");
    chown(&data, Some(0), Some(0)).expect("taken back");
    fs::write(format!("{data}/tasks.db"), "").expect("a file");
    chown(format!("{data}/tasks.db"), Some(12_345), Some(12_345)).expect("given away");
    assert!(refused(&data).contains("tasks.db belongs to user 12345"));
    assert_eq!(fs::read_dir(&data).expect("there").count(), 1, "nothing was made");
}

#[test]
fn a_file_in_a_directory_is_not_reached_by_a_link() {
    for name in ["lock", "tasks.db", "tasks.db-end", "control", "spool"] {
        let dir = TempDir::new();
        let (data, precious) = (made(&dir, 0o700), dir.join("precious"));
        fs::write(&precious, "precious").expect("a file");
        symlink(&precious, format!("{data}/{name}")).expect("a link");
        assert!(refused(&data).contains(&format!("{data}/{name} is a symbolic link")));
        assert_eq!(fs::read(&precious).expect("there"), b"precious");
    }
}

#[test]
fn a_directory_that_others_can_read_is_narrowed_and_that_is_said() {
    let dir = TempDir::new();
    let data = made(&dir, 0o755);
    let server = Server::start(&data);
    server.process.wait_for_error_line("other users could look into the data directory");
    assert_eq!(mode(&data), 0o700);
}

// While it runs.

fn emptied(path: &Path) {
    OpenOptions::new().write(true).open(path).and_then(|file| file.set_len(0)).expect("emptied");
}

fn halved(path: &Path) {
    let bytes = fs::metadata(path).expect("there").len();
    OpenOptions::new().write(true).open(path).and_then(|file| file.set_len(bytes / 2)).expect("halved");
}

fn removed(path: &Path) {
    fs::remove_file(path).expect("removed");
}

/// Ends because of what was done to this file, and says so.
#[track_caller]
fn ends(server: Server, file: &str) {
    let (code, words) = server.process.end_with_errors();
    let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(code, Some(1), "{words}");
    assert!(words.contains("taskwire: the store failed: ") && words.contains(&format!("({file} was ")), "{words}");
}

#[test]
fn a_server_whose_files_are_removed_or_cut_short_acknowledges_nothing_more_and_ends() {
    type Harm = fn(&Path);
    let harms: [(&str, Harm); 6] = [
        ("tasks.db", removed),
        ("tasks.db", emptied),
        ("tasks.db-wal", removed),
        ("tasks.db-wal", emptied),
        ("tasks.db-wal", halved),
        ("tasks.db-shm", removed),
    ];
    for (file, harm) in harms {
        let dir = TempDir::new();
        let server = Server::start(&dir.join("data"));
        let task = server.start_task("count_far");
        harm(&dir.path().join("data").join(file));
        let answer = server.post("tasks/cancel", json!({"taskId": task}));
        // Refused, or cut off by the end of the process.
        assert!(!answer.as_ref().is_ok_and(|(_, answer)| answer.get("result").is_some()), "{file}: acknowledged: {answer:?}");
        ends(server, file);
    }
}

#[test]
fn a_server_that_only_reads_says_of_no_task_that_it_never_was_when_its_database_is_cut_short() {
    let dir = TempDir::new();
    let data = dir.join("data");
    let first = Server::start(&data);
    let task = first.start_task("count_far");
    first.ask("tasks/cancel", json!({"taskId": task}));
    first.process.kill();
    // One that has not kept it in memory.
    let second = Server::start(&data);
    emptied(&dir.path().join("data/tasks.db"));
    if let Ok((_, answer)) = second.post("tasks/get", json!({"taskId": task})) {
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(message.contains("cut short"), "{answer}");
    }
    ends(second, "tasks.db");
}

/// Locks a database as a tool may that looks into it.
fn locked(data: &str) -> Connection {
    let tool = Connection::open(format!("{data}/tasks.db")).expect("the database");
    tool.execute_batch("BEGIN IMMEDIATE").expect("the lock is free");
    tool
}

#[test]
fn a_lock_that_another_program_holds_delays_the_server_and_does_not_end_it() {
    let dir = TempDir::new();
    let data = dir.join("data");
    let server = Server::start(&data);
    let tool = locked(&data);
    let url = server.url();
    let call = thread::spawn(move || User::new().detach(&url, "count_far"));
    let said = server.process.wait_for_error_line("another program has locked");
    assert!(said.contains("fuser -v") && !call.is_finished(), "{said}");
    tool.execute_batch("COMMIT").expect("let go");
    let task = call.join().expect("it is acknowledged");
    assert_eq!(server.ask("tasks/get", json!({"taskId": task}))["status"], "working");
}

#[test]
fn a_lock_that_another_program_holds_delays_the_start_of_a_server() {
    let dir = TempDir::new();
    let data = dir.join("data");
    let first = Server::start(&data);
    let task = first.start_task("count_far");
    first.process.kill();
    let (user, tool) = (User::new(), locked(&data));
    let mut running = user.start(&["serve", "--listen", "127.0.0.1:0", "--data", &data]);
    running.err.until("another program has locked");
    tool.execute_batch("COMMIT").expect("let go");
    let url = running.out.line_with("  endpoint  ");
    assert_eq!(user.task(&format!("{url}#{task}"))["status"], "working");
}

// While it was down.

/// A task that has ended with a result, and one that has no result; the server is killed then.
fn killed(data: &str) -> (String, String) {
    let server = Server::start(data);
    let done = server.ask("tools/call", json!({"name": "countdown", "arguments": {"from": 2}}));
    let done = done["taskId"].as_str().unwrap_or_else(|| panic!("no task: {done}")).to_owned();
    let other = server.start_task("count_far");
    let is_done = |_| server.ask("tasks/get", json!({"taskId": done}))["status"] == "completed";
    assert!((0..POLLS_MAX).any(is_done), "it ends");
    server.process.kill();
    (done, other)
}

#[test]
fn a_flipped_bit_in_a_result_is_an_error_and_never_another_result() {
    let dir = TempDir::new();
    let data = dir.join("data");
    let (done, other) = killed(&data);
    let tool = Connection::open(format!("{data}/tasks.db")).expect("the database");
    // The letters differ in one bit.
    let flipped = "UPDATE log SET event = replace(event, 'Lift-off', 'Mift-off') WHERE event LIKE '%Lift-off%'";
    assert_eq!(tool.execute(flipped, []).expect("writable"), 1);
    drop(tool);
    let server = Server::start(&data);
    let (status, answer): (u16, Value) = server.post("tasks/get", json!({"taskId": done})).expect("an answer");
    let message = answer["error"]["message"].as_str().unwrap_or_else(|| panic!("no error: {answer}"));
    assert_eq!((status, &answer["error"]["code"]), (200, &json!(-32603)), "{answer}");
    assert!(message.contains(&done) && message.contains("damaged"), "{message}");
    assert!(!answer.to_string().contains("Mift"), "{answer}");
    assert_eq!(server.ask("tasks/get", json!({"taskId": other}))["status"], "working", "others are as before");
    let listed = User::new().run(&["tasks", &server.url(), "--json"]);
    assert_eq!(listed.code, Some(0), "{listed:?}");
    assert!(listed.out.contains(&other) && !listed.out.contains(&done), "the others are listed: {listed:?}");
}

#[test]
fn a_log_that_was_cut_while_no_server_was_there_is_reported_with_what_is_missing() {
    let dir = TempDir::new();
    let data = dir.join("data");
    let log = PathBuf::from(format!("{data}/tasks.db-wal"));
    let first = Server::start(&data);
    first.start_task("count_far");
    first.start_task("greet_me");
    first.process.kill();
    // Nothing is said of what is whole.
    let second = Server::start(&data);
    let last = second.start_task("greet_me");
    signal(second.process.id(), "KILL");
    let (_, words) = second.process.end_with_errors();
    assert!(!words.contains("is not what was written"), "{words}");
    halved(&log);
    let third = Server::start(&data);
    let said = third.process.wait_for_error_line("is not what was written");
    assert!(said.contains(&log.display().to_string()) && said.contains(" are missing") && said.contains("acknowledged up to 20"), "{said}");
    let (_, answer) = third.post("tasks/get", json!({"taskId": last})).expect("it serves what is left");
    assert!(answer.get("error").is_some(), "that one was in what is missing: {answer}");
}

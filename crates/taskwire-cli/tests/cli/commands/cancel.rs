//! When a command is ended, no process of it is left: however it forks, hides and ignores signals.

use std::fs;

use serde_json::json;

use super::{
    command_server::{CommandServer, message, result_text},
    server_dir::{FoundProcess, ServerDir, tool, until},
};
use crate::kit::signal;

/// Processes that do not want to end. Each notes its number when it has come to rest.
const NASTY: &str = r#"
import os, signal, sys, time

here = os.path.dirname(os.path.abspath(__file__))

def note():
    file = os.open(os.path.join(here, "pids"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, b"%d\n" % os.getpid())
    os.close(file)

def rest():
    note()
    while True:
        time.sleep(3600)

def child(body):
    if os.fork() == 0:
        body()
        os._exit(0)

def daemon(body):
    "A session of its own, and no parent that is ours."
    def first():
        os.setsid()
        child(body)
    child(first)

def deaf():
    for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGPIPE"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)

def shut():
    os.closerange(0, 1024)
    rest()

def bare():
    "Without the environment by which it could be known."
    os.execve(sys.executable, [sys.executable, os.path.abspath(__file__), "rest"], {})

def chain():
    "Each has a child and ends, so that no number is good for long."
    for _ in range(100000):
        os.setsid()
        note()
        time.sleep(0.02)
        if os.fork() > 0:
            os._exit(0)

def stubborn():
    deaf()
    for _ in range(3):
        child(rest)
    for body in (rest, bare, shut, chain):
        daemon(body)
    shut()

def forks():
    for _ in range(3):
        child(rest)
    child(lambda: (child(rest), rest()))
    rest()

def deaf_family():
    deaf()
    child(rest)
    rest()

def halts():
    "Halts whoever looks after it, again and again."
    deaf()
    parent = os.getppid()
    note()
    while True:
        os.kill(parent, signal.SIGSTOP)
        time.sleep(0.005)

def over():
    "Ends in good order, but its children do not, and two of them have its output open."
    child(rest)
    daemon(rest)
    open(os.path.join(here, "pids"), "a").close()
    while open(os.path.join(here, "pids")).read().count("\n") < 2:
        time.sleep(0.01)
    print("done", flush=True)

modes = {
    "rest": rest,
    "forks": forks,
    "deaf": deaf_family,
    "daemon": lambda: (daemon(rest), rest()),
    "shut": lambda: (child(shut), shut()),
    "bare": lambda: (daemon(bare), rest()),
    "chain": lambda: (child(chain), rest()),
    "stubborn": stubborn,
    "halts": halts,
    "over": over,
}
modes[sys.argv[1]]()
"#;

fn nasty(keys: &str) -> ServerDir {
    let command =
        "command = [\"python3\", \"@DIR@/nasty.py\", \"{mode}\"]\ninput = { mode = { type = \"string\" } }\nkill_after = \"500ms\"";
    let server_dir = ServerDir::new(&tool("nasty", &format!("{command}\n{keys}")));
    server_dir.write("nasty.py", NASTY);
    server_dir
}

/// A task all of whose processes have come to rest.
#[track_caller]
fn at_rest(server_dir: &ServerDir, server: &CommandServer, mode: &str, pids: usize) -> String {
    let id = server.begin("nasty", json!({"mode": mode}));
    server_dir.lines("pids", pids);
    assert!(!server_dir.processes_of(&id).is_empty(), "they are told which task they work for");
    id
}

/// Starts so many processes, cancels, and looks for them.
#[track_caller]
fn leaves_nothing(mode: &str, pids: usize) {
    leaves_nothing_with("", mode, pids);
}

/// The same for a tool with these keys.
#[track_caller]
fn leaves_nothing_with(keys: &str, mode: &str, pids: usize) {
    let server_dir = nasty(&format!("task = \"always\"\n{keys}"));
    let server = server_dir.start();
    let id = at_rest(&server_dir, &server, mode, pids);
    server.cancel(&id);
    assert_eq!(server.ended(&id)["status"], "cancelled");
    server_dir.is_quiet();
}

#[test]
fn a_cancelled_command_that_forks_leaves_nothing() {
    leaves_nothing("forks", 6);
}

#[test]
fn a_cancelled_command_that_ignores_signals_leaves_nothing() {
    leaves_nothing("deaf", 2);
}

#[test]
fn a_cancelled_command_that_detaches_leaves_nothing() {
    leaves_nothing("daemon", 2);
}

#[test]
fn a_cancelled_command_that_closes_its_files_leaves_nothing() {
    leaves_nothing("shut", 2);
}

#[test]
fn a_cancelled_command_that_clears_its_environment_leaves_nothing() {
    leaves_nothing("bare", 2);
}

#[test]
fn a_cancelled_command_whose_children_follow_one_another_leaves_nothing() {
    leaves_nothing("chain", 12);
}

#[test]
fn a_cancelled_command_that_does_all_of_this_leaves_nothing() {
    leaves_nothing("stubborn", 17);
}

#[test]
fn a_cancelled_command_on_a_terminal_leaves_nothing() {
    leaves_nothing_with("pty = true", "forks", 6);
    leaves_nothing_with("pty = true", "stubborn", 17);
}

#[test]
fn a_cancelled_command_whose_supervisor_was_halted_leaves_nothing() {
    let server_dir = nasty("task = \"always\"");
    let server = server_dir.start();
    let id = at_rest(&server_dir, &server, "stubborn", 8);
    signal(server_dir.supervisor(), "STOP");
    server.cancel(&id);
    assert_eq!(server.ended(&id)["status"], "cancelled");
    server_dir.is_quiet();
}

#[test]
fn a_cancelled_command_that_halts_its_supervisor_again_and_again_leaves_nothing() {
    leaves_nothing("halts", 1);
}

#[test]
fn a_command_whose_supervisor_was_halted_before_the_server_was_killed_is_ended_by_the_next() {
    let server_dir = nasty("task = \"always\"");
    let server = server_dir.start();
    let id = at_rest(&server_dir, &server, "forks", 6);
    signal(server_dir.supervisor(), "STOP");
    server.cancel(&id);
    server.kill();
    let server = server_dir.start();
    assert_eq!(server.ended(&id)["status"], "cancelled");
    server_dir.is_quiet();
}

#[test]
fn a_timeout_leaves_nothing_either() {
    let server_dir = nasty("task = \"always\"\ntimeout = \"3s\"");
    let server = server_dir.start();
    let id = at_rest(&server_dir, &server, "stubborn", 8);
    assert_eq!(server.ended(&id)["status"], "failed");
    server_dir.is_quiet();
}

#[test]
fn a_cancel_that_the_server_did_not_outlive_is_carried_out_by_the_next() {
    let server_dir = nasty("task = \"always\"");
    let server = server_dir.start();
    let id = at_rest(&server_dir, &server, "stubborn", 8);
    server.cancel(&id);
    server.kill();
    let server = server_dir.start();
    assert_eq!(server.ended(&id)["status"], "cancelled");
    server_dir.is_quiet();
}

#[test]
fn a_call_that_is_no_task_ends_with_its_connection_where_nothing_lingers() {
    let server_dir = nasty("task = \"never\"\nlinger = \"0s\"");
    let server = server_dir.start();
    let body = message("tools/call", json!({"name": "nasty", "arguments": {"mode": "stubborn"}})).to_string();
    let call = server.open("tools/call", Some("nasty"), &body).expect("the server is there");
    server_dir.lines("pids", 8);
    assert!(!server_dir.processes().is_empty(), "it runs while somebody waits for it");
    drop(call);
    server_dir.is_quiet();
}

#[test]
fn children_that_a_command_leaves_behind_are_ended_with_it() {
    let server_dir = nasty("task = \"always\"");
    let server = server_dir.start();
    let id = server.begin("nasty", json!({"mode": "over"}));
    let result = server.result(&id);
    assert_eq!((result_text(&result).as_str(), result["isError"] == true), ("done\n", false), "{result}");
    server_dir.is_quiet();
}

#[test]
fn children_that_a_command_leaves_behind_may_stay() {
    let server_dir = nasty("task = \"always\"\nleftovers = \"keep\"");
    let server = server_dir.start();
    let id = server.begin("nasty", json!({"mode": "over"}));
    let result = server.result(&id);
    assert_eq!((result_text(&result).as_str(), result["isError"] == true), ("done\n", false), "{result}");
    until("the end of the supervisor", || (!server_dir.processes().iter().any(FoundProcess::is_supervisor)).then_some(()));
    // What the command left on the disk is cleared away, and they are not.
    until("an empty spool", || fs::read_dir(server_dir.path("data/spool")).is_ok_and(|mut runs| runs.next().is_none()).then_some(()));
    let pids: Vec<u32> = server_dir.lines("pids", 2).iter().map(|pid| pid.parse().expect("a number")).collect();
    let left: Vec<u32> = server_dir.processes_of(&id).iter().map(|found| found.pid).collect();
    assert!(pids.iter().all(|pid| left.contains(pid)), "{pids:?} of {left:?}");
}

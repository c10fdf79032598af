//! A command goes on while its server is killed, stopped or gone, and each byte that it writes is delivered once.

use std::{collections::BTreeSet, fs, thread};

use serde_json::{Value, json};

use super::{
    command_server::{CommandServer, result_text},
    server_dir::{Dice, ServerDir, tool, until},
};
use crate::{kit::signal, user::User};

/// How long the command of the long test runs, and how often its server is killed meanwhile.
const SECONDS: usize = 60;
const LINES: usize = SECONDS * 100;
const KILLS: usize = 20;

/// Prints a numbered line every 10 ms, notes that it was started, and counts beside the output how far it is.
const COUNT: &str = r#"
import os, sys, time

def opened(name):
    return os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

os.write(opened("starts"), b"start\n")
ticks = opened("ticks")
begin = time.monotonic()
for n in range(int(sys.argv[1])):
    os.write(1, b"line %d\n" % n)
    os.write(ticks, b".")
    pause = begin + (n + 1) * 0.01 - time.monotonic()
    if pause > 0:
        time.sleep(pause)
"#;

/// Waits until the test lets it, then writes much at once and ends.
const BURST: &str = r#"
import os, sys, time

name = sys.argv[1]
os.write(os.open("starts-" + name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), b"start\n")
while not os.path.exists("go-" + name):
    time.sleep(0.002)
for n in range(500):
    os.write(1, b"line %d\n" % n)
"#;

/// Waits until the test lets it; notes its begin and its end.
const GATED: &str = r#"
echo "begin $1" >> notes
while [ ! -e "go-$1" ]; do sleep 0.01; done
echo "end $1" >> notes
echo "$1 is done"
"#;

/// Has a child, and ends by itself only when it is started again.
const FAMILY: &str = r#"
import os, sys, time

os.write(os.open("starts", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), b"start\n")
if open("starts").read().count("start") > 1:
    os.write(1, b"again\n")
    sys.exit(0)
if os.fork() == 0:
    os.setsid()
    while True:
        time.sleep(3600)
os.write(1, b"first\n")
while True:
    time.sleep(3600)
"#;

fn numbered(count: usize) -> String {
    (0..count).map(|n| format!("line {n}\n")).collect()
}

/// Counts so far, with its whole output in the result.
fn counting(head: &str, lines: usize, keys: &str) -> ServerDir {
    let command = format!("command = [\"python3\", \"count.py\", \"{lines}\"]\ntask = \"always\"\ninline_bytes = 1048576\n{keys}");
    let server_dir = ServerDir::new(&format!("{head}\n{}", tool("count", &command)));
    server_dir.write("count.py", COUNT);
    server_dir
}

/// How many lines the command has printed.
fn ticks(server_dir: &ServerDir) -> usize {
    fs::metadata(server_dir.path("ticks")).map_or(0, |file| usize::try_from(file.len()).expect("a small file"))
}

#[track_caller]
fn ticked(server_dir: &ServerDir, count: usize) {
    until(&format!("{count} lines"), || (ticks(server_dir) >= count).then_some(()));
}

/// All output was delivered once, and the command ran once.
#[track_caller]
fn is_whole(server_dir: &ServerDir, server: &CommandServer, id: &str, lines: usize) {
    let (expected, result) = (numbered(lines), server.result(id));
    assert_ne!(result["isError"], true, "{result}");
    let text = server.text(id);
    let at = text.bytes().zip(expected.bytes()).take_while(|(a, b)| a == b).count();
    let around = |text: &str| text.get(at.saturating_sub(40)..(at + 40).min(text.len())).unwrap_or_default().to_owned();
    assert!(text == expected, "it differs from byte {at} on: {:?} instead of {:?}", around(&text), around(&expected));
    assert!(result_text(&result) == expected, "the result is not what was told");
    assert_eq!(server_dir.read("starts"), "start\n", "it was started once");
}

#[test]
fn killed_at_twenty_random_moments_the_server_tells_every_line_once_of_a_command_that_was_started_once() {
    let (server_dir, mut dice) = (counting("", LINES, ""), Dice::new());
    let mut moments: Vec<usize> = (0..KILLS * 3 / 4).map(|_| 1 + dice.below(LINES - 1)).collect();
    // The others come so soon after another that the server has only just begun to start.
    while moments.len() < KILLS {
        let near = moments[dice.below(moments.len())] + dice.below(30);
        moments.push(near.min(LINES));
    }
    moments.sort_unstable();
    eprintln!("killed after these lines: {moments:?}");
    let mut server = server_dir.start();
    let id = server.begin("count", json!({}));
    for moment in moments {
        ticked(&server_dir, moment);
        server.kill();
        server = server_dir.spawn();
    }
    server.ready();
    is_whole(&server_dir, &server, &id, LINES);
    let watched = User::new().run(&["watch", &format!("{}#{id}", server.url()), "--from", "0"]);
    assert_eq!(watched.code, Some(0), "{}", watched.err);
    assert!(watched.out == numbered(LINES), "who watches sees the same");
    server_dir.is_quiet();
}

#[test]
fn killed_while_a_command_writes_to_a_terminal_the_server_tells_every_line_once() {
    let server_dir = counting("", 300, "pty = true");
    let mut server = server_dir.start();
    let id = server.begin("count", json!({}));
    for moment in [1, 90, 91, 200] {
        ticked(&server_dir, moment);
        server.kill();
        server = server_dir.spawn();
    }
    server.ready();
    is_whole(&server_dir, &server, &id, 300);
    server_dir.is_quiet();
}

#[test]
fn killed_while_the_command_ends_the_server_still_learns_how() {
    let keys = "command = [\"python3\", \"burst.py\", \"{name}\"]\ninput = { name = { type = \"string\" } }\ntask = \"always\"";
    let (server_dir, mut dice) = (ServerDir::new(&tool("burst", keys)), Dice::new());
    server_dir.write("burst.py", BURST);
    let mut server = server_dir.start();
    for round in 0..8 {
        let name = round.to_string();
        let id = server.begin("burst", json!({"name": name}));
        server_dir.lines(&format!("starts-{name}"), 1);
        server_dir.write(&format!("go-{name}"), "");
        for _ in 0..dice.below(20_000) {
            thread::yield_now();
        }
        server.kill();
        server = server_dir.start();
        let result = server.result(&id);
        assert_ne!(result["isError"], true, "{result}");
        assert_eq!(server.text(&id), numbered(500), "round {round}");
        assert_eq!(server_dir.read(&format!("starts-{name}")), "start\n", "round {round}");
    }
    server_dir.is_quiet();
}

/// One at a time, each until it is let go.
fn one_at_a_time() -> ServerDir {
    let keys = "command = [\"sh\", \"gated.sh\", \"{name}\"]\ninput = { name = { type = \"string\" } }\ntask = \"always\"\nconcurrency = 1";
    let server_dir = ServerDir::new(&tool("gated", keys));
    server_dir.write("gated.sh", GATED);
    server_dir
}

#[test]
fn what_waited_for_its_turn_when_the_server_was_killed_has_it_later() {
    let server_dir = one_at_a_time();
    let mut server = server_dir.start();
    let names = ["one", "two", "three"];
    let ids = names.map(|name| server.begin("gated", json!({"name": name})));
    let first = server_dir.lines("notes", 1).remove(0);
    for _ in 0..3 {
        server.kill();
        server = server_dir.start();
    }
    for name in names {
        server_dir.write(&format!("go-{name}"), "");
    }
    for (id, name) in ids.iter().zip(names) {
        assert_eq!(result_text(&server.result(id)), format!("{name} is done\n"));
    }
    let notes = server_dir.lines("notes", 6);
    assert_eq!(notes[0], first, "who had begun went on");
    assert_eq!(notes.iter().collect::<BTreeSet<_>>().len(), 6, "each ran once: {notes:?}");
    for pair in notes.chunks(2) {
        assert_eq!(pair[0].strip_prefix("begin "), pair[1].strip_prefix("end "), "one after the other: {notes:?}");
    }
    server_dir.is_quiet();
}

#[test]
fn who_waits_for_its_turn_is_told_so_and_can_be_cancelled_before_it() {
    let server_dir = one_at_a_time();
    let server = server_dir.start();
    let first = server.begin("gated", json!({"name": "one"}));
    server_dir.lines("notes", 1);
    let second = server.begin("gated", json!({"name": "two"}));
    let message = server.message_with(&second, "");
    assert!(!message.is_empty(), "it says that it waits");
    server.cancel(&second);
    assert_eq!(server.ended(&second)["status"], "cancelled");
    server_dir.write("go-one", "");
    assert_eq!(result_text(&server.result(&first)), "one is done\n");
    let third = server.begin("gated", json!({"name": "three"}));
    server_dir.write("go-three", "");
    assert_eq!(result_text(&server.result(&third)), "three is done\n", "its place is free");
    assert!(!server_dir.read("notes").contains("two"), "it never began");
    server_dir.is_quiet();
}

fn family(on_interrupt: &str) -> ServerDir {
    let keys = format!("command = [\"python3\", \"family.py\"]\ntask = \"always\"\non_interrupt = \"{on_interrupt}\"");
    let server_dir = ServerDir::new(&tool("family", &keys));
    server_dir.write("family.py", FAMILY);
    server_dir
}

/// A task that has begun, and has a child.
fn begun(server_dir: &ServerDir, server: &CommandServer) -> String {
    let id = server.begin("family", json!({}));
    server.wait_for_text(&id, "first\n");
    until("two processes", || (server_dir.processes_of(&id).len() == 2).then_some(()));
    id
}

/// It failed, and says so in words; what it wrote is still there, and what it started is not.
#[track_caller]
fn is_lost(server_dir: &ServerDir, server: &CommandServer, id: &str) {
    let task = server.ended(id);
    assert_eq!(task["status"], "failed", "{task}");
    let message = task["error"]["message"].as_str().unwrap_or_default();
    assert!(message.len() > 20, "it says why: {task}");
    assert_eq!(server.text(id), "first\n");
    assert_eq!(server_dir.read("starts"), "start\n", "it was not started again");
    server_dir.is_quiet();
}

#[test]
fn a_command_whose_supervisor_was_killed_has_failed_and_leaves_nothing() {
    let server_dir = family("fail");
    let server = server_dir.start();
    let id = begun(&server_dir, &server);
    signal(server_dir.supervisor(), "KILL");
    is_lost(&server_dir, &server, &id);
}

#[test]
fn a_command_whose_supervisor_was_killed_while_no_server_was_there_has_failed_too() {
    let server_dir = family("fail");
    let server = server_dir.start();
    let id = begun(&server_dir, &server);
    let supervisor = server_dir.supervisor();
    server.kill();
    signal(supervisor, "KILL");
    is_lost(&server_dir, &server_dir.start(), &id);
}

#[test]
fn a_command_that_may_be_tried_again_is_and_the_first_try_is_gone() {
    let server_dir = family("retry");
    let server = server_dir.start();
    let id = begun(&server_dir, &server);
    let before: Vec<u32> = server_dir.processes_of(&id).iter().map(|found| found.pid).collect();
    signal(server_dir.supervisor(), "KILL");
    let result = server.result(&id);
    assert_ne!(result["isError"], true, "{result}");
    assert_eq!(server.text(&id), "first\nagain\n", "what it had written stays");
    let watched = User::new().run(&["watch", &format!("{}#{id}", server.url()), "--from", "0"]);
    assert_eq!((watched.code, watched.out.as_str()), (Some(0), "first\nagain\n"), "nothing twice: {watched:?}");
    assert_eq!(server_dir.read("starts"), "start\nstart\n");
    let left: Vec<u32> = server_dir.processes().iter().map(|found| found.pid).filter(|pid| before.contains(pid)).collect();
    assert!(left.is_empty(), "{left:?} of the first try are still there");
    server_dir.is_quiet();
}

#[test]
fn a_server_that_is_stopped_does_not_wait_for_its_commands_and_the_next_one_takes_them_over() {
    // Longer than this test waits.
    let server_dir = counting("drain = \"10min\"", 500, "");
    let server = server_dir.start();
    let id = server.begin("count", json!({}));
    ticked(&server_dir, 20);
    let before: BTreeSet<u32> = server_dir.processes_of(&id).iter().map(|found| found.pid).collect();
    assert_eq!(before.len(), 1, "{before:?}");
    assert_eq!(server.stop().code(), Some(0));
    let at = ticks(&server_dir);
    assert!(at < 500, "it waited for the end");
    ticked(&server_dir, at + 20);
    let after: BTreeSet<u32> = server_dir.processes_of(&id).iter().map(|found| found.pid).collect();
    assert_eq!(before, after, "it goes on as if nothing had happened");
    let server = server_dir.start();
    is_whole(&server_dir, &server, &id, 500);
    server_dir.is_quiet();
}

#[test]
fn what_a_command_came_to_while_no_server_was_there_is_found_by_the_next() {
    let server_dir = counting("", 60, "");
    let server = server_dir.start();
    let id = server.begin("count", json!({}));
    ticked(&server_dir, 5);
    server.kill();
    // The supervisor waits for nobody.
    server_dir.is_quiet();
    assert_eq!(ticks(&server_dir), 60);
    let server = server_dir.start();
    is_whole(&server_dir, &server, &id, 60);
}

#[test]
fn a_command_that_takes_too_long_is_ended_with_all_that_belongs_to_it() {
    let server_dir =
        ServerDir::new(&tool("family", "command = [\"python3\", \"family.py\"]\ntask = \"always\"\ntimeout = \"2s\"\nkill_after = \"1s\""));
    server_dir.write("family.py", FAMILY);
    let server = server_dir.start();
    let id = begun(&server_dir, &server);
    is_lost(&server_dir, &server, &id);
    let message = server.ended(&id)["statusMessage"].as_str().map(ToOwned::to_owned).unwrap_or_default();
    assert!(message.contains("family"), "it names the tool: {message}");
}

#[test]
fn time_runs_out_while_no_server_is_there() {
    let server_dir =
        ServerDir::new(&tool("family", "command = [\"python3\", \"family.py\"]\ntask = \"always\"\ntimeout = \"2s\"\nkill_after = \"1s\""));
    server_dir.write("family.py", FAMILY);
    let server = server_dir.start();
    let id = begun(&server_dir, &server);
    server.kill();
    is_lost(&server_dir, &server_dir.start(), &id);
}

#[test]
fn a_command_that_writes_more_than_may_wait_is_made_to_wait_and_loses_nothing() {
    let script = "import os\nopen('starts', 'a').write('start\\n')\nfor n in range(200000):\n    os.write(1, b'line %d\\n' % n)\n";
    let keys = "command = [\"python3\", \"much.py\"]\ntask = \"always\"\njournal_bytes = 65536";
    let server_dir = ServerDir::new(&tool("much", keys));
    server_dir.write("much.py", script);
    let server = server_dir.start();
    let id = server.begin("much", json!({}));
    server_dir.lines("starts", 1);
    server.kill();
    assert!(!server_dir.processes_of(&id).is_empty(), "it has not come to its end");
    let server = server_dir.start();
    let task: Value = server.ended(&id);
    assert_eq!(task["status"], "completed", "{task}");
    assert!(server.text(&id) == numbered(200_000), "every line once");
    assert_eq!(server_dir.read("starts"), "start\n");
    server_dir.is_quiet();
}

#[test]
fn commands_end_with_a_server_that_keeps_its_tasks_in_memory() {
    let server_dir = counting("store = \"memory:\"", 100_000, "");
    let server = server_dir.start();
    let id = server.begin("count", json!({}));
    server.wait_for_text(&id, "line 20\n");
    assert!(server.stop().success());
    server_dir.is_quiet();
    // The server that comes next knows nothing of one that was killed, and ends what that left.
    let server = server_dir.start();
    assert!(server.send("tasks/get", json!({"taskId": id}))["error"].is_object(), "it is gone");
    let id = server.begin("count", json!({}));
    server.wait_for_text(&id, "line 20\n");
    server.kill();
    assert!(!server_dir.processes().is_empty(), "its command goes on");
    let server = server_dir.start();
    server_dir.is_quiet();
    assert!(server.stop().success());
    assert!(!std::path::Path::new(&server_dir.path("data/tasks.db")).exists(), "nothing is kept");
}

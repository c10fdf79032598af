//! A command goes on while its server is killed, stopped or gone, and nothing that it writes is lost or told twice.

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
    let place = ServerDir::new(&format!("{head}\n{}", tool("count", &command)));
    place.write("count.py", COUNT);
    place
}

/// How many lines the command has printed.
fn ticks(place: &ServerDir) -> usize {
    fs::metadata(place.path("ticks")).map_or(0, |file| usize::try_from(file.len()).expect("a small file"))
}

#[track_caller]
fn ticked(place: &ServerDir, count: usize) {
    until(&format!("{count} lines"), || (ticks(place) >= count).then_some(()));
}

/// Everything was told once, and the command ran once.
#[track_caller]
fn is_whole(place: &ServerDir, node: &CommandServer, id: &str, lines: usize) {
    let (expected, result) = (numbered(lines), node.result(id));
    assert_ne!(result["isError"], true, "{result}");
    let text = node.text(id);
    let at = text.bytes().zip(expected.bytes()).take_while(|(a, b)| a == b).count();
    let around = |text: &str| text.get(at.saturating_sub(40)..(at + 40).min(text.len())).unwrap_or_default().to_owned();
    assert!(text == expected, "it differs from byte {at} on: {:?} instead of {:?}", around(&text), around(&expected));
    assert!(result_text(&result) == expected, "the result is not what was told");
    assert_eq!(place.read("starts"), "start\n", "it was started once");
}

#[test]
fn killed_at_twenty_random_moments_the_server_tells_every_line_once_of_a_command_that_was_started_once() {
    let (place, mut dice) = (counting("", LINES, ""), Dice::new());
    let mut moments: Vec<usize> = (0..KILLS * 3 / 4).map(|_| 1 + dice.below(LINES - 1)).collect();
    // The others come so soon after another that the server has only just begun to start.
    while moments.len() < KILLS {
        let near = moments[dice.below(moments.len())] + dice.below(30);
        moments.push(near.min(LINES));
    }
    moments.sort_unstable();
    eprintln!("killed after these lines: {moments:?}");
    let mut node = place.start();
    let id = node.begin("count", json!({}));
    for moment in moments {
        ticked(&place, moment);
        node.kill();
        node = place.spawn();
    }
    node.ready();
    is_whole(&place, &node, &id, LINES);
    let watched = User::new().run(&["watch", &format!("{}#{id}", node.url()), "--from", "0"]);
    assert_eq!(watched.code, Some(0), "{}", watched.err);
    assert!(watched.out == numbered(LINES), "who watches sees the same");
    place.is_quiet();
}

#[test]
fn killed_while_a_command_writes_to_a_terminal_the_server_tells_every_line_once() {
    let place = counting("", 300, "pty = true");
    let mut node = place.start();
    let id = node.begin("count", json!({}));
    for moment in [1, 90, 91, 200] {
        ticked(&place, moment);
        node.kill();
        node = place.spawn();
    }
    node.ready();
    is_whole(&place, &node, &id, 300);
    place.is_quiet();
}

#[test]
fn killed_while_the_command_ends_the_server_still_learns_how() {
    let keys = "command = [\"python3\", \"burst.py\", \"{name}\"]\ninput = { name = { type = \"string\" } }\ntask = \"always\"";
    let (place, mut dice) = (ServerDir::new(&tool("burst", keys)), Dice::new());
    place.write("burst.py", BURST);
    let mut node = place.start();
    for round in 0..8 {
        let name = round.to_string();
        let id = node.begin("burst", json!({"name": name}));
        place.lines(&format!("starts-{name}"), 1);
        place.write(&format!("go-{name}"), "");
        for _ in 0..dice.below(20_000) {
            thread::yield_now();
        }
        node.kill();
        node = place.start();
        let result = node.result(&id);
        assert_ne!(result["isError"], true, "{result}");
        assert_eq!(node.text(&id), numbered(500), "round {round}");
        assert_eq!(place.read(&format!("starts-{name}")), "start\n", "round {round}");
    }
    place.is_quiet();
}

/// One at a time, each until it is let go.
fn one_at_a_time() -> ServerDir {
    let keys = "command = [\"sh\", \"gated.sh\", \"{name}\"]\ninput = { name = { type = \"string\" } }\ntask = \"always\"\nconcurrency = 1";
    let place = ServerDir::new(&tool("gated", keys));
    place.write("gated.sh", GATED);
    place
}

#[test]
fn what_waited_for_its_turn_when_the_server_was_killed_has_it_later() {
    let place = one_at_a_time();
    let mut node = place.start();
    let names = ["one", "two", "three"];
    let ids = names.map(|name| node.begin("gated", json!({"name": name})));
    let first = place.lines("notes", 1).remove(0);
    for _ in 0..3 {
        node.kill();
        node = place.start();
    }
    for name in names {
        place.write(&format!("go-{name}"), "");
    }
    for (id, name) in ids.iter().zip(names) {
        assert_eq!(result_text(&node.result(id)), format!("{name} is done\n"));
    }
    let notes = place.lines("notes", 6);
    assert_eq!(notes[0], first, "who had begun went on");
    assert_eq!(notes.iter().collect::<BTreeSet<_>>().len(), 6, "each ran once: {notes:?}");
    for pair in notes.chunks(2) {
        assert_eq!(pair[0].strip_prefix("begin "), pair[1].strip_prefix("end "), "one after the other: {notes:?}");
    }
    place.is_quiet();
}

#[test]
fn who_waits_for_its_turn_is_told_so_and_can_be_cancelled_before_it() {
    let place = one_at_a_time();
    let node = place.start();
    let first = node.begin("gated", json!({"name": "one"}));
    place.lines("notes", 1);
    let second = node.begin("gated", json!({"name": "two"}));
    let message = node.message_with(&second, "");
    assert!(!message.is_empty(), "it says that it waits");
    node.cancel(&second);
    assert_eq!(node.ended(&second)["status"], "cancelled");
    place.write("go-one", "");
    assert_eq!(result_text(&node.result(&first)), "one is done\n");
    let third = node.begin("gated", json!({"name": "three"}));
    place.write("go-three", "");
    assert_eq!(result_text(&node.result(&third)), "three is done\n", "its place is free");
    assert!(!place.read("notes").contains("two"), "it never began");
    place.is_quiet();
}

fn family(on_interrupt: &str) -> ServerDir {
    let keys = format!("command = [\"python3\", \"family.py\"]\ntask = \"always\"\non_interrupt = \"{on_interrupt}\"");
    let place = ServerDir::new(&tool("family", &keys));
    place.write("family.py", FAMILY);
    place
}

/// A task that has begun, and has a child.
fn begun(place: &ServerDir, node: &CommandServer) -> String {
    let id = node.begin("family", json!({}));
    node.wait_for_text(&id, "first\n");
    until("two processes", || (place.processes_of(&id).len() == 2).then_some(()));
    id
}

/// It failed, and says so in words; what it wrote is still there, and what it started is not.
#[track_caller]
fn is_lost(place: &ServerDir, node: &CommandServer, id: &str) {
    let task = node.ended(id);
    assert_eq!(task["status"], "failed", "{task}");
    let message = task["error"]["message"].as_str().unwrap_or_default();
    assert!(message.len() > 20, "it says why: {task}");
    assert_eq!(node.text(id), "first\n");
    assert_eq!(place.read("starts"), "start\n", "it was not started again");
    place.is_quiet();
}

#[test]
fn a_command_whose_supervisor_was_killed_has_failed_and_leaves_nothing() {
    let place = family("fail");
    let node = place.start();
    let id = begun(&place, &node);
    signal(place.supervisor(), "KILL");
    is_lost(&place, &node, &id);
}

#[test]
fn a_command_whose_supervisor_was_killed_while_no_server_was_there_has_failed_too() {
    let place = family("fail");
    let node = place.start();
    let id = begun(&place, &node);
    let supervisor = place.supervisor();
    node.kill();
    signal(supervisor, "KILL");
    is_lost(&place, &place.start(), &id);
}

#[test]
fn a_command_that_may_be_tried_again_is_and_the_first_try_is_gone() {
    let place = family("retry");
    let node = place.start();
    let id = begun(&place, &node);
    let before: Vec<u32> = place.processes_of(&id).iter().map(|found| found.pid).collect();
    signal(place.supervisor(), "KILL");
    let result = node.result(&id);
    assert_ne!(result["isError"], true, "{result}");
    assert_eq!(node.text(&id), "first\nagain\n", "what it had written stays");
    let watched = User::new().run(&["watch", &format!("{}#{id}", node.url()), "--from", "0"]);
    assert_eq!((watched.code, watched.out.as_str()), (Some(0), "first\nagain\n"), "nothing twice: {watched:?}");
    assert_eq!(place.read("starts"), "start\nstart\n");
    let left: Vec<u32> = place.processes().iter().map(|found| found.pid).filter(|pid| before.contains(pid)).collect();
    assert!(left.is_empty(), "{left:?} of the first try are still there");
    place.is_quiet();
}

#[test]
fn a_server_that_is_stopped_does_not_wait_for_its_commands_and_the_next_one_takes_them_over() {
    // Longer than this test has patience.
    let place = counting("drain = \"10min\"", 500, "");
    let node = place.start();
    let id = node.begin("count", json!({}));
    ticked(&place, 20);
    let before: BTreeSet<u32> = place.processes_of(&id).iter().map(|found| found.pid).collect();
    assert_eq!(before.len(), 1, "{before:?}");
    assert_eq!(node.stop().code(), Some(0));
    let at = ticks(&place);
    assert!(at < 500, "it waited for the end");
    ticked(&place, at + 20);
    let after: BTreeSet<u32> = place.processes_of(&id).iter().map(|found| found.pid).collect();
    assert_eq!(before, after, "it goes on as if nothing had happened");
    let node = place.start();
    is_whole(&place, &node, &id, 500);
    place.is_quiet();
}

#[test]
fn what_a_command_came_to_while_no_server_was_there_is_found_by_the_next() {
    let place = counting("", 60, "");
    let node = place.start();
    let id = node.begin("count", json!({}));
    ticked(&place, 5);
    node.kill();
    // The supervisor waits for nobody.
    place.is_quiet();
    assert_eq!(ticks(&place), 60);
    let node = place.start();
    is_whole(&place, &node, &id, 60);
}

#[test]
fn a_command_that_takes_too_long_is_ended_with_all_that_belongs_to_it() {
    let place =
        ServerDir::new(&tool("family", "command = [\"python3\", \"family.py\"]\ntask = \"always\"\ntimeout = \"2s\"\nkill_after = \"1s\""));
    place.write("family.py", FAMILY);
    let node = place.start();
    let id = begun(&place, &node);
    is_lost(&place, &node, &id);
    let message = node.ended(&id)["statusMessage"].as_str().map(ToOwned::to_owned).unwrap_or_default();
    assert!(message.contains("family"), "it names the tool: {message}");
}

#[test]
fn time_runs_out_while_no_server_is_there() {
    let place =
        ServerDir::new(&tool("family", "command = [\"python3\", \"family.py\"]\ntask = \"always\"\ntimeout = \"2s\"\nkill_after = \"1s\""));
    place.write("family.py", FAMILY);
    let node = place.start();
    let id = begun(&place, &node);
    node.kill();
    is_lost(&place, &place.start(), &id);
}

#[test]
fn a_command_that_writes_more_than_may_wait_is_made_to_wait_and_loses_nothing() {
    let script = "import os\nopen('starts', 'a').write('start\\n')\nfor n in range(200000):\n    os.write(1, b'line %d\\n' % n)\n";
    let keys = "command = [\"python3\", \"much.py\"]\ntask = \"always\"\njournal_bytes = 65536";
    let place = ServerDir::new(&tool("much", keys));
    place.write("much.py", script);
    let node = place.start();
    let id = node.begin("much", json!({}));
    place.lines("starts", 1);
    node.kill();
    assert!(!place.processes_of(&id).is_empty(), "it has not come to its end");
    let node = place.start();
    let task: Value = node.ended(&id);
    assert_eq!(task["status"], "completed", "{task}");
    assert!(node.text(&id) == numbered(200_000), "every line once");
    assert_eq!(place.read("starts"), "start\n");
    place.is_quiet();
}

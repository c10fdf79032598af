//! What a command writes: text as it comes, lines of JSON, standard error, progress, and what nobody may see.

use std::fs;

use serde_json::{Value, json};

use super::{
    command_server::{CommandServer, result_text, text_of},
    server_dir::{ServerDir, tool, until},
};
use crate::user::User;

/// For scripts: waits until the test lets it go on.
const GATE: &str = r#"
import os, sys, time

def put(data):
    os.write(1, data)

def gate(name):
    while not os.path.exists(name):
        time.sleep(0.005)
"#;

/// A server directory with one tool, `run`, which is a task at once and runs this after `GATE`.
fn server_dir(keys: &str, script: &str) -> ServerDir {
    let server_dir = ServerDir::new(&tool("run", &format!("command = [\"python3\", \"run.py\"]\ntask = \"always\"\n{keys}")));
    server_dir.write("run.py", &format!("{GATE}\n{script}"));
    server_dir
}

/// Runs it to its end: its result, and its output.
#[track_caller]
fn run(keys: &str, script: &str) -> (Value, Vec<Value>) {
    let server_dir = server_dir(keys, script);
    let server = server_dir.start();
    let id = server.begin("run", json!({}));
    let ended = (server.result(&id), server.blocks(&id));
    server_dir.is_quiet();
    ended
}

/// The part of a result or an output that a stream wrote.
fn from_stderr(blocks: &[Value]) -> String {
    text_of(&blocks.iter().filter(|block| block["_meta"]["dev.taskwire/stream"] == "stderr").cloned().collect::<Vec<_>>())
}

fn from_stdout(blocks: &[Value]) -> String {
    text_of(&blocks.iter().filter(|block| block["_meta"]["dev.taskwire/stream"].is_null()).cloned().collect::<Vec<_>>())
}

#[test]
fn text_comes_as_it_is_written_to_both_eras() {
    let script = "gate('go-' + os.environ['TASKWIRE_TASK'])\nput(b'on')\ngate('more-' + os.environ['TASKWIRE_TASK'])\nput(b'e\\ntwo')";
    let server_dir = server_dir("", script);
    let (server, user) = (server_dir.start(), User::new());
    for era in ["modern", "legacy"] {
        let mut running = user.start(&["call", &server.url(), "run", "--era", era]);
        let task = running.task();
        server_dir.write(&format!("go-{task}"), "");
        running.out.until("on");
        server_dir.write(&format!("more-{task}"), "");
        let ended = running.end();
        assert_eq!((ended.code, ended.out.as_str()), (Some(0), "one\ntwo\n"), "{era}: {ended:?}");
    }
}

#[test]
fn a_character_in_two_writes_is_one_and_bytes_that_are_none_are_replaced() {
    let script = "put(b'a\\xe2')\ntime.sleep(0.1)\nput(b'\\x82')\ntime.sleep(0.1)\nput(b'\\xac\\xff\\xc0\\x80b\\x00c\\xf0\\x9f')";
    let (result, blocks) = run("", script);
    let text = text_of(&blocks);
    assert!(text.starts_with("a€\u{fffd}"), "{text:?}");
    assert!(text.contains("b\0c\u{fffd}"), "{text:?}");
    assert!(!text.contains('\u{f0}') && text.ends_with('\u{fffd}'), "{text:?}");
    assert_eq!(result_text(&result), text);
}

#[test]
fn progress_that_is_drawn_over_is_short_in_the_result_and_whole_in_the_output() {
    let script = "for n in range(1001):\n    put(b'\\r%9d  %3d%%' % (n * 1024, n // 10))\nput(b'\\n\\x1b[32mdone\\x1b[0m\\n')";
    let server_dir = server_dir("inline_bytes = 512", script);
    let (server, user) = (server_dir.start(), User::new());
    let id = server.begin("run", json!({}));
    let result = server.result(&id);
    let content = result["content"].as_array().expect("content");
    assert_eq!(text_of(content), "  1024000  100%\ndone\n");
    assert_eq!((content.len(), &result["_meta"]["dev.taskwire/repeats"]), (1, &json!(1)), "nothing is left out: {result}");
    let written = server.text(&id);
    assert!(written.len() > 15_000 && written.starts_with("\r        0    0%\r     1024    0%"), "{} bytes", written.len());
    let ended = user.run(&["call", &server.url(), "run"]);
    assert!(ended.code == Some(0) && ended.out == written, "who saw it being written is not told again: {} bytes", ended.out.len());
    let brief = user.run(&["call", &server.url(), "run", "--no-stream"]);
    assert_eq!((brief.code, brief.out.as_str()), (Some(0), "  1024000  100%\ndone\n"), "{brief:?}");
    server_dir.is_quiet();
}

const TWO_STREAMS: &str = "for n in range(20):\n    os.write(1, b'out %d\\n' % n)\n    os.write(2, b'err %d\\n' % n)";

#[test]
fn standard_error_is_in_its_place_in_the_output() {
    let expected: String = (0..20).map(|n| format!("out {n}\nerr {n}\n")).collect();
    for keys in ["", "stderr = \"together\""] {
        let (result, blocks) = run(keys, TWO_STREAMS);
        assert_eq!((text_of(&blocks), result_text(&result)), (expected.clone(), expected.clone()), "{keys}");
    }
}

#[test]
fn standard_error_can_be_told_apart() {
    let expected = |word: &str| (0..20).map(|n| format!("{word} {n}\n")).collect::<String>();
    let (result, blocks) = run("stderr = \"apart\"", TWO_STREAMS);
    let content = result["content"].as_array().expect("content");
    for blocks in [&blocks, content] {
        assert_eq!((from_stdout(blocks), from_stderr(blocks)), (expected("out"), expected("err")));
    }
}

#[test]
fn standard_error_can_be_dropped() {
    let (result, blocks) = run("stderr = \"drop\"", TWO_STREAMS);
    let expected: String = (0..20).map(|n| format!("out {n}\n")).collect();
    assert_eq!((text_of(&blocks), result_text(&result)), (expected.clone(), expected));
}

#[test]
fn lines_of_json_are_blocks_progress_and_a_result() {
    let script = r#"
import json
def line(value): put(json.dumps(value).encode() + b"\n")
line({"type": "text", "text": "hello "})
line({"type": "image", "data": "aGk=", "mimeType": "image/png"})
put(b'{"type": "te')
time.sleep(0.05)
put(b'xt", "text": "world"}\n')
os.write(2, b"a warning\n")
put(b"\nno JSON\n")
line({"type": "image"})
line({"progress": 3, "total": 10, "message": "baking"})
gate("go")
line({"status": "cooling"})
gate("on")
line({"result": {"n": 1}})
line({"result": {"n": 2}, "content": [{"type": "text", "text": "two"}]})
"#;
    let schema = "output_schema = { type = \"object\", properties = { n = { type = \"integer\" } }, required = [\"n\"] }";
    let server_dir = server_dir(&format!("output = \"jsonl\"\n{schema}"), script);
    let server = server_dir.start();
    let id = server.begin("run", json!({}));
    assert_eq!(server.message_with(&id, "baking"), "baking (3/10)");
    server_dir.write("go", "");
    assert_eq!(server.message_with(&id, "cooling"), "cooling (3/10)");
    server_dir.write("on", "");
    let result = server.result(&id);
    assert_eq!((&result["structuredContent"], result["isError"] == true), (&json!({"n": 2}), false), "{result}");
    assert!(result_text(&result).ends_with("two"), "{result}");
    let blocks = server.blocks(&id);
    assert_eq!(from_stdout(&blocks), "hello worldno JSON\n{\"type\": \"image\"}\n", "{blocks:?}");
    assert_eq!(from_stderr(&blocks), "a warning\n", "{blocks:?}");
    let images: Vec<&Value> = blocks.iter().filter(|block| block["type"] == "image").collect();
    assert_eq!(images, [&json!({"type": "image", "data": "aGk=", "mimeType": "image/png"})]);
    let position_of = |words: &str| blocks.iter().position(|block| block["text"].as_str().is_some_and(|text| text.contains(words)));
    let image = blocks.iter().position(|block| block["type"] == "image");
    assert!(position_of("hello") < image && image < position_of("world"), "in the order in which they came: {blocks:?}");
}

#[test]
fn a_result_that_says_so_is_an_error() {
    let (result, _) = run("output = \"jsonl\"", "put(b'{\"result\": {\"why\": \"x\"}, \"isError\": true}\\n')");
    assert_eq!((&result["structuredContent"], &result["isError"]), (&json!({"why": "x"}), &json!(true)), "{result}");
}

#[test]
fn the_exit_code_says_whether_it_is_an_error() {
    for (keys, code, is_error) in
        [("", 0, false), ("", 3, true), ("ok_codes = [0, 3]", 3, false), ("ok_codes = [3]", 0, true), ("ok_codes = [3]", 3, false)]
    {
        let (result, blocks) = run(keys, &format!("put(b'words\\n')\nsys.exit({code})"));
        assert_eq!(result["isError"] == true, is_error, "{keys} {code}: {result}");
        assert_eq!(text_of(&blocks), "words\n", "what it wrote is all there is in the output");
        assert!(result_text(&result).starts_with("words\n"), "{result}");
        assert_eq!(result_text(&result).contains(&code.to_string()), is_error, "an error says which code: {result}");
    }
    let (result, _) = run("", "put(b'words\\n')\nos.kill(os.getpid(), 9)");
    assert!(result["isError"] == true && result_text(&result).contains('9'), "{result}");
    let user = User::new();
    let server_dir = server_dir("", "put(b'words\\n')\nsys.exit(3)");
    let server = server_dir.start();
    let ended = user.run(&["call", &server.url(), "run"]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.out.starts_with("words\n") && ended.out.matches("words").count() == 1, "told once: {ended:?}");
}

#[test]
fn a_command_that_failed_says_why_next_to_its_status_in_both_eras() {
    let user = User::new();
    for (keys, script, why) in [
        ("", "put(b'make: *** No rule to make it\\n')\nsys.exit(3)", "exit code 3: make: *** No rule to make it"),
        ("", "sys.exit(3)", "exit code 3"),
        ("", "put(b'one\\ntwo\\n\\n')\nos.kill(os.getpid(), 9)", "ended by signal 9: two"),
        ("stderr = \"apart\"", "os.write(2, b'no rule\\n')\nput(b'all done\\n')\nsys.exit(2)", "exit code 2: no rule"),
        ("redact = ['hunter\\d']", "put(b'key=hunter2')\nsys.exit(1)", "exit code 1: key=[redacted]"),
        ("progress = '(?<percent>\\d+)%'", "put(b'40%\\n' + b'x' * 1000 + b'\\n')\nsys.exit(1)", "exit code 1"),
        ("output = \"jsonl\"", "put(b'{\"result\": {}, \"isError\": true}\\n')", "it says that it failed"),
    ] {
        let server_dir = server_dir(keys, script);
        let server = server_dir.start();
        let id = server.begin("run", json!({}));
        let task = server.ended(&id);
        let expected = (&json!("completed"), &json!(true), &json!(why));
        assert_eq!((&task["status"], &task["result"]["isError"], &task["statusMessage"]), expected, "{task}");
        let ended = user.run(&["get", &format!("{}#{id}", server.url()), "--era", "legacy", "--json"]);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let shown = ended.json().pop().expect("an object");
        assert_eq!((&shown["status"], &shown["message"]), (&json!("failed"), &json!(why)), "{shown}");
    }
}

#[test]
fn a_command_that_cannot_be_started_says_why_next_to_its_status() {
    let server_dir = ServerDir::new(&tool("run", "command = [\"./nope\"]\ntask = \"always\""));
    let server = server_dir.start();
    let task = server.ended(&server.begin("run", json!({})));
    assert!(task["statusMessage"].as_str().is_some_and(|message| message.starts_with("cannot run `nope`: ")), "{task}");
}

/// The status message after each step of a command.
#[track_caller]
fn messages(pattern: &str, steps: &[(&str, &str)]) {
    let script: String = steps.iter().enumerate().map(|(n, (line, _))| format!("put({line})\ngate('go-{n}')\n")).collect();
    let server_dir = server_dir(&format!("progress = '{pattern}'"), &script);
    let server = server_dir.start();
    let id = server.begin("run", json!({}));
    for (n, (line, message)) in steps.iter().enumerate() {
        assert_eq!(server.message_with(&id, message), *message, "{line}");
        server_dir.write(&format!("go-{n}"), "");
    }
    assert_ne!(server.result(&id)["isError"], true);
}

#[test]
fn progress_is_found_in_the_output() {
    messages(
        r"(?<done>\d+) of (?<total>\d+)(: (?<message>.+))?",
        &[("b'3 of 10\\n'", "3/10"), ("b'4 of 10\\rnothing\\n'", "4/10"), ("b'7 of 10: nearly\\n'", "nearly (7/10)")],
    );
    messages(r"(?<percent>[\d.]+)%", &[("b' 40% done\\r'", "40/100"), ("b'41%\\r42.5%\\r'", "42.5/100")]);
}

/// All that the server has of a task: on the wire and on the disk.
fn everything(server_dir: &ServerDir, server: &CommandServer, id: &str) -> String {
    let mut all = format!("{} {:?}", server.ended(id), server.blocks(id));
    for file in fs::read_dir(server_dir.path("data")).expect("a directory").flatten().filter(|file| file.path().is_file()) {
        all.push_str(&String::from_utf8_lossy(&fs::read(file.path()).expect("a file of ours")));
    }
    all
}

#[test]
fn secrets_are_in_no_output_however_they_are_written() {
    let secret = "hunter2";
    let script = r#"
import base64
word = base64.b64decode("aHVudGVyMg==")
put(b"key=" + word[:3])
gate("go")
put(word[3:] + b"\nkey=" + word + b" " + word + b"\n")
os.write(2, b"err " + word + b"\n")
put(b"100% " + word + b" of it\n")
put(b"last " + word)
"#;
    let server_dir = server_dir("redact = ['hunter\\d']\nprogress = '(?<percent>\\d+)% (?<message>.+)'\nstderr = \"apart\"", script);
    let server = server_dir.start();
    let id = server.begin("run", json!({}));
    until_started(&server_dir, &id);
    server_dir.write("go", "");
    let result = server.result(&id);
    let blocks = server.blocks(&id);
    assert_eq!(from_stdout(&blocks), "key=[redacted]\nkey=[redacted] [redacted]\n100% [redacted] of it\nlast [redacted]");
    assert_eq!(from_stderr(&blocks), "err [redacted]\n");
    assert!(result_text(&result).contains("key=[redacted]\n"), "{result}");
    server_dir.is_quiet();
    assert!(!everything(&server_dir, &server, &id).contains(secret), "it is known after all");
}

#[track_caller]
fn until_started(server_dir: &ServerDir, id: &str) {
    until("its process", || (!server_dir.processes_of(id).is_empty()).then_some(()));
}

#[test]
fn secrets_stay_secret_when_the_server_is_killed_in_the_middle_of_one() {
    let script = "put(b'one\\nkey=hun')\nopen('half', 'w').write('x\\n')\ngate('go')\nput(b'ter2\\ntwo\\n')";
    let server_dir = server_dir("redact = ['hunter\\d']", script);
    let mut server = server_dir.start();
    let id = server.begin("run", json!({}));
    server_dir.lines("half", 1);
    server.wait_for_text(&id, "one\n");
    for _ in 0..2 {
        server.kill();
        server = server_dir.start();
    }
    server_dir.write("go", "");
    assert_eq!(result_text(&server.result(&id)), "one\nkey=[redacted]\ntwo\n");
    assert_eq!(server.text(&id), "one\nkey=[redacted]\ntwo\n");
    server_dir.is_quiet();
}

#[test]
fn secrets_are_in_no_output_where_a_long_line_is_cut() {
    let script = "
for at in list(range(2040, 2060)) + list(range(4080, 4110)):
    put(b'.' * at + b'key=hunter2' + b'.' * 9000 + b'\\n')
put(b'key=' + b'h' * 50000 + b' and more\\nend\\n')
";
    let keys = "command = [\"python3\", \"run.py\"]\ntask = \"always\"\nredact = ['key=\\w+']";
    let server_dir = ServerDir::new(&format!("[limits]\nchunk_bytes = 8192\n\n{}", tool("run", keys)));
    server_dir.write("run.py", &format!("{GATE}\n{script}"));
    let server = server_dir.start();
    let id = server.begin("run", json!({}));
    let lines = (2040..2060).chain(4080..4110).map(|at| format!("{}[redacted]{}\n", ".".repeat(at), ".".repeat(9000)));
    let expected = lines.collect::<String>() + "[redacted]\nend\n";
    let (result, text) = (server.result(&id), server.text(&id));
    let at = text.bytes().zip(expected.bytes()).take_while(|(one, other)| one == other).count();
    assert!(text == expected, "from byte {at} on: {:?}", &text[at.saturating_sub(20)..(at + 60).min(text.len())]);
    assert!(!result_text(&result).contains("hunter") && !result_text(&result).contains("hhh"), "{result}");
    server_dir.is_quiet();
    assert!(!everything(&server_dir, &server, &id).contains("hunter"), "it is known after all");
}

#[test]
fn secrets_into_which_the_other_stream_is_written_are_in_no_output() {
    let script = "put(b'key=hun')\nos.write(2, b'a warning\\nerr hun')\nput(b'ter2\\n')\nos.write(2, b'ter3\\n')\nput(b'last\\n')";
    for keys in ["", "stderr = \"together\"\npty = true", "stderr = \"apart\""] {
        let server_dir = server_dir(&format!("redact = ['hunter\\d']\n{keys}"), script);
        let server = server_dir.start();
        let id = server.begin("run", json!({}));
        let (result, text) = (server.result(&id), server.text(&id));
        let mut lines: Vec<&str> = text.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, ["a warning", "err [redacted]", "key=[redacted]", "last"], "{keys}: {text:?}");
        assert!(!result_text(&result).contains("hun"), "{keys}: {result}");
        server_dir.is_quiet();
        let all = everything(&server_dir, &server, &id);
        assert!(!all.contains("key=hun") && !all.contains("err hun"), "{keys}: it is known after all");
    }
}

#[test]
fn a_character_that_the_server_did_not_outlive_is_whole_in_the_end() {
    let script = "put(b'one\\n\\xe2\\x82')\nopen('half', 'w').write('x\\n')\ngate('go')\nput(b'\\xac two\\n')";
    let server_dir = server_dir("", script);
    let server = server_dir.start();
    let id = server.begin("run", json!({}));
    server_dir.lines("half", 1);
    server.wait_for_text(&id, "one\n");
    server.kill();
    let server = server_dir.start();
    server_dir.write("go", "");
    assert_eq!((result_text(&server.result(&id)), server.text(&id)), ("one\n€ two\n".to_owned(), "one\n€ two\n".to_owned()));
    server_dir.is_quiet();
}

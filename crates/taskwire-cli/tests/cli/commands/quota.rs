//! How much a caller may have stored, and that the program gives the space of forgotten tasks back to the disk.

use std::fs;

use serde_json::{Value, json};

use super::{
    command_server::{CommandServer, message, result_text},
    server_dir::{ServerDir, tool, until},
};

/// Three megabytes, where a caller may have four.
const FILLS: &str = "command = [\"sh\", \"-c\", \"yes 'a line of output that is long enough' | head -c 3000000\"]\ntask = \"always\"";
const LIMITS: &str = "[limits]\nstored_bytes_per_caller = 4194304\n";
const AUTH: &str = "[auth]\ntokens = [{ token = \"a\", caller = \"ann\" }, { token = \"b\", caller = \"bob\" }]\n";

const NOW: &str = "command = [\"echo\", \"now\"]";

/// A call with half a megabyte in it, so that it becomes a task or there is no room for it.
fn note(server: &CommandServer) -> Value {
    server.send("tools/call", json!({"name": "note", "arguments": {"text": "x".repeat(500_000)}}))
}

#[track_caller]
fn is_quota_error(answer: &Value) {
    assert_eq!(answer["error"]["code"], -31001, "{answer}");
    let message = answer["error"]["message"].as_str().expect("words");
    for words in ["ended ones included", "other callers are not affected", "4194304", "`limits.stored_bytes_per_caller`"] {
        assert!(message.contains(words), "{words}: {message}");
    }
}

#[test]
fn a_caller_that_has_stored_too_much_is_told_so_and_others_go_on() {
    let note_keys = "command = [\"true\"]\ninput = { text = { type = \"string\" } }\ntask = \"always\"";
    let tools = [tool("fills", FILLS), tool("note", note_keys), tool("now", NOW)].concat();
    let server_dir = ServerDir::new(&format!("{LIMITS}\n{AUTH}\n{tools}"));
    let server = server_dir.start();
    server.use_token("a");
    let first = server.begin("fills", json!({}));
    assert_ne!(server.result(&first)["isError"], true, "there is room for one");
    let second = server.result(&server.begin("fills", json!({})));
    assert_eq!(second["isError"], true, "and not for two: {second}");
    let text = result_text(&second);
    assert!(text.contains("The command was stopped, because ") && text.contains("`limits.stored_bytes_per_caller`"), "{text}");
    assert!(text.starts_with("a line of output"), "what it wrote before that is kept: {text}");
    is_quota_error(&note(&server));
    assert_eq!(result_text(&server.call("now", json!({}))), "now\n", "a call that needs no task needs no room");
    assert_eq!(server.ended(&first)["status"], "completed", "what is stored can be read");

    server.use_token("b");
    assert_ne!(server.result(&server.begin("fills", json!({})))["isError"], true, "another caller has room of its own");
    server_dir.is_quiet();
    assert!(server.stop().success());

    let server = server_dir.start();
    server.use_token("a");
    is_quota_error(&note(&server));
    server.use_token("b");
    let answer = note(&server);
    let id = answer["result"]["taskId"].as_str().unwrap_or_else(|| panic!("no task: {answer}")).to_owned();
    server.ended(&id);
    server_dir.is_quiet();
}

#[test]
fn the_disk_gets_back_what_is_forgotten() {
    let fills = "command = [\"sh\", \"-c\", \"yes 'a line of output that is long enough' | head -c 30000000\"]\ntask = \"always\"";
    let server_dir = ServerDir::new(&format!("retention = \"1s\"\n\n{}", tool("fills", fills)));
    let server = server_dir.start();
    let bytes = || fs::metadata(server_dir.path("data/tasks.db")).expect("the store is there").len();
    let id = server.begin("fills", json!({}));
    let large = until("much output", || Some(bytes()).filter(|bytes| *bytes > 20_000_000));
    until("a smaller file", || (bytes() < large / 2).then_some(()));
    until("an empty spool", || (fs::read_dir(server_dir.path("data/spool")).expect("it is there").count() == 0).then_some(()));
    assert_eq!(server.send("tasks/get", json!({"taskId": id}))["error"]["code"], -32602, "it is forgotten");
    server_dir.is_quiet();
}

#[test]
fn where_the_disk_is_short_no_task_is_made_and_commands_wait_with_their_output() {
    // No disk has so much room.
    let head = "linger = \"0s\"\n\n[limits]\ndisk_reserve_bytes = 9223372036854775807\n";
    let much = "command = [\"sh\", \"-c\", \"echo > begun; yes | head -c 8000000; echo > over\"]";
    let tools = [tool("wait", "command = [\"sleep\", \"600\"]\ntask = \"always\""), tool("much", much), tool("now", NOW)].concat();
    let server_dir = ServerDir::new(&format!("{head}\n{tools}"));
    let server = server_dir.start();
    let answer = server.send("tools/call", json!({"name": "wait", "arguments": {}}));
    assert_eq!(answer["error"]["code"], -31002, "{answer}");
    let words = answer["error"]["message"].as_str().expect("words");
    assert!(words.contains("try again later") && words.contains("`limits.disk_reserve_bytes`"), "{words}");
    let call = message("tools/call", json!({"name": "much", "arguments": {}})).to_string();
    let open = server.open("tools/call", Some("much"), &call).expect("the server is there");
    server_dir.lines("begun", 1);
    for _ in 0..50 {
        assert_eq!(result_text(&server.call("now", json!({}))), "now\n", "a call that needs no task is answered");
    }
    assert_eq!(server_dir.read("over"), "", "it has to wait");
    drop(open);
    server_dir.is_quiet();
}

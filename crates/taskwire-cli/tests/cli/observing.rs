//! What an operator sees of a running server: its log as objects, and its metrics on an address that has nothing else.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
};

use serde_json::{Value, json};

use crate::{
    kit::{Server, TIMEOUT, TempDir, refusal},
    user::User,
};

/// What a caller sends, and nobody may find in a log.
const ARGUMENT: &str = "an-argument-of-a-caller";

/// A tool that repeats a word, as a task.
const REPEATS: &str = "[[tool]]\nname = \"repeat\"\ncommand = [\"echo\", \"{word}\"]\ntask = \"always\"\n\
    input = { word = { type = \"string\" } }\n";

fn written(dir: &TempDir, text: &str) -> String {
    let file = dir.join("taskwire.toml");
    std::fs::write(&file, text).expect("a file");
    file
}

#[track_caller]
fn object(line: &str) -> Value {
    assert!(!line.contains(ARGUMENT), "{line}");
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
}

#[test]
fn each_line_of_the_log_is_an_object_that_names_caller_tool_task_and_attempt() {
    let dir = TempDir::new();
    let server = Server::configured(&written(&dir, &format!("log_format = \"json\"\n\n{REPEATS}")), &dir.join("data"));
    let called = server.ask("tools/call", json!({"name": "repeat", "arguments": {"word": ARGUMENT}}));
    let said = object(&server.process.wait_for_error_line("call ended"));
    assert_eq!((&said["level"], &said["message"]), (&json!("INFO"), &json!("call ended")), "{said}");
    assert_eq!((&said["caller"], &said["tool"]), (&json!("local"), &json!("repeat")), "{said}");
    assert_eq!((&said["task"], &said["attempt"]), (&called["taskId"], &json!(1)), "{said}");
    assert_eq!((&said["how"], said["took"].is_string()), (&json!("completed"), true), "{said}");
    assert!(said["timestamp"].as_str().is_some_and(|at| at.ends_with('Z')), "{said}");
    server.process.terminate();
    let (code, rest) = server.process.end_with_errors();
    assert_eq!(code, Some(0), "{rest}");
    assert!(rest.lines().map(object).any(|said| said["message"].as_str().is_some_and(|words| words.starts_with("draining"))), "{rest}");
}

#[test]
fn the_command_line_decides_over_the_file_how_the_log_is_written() {
    let user = User::new();
    let file = user.write("taskwire.toml", "log_format = \"json\"\ndemo = true\n");
    let args = ["serve", &file, "--listen", "127.0.0.1:0", "--data", &user.path("data"), "--log-format", "text"];
    let mut running = user.start(&args);
    let url = running.out.line_with("  endpoint  ");
    assert_eq!(user.run(&["call", &url, "countdown", "from=1"]).code, Some(0));
    running.err.until("call ended caller=\"local\" tool=\"countdown\"");
}

#[test]
fn what_is_probably_not_meant_so_is_an_object_too() {
    let dir = TempDir::new();
    let file = written(&dir, "log_format = \"json\"\n[[tool]]\nname = \"gone\"\ncommand = [\"./nope\"]\n");
    let server = Server::configured(&file, &dir.join("data"));
    let said = object(&server.process.wait_for_error_line("tool `gone`"));
    assert_eq!(said["level"], "WARN", "{said}");
}

#[test]
fn metrics_can_have_an_address_of_their_own_that_needs_no_token() {
    let dir = TempDir::new();
    let config = "[metrics]\nlisten = \"127.0.0.1:0\"\n\n[auth]\ntokens = [{ token = \"secret\", caller = \"me\" }]\n";
    let server = Server::configured(&written(&dir, config), &dir.join("data"));
    assert!(server.process.line().expect("one more line").starts_with("  dashboard http://"));
    let line = server.process.line().expect("one more line");
    let url = line.strip_prefix("  metrics   http://").and_then(|rest| rest.strip_suffix("/metrics"));
    let address = url.unwrap_or_else(|| panic!("no address: {line}"));
    let mut stream = TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: {address}\r\n\r\n").expect("writable");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("readable");
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.contains("\ntaskwire_build_info{version=\""), "{text}");
    assert_eq!(server.probe("/metrics").0, 401, "the endpoint has them, too, for callers");
}

#[test]
fn an_address_for_metrics_that_is_in_use_is_named() {
    let dir = TempDir::new();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address");
    let file = written(&dir, &format!("[metrics]\nlisten = \"{address}\"\n"));
    let words = refusal(1, &["serve", &file, "--listen", "127.0.0.1:0", "--data", &dir.join("data")]);
    assert!(words.contains(&format!("cannot listen on {address} for metrics (`metrics.listen`)")), "{words}");
}

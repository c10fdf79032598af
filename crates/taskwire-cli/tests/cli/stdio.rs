//! `taskwire serve --stdio`: one client, which started the server.

use std::io::Write;

use serde_json::{Value, json};

use crate::kit::{Process, TempDir, request};

/// A server that has answered once; what it writes is messages and nothing else.
fn discovered(dir: &TempDir) -> (Process, std::process::ChildStdin) {
    let (process, mut input) = Process::with_input(&["serve", "--stdio", "--data", &dir.join("data")]);
    writeln!(input, "{}", request(7, "server/discover", json!({}))).expect("writable");
    let line = process.line().expect("an answer");
    let answer: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
    assert_eq!(answer["id"], 7, "{answer}");
    assert_eq!(answer["result"]["supportedVersions"], json!(["2026-07-28"]), "{answer}");
    (process, input)
}

#[test]
fn a_client_is_answered_until_it_ends_the_input() {
    let dir = TempDir::new();
    let (process, input) = discovered(&dir);
    drop(input);
    assert_eq!(process.line(), None, "there is nothing more to say");
    assert_eq!(process.ended().code(), Some(0));
}

#[test]
fn a_signal_ends_it_though_the_input_stays_open() {
    let dir = TempDir::new();
    let (process, input) = discovered(&dir);
    process.terminate();
    assert_eq!(process.ended().code(), Some(0));
    drop(input);
}

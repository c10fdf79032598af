//! Mistakes of whoever starts the server: each ends the program at once, with a message that says what to do.

use std::{fs::Permissions, net::TcpListener, os::unix::fs::PermissionsExt};

use crate::kit::{Server, TempDir, refusal};

const ANY_PORT: &str = "127.0.0.1:0";

/// Refuses to serve what this file says, and gives the words in which it does.
fn refused_config(text: &str) -> String {
    let dir = TempDir::new();
    let file = dir.join("taskwire.toml");
    std::fs::write(&file, text).expect("a file");
    let words = refusal(2, &["serve", &file, "--listen", ANY_PORT, "--data", &dir.join("data")]);
    assert!(words.contains(&file), "the file is named: {words}");
    words
}

#[test]
fn a_directory_that_is_in_use_is_refused_with_the_process_that_uses_it() {
    let dir = TempDir::new();
    let data = dir.join("data");
    let first = Server::start(&data);
    let words = refusal(1, &["serve", "--listen", ANY_PORT, "--data", &data]);
    assert!(words.contains(&format!("in use by process {}:", first.process.id())), "{words}");
    assert!(words.contains(&data) && words.contains("--data"), "{words}");
    assert_eq!(first.probe("/readyz").0, 200, "the first serves on");
}

#[test]
fn a_port_that_is_in_use_is_refused_with_its_address_before_anything_is_stored() {
    let dir = TempDir::new();
    let taken = TcpListener::bind(ANY_PORT).expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let words = refusal(1, &["serve", "--listen", &address, "--data", &dir.join("data")]);
    assert!(words.contains(&format!("cannot listen on {address}")), "{words}");
    assert!(!dir.path().join("data").exists(), "no directory was made");
}

#[test]
fn a_store_that_cannot_be_opened_is_named_and_the_reason_is_said_once() {
    let dir = TempDir::new();
    let db = dir.path().join("tasks.db");
    std::fs::write(&db, "x".repeat(4096)).expect("a file");
    std::fs::set_permissions(&db, Permissions::from_mode(0o600)).expect("a file of ours alone");
    let data = dir.join("");
    let words = refusal(1, &["serve", "--listen", ANY_PORT, "--data", &data]);
    assert!(words.starts_with(&format!("taskwire: cannot open {data}tasks.db: ")), "{words}");
    assert_eq!(words.matches("not a database").count(), 1, "{words}");
    let words = refusal(1, &["serve", "--listen", ANY_PORT, "--data", &dir.join("tasks.db/data")]);
    assert!(words.contains(&format!("cannot use {data}tasks.db/data: ")), "{words}");
    assert_eq!(words.matches("os error").count(), 1, "{words}");
}

#[test]
fn an_unknown_key_is_refused_with_its_line_and_the_nearest_that_is_known() {
    let words = refused_config("listen = \"127.0.0.1:0\"\n\n[http]\nkeep_alve = \"15s\"\n");
    for expected in ["line 4", "`keep_alve`", "did you mean `keep_alive`?"] {
        assert!(words.contains(expected), "`{expected}` in: {words}");
    }
}

#[test]
fn what_newcomers_write_first_is_answered_with_what_to_write_instead() {
    for (text, expected) in [
        ("[tool]\nname = \"a\"\ncommand = [\"ls\"]\n", "write `[[tool]]`, with two brackets"),
        ("[[tool]]\nname = \"a\"\ncommand = \"ls -l\"\n", "command = [\"ls\", \"-l\"]"),
        ("[[tool]]\nname = \"a\"\ncommand = [\"ls\"]\nlisten = \"127.0.0.1:0\"\n", "put it above the first [[tool]]"),
        ("[[tool]]\nname = \"a\"\ncommand = [\"ls\"]\ninput = { p = { type = \"strng\" } }\n", "`p`: `type` cannot be \"strng\""),
    ] {
        let words = refused_config(text);
        assert!(words.contains(expected), "`{expected}` in: {words}");
    }
}

#[test]
fn metrics_that_anybody_could_read_are_refused_with_their_place() {
    for (listen, expected) in [("0.0.0.0:9464", "may be reached from everywhere"), ("9464", "such as \"127.0.0.1:9464\", not \"9464\"")] {
        let words = refused_config(&format!("[metrics]\nlisten = \"{listen}\"\n"));
        assert!(words.contains("line 2") && words.contains(expected), "`{expected}` in: {words}");
    }
    let words = refused_config("log_format = \"yaml\"\n");
    assert!(words.contains("`text` or `json`"), "{words}");
}

#[test]
fn values_that_would_become_code_are_refused_with_their_place_and_what_to_write_instead() {
    let refused = |lines: &str| refused_config(&format!("[[tool]]\nname = \"a\"\n{lines}\ninput = {{ x = {{ type = \"string\" }} }}\n"));
    for (command, expected) in [
        ("[\"find\", \".\", \"-exec\", \"sh\", \"-c\", \"cat {x}\", \";\"]", "use \"$1\" in the script"),
        ("[\"taskset\", \"1\", \"sh\", \"-c\", \"{x}\"]", "use \"$1\" in the script"),
        ("[\"flock\", \"/tmp/lock\", \"-c\", \"{x}\"]", "without a shell"),
        ("[\"su\", \"user\", \"-c\", \"{x}\"]", "su would run the value as code"),
        ("[\"script\", \"-c\", \"{x}\"]", "script would run the value as code"),
        ("[\"watch\", \"{x}\"]", "watch would run the value as code"),
        ("[\"env\", \"-S\", \"{x}\"]", "env would run the value as code"),
        ("[\"git\", \"-c\", \"alias.x=!{x}\", \"x\"]", "git runs what the setting \"alias.x\" says"),
        ("[\"python3\", \"-c\", \"{x}\"]", "sys.argv[1]"),
        ("[\"perl\", \"-e\", \"{x}\"]", "$ARGV[0]"),
        ("[\"node\", \"-e\", \"{x}\"]", "process.argv[1]"),
        ("[\"awk\", \"{x}\"]", "[\"-v\", \"value={x}\"]"),
        ("[\"sed\", \"s/a/{x}/\"]", "sed would run the value as code"),
    ] {
        let words = refused(&format!("command = {command}"));
        assert!(words.contains("line 3, column 11") && words.contains(expected), "`{expected}` in: {words}");
    }
    let words = refused("command = [\"sh\"]\nstdin = \"{x}\"");
    assert!(words.contains("line 4, column 9") && words.contains("sh takes its code from standard input"), "{words}");
    let words = refused("command = [\"./run\"]\nenv = { BASH_ENV = \"{x}\" }");
    assert!(words.contains("line 4, column 20") && words.contains("the variable BASH_ENV"), "{words}");
}

#[test]
fn a_value_that_cannot_be_used_is_refused_with_its_line() {
    let words = refused_config("retention = \"never\"\n");
    assert!(words.contains("line 1") && words.contains("\"forever\""), "{words}");
}

#[test]
fn a_file_that_is_not_there_is_refused_by_its_name() {
    let dir = TempDir::new();
    let file = dir.join("missing.toml");
    let words = refusal(2, &["serve", &file, "--data", &dir.join("data")]);
    assert!(words.contains(&format!("cannot read {file}")), "{words}");
}

#[test]
fn an_address_that_others_can_reach_is_refused_without_tokens() {
    let dir = TempDir::new();
    let words = refusal(2, &["serve", "--listen", "0.0.0.0:0", "--data", &dir.join("data")]);
    assert!(words.contains("0.0.0.0:0") && words.contains("`[auth] tokens`"), "{words}");
    assert!(!dir.path().join("data").exists(), "no directory was made");
}

#[test]
fn what_is_no_address_is_refused_as_it_was_given() {
    let dir = TempDir::new();
    let words = refusal(2, &["serve", "--listen", "nowhere", "--data", &dir.join("data")]);
    assert!(words.contains("`nowhere` is not an address"), "{words}");
}

//! The quick start of the README, as it is printed there: the file, the commands, and what they show.

use std::{fs, path::Path, process::Command};

use super::server_dir::{ServerDir, free_port, until};
use crate::user::{RunningCommand, User};

/// The address in the README; a test has one of its own.
const ADDRESS: &str = "127.0.0.1:8787";

/// What stands in the blocks of this kind, in order.
fn blocks<'a>(section: &'a str, kind: &str) -> Vec<&'a str> {
    let fence = format!("```{kind}\n");
    section.split(fence.as_str()).skip(1).map(|rest| rest.split("```").next().unwrap_or_default()).collect()
}

/// A command of the README, in the shell of somebody who has the program in their path.
fn shell(server_dir: &ServerDir, user: &User, line: &str) -> Command {
    let own = Path::new(env!("CARGO_BIN_EXE_taskwire")).parent().expect("a directory").display().to_string();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new("sh");
    // Without a shell that stays behind: what is ended must be the program.
    command
        .args(["-c", &format!("exec {line}")])
        .current_dir(server_dir.path(""))
        .env_remove("RUST_LOG")
        .env("PATH", format!("{own}:{path}"));
    command.env("HOME", user.path("")).env("TASKWIRE_STATE_DIR", user.path("state")).env("XDG_CONFIG_HOME", user.path("config"));
    command
}

#[test]
fn the_quick_start_works_as_it_is_printed_and_its_output_comes_live() {
    let readme = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md")).expect("the README");
    let section = readme.split("\n## Quick start\n").nth(1).expect("a section `Quick start`");
    let section = section.split("\n## ").next().expect("its text");
    let (toml, text) = (blocks(section, "toml"), blocks(section, "text"));
    assert_eq!((toml.len(), text.len()), (1, 1), "one file, and what a call of its tool shows");
    let lines: Vec<&str> = blocks(section, "sh").into_iter().flat_map(str::lines).map(str::trim).collect();
    let line_of = |beginning: &str| {
        let mut found = lines.iter().filter(|line| line.starts_with(beginning));
        let line = found.next().unwrap_or_else(|| panic!("no line begins with `{beginning}`: {lines:?}"));
        assert!(found.next().is_none(), "one `{beginning}` is enough");
        let without_comment = line.split(" #").next().unwrap_or_default();
        without_comment.trim().trim_end_matches('&').trim_end().to_owned()
    };
    let (serve, call) = (line_of("taskwire serve"), line_of("taskwire call"));
    let (server_dir, user) = (ServerDir::new(""), User::new());
    let address = format!("127.0.0.1:{}", free_port());
    let mut config = toml[0].replace(ADDRESS, &address);
    if !toml[0].contains(ADDRESS) && !serve.contains(ADDRESS) {
        // It is the default.
        config = format!("listen = \"{address}\"\n{config}");
    }
    let file = serve.split(' ').find(|word| word.ends_with(".toml")).expect("the file is named");
    server_dir.write(file, &config);
    let mut server = RunningCommand::start(&mut shell(&server_dir, &user, &serve.replace(ADDRESS, &address)));
    server.out.until(&format!("http://{address}/mcp"));
    let expected: String = text[0].lines().filter(|line| !line.starts_with("taskwire: ")).map(|line| format!("{line}\n")).collect();
    let first = expected.split_inclusive('\n').next().expect("a line");
    assert!(expected.len() > first.len(), "one line is no live output");
    let mut call = RunningCommand::start(&mut shell(&server_dir, &user, &call.replace(ADDRESS, &address)));
    let seen = call.out.until(first);
    let commands = server_dir.processes();
    assert!(seen.len() < expected.len() && commands.iter().any(|found| !found.is_supervisor()), "it came only at its end: {seen}");
    let ended = call.end();
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), expected.as_str()), "{}", ended.err);
    until("the end of its processes", || (!server_dir.processes().iter().any(|found| found.is_supervisor())).then_some(()));
    server.signal("TERM");
    assert_eq!(server.end().code, Some(0));
}

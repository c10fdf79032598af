//! `taskwire init`: the file that is written works, and one that is there is safe.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, process::Command};

use crate::user::{CommandResult, RunningCommand, User};

/// A command of the user, in the user's home.
fn at_home(user: &User, args: &[&str]) -> Command {
    let mut command = user.command(args);
    command.current_dir(user.path("")).env("TMPDIR", user.path("tmp"));
    fs::create_dir_all(user.path("tmp")).expect("a directory");
    command
}

fn run(user: &User, args: &[&str]) -> CommandResult {
    RunningCommand::start(&mut at_home(user, args)).end()
}

fn read(user: &User, name: &str) -> String {
    fs::read_to_string(user.path(name)).expect("a file")
}

#[test]
fn the_file_that_is_written_is_tried_and_says_what_comes_next() {
    let user = User::new();
    let ended = run(&user, &["init"]);
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{ended:?}");
    let expected = "wrote taskwire.toml\ntrying it: count to=2\n1 of 2\n2 of 2\nit works. Next, ";
    assert!(ended.out.starts_with(expected), "{}", ended.out);
    for next in
        ["taskwire serve taskwire.toml", "taskwire call http://127.0.0.1:8787/mcp count to=5", "taskwire connect claude-code taskwire.toml"]
    {
        assert!(ended.out.contains(&format!("\n  {next}\n")), "`{next}` in: {}", ended.out);
    }
    // Nothing is left but the file, and it can be served.
    assert!(fs::read_dir(user.path("tmp")).expect("a directory").next().is_none(), "the place of the try is gone");
    assert!(!Path::new(&user.path(".taskwire")).exists(), "the try keeps nothing");
    let server = format!("stdio:{} serve {} --stdio", env!("CARGO_BIN_EXE_taskwire"), user.path("taskwire.toml"));
    let call = run(&user, &["call", &server, "machine"]);
    assert_eq!(call.code, Some(0), "{call:?}");
    assert!(call.out.lines().count() >= 2, "{call:?}");
}

#[test]
fn a_file_that_is_there_is_not_overwritten_unless_that_is_wanted_and_then_it_is_kept() {
    let user = User::new();
    user.write("taskwire.toml", "# mine\n");
    let refused = run(&user, &["init"]);
    refused.is_refusal(
        "taskwire.toml is there already: `taskwire serve taskwire.toml` serves it; name another file, or overwrite it with --force",
    );
    assert_eq!(read(&user, "taskwire.toml"), "# mine\n");
    fs::set_permissions(user.path("taskwire.toml"), fs::Permissions::from_mode(0o600)).expect("it is ours");
    let forced = run(&user, &["init", "--force"]);
    assert_eq!(forced.code, Some(0), "{forced:?}");
    assert_eq!(read(&user, "taskwire.toml.bak"), "# mine\n");
    assert!(read(&user, "taskwire.toml").contains("[[tool]]"));
    let mode = |name: &str| fs::metadata(user.path(name)).expect("a file").permissions().mode() & 0o777;
    assert_eq!((mode("taskwire.toml"), mode("taskwire.toml.bak")), (0o600, 0o600));
    assert_eq!(run(&user, &["init", "other.toml"]).code, Some(0), "another name is free");
}

#[test]
fn a_file_that_does_not_work_here_is_kept_and_that_is_said() {
    let user = User::new();
    // A machine without a shell.
    let mut command = at_home(&user, &["init"]);
    let ended = RunningCommand::start(command.env("PATH", user.path("nothing"))).end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.err.starts_with("taskwire: taskwire.toml is written, but its tool `count` does not work: "), "{}", ended.err);
    assert!(!ended.out.contains("it works") && read(&user, "taskwire.toml").contains("[[tool]]"), "{ended:?}");
    assert!(fs::read_dir(user.path("tmp")).expect("a directory").next().is_none(), "the place of the try is gone");
}

#[test]
fn where_nothing_can_be_written_nothing_is_tried() {
    let user = User::new();
    let ended = run(&user, &["init", "no/such/dir.toml"]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""), "{ended:?}");
    assert!(ended.err.starts_with("taskwire: cannot write no/such/dir.toml: "), "{}", ended.err);
}

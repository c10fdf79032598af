//! What the program says about itself.

use std::{fs, process::Command};

use crate::kit::{TempDir, run};

/// All that can be done.
const COMMANDS: [&str; 19] = [
    "init",
    "serve",
    "connect",
    "reload",
    "server",
    "doctor",
    "call",
    "watch",
    "get",
    "cancel",
    "answer",
    "tasks",
    "tools",
    "ask",
    "progress",
    "status",
    "emit",
    "completions",
    "man",
];

#[test]
fn the_help_names_what_can_be_done_and_shows_how() {
    let (code, text, _) = run(&["--help"]);
    assert_eq!(code, Some(0));
    for promised in ["Makes long-running MCP tools durable", "survives disconnects, crashes and restarts", "serve", "Examples:"] {
        assert!(text.contains(promised), "`{promised}` in: {text}");
    }
    for example in ["taskwire serve taskwire.toml", "taskwire serve --stdio", "http://127.0.0.1:8787/mcp"] {
        assert!(text.contains(example), "`{example}` in: {text}");
    }
    for command in COMMANDS {
        assert!(text.contains(&format!(" {command} ")), "`{command}` in: {text}");
    }
}

#[test]
fn the_help_of_each_command_shows_how_and_what_its_exit_code_means() {
    for command in COMMANDS {
        let (code, text, _) = run(&[command, "--help"]);
        assert_eq!(code, Some(0), "{command}");
        for promised in [format!("Usage: taskwire {command}"), "Examples:".to_owned(), format!("taskwire {command} ")] {
            assert!(text.contains(&promised), "`{promised}` in: {text}");
        }
        if !["serve", "completions"].contains(&command) {
            assert!(text.to_lowercase().contains("exit codes"), "{text}");
        }
    }
}

#[test]
fn the_help_fits_a_terminal() {
    // The only line that is longer has a path that cannot be shorter.
    for command in COMMANDS.into_iter().filter(|command| *command != "completions") {
        let output = Command::new(env!("CARGO_BIN_EXE_taskwire")).args([command, "--help"]).output().expect("it runs");
        let text = String::from_utf8(output.stdout).expect("text");
        // What is before that is wrapped to the terminal.
        let shown: Vec<&str> = text.lines().skip_while(|line| !["Examples:", "ARGUMENT is one of:"].contains(line)).collect();
        assert!(!shown.is_empty(), "{command}: {text}");
        for line in shown {
            assert!(line.chars().count() <= 80, "{command}: {line}");
        }
    }
}

#[test]
fn the_help_of_call_names_every_option_and_every_kind_of_argument() {
    let (_, text, _) = run(&["call", "--help"]);
    for option in [
        "--detach",
        "--json",
        "--no-stream",
        "--cancel-on-interrupt",
        "--traceparent <TRACEPARENT>",
        "--token <TOKEN>",
        "--oauth",
        "--header <'NAME: VALUE'>",
        "--era <ERA>",
        "[default: auto]",
    ] {
        assert!(text.contains(option), "`{option}` in: {text}");
    }
    for kind in ["key=value", "key:=json", "key@=FILE", "standard input", "stdio:<command line>", "[server.demo]", "env:DEMO_TOKEN"] {
        assert!(text.contains(kind), "`{kind}` in: {text}");
    }
    for code in
        ["0 there is a result", "1 the tool said", "2 the command line", "3 the server", "4 the call was cancelled", "5 the task failed"]
    {
        assert!(text.contains(code), "`{code}` in: {text}");
    }
}

#[test]
fn the_help_of_ask_names_every_option_and_what_comes_of_each_answer() {
    let (_, text, _) = run(&["ask", "--help"]);
    for option in ["--message <MESSAGE>", "--schema <JSON|@FILE>", "--choice <TEXT>", "--confirm", "--key", "--default", "--url"] {
        assert!(text.contains(option), "`{option}` in: {text}");
    }
    for code in ["0 answered", "1 declined or cancelled", "2 the command line", "3 nobody can be asked"] {
        assert!(text.contains(code), "`{code}` in: {text}");
    }
}

#[test]
fn what_only_the_server_starts_is_not_shown() {
    let (_, text, _) = run(&["--help"]);
    assert!(!text.contains("supervise"), "{text}");
}

#[test]
fn shells_can_complete_what_is_typed() {
    for shell in ["elvish", "powershell"] {
        let (code, script, errors) = run(&["completions", shell]);
        assert_eq!((code, errors.as_str()), (Some(0), ""), "{shell}");
        for word in ["taskwire", "watch", "no-stream", "offline"] {
            assert!(script.contains(word), "{shell}: no `{word}`");
        }
    }
    for shell in ["bash", "fish", "zsh"] {
        let (code, script, errors) = run(&["completions", shell]);
        assert_eq!((code, errors.as_str()), (Some(0), ""), "{shell}");
        assert!(script.contains(&format!("command taskwire complete {shell} -- ")), "{shell} asks the program: {script}");
    }
    let (code, _, errors) = run(&["completions", "tcsh"]);
    assert_eq!(code, Some(2));
    assert!(errors.contains("bash"), "the ones that there are: {errors}");
}

#[test]
fn each_command_has_a_manual_page_with_what_its_help_says() {
    let (code, page, errors) = run(&["man"]);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    for promised in [".TH taskwire 1", ".SH SYNOPSIS", ".SH EXAMPLES", "taskwire serve taskwire.toml"] {
        assert!(page.contains(promised), "`{promised}` in: {page}");
    }
    let dir = TempDir::new();
    let pages = dir.join("man/man1");
    assert_eq!(run(&["man", "--dir", &pages]).0, Some(0));
    let text = |name: &str| fs::read_to_string(format!("{pages}/{name}.1")).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(text("taskwire").split_whitespace().collect::<Vec<_>>().join(" "), page);
    for command in COMMANDS {
        let page = text(&format!("taskwire-{command}"));
        assert!(page.contains(".SH SYNOPSIS") && page.contains("\n.SH EXAMPLES\n.nf\n"), "{page}");
    }
    assert!(text("taskwire-store-move").contains("skip\\-damaged"), "commands of commands have one, too");
    assert!(!fs::exists(format!("{pages}/taskwire-supervise.1")).expect("it can be looked for"), "what only the server starts has none");
    let file = dir.join("file");
    fs::write(&file, "").expect("a file");
    assert_eq!(run(&["man", "--dir", &file]).0, Some(3));
}

#[test]
fn the_help_of_serve_names_every_option_its_default_and_what_signals_do() {
    let (code, text, _) = run(&["serve", "--help"]);
    assert_eq!(code, Some(0));
    for option in ["--listen <ADDR>", "[default: 127.0.0.1:8787]", "--data <DIR>", "[default: .taskwire, ", "--stdio", "[CONFIG]"] {
        assert!(text.contains(option), "`{option}` in: {text}");
    }
    for promised in ["SIGTERM and Ctrl-C drain", "a second signal ends at once", "taken over by the next start", "RUST_LOG=debug"] {
        assert!(text.contains(promised), "`{promised}` in: {text}");
    }
}

#[test]
fn without_a_command_the_help_is_shown() {
    let (code, _, errors) = run(&[]);
    assert_eq!(code, Some(2));
    assert!(errors.contains("Usage: taskwire <COMMAND>") && errors.contains("Examples:"), "{errors}");
}

#[test]
fn the_version_is_told() {
    let (code, text, _) = run(&["--version"]);
    assert_eq!((code, text), (Some(0), format!("taskwire {}", env!("CARGO_PKG_VERSION"))));
}

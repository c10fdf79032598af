//! What the program says about itself.

use crate::kit::run;

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
}

#[test]
fn the_help_of_serve_names_every_option_its_default_and_what_signals_do() {
    let (code, text, _) = run(&["serve", "--help"]);
    assert_eq!(code, Some(0));
    for option in ["--listen <ADDR>", "[default: 127.0.0.1:8787]", "--data <DIR>", "[default: .taskwire]", "--stdio", "[CONFIG]"] {
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

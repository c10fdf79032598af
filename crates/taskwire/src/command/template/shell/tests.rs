//! Scripts with values in them, in all the ways that people write them.

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::command::template::tests::{compile, fill, filled, refused};

#[test]
fn values_inside_scripts_of_shells_are_refused() {
    for command in [
        json!(["sh", "-c", "cat {x}"]),
        json!(["/bin/bash", "-ec", "{x}"]),
        json!(["bash", "-c", "-e", "{x}"]),
        json!(["bash", "-euo", "pipefail", "-c", "echo '{x}'"]),
        json!(["bash", "-o", "{y}", "-c", "{x}"]),
        json!(["bash", "-o", "pipefail", "+o", "posix", "-c", "{x}"]),
        json!(["bash", "--norc", "-c", "{x}"]),
        json!(["bash", "--rcfile", "f", "-c", "{x}"]),
        json!(["dash", "-c", "--", "{x}"]),
        json!(["sh", "-c", ["{x}"]]),
        json!(["sh", ["-c", "{x}"]]),
        json!(["sh", "-c", "echo {list}"]),
        json!(["sh", {"when": "v", "args": ["-c"]}, "{x}"]),
        json!(["sh", {"when": "v", "args": ["-c", "{x}"]}]),
        json!(["sh", "-c", {"when": "v", "args": ["true"]}, "{x}"]),
        json!(["sh", {"when": "v", "args": ["run.sh"]}, "-c", "{x}"]),
        json!(["sh", "{y}", "-c", "{x}"]),
        json!(["ash", "-c", "{x}"]),
        json!(["ksh", "-c", "{x}"]),
        json!(["zsh", "--emulate", "sh", "-c", "{x}"]),
        json!(["env", "LANG=C", "/usr/bin/bash", "-c", "{x}"]),
        json!(["/usr/bin/timeout", "5", "sh", "-c", "{x}"]),
        json!(["docker", "exec", "bash", "bash", "-c", "{x}"]),
        json!(["busybox", "sh", "-c", "{x}"]),
        json!(["fish", "-c", "echo", "-c", "{x}"]),
        json!(["fish", "--command", "{x}"]),
        json!(["fish", "-C", "{x}"]),
    ] {
        let why = refused(&command);
        assert!(
            why.contains("a value in the script itself would be run as code: use \"$") && why.contains("as an argument after it"),
            "{command}: {why}"
        );
    }
    for command in
        [json!(["sh", "-{x}", "run.sh"]), json!(["bash", "--rcfile={x}"]), json!(["fish", "--command={x}"]), json!(["sh", "+{x}"])]
    {
        assert!(refused(&command).contains("a value inside an option"), "{command}");
    }
    for command in [json!(["sh", "{dashed}", "{x}"]), json!(["bash", "-x", "{y}{dashed}"])] {
        assert!(refused(&command).contains("`allow_dash`"), "{command}");
    }
}

#[test]
fn shells_get_values_as_arguments() {
    for command in [
        json!(["sh", "-c", "cat \"$1\"", "sh", "{x}"]),
        json!(["bash", "-euo", "pipefail", "-c", "echo \"$1\"", "bash", "{x}", "{dashed}"]),
        json!(["bash", "deploy.sh", "-c", "{x}"]),
        json!(["bash", "-o", "pipefail", "run.sh", "-c", "{x}"]),
        json!(["bash", "-o", "{x}", "run.sh"]),
        json!(["sh", "--", "run.sh", "-c", "{x}"]),
        json!(["sh", "--", "{dashed}", "-c", "{x}"]),
        json!(["sh", "-c", "--", "echo", "sh", "{x}"]),
        json!(["sh", "-c", {"when": "v", "args": ["-x"]}, "echo", "sh", "{x}"]),
        json!(["bash", "-c", "true", {"when": "v", "args": ["-x"]}, ["--n", "{x}"]]),
        json!(["fish", "-c", "echo $argv", "{x}"]),
        json!(["sh", "{x}"]),
        json!(["bash", "-x", "{x}", "{y}"]),
        json!(["sh", "-c", "awk '{ print $1 }' \"$1\"", "sh", "{x}"]),
        json!(["env", "LANG=C", "sh", "-c", "echo", "sh", "{x}"]),
        json!(["grep", "-c", "{x}"]),
        json!(["grep", "sh", "-c", "{x}"]),
        json!(["./sh.py", "-c", "{x}"]),
        json!(["env", "grep", "-c", "{x}"]),
    ] {
        assert!(compile(&command).is_ok(), "{command}: {}", refused(&command));
    }
}

#[test]
fn the_error_shows_the_safe_way_in_the_words_of_the_author() {
    let why = refused(&json!(["bash", "-c", "grep -r '{x}' \"src/{y}\" | awk '{ print }' | head {x}"]));
    let example = r#"command = ["bash", "-c", "grep -r ''\"$1\"'' \"src/$2\" | awk '{ print }' | head \"$1\"", "bash", "{x}", "{y}"]"#;
    assert!(why.contains(example), "{why}");
    // It can be pasted: it is a command that is accepted, and means what it says.
    let pasted: Value = serde_json::from_str(example.strip_prefix("command = ").expect("a command")).expect("a list");
    let argv = fill(&pasted, &json!({"x": "$(id)", "y": "lib"})).expect("filled");
    assert_eq!(argv[2], "grep -r ''\"$1\"'' \"src/$2\" | awk '{ print }' | head \"$1\"");
    assert_eq!(argv[3..], ["bash", "$(id)", "lib"]);

    let why = refused(&json!(["sh", "-c", "{x}"]));
    assert!(why.contains("command = [\"sh\"] and stdin = \"{x}\""), "{why}");
    let why = refused(&json!(["fish", "-c", "echo {x}", "{y}"]));
    assert!(why.contains(r#"["fish", "-c", "echo \"$argv[1]\"", "{x}", …]"#), "{why}");
}

#[test]
fn a_value_that_a_script_looks_for_in_the_wrong_place_is_warned_of() {
    let warnings = |command: &Value| compile(command).expect("it can be used").warnings();
    for command in [
        json!(["sh", "-c", "echo $1", "{x}"]),
        json!(["bash", "-euo", "pipefail", "-c", "echo \"${1:-}\"", "{x}", "{y}"]),
        json!(["sh", "-c", "wc \"$@\"", "{list}"]),
        json!(["sh", "-c", "--", "echo $*", ["{x}", "y"]]),
        json!(["env", "LANG=C", "sh", "-c", "echo $1", "{x}"]),
    ] {
        let warnings = warnings(&command);
        assert!(warnings.len() == 1 && warnings[0].contains("is $0") && warnings[0].contains("is not $1"), "{command}: {warnings:?}");
    }
    let example = "command = […, \"echo $1\", \"sh\", \"{x}\"]";
    assert!(warnings(&json!(["sh", "-c", "echo $1", "{x}"]))[0].ends_with(example));
    for command in [
        json!(["sh", "-c", "echo $1", "sh", "{x}"]),
        json!(["sh", "-c", "echo $0", "{x}"]),
        json!(["sh", "-c", "echo \"$0\" | awk '{ print $1 }'", "{x}"]),
        json!(["sh", "-c", "echo $HOME", "{x}"]),
        json!(["sh", "-c", "echo $1", "sh"]),
        json!(["sh", "-c", "echo $1"]),
        json!(["sh", "run.sh", "{x}"]),
        json!(["fish", "-c", "echo $argv[1]", "{x}"]),
        json!(["echo", "-c", "$1", "{x}"]),
    ] {
        assert_eq!(warnings(&command), Vec::<String>::new(), "{command}");
    }
}

/// Where `sh` finds its script, by its own rules.
fn script(argv: &[String]) -> Option<&str> {
    let (mut at, mut is_script) = (1, false);
    while let Some(word) = argv.get(at) {
        at += 1;
        match word.as_str() {
            "--" | "-" => break,
            option if option.starts_with('-') => {
                is_script |= option.contains('c');
                at += option.matches('o').count();
            }
            _ => {
                at -= 1;
                break;
            }
        }
    }
    argv.get(at).map(String::as_str).filter(|_| is_script)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 5_000, ..ProptestConfig::default() })]

    #[test]
    fn whatever_an_author_writes_no_value_is_in_the_script(
        words in proptest::collection::vec(0usize..14, 0..6), place in 0usize..7, x in "VALUE|", has_y in any::<bool>(), v in any::<bool>(),
    ) {
        let word = |number: &usize| match number {
            0 => json!("-e"),
            1 => json!("-o"),
            2 => json!("-c"),
            3 => json!("-ec"),
            4 => json!("-co"),
            5 => json!("--"),
            6 => json!("-"),
            7 => json!("run"),
            8 => json!("{y}"),
            9 => json!("in{y}side"),
            10 => json!({"when": "v", "args": ["-c"]}),
            11 => json!({"when": "v", "args": ["run"]}),
            12 => json!({"when": "v", "args": ["-o"]}),
            _ => json!(["-o", "{y}"]),
        };
        let mut command = vec![json!("sh")];
        command.extend(words.iter().map(word));
        command.insert((1 + place).min(command.len()), json!("{x}"));
        let command = Value::Array(command);
        if let Ok(template) = compile(&command) {
            let values = json!({"x": x, "y": if has_y { json!("VALUE") } else { Value::Null }, "v": v});
            let argv = filled(&template, &values).expect("no value is refused");
            let script = script(&argv).unwrap_or("-");
            prop_assert!(!script.is_empty() && !script.contains("VALUE"), "{} became {:?}", command, argv);
        }
    }
}

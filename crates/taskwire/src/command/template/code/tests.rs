//! Tests of values in code, in all the ways that people write them.

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::command::template::{
    CommandTemplate, Part,
    tests::{compile, fill, filled, refused},
};

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
        json!(["fish", "--command={x}"]),
        json!(["bash", "-lc", "{x}"]),
        json!(["bash", "-ic", "ls {x}"]),
        json!(["taskset", "-c", "0-3", "sh", "-c", "{x}"]),
        json!(["ionice", "-c", "2", "nice", "-n", "5", "sh", "-c", "{x}"]),
        json!(["sudo", "-u", "www", "LANG=C", "sh", "-c", "{x}"]),
        json!(["stdbuf", "-oL", "sh", "-c", "{x}"]),
        json!(["chroot", "/srv", "sh", "-c", "{x}"]),
        json!(["unshare", "-r", "sh", "-c", "{x}"]),
        json!(["nsenter", "-t", "1", "-m", "sh", "-c", "{x}"]),
        json!(["xargs", "-I", "%", "sh", "-c", "{x}"]),
        json!(["find", ".", "-name", "*.c", "-exec", "sh", "-c", "{x}", ";"]),
        json!(["find", ".", "-exec", "rm", "{}", ";", "-execdir", "bash", "-c", "{x}", "+"]),
        json!(["flock", "/tmp/lock", "timeout", "5", "sh", "-c", "{x}"]),
    ] {
        let why = refused(&command);
        assert!(
            why.contains("a value in the script itself would be run as code: use \"$") && why.contains("as an argument after it"),
            "{command}: {why}"
        );
    }
    for command in [
        json!(["sh", "-{x}", "run.sh"]),
        json!(["bash", "--rcfile={x}"]),
        json!(["sh", "+{x}"]),
        json!(["perl", "-n{x}"]),
        json!(["node", "--{x}"]),
        json!(["find", ".", "-{x}"]),
        json!(["tar", "-{x}", "file"]),
        json!(["sed", "--ex{x}"]),
    ] {
        assert!(refused(&command).contains("a value inside an option"), "{command}");
    }
    for command in [
        json!(["sh", "{dashed}", "{x}"]),
        json!(["bash", "-x", "{y}{dashed}"]),
        json!(["python3", "{dashed}"]),
        json!(["sed", "s/a/b/", "{dashed}"]),
        json!(["git", "grep", "{dashed}"]),
        json!(["rsync", "{dashed}", "there"]),
    ] {
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
    // The author can paste the example: it is accepted, and does what it says.
    let pasted: Value = serde_json::from_str(example.strip_prefix("command = ").expect("a command")).expect("a list");
    let argv = fill(&pasted, &json!({"x": "$(id)", "y": "lib"})).expect("filled");
    assert_eq!(argv[2], "grep -r ''\"$1\"'' \"src/$2\" | awk '{ print }' | head \"$1\"");
    assert_eq!(argv[3..], ["bash", "$(id)", "lib"]);

    let why = refused(&json!(["sh", "-c", "{x}"]));
    assert!(why.ends_with("Where callers are meant to write the whole script, put a script of your own in between that runs it"), "{why}");
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

#[test]
fn values_that_other_programs_would_run_are_refused() {
    for (command, words) in [
        (json!(["python3", "-c", "print({x})"]), "use sys.argv[1] in the code and give {x} as an argument after it"),
        (json!(["/usr/bin/python3.12", "-Ic", "{x}"]), "sys.argv"),
        (json!(["python", "-c{x}"]), "sys.argv"),
        (json!(["perl", "-lne", "print if /{x}/"]), "$ARGV[0]"),
        (json!(["perl", "-e", "1", "-e", "{x}"]), "$ARGV[0]"),
        (json!(["perl", "-M{x}", "-e", "1"]), "$ARGV[0]"),
        (json!(["ruby", "-e", "puts '{x}'"]), "ARGV[0]"),
        (json!(["node", "-e", "{x}"]), "process.argv[1]"),
        (json!(["node", "-pe", "{x}"]), "process.argv[1]"),
        (json!(["node", "--eval={x}"]), "process.argv[1]"),
        (json!(["deno", "eval", "{x}"]), "Deno.args"),
        (json!(["php", "-r", "echo {x};"]), "$argv[1]"),
        (json!(["lua", "-e", "{x}"]), "as an argument of its own"),
        (json!(["Rscript", "-e", "{x}"]), "as an argument of its own"),
        (json!(["awk", "{x}", "file"]), "[\"-v\", \"value={x}\"]"),
        (json!(["awk", "-F", ",", "/{x}/ { print $2 }", "file"]), "\"-v\""),
        (json!(["gawk", "-e", "{x}"]), "\"-v\""),
        (json!(["gawk", "--sou={x}"]), "\"-v\""),
        (json!(["awk", "-v", "{x}", "prog", "{y}"]), "something before it is not given"),
        (json!(["sed", "-n", "/{x}/p", "file"]), "awk with"),
        (json!(["sed", "-i.bak", "-e", "s/a/{x}/", "file"]), "awk with"),
        (json!(["sed", "--expression=s/{x}/b/"]), "awk with"),
        (json!(["sed", "-es/{x}/b/"]), "awk with"),
        (json!(["watch", "-n", "1", "ls {x}"]), "[\"watch\", \"-x\""),
        (json!(["watch", "ls", "{x}"]), "[\"watch\", \"-x\""),
        (json!(["ssh", "host", "cat {x}"]), "read the value from standard input"),
        (json!(["ssh", "-p", "22", "host", "cat", "{x}"]), "read the value from standard input"),
        (json!(["su", "-c", "ls {x}", "user"]), "run the value as code"),
        (json!(["su", "-", "user", "-c", "{x}"]), "run the value as code"),
        (json!(["script", "-qec", "{x}", "/dev/null"]), "run the value as code"),
        (json!(["flock", "/tmp/lock", "-c", "{x}"]), "without a shell"),
        (json!(["env", "-S", "{x}"]), "write the command out"),
        (json!(["env", "--split-string={x}"]), "write the command out"),
        (json!(["parallel", "-j", "4", "convert {x}"]), "\":::\""),
        (json!(["tar", "-cf", "out.tar", "--checkpoint-action=exec={x}", "dir"]), "run the value as code"),
        (json!(["tar", "-I", "{x}", "-xf", "file"]), "run the value as code"),
        (json!(["rsync", "-ave", "{x}", "a", "b"]), "run the value as code"),
        (json!(["rsync", "--rsh={x}", "a", "b"]), "run the value as code"),
        (json!(["vim", "-c", "{x}", "file"]), "run the value as code"),
        (json!(["vim", "+{x}", "file"]), "run the value as code"),
        (json!(["gdb", "-batch", "-ex", "{x}"]), "run the value as code"),
        (json!(["make", "--eval={x}"]), "run the value as code"),
        (json!(["nix-shell", "-p", "jq", "--run", "{x}"]), "run the value as code"),
        (json!(["git", "submodule", "foreach", "{x}"]), "run the value as code"),
        (json!(["git", "fetch", "--upload-pack", "{x}"]), "run the value as code"),
        (json!(["busybox", "awk", "{x}"]), "\"-v\""),
        (json!(["docker", "exec", "box", "python", "-c", "{x}"]), "sys.argv"),
        (json!(["timeout", "5", "perl", "-e", "{x}"]), "$ARGV[0]"),
        (json!(["ssh", "host", "sudo", "sh", "-c", "{x}"]), "standard input"),
        (json!(["git", "-c", "{x}", "log"]), "could choose a setting"),
        (json!(["git", "-c", "user.{x}=y", "log"]), "could choose a setting"),
        (json!(["git", "-c", "alias.x=!{x}", "x"]), "the setting \"alias.x\""),
        (json!(["git", "-c", "core.sshCommand={x}", "fetch"]), "the setting \"core.sshCommand\""),
        (json!(["git", "clone", "--config", "core.pager={x}", "url"]), "the setting \"core.pager\""),
        (json!(["ssh", "-o", "ProxyCommand={x}", "host"]), "the setting \"ProxyCommand\""),
        (json!(["ssh", "-oProxyCommand={x}", "host"]), "the setting \"ProxyCommand\""),
        (json!(["env", "BASH_ENV={x}", "./run"]), "the variable BASH_ENV"),
        (json!(["sudo", "LD_PRELOAD={x}", "./run"]), "the variable LD_PRELOAD"),
        (json!(["env", "{x}"]), "must not choose it"),
        (json!(["timeout", "5", "{x}"]), "must not choose it"),
        (json!(["nice", "-n", "5", "./bin/{x}"]), "must not choose it"),
        (json!(["xargs", "{x}"]), "must not choose it"),
        (json!(["find", ".", "-exec", "{x}", "{}", ";"]), "must not choose it"),
        (json!(["chroot", "{list}"]), "must not choose it"),
    ] {
        let why = refused(&command);
        assert!(why.contains(words), "{command}: {why}");
    }
}

#[test]
fn values_that_are_only_looked_at_are_let_through_without_a_word() {
    for command in [
        json!(["git", "-c", "user.name={x}", "commit", "-m", "{y}"]),
        json!(["git", "commit", "-c", "{x}"]),
        json!(["git", "log", "--author={x}", "--", "{y}"]),
        json!(["git", "clone", "{x}", "{y}"]),
        json!(["grep", "-e", "{x}", "{y}"]),
        json!(["find", "{x}", "-name", "{y}"]),
        json!(["find", ".", "-name", "{x}", "-exec", "rm", "{}", ";"]),
        json!(["find", ".", "-exec", "grep", "-c", "{x}", "{}", "+"]),
        json!(["find", ".", "-exec", "sh", "-c", "cat \"$1\"", "sh", "{}", ";", "-name", "{x}"]),
        json!(["python3", "run.py", "-c", "{x}"]),
        json!(["python3", "-c", "import sys; print(sys.argv[1])", "{x}", "{dashed}"]),
        json!(["python3", "-m", "json.tool", "{x}"]),
        json!(["perl", "-e", "print $ARGV[0]", "--", "{x}"]),
        json!(["perl", "-I", "{x}", "run.pl"]),
        json!(["node", "run.js", "-e", "{x}"]),
        json!(["awk", ["-v", "x={x}"], "{ print x }", "{y}"]),
        json!(["awk", "-f", "prog.awk", "{x}", "{y}"]),
        json!(["sed", "s/a/b/", "{x}"]),
        json!(["sed", "-n", "-e", "1p", "{x}", "{list}"]),
        json!(["sed", "-i{x}", "s/a/b/", "file"]),
        json!(["watch", "-n", "{n}", "date"]),
        json!(["watch", "-x", "-n", "1", "ls", "{x}"]),
        json!(["ssh", "-p", "{n}", "{x}", "uptime"]),
        json!(["ssh", "-o", "ConnectTimeout={x}", "host"]),
        json!(["parallel", "convert", "-resize", "50%", ":::", "{list}"]),
        json!(["tar", "-czf", "{x}", "{y}"]),
        json!(["tar", "czf", "{x}", "-C", "{y}", "."]),
        json!(["rsync", "-av", "-e", "ssh", "{x}", "{y}"]),
        json!(["env", "NAME={x}", "./run"]),
        json!(["nice", ["-n", "{n}"], "./run", "{x}"]),
        json!(["timeout", "-k", "5", "10", "./run", "{x}"]),
        json!(["sudo", "-u", "{x}", "./run"]),
        json!(["docker", "run", "-e", "NAME={x}", "image", "{y}"]),
        json!(["docker", "exec", "box", "sh", "run.sh", "{x}"]),
        json!(["flock", "/tmp/lock", "./run", "{x}"]),
        json!(["curl", "-e", "{x}", "{y}"]),
        json!(["xargs", "-n", "1", "rm", "{x}"]),
        json!(["make", "-j{n}", "all"]),
    ] {
        let template = compile(&command).unwrap_or_else(|why| panic!("{command}: {why}"));
        assert_eq!(template.warnings(), [""; 0], "{command}");
    }
}

#[test]
fn a_value_that_cannot_be_code_may_stand_in_it() {
    let schema = json!({"type": "object", "properties": {
        "n": {"type": "integer"}, "m": {"type": ["number", "null"]}, "b": {"type": "boolean"}, "e": {"enum": ["a", "b"]},
        "l": {"type": "array", "items": {"type": "integer"}}, "s": {"type": "string"}, "o": {"type": "object"}, "any": {},
        "ls": {"type": "array", "items": {"type": "string"}}, "a": {"type": "array"}, "deep": {"$ref": "#/$defs/deep"},
    }, "$defs": {"deep": {"type": "array", "items": {"$ref": "#/$defs/deep"}}}});
    let compiles = |text: &str| CommandTemplate::compile(&["sed".into(), "-n".into(), Part::from(text)], &schema, &[]).is_ok();
    for name in ["n", "m", "b", "e", "l"] {
        assert!(compiles(&format!("{{{name}}}p")), "{name}");
    }
    for name in ["s", "o", "any", "ls", "a", "deep"] {
        assert!(!compiles(&format!("{{{name}}}p")), "{name}");
    }
    assert!(!compiles("{n},{s}p"), "one is enough");
}

#[test]
fn what_is_always_given_is_not_thought_to_be_absent() {
    let mut schema = json!({"type": "object", "properties": {"n": {"type": "string"}, "file": {"type": "string"}}, "required": ["n"]});
    let command = ["awk", "-v", "n={n}", "{ print n }", "{file}"].map(Part::from);
    assert!(CommandTemplate::compile(&command, &schema, &[]).is_ok());
    schema["required"] = json!([]);
    let why = CommandTemplate::compile(&command, &schema, &[]).map(drop).expect_err("without it the file is the program");
    assert!(why.contains("[\"--option\", \"{value}\"]"), "{why}");
    schema["properties"]["n"]["default"] = json!("1");
    assert!(CommandTemplate::compile(&command, &schema, &[]).is_ok());
    schema["properties"]["n"]["type"] = json!(["string", "null"]);
    assert!(CommandTemplate::compile(&command, &schema, &[]).is_err());
}

#[test]
fn what_can_only_be_suspected_is_warned_of() {
    for (command, words) in [
        (json!(["sh", "{x}"]), "chooses the file that sh runs"),
        (json!(["python3", "{x}"]), "chooses the file that python3 runs"),
        (json!(["python3", "-m", "{x}"]), "chooses the file that python3 runs"),
        (json!(["awk", "-f", "{x}", "file"]), "chooses the file that awk runs"),
        (json!(["node", "--require={x}", "run.js"]), "chooses the file that node runs"),
        (json!(["make", "{x}"]), "make expands the value"),
        (json!(["make", "all", "VERSION={x}"]), "make expands the value"),
        (json!(["psql", "-c", "{x}"]), "commands for a shell too"),
        (json!(["sqlite3", "file.db", "{x}"]), "commands for a shell too"),
        (json!(["mysql", "-e", "{x}"]), "commands for a shell too"),
        (json!(["sh", "-c", "eval \"$1\"", "sh", "{x}"]), "\"eval \\\"$1\\\"\": so the script runs a value"),
        (json!(["bash", "-c", "sh -c \"ls $1\"", "bash", "{x}"]), "so the script runs a value"),
        (json!(["sh", "-c", ". \"$1\"", "sh", "{x}"]), "so the script runs a value"),
        (json!(["sh", "-c", "echo `$1`", "sh", "{x}"]), "so the script runs a value"),
        (json!(["timeout", "5", "sh", "-c", "exec \"$@\"", "sh", "{x}"]), "so the script runs a value"),
        (json!(["find", ".", "-exec", "sh", "-c", "cat {}", ";"]), "find puts names that it finds into the script"),
        (json!(["xargs", "-I{}", "bash", "-c", "echo {}"]), "xargs puts names that it finds into the script"),
    ] {
        let warnings = compile(&command).unwrap_or_else(|why| panic!("{command}: {why}")).warnings();
        assert!(warnings.len() == 1 && warnings[0].contains(words), "{command}: {warnings:?}");
    }
}

#[test]
fn who_runs_standard_input_is_known() {
    let reader = |command: Value| {
        let template = compile(&command).unwrap_or_else(|why| panic!("{command}: {why}"));
        template.stdin_reader().map(|reader| (reader.program.to_owned(), reader.is_code))
    };
    for command in [
        json!(["sh"]),
        json!(["bash", "-x"]),
        json!(["bash", "-s", "{x}"]),
        json!(["sh", "-"]),
        json!(["sh", "/dev/stdin", "{x}"]),
        json!(["sh", {"when": "v", "args": ["run.sh"]}]),
        json!(["timeout", "5", "env", "A=b", "sh"]),
        json!(["docker", "exec", "-i", "box", "sh"]),
        json!(["ssh", "host", "sh"]),
    ] {
        assert!(reader(command.clone()).is_some_and(|(name, is_code)| is_code && ["sh", "bash"].contains(&name.as_str())), "{command}");
    }
    for (command, name) in [
        (json!(["/usr/bin/python3"]), "python3"),
        (json!(["python3", "-"]), "python3"),
        (json!(["python3", "-u", "-", "{x}"]), "python3"),
        (json!(["perl"]), "perl"),
        (json!(["node"]), "node"),
        (json!(["ssh", "-p", "22", "host"]), "ssh"),
        (json!(["at", "now"]), "at"),
        (json!(["parallel"]), "parallel"),
    ] {
        assert_eq!(reader(command.clone()), Some((name.to_owned(), true)), "{command}");
    }
    assert_eq!(reader(json!(["psql", "db"])), Some(("psql".to_owned(), false)));
    for command in [
        json!(["cat"]),
        json!(["sh", "run.sh"]),
        json!(["sh", "-c", "cat"]),
        json!(["python3", "run.py"]),
        json!(["python3", "-c", "import sys"]),
        json!(["python3", "-m", "json.tool"]),
        json!(["awk", "{ print }"]),
        json!(["sed", "s/a/b/"]),
        json!(["ssh", "host", "cat"]),
        json!(["xargs", "rm"]),
        json!(["docker", "exec", "-i", "box", "wc"]),
    ] {
        assert_eq!(reader(command.clone()), None, "{command}");
    }
}

#[test]
fn scripts_in_files_that_get_values_are_named() {
    let files = |command: Value| {
        let template = compile(&command).unwrap_or_else(|why| panic!("{command}: {why}"));
        template.scripts().iter().map(|script| script.file.to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(files(json!(["sh", "run.sh", "{x}"])), ["run.sh"]);
    assert_eq!(files(json!(["env", "A=b", "bash", "-x", "run.sh", "{x}"])), ["run.sh"]);
    assert_eq!(files(json!(["./run", "{x}"])), ["./run"]);
    assert_eq!(files(json!(["./run", "fixed"])), [""; 0]);
    assert_eq!(files(json!(["sh", "run.sh"])), [""; 0]);
    assert_eq!(files(json!(["python3", "run.py", "{x}"])), [""; 0]);
    let template = compile(&json!(["sh", "run.sh", "{x}"])).expect("usable");
    assert_eq!(template.scripts()[0].warnings("#!/bin/sh\nset -e\neval \"$1\"\n").len(), 1);
    assert_eq!(template.scripts()[0].warnings("cat \"$1\"\n"), [""; 0]);
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
        words in proptest::collection::vec(0usize..14, 0..6), position in 0usize..7, x in "VALUE|", has_y in any::<bool>(), v in any::<bool>(),
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
        command.insert((1 + position).min(command.len()), json!("{x}"));
        let command = Value::Array(command);
        if let Ok(template) = compile(&command) {
            let values = json!({"x": x, "y": if has_y { json!("VALUE") } else { Value::Null }, "v": v});
            let argv = filled(&template, &values).expect("no value is refused");
            let script = script(&argv).unwrap_or("-");
            prop_assert!(!script.is_empty() && !script.contains("VALUE"), "{} became {:?}", command, argv);
        }
    }
}

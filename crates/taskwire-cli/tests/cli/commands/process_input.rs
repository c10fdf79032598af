//! What a command gets: arguments, environment, working directory and input.

use std::{fs, os::unix::fs::PermissionsExt};

use serde_json::{Value, json};

use super::{
    command_server::{CommandServer, refusal, result_text},
    server_dir::{ServerDir, tool},
};

/// Prints its arguments, working directory, environment and input.
const SHOW: &str = r#"
import json, os, sys
print(json.dumps({"argv": sys.argv[1:], "cwd": os.getcwd(), "env": dict(os.environ), "stdin": sys.stdin.read()}))
"#;

fn server_dir(tools: &[String]) -> ServerDir {
    let server_dir = ServerDir::new(&tools.concat());
    server_dir.write("show.py", SHOW);
    server_dir
}

/// A tool that is run at once.
fn show(name: &str, keys: &str) -> String {
    tool(name, &format!("task = \"never\"\n{keys}"))
}

/// What the command printed of its arguments and environment.
#[track_caller]
fn observed(server: &CommandServer, tool: &str, arguments: Value) -> Value {
    let result = server.call(tool, arguments);
    assert_ne!(result["isError"], true, "{result}");
    serde_json::from_str(&result_text(&result)).unwrap_or_else(|error| panic!("{error}: {result}"))
}

#[track_caller]
fn why_not(server: &CommandServer, tool: &str, arguments: Value) -> String {
    let answer = server.send("tools/call", json!({"name": tool, "arguments": arguments}));
    refusal(&answer).unwrap_or_else(|| panic!("it should have been refused: {answer}"))
}

#[test]
fn parameters_can_be_optional_repeated_grouped_and_conditional() {
    let keys = r#"
command = ["python3", "show.py", "{path}", "--level={level}", ["--tag", "{tags}"], { when = "verbose", args = ["-v", "--loud"] }, "--name", "{{name}}", "{extra}"]
input = { path = { type = "string" }, level = { type = "integer", default = 3 }, tags = { type = "array", items = { type = "string" }, optional = true }, verbose = { type = "boolean", optional = true }, extra = { type = "object", optional = true } }
"#;
    let server_dir = server_dir(&[show("show", keys)]);
    let server = server_dir.start();
    let argv = |arguments| observed(&server, "show", arguments)["argv"].clone();
    assert_eq!(argv(json!({"path": "a b"})), json!(["a b", "--level=3", "--name", "{name}"]));
    let arguments = json!({"path": "a", "level": 7, "tags": ["x", "y z", ""], "verbose": true, "extra": {"a": [1]}});
    let expected = ["a", "--level=7", "--tag", "x", "--tag", "y z", "--tag", "", "-v", "--loud", "--name", "{name}", "{\"a\":[1]}"];
    assert_eq!(argv(arguments), json!(expected));
    assert_eq!(argv(json!({"path": "", "tags": [], "verbose": false})), json!(["", "--level=3", "--name", "{name}"]));
}

#[test]
fn a_null_for_what_is_optional_is_left_out() {
    let keys = r#"
command = ["python3", "show.py", "{path}", "--level={level}", ["--tag", "{tags}"], "--note={note}"]
input = { path = { type = "string" }, level = { type = "integer", default = 3 }, tags = { type = "array", items = { type = "string" }, optional = true }, note = { type = "string", optional = true } }
"#;
    let server_dir = server_dir(&[show("show", keys)]);
    let server = server_dir.start();
    let nulls = json!({"path": "a", "level": null, "tags": null, "note": null});
    assert_eq!(observed(&server, "show", nulls)["argv"], json!(["a", "--level=3"]), "a default counts, too");
    assert!(why_not(&server, "show", json!({"path": null})).contains("`path`"), "it is needed");
}

#[test]
fn a_value_that_begins_with_a_dash_is_refused_unless_it_is_allowed() {
    let command = "command = [\"python3\", \"show.py\", \"{value}\", \"--x={value}\"]\ninput = { value = { type = \"string\" } }";
    let number = "command = [\"python3\", \"show.py\", \"{value}\"]\ninput = { value = { type = \"integer\" } }";
    let list = "command = [\"python3\", \"show.py\", \"{value}\"]\ninput = { value = { type = \"array\", items = { type = \"string\" } } }";
    let allowed = format!("{command}\nallow_dash = [\"value\"]");
    let server_dir = server_dir(&[show("strict", command), show("number", number), show("list", list), show("lax", &allowed)]);
    let server = server_dir.start();
    for value in ["-", "--", "-x", "--help", "-\n"] {
        let why = why_not(&server, "strict", json!({"value": value}));
        assert!(why.contains("`value`") && why.contains("dash"), "{why}");
        assert_eq!(observed(&server, "lax", json!({"value": value}))["argv"], json!([value, format!("--x={value}")]));
    }
    assert!(why_not(&server, "number", json!({"value": -1})).contains("`value`"));
    assert!(why_not(&server, "list", json!({"value": ["a", "-b"]})).contains("`value/1`"));
    assert_eq!(observed(&server, "strict", json!({"value": "a-"}))["argv"], json!(["a-", "--x=a-"]));
}

#[test]
fn a_call_that_does_not_fit_is_told_which_field_and_runs_nothing() {
    let keys = "command = [\"sh\", \"-c\", \"echo >> ran\"]\ninput = { count = { type = \"integer\", minimum = 1 }, name = { type = \"string\" } }";
    let server_dir = server_dir(&[show("strict", keys)]);
    let server = server_dir.start();
    for (arguments, field) in [
        (json!({"name": "a"}), "count"),
        (json!({"count": 0, "name": "a"}), "count"),
        (json!({"count": "1", "name": "a"}), "count"),
        (json!({"count": 1, "name": 2}), "name"),
        (json!({"count": 1, "name": "a", "nam": "b"}), "nam"),
    ] {
        let why = why_not(&server, "strict", arguments);
        assert!(why.contains(field), "{field}: {why}");
    }
    assert!(fs::metadata(server_dir.path("ran")).is_err(), "it ran all the same");
}

#[test]
fn a_command_runs_beside_its_configuration_or_where_it_is_told() {
    let server_dir = server_dir(&[
        show("here", "command = [\"python3\", \"show.py\"]"),
        show("below", "command = [\"python3\", \"../show.py\"]\ncwd = \"below\""),
        show("root", "command = [\"python3\", \"@DIR@/show.py\"]\ncwd = \"/\""),
        show("script", "command = [\"./script.sh\"]\ncwd = \"below\""),
    ]);
    fs::create_dir(server_dir.path("below")).expect("a directory");
    server_dir.write("script.sh", "#!/bin/sh\nexec python3 ../show.py\n");
    fs::set_permissions(server_dir.path("script.sh"), fs::Permissions::from_mode(0o755)).expect("a file of ours");
    let server = server_dir.start();
    let real = |name: &str| fs::canonicalize(server_dir.path(name)).expect("a directory").to_str().expect("plain text").to_owned();
    for (tool, cwd) in [("here", real("")), ("below", real("below")), ("root", "/".to_owned()), ("script", real("below"))] {
        assert_eq!(observed(&server, tool, json!({}))["cwd"], cwd, "{tool}");
    }
}

#[test]
fn the_tokens_of_callers_are_not_to_be_found_by_a_command() {
    let auth = "[auth]\ntokens = [{ token = \"env:WORD_OF_THE_SERVER\", caller = \"me\" }]\n";
    let script = "command = [\"sh\", \"-c\", 'tr \"\\0\" \"\\n\" < /proc/$PPID/environ; env; echo end']";
    let server_dir = server_dir(&[show("looks", script), auth.to_owned()]);
    let server = server_dir.start().with_token("heard");
    let seen = result_text(&server.call("looks", json!({})));
    assert!(seen.contains("PATH=") && seen.ends_with("end\n"), "{seen}");
    assert!(!seen.contains("WORD_OF_THE_SERVER"), "{seen}");
}

#[test]
fn the_environment_is_inherited_narrowed_and_added_to() {
    let command = "command = [\"python3\", \"show.py\"]";
    let server_dir = server_dir(&[
        show("all", command),
        show("few", &format!("{command}\ninherit_env = false")),
        show("named", &format!("{command}\ninherit_env = [\"PATH\", \"WORD_OF_THE_SERVER\"]")),
        show(
            "more",
            "command = [\"python3\", \"show.py\"]\ninput = { who = { type = \"string\", optional = true } }\n\
             env = { GREETING = \"hello {who}\", WORD_OF_THE_SERVER = \"changed\", BRACES = \"{{x}}\" }",
        ),
        show(
            "unset",
            "command = [\"python3\", \"show.py\"]\ninput = { who = { type = \"string\", optional = true } }\n\
             env = { WORD_OF_THE_SERVER = \"{who}\" }",
        ),
    ]);
    let server = server_dir.start();
    let env = |tool: &str, arguments: Value| observed(&server, tool, arguments)["env"].clone();
    let all = env("all", json!({}));
    assert_eq!(all["WORD_OF_THE_SERVER"], "heard");
    let few = env("few", json!({}));
    assert_eq!((&few["WORD_OF_THE_SERVER"], few["PATH"].is_string()), (&Value::Null, true), "{few}");
    let named = env("named", json!({}));
    assert_eq!((&named["WORD_OF_THE_SERVER"], &named["HOME"]), (&json!("heard"), &Value::Null), "{named}");
    let more = env("more", json!({"who": "$(id) you"}));
    assert_eq!(
        (&more["GREETING"], &more["WORD_OF_THE_SERVER"], &more["BRACES"]),
        (&json!("hello $(id) you"), &json!("changed"), &json!("{x}"))
    );
    assert_eq!(env("more", json!({}))["GREETING"], Value::Null, "what needs a parameter that is not there is left out");
    assert_eq!(env("unset", json!({}))["WORD_OF_THE_SERVER"], Value::Null, "nor is it what the server has under that name");
    for env in [all, few, named, more] {
        assert!(env["TASKWIRE_TASK"].as_str().is_some_and(|id| !id.is_empty()), "{env}");
        assert!(env["TASKWIRE_TASK_DIR"].as_str().is_some_and(|dir| dir.starts_with('/')), "{env}");
        let own = env!("CARGO_BIN_EXE_taskwire").rsplit_once('/').expect("a path").0;
        assert!(env["PATH"].as_str().is_some_and(|path| path.split(':').any(|dir| dir == own)), "`taskwire` is found: {env}");
    }
}

#[test]
fn tokens_of_the_server_are_not_for_commands() {
    let auth = "[auth]\ntokens = [{ token = \"env:WORD_OF_THE_SERVER\", caller = \"me\" }]\n";
    let server_dir = ServerDir::new(&format!("{auth}{}", tool("show", "command = [\"python3\", \"show.py\"]")));
    server_dir.write("show.py", SHOW);
    let server = server_dir.start();
    let user = crate::user::User::new();
    let ended = user.run(&["call", &server.url(), "show", "--token", "heard"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.out.contains("TASKWIRE_TASK") && !ended.out.contains("WORD_OF_THE_SERVER"), "{}", ended.out);
}

#[test]
fn the_input_is_a_parameter_or_empty() {
    let server_dir = server_dir(&[
        show("fed", "command = [\"python3\", \"show.py\"]\ninput = { text = { type = \"string\" } }\nstdin = \"<{text}>\\n\""),
        show("hungry", "command = [\"python3\", \"show.py\"]"),
    ]);
    let server = server_dir.start();
    let long = "ünd\n".repeat(200_000);
    for text in ["", "a\nb", "-x", long.as_str()] {
        let result = server.call("fed", json!({"text": text}));
        // The output is larger than a result may be, so only its length is compared.
        if text.len() < 1000 {
            let result: Value = serde_json::from_str(&result_text(&result)).expect("JSON");
            assert_eq!(result["stdin"], format!("<{text}>\n"));
        } else {
            assert_ne!(result["isError"], true, "{result}");
        }
    }
    assert_eq!(observed(&server, "hungry", json!({}))["stdin"], "", "it does not wait for anybody");
}

#[test]
fn a_command_that_cannot_be_run_says_which_and_why() {
    let server_dir = server_dir(&[
        show("missing", "command = [\"no-such-program-anywhere\"]"),
        show("forbidden", "command = [\"./show.py\"]"),
        show("nowhere", "command = [\"python3\", \"show.py\"]\ncwd = \"nowhere\""),
    ]);
    std::fs::create_dir(server_dir.path("nowhere")).expect("a directory");
    let server = server_dir.start();
    assert!(why_not(&server, "missing", json!({})).contains("no-such-program-anywhere"));
    assert!(why_not(&server, "forbidden", json!({})).contains("show.py"), "it is no program");
    std::fs::remove_dir(server_dir.path("nowhere")).expect("removed");
    assert!(why_not(&server, "nowhere", json!({})).contains("`cwd`"), "it says what is missing");
    server_dir.is_quiet();
}

#[test]
fn callers_are_told_names_and_no_paths_which_are_in_the_log() {
    let tools = "[[tool]]\nname = \"plain\"\ncommand = [\"@DIR@/bin/nope\"]\ntask = \"never\"\n".to_owned();
    let server_dir = server_dir(&[
        tools,
        show("missing", "command = [\"./bin/missing\"]"),
        show("nowhere", "command = [\"@DIR@/bin/nowhere\"]\ncwd = \"nowhere\""),
        tool("always", "command = [\"./bin/always\"]\ntask = \"always\""),
    ]);
    std::fs::create_dir(server_dir.path("nowhere")).expect("a directory");
    let server = server_dir.start();
    std::fs::remove_dir(server_dir.path("nowhere")).expect("removed");
    let (here, list) = (server_dir.path(""), server.ask("tools/list", json!({})).to_string());
    assert!(list.contains("Runs `nope`") && !list.contains(&here), "{list}");
    for (tool, name) in [("plain", "`nope`"), ("missing", "`missing`"), ("nowhere", "`nowhere`")] {
        let why = why_not(&server, tool, json!({}));
        assert!(why.contains(&format!("cannot run {name}")) && !why.contains(&here), "{why}");
    }
    let task = server.ended(&server.begin("always", json!({}))).to_string();
    assert!(task.contains("cannot run `always`") && !task.contains(&here), "{task}");
    server_dir.is_quiet();
    let log = server_dir.read("server.log");
    let said =
        |name: &str| log.lines().any(|line| line.contains("a command could not be started") && line.contains(&server_dir.path(name)));
    assert!(said("bin/nope") && said("bin/missing") && said("nowhere") && said("bin/always"), "{log}");
}

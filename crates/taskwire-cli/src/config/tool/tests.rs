//! Every key of a tool, and everything that can be wrong with one: with its line and its column.

use std::{fs, time::Duration};

use super::*;
use crate::{config::Config, testing::TempDir};

/// A directory with a configuration in it.
struct Dir {
    path: PathBuf,
    _temp: TempDir,
}

impl Dir {
    fn new(name: &str) -> Self {
        let temp = TempDir::new();
        let path = temp.path().join(name);
        fs::create_dir(&path).expect("a directory");
        Self { path, _temp: temp }
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path.join(name), text).expect("a file");
    }

    fn read(&self, text: &str) -> anyhow::Result<Vec<Definition>> {
        self.write("taskwire.toml", text);
        Config::read(&self.path.join("taskwire.toml"))?.definitions(&[])
    }
}

/// The one tool of a configuration.
#[track_caller]
fn tool(name: &str, text: &str) -> Definition {
    let mut definitions = Dir::new(name).read(text).unwrap_or_else(|error| panic!("{error:#}"));
    assert_eq!(definitions.len(), 1);
    definitions.remove(0)
}

/// A tool that runs `true`, with these keys more, and what is wrong with it.
#[track_caller]
fn refusal(name: &str, keys: &str) -> String {
    refusal_of(name, &format!("[[tool]]\nname = \"t\"\ncommand = [\"true\"]\n{keys}"))
}

#[track_caller]
fn refusal_of(name: &str, text: &str) -> String {
    let dir = Dir::new(name);
    let error = format!("{:#}", dir.read(text).expect_err(text));
    let file = dir.path.join("taskwire.toml").display().to_string();
    assert!(error.starts_with(&format!("{file} cannot be used: line ")), "{error}");
    error.replace(&format!("{}/", dir.path.display()), "")
}

/// Refused at this line and column, in words that have this.
#[track_caller]
fn is_at(error: &str, line: usize, column: usize, words: &str) {
    assert!(error.starts_with(&format!("taskwire.toml cannot be used: line {line}, column {column}\n")), "{error}");
    assert!(error.contains(words), "`{words}` in: {error}");
    assert!(error.contains('^'), "the place is marked: {error}");
}

#[test]
fn a_tool_of_two_keys_has_the_defaults() {
    let dir = Dir::new("defaults");
    let definition = dir.read("[[tool]]\nname = \"t\"\ncommand = [\"true\"]\n").expect("valid").remove(0);
    let mut expected = Definition::new("t", "Runs `true`", vec![Part::One("true".to_owned())]);
    expected.cwd.clone_from(&dir.path);
    assert_eq!(format!("{definition:#?}"), format!("{expected:#?}"));
    for command in ["/opt/secret/true", "./true", "bin/true"] {
        let definition = dir.read(&format!("[[tool]]\nname = \"t\"\ncommand = [\"{command}\"]\n")).expect("valid").remove(0);
        assert_eq!(definition.description, "Runs `true`", "where it is, callers are not told");
    }
}

#[test]
fn every_key_arrives() {
    let dir = Dir::new("every");
    fs::create_dir(dir.path.join("sub")).expect("a directory");
    dir.write("out.json", r#"{"type": "object"}"#);
    let text = r#"
        inline_bytes = 5000
        [[tool]]
        name = "all.of-it_1"
        title = "All"
        description = "Everything"
        command = ["prog", "{a}", ["--b", "{b}"], { when = "c", args = ["--c"] }]
        input = { a = { type = "string" }, b = { type = "array", default = [] }, c = { type = "boolean", optional = true } }
        output_schema = "out.json"
        annotations = { readOnlyHint = true }
        allow_dash = ["a"]
        env = { LANG = "C", X = "{a}" }
        inherit_env = ["PATH"]
        cwd = "sub"
        stdin = "{a}"
        output = "jsonl"
        stderr = "drop"
        pty = true
        leftovers = "keep"
        progress = '(?<percent>\d+)%'
        redact = ["secret"]
        ok_codes = [0, 1]
        concurrency = 3
        calls_per_second = 4
        tasks_max = 5
        tasks_per_caller_max = 6
        kill_after = "2s"
        inline_bytes = 4096
        journal_bytes = 1048576
        task = "always"
        promote_after = "3s"
        timeout = "10m"
        retention = "2h"
        overflow = "fail"
        on_interrupt = "retry"
        dedupe = true
        linger = "forever"
        immediate_response = "Working on it"
    "#;
    let definition = dir.read(text).unwrap_or_else(|error| panic!("{error:#}")).remove(0);
    let text = |text: &str| text.to_owned();
    let mut expected = Definition::new(
        "all.of-it_1",
        "Everything",
        vec![
            Part::One(text("prog")),
            Part::One(text("{a}")),
            Part::Group(vec![text("--b"), text("{b}")]),
            Part::When { when: text("c"), args: vec![text("--c")] },
        ],
    );
    expected.title = Some(text("All"));
    expected.input_schema = json!({
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "array", "default": []}, "c": {"type": "boolean"}},
        "required": ["a"],
        "additionalProperties": false,
    });
    expected.output_schema = Some(json!({"type": "object"}));
    expected.annotations = Some(json!({"readOnlyHint": true}));
    expected.allow_dash = vec![text("a")];
    expected.env = BTreeMap::from([(text("LANG"), text("C")), (text("X"), text("{a}"))]);
    expected.inherit_env = Inherit::Only(vec![text("PATH")]);
    expected.cwd = dir.path.join("sub");
    expected.stdin = Some(text("{a}"));
    (expected.output, expected.stderr, expected.leftovers) = (Format::Jsonl, Stderr::Drop, Leftovers::Keep);
    expected.progress = Some(text(r"(?<percent>\d+)%"));
    expected.redact = vec![text("secret")];
    expected.ok_codes = vec![0, 1];
    (expected.concurrency, expected.kill_after) = (3, Duration::from_secs(2));
    (expected.inline_bytes, expected.journal_bytes) = (4096, 1024 * 1024);
    (expected.policy.calls_per_second, expected.policy.tasks_max, expected.policy.tasks_per_caller_max) = (Some(4), Some(5), Some(6));
    expected.policy.task = TaskMode::Always;
    expected.policy.promote_after = Some(Duration::from_secs(3));
    expected.policy.timeout = Some(Duration::from_secs(600));
    expected.policy.retention = Some(Duration::from_secs(7200));
    (expected.pty, expected.policy.overflow) = (true, Overflow::Fail);
    expected.policy.dedupe = true;
    expected.policy.linger = Some(Duration::MAX);
    expected.policy.immediate_response = Some("Working on it".into());
    expected.on_interrupt = OnInterrupt::Retry;
    assert_eq!(format!("{definition:#?}"), format!("{expected:#?}"));
}

#[test]
fn no_key_is_without_a_test() {
    let tests = include_str!("tests.rs");
    let table = include_str!("../tool.rs");
    let (_, fields) = table.split_once("struct ToolTable {").expect("the table");
    let (fields, _) = fields.split_once("\n}").expect("its end");
    let names = fields.lines().filter_map(|line| line.trim().trim_start_matches("pub(crate) ").split_once(": ").map(|(name, _)| name));
    let names: Vec<&str> = names.filter(|name| !name.contains(['#', '/'])).collect();
    assert!(names.len() > 30, "{names:?}");
    for name in names {
        assert!(tests.contains(&format!("{name} = ")), "{name}");
    }
}

#[test]
fn what_is_left_out_comes_from_the_file() {
    let text = "inline_bytes = 5000\n[[tool]]\nname = \"t\"\ncommand = [\"true\"]\n";
    assert_eq!(tool("inline", text).inline_bytes, 5000);
    let jsonl = tool("jsonl", "[[tool]]\nname = \"t\"\ncommand = [\"true\"]\noutput = \"jsonl\"\n");
    assert_eq!(jsonl.stderr, Stderr::Apart, "lines of JSON cannot have other text between them");
}

#[test]
fn each_mode_has_its_word() {
    for (word, mode) in
        [("never", TaskMode::Never), ("auto", TaskMode::Auto), ("always", TaskMode::Always), ("required", TaskMode::Required)]
    {
        assert_eq!(tool("mode", &format!("[[tool]]\nname = \"t\"\ncommand = [\"true\"]\ntask = \"{word}\"\n")).policy.task, mode);
    }
}

#[test]
fn a_parameter_is_required_unless_it_says_otherwise_or_has_a_default() {
    let text = "[[tool]]\nname = \"t\"\ncommand = [\"true\"]\n[tool.input]\na = { type = \"string\" }\nb = { type = \"string\", optional = true }\nc = { type = \"integer\", default = 3 }\nd = { type = \"string\", optional = false }\n";
    let expected = json!({
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "string"}, "c": {"type": "integer", "default": 3}, "d": {"type": "string"}},
        "required": ["a", "d"],
        "additionalProperties": false,
    });
    assert_eq!(tool("shorthand", text).input_schema, expected);
    let none = tool("none", "[[tool]]\nname = \"t\"\ncommand = [\"true\"]\ninput = {}\n");
    assert_eq!(none.input_schema, json!({"type": "object", "properties": {}, "additionalProperties": false}));
}

#[test]
fn a_date_in_a_schema_is_text() {
    let text = "[[tool]]\nname = \"t\"\ncommand = [\"true\"]\n[tool.input]\na = { type = \"string\", default = 2026-07-28, examples = [2026-07-28] }\n";
    let definition = tool("date", text);
    let schema = &definition.input_schema["properties"]["a"];
    assert_eq!((&schema["default"], &schema["examples"]), (&json!("2026-07-28"), &json!(["2026-07-28"])));
}

#[test]
fn schemas_are_inline_or_in_files_beside_the_configuration() {
    let dir = Dir::new("files");
    dir.write("in.json", r#"{"type": "object", "properties": {"x": {"type": "string"}}}"#);
    let definition =
        dir.read("[[tool]]\nname = \"t\"\ncommand = [\"echo\", \"{x}\"]\ninput_schema = \"in.json\"\n").expect("valid").remove(0);
    assert_eq!(definition.input_schema["properties"]["x"]["type"], "string");
    let inline =
        "[[tool]]\nname = \"t\"\ncommand = [\"true\"]\ninput_schema = { type = \"object\" }\noutput_schema = { type = \"array\" }\n";
    let definition = dir.read(inline).expect("valid").remove(0);
    assert_eq!((definition.input_schema, definition.output_schema), (json!({"type": "object"}), Some(json!({"type": "array"}))));
    dir.write("bad.json", "{\n\"type\": object}");
    let error =
        format!("{:#}", dir.read("[[tool]]\nname = \"t\"\ncommand = [\"true\"]\ninput_schema = \"bad.json\"\n").expect_err("no JSON"));
    assert!(error.contains("line 4, column 16\n") && error.contains("bad.json is not JSON: ") && error.contains("line 2"), "{error}");
    is_at(&refusal("missing", "input_schema = \"none.json\"\n"), 4, 16, "cannot read none.json: ");
    is_at(&refusal("both", "input = {}\ninput_schema = \"none.json\"\n"), 5, 16, "`input` or `input_schema`");
    is_at(&refusal("kind", "output_schema = 3\n"), 4, 17, "`output_schema` is the name of a JSON file");
}

#[test]
fn places_are_meant_from_where_the_file_is() {
    let dir = Dir::new("{places}");
    fs::create_dir(dir.path.join("sub")).expect("a directory");
    let program = |command: &str| {
        let definition = dir.read(&format!("[[tool]]\nname = \"t\"\ncommand = [\"{command}\", \"./x\"]\n")).expect("valid").remove(0);
        assert_eq!(definition.command[1], Part::One("./x".to_owned()), "only the program");
        match &definition.command[0] {
            Part::One(program) => program.clone(),
            other => panic!("{other:?}"),
        }
    };
    let here = dir.path.display().to_string().replace("{places}", "{{places}}");
    assert_eq!(program("./run.sh"), format!("{here}/run.sh"));
    assert_eq!(program("bin/run"), format!("{here}/bin/run"));
    assert_eq!(program("../run"), format!("{here}/../run"));
    assert_eq!(program("/bin/true"), "/bin/true");
    assert_eq!(program("wc"), "wc", "what has no slash is looked for as usual");
    let cwd = |cwd: &str| dir.read(&format!("[[tool]]\nname = \"t\"\ncommand = [\"true\"]\n{cwd}")).expect("valid").remove(0).cwd;
    assert_eq!(cwd(""), dir.path);
    assert_eq!(cwd("cwd = \"sub\""), dir.path.join("sub"));
    assert_eq!(cwd("cwd = \"/\""), Path::new("/"));
    is_at(&refusal("cwd", "cwd = \"nowhere\"\n"), 4, 7, "nowhere is not a directory");
}

#[test]
fn the_environment_is_inherited_as_it_says() {
    let inherit = |keys: &str| tool("inherit", &format!("[[tool]]\nname = \"t\"\ncommand = [\"true\"]\n{keys}")).inherit_env;
    assert_eq!(inherit(""), Inherit::All);
    assert_eq!(inherit("inherit_env = true"), Inherit::All);
    assert_eq!(inherit("inherit_env = []"), Inherit::Only(Vec::new()));
    let bare = ["PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "TMPDIR"].map(ToOwned::to_owned).to_vec();
    assert_eq!(inherit("inherit_env = false"), Inherit::Only(bare));
    is_at(&refusal("some", "inherit_env = [\"A\", 1]\n"), 4, 21, "true, false, or a list");
    is_at(&refusal("text", "inherit_env = \"PATH\"\n"), 4, 15, "true, false, or a list");
}

#[test]
fn no_command_sees_the_variables_that_tokens_come_from() {
    let text = "[auth]\ntokens = [{ token = \"env:A_TOKEN\", caller = \"a\" }, { token = \"plain\", caller = \"b\" }]\n[[tool]]\nname = \"t\"\ncommand = [\"true\"]\n";
    assert_eq!(tool("secrets", text).remove_env, ["A_TOKEN"]);
    let dir = Dir::new("more_secrets");
    dir.write("taskwire.toml", text);
    let config = Config::read(&dir.path.join("taskwire.toml")).expect("valid");
    let secrets = ["OLD".to_owned(), "A_TOKEN".to_owned()];
    assert_eq!(config.definitions(&secrets).expect("valid")[0].remove_env, ["A_TOKEN", "OLD"], "those of an earlier file neither");
}

#[test]
fn a_name_is_for_one_tool() {
    let twice = "[[tool]]\nname = \"t\"\ncommand = [\"true\"]\n\n[[tool]]\nname = \"t\"\ncommand = [\"true\"]\n";
    is_at(&refusal_of("twice", twice), 6, 8, "there is a tool `t` already");
    for name in ["task_wait", "task_output", "task_answer", "task_cancel", "task_list"] {
        let own = format!("[[tool]]\nname = \"{name}\"\ncommand = [\"true\"]\n");
        is_at(&refusal_of("own", &own), 2, 8, "a tool of the server's own");
    }
    let demo = "demo = true\n[[tool]]\nname = \"bake\"\ncommand = [\"true\"]\n";
    is_at(&refusal_of("demo", demo), 3, 8, "one of the demo tools");
    assert_eq!(tool("no_demo", &demo.replace("demo = true", "")).name, "bake");
    is_at(&refusal_of("letters", "[[tool]]\nname = \"a b\"\ncommand = [\"true\"]\n"), 2, 8, "A-Z a-z 0-9");
}

#[test]
fn what_is_missing_is_missed_in_its_tool() {
    let text = "[[tool]]\nname = \"t\"\ncommand = [\"true\"]\n\n[[tool]]\nname = \"u\"\n";
    is_at(&refusal_of("missing_command", text), 5, 1, "missing field `command`");
    is_at(&refusal_of("missing_name", "\n[[tool]]\ncommand = [\"true\"]\n"), 2, 1, "missing field `name`");
}

#[test]
fn an_unknown_key_names_the_nearest() {
    let error = refusal("unknown", "timout = \"1s\"\n");
    is_at(&error, 4, 1, "there is no key `timout` here: did you mean `timeout`?");
    assert!(error.lines().count() < 7, "and not all that there are: {error}");
    assert!(refusal("commnd", "kill_aftr = \"1s\"\n").contains("did you mean `kill_after`?"));
}

#[test]
fn a_value_of_the_wrong_kind_is_marked() {
    for (name, keys, column, words) in [
        ("k1", "concurrency = \"3\"", 15, "a whole number"),
        ("k2", "timeout = \"soon\"", 11, "not a time span"),
        ("k3", "output = \"xml\"", 10, "`jsonl`"),
        ("k4", "stderr = \"both\"", 10, "`apart`"),
        ("k5", "leftovers = 1", 13, "a word, in quotes"),
        ("k6", "task = \"sometimes\"", 8, "`required`"),
        ("k7", "on_interrupt = \"resume\"", 16, "`retry`"),
        ("k8", "overflow = \"drop\"", 12, "`drop_oldest`"),
        ("k9", "dedupe = \"yes\"", 10, "true or false"),
        ("k10", "ok_codes = [\"0\"]", 13, "a whole number"),
        ("k11", "env = { A = 1 }", 13, "write A = \"1\""),
        ("k12", "title = 1", 9, "write title = \"1\""),
        ("k13", "redact = \"x\"", 10, "redact = [\"x\"]"),
        ("k14", "journal_bytes = -1", 17, "from 0 up, not -1"),
        ("k15", "retention = \"forever\"", 13, "only the server's own `retention`"),
        ("k16", "retention = \"never\"", 13, "nor \"forever\""),
        ("k17", "timeout = 60", 11, "write \"60s\""),
    ] {
        is_at(&refusal(name, keys), 4, column, words);
    }
}

#[test]
fn a_value_that_cannot_be_used_is_marked() {
    for (name, keys, column) in [
        ("v1", "concurrency = 0", 15),
        ("v2", "kill_after = \"11m\"", 14),
        ("v3", "inline_bytes = 255", 16),
        ("v4", "ok_codes = []", 12),
        ("v5", "progress = \"(\"", 12),
        ("v6", "progress = \"no groups\"", 12),
        ("v7", "redact = [\"(\"]", 10),
        ("v8", "allow_dash = [\"nobody\"]", 14),
        ("v9", "env = { \"A=B\" = \"1\" }", 7),
        ("v10", "stdin = \"{nobody}\"", 9),
        ("v11", "input = { a = { type = \"strin\" } }", 24),
        ("v12", "output_schema = { type = \"strin\" }", 26),
        ("v13", "input_schema = { type = \"array\" }", 16),
        ("v14", "timeout = \"0s\"", 11),
        ("v15", "retention = \"10ms\"", 13),
        ("v16", "journal_bytes = 65535", 17),
    ] {
        is_at(&refusal(name, keys), 4, column, "");
    }
    let jsonl = refusal("together", "output = \"jsonl\"\nstderr = \"together\"\n");
    is_at(&jsonl, 5, 10, "");
    let default = "inline_bytes = 10\n[[tool]]\nname = \"t\"\ncommand = [\"true\"]\n";
    is_at(&refusal_of("inline_default", default), 1, 16, "256");
}

#[test]
fn an_element_of_a_command_is_marked() {
    let command = |name: &str, elements: &str| refusal_of(name, &format!("[[tool]]\nname = \"t\"\ncommand = [{elements}]\n"));
    is_at(&command("c1", "\"head\", 5"), 3, 20, "arguments are text: write \"5\"");
    is_at(&command("c2", "\"head\", true"), 3, 20, "an element of `command` is");
    is_at(&command("c3", "\"head\", [\"-n\", 5]"), 3, 20, "an element of `command` is");
    is_at(&command("c4", "\"head\", { when = \"x\" }"), 3, 20, "an element of `command` is");
    is_at(&command("c5", "\"head\", { when = \"x\", args = [], more = 1 }"), 3, 20, "an element of `command` is");
    is_at(&command("c6", "\"head\", \"{nobody}\""), 3, 11, "nobody");
    is_at(&command("c7", ""), 3, 11, "");
    let shell = "[[tool]]\nname = \"t\"\ninput = { x = { type = \"string\" } }\ncommand = [\"sh\", \"-c\", \"echo {x}\"]\n";
    is_at(&refusal_of("shell", shell), 4, 11, "");
}

#[test]
fn a_parameter_that_cannot_be_used_is_marked() {
    is_at(&refusal("p1", "input = { path = \"string\" }\n"), 4, 18, "`path` needs a schema, such as path = { type = \"string\"");
    is_at(&refusal("p2", "input = { path = { optional = 1 } }\n"), 4, 31, "`optional` is true or false");
    is_at(&refusal("p3", "[tool.input.path]\ntype = \"string\"\nrequired = true\n"), 6, 12, "`optional = true`");
}

#[test]
fn a_schema_that_cannot_be_used_names_the_parameter_and_the_key() {
    let words = "`p`: `type` cannot be \"strng\": it is string, integer, ";
    is_at(&refusal("s1", "input = { p = { type = \"strng\" } }\n"), 4, 24, words);
    is_at(&refusal("s2", "[tool.input.p]\ntype = \"strng\"\n"), 5, 8, words);
    is_at(&refusal("s3", "[tool.input_schema]\ntype = \"object\"\nproperties.p.type = \"strng\"\n"), 6, 21, words);
    let dir = Dir::new("s4");
    dir.write("in.json", r#"{"type": "object", "properties": {"p": {"type": "strng"}}}"#);
    let error = dir.read("[[tool]]\nname = \"t\"\ncommand = [\"true\"]\ninput_schema = \"in.json\"\n").expect_err("no schema");
    let error = format!("{error:#}");
    assert!(error.contains("line 4, column 16\n") && error.contains(words), "{error}");
}

#[test]
fn a_parameter_that_cannot_stand_in_braces_is_refused_where_it_does() {
    let text = "[[tool]]\nname = \"t\"\ninput = { \"p q\" = { type = \"string\" } }\ncommand = [\"ls\", \"{p q}\"]\n";
    is_at(&refusal_of("braces", text), 4, 11, "the name of the parameter \"p q\" cannot stand in braces");
}

#[test]
fn what_is_probably_not_meant_so_is_said_with_the_file_and_the_tool() {
    let dir = Dir::new("warnings");
    let text = "[[tool]]\nname = \"t\"\ncommand = [\"./nope\"]\ninput = { a = { type = \"string\" } }\n\n[[tool]]\nname = \"u\"\ndescription = \"Does it all\"\ncommand = [\"sh\"]\n";
    dir.write("taskwire.toml", text);
    let file = dir.path.join("taskwire.toml");
    let config = Config::read(&file).expect("valid");
    let warnings = config.warnings(&config.definitions(&[]).expect("usable"));
    let tool = format!("warning: {}: tool `t`: ", file.display());
    assert_eq!(warnings.len(), 3, "{warnings:?}");
    assert!(warnings[2].starts_with(&format!("{tool}its description says only which program it runs")), "{warnings:?}");
    assert!(warnings[0].starts_with(&format!("{tool}nothing uses the parameter `a`")), "{warnings:?}");
    assert_eq!(warnings[1], format!("{tool}the program {} is not there", dir.path.join("nope").display()));
}

//! Tests of definitions: what they may say, and what a call makes of them.

use super::*;

fn definition(command: &[&str]) -> Definition {
    let mut definition = Definition::new("tool", "A tool", command.iter().map(|text| Part::from(*text)).collect());
    definition.input_schema = json!({"type": "object", "properties": {
        "path": {"type": "string"}, "n": {"type": "integer"}, "files": {"type": "array", "items": {"type": "string"}},
    }});
    definition
}

fn problem(change: impl FnOnce(&mut Definition)) -> Problem {
    let mut definition = definition(&["wc", "-w", "{path}"]);
    assert_eq!(definition.check(), Ok(()), "it is the change that breaks it");
    change(&mut definition);
    let problem = definition.check().expect_err("it cannot be used");
    assert_eq!(problem.to_string(), problem.message);
    problem
}

#[test]
fn a_new_definition_has_the_documented_defaults_and_can_be_used() {
    let new = Definition::new("date", "Tells the date", vec!["date".into()]);
    assert_eq!(new.check(), Ok(()));
    assert_eq!(new.input_schema, json!({"type": "object", "properties": {}, "additionalProperties": false}));
    assert_eq!((new.ok_codes, new.concurrency, new.kill_after), (vec![0], 8, Duration::from_secs(5)));
    assert_eq!((new.inline_bytes, new.journal_bytes), (32_768, 67_108_864));
    assert_eq!((new.output, new.stderr, new.leftovers), (Format::Text, Stderr::Together, Leftovers::Kill));
    assert_eq!((new.inherit_env, new.on_interrupt), (Inherit::All, OnInterrupt::Fail));
    assert_eq!((new.pty, new.policy.overflow), (false, Overflow::DropOldest));
    assert!(new.cwd.is_absolute());
}

#[test]
fn each_thing_that_is_wrong_is_found_under_its_key() {
    type Change = fn(&mut Definition);
    let changes: &[(&str, &str, Change)] = &[
        ("name", "1 to 128", |it| it.name = String::new()),
        ("name", "1 to 128", |it| it.name = "a b".into()),
        ("name", "1 to 128", |it| it.name = "é".into()),
        ("name", "1 to 128", |it| it.name = "a".repeat(129)),
        ("input_schema", "`type` must be", |it| it.input_schema = json!({"properties": {"path": {}}})),
        ("input_schema", "`type` must be", |it| it.input_schema = json!(true)),
        ("input_schema", "`properties`", |it| it.input_schema = json!({"type": "object", "properties": []})),
        ("input_schema", "cannot be used", |it| it.input_schema["properties"]["path"]["type"] = json!("strin")),
        ("input_schema", "x-mcp-header", |it| it.input_schema["properties"]["path"]["x-mcp-header"] = json!("a b")),
        ("input_schema", "default", |it| it.input_schema["properties"]["n"]["default"] = json!("three")),
        ("input_schema", "begins with a dash", |it| it.input_schema["properties"]["path"]["default"] = json!("-l")),
        ("output_schema", "cannot be used", |it| it.output_schema = Some(json!({"type": 5}))),
        ("annotations", "object", |it| it.annotations = Some(json!("readOnly"))),
        ("command", "empty", |it| it.command = Vec::new()),
        ("command", "empty", |it| it.command = vec!["".into()]),
        ("command", "must not choose it", |it| it.command = vec!["{path}".into()]),
        ("command", "must not choose it", |it| it.command = vec!["./bin/{path}".into()]),
        ("command", "must be a text", |it| it.command = vec![Part::Group(vec!["wc".into()])]),
        ("command", "did you mean `path`?", |it| it.command.push("{pth}".into())),
        ("command", "run as code", |it| it.command = vec!["sh".into(), "-c".into(), "wc {path}".into()]),
        ("allow_dash", "did you mean `path`?", |it| it.allow_dash = vec!["paht".into()]),
        ("env", "X: ", |it| it.env = BTreeMap::from([("X".into(), "{nope}".into())])),
        ("env", "empty", |it| it.env = BTreeMap::from([(String::new(), "1".into())])),
        ("env", "'='", |it| it.env = BTreeMap::from([("A=B".into(), "1".into())])),
        ("env", "NUL", |it| it.env = BTreeMap::from([("A\0".into(), "1".into())])),
        ("env", "NUL", |it| it.env = BTreeMap::from([("A".into(), "1\0".into())])),
        ("env", "which task", |it| it.env = BTreeMap::from([("TASKWIRE_TASK_DIR".into(), "/".into())])),
        ("inherit_env", "'='", |it| it.inherit_env = Inherit::Only(vec!["A=".into()])),
        ("remove_env", "empty", |it| it.remove_env = vec![String::new()]),
        ("cwd", "absolute", |it| it.cwd = PathBuf::from("here")),
        ("stdin", "{{nope}}", |it| it.stdin = Some("{nope}".into())),
        ("env", "LD_PRELOAD", |it| it.env = BTreeMap::from([("LD_PRELOAD".into(), "/lib/{path}.so".into())])),
        ("env", "{path} would be run as code", |it| it.env = BTreeMap::from([("GIT_SSH_COMMAND".into(), "{path}".into())])),
        ("stdin", "sh takes its code from standard input", |it| {
            (it.command, it.stdin) = (vec!["sh".into(), "-s".into(), "{n}".into()], Some("ls {path}".into()));
        }),
        ("stdin", "python3 takes its code", |it| (it.command, it.stdin) = (vec!["python3".into(), "-".into()], Some("{path}".into()))),
        ("stderr", "apart", |it| it.output = Format::Jsonl),
        ("pty", "\"together\" or \"drop\"", |it| (it.pty, it.stderr) = (true, Stderr::Apart)),
        ("pty", "lines of JSON", |it| (it.pty, it.stderr, it.output) = (true, Stderr::Apart, Format::Jsonl)),
        ("progress", "regular expression", |it| it.progress = Some("(".into())),
        ("progress", "`done` or `percent`", |it| it.progress = Some("(?<message>.*)".into())),
        ("progress", "`pct`", |it| it.progress = Some("(?<pct>\\d+) (?<done>\\d+)".into())),
        ("redact", "regular expression", |it| it.redact = vec!["token=.*".into(), "[".into()]),
        ("redact", "empty text", |it| it.redact = vec!["x*".into()]),
        ("ok_codes", "[0]", |it| it.ok_codes = Vec::new()),
        ("ok_codes", "256", |it| it.ok_codes = vec![0, 256]),
        ("ok_codes", "-1", |it| it.ok_codes = vec![-1]),
        ("concurrency", "1 or more", |it| it.concurrency = 0),
        ("calls_per_second", "1 or more", |it| it.policy.calls_per_second = Some(0)),
        ("tasks_max", "1 or more", |it| it.policy.tasks_max = Some(0)),
        ("tasks_per_caller_max", "1 or more", |it| it.policy.tasks_per_caller_max = Some(0)),
        ("kill_after", "10 minutes", |it| it.kill_after = Duration::from_millis(600_001)),
        ("inline_bytes", "256", |it| it.inline_bytes = 255),
        ("journal_bytes", "65536", |it| it.journal_bytes = 0),
        ("journal_bytes", "65536 or more", |it| it.journal_bytes = 65_535),
        ("on_interrupt", "retry", |it| it.on_interrupt = OnInterrupt::Resume),
    ];
    for (key, words, change) in changes {
        let problem = problem(change);
        assert_eq!(problem.key, *key, "{problem:?}");
        assert!(problem.message.contains(words), "{problem:?} should speak of {words}");
    }
}

#[test]
fn what_is_wrong_with_a_schema_has_its_path() {
    let wrong = problem(|it| it.input_schema["properties"]["path"]["type"] = json!("strng"));
    assert_eq!(wrong.path, ["properties", "path", "type"]);
    assert!(
        wrong
            .message
            .ends_with("cannot be used: `path`: `type` cannot be \"strng\": it is string, integer, number, boolean, array, object or null")
    );
    let wrong = problem(|it| it.output_schema = Some(json!({"properties": {"n": {"minimum": "0"}}})));
    assert_eq!((wrong.key, wrong.path.join(".")), ("output_schema", "properties.n.minimum".to_owned()));
    assert_eq!(problem(|it| it.concurrency = 0).path, [""; 0]);
}

#[test]
fn what_is_run_but_fixed_is_allowed() {
    let mut it = definition(&["sh"]);
    it.env = BTreeMap::from([("BASH_ENV".into(), "/etc/env".into()), ("PS1".into(), "{n}".into()), ("NAME".into(), "{path}".into())]);
    it.stdin = Some("echo {n}".into());
    assert_eq!(it.check(), Ok(()), "a number is no code");
    it.stdin = Some("echo \"$NAME\"".into());
    assert_eq!(it.check(), Ok(()));
    it.stdin = Some("{path}".into());
    assert_eq!(it.check().expect_err("code").key, "stdin");
    it.command = vec!["sh".into(), "run.sh".into()];
    assert_eq!(it.check(), Ok(()));
    it.env.insert("PATH".into(), "{path}:/bin".into());
    let problem = it.check().expect_err("a place for programs");
    assert_eq!((problem.key, problem.path), ("env", vec!["PATH".to_owned()]));
}

#[test]
fn what_is_just_allowed_is_allowed() {
    let mut it = definition(&["wc", "-w", "{path}"]);
    it.name = "a".repeat(128);
    it.kill_after = Duration::from_secs(600);
    it.inline_bytes = 256;
    it.journal_bytes = 65_536;
    it.concurrency = 1;
    it.ok_codes = vec![255];
    it.output = Format::Jsonl;
    it.stderr = Stderr::Drop;
    it.pty = true;
    it.on_interrupt = OnInterrupt::Retry;
    it.progress = Some("(?<done>\\d+)/(?<total>\\d+) (?<message>.*)".into());
    it.redact = vec!["token=\\S+".into()];
    it.input_schema["properties"]["path"]["default"] = json!("-");
    it.allow_dash = vec!["path".into()];
    assert_eq!(it.check(), Ok(()));
}

#[test]
fn defaults_fill_what_is_not_given_and_null_means_nothing() {
    let mut it = definition(&["head", "{path}", "{n}"]);
    it.input_schema["properties"]["n"] = json!({"type": ["integer", "null"], "default": 10});
    it.input_schema["required"] = json!(["path"]);
    let compiled = it.compile().expect("usable");
    let argv = |arguments: Value| compiled.fill(&arguments).expect("filled").argv;
    assert_eq!(argv(json!({"path": "a"})), ["head", "a", "10"]);
    assert_eq!(argv(json!({"path": "a", "n": 3})), ["head", "a", "3"]);
    assert_eq!(argv(json!({"path": "a", "n": null})), ["head", "a"]);
    assert_eq!(argv(Value::Null), ["head", "10"]);
    assert_eq!(compiled.fill(&json!([])), Err(vec!["the arguments must be an object".to_owned()]));
}

#[test]
fn a_float_without_a_fraction_is_written_as_an_integer_where_the_schema_wants_one() {
    let mut it = definition(&["p", "n={n}", "m={m}", "r={r}", "t={t}", "u={u}", "l={l}", "f={f}", "q={q}"]);
    it.input_schema = json!({"type": "object", "$defs": {"count": {"type": "integer"}}, "properties": {
        "n": {"type": "integer", "default": 10.0}, "m": {"type": "number"}, "r": {"$ref": "#/$defs/count"},
        "t": {"type": ["integer", "string"]}, "u": {"type": ["integer", "number"]},
        "l": {"type": "array", "items": {"$ref": "#/$defs/count"}}, "f": {"type": "array", "items": {"type": "number"}},
        "q": {"type": "array", "prefixItems": [{"type": "number"}], "items": {"type": "integer"}},
    }});
    it.env = BTreeMap::from([("E".into(), "{n} {m} {l}".into())]);
    it.stdin = Some("{n} {f}".into());
    let compiled = it.compile().expect("usable");
    let argv = |arguments: Value| compiled.fill(&arguments).expect("filled").argv[1..].join(" ");
    for (number, written) in [
        (json!(3.0), "3"),
        (json!(1e3), "1000"),
        (json!(-4.0), "-4"),
        (json!(0.0), "0"),
        (json!(-0.0), "0"),
        (json!(7), "7"),
        (json!(9_007_199_254_740_991.0), "9007199254740991"),
        (json!(u64::MAX), "18446744073709551615"),
    ] {
        assert_eq!(argv(json!({"n": number, "r": number, "t": number})), format!("n={written} r={written} t={written}"), "{number}");
    }
    for number in [json!(9_007_199_254_740_992.0), json!(-9_007_199_254_740_992.0), json!(1e300)] {
        assert_eq!(argv(json!({"n": number})), format!("n={number}"), "not surely what was meant");
    }
    assert_eq!(argv(json!({})), "n=10", "a default, too");
    assert_eq!(argv(json!({"n": null, "m": 3.0, "u": 3.0, "t": "3.0"})), "m=3.0 t=3.0 u=3.0");
    assert_eq!(argv(json!({"n": 1, "l": [1.0, 2, -3.0], "f": [1.0, 2], "q": [1.0, 2.0]})), "n=1 l=1 l=2 l=-3 f=1.0 f=2 q=1.0 q=2");

    let filled = compiled.fill(&json!({"n": 3.0, "m": 3.0, "l": [1.0, 2.0], "f": [1.0]})).expect("filled");
    assert_eq!(filled.env["E"], "3 3.0 [1,2]");
    assert_eq!(filled.stdin.as_deref(), Some("3 [1.0]"));
}

#[test]
fn a_default_is_checked_where_the_schema_refers_elsewhere() {
    let mut it = definition(&["wc", "{path}"]);
    it.input_schema["$defs"] = json!({"size": {"enum": ["s", "m"]}});
    it.input_schema["required"] = json!(["path", "n"]);
    it.input_schema["properties"]["size"] = json!({"$ref": "#/$defs/size", "default": "m"});
    assert_eq!(it.check(), Ok(()));
    it.input_schema["properties"]["size"]["default"] = json!("xl");
    let problem = it.check().expect_err("xl is no size");
    assert!(problem.key == "input_schema" && problem.message.contains("`size`"), "{problem:?}");
}

#[test]
fn environment_and_input_are_filled_and_left_out_like_arguments() {
    let mut it = definition(&["wc"]);
    it.env = BTreeMap::from([("P".into(), "at {path}".into()), ("F".into(), "{files}".into()), ("L".into(), "{{C}}".into())]);
    it.stdin = Some("{path}\n".into());
    let compiled = it.compile().expect("usable");
    let filled = compiled.fill(&json!({"path": "-x $(id)\n", "files": ["a", "b\""]})).expect("filled");
    let env = [("F", "[\"a\",\"b\\\"\"]"), ("L", "{C}"), ("P", "at -x $(id)\n")]
        .map(|(name, value): (&str, &str)| (name.to_owned(), value.to_owned()));
    assert_eq!(filled.env, BTreeMap::from(env));
    assert_eq!(filled.stdin.as_deref(), Some("-x $(id)\n\n"));
    let filled = compiled.fill(&json!({})).expect("filled");
    assert_eq!((filled.env.len(), filled.stdin), (1, None));
}

#[test]
fn all_problems_are_told_at_once_and_each_names_its_field() {
    let mut it = definition(&["wc", "{n}", "{files}"]);
    it.stdin = Some("{path}".into());
    let compiled = it.compile().expect("usable");
    let problems = compiled.fill(&json!({"n": -1, "files": ["ok", "-x", "a\0"], "path": "\0"})).expect_err("four problems");
    let fields: Vec<&str> = problems.iter().filter_map(|line| line.split(':').next()).collect();
    assert_eq!(fields, ["`n`", "`files/1`", "`files/2`", "`path`"], "{problems:?}");
}

#[test]
fn input_has_no_limit_but_a_variable_has() {
    let mut it = definition(&["wc"]);
    it.stdin = Some("{path}".into());
    let long = "x".repeat(3 << 20);
    let filled = it.compile().expect("usable").fill(&json!({"path": long})).expect("filled");
    assert_eq!(filled.stdin.map(|text| text.len()), Some(3 << 20));

    it.env = BTreeMap::from([("VAR".into(), "{path}".into())]);
    let compiled = it.compile().expect("usable");
    let fits = "x".repeat(ARG_BYTES_MAX - 4);
    assert_eq!(compiled.fill(&json!({"path": fits})).expect("it fits").env["VAR"].len(), fits.len());
    let problems = compiled.fill(&json!({"path": fits + "x"})).expect_err("one byte too many");
    assert!(problems.len() == 1 && problems[0].starts_with("`path`: the value is too long"), "{problems:?}");
}

#[test]
fn arguments_and_variables_count_together_to_the_byte() {
    let mut it = definition(&["wc", "{files}"]);
    it.env = BTreeMap::from([("V".into(), "{path}".into())]);
    let compiled = it.compile().expect("usable");
    // The program, seven full arguments and a variable; each costs nine bytes more than its text.
    let left = ARGS_BYTES_MAX - (2 + 9) - 7 * (ARG_BYTES_MAX + 9) - ("V=".len() + 9);
    let files = vec!["x".repeat(ARG_BYTES_MAX); 7];
    let filled = compiled.fill(&json!({"files": files, "path": "y".repeat(left)})).expect("it just fits");
    assert_eq!(filled.argv.len(), 8);
    let problems = compiled.fill(&json!({"files": files, "path": "y".repeat(left + 1)})).expect_err("one byte too many");
    assert!(problems.len() == 1 && problems[0].starts_with("`files`: ") && problems[0].contains("1048576 bytes"), "{problems:?}");
}

#[test]
fn very_many_items_are_refused_without_being_copied() {
    let compiled = definition(&["wc", "{files}"]).compile().expect("usable");
    let problems = compiled.fill(&json!({"files": vec![""; 1_000_000]})).expect_err("too many");
    assert!(problems.len() == 1 && problems[0].starts_with("`files`: "), "{problems:?}");
    let problems = compiled.fill(&json!({"files": vec!["-"; 1_000_000]})).expect_err("all wrong");
    assert_eq!(problems.len(), 10, "enough to learn from");
    assert!(problems[9].starts_with("`files/9`: "), "{problems:?}");
}

//! Tests of templates: what a hostile caller could try, and what a careless author could write.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn schema() -> Value {
    json!({
        "type": "object",
        "$defs": {"names": {"type": "array"}, "around": {"$ref": "#/$defs/around"}},
        "properties": {
            "x": {"type": "string"}, "y": {"type": "string"}, "n": {"type": "number"}, "o": {"type": "object"},
            "v": {"type": "boolean"}, "w": {"type": ["boolean", "null"]}, "list": {"type": "array"}, "more": {"type": ["array", "null"]},
            "names": {"$ref": "#/$defs/names"}, "around": {"$ref": "#/$defs/around"}, "any": {}, "other": {},
            "dashed": {"type": "string"}, "with-dash_1": {"type": "string"},
        },
    })
}

pub(in crate::command) fn compile(command: &Value) -> Result<CommandTemplate, String> {
    let command: Vec<Part> = serde_json::from_value(command.clone()).expect("parts");
    CommandTemplate::compile(&command, &schema(), &["dashed".to_owned()])
}

pub(in crate::command) fn filled(template: &CommandTemplate, values: &Value) -> Result<Vec<String>, Vec<String>> {
    let mut argv = ArgvBuilder::default();
    template.fill(values.as_object().expect("an object"), &mut argv);
    match argv.problems.is_empty() {
        true => Ok(argv.argv),
        false => Err(argv.problems),
    }
}

pub(in crate::command) fn fill(command: &Value, values: &Value) -> Result<Vec<String>, Vec<String>> {
    filled(&compile(command).unwrap_or_else(|why| panic!("{command}: {why}")), values)
}

pub(in crate::command) fn refused(command: &Value) -> String {
    compile(command).map(|_| ()).expect_err(&command.to_string())
}

/// Problems must be short, and have nothing that a terminal or a model would obey.
fn assert_harmless(problems: &[String]) {
    for problem in problems {
        assert!(problem.len() < 800, "{problem}");
        assert!(
            !problem.chars().any(|c| c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200b}')),
            "{problem:?}"
        );
    }
}

/// Values that are accepted, and arrive as they are.
fn hostile() -> Vec<String> {
    let fixed = [
        "",
        " ",
        "  two  spaces  ",
        "\t",
        "\n",
        "\r\n",
        "a\nb",
        "a\n-rf",
        "\u{b}\u{c}",
        "\u{1b}[31mred\u{1b}[0m",
        "\u{7}",
        "\u{7f}",
        "\u{1}\u{2}\u{3}",
        "'",
        "\"",
        "''",
        "\"\"",
        "`",
        "\\",
        "\\\\",
        "\\n",
        "\\0",
        "%00",
        "%s%n%x",
        "a'b\"c`d",
        "'; rm -rf / #",
        "\"; rm -rf / #",
        "$(id)",
        "`id`",
        "$HOME",
        "${HOME}",
        "${IFS}",
        "$'\\x41'",
        "$((1+1))",
        "$1",
        "\"$@\"",
        "!!",
        "!$",
        "; id",
        "& id",
        "&& id",
        "| id",
        "|| id",
        "> /tmp/x",
        "< /etc/passwd",
        "2>&1",
        "<(id)",
        "*",
        "?",
        "[a-z]*",
        "~",
        "~root",
        "{a,b}",
        "{1..9}",
        "{x}",
        "{y}",
        "{{x}}",
        "}}",
        "{",
        "}",
        "{}",
        "{dashed}",
        "#",
        "# comment",
        "../../etc/passwd",
        "/dev/null",
        "./-rf",
        " -rf",
        "+x",
        "@/etc/passwd",
        "=",
        "a=b",
        "PATH=/tmp",
        "% ",
        "é",
        "e\u{301}",
        "日本語",
        "🦀",
        "👩‍👩‍👧",
        "\u{2013}rf",
        "\u{2014}rf",
        "\u{2212}1",
        "\u{ff0d}x",
        "\u{2010}x",
        "\u{ad}-x",
        "\u{feff}x",
        "\u{202e}gnp.exe",
        "\u{200b}",
        "\u{0300}",
        "\u{fffd}",
        "\u{10ffff}",
        "\u{e000}",
        "null",
        "true",
        "false",
        "0",
        "NaN",
        "[1,2]",
        "{\"a\":1}",
        "<script>alert(1)</script>",
        "' OR 1=1 --",
        "COM1",
        "C:\\x",
        "a\u{2028}b",
    ];
    let mut values: Vec<String> = fixed.map(str::to_owned).into();
    values.push("x".repeat(60_000));
    values.push("'".repeat(10_000));
    values.push("é".repeat(30_000));
    values.push("$(".repeat(10_000));
    values
}

#[test]
fn hostile_values_arrive_as_one_argument_each_and_unchanged() {
    let command =
        json!(["prog", "{x}", "--x={x}", "<{x}>", ["--pair", "{x}"], {"when": "v", "args": ["{x}"]}, "{list}", ["-i", "{list}"], "end"]);
    let template = compile(&command).expect("a command");
    let values = hostile();
    assert!(values.len() > 100);
    for value in &values {
        let argv =
            filled(&template, &json!({"x": value, "v": true, "list": [value, value]})).unwrap_or_else(|why| panic!("{value:?}: {why:?}"));
        let (inside, around) = (format!("--x={value}"), format!("<{value}>"));
        let v = value.as_str();
        assert_eq!(argv, ["prog", v, &inside, &around, "--pair", v, v, v, v, "-i", v, "-i", v, "end"], "{value:?}");
    }
}

#[test]
fn hostile_values_that_could_be_options_are_refused_where_they_begin_an_argument() {
    let values = [
        "-",
        "--",
        "-rf",
        "--help",
        "-1",
        "-0",
        "-.5",
        "--output=/etc/passwd",
        "-oProxyCommand=id",
        "-e id",
        "-\n",
        "-\u{1b}[2J",
        "-é",
        "--\u{202e}x",
        "-'",
        "-$(id)",
        "---",
        "-{x}",
        "-\\",
        "--upload-pack=id",
        "-c",
        "-\u{200b}",
    ];
    for value in values {
        for command in
            [json!(["p", "{x}"]), json!(["p", "{x}tail"]), json!(["p", ["--o", "{x}"]]), json!(["p", {"when": "v", "args": ["{x}"]}])]
        {
            let problems = fill(&command, &json!({"x": value, "v": true})).expect_err(value);
            assert_eq!(problems.len(), 1, "{problems:?}");
            assert!(
                problems[0].starts_with("`x`: the value begins with a dash and the command could take it for an option"),
                "{problems:?}"
            );
            assert!(problems[0].contains("allow_dash = [\"x\"]") && problems[0].contains("\"./-"), "{problems:?}");
            assert_harmless(&problems);
        }
        // A dash is accepted after text of the author, and where the author allows it.
        assert_eq!(fill(&json!(["p", "--o={x}"]), &json!({"x": value})).expect("inside"), ["p".to_owned(), format!("--o={value}")]);
        assert_eq!(fill(&json!(["p", "{dashed}"]), &json!({"dashed": value})).expect("allowed"), ["p", value]);
    }
}

#[test]
fn an_empty_value_does_not_let_the_next_one_become_an_option() {
    let problems = fill(&json!(["p", "{x}{y}"]), &json!({"x": "", "y": "-rf"})).expect_err("-rf");
    assert!(problems[0].starts_with("`y`: the value begins with a dash"), "{problems:?}");
    let problems = fill(&json!(["p", "{dashed}{y}"]), &json!({"dashed": "", "y": "-rf"})).expect_err("-rf");
    assert!(problems[0].starts_with("`y`: "), "{problems:?}");
    assert_eq!(fill(&json!(["p", "{x}{y}"]), &json!({"x": "a", "y": "-rf"})).expect("inside"), ["p", "a-rf"]);
    assert_eq!(fill(&json!(["p", "{x}{y}"]), &json!({"x": "", "y": ""})).expect("an empty argument"), ["p", ""]);
}

#[test]
fn negative_numbers_begin_with_a_dash_too() {
    for number in [json!(-1), json!(-0.5), json!(-0.0), json!(i64::MIN), json!(-1e300)] {
        let problems = fill(&json!(["head", "-n", "{n}"]), &json!({"n": number})).expect_err("negative");
        assert!(problems[0].starts_with("`n`: the value begins with a dash") && problems[0].contains("not negative"), "{problems:?}");
        assert_eq!(fill(&json!(["p", "--n={n}"]), &json!({"n": number})).expect("inside"), ["p".to_owned(), format!("--n={number}")]);
    }
    let problems = fill(&json!(["p", "{list}"]), &json!({"list": [1, -2, 3, "-4"]})).expect_err("two");
    assert!(problems.len() == 2 && problems[0].starts_with("`list/1`: ") && problems[1].starts_with("`list/3`: "), "{problems:?}");
}

#[test]
fn a_nul_is_refused_wherever_it_is() {
    for value in ["\0", "a\0", "\0a", "a\0b", "\0\0", "-\0"] {
        for command in [json!(["p", "{x}"]), json!(["p", "--x={x}"]), json!(["p", ["a", "{x}"]])] {
            let problems = fill(&command, &json!({"x": value})).expect_err("NUL");
            assert!(problems.len() == 1 && problems[0].starts_with("`x`: the value contains a NUL character"), "{problems:?}");
            assert_harmless(&problems);
        }
        let problems = fill(&json!(["p", "{list}"]), &json!({"list": ["a", value]})).expect_err("NUL");
        assert!(problems[0].starts_with("`list/1`: "), "{problems:?}");
        let text = TextTemplate::compile("{x}", &schema()).expect("a text");
        assert!(text.fill(json!({"x": value}).as_object().expect("an object")).is_err_and(|why| why.starts_with("`x`: ")));
        assert!(refused(&json!(["p", value])).contains("NUL"));
    }
    assert!(refused(&json!(["p\0"])).contains("NUL"));
    // JSON escapes a NUL.
    assert_eq!(fill(&json!(["p", "{o}"]), &json!({"o": {"a": "\0"}})).expect("JSON"), ["p", "{\"a\":\"\\u0000\"}"]);
}

#[test]
fn an_argument_may_be_as_long_as_the_system_allows_and_no_longer() {
    let full = "x".repeat(ARG_BYTES_MAX);
    assert_eq!(fill(&json!(["p", "{x}"]), &json!({"x": full})).expect("it fits")[1], full);
    assert_eq!(fill(&json!(["p", "--x={x}"]), &json!({"x": full[4..]})).expect("it fits")[1].len(), ARG_BYTES_MAX);
    let wide = "é".repeat(ARG_BYTES_MAX / 2);
    assert!(fill(&json!(["p", "{x}"]), &json!({"x": format!("{wide}x")})).is_ok());
    for (command, value) in [
        (json!(["p", "{x}"]), format!("{full}x")),
        (json!(["p", "--x={x}"]), full[3..].to_owned()),
        (json!(["p", "{x}"]), format!("{wide}é")),
        (json!(["p", "{x}{x}"]), full[..ARG_BYTES_MAX / 2 + 1].to_owned()),
        (json!(["p", "{x}"]), "y".repeat(1 << 20)),
    ] {
        let problems = fill(&command, &json!({"x": value})).expect_err("too long");
        assert!(
            problems.len() == 1 && problems[0].starts_with("`x`: the value is too long") && problems[0].contains("`stdin`"),
            "{problems:?}"
        );
        assert_harmless(&problems);
    }
    let problems = fill(&json!(["p", "{y}{list}"]), &json!({"y": "a", "list": ["b", full]})).expect_err("too long");
    assert!(problems.len() == 1 && problems[0].starts_with("`list/1`: "), "{problems:?}");
    assert!(refused(&json!(["p", format!("{full}x")])).contains("longer"));
}

#[test]
fn a_list_that_would_make_the_command_too_large_is_cut_off_early() {
    let template = compile(&json!(["p", ["x".repeat(100_000), "{list}"]])).expect("a command");
    let mut argv = ArgvBuilder::default();
    template.fill(json!({"list": vec!["a"; 100_000]}).as_object().expect("an object"), &mut argv);
    assert!(argv.is_too_large());
    assert!(argv.argv.len() < 30, "{} arguments were made", argv.argv.len());
}

#[test]
fn absent_parameters_leave_their_argument_out_and_a_group_as_a_whole() {
    let command = json!(["p", "{x}", "--y={y}", ["--pair", "{x}", "{y}"], ["fixed", "group"], {"when": "v", "args": ["-v", "{y}"]}, "end"]);
    assert_eq!(fill(&command, &json!({})).expect("filled"), ["p", "fixed", "group", "end"]);
    assert_eq!(fill(&command, &json!({"x": "1"})).expect("filled"), ["p", "1", "fixed", "group", "end"]);
    assert_eq!(fill(&command, &json!({"x": "1", "y": null, "v": true})).expect("filled"), ["p", "1", "fixed", "group", "end"]);
    let all = fill(&command, &json!({"x": "1", "y": "2", "v": true})).expect("filled");
    assert_eq!(all, ["p", "1", "--y=2", "--pair", "1", "2", "fixed", "group", "-v", "2", "end"]);
    // Values that are not used are not checked.
    assert_eq!(fill(&json!(["p", ["{x}", "{y}"]]), &json!({"x": "-\0"})).expect("filled"), ["p"]);
}

#[test]
fn when_wants_true() {
    let command = json!(["p", {"when": "v", "args": ["-v"]}, {"when": "w", "args": ["-w", "on"]}]);
    for (values, argv) in [
        (json!({}), vec!["p"]),
        (json!({"v": true}), vec!["p", "-v"]),
        (json!({"v": false, "w": true}), vec!["p", "-w", "on"]),
        (json!({"v": null, "w": null}), vec!["p"]),
    ] {
        assert_eq!(fill(&command, &values).expect("filled"), argv, "{values}");
    }
    for wrong in [json!("true"), json!(1), json!([true]), json!({}), json!("\u{1b}c")] {
        let problems = fill(&command, &json!({"v": wrong})).expect_err("no boolean");
        assert!(problems.len() == 1 && problems[0].starts_with("`v`: it must be true or false"), "{problems:?}");
        assert_harmless(&problems);
    }
}

#[test]
fn lists_repeat_their_argument_or_group_and_empty_ones_are_absent() {
    let command = json!(["p", "{list}", ["-i", "{names}", "{x}"], "--m={more}", {"when": "v", "args": ["-l", "{list}"]}]);
    let values = json!({"list": ["a", "b c"], "names": ["n1", "n2"], "x": "X", "more": [1, true, {"k": []}, ["in", "ner"]], "v": true});
    let argv = fill(&command, &values).expect("filled");
    let more = ["--m=1", "--m=true", "--m={\"k\":[]}", "--m=[\"in\",\"ner\"]"];
    let wanted = [&["p", "a", "b c", "-i", "n1", "X", "-i", "n2", "X"][..], &more, &["-l", "a", "-l", "b c"]].concat();
    assert_eq!(argv, wanted);
    assert_eq!(fill(&command, &json!({"list": [], "names": [], "x": "X", "more": [], "v": true})).expect("filled"), ["p"]);
    // The same list twice in a group is one list.
    assert_eq!(fill(&json!(["p", ["{list}", "={list}"]]), &json!({"list": ["a", "b"]})).expect("filled"), ["p", "a", "=a", "b", "=b"]);
    let problems = fill(&json!(["p", "{list}"]), &json!({"list": ["a", null]})).expect_err("null");
    assert!(problems[0].starts_with("`list/1`: it is null"), "{problems:?}");
}

#[test]
fn two_lists_in_one_place_are_refused() {
    for command in
        [json!(["p", "{list}{more}"]), json!(["p", ["{list}", "{names}"]]), json!(["p", {"when": "v", "args": ["{list}", "{more}"]}])]
    {
        let why = refused(&command);
        assert!(why.contains("both lists") && why.contains("`list`"), "{why}");
    }
    // The schema does not say that both are lists, but the call does.
    let command = json!(["p", ["{any}", "{other}"]]);
    assert_eq!(fill(&command, &json!({"any": ["a", "b"], "other": "o"})).expect("one list"), ["p", "a", "o", "b", "o"]);
    let problems = fill(&command, &json!({"any": ["a"], "other": ["b"]})).expect_err("two lists");
    assert!(problems[0].starts_with("`other`: ") && problems[0].contains("`any`"), "{problems:?}");
    assert_eq!(fill(&command, &json!({"any": ["a"], "other": []})).expect("an empty list is absent"), ["p"]);
    // References may go in circles.
    assert_eq!(fill(&json!(["p", "{around}"]), &json!({"around": "a"})).expect("filled"), ["p", "a"]);
}

#[test]
fn values_are_written_as_they_are_or_as_json() {
    for (value, text) in [
        (json!("text"), "text"),
        (json!(1), "1"),
        (json!(1.5), "1.5"),
        (json!(u64::MAX), "18446744073709551615"),
        (json!(true), "true"),
        (json!(false), "false"),
        (json!({"a": [1, "\n"]}), "{\"a\":[1,\"\\n\"]}"),
    ] {
        assert_eq!(fill(&json!(["p", "{any}"]), &json!({"any": value})).expect("filled"), ["p", text]);
    }
}

#[test]
fn braces_are_text_unless_a_name_is_in_them() {
    for (source, text) in [
        ("{x}", "V"),
        ("a{x}b{x}", "aVbV"),
        ("{with-dash_1}", "D"),
        ("{{x}}", "{x}"),
        ("{{{x}}}", "{V}"),
        ("{x}}", "V}"),
        ("{x}}}", "V}}"),
        ("{{x}", "{V"),
        ("{a:{b:.c}}", "{a:{b:.c}}"),
        ("{\"a\":{x}}", "{\"a\":V}"),
        ("{ {x} }", "{ V }"),
        ("{ print $1 }", "{ print $1 }"),
        ("BEGIN { n = 0 } { n += $1 } END { print n }", "BEGIN { n = 0 } { n += $1 } END { print n }"),
        ("{}", "{}"),
        ("{", "{"),
        ("}", "}"),
        ("{{", "{{"),
        ("}}", "}}"),
        ("{{{{", "{{{{"),
        ("{x", "{x"),
        ("x}", "x}"),
        ("{1}", "{1}"),
        ("{-x}", "{-x}"),
        ("{x y}", "{x y}"),
        ("{x,y}", "{x,y}"),
        ("{é}", "{é}"),
        ("${{HOME}}", "${HOME}"),
        ("{\"a\": 1}", "{\"a\": 1}"),
        ("", ""),
        ("é{x}é", "éVé"),
    ] {
        let values = json!({"x": "V", "with-dash_1": "D"});
        assert_eq!(fill(&json!(["p", source]), &values).expect("filled"), ["p", text], "{source}");
        let text_of = TextTemplate::compile(source, &schema()).expect("a text").fill(values.as_object().expect("an object"));
        assert_eq!(text_of, Ok(Some(text.to_owned())), "{source}");
    }
}

#[test]
fn unknown_parameters_are_errors_with_help() {
    let why = refused(&json!(["p", "{dashe}"]));
    assert!(why.contains("did you mean `dashed`?") && why.contains("write `{{dashe}}`"), "{why}");
    let why = refused(&json!(["p", ["${HOME}"]]));
    assert!(why.contains("`HOME`") && why.contains("write `{{HOME}}`") && why.contains("it has: "), "{why}");
    assert!(refused(&json!(["p", {"when": "nope", "args": ["a"]}])).contains("`nope`"));
    let why = refused(&json!(["p", {"when": "x", "args": ["a"]}]));
    assert!(why.contains("\"boolean\""), "{why}");
    assert!(refused(&json!(["p", {"when": "any", "args": ["a"]}])).contains("\"boolean\""));
    assert!(refused(&json!(["p", {"when": "v", "args": []}])).contains("empty"));
    assert!(refused(&json!(["p", []])).contains("empty"));
    assert!(TextTemplate::compile("{x}", &json!({"type": "object"})).is_err_and(|why| why.contains("the tool has none")));
}

#[test]
fn the_program_is_fixed_text() {
    assert!(refused(&json!([])).contains("empty"));
    assert!(refused(&json!([""])).contains("empty"));
    assert!(refused(&json!([" "])).contains("empty"));
    assert!(refused(&json!(["{x}"])).contains("`{x}`"));
    assert!(refused(&json!(["bin/{x}", "a"])).contains("must not choose"));
    assert!(refused(&json!([["p", "a"]])).contains("must be a text"));
    assert!(refused(&json!([{"when": "v", "args": ["p"]}])).contains("must be a text"));
    assert_eq!(fill(&json!(["{{p}}"]), &json!({})).expect("filled"), ["{p}"]);
}

#[test]
fn parts_are_read_in_three_shapes_and_no_other() {
    let parts: Vec<Part> = serde_json::from_value(json!(["a", ["b", "c"], {"when": "v", "args": ["d"]}])).expect("three shapes");
    let group = Part::Group(vec!["b".into(), "c".into()]);
    assert_eq!(parts, ["a".into(), group, Part::When { when: "v".into(), args: vec!["d".into()] }]);
    for (wrong, words) in [
        (json!(5), "a text, a list of texts"),
        (json!(null), "a text, a list of texts"),
        (json!([["a"]]), "a string"),
        (json!({"when": "v"}), "missing field `args`"),
        (json!({"when": "v", "args": ["a"], "unless": "w"}), "unknown field `unless`"),
        (json!({"when": "v", "args": "a"}), "a sequence"),
    ] {
        let error = serde_json::from_value::<Part>(wrong.clone()).expect_err("another shape").to_string();
        assert!(error.contains(words), "{wrong}: {error}");
    }
}

#[test]
fn a_text_without_its_parameters_is_absent() {
    let text = TextTemplate::compile("{x}/{y}", &schema()).expect("a text");
    let fill = |values: Value| text.fill(values.as_object().expect("an object")).expect("no problem");
    assert_eq!(fill(json!({"x": "a"})), None);
    assert_eq!(fill(json!({"x": "a", "y": null})), None);
    assert_eq!(fill(json!({"x": "-a", "y": ["b"]})).as_deref(), Some("-a/[\"b\"]"));
    assert_eq!(text.parameters().collect::<Vec<_>>(), ["x", "y"]);
}

#[test]
fn the_distance_of_names_counts_letters() {
    for (one, other, far) in
        [("", "", 0), ("a", "", 1), ("", "ab", 2), ("path", "path", 0), ("pth", "path", 1), ("paht", "path", 2), ("é", "e", 1)]
    {
        assert_eq!((parameters::edit_distance(one, other), parameters::edit_distance(other, one)), (far, far), "{one} {other}");
    }
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        proptest::collection::vec(any::<char>(), 0..40).prop_map(|chars| chars.into_iter().collect::<String>()),
        "[-a{}$`'\"\\\\ \n\t\u{0}\u{1b}é]{0,12}",
        "(-|--|\\{x\\}|\\{\\{|\\}\\}|x| |\n){0,6}",
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn any_text_is_exactly_one_argument_byte_by_byte_or_refused(x in text()) {
        let command = json!(["p", "a", "{x}", "--x={x}", "b"]);
        let result = fill(&command, &json!({"x": x}));
        if x.contains('\0') || x.starts_with('-') {
            let problems = result.expect_err("it is refused");
            prop_assert!(problems.iter().all(|line| line.starts_with("`x`: ")), "{:?}", problems);
            assert_harmless(&problems);
        } else {
            let argv = result.expect("it is accepted");
            let inside = format!("--x={x}");
            prop_assert_eq!(argv, ["p", "a", x.as_str(), inside.as_str(), "b"]);
        }
    }

    #[test]
    fn any_list_is_as_many_arguments_as_it_has_items(items in proptest::collection::vec(text(), 0..8)) {
        let result = fill(&json!(["p", "{list}", "end"]), &json!({"list": items}));
        if items.iter().any(|item| item.contains('\0') || item.starts_with('-')) {
            prop_assert!(result.is_err());
        } else {
            let mut wanted = vec!["p".to_owned()];
            wanted.extend(items);
            wanted.push("end".to_owned());
            prop_assert_eq!(result.expect("it is accepted"), wanted);
        }
    }

    #[test]
    fn two_values_in_one_argument_never_begin_it_with_a_dash(x in text(), y in text()) {
        if let Ok(argv) = fill(&json!(["p", "{x}{y}"]), &json!({"x": x, "y": y})) {
            prop_assert_eq!(argv.len(), 2);
            prop_assert!(!argv[1].starts_with('-'));
            prop_assert_eq!(&argv[1], &format!("{x}{y}"));
        }
    }

    #[test]
    fn a_name_in_doubled_braces_is_the_text_in_single_ones(name in "[A-Za-z_][A-Za-z0-9_-]{0,9}", around in "[^{}\0]{0,9}") {
        let source = format!("{around}{{{{{name}}}}}{around}");
        let text = format!("{around}{{{name}}}{around}");
        prop_assert_eq!(fill(&json!(["p", source]), &json!({})).expect("filled"), ["p", text.as_str()]);
    }
}

#[test]
fn a_parameter_whose_name_cannot_stand_in_braces_is_no_text_either() {
    let schema = json!({"type": "object", "properties": {"p q": {}, "a.b": {}, "1st": {}, "ü": {}, "": {}, " ": {}, "ok": {}}});
    let compile = |text: &str| TextTemplate::compile(text, &schema).map(|text| text.fill(&Map::new()));
    for (text, name, instead) in
        [("{p q}", "\"p q\"", "`p_q`"), ("--x={a.b}", "\"a.b\"", "`a_b`"), ("{1st}", "\"1st\"", "`_1st`"), ("a {ok} {ü} b", "\"ü\"", "`_`")]
    {
        let why = compile(text).map(drop).expect_err(text);
        assert!(why.contains(name) && why.contains("letters, digits, _ and -") && why.ends_with(instead), "{why}");
    }
    for text in ["{}", "{ }", "{p  q}", "{p q", "p q}", "{a.c}", "{ print $1 }"] {
        assert_eq!(compile(text), Ok(Ok(Some(text.to_owned()))), "other braces are text");
    }
    let command = [Part::from("ls"), Part::from("{p q}")];
    assert!(CommandTemplate::compile(&command, &schema, &[]).is_err());
}

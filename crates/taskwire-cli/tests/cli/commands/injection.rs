//! Hostile values: each arrives as exactly one argument, byte for byte, or is refused with an error that names its field.

use std::{collections::BTreeSet, sync::Mutex, thread};

use serde_json::{Value, json};

use super::{
    command_server::{CommandServer, message, refusal, result_text},
    server_dir::{ServerDir, tool},
};

/// The longest argument that Linux takes.
const ARG_BYTES_MAX: usize = 131_071;
/// How many values there are at least.
const VALUES: usize = 200;
/// Calls at one time.
const CALLERS: usize = 4;
/// What stands for the value in a request until it is put there, letter for letter.
const HERE: &str = "\"@VALUE@\"";

/// Prints its arguments, environment and input as hexadecimal digits, so that nothing on the way back can hide anything.
const SHOW: &str = r#"
import json, os, sys
stdin = sys.stdin.buffer.read() if os.environ.get("READ") else b""
value = os.environb.get(b"VALUE")
print(json.dumps({
    "argv": [os.fsencode(word).hex() for word in sys.argv[1:]],
    "env": None if value is None else value.hex(),
    "stdin": stdin.hex(),
}))
"#;

fn server_dir() -> ServerDir {
    let input = "input = { value = { type = \"string\" } }\ntask = \"never\"\ninline_bytes = 4194304\nconcurrency = 8";
    // An argument of its own, and nothing else.
    let plain = format!("command = [\"python3\", \"-ISs\", \"show.py\", \"first\", \"{{value}}\", \"last\"]\n{input}");
    // All other ways to give a value to a command.
    let other = format!(
        "command = [\"python3\", \"-Ss\", \"show.py\", \"--value={{value}}\", \"<{{value}}|{{value}}>\", \"last\"]\n\
         env = {{ VALUE = \"{{value}}\", READ = \"1\" }}\nstdin = \"{{value}}\"\n{input}"
    );
    // A script of a shell, which gets the value as a parameter.
    let shell = format!("command = [\"sh\", \"-c\", \"exec python3 -ISs show.py first \\\"$1\\\" last\", \"sh\", \"{{value}}\"]\n{input}");
    let server_dir = ServerDir::new(&[tool("plain", &plain), tool("other", &other), tool("shell", &shell)].concat());
    server_dir.write("show.py", SHOW);
    server_dir
}

/// Values that have done harm somewhere.
fn values() -> Vec<String> {
    #[rustfmt::skip]
    let whole = [
        "", " ", "  ", "\t", "\n", "\r", "\r\n", "\n\n", "\u{b}", "\u{c}", "\u{7f}", "\u{85}", "\u{a0}", "\u{2028}", "\u{2029}", "\u{feff}",
        "'", "\"", "''", "\"\"", "'\"'", "\"'\"", "`", "\\", "\\\\", "\\'", "\\\"", "\\n", "\\0", "\\x00", "\\u0000", "%00", "\0", "a\0b", "\0a",
        "a\0", "$", "$$", "$0", "$1", "$@", "$*", "$#", "$?", "$!", "$HOME", "${HOME}", "${IFS}", "$IFS$9", "$(id)", "$((1+1))", "`id`", "$'\\n'",
        "{value}", "{{value}}", "{", "}", "{}", "{{", "}}", "{0}", "{first}", "{a,b}", "{1..9}", "%s", "%n", "%s%s%s%n", "%1$s", "%{x}", "#{1}", "<%= 1 %>",
        "*", "?", "[a-z]", "*.py", "/*", "~", "~root", "~+", "!", "!!", "!-1", "^a^b", "#", "# comment", ";", ";;", ";id", "a;b", "|", "||", "|id", "&", "&&",
        "& id", "> out", ">> out", "< /etc/passwd", "<(id)", ">(id)", "2>&1", "<<EOF", "<<<x", "(", ")", "(id)", "=", "a=b", "PATH=/tmp", "=id", ":", ".",
        "..", "../../../../etc/passwd", "/etc/passwd", "..\\..\\x", "//host/share", "C:\\x", "file:///etc/passwd", "a b", " a", "a ", "a\nb", "a\r\nb", "\na", "a\n",
        "-", "--", "-x", "-rf", "-rf /", "--help", "--output=/tmp/x", "-oProxyCommand=id", "--\n", "-\0", "\u{2010}x", "\u{2212}x", "\u{2013}x", " -x", "+x", "@file", "@-",
        "\u{1b}[2J", "\u{1b}]0;title\u{7}", "\u{1b}[31mred\u{1b}[0m", "\u{9b}31m", "\u{8}\u{8}\u{8}", "\u{7}", "\u{1}", "\u{4}", "\u{1a}", "\u{1f}", "\u{80}", "\u{9f}",
        "é", "e\u{301}", "ß", "İ", "ı", "ﬁ", "日本語", "😀", "👩\u{200d}👩\u{200d}👧", "🏳\u{fe0f}\u{200d}🌈", "\u{200b}", "\u{200d}", "\u{2060}", "\u{ad}", "\u{202e}txt.exe",
        "\u{202d}abc\u{202c}", "\u{2066}a\u{2069}", "\u{200f}", "\u{61c}", "שלום", "مرحبا", "\u{fffd}", "\u{ffff}", "\u{fffe}", "\u{10ffff}", "\u{e000}", "\u{fdd0}", "Z\u{351}\u{36b}\u{343}",
        "null", "true", "0", "-0", "1e999", "NaN", "0x10", "\"json\"", "[\"a\"]", "{\"a\":1}", "</script>", "<!--", "'; DROP TABLE tasks; --", "' OR '1'='1", "$where", "%0a", "%2e%2e%2f", "&lt;", "&#0;",
    ];
    let mut values: Vec<String> = whole.iter().map(ToString::to_string).collect();
    // The same within something, and around it.
    for mark in ["'", "\"", "`", "\\", "$(id)", ";id;", "\n", "|", "&&", " ", "*", "\u{202e}"] {
        values.push(format!("a{mark}b{mark}c"));
        values.push(mark.repeat(100));
    }
    for (text, bytes) in [("x", 4096), ("x", 65_536), ("é", 100_000), (" ", 100_000), ("'", 100_000), ("\n", 50_000), ("$(id)", 100_000)] {
        values.push(text.repeat(bytes / text.len()));
    }
    // About the limit, where a character lies across it too.
    for bytes in [ARG_BYTES_MAX - 100, ARG_BYTES_MAX - 1, ARG_BYTES_MAX, ARG_BYTES_MAX + 1, 1024 * 1024, 2 * 1024 * 1024] {
        values.push("x".repeat(bytes));
        values.push(format!("{}é", "x".repeat(bytes - 2)));
    }
    let different: BTreeSet<&String> = values.iter().collect();
    assert!(different.len() >= VALUES, "only {} values", different.len());
    values
}

/// A JSON text in which every character is an escape.
fn escaped(text: &str) -> String {
    let escapes: String = text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
    format!("\"{escapes}\"")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What the command printed of its arguments, or why it was not run.
fn run_with(server: &CommandServer, tool: &str, json_text: &str) -> Result<Value, String> {
    let body = message("tools/call", json!({"name": tool, "arguments": {"value": "@VALUE@"}})).to_string();
    let answer = server.send_text("tools/call", Some(tool), &body.replace(HERE, json_text));
    match refusal(&answer) {
        Some(why) => Err(why),
        None => Ok(serde_json::from_str(&result_text(&answer["result"])).unwrap_or_else(|error| panic!("{error}: {answer}"))),
    }
}

/// Gives each value, or one of so many, to a tool, by several callers.
fn for_each_value(tool: &str, one_of: usize, check: impl Fn(&str, Result<Value, String>) + Sync) {
    let server_dir = server_dir();
    let (server, queue) = (server_dir.start(), Mutex::new(values().into_iter().step_by(one_of).enumerate()));
    let next = || queue.lock().expect("nobody panics while they hold it").next();
    thread::scope(|scope| {
        for _ in 0..CALLERS {
            scope.spawn(|| {
                while let Some((n, value)) = next() {
                    // Half of them in another spelling, which means the same.
                    let spelled = if n % 2 == 0 || value.len() > ARG_BYTES_MAX { json!(value).to_string() } else { escaped(&value) };
                    check(&value, run_with(&server, tool, &spelled));
                }
            });
        }
    });
    // Nothing was written beside the way: no shell saw any of it.
    let ours = ["taskwire.toml", "server.log", "show.py", "data"];
    let entries = std::fs::read_dir(server_dir.path("")).expect("a directory").flatten().map(|entry| entry.file_name());
    let others: Vec<_> = entries.filter(|name| !ours.iter().any(|own| name == own)).collect();
    assert!(others.is_empty(), "somebody wrote {others:?}");
    server_dir.is_quiet();
}

/// Enough of a value to know it by.
fn short(value: &str) -> String {
    format!("{:?} ({} bytes)", value.chars().take(40).collect::<String>(), value.len())
}

/// It was refused, in words that are short enough to read, safe to show, and name the field.
#[track_caller]
fn is_refused(value: &str, observed: &Result<Value, String>) {
    let Err(why) = observed else { panic!("it should have been refused: {}", short(value)) };
    assert!(why.contains("`value`") || why.contains("/value"), "the field is not named for {}: {why}", short(value));
    assert!(why.len() < 2000, "nobody reads {} bytes", why.len());
    assert!(!why.contains(|c: char| c.is_control() && c != '\n'), "a terminal would obey: {why:?}");
}

#[test]
fn hostile_values_arrive_as_one_argument_or_are_refused() {
    for_each_value("plain", 1, |value, observed| {
        if value.contains('\0') || value.starts_with('-') || value.len() > ARG_BYTES_MAX {
            return is_refused(value, &observed);
        }
        let observed = observed.unwrap_or_else(|why| panic!("refused: {}: {why}", short(value)));
        let expected = json!([hex(b"first"), hex(value.as_bytes()), hex(b"last")]);
        assert!(observed["argv"] == expected, "it came as something else: {}", short(value));
    });
}

#[test]
fn hostile_values_stay_what_they_are_within_an_argument_the_environment_and_the_input() {
    for_each_value("other", 2, |value, observed| {
        // Twice in one argument, with something around it.
        if value.contains('\0') || 2 * value.len() + 3 > ARG_BYTES_MAX {
            return is_refused(value, &observed);
        }
        let observed = observed.unwrap_or_else(|why| panic!("refused: {}: {why}", short(value)));
        let words = [format!("--value={value}"), format!("<{value}|{value}>"), "last".to_owned()];
        let expected =
            json!({"argv": words.map(|word| hex(word.as_bytes())), "env": hex(value.as_bytes()), "stdin": hex(value.as_bytes())});
        assert!(observed == expected, "it came as something else: {}", short(value));
    });
}

#[test]
fn hostile_values_are_no_code_for_a_shell_that_gets_them_as_parameters() {
    for_each_value("shell", 4, |value, observed| {
        if value.contains('\0') || value.starts_with('-') || value.len() > ARG_BYTES_MAX {
            return is_refused(value, &observed);
        }
        let observed = observed.unwrap_or_else(|why| panic!("refused: {}: {why}", short(value)));
        let expected = json!([hex(b"first"), hex(value.as_bytes()), hex(b"last")]);
        assert!(observed["argv"] == expected, "it came as something else: {}", short(value));
    });
}

#[test]
fn what_is_no_text_is_refused_and_the_server_lives_on() {
    let server_dir = server_dir();
    let server = server_dir.start();
    for text in [
        "\"\\ud800\"",
        "\"\\udc00\\ud800\"",
        "\"\\ud83d\"",
        "\"\\x00\"",
        "\"\u{0}\"",
        "1",
        "true",
        "null",
        "[]",
        "[\"a\"]",
        "{}",
        "{\"value\": \"a\"}",
    ] {
        assert!(run_with(&server, "plain", text).is_err(), "{text}");
    }
    let observed = run_with(&server, "plain", "\"\\ud83d\\ude00\"").expect("a pair is a character");
    assert_eq!(observed["argv"][1], hex("😀".as_bytes()));
    let extra = server.send("tools/call", json!({"name": "plain", "arguments": {"value": "a", "other": "b"}}));
    assert!(refusal(&extra).is_some_and(|why| why.contains("other")), "{extra}");
    let none = server.send("tools/call", json!({"name": "plain", "arguments": {}}));
    assert!(refusal(&none).is_some_and(|why| why.contains("value")), "{none}");
    server_dir.is_quiet();
}

//! Better words for the TOML parser's errors: what to write instead.

use std::ops::Range;

use toml::de::{DeTable, DeValue};

use super::Config;
use crate::client::schema::nearest;

/// The parser's message, or better words for it.
pub(super) fn explain(text: &str, error: &toml::de::Error) -> String {
    let message = error.message();
    if let Some(rest) = message.strip_prefix("unknown field ") {
        return unknown_key(text, error.span(), rest);
    }
    if let Some(rest) = message.strip_prefix("unknown variant ") {
        let (found, words) = rest.split_once(", expected ").unwrap_or((rest, "another word"));
        return format!("{found} cannot be used here: it is {}", words.trim_start_matches("one of "));
    }
    if message.starts_with("missing escaped value") {
        return format!("{message}\nin \"…\" a backslash begins an escape: write patterns in single quotes, '…'");
    }
    let expected = match message.rsplit_once(", expected ") {
        Some((kind, expected)) if kind.starts_with("invalid ") => expected,
        _ if message == "wanted string or table" => "a word",
        _ => return message.to_owned(),
    };
    let root = DeTable::parse(text).ok().map(|root| DeValue::Table(root.into_inner()));
    let found = root.as_ref().zip(error.span()).and_then(|(root, span)| value_at(root, &span, &mut Vec::new()));
    found.and_then(|(path, value)| suggestion(&path, value, expected)).unwrap_or_else(|| message.to_owned())
}

/// The message about an unknown key: which one was probably meant, or which ones there are.
fn unknown_key(text: &str, span: Option<Range<usize>>, message: &str) -> String {
    let mut quoted = message.split('`').skip(1).step_by(2);
    let key = quoted.next().unwrap_or_default();
    let known: Vec<&str> = quoted.collect();
    if is_in_tool(text, span) && is_server_key(key) {
        return format!("`{key}` is a key of the server, not of a tool: put it above the first [[tool]]");
    }
    match nearest(key, known.iter().copied()) {
        Some(nearest) => format!("there is no key `{key}` here: did you mean `{nearest}`?"),
        None if known.is_empty() => format!("there is no key `{key}` here"),
        None => format!("there is no key `{key}` here; there are: {}", known.join(", ")),
    }
}

/// Whether the key at this span belongs to a tool.
fn is_in_tool(text: &str, span: Option<Range<usize>>) -> bool {
    let Ok(root) = DeTable::parse(text) else { return false };
    let Some(DeValue::Array(tools)) = root.get_ref().get("tool").map(|tools| tools.get_ref()) else { return false };
    tools.iter().any(|tool| match tool.get_ref() {
        DeValue::Table(keys) => keys.keys().any(|key| Some(key.span()) == span),
        _ => false,
    })
}

/// Whether the server has such a key: then the key itself is not what is wrong.
fn is_server_key(key: &str) -> bool {
    let is_plain = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let with_it = || toml::from_str::<Config>(&format!("{key} = 0"));
    is_plain && with_it().map_or_else(|error| !error.message().starts_with("unknown field"), |_| true)
}

/// The value at this span, and the keys that lead to it.
fn value_at<'a, 'i>(value: &'a DeValue<'i>, span: &Range<usize>, path: &mut Vec<String>) -> Option<(Vec<String>, &'a DeValue<'i>)> {
    let children: Vec<(String, &'a toml::Spanned<DeValue<'i>>)> = match value {
        DeValue::Table(table) => table.iter().map(|(key, child)| (key.get_ref().to_string(), child)).collect(),
        DeValue::Array(items) => items.iter().enumerate().map(|(n, child)| (n.to_string(), child)).collect(),
        _ => Vec::new(),
    };
    for (step, child) in children {
        path.push(step);
        if child.span() == *span {
            return Some((path.clone(), child.get_ref()));
        }
        if let Some(found) = value_at(child.get_ref(), span, path) {
            return Some(found);
        }
        path.pop();
    }
    None
}

/// What to write instead of this value, where something else was expected.
fn suggestion(path: &[String], value: &DeValue<'_>, expected: &str) -> Option<String> {
    let key = path.iter().rev().find(|step| step.parse::<usize>().is_err())?;
    // As it could stand in the file. Messages go to logs, and tokens must not.
    let written = match value {
        _ if path.iter().any(|step| step.contains("token") || step.contains("secret")) => None,
        DeValue::String(text) => Some(quoted(text)),
        DeValue::Integer(number) => Some(number.to_string()),
        DeValue::Float(number) => Some(number.to_string()),
        DeValue::Boolean(flag) => Some(flag.to_string()),
        _ => None,
    };
    let is_item = path.last() != Some(key);
    match expected {
        "a sequence" if path == ["tool"] => Some("write `[[tool]]`, with two brackets: there may be several tools".to_owned()),
        "a sequence" if key == "command" => {
            Some(format!("`command` is a list, one element for each argument: command = [{}]", argument_list(value)))
        }
        "a sequence" => {
            let item = written.filter(|_| !matches!(value, DeValue::Boolean(_))).unwrap_or_else(|| "\"…\"".to_owned());
            Some(format!("`{key}` is a list: {key} = [{item}]"))
        }
        "a string" if is_item => Some(format!("`{key}` is a list of texts: write {} here", text_literal(written))),
        "a string" => Some(format!("`{key}` is text: write {key} = {}", text_literal(written))),
        "a word" => Some(format!("`{key}` is a word, in quotes")),
        "a boolean" => Some(format!("`{key}` is true or false, without quotes")),
        "a map" => Some(format!("`{key}` is a table: {key} = {{ … }}")),
        "usize" | "u64" | "u32" | "u16" | "u8" | "i32" | "i64" => {
            let from = if expected.starts_with('u') { " from 0 up" } else { "" };
            let number = match value {
                DeValue::String(text) if text.trim().parse::<u64>().is_ok() => format!(", without quotes: {}", text.trim()),
                _ => written.map(|written| format!(", not {written}")).unwrap_or_default(),
            };
            Some(format!("`{key}` is a whole number{from}{number}"))
        }
        _ => None,
    }
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A value as a quoted text.
fn text_literal(written: Option<String>) -> String {
    written.map_or_else(|| "\"…\"".to_owned(), |written| quoted(&written))
}

/// A command line as a list; an example where splitting at blanks would not do.
fn argument_list(value: &DeValue<'_>) -> String {
    let plain = |line: &str| !line.trim().is_empty() && !line.contains(['"', '\'', '\\', '|', '&', ';', '<', '>', '$', '`', '*', '\n']);
    match value {
        DeValue::String(line) if plain(line) => line.split_whitespace().map(quoted).collect::<Vec<_>>().join(", "),
        _ => "\"ls\", \"-l\"".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The last line of what is said about a file.
    #[track_caller]
    fn explained(text: &str) -> String {
        explain(text, &toml::from_str::<Config>(text).map(drop).expect_err(text))
    }

    /// The same about a key of a tool.
    #[track_caller]
    fn of_tool(key: &str) -> String {
        explained(&format!("[[tool]]\nname = \"t\"\ncommand = [\"true\"]\n{key}\n"))
    }

    #[test]
    fn the_first_mistakes_of_newcomers_are_answered_with_what_to_write() {
        for text in ["[tool]\nname = \"a\"\ncommand = [\"ls\"]\n", "tool = { name = \"a\" }\n"] {
            assert_eq!(explained(text), "write `[[tool]]`, with two brackets: there may be several tools");
        }
        let command = |line: &str| explained(&format!("[[tool]]\nname = \"t\"\ncommand = {line}\n"));
        assert_eq!(command("\"ls -l\""), "`command` is a list, one element for each argument: command = [\"ls\", \"-l\"]");
        assert_eq!(command("\"wc  {path}\""), "`command` is a list, one element for each argument: command = [\"wc\", \"{path}\"]");
        for line in ["\"echo 'a b'\"", "\"\"", "3", "'a | b'"] {
            assert!(command(line).ends_with("command = [\"ls\", \"-l\"]"), "{line}: {}", command(line));
        }
        assert_eq!(of_tool("redact = 'a\\d'"), "`redact` is a list: redact = [\"a\\\\d\"]");
        assert_eq!(of_tool("ok_codes = 3"), "`ok_codes` is a list: ok_codes = [3]");
        assert_eq!(of_tool("allow_dash = true"), "`allow_dash` is a list: allow_dash = [\"…\"]");
        assert_eq!(of_tool("env = { A = 1 }"), "`A` is text: write A = \"1\"");
        assert_eq!(of_tool("env = { A = true }"), "`A` is text: write A = \"true\"");
        assert_eq!(of_tool("env = \"A=1\""), "`env` is a table: env = { … }");
        assert_eq!(of_tool("redact = [1]"), "`redact` is a list of texts: write \"1\" here");
        assert_eq!(of_tool("title = ['a']"), "`title` is text: write title = \"…\"");
        assert_eq!(of_tool("concurrency = -1"), "`concurrency` is a whole number from 0 up, not -1");
        assert_eq!(of_tool("concurrency = \"3\""), "`concurrency` is a whole number from 0 up, without quotes: 3");
        assert_eq!(of_tool("ok_codes = [\"x\"]"), "`ok_codes` is a whole number, not \"x\"");
        assert_eq!(of_tool("dedupe = \"yes\""), "`dedupe` is true or false, without quotes");
        assert_eq!(of_tool("leftovers = 1"), "`leftovers` is a word, in quotes");
        assert_eq!(of_tool("output = \"xml\""), "`xml` cannot be used here: it is `text` or `jsonl`");
        assert_eq!(explained("page_len = \"many\"\n"), "`page_len` is a whole number from 0 up, not \"many\"");
        assert_eq!(explained("[http]\nallowed_hosts = \"a\"\n"), "`allowed_hosts` is a list: allowed_hosts = [\"a\"]");
    }

    #[test]
    fn a_span_of_time_has_a_unit() {
        assert_eq!(of_tool("timeout = 60"), "a time span has a unit: write \"60s\"");
        assert_eq!(explained("hold = 45\n"), "a time span has a unit: write \"45s\"");
        assert_eq!(explained("retention = 3600\n"), "a time span has a unit: write \"3600s\"");
        assert!(of_tool("timeout = true").ends_with("expected a time span such as \"1s\" or \"10m\""));
        assert!(of_tool("timeout = -1").contains("expected a time span"));
    }

    #[test]
    fn an_unknown_key_is_answered_with_the_one_that_was_meant() {
        assert_eq!(of_tool("timout = \"1s\""), "there is no key `timout` here: did you mean `timeout`?");
        let none = of_tool("zzzzzzzzzzzzzzz = 1");
        assert!(
            none.starts_with("there is no key `zzzzzzzzzzzzzzz` here; there are: name, title, ") && !none.contains("did you"),
            "{none}"
        );
    }

    #[test]
    fn a_key_of_the_server_among_those_of_a_tool_is_put_right() {
        for (line, key) in [("listen = \"127.0.0.1:1\"", "listen"), ("demo = true", "demo"), ("limits.chunk_bytes = 1", "limits")] {
            assert_eq!(of_tool(line), format!("`{key}` is a key of the server, not of a tool: put it above the first [[tool]]"));
        }
        assert!(!of_tool("listn = 1").contains("key of the server"));
        assert!(!explained("[http]\nlisten = \"a\"\n").contains("key of the server"), "that is no tool");
    }

    #[test]
    fn no_token_is_said() {
        for text in ["[auth]\ntokens = \"12345\"\n", "[auth]\ntokens = [{ token = 12345, caller = \"a\" }]\n"] {
            assert!(!explained(text).contains("12345"), "{}", explained(text));
        }
    }

    #[test]
    fn patterns_are_best_in_single_quotes() {
        let said = of_tool("progress = \"(?<percent>\\d+)%\"");
        assert!(said.ends_with("write patterns in single quotes, '…'"), "{said}");
    }
}

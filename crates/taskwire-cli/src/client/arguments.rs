//! Arguments as they are typed: `key=value`, `key:=json`, JSON objects, and files for any of them.

use std::io::{self, Read};

use serde_json::{Map, Value};

use super::schema::{Parameter, Parameters, nearest};

/// One word of the command line.
#[derive(Debug, PartialEq, Eq)]
enum Argument<'a> {
    /// `key=value`
    Text(&'a str, &'a str),
    /// `key@=FILE`
    File(&'a str, &'a str),
    /// `key:=json`
    Json(&'a str, &'a str),
    /// `{…}`, `@file` or `-`
    Object(&'a str),
    /// None of these.
    Invalid,
}

fn parse_argument(text: &str) -> Argument<'_> {
    if text.starts_with('{') || text == "-" || text.starts_with('@') {
        return Argument::Object(text);
    }
    match text.split_once('=') {
        Some((key, value)) => match key.strip_suffix(':') {
            Some("") => Argument::Invalid,
            Some(key) => Argument::Json(key, value),
            None => match key.strip_suffix('@') {
                Some("") => Argument::Invalid,
                Some(key) => Argument::File(key, value),
                None if key.is_empty() => Argument::Invalid,
                None => Argument::Text(key, value),
            },
        },
        None => Argument::Invalid,
    }
}

/// The name in `name=value` and its like, if there is one.
pub(crate) fn key(text: &str) -> Option<&str> {
    match parse_argument(text) {
        Argument::Text(key, _) | Argument::File(key, _) | Argument::Json(key, _) => Some(key),
        Argument::Object(_) | Argument::Invalid => None,
    }
}

/// Files and standard input, for values that are not on the command line.
pub(crate) trait TextSource {
    /// The text of a file; of standard input for `-`.
    fn read(&mut self, name: &str) -> io::Result<String>;
}

/// The real files and the real standard input.
#[derive(Debug, Default)]
pub(crate) struct FilesAndStdin {
    is_stdin_read: bool,
}

impl TextSource for FilesAndStdin {
    fn read(&mut self, name: &str) -> io::Result<String> {
        if name != "-" {
            return std::fs::read_to_string(name);
        }
        if std::mem::replace(&mut self.is_stdin_read, true) {
            return Err(io::Error::other("it can be read only once"));
        }
        let mut text = String::new();
        io::stdin().read_to_string(&mut text)?;
        Ok(text)
    }
}

/// The arguments for `owner` (a tool, or a question), of this schema.
///
/// # Errors
/// A message for the person who typed them.
pub(crate) fn read(owner: &str, words: &[String], schema: &Value, files: &mut dyn TextSource) -> Result<Value, String> {
    let parameters = Parameters::new(schema);
    let mut values = Map::new();
    let mut named = Vec::new();
    for text in words {
        match parse_argument(text) {
            Argument::Invalid => return Err(format!("`{text}` is neither key=value, key:=json nor a JSON object")),
            Argument::Object(source) => values.extend(object(source, files)?),
            Argument::Text(key, source) | Argument::File(key, source) => {
                let parameter = find_parameter(owner, parameters, key)?;
                let text = match parse_argument(text) {
                    // Taken literally, whatever it begins with: it may come from a variable.
                    Argument::Text(..) => source.to_owned(),
                    _ => load(source, files)?,
                };
                let value = match &parameter {
                    Some(parameter) => parameter.value(&text)?,
                    None => Value::String(text),
                };
                let is_again = named.contains(&key);
                add(&mut values, key, value, is_again, parameter.is_some_and(|parameter| parameter.is_list()))?;
                named.push(key);
            }
            Argument::Json(key, value) => {
                find_parameter(owner, parameters, key)?;
                let source = contents(value, files)?;
                let value = serde_json::from_str(&source).map_err(|error| format!("`{text}` is not JSON: {error}"))?;
                add(&mut values, key, value, named.contains(&key), false)?;
                named.push(key);
            }
        }
    }
    match parameters.required().find(|name| !values.contains_key(*name)) {
        Some(missing) => Err(format!("`{owner}` needs `{missing}`. Its parameters: {}", parameters.summary())),
        None => Ok(Value::Object(values)),
    }
}

/// The parameter of this name; `None` where any name is allowed.
fn find_parameter<'a>(owner: &str, parameters: Parameters<'a>, key: &str) -> Result<Option<Parameter<'a>>, String> {
    let found = parameters.get(key);
    if found.is_some() || !parameters.is_closed() {
        return Ok(found);
    }
    let names: Vec<&str> = parameters.all().into_iter().map(|parameter| parameter.name).collect();
    let hint = nearest(key, names.into_iter()).map(|name| format!("; did you mean `{name}`?")).unwrap_or_else(|| ".".to_owned());
    Err(format!("`{owner}` has no parameter `{key}`{hint} Its parameters: {}", parameters.summary()))
}

/// Adds a value. A list may be given element by element, anything else once.
fn add(values: &mut Map<String, Value>, key: &str, value: Value, is_again: bool, is_list: bool) -> Result<(), String> {
    if !is_again {
        values.insert(key.to_owned(), value);
        return Ok(());
    }
    match (values.get_mut(key), value) {
        (Some(Value::Array(before)), Value::Array(more)) if is_list => {
            before.extend(more);
            Ok(())
        }
        _ => Err(format!("`{key}` is given twice")),
    }
}

/// The JSON that a value on the command line stands for: itself, or the content of a file.
fn contents(value: &str, files: &mut dyn TextSource) -> Result<String, String> {
    match value.strip_prefix('@') {
        Some(name) => load(name, files),
        None if value == "-" => load("-", files),
        None => Ok(value.to_owned()),
    }
}

/// The text of a file, or of standard input for `-`.
pub(crate) fn load(name: &str, files: &mut dyn TextSource) -> Result<String, String> {
    let source = if name == "-" { "standard input" } else { name };
    files.read(name).map_err(|error| format!("cannot read {source}: {error}"))
}

fn object(source: &str, files: &mut dyn TextSource) -> Result<Map<String, Value>, String> {
    let text = contents(source, files)?;
    match serde_json::from_str(&text) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(format!("`{source}` is not a JSON object")),
        Err(error) => Err(format!("`{source}` is not JSON: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    struct FakeFiles;

    impl TextSource for FakeFiles {
        fn read(&mut self, name: &str) -> io::Result<String> {
            match name {
                "note.txt" => Ok("from=a file\n".to_owned()),
                "args.json" => Ok("{\"path\": \"x\", \"lines\": 3}".to_owned()),
                "-" => Ok("typed".to_owned()),
                _ => Err(io::ErrorKind::NotFound.into()),
            }
        }
    }

    fn arguments(words: &[&str]) -> Result<Value, String> {
        let schema = json!({
            "properties": {
                "path": {"type": "string"}, "lines": {"type": "integer"}, "deep": {"type": "object"},
                "tags": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["path"],
        });
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        read("count", &words, &schema, &mut FakeFiles)
    }

    #[test]
    fn arguments_can_be_given_in_every_way() {
        for (words, expected) in [
            (&["path=a=b", "lines=3"] as &[&str], json!({"path": "a=b", "lines": 3})),
            (&["path:=\"5\"", "deep:={\"a\":[1]}"], json!({"path": "5", "deep": {"a": [1]}})),
            (&["{\"path\": \"x\", \"other\": 1}"], json!({"path": "x", "other": 1})),
            (&["path@=note.txt"], json!({"path": "from=a file\n"})),
            (&["path@=-"], json!({"path": "typed"})),
            (&["path=@note.txt"], json!({"path": "@note.txt"})),
            (&["path=-"], json!({"path": "-"})),
            (&["path=x", "deep:=@args.json"], json!({"path": "x", "deep": {"path": "x", "lines": 3}})),
            (&["@args.json", "lines=4"], json!({"path": "x", "lines": 4})),
            (&["path=", "tags=a", "tags=b,c"], json!({"path": "", "tags": ["a", "b,c"]})),
            (&["path=x", "tags=[\"a\"]"], json!({"path": "x", "tags": ["a"]})),
        ] {
            assert_eq!(arguments(words), Ok(expected), "{words:?}");
        }
    }

    #[test]
    fn mistakes_are_told_with_what_would_be_right() {
        let all = "Its parameters: path (string, required), deep (object, optional), lines (integer, optional), tags (array, optional)";
        for (words, expected) in [
            (&["path=x", "line=3"] as &[&str], format!("`count` has no parameter `line`; did you mean `lines`? {all}")),
            (&["path=x", "zzzzzz:=3"], format!("`count` has no parameter `zzzzzz`. {all}")),
            (&["lines=3"], format!("`count` needs `path`. {all}")),
            (&[], format!("`count` needs `path`. {all}")),
            (&["path=x", "path=y"], "`path` is given twice".to_owned()),
            (&["path=x", "lines=few"], "`lines` must be an integer, not `few`".to_owned()),
            (&["path"], "`path` is neither key=value, key:=json nor a JSON object".to_owned()),
            (&["@=x"], "cannot read =x: entity not found".to_owned()),
            (&["=x"], "`=x` is neither key=value, key:=json nor a JSON object".to_owned()),
            (&["path@=missing"], "cannot read missing: entity not found".to_owned()),
        ] {
            assert_eq!(arguments(words), Err(expected), "{words:?}");
        }
        for (words, beginning) in [
            (&["path:=x"] as &[&str], "`path:=x` is not JSON: "),
            (&["{path: 1}"], "`{path: 1}` is not JSON: "),
            (&["-"], "`-` is not JSON: "),
        ] {
            let complaint = arguments(words).expect_err("a mistake");
            assert!(complaint.starts_with(beginning), "{complaint}");
        }
    }

    #[test]
    fn a_tool_that_says_nothing_about_its_parameters_gets_text() {
        let words = ["a=1".to_owned(), "b:=1".to_owned()];
        assert_eq!(read("any", &words, &json!({"type": "object"}), &mut FakeFiles), Ok(json!({"a": "1", "b": 1})));
    }

    #[test]
    fn standard_input_is_read_once() {
        let mut disk = FilesAndStdin { is_stdin_read: true };
        assert!(disk.read("-").expect_err("not again").to_string().contains("only once"));
    }
}

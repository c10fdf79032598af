//! Messages that stay short, whatever a caller sends.

use std::fmt::{self, Write};

use serde_json::Value;

/// Characters of a value that a message repeats.
const VALUE_CHARS: usize = 100;
/// Characters of a message.
const MESSAGE_CHARS: usize = 300;
/// Characters of the path to a value, at its beginning and as many at its end.
const PATH_CHARS: usize = 100;

/// Accepts `left` more characters, then fails.
struct TruncatingWriter {
    text: String,
    left: usize,
}

impl Write for TruncatingWriter {
    fn write_str(&mut self, piece: &str) -> fmt::Result {
        for c in piece.chars() {
            // The error stops the formatter, so that a large value is not written to its end.
            self.left = self.left.checked_sub(1).ok_or(fmt::Error)?;
            self.text.push(c);
        }
        Ok(())
    }
}

/// Writes at most `chars` characters.
fn short(words: fmt::Arguments<'_>, chars: usize) -> String {
    let mut short = TruncatingWriter { text: String::new(), left: chars };
    if short.write_fmt(words).is_err() {
        short.text.push('…');
    }
    short.text
}

/// A message, cut if it is long.
pub(super) fn short_message(words: fmt::Arguments<'_>) -> String {
    short(words, MESSAGE_CHARS)
}

/// A value as a message repeats it.
pub(super) fn short_value(value: &Value) -> String {
    short(format_args!("{value}"), VALUE_CHARS)
}

/// The path to a value as a message shows it, `items/3/name`. A long path lacks its middle.
pub(super) fn short_path(steps: &[String]) -> String {
    let steps: Vec<String> = steps.iter().map(|step| step.replace('~', "~0").replace('/', "~1")).collect();
    let all = steps.join("/");
    let count = all.chars().count();
    if count <= 2 * PATH_CHARS {
        return all;
    }
    let (first, last) = (all.chars().take(PATH_CHARS), all.chars().skip(count - PATH_CHARS));
    first.chain(['…']).chain(last).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_long_is_cut() {
        assert_eq!(short_value(&json!({"a": [1, "ä"]})), "{\"a\":[1,\"ä\"]}");
        let exact = json!("ä".repeat(VALUE_CHARS - 2));
        assert_eq!(short_value(&exact), exact.to_string());
        let long = short_value(&json!("ä".repeat(VALUE_CHARS)));
        assert!(long.ends_with('…') && long.chars().count() == VALUE_CHARS + 1, "{long}");
        let deep = (0..1_000).fold(json!(1), |inner, _| Value::Array(vec![inner]));
        assert_eq!(short_value(&deep), format!("{}…", "[".repeat(VALUE_CHARS)), "it is not gone through to its end");
        assert_eq!(short_message(format_args!("{}", "x".repeat(1_000))).chars().count(), MESSAGE_CHARS + 1);
    }

    #[test]
    fn a_long_path_keeps_both_ends() {
        let steps = |count: usize| -> Vec<String> { (0..count).map(|nth| format!("s{nth}")).collect() };
        assert_eq!(short_path(&["a/b".to_owned(), "0".to_owned(), "~".to_owned()]), "a~1b/0/~0");
        assert_eq!(short_path(&steps(3)), "s0/s1/s2");
        let long = short_path(&steps(1_000));
        assert!(long.starts_with("s0/s1/") && long.contains('…') && long.ends_with("/s998/s999"), "{long}");
        assert_eq!(long.chars().count(), 2 * PATH_CHARS + 1);
    }
}

//! Splits a bash command line into words, and quotes what is inserted so that bash reads it back.
//!
//! Bash also splits words at `:` and `=` before it calls a script, so that an address is several words. So the script passes the whole
//! line, and the part of it that bash will replace.

use super::Candidate;

/// Bash asks for a list to show, not for text to insert.
const LISTING: &str = "63";
/// Characters that stand for themselves.
const PLAIN: &str = "-_./=:,@%+~#^";

/// The words of a line, up to the cursor.
#[derive(Debug, PartialEq, Eq)]
struct SplitLine<'a> {
    /// Without their quotes. The last word is the one at the cursor, even if it is still empty.
    words: Vec<String>,
    /// The last one as it was typed.
    raw: &'a str,
    /// The quote that is still open.
    quote: Option<char>,
}

fn split(line: &str) -> SplitLine<'_> {
    let (mut words, mut word, mut start, mut quote) = (Vec::new(), None::<String>, line.len(), None);
    let mut chars = line.char_indices();
    while let Some((at, c)) = chars.next() {
        if quote.is_none() && c.is_whitespace() {
            words.extend(word.take());
            start = line.len();
            continue;
        }
        if word.is_none() {
            start = at;
        }
        let text = word.get_or_insert_default();
        match (quote, c) {
            (None, '\'' | '"') => quote = Some(c),
            (Some(open), c) if open == c => quote = None,
            (None, '\\') => text.extend(chars.next().map(|(_, c)| c)),
            (Some('"'), '\\') => match chars.next().map(|(_, c)| c) {
                Some(c @ ('"' | '\\' | '$' | '`')) => text.push(c),
                other => text.extend(std::iter::once('\\').chain(other)),
            },
            (_, c) => text.push(c),
        }
    }
    words.push(word.unwrap_or_default());
    SplitLine { words, raw: &line[start..], quote }
}

/// The words of a line up to the cursor, without their quotes.
pub(crate) fn words(line: &str) -> Vec<String> {
    split(line).words
}

/// The lines that bash gets: candidates for `replaced`, which is the end of `line`. `kind` is the type of completion that bash asks for.
pub(crate) fn bash_replies(line: &str, replaced: &str, kind: &str, candidates: &[Candidate]) -> String {
    let line = split(line);
    let kept = line.raw.strip_suffix(replaced).map(words).and_then(|mut words| words.pop()).unwrap_or_default();
    let is_list = kind == LISTING && candidates.len() > 1;
    let mut text = String::new();
    for candidate in candidates {
        let Some(rest) = candidate.text.strip_prefix(kept.as_str()) else { continue };
        text.push_str(&quoted(rest, line.quote));
        if is_list && !candidate.help.is_empty() {
            text.push_str(&format!("  ({})", candidate.help));
        } else if candidate.is_whole && line.quote.is_none() {
            // The script tells bash to add no blank, since more follows after `key=`.
            text.push(' ');
        }
        text.push('\n');
    }
    text
}

/// Quotes text for the line, within this quote if one is open.
fn quoted(text: &str, quote: Option<char>) -> String {
    let is_special = |c: char| match quote {
        Some('"') => "\"\\$`".contains(c),
        _ => c.is_ascii() && !c.is_ascii_alphanumeric() && !PLAIN.contains(c),
    };
    match quote {
        Some('\'') => text.replace('\'', r"'\''"),
        _ => text.chars().fold(String::with_capacity(text.len()), |mut line, c| {
            line.extend(is_special(c).then_some('\\').into_iter().chain([c]));
            line
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_cut_where_a_shell_would() {
        for (line, expected, raw, quote) in [
            ("taskwire ", &["taskwire", ""] as &[&str], "", None),
            ("taskwire call", &["taskwire", "call"], "call", None),
            ("t call http://h:1/mcp  co", &["t", "call", "http://h:1/mcp", "co"], "co", None),
            ("t 'stdio:a b", &["t", "stdio:a b"], "'stdio:a b", Some('\'')),
            (r#"t x"a \"b \c"#, &["t", r#"xa "b \c"#], r#"x"a \"b \c"#, Some('"')),
            (r"t 'it'\''s' a\ b", &["t", "it's", "a b"], r"a\ b", None),
            ("t '' ü", &["t", "", "ü"], "ü", None),
            (r"t a\", &["t", "a"], r"a\", None),
        ] {
            let expected = SplitLine { words: expected.iter().map(|word| (*word).to_owned()).collect(), raw, quote };
            assert_eq!(split(line), expected, "{line}");
        }
    }

    #[test]
    fn only_what_bash_replaces_is_given_and_is_read_back_as_it_was_meant() {
        let stdio = [Candidate::whole("stdio:npx -y 'it'", "")];
        for (line, replaced, expected) in [
            ("t call stdio:np", "np", "npx\\ -y\\ \\'it\\' \n"),
            ("t call 'stdio:np", "stdio:np", "stdio:npx -y '\\''it'\\''\n"),
            ("t call \"stdio:np", "stdio:np", "stdio:npx -y 'it'\n"),
            (r"t call stdio:npx\ -", r"npx\ -", "npx\\ -y\\ \\'it\\' \n"),
            ("t call ", "", "stdio:npx\\ -y\\ \\'it\\' \n"),
        ] {
            assert_eq!(bash_replies(line, replaced, "9", &stdio), expected, "{line}");
        }
        let field = [Candidate::part("to=", "how far")];
        assert_eq!(bash_replies("t call demo count t", "t", "63", &field), "to=\n", "the only one is put in");
        let value = [Candidate::whole("to=$(reboot)", "")];
        assert_eq!(bash_replies("t call demo count to=", "", "9", &value), "\\$\\(reboot\\) \n");
        assert_eq!(bash_replies("t call demo count \"to=", "to=", "9", &value), "to=\\$(reboot)\n");
    }

    #[test]
    fn a_list_says_what_is_what() {
        let two = [Candidate::whole("01kabc", "count, working"), Candidate::whole("01kabd", "")];
        assert_eq!(bash_replies("t watch 01", "01", "63", &two), "01kabc  (count, working)\n01kabd \n");
        assert_eq!(bash_replies("t watch 01", "01", "9", &two), "01kabc \n01kabd \n");
    }
}

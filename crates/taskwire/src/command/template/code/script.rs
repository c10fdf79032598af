//! Finds commands in shell scripts that run their arguments: `eval "$1"`, `sh -c "$1"`, `. "$1"`, `"$1"`.
//!
//! This is no shell. It splits a script into simple commands and their words, with quotes and substitutions, and follows values into
//! variables. What it finds is a reason to warn, not to refuse.

use super::{Group, Role, assigned, read_command};
use crate::command::template::{Element, TemplatePiece};

/// Substitutions that are nested deeper are not searched.
const DEPTH_MAX: usize = 16;
/// Words that may stand before a command.
const KEYWORDS: &str = "if then elif else while until do { } ! time exec command builtin nohup export local declare readonly typeset";

/// The arguments of a script, from `$0` on: for each whether it may be any text from the caller, and whether it is at the same position in
/// every call.
#[derive(Debug)]
pub(super) struct ScriptArguments(Vec<(bool, bool)>);

impl ScriptArguments {
    pub(super) fn of(elements: &[(&Element, bool)]) -> Self {
        Self(elements.iter().map(|(element, is_certain)| (element.free_text_parameter.is_some(), *is_certain)).collect())
    }

    /// Whether any argument may be any text.
    pub(super) fn any(&self) -> bool {
        self.0.iter().any(|(is_free_text, _)| *is_free_text)
    }

    /// Whether this argument may be any text.
    fn has(&self, number: usize) -> bool {
        let uncertain = self.0.iter().position(|(_, is_certain)| !is_certain).filter(|at| *at <= number);
        match uncertain {
            Some(at) => self.0[at..].iter().any(|(is_free_text, _)| *is_free_text),
            None => self.0.get(number).is_some_and(|(is_free_text, _)| *is_free_text),
        }
    }
}

pub(super) fn commands_that_run_values(script: &str, values: &ScriptArguments) -> Vec<String> {
    let mut scan = Scan { text: script, at: 0, values, value_variables: Vec::new(), found: Vec::new(), heredoc_end: None };
    if values.any() {
        scan.commands(None, 0);
    }
    scan.found
}

struct Scan<'a> {
    text: &'a str,
    at: usize,
    values: &'a ScriptArguments,
    /// Variables that have a value of the caller.
    value_variables: Vec<String>,
    found: Vec<String>,
    /// The line that ends the here-document, which begins after this line and is no script.
    heredoc_end: Option<String>,
}

#[derive(Default)]
struct Word {
    pieces: Vec<TemplatePiece>,
    free_text_parameter: Option<String>,
    /// Whether it has begun, even if it is empty.
    is_there: bool,
    from: usize,
}

impl Word {
    fn begin(&mut self, at: usize) {
        if !self.is_there {
            (self.is_there, self.from) = (true, at);
        }
    }

    fn push(&mut self, text: &str) {
        match self.pieces.last_mut() {
            _ if text.is_empty() => {}
            Some(TemplatePiece::Literal(last)) => last.push_str(text),
            _ => self.pieces.push(TemplatePiece::Literal(text.to_owned())),
        }
    }

    fn value(&mut self, name: &str) {
        self.pieces.push(TemplatePiece::Parameter(name.to_owned()));
        self.free_text_parameter.get_or_insert_with(|| name.to_owned());
    }
}

impl Scan<'_> {
    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn bump(&mut self) -> Option<char> {
        let next = self.peek()?;
        self.at += next.len_utf8();
        Some(next)
    }

    /// The text before `end`, which is skipped too; all the rest if `end` does not come.
    fn until(&mut self, end: &str) -> &str {
        let rest = &self.text[self.at..];
        let (taken, passed) = rest.find(end).map_or((rest.len(), 0), |at| (at, end.len()));
        self.at += taken + passed;
        &rest[..taken]
    }

    /// Checks commands up to `end`.
    fn commands(&mut self, end: Option<char>, depth: usize) {
        loop {
            let from = self.at;
            let (words, is_over) = self.command(end, depth);
            self.check_command(&words, from);
            if is_over {
                return;
            }
        }
    }

    /// The words of the next command, and whether it was the last.
    fn command(&mut self, end: Option<char>, depth: usize) -> (Vec<Element>, bool) {
        let mut words = Vec::new();
        let mut word = Word::default();
        let (mut is_quoted, mut is_target) = (false, false);
        loop {
            let at = self.at;
            let Some(next) = self.bump() else {
                self.finish(&mut word, at, &mut words, &mut is_target);
                return (words, true);
            };
            match next {
                '"' => {
                    word.begin(at);
                    is_quoted = !is_quoted;
                }
                '\'' if !is_quoted => {
                    word.begin(at);
                    let quoted = self.until("'").to_owned();
                    word.push(&quoted);
                }
                '\\' => {
                    if let Some(escaped) = self.bump().filter(|escaped| *escaped != '\n') {
                        word.begin(at);
                        word.push(escaped.encode_utf8(&mut [0; 4]));
                    }
                }
                '$' => {
                    word.begin(at);
                    self.dollar(&mut word, depth);
                }
                '`' if end == Some('`') => {
                    self.finish(&mut word, at, &mut words, &mut is_target);
                    return (words, true);
                }
                '`' => {
                    word.begin(at);
                    self.nested('`', depth);
                }
                _ if is_quoted => word.push(next.encode_utf8(&mut [0; 4])),
                _ if Some(next) == end => {
                    self.finish(&mut word, at, &mut words, &mut is_target);
                    return (words, true);
                }
                '#' if !word.is_there => {
                    self.until("\n");
                    return (words, false);
                }
                '\n' | ';' | '|' | '&' | '(' | ')' => {
                    self.finish(&mut word, at, &mut words, &mut is_target);
                    if next == '\n'
                        && let Some(delimiter) = self.heredoc_end.take()
                    {
                        self.at = at;
                        self.until(&format!("\n{delimiter}"));
                    }
                    return (words, false);
                }
                '<' | '>' => {
                    // The number of a stream is no word.
                    if !word
                        .pieces
                        .iter()
                        .all(|piece| matches!(piece, TemplatePiece::Literal(text) if text.chars().all(|c| c.is_ascii_digit())))
                    {
                        self.finish(&mut word, at, &mut words, &mut is_target);
                    }
                    word = Word::default();
                    is_target = true;
                    if next == '<' && self.text[self.at..].starts_with('<') && !self.text[self.at..].starts_with("<<") {
                        self.bump();
                        self.heredoc_end = self.heredoc_delimiter();
                        is_target = false;
                    }
                    while matches!(self.peek(), Some('<' | '>' | '&' | '|')) {
                        self.bump();
                    }
                }
                _ if next.is_whitespace() => self.finish(&mut word, at, &mut words, &mut is_target),
                _ => {
                    word.begin(at);
                    word.push(next.encode_utf8(&mut [0; 4]));
                }
            }
        }
    }

    fn heredoc_delimiter(&mut self) -> Option<String> {
        let rest = self.text[self.at..].trim_start_matches('-').trim_start_matches([' ', '\t']);
        self.at = self.text.len() - rest.len();
        let len = rest.find(|c: char| c.is_whitespace() || ";|&)<>".contains(c)).unwrap_or(rest.len());
        self.at += len;
        let delimiter = rest[..len].trim_matches(['"', '\'', '\\']);
        (!delimiter.is_empty()).then(|| delimiter.to_owned())
    }

    /// Ends a word. The file of a redirection is no word of the command.
    fn finish(&self, word: &mut Word, at: usize, words: &mut Vec<Element>, is_target: &mut bool) {
        let word = std::mem::take(word);
        if word.is_there && !std::mem::take(is_target) {
            words.push(Element {
                source: self.text[word.from..at].to_owned(),
                pieces: word.pieces,
                free_text_parameter: word.free_text_parameter,
            });
        }
    }

    /// Checks a command whose output is put into another.
    fn nested(&mut self, end: char, depth: usize) {
        if depth < DEPTH_MAX {
            self.commands(Some(end), depth + 1);
        } else {
            self.until(end.encode_utf8(&mut [0; 4]));
        }
    }

    /// Parses what follows a dollar.
    fn dollar(&mut self, word: &mut Word, depth: usize) {
        let rest = &self.text[self.at..];
        if rest.starts_with("((") {
            self.until("))");
        } else if rest.starts_with('(') {
            self.bump();
            self.nested(')', depth);
        } else if rest.starts_with('{') {
            self.bump();
            let inner = self.until("}").trim_start_matches(['#', '!']).to_owned();
            let len = name_len(&inner);
            self.variable(word, &inner[..len]);
        } else {
            // Without braces `$10` is `$1` and a zero.
            let is_digit = rest.starts_with(|c: char| c.is_ascii_digit());
            let name = rest[..if is_digit { 1 } else { name_len(rest) }].to_owned();
            self.at += name.len();
            if name.is_empty() {
                word.push("$");
            } else {
                self.variable(word, &name);
            }
        }
    }

    fn variable(&self, word: &mut Word, name: &str) {
        let is_value = match name {
            "@" | "*" => self.values.any(),
            _ => name
                .parse::<usize>()
                .map_or_else(|_| self.value_variables.iter().any(|known| known == name), |number| self.values.has(number)),
        };
        if is_value {
            word.value(name);
        } else {
            word.push(&format!("${name}"));
        }
    }

    /// Notes the variables that a command sets, and whether it runs a value.
    fn check_command(&mut self, words: &[Element], from: usize) {
        let mut words = words;
        while let Some((first, rest)) = words.split_first() {
            let is_keyword = first.literal().is_some_and(|text| KEYWORDS.split_whitespace().any(|keyword| keyword == text));
            if let Some(name) = assigned(first.literal_prefix()).filter(|_| !is_keyword) {
                if first.free_text_parameter.is_some() {
                    self.value_variables.push(name.to_owned());
                }
            } else if !is_keyword {
                break;
            }
            words = rest;
        }
        let Some((first, rest)) = words.split_first() else { return };
        let has_value = |words: &[Element]| words.iter().any(|word| word.free_text_parameter.is_some());
        let runs = match first.literal() {
            Some("for" | "select") => {
                // Without a list, the loop goes over all arguments.
                let is_value = if rest.len() > 1 { has_value(&rest[1..]) } else { self.values.any() };
                let name = rest.first().and_then(Element::literal).filter(|_| is_value);
                self.value_variables.extend(name.map(ToOwned::to_owned));
                false
            }
            Some("eval" | "trap") => has_value(rest),
            Some("." | "source") => has_value(&rest[..rest.len().min(1)]),
            Some(_) => self.gives_code(words),
            None => first.literal_prefix().is_empty() && self.is_program(first),
        };
        if runs {
            let command = self.text[from..self.at].trim_matches(|c: char| c.is_whitespace() || ";|&()`".contains(c));
            self.found.push(command.to_owned());
        }
    }

    /// Whether a word that begins with a value names a program by it.
    fn is_program(&self, word: &Element) -> bool {
        match word.free_text_parameter.as_deref() {
            // Of all arguments, the first is the program.
            Some("@" | "*") => self.values.has(1),
            parameter => parameter.is_some(),
        }
    }

    /// Whether a command passes a value to a program that runs it.
    fn gives_code(&self, words: &[Element]) -> bool {
        let repeats = |word: &Element| word.parameters().any(|name| name == "@" || name == "*");
        let groups: Vec<Group<'_>> =
            words.iter().map(|word| Group { elements: std::slice::from_ref(word), always: true, repeats: repeats(word) }).collect();
        let mut is_found = false;
        read_command(&groups, |seen| {
            is_found |= match seen.role {
                Role::Code | Role::File => seen.element.free_text_parameter.is_some(),
                Role::Program => self.is_program(seen.element),
                _ => false,
            };
        });
        is_found
    }
}

/// How long the variable name is that a text begins with.
fn name_len(text: &str) -> usize {
    match text.chars().next() {
        Some('@' | '*') => 1,
        Some(c) if c.is_ascii_digit() => text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()),
        Some(c) if c.is_ascii_alphabetic() || c == '_' => text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len()),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is found in a script whose `$1` and `$2` are values.
    fn found(script: &str) -> Vec<String> {
        commands_that_run_values(script, &ScriptArguments(vec![(false, true), (true, true), (true, true), (false, true)]))
    }

    #[test]
    fn what_runs_a_value_is_found() {
        for (script, command) in [
            ("eval \"$1\"", "eval \"$1\""),
            ("set -e; eval $1", "eval $1"),
            ("cmd=$1\n eval \"ls $cmd\" || exit", "eval \"ls $cmd\""),
            ("export cmd=\"${1:-x}\"; eval $cmd", "eval $cmd"),
            ("for f in \"$@\"; do eval \"$f\"; done", "do eval \"$f\""),
            ("sh -c \"$1\"", "sh -c \"$1\""),
            ("exec bash -lc \"ls $2\"", "exec bash -lc \"ls $2\""),
            (". \"$1\"", ". \"$1\""),
            ("source $1", "source $1"),
            ("x=`$1`", "$1"),
            ("echo \"got $($1 -v)\"", "$1 -v"),
            ("\"$@\"", "\"$@\""),
            ("exec \"$1\" now", "exec \"$1\" now"),
            ("if true; then $2; fi", "then $2"),
            ("awk \"$1\" file", "awk \"$1\" file"),
            ("sed -n \"s/$1/x/p\" < in > out", "sed -n \"s/$1/x/p\" < in > out"),
            ("ls | xargs python3 -c \"$1\"", "xargs python3 -c \"$1\""),
            ("ssh host \"cat $1\"", "ssh host \"cat $1\""),
            ("find . -exec sh -c \"$1\" ';'", "find . -exec sh -c \"$1\" ';'"),
            ("timeout 5 \"$1\"", "timeout 5 \"$1\""),
            ("eval $10", "eval $10"),
            ("cat <<EOF\neval \"$1\"\nEOF\neval \"$2\"", "eval \"$2\""),
        ] {
            assert_eq!(found(script), [command], "{script}");
        }
    }

    #[test]
    fn what_only_uses_a_value_is_left_alone() {
        for script in [
            "cat \"$1\"",
            "grep -r ''\"$1\"'' \"src/$2\" | awk '{ print $1 }' | head \"$1\"",
            "for n in $(seq \"$1\"); do echo \"line $n\"; sleep 1; done",
            "n=1; while echo \"$n of $1\"; [ \"$n\" -lt \"$1\" ]; do sleep 1; n=$((n + 1)); done",
            "eval \"$(ssh-agent)\"; echo \"$1\"",
            "eval \"$3\"",
            "eval \"${10}\"",
            "# eval \"$1\"\necho",
            "echo 'eval \"$1\"'",
            "echo eval \"$1\"",
            "sh run.sh \"$1\"",
            "sh -c 'cat \"$1\"' sh \"$1\"",
            "python3 -c 'import sys' \"$1\"",
            "awk -v \"x=$1\" '{ print x }' \"$2\"",
            "sh > \"$1\" 2>&1 < in",
            "echo \\$1; echo \"$HOME\" $? $# $$",
            "cat <<'EOF'\n$1\nEOF\n",
            "case \"$1\" in a) echo a;; esac",
            "x=\"$1\"; echo \"${x%.txt}\"",
        ] {
            assert_eq!(found(script), [""; 0], "{script}");
        }
    }

    #[test]
    fn all_arguments_are_a_command_only_if_the_first_is_a_value() {
        let fixed = ScriptArguments(vec![(false, true), (false, true), (true, true)]);
        assert_eq!(commands_that_run_values("exec \"$@\"", &fixed), [""; 0]);
        assert_eq!(commands_that_run_values("timeout 5 \"$@\"", &fixed), [""; 0]);
        assert_eq!(commands_that_run_values("eval \"$@\"", &fixed).len(), 1);
        let uncertain = ScriptArguments(vec![(false, true), (false, false), (true, true)]);
        assert_eq!(commands_that_run_values("exec \"$@\"", &uncertain).len(), 1);
        assert_eq!(commands_that_run_values("eval \"$@\"", &ScriptArguments(vec![(false, true)])), [""; 0], "nothing is a value");
    }

    #[test]
    fn any_text_comes_to_an_end() {
        for script in ["", "$", "${", "$(", "`", "'", "\"", "\\", "<<", "<<E", "$((", "a <<E\nb", "é$1é", "(((", "$($($(`$1"] {
            found(script);
        }
        found(&"$(".repeat(10_000));
    }
}

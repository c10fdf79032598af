//! Shells: a value inside a script would be run as code, so a template that puts one there is refused.
//!
//! This reads a command as a shell would: options first, some with a value, then the script if there was a `-c`, then its
//! arguments. Elements may be absent in a call, so that several readings are possible; one that is dangerous is enough.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Element, Piece, Step, shown};

#[cfg(test)]
mod tests;

/// Programs that take a script by `-c`.
const SHELLS: &[&str] = &["sh", "bash", "dash", "zsh", "ksh", "fish", "ash", "mksh", "ksh93", "rbash", "yash", "csh", "tcsh"];

/// Programs that run the program named in their arguments.
const RUNNERS: &[&str] = &[
    "env",
    "sudo",
    "doas",
    "nice",
    "ionice",
    "nohup",
    "timeout",
    "setsid",
    "stdbuf",
    "time",
    "busybox",
    "toybox",
    "chroot",
    "xargs",
    "flock",
    "unshare",
    "nsenter",
    "docker",
    "podman",
    "kubectl",
    "systemd-run",
    "strace",
];

/// Shells whose scripts count their arguments from the first.
const NO_NAME: &[&str] = &["fish", "csh", "tcsh"];

/// Options of shells that are followed by a value.
const LONG_WITH_VALUE: &[&str] = &["--rcfile", "--init-file", "--emulate"];

/// Options of fish that are followed by a script.
const LONG_WITH_SCRIPT: &[&str] = &["--command", "--init-command"];

/// What the shell expects next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// Values of options first (so many), then options, or what comes behind them: a script if there was a `-c`.
    Options { script: bool, values: usize },
    /// The script, whatever it looks like.
    Script,
    /// Arguments of the script.
    Arguments,
}

/// Refuses commands where a value would become code of a shell.
pub(super) fn check(steps: &[Step], allow_dash: &BTreeSet<String>) -> Result<(), String> {
    let elements = elements(steps);
    shells(&elements).into_iter().try_for_each(|at| read(&elements, at, allow_dash))
}

/// Values that a script does not find where it looks for them.
pub(super) fn warnings(steps: &[Step]) -> Vec<String> {
    let elements = elements(steps);
    shells(&elements).into_iter().filter_map(|at| misplaced(&elements, at)).collect()
}

/// All elements, and whether each is there in every call.
fn elements(steps: &[Step]) -> Vec<(&Element, bool)> {
    steps
        .iter()
        .flat_map(|step| {
            let always = step.when.is_none() && step.parameters.is_empty();
            step.elements.iter().map(move |element| (element, always))
        })
        .collect()
}

/// A value right behind the script: it is `$0` there, and `$1` is what comes next.
fn misplaced(elements: &[(&Element, bool)], at: usize) -> Option<String> {
    let shell = elements[at].0.literal().map(base_name)?;
    if NO_NAME.contains(&shell) {
        return None;
    }
    let mut reading = Next::Options { script: false, values: 0 };
    let mut rest = elements[at + 1..].iter().map(|(element, _)| *element);
    let script = rest.find(|element| {
        let before = reading;
        reading = after(before, element, false);
        matches!(before, Next::Script | Next::Options { script: true, .. }) && reading == Next::Arguments
    })?;
    let first = rest.next()?;
    let name = first.parameters().next()?;
    let text = script.literal()?;
    let names = |is: fn(char) -> bool| text.split('$').skip(1).any(|rest| rest.trim_start_matches('{').starts_with(is));
    (names(|c| matches!(c, '1'..='9' | '@' | '*')) && !names(|c| c == '0')).then(|| {
        format!(
            "the first argument after the script is $0, so that {{{name}}} is not $1: put a word between them, \
             command = […, {}, \"{shell}\", {}]",
            shown(&script.source),
            shown(&first.source)
        )
    })
}

/// Reads what follows the shell at this place.
fn read(elements: &[(&Element, bool)], at: usize, allow_dash: &BTreeSet<String>) -> Result<(), String> {
    let name = elements[at].0.literal().map_or("sh", base_name);
    let is_fish = name == "fish";
    let mut readings = vec![Next::Options { script: false, values: 0 }];
    for (here, &(element, always)) in elements.iter().enumerate().skip(at + 1) {
        if element.literal().is_none() {
            for reading in &readings {
                danger(*reading, element, allow_dash, name, || example(elements, here, name))?;
            }
        }
        let mut further: Vec<Next> = readings.iter().map(|reading| after(*reading, element, is_fish)).collect();
        if !always {
            further.extend(&readings);
        }
        readings.clear();
        for reading in further {
            if !readings.contains(&reading) {
                readings.push(reading);
            }
        }
    }
    Ok(())
}

fn base_name(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or(program)
}

fn is_shell(element: &Element) -> bool {
    element.literal().is_some_and(|text| SHELLS.contains(&base_name(text)))
}

/// Where shells are: the program itself, or what it may run.
fn shells(elements: &[(&Element, bool)]) -> Vec<usize> {
    let Some(&(program, _)) = elements.first() else { return Vec::new() };
    if is_shell(program) {
        return vec![0];
    }
    if !program.literal().is_some_and(|text| RUNNERS.contains(&base_name(text))) {
        return Vec::new();
    }
    elements.iter().enumerate().filter(|(_, (element, _))| is_shell(element)).map(|(at, _)| at).collect()
}

/// What the shell expects behind an element.
fn after(reading: Next, element: &Element, is_fish: bool) -> Next {
    let Next::Options { script, values } = reading else { return Next::Arguments };
    if values > 0 {
        return Next::Options { script, values: values - 1 };
    }
    // A value cannot begin with a dash here, or the template has been refused.
    let text = element.literal().unwrap_or("");
    if text == "--" || text == "-" {
        return if script { Next::Script } else { Next::Arguments };
    }
    if text.starts_with("--") {
        let script = script || (is_fish && LONG_WITH_SCRIPT.contains(&text));
        return Next::Options { script, values: usize::from(LONG_WITH_VALUE.contains(&text)) };
    }
    if text.len() > 1 && text.starts_with(['-', '+']) {
        let script = script || (text.starts_with('-') && text.contains('c')) || (is_fish && text.contains('C'));
        let values = if is_fish { 0 } else { text.chars().filter(|c| matches!(c, 'o' | 'O')).count() };
        return Next::Options { script, values };
    }
    // Fish takes several scripts, each behind an option of its own.
    if script && is_fish { Next::Options { script: false, values: 0 } } else { Next::Arguments }
}

/// An error if a value that is put into this element could become code.
fn danger(
    reading: Next,
    element: &Element,
    allow_dash: &BTreeSet<String>,
    shell: &str,
    example: impl FnOnce() -> String,
) -> Result<(), String> {
    let Some(name) = element.parameters().next() else { return Ok(()) };
    match reading {
        Next::Script | Next::Options { script: true, values: 0 } => {
            let whole = match element.pieces.as_slice() {
                [Piece::Parameter(_)] => format!(
                    ". Where callers are meant to write the whole script, let the shell read it: \
                     command = [\"{shell}\"] and stdin = \"{{{name}}}\""
                ),
                _ => String::new(),
            };
            let first = argument(1, shell);
            Err(format!(
                "{}: a value in the script itself would be run as code: use \"{first}\" in the script and give {{{name}}} as an argument \
                 after it, like this: {}{whole}",
                shown(&element.source),
                example()
            ))
        }
        Next::Options { values: 0, .. } if element.lead().starts_with(['-', '+']) => Err(format!(
            "{}: a value inside an option of {shell} could make it run code; write out the \
             option, for example by {{ when = …, args = […] }}",
            shown(&element.source)
        )),
        Next::Options { values: 0, .. } if element.lead().is_empty() && element.parameters().any(|name| allow_dash.contains(name)) => {
            Err(format!(
                "{}: with `allow_dash` this value could be an option of {shell} and make it run code; put \
                 \"--\" before it, or take it out of `allow_dash`",
                shown(&element.source)
            ))
        }
        _ => Ok(()),
    }
}

/// How a script names its arguments.
fn argument(number: usize, shell: &str) -> String {
    match (shell, number) {
        ("fish", _) => format!("$argv[{number}]"),
        (_, 1..=9) => format!("${number}"),
        _ => format!("${{{number}}}"),
    }
}

/// The same command in the safe way, in the author's own words.
fn example(elements: &[(&Element, bool)], script_at: usize, shell: &str) -> String {
    let mut words: Vec<String> = elements[..script_at].iter().map(|(element, _)| element.source.clone()).collect();
    let (script, names) = numbered(elements[script_at].0, shell);
    words.push(script);
    if shell != "fish" {
        words.push(shell.to_owned());
    }
    words.extend(names.iter().map(|name| format!("{{{name}}}")));
    let words: Vec<String> = words.into_iter().map(|word| Value::String(word).to_string()).collect();
    let more = if script_at + 1 < elements.len() { ", …" } else { "" };
    format!("command = [{}{more}]", words.join(", "))
}

/// The script with its arguments by number, and their names in this order.
fn numbered<'a>(element: &'a Element, shell: &str) -> (String, Vec<&'a str>) {
    let mut names: Vec<&str> = Vec::new();
    let mut script = String::new();
    let mut quote: Option<char> = None;
    for piece in &element.pieces {
        match piece {
            Piece::Literal(text) => {
                let mut escaped = false;
                for c in text.chars() {
                    match (quote, c) {
                        _ if escaped => escaped = false,
                        (None | Some('"'), '\\') => escaped = true,
                        (None, '"' | '\'') => quote = Some(c),
                        (Some(open), _) if open == c => quote = None,
                        _ => {}
                    }
                }
                script.push_str(&super::literal(text));
            }
            Piece::Parameter(name) => {
                let number = names.iter().position(|known| known == name).unwrap_or_else(|| {
                    names.push(name);
                    names.len() - 1
                });
                let argument = argument(number + 1, shell);
                script.push_str(&match quote {
                    None => format!("\"{argument}\""),
                    Some('\'') => format!("'\"{argument}\"'"),
                    Some(_) => argument,
                });
            }
        }
    }
    (script, names)
}

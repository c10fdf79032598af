//! Texts for the author: what would happen to a value, and what to write instead.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{ElementUse, Next, REPLACING, Role, assigned, table};
use crate::command::template::{Element, TemplatePiece, literal, quoted};

/// Shells that have no `$0` in a script: its arguments begin with the first.
const SHELLS_WITHOUT_ARG0: [&str; 3] = ["fish", "csh", "tcsh"];

type All<'a> = [(&'a Element, bool)];

/// The name of the program that reads the element.
fn program<'a>(seen: &ElementUse<'_>, all: &All<'a>) -> &'a str {
    all.get(seen.reading.program_position).and_then(|(program, _)| program.literal()).map_or("", table::base_name)
}

/// Says that an element takes another's position if something before it is absent.
fn absence_note(seen: &ElementUse<'_>) -> &'static str {
    match seen.reading.assumes_absent {
        true => " (that is so where something before it is not given: what belongs together is a list, [\"--option\", \"{value}\"])",
        false => "",
    }
}

/// Why a value cannot stand here.
pub(super) fn refusal(seen: &ElementUse<'_>, all: &All<'_>) -> Option<String> {
    let name = seen.element.free_text_parameter.as_deref()?;
    let (program, source) = (program(seen, all), quoted(&seen.element.source));
    let why = match seen.role {
        Role::Code if seen.reading.spec().is_shell() => {
            let first = argument(1, program);
            let whole = match seen.element.pieces.as_slice() {
                [TemplatePiece::Parameter(_)] => {
                    ". Where callers are meant to write the whole script, put a script of your own in between that runs it"
                }
                _ => "",
            };
            format!(
                "a value in the script itself would be run as code: use \"{first}\" in the script and give {{{name}}} as an argument after \
                 it, like this: {}{whole}",
                example(all, seen.position, program)
            )
        }
        Role::Code => format!("{program} would run the value as code: {}", advice(seen, name)),
        Role::Program => format!("{program} runs the program that is named here, and whoever calls must not choose it: write it out"),
        Role::Option => format!(
            "a value inside an option of {program} could make it run code; write out the option, for example by {{ when = …, args = […] }}"
        ),
        Role::Setting(from) => setting(seen, program, from)?,
        Role::Variable => {
            let variable = assigned(seen.element.literal_prefix()).filter(|variable| table::is_code_variable(variable))?;
            format!(
                "what the variable {variable} says is run by programs that look at it, so whoever calls must not choose it: write it out"
            )
        }
        Role::Plain | Role::File | Role::Statement | Role::Target => return None,
    };
    Some(format!("{source}: {why}{}", absence_note(seen)))
}

fn advice(seen: &ElementUse<'_>, name: &str) -> String {
    seen.reading.spec().advice.replace("{}", &format!("{{{name}}}"))
}

/// What is wrong with a value in a setting that begins at this byte.
fn setting(seen: &ElementUse<'_>, program: &str, from: usize) -> Option<String> {
    let text = seen.element.literal_prefix().get(from..).unwrap_or_default();
    match text.split_once(['=', ' ']) {
        None => Some(format!(
            "whoever calls could choose a setting of {program} that is run as a command: write out its name, as in \"user.name={{name}}\""
        )),
        Some((name, _)) if table::is_code_setting(name) => {
            Some(format!("{program} runs what the setting {} says, so that the value would be run as code: write it out", quoted(name)))
        }
        Some(_) => None,
    }
}

/// Why a value that may begin with a dash cannot stand here.
pub(super) fn dashed(seen: &ElementUse<'_>, all: &All<'_>, allow_dash: &BTreeSet<String>) -> Option<String> {
    let of = seen.reading.spec();
    let may_be_option = seen.reading.next == Next::Any && seen.element.literal_prefix().is_empty();
    let is_allowed = seen.element.free_text_parameter.is_some() && seen.element.parameters().any(|name| allow_dash.contains(name));
    (may_be_option && is_allowed && (of.is_shell() || of.may_run("-"))).then(|| {
        format!(
            "{}: with `allow_dash` this value could be an option of {} and make it run code; put \"--\" before it, or take it out of \
             `allow_dash`",
            quoted(&seen.element.source),
            program(seen, all)
        )
    })
}

/// Why the author should not let callers choose a value freely.
pub(super) fn suspicion(seen: &ElementUse<'_>, all: &All<'_>) -> Option<String> {
    let name = seen.element.free_text_parameter.as_deref()?;
    let (program, source) = (program(seen, all), quoted(&seen.element.source));
    match seen.role {
        Role::File => Some(format!("{source}: whoever calls chooses the file that {program} runs: let {{{name}}} choose from an `enum`")),
        Role::Statement => Some(format!(
            "{source}: whoever calls writes what {program} runs, and that can be commands for a shell too (`\\!`, `.shell`, COPY … TO PROGRAM)"
        )),
        Role::Target => Some(format!(
            "{source}: make expands the value, and with it whatever stands in it like $(shell …), or takes it for a variable of its own: let \
             {{{name}}} choose from an `enum`, or give it in `env` and use \"$$NAME\" in the Makefile"
        )),
        _ => None,
    }
}

/// Warns of a value directly after the script: it is `$0` there, and `$1` is the next.
pub(super) fn misplaced(seen: &ElementUse<'_>, all: &All<'_>) -> Option<String> {
    let shell = program(seen, all);
    if SHELLS_WITHOUT_ARG0.contains(&shell) || seen.reading.assumes_absent {
        return None;
    }
    let (first, _) = all.get(seen.position + 1)?;
    let name = first.parameters().next()?;
    let text = seen.element.literal()?;
    let names = |is: fn(char) -> bool| text.split('$').skip(1).any(|rest| rest.trim_start_matches('{').starts_with(is));
    (names(|c| matches!(c, '1'..='9' | '@' | '*')) && !names(|c| c == '0')).then(|| {
        format!(
            "the first argument after the script is $0, so that {{{name}}} is not $1: put a word between them, \
             command = […, {}, \"{shell}\", {}]",
            quoted(&seen.element.source),
            quoted(&first.source)
        )
    })
}

/// Warns of a script into which another program puts what it finds.
pub(super) fn replaced(seen: &ElementUse<'_>, all: &All<'_>) -> Option<String> {
    let text = seen.element.literal().filter(|text| text.contains("{}"))?;
    let mut before = all[..seen.reading.program_position].iter().filter_map(|(element, _)| element.literal()).map(table::base_name);
    let by = before.find(|name| REPLACING.contains(name))?;
    Some(format!(
        "{}: {by} puts names that it finds into the script in place of {{}}, where they are run as code: use \"$1\" in the script, and \
         {{}} as an argument after it",
        quoted(text)
    ))
}

pub(super) fn runs_values(command: &str) -> String {
    format!("{}: so the script runs a value of the caller as code, or as a program: use it as an argument only", quoted(command))
}

/// How a script names its arguments.
fn argument(number: usize, shell: &str) -> String {
    match (shell, number) {
        ("fish", _) => format!("$argv[{number}]"),
        (_, 1..=9) => format!("${number}"),
        _ => format!("${{{number}}}"),
    }
}

/// The author's command in the safe way.
fn example(all: &All<'_>, script_at: usize, shell: &str) -> String {
    let mut words: Vec<String> = all[..script_at].iter().map(|(element, _)| element.source.clone()).collect();
    let (script, names) = numbered(all[script_at].0, shell);
    words.push(script);
    if shell != "fish" {
        words.push(shell.to_owned());
    }
    words.extend(names.iter().map(|name| format!("{{{name}}}")));
    let words: Vec<String> = words.into_iter().map(|word| Value::String(word).to_string()).collect();
    let more = if script_at + 1 < all.len() { ", …" } else { "" };
    format!("command = [{}{more}]", words.join(", "))
}

/// The script with its arguments by number, and their names in this order.
fn numbered<'a>(element: &'a Element, shell: &str) -> (String, Vec<&'a str>) {
    let mut names: Vec<&str> = Vec::new();
    let mut script = String::new();
    let mut quote: Option<char> = None;
    for piece in &element.pieces {
        match piece {
            TemplatePiece::Literal(text) => {
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
                script.push_str(&literal(text));
            }
            TemplatePiece::Parameter(name) => {
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

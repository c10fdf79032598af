//! Finds values that would become code. A template with one is refused; where that is only likely, the author is warned.
//!
//! This reads a command as its program would, by the [`table`]: options, some with a value, then operands, and the programs that it runs in
//! turn. Elements may be absent in a call, or repeated, so several [`Reading`]s are possible, and one dangerous reading is enough. Programs
//! that are not in the table count as harmless: a program of the author's own may do anything with its arguments.
//!
//! `table`: the programs · `explanations`: texts for the author · `script`: what can be seen in a shell script.

mod explanations;
mod script;
mod table;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

pub(in crate::command) use self::table::is_code_variable;
use self::{
    script::ScriptArguments,
    table::{OperandKind, OptionValue, PROGRAMS, Program, base_name},
};
use super::{CompiledPart, Element};

/// More operands than this are not counted.
const OPERANDS_MAX: usize = 8;
/// How a command names standard input as a file.
const STDIN: [&str; 3] = ["-", "/dev/stdin", "/dev/fd/0"];
/// After one of these, `parallel` passes arguments to the command as they are.
const PARALLEL_ARGUMENTS: [&str; 4] = [":::", ":::+", "::::", "::::+"];
/// Programs that replace `{}` in a command by file names or lines.
const REPLACING: [&str; 5] = ["find", "fd", "fdfind", "xargs", "parallel"];

/// Elements that are there together, or not at all.
#[derive(Clone, Copy)]
struct Group<'a> {
    elements: &'a [Element],
    /// Whether it is there in every call.
    always: bool,
    /// Whether it may be there several times.
    repeats: bool,
}

/// What a program expects next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// Options or operands.
    Any,
    /// Only operands.
    Operands,
    /// So many values of options, which are no code.
    Values(usize),
    Value(Role),
}

/// Where a program gets its code from, as far as the reading knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CodeSource {
    NotYet,
    /// There was a `-c`.
    ComesNext,
    /// It was an argument.
    AsArgument,
    Stdin,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Nothing that is run.
    Plain,
    Code,
    /// A file that is run.
    File,
    /// A statement for a program that can run commands too.
    Statement,
    /// `name=value` from this byte on.
    Setting(usize),
    /// `NAME=value` for the environment.
    Variable,
    /// The name of a program that is run.
    Program,
    /// A target or a variable of `make`.
    Target,
    /// Part of an option; the value could complete it to a dangerous one.
    Option,
}

/// A program within a command, and how far it has read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Reading {
    /// Its index in the table.
    program: usize,
    /// Which element of the command names it.
    program_position: usize,
    next: Next,
    code_source: CodeSource,
    /// How many operands it has read.
    operands: usize,
    /// An option said that a command follows.
    expects_command: bool,
    /// Whether this reading assumes that an element which may be absent is.
    assumes_absent: bool,
}

struct ElementUse<'a> {
    reading: Reading,
    role: Role,
    element: &'a Element,
    /// Its index in the command.
    position: usize,
}

impl Reading {
    fn start(program: usize, program_position: usize, assumes_absent: bool) -> Self {
        Self {
            program,
            program_position,
            next: Next::Any,
            code_source: CodeSource::NotYet,
            operands: 0,
            expects_command: false,
            assumes_absent,
        }
    }

    fn spec(self) -> &'static Program {
        &PROGRAMS[self.program]
    }

    /// What an element is to this program. The ways in which this program, and those that it runs, may go on are added to `next_readings`.
    fn read(self, element: &Element, position: usize, next_readings: &mut Vec<Self>) -> Role {
        let role = match self.next {
            Next::Values(count) => {
                next_readings.push(Self { next: if count > 1 { Next::Values(count - 1) } else { Next::Any }, ..self });
                Role::Plain
            }
            Next::Value(role) => {
                let is_last = self.spec().code_ends_options && self.code_source == CodeSource::AsArgument;
                next_readings.push(Self { next: if is_last { Next::Operands } else { Next::Any }, ..self });
                role
            }
            Next::Any => match self.option(element) {
                Some((role, then)) => {
                    next_readings.push(then);
                    role
                }
                None => self.operand(element, position, next_readings),
            },
            Next::Operands => self.operand(element, position, next_readings),
        };
        self.inner(element, position, next_readings);
        role
    }

    /// Finds a program that this one may run wherever its name stands: nobody knows all options of all programs.
    fn inner(self, element: &Element, position: usize, next_readings: &mut Vec<Self>) {
        let Some(inner) = element.literal().and_then(table::find) else { return };
        let is_run = match self.spec().operand_kind {
            OperandKind::Anywhere | OperandKind::Joined(_) => true,
            // A word that only looks like a program would seldom be followed by an option for code.
            OperandKind::Command(_) => matches!(PROGRAMS[inner].operand_kind, OperandKind::Shell | OperandKind::Script),
            _ => false,
        };
        let reading = Self::start(inner, position, self.assumes_absent);
        if is_run && !next_readings.contains(&reading) {
            next_readings.push(reading);
        }
    }

    /// What an option is, and what follows it; None if the element is no option.
    fn option(self, element: &Element) -> Option<(Role, Self)> {
        let (program, lead) = (self.spec(), element.literal_prefix());
        if program.operand_kind == OperandKind::Shell {
            return self.shell_option(element);
        }
        match element.literal() {
            Some("--") => Some((Role::Plain, Self { next: Next::Operands, ..self })),
            Some(text) => self.fixed_option(text).map(|then| (Role::Plain, then)),
            None if lead.starts_with('+') && program.option_value("+") == Some(OptionValue::Code) => Some((Role::Code, self)),
            None if lead.starts_with('-') => Some((self.open_option(lead), self)),
            None => None,
        }
    }

    /// An option that is the same in every call.
    fn fixed_option(self, text: &str) -> Option<Self> {
        let program = self.spec();
        if let Some(takes) = program.option_value(text) {
            return Some(self.after_option(takes));
        }
        if !text.starts_with('-') || text == "-" {
            return None;
        }
        let gives = |takes: Option<OptionValue>| match takes {
            Some(OptionValue::Code | OptionValue::File) => Self { code_source: CodeSource::AsArgument, ..self },
            _ => self,
        };
        if text.starts_with("--") || program.options_are_words {
            return Some(gives(text.split_once('=').and_then(|(name, _)| program.option_value(name))));
        }
        for (at, letter) in text.char_indices().skip(1) {
            let name = format!("-{letter}");
            let is_last = at + letter.len_utf8() == text.len();
            match program.option_value(&name) {
                Some(takes) if is_last => return Some(self.after_option(takes)),
                takes @ Some(_) => return Some(gives(takes)),
                None if program.is_glued(&name) => break,
                None => {}
            }
        }
        Some(self)
    }

    fn after_option(self, takes: OptionValue) -> Self {
        let value = |role| Self { next: Next::Value(role), ..self };
        match takes {
            OptionValue::Code => Self { code_source: CodeSource::AsArgument, ..value(Role::Code) },
            OptionValue::File => Self { code_source: CodeSource::AsArgument, ..value(Role::File) },
            OptionValue::Load => value(Role::File),
            OptionValue::Setting => value(Role::Setting(0)),
            OptionValue::Statement => value(Role::Statement),
            OptionValue::Command => Self { expects_command: true, ..self },
            OptionValue::Value => Self { next: Next::Values(1), ..self },
        }
    }

    /// What a value is in an option that begins like this.
    fn open_option(self, lead: &str) -> Role {
        let program = self.spec();
        let role = |takes: OptionValue, from: usize| match takes {
            OptionValue::Code => Role::Code,
            OptionValue::File | OptionValue::Load => Role::File,
            OptionValue::Setting => Role::Setting(from),
            OptionValue::Statement => Role::Statement,
            OptionValue::Command => Role::Program,
            OptionValue::Value => Role::Plain,
        };
        let unless = |is_open: bool| if is_open { Role::Option } else { Role::Plain };
        if lead.starts_with("--") || program.options_are_words {
            return match lead.split_once('=') {
                Some((name, _)) => program.option_value(name).map_or(Role::Plain, |takes| role(takes, name.len() + 1)),
                None => unless(program.may_run(lead)),
            };
        }
        for (at, letter) in lead.char_indices().skip(1) {
            let name = format!("-{letter}");
            match program.option_value(&name) {
                Some(takes) => return role(takes, at + letter.len_utf8()),
                None if program.is_glued(&name) => return Role::Plain,
                None => {}
            }
        }
        unless(program.has_letters() || (lead == "-" && program.may_run("-")))
    }

    /// Options of shells: the letter `c` announces code wherever it stands, and each `o` takes a value after all letters.
    fn shell_option(self, element: &Element) -> Option<(Role, Self)> {
        let Some(text) = element.literal() else {
            return element.literal_prefix().starts_with(['-', '+']).then_some((Role::Option, self));
        };
        let then = match text {
            "--" | "-" => Self { next: Next::Operands, ..self },
            _ if text.starts_with("--") => {
                let values = usize::from(self.spec().option_value(text) == Some(OptionValue::Value));
                Self { next: if values > 0 { Next::Values(values) } else { Next::Any }, ..self }
            }
            _ if text.len() > 1 && text.starts_with(['-', '+']) => {
                let is_minus = text.starts_with('-');
                let code_source = match self.code_source {
                    CodeSource::ComesNext => CodeSource::ComesNext,
                    _ if is_minus && text.contains('c') => CodeSource::ComesNext,
                    _ if is_minus && text.contains('s') => CodeSource::Stdin,
                    known => known,
                };
                let values = text.chars().filter(|c| matches!(c, 'o' | 'O')).count();
                Self { code_source, next: if values > 0 { Next::Values(values) } else { Next::Any }, ..self }
            }
            _ => return None,
        };
        Some((Role::Plain, then))
    }

    fn operand(self, element: &Element, position: usize, next_readings: &mut Vec<Self>) -> Role {
        let text = element.literal();
        let more = Self { operands: (self.operands + 1).min(OPERANDS_MAX), ..self };
        let rest = if self.expects_command { OperandKind::Command(0) } else { self.spec().operand_kind };
        match (rest, self.code_source) {
            (OperandKind::Shell, CodeSource::ComesNext) => Role::Code,
            (OperandKind::Shell | OperandKind::Script, CodeSource::Stdin) => {
                next_readings.push(self);
                Role::Plain
            }
            (OperandKind::Shell | OperandKind::Script, CodeSource::NotYet) if text.is_some_and(|text| STDIN.contains(&text)) => {
                next_readings.push(Self { code_source: CodeSource::Stdin, next: Next::Operands, ..self });
                Role::Plain
            }
            (OperandKind::Shell | OperandKind::Script, CodeSource::NotYet) => Role::File,
            // These are arguments of its code.
            (OperandKind::Shell | OperandKind::Script, _) => Role::Plain,
            (OperandKind::Code, CodeSource::NotYet) => {
                next_readings.push(Self { code_source: CodeSource::AsArgument, ..self });
                Role::Code
            }
            (OperandKind::Joined(_), _) if text.is_some_and(|text| PARALLEL_ARGUMENTS.contains(&text)) => Role::Plain,
            (OperandKind::Joined(from), code_source) => {
                let begins = self.operands >= from;
                // Options after the first word of the command belong to the command.
                next_readings.push(if begins { Self { next: Next::Operands, ..more } } else { more });
                if begins && code_source == CodeSource::NotYet { Role::Code } else { Role::Plain }
            }
            (OperandKind::Statements(from), _) => {
                next_readings.push(more);
                if self.operands >= from { Role::Statement } else { Role::Plain }
            }
            (OperandKind::Targets, _) => {
                next_readings.push(self);
                Role::Target
            }
            (OperandKind::Sub(name), _) => {
                let sub = PROGRAMS.iter().position(|program| program.names == name);
                next_readings.extend(sub.map(|sub| Self::start(sub, self.program_position, self.assumes_absent)));
                Role::Plain
            }
            (OperandKind::Command(behind), _) if self.operands < behind => {
                next_readings.push(more);
                Role::Plain
            }
            (OperandKind::Command(_), _) if !self.expects_command && assigned(element.literal_prefix()).is_some() => {
                next_readings.push(self);
                Role::Variable
            }
            (OperandKind::Command(_), _) => {
                if self.spec().operand_kind == OperandKind::Plain {
                    // This program goes on after the end of the command.
                    next_readings.push(Self { expects_command: false, ..self });
                }
                next_readings.extend(text.and_then(table::find).map(|program| Self::start(program, position, self.assumes_absent)));
                if text.is_none() { Role::Program } else { Role::Plain }
            }
            (OperandKind::Plain | OperandKind::Anywhere | OperandKind::Code, _) => {
                next_readings.push(self);
                Role::Plain
            }
        }
    }

    /// Whether it takes code or statements from standard input.
    fn reads_stdin(self) -> bool {
        let program = self.spec();
        let is_open = match program.operand_kind {
            // The first operands are no code.
            OperandKind::Joined(from) => self.operands <= from,
            _ => true,
        };
        (program.takes_code_from_stdin() && is_open && matches!(self.code_source, CodeSource::NotYet | CodeSource::Stdin))
            || program.takes_statements()
    }
}

/// The variable that a text like `NAME=value` sets.
fn assigned(text: &str) -> Option<&str> {
    let (name, _) = text.split_once('=')?;
    let is_name =
        name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    is_name.then_some(name)
}

fn groups(steps: &[CompiledPart]) -> Vec<Group<'_>> {
    steps.iter().map(|step| Group { elements: &step.elements, always: step.always, repeats: step.repeats }).collect()
}

/// Reads a command, whose first element is the program, and reports what each element is to which program. Returns the readings at the end
/// of the command.
fn read_command<'a>(command: &[Group<'a>], mut see: impl FnMut(ElementUse<'a>)) -> Vec<Reading> {
    let Some((program, rest)) = command.split_first() else { return Vec::new() };
    let name = program.elements.first().and_then(Element::literal);
    let mut readings: Vec<Reading> = name.and_then(table::find).map(|program| Reading::start(program, 0, false)).into_iter().collect();
    let mut first = program.elements.len();
    for group in rest {
        let mut next_readings = read_group(&readings, group, first, &mut see);
        let mut known = 0;
        while group.repeats && next_readings.len() > known {
            known = next_readings.len();
            let again = read_group(&next_readings, group, first, &mut see);
            join(&mut next_readings, again);
        }
        if !group.always {
            join(&mut next_readings, readings.into_iter().map(|reading| Reading { assumes_absent: true, ..reading }));
        }
        readings = next_readings;
        first += group.elements.len();
    }
    readings
}

fn read_group<'a>(readings: &[Reading], group: &Group<'a>, first: usize, see: &mut impl FnMut(ElementUse<'a>)) -> Vec<Reading> {
    let mut readings = readings.to_vec();
    for (element, position) in group.elements.iter().zip(first..) {
        let mut next_readings = Vec::new();
        for reading in readings {
            let mut then = Vec::new();
            let role = reading.read(element, position, &mut then);
            see(ElementUse { reading, role, element, position });
            join(&mut next_readings, then);
        }
        readings = next_readings;
    }
    readings
}

fn join(all: &mut Vec<Reading>, more: impl IntoIterator<Item = Reading>) {
    for reading in more {
        if !all.contains(&reading) {
            all.push(reading);
        }
    }
}

/// The elements of a command, and whether each is at the same position in every call.
fn elements(steps: &[CompiledPart]) -> Vec<(&Element, bool)> {
    steps.iter().flat_map(|step| step.elements.iter().map(move |element| (element, step.always && !step.repeats))).collect()
}

pub(super) fn check(steps: &[CompiledPart], allow_dash: &BTreeSet<String>) -> Result<(), String> {
    let all = elements(steps);
    let mut wrong = None;
    read_command(&groups(steps), |seen| {
        if wrong.is_none() {
            wrong = explanations::refusal(&seen, &all).or_else(|| explanations::dashed(&seen, &all, allow_dash));
        }
    });
    wrong.map_or(Ok(()), Err)
}

/// Warns of commands that probably do not do what their author wants, or let callers choose what is run.
pub(super) fn warnings(steps: &[CompiledPart]) -> Vec<String> {
    let all = elements(steps);
    let mut warnings: Vec<String> = Vec::new();
    read_command(&groups(steps), |seen| {
        let mut new: Vec<String> = explanations::suspicion(&seen, &all).into_iter().collect();
        if let (Role::Code, OperandKind::Shell, Some(text)) = (seen.role, seen.reading.spec().operand_kind, seen.element.literal()) {
            new.extend(explanations::misplaced(&seen, &all));
            new.extend(explanations::replaced(&seen, &all));
            new.extend(Script { file: text, values: ScriptArguments::of(&all[seen.position + 1..]) }.warnings(text));
        }
        for warning in new {
            if !warnings.contains(&warning) {
                warnings.push(warning);
            }
        }
    });
    warnings
}

/// The program that runs what comes on the standard input of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::command) struct StdinReader<'a> {
    pub(in crate::command) program: &'a str,
    /// Whether that is code; otherwise statements that callers may be meant to write.
    pub(in crate::command) is_code: bool,
}

pub(super) fn stdin_reader(steps: &[CompiledPart]) -> Option<StdinReader<'_>> {
    let all = elements(steps);
    let left = read_command(&groups(steps), |_| {});
    let readers = left.into_iter().filter(|reading| reading.reads_stdin()).map(|reading| {
        let program = all[reading.program_position].0.literal().map_or("", base_name);
        StdinReader { program, is_code: !reading.spec().takes_statements() }
    });
    readers.max_by_key(|reader| reader.is_code)
}

/// A script in a file, and its arguments.
#[derive(Debug)]
pub(in crate::command) struct Script<'a> {
    /// Its name, as the command has it.
    pub(in crate::command) file: &'a str,
    values: ScriptArguments,
}

impl Script<'_> {
    /// Warns if the script's text shows that it runs its arguments.
    pub(in crate::command) fn warnings(&self, text: &str) -> Vec<String> {
        script::commands_that_run_values(text, &self.values).iter().map(|command| explanations::runs_values(command)).collect()
    }
}

/// Files that the command shows to be shell scripts, and the program itself, which may be one; only those that get values.
pub(super) fn scripts(steps: &[CompiledPart]) -> Vec<Script<'_>> {
    let all = elements(steps);
    let mut files: Vec<(&str, usize)> = Vec::new();
    read_command(&groups(steps), |seen| {
        if let (Role::File, OperandKind::Shell, Some(file)) = (seen.role, seen.reading.spec().operand_kind, seen.element.literal())
            && !files.contains(&(file, seen.position))
        {
            files.push((file, seen.position));
        }
    });
    if let Some(program) = all.first().and_then(|(program, _)| program.literal()).filter(|program| table::find(program).is_none()) {
        files.push((program, 0));
    }
    let scripts = files.into_iter().map(|(file, position)| Script { file, values: ScriptArguments::of(&all[position..]) });
    scripts.filter(|script| script.values.any()).collect()
}

//! Templates: they turn the arguments of a call into the arguments, the environment and the standard input of a command.
//!
//! No shell stands between a value and the command. An element of a template becomes one argument whatever the value contains, or none if
//! its parameter is absent, or one for each item of a list. Callers choose the values, so a value that could change the meaning of a
//! command is refused here, and the error names the field.

use std::{borrow::Cow, collections::BTreeSet};

use serde_json::{Map, Value};

mod code;
mod parameters;
mod part;
#[cfg(test)]
mod tests;

pub(super) use self::{
    code::{Script, StdinReader, is_code_variable},
    parameters::Parameters,
};
pub use part::Part;

/// The longest argument: what Linux allows, without the NUL that ends it.
pub(crate) const ARG_BYTES_MAX: usize = 131_071;

/// All arguments and variables that a tool sets, together. Linux allows at least twice as much, and the inherited environment must fit as
/// well.
pub(crate) const ARGS_BYTES_MAX: usize = 1 << 20;

/// What an argument costs besides its text: the NUL at its end and the pointer to it. A list of very many empty texts is large by this
/// alone.
const ARG_COST: usize = 9;

/// How many problems an error lists.
const PROBLEMS_MAX: usize = 10;

/// Characters of a value that an error shows.
const SHOWN_CHARS: usize = 40;

/// A text for people, models and terminals: short, in quotes, and without control characters.
fn quoted(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((at, _)) => format!("{:?}…", &text[..at]),
        None => format!("{text:?}"),
    }
}

/// A value as text: a text as it is, anything else as JSON writes it.
fn rendered(value: &Value) -> Cow<'_, str> {
    match value {
        Value::String(text) => Cow::Borrowed(text),
        other => Cow::Owned(other.to_string()),
    }
}

fn without_nul(field: &str, text: &str) -> Result<(), String> {
    if !text.contains('\0') {
        return Ok(());
    }
    Err(format!(
        "`{field}`: the value contains a NUL character, which no argument of a command can contain; leave it out: {}",
        quoted(text)
    ))
}

#[derive(Debug, PartialEq, Eq)]
enum TemplatePiece {
    Literal(String),
    Parameter(String),
}

/// A text with parameters in it. No two literals follow each other, and none is empty.
#[derive(Debug)]
struct Element {
    source: String,
    pieces: Vec<TemplatePiece>,
    /// The first parameter in it that may be any text.
    free_text_parameter: Option<String>,
}

impl Element {
    fn parse(source: &str, parameters: Parameters<'_>) -> Result<Self, String> {
        if source.contains('\0') {
            return Err(format!("{} contains a NUL character, which cannot be given to a command", quoted(source)));
        }
        let mut pieces = Vec::new();
        let mut free_text_parameter = None;
        let mut literal = String::new();
        let mut rest = source;
        while let Some(at) = rest.find(['{', '}']) {
            literal.push_str(&rest[..at]);
            rest = &rest[at..];
            // In `{{{name}}}` the inner braces are a parameter's, and one pair is text.
            let wrapped = rest.strip_prefix("{{").and_then(placeholder).filter(|name| rest[name.len() + 4..].starts_with("}}"));
            if wrapped.is_some() {
                literal.push('{');
                rest = &rest[2..];
            }
            if let Some(name) = escaped(rest).filter(|_| wrapped.is_none()) {
                literal.push_str(&rest[1..name.len() + 3]);
                rest = &rest[name.len() + 4..];
            } else if let Some(name) = placeholder(rest) {
                let hint = format!(" For the text itself write `{{{{{name}}}}}`.");
                parameters.require(name, &hint).map_err(|why| format!("{}: {why}", quoted(source)))?;
                if !literal.is_empty() {
                    pieces.push(TemplatePiece::Literal(std::mem::take(&mut literal)));
                }
                pieces.push(TemplatePiece::Parameter(name.to_owned()));
                free_text_parameter = free_text_parameter.or_else(|| Some(name.to_owned()).filter(|name| !parameters.cannot_be_code(name)));
                rest = &rest[name.len() + 2..];
                if wrapped.is_some() {
                    literal.push('}');
                    rest = &rest[2..];
                }
            } else if let Some(name) = parameters.unnameable(rest) {
                return Err(format!(
                    "{}: the name of the parameter {} cannot stand in braces: it needs letters, digits, _ and -, and no digit or - first. \
                     Give it such a name, for example `{}`",
                    quoted(source),
                    quoted(name),
                    valid_name_like(name)
                ));
            } else {
                literal.push_str(&rest[..1]);
                rest = &rest[1..];
            }
        }
        literal.push_str(rest);
        if !literal.is_empty() {
            pieces.push(TemplatePiece::Literal(literal));
        }
        Ok(Self { source: source.to_owned(), pieces, free_text_parameter })
    }

    fn parameters(&self) -> impl Iterator<Item = &str> {
        self.pieces.iter().filter_map(|piece| match piece {
            TemplatePiece::Literal(_) => None,
            TemplatePiece::Parameter(name) => Some(name.as_str()),
        })
    }

    /// The text, if it is the same in every call.
    fn literal(&self) -> Option<&str> {
        match self.pieces.as_slice() {
            [] => Some(""),
            [TemplatePiece::Literal(text)] => Some(text),
            _ => None,
        }
    }

    /// The text that it always begins with.
    fn literal_prefix(&self) -> &str {
        match self.pieces.first() {
            Some(TemplatePiece::Literal(text)) => text,
            _ => "",
        }
    }

    fn argument(&self, values: &[ParameterValue<'_>], allow_dash: &BTreeSet<String>) -> Result<String, String> {
        let parts: Vec<(&str, Option<&ParameterValue<'_>>)> = self
            .pieces
            .iter()
            .map(|piece| match piece {
                TemplatePiece::Literal(text) => (text.as_str(), None),
                TemplatePiece::Parameter(name) => {
                    let value = values.iter().find(|value| value.name == name).expect("a step looks up every parameter of its elements");
                    (&*value.text, Some(value))
                }
            })
            .collect();
        // Not only the first piece: a value before the dash may be empty.
        if let Some((text, Some(value))) = parts.iter().find(|(text, _)| !text.is_empty())
            && text.starts_with('-')
            && !allow_dash.contains(value.name)
        {
            return Err(value.dashed());
        }
        let bytes: usize = parts.iter().map(|(text, _)| text.len()).sum();
        if bytes > ARG_BYTES_MAX {
            let largest = parts.iter().filter_map(|(_, value)| *value).max_by_key(|value| value.text.len());
            return Err(too_long(&largest.map_or_else(|| self.source.clone(), ParameterValue::field), bytes));
        }
        Ok(parts.iter().map(|(text, _)| *text).collect())
    }
}

/// Writes a template for exactly `text`, whatever it contains.
#[must_use]
pub fn literal(text: &str) -> String {
    let mut template = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('{') {
        template.push_str(&rest[..at]);
        rest = &rest[at..];
        let taken = match placeholder(rest) {
            Some(name) => {
                template.push_str(&format!("{{{{{name}}}}}"));
                name.len() + 2
            }
            None => {
                template.push('{');
                1
            }
        };
        rest = &rest[taken..];
    }
    template + rest
}

/// The name in a text that begins with `{{name}}`, which is the template for `{name}`.
fn escaped(text: &str) -> Option<&str> {
    let name = placeholder(text.strip_prefix('{')?)?;
    text[name.len() + 3..].starts_with('}').then_some(name)
}

fn placeholder(text: &str) -> Option<&str> {
    let (name, _) = text.strip_prefix('{')?.split_once('}')?;
    (name.starts_with(can_begin) && name.chars().all(can_follow)).then_some(name)
}

fn can_begin(c: char) -> bool {
    c.is_ascii_alphabetic() || c == '_'
}

fn can_follow(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '-'
}

/// A name that can stand in braces, as much like this one as possible.
fn valid_name_like(name: &str) -> String {
    let fitting: String = name.trim().chars().map(|c| if can_follow(c) { c } else { '_' }).collect();
    if fitting.starts_with(can_begin) { fitting } else { format!("_{fitting}") }
}

pub(super) fn too_long(field: &str, bytes: usize) -> String {
    format!(
        "`{field}`: the value is too long: it would make an argument of {bytes} bytes, and the system allows {ARG_BYTES_MAX}. Give a \
         shorter one. (The tool's author can let the command read it from `stdin`, which has no such limit.)"
    )
}

/// The value of a parameter, or one item if it is a list.
#[derive(Debug)]
struct ParameterValue<'a> {
    name: &'a str,
    /// The index in a list.
    item: Option<usize>,
    text: Cow<'a, str>,
    is_number: bool,
}

impl<'a> ParameterValue<'a> {
    fn new(name: &'a str, item: Option<usize>, value: &'a Value) -> Result<Self, String> {
        let this = Self { name, item, text: rendered(value), is_number: value.is_number() };
        without_nul(&this.field(), &this.text)?;
        Ok(this)
    }

    /// The field's name, as schema errors write it too.
    fn field(&self) -> String {
        self.item.map_or_else(|| self.name.to_owned(), |item| format!("{}/{item}", self.name))
    }

    fn dashed(&self) -> String {
        let (text, instead) = match self.is_number {
            true => (self.text.to_string(), "Give a number that is not negative.".to_owned()),
            false => {
                let path = quoted(&format!("./{}", self.text));
                (quoted(&self.text), format!("Give one that does not begin with a dash; a file can be written as {path}."))
            }
        };
        format!(
            "`{}`: the value begins with a dash and the command could take it for an option: {text}. {instead} (The tool's author can \
             allow such values: allow_dash = [\"{}\"].)",
            self.field(),
            self.name
        )
    }
}

#[derive(Debug)]
struct CompiledPart {
    when: Option<String>,
    elements: Vec<Element>,
    /// The parameters of its elements, each once.
    parameters: Vec<String>,
    /// Whether it is there in every call.
    always: bool,
    /// Whether it may be there more than once.
    repeats: bool,
}

impl CompiledPart {
    fn compile(part: &Part, parameters: Parameters<'_>) -> Result<Self, String> {
        let (when, texts) = match part {
            Part::One(text) => (None, std::slice::from_ref(text)),
            Part::Group(texts) => (None, texts.as_slice()),
            Part::When { when, args } => (Some(when.clone()), args.as_slice()),
        };
        if texts.is_empty() {
            return Err("a list of arguments is empty: name at least one, or leave the list out".to_owned());
        }
        if let Some(when) = &when {
            parameters.require(when, "").map_err(|why| format!("when = {when:?}: {why}"))?;
            if !parameters.is(when, "boolean") {
                return Err(format!("when = {when:?}: the parameter must have the type \"boolean\" in the schema"));
            }
        }
        let elements = texts.iter().map(|text| Element::parse(text, parameters)).collect::<Result<Vec<_>, _>>()?;
        let mut names: Vec<String> = Vec::new();
        for name in elements.iter().flat_map(Element::parameters) {
            if !names.iter().any(|known| known == name) {
                names.push(name.to_owned());
            }
        }
        let lists: Vec<&str> = names.iter().map(String::as_str).filter(|name| parameters.is(name, "array")).collect();
        if let [one, other, ..] = lists.as_slice() {
            let texts: Vec<String> = texts.iter().map(|text| quoted(text)).collect();
            return Err(format!(
                "{}: `{one}` and `{other}` are both lists, and arguments can be repeated for one list only; give each list an element or a \
                 group of its own",
                texts.join(", ")
            ));
        }
        if let Some(long) = elements.iter().find(|element| element.literal().is_some_and(|text| text.len() > ARG_BYTES_MAX)) {
            return Err(format!(
                "{} is longer than the {ARG_BYTES_MAX} bytes that the system allows for an argument",
                quoted(&long.source)
            ));
        }
        let always = when.is_none() && names.iter().all(|name| parameters.always_has_value(name));
        let repeats = names.iter().any(|name| parameters.may_be_list(name));
        Ok(Self { when, elements, parameters: names, always, repeats })
    }

    fn fill<'a>(&'a self, values: &'a Map<String, Value>, allow_dash: &BTreeSet<String>, argv: &mut ArgvBuilder) {
        if let Some(when) = &self.when {
            match values.get(when) {
                Some(Value::Bool(true)) => {}
                None | Some(Value::Null | Value::Bool(false)) => return,
                Some(other) => return argv.problem(format!("`{when}`: it must be true or false, not {}", quoted(&rendered(other)))),
            }
        }
        let absent = |name: &String| match values.get(name) {
            None | Some(Value::Null) => true,
            Some(Value::Array(items)) => items.is_empty(),
            Some(_) => false,
        };
        if self.parameters.iter().any(absent) {
            return;
        }
        let mut parameter_values = Vec::with_capacity(self.parameters.len());
        let mut list: Option<(&str, &[Value])> = None;
        for (name, value) in self.parameters.iter().filter_map(|name| Some((name.as_str(), values.get(name)?))) {
            match (value, list) {
                (Value::Array(_), Some((other, _))) => {
                    return argv.problem(format!("`{name}`: it and `{other}` are both lists, and only one of them can be: give one value"));
                }
                (Value::Array(items), None) => list = Some((name, items.as_slice())),
                (value, _) => match ParameterValue::new(name, None, value) {
                    Ok(value) => parameter_values.push(value),
                    Err(problem) => return argv.problem(problem),
                },
            }
        }
        let Some((name, items)) = list else { return self.add_arguments(&parameter_values, allow_dash, argv) };
        for (at, item) in items.iter().enumerate() {
            if argv.is_full() {
                return;
            }
            match ParameterValue::new(name, Some(at), item) {
                Ok(_) if item.is_null() => argv.problem(format!("`{name}/{at}`: it is null; leave the item out, or give a value")),
                Ok(value) => {
                    parameter_values.push(value);
                    self.add_arguments(&parameter_values, allow_dash, argv);
                    parameter_values.pop();
                }
                Err(problem) => argv.problem(problem),
            }
        }
    }

    fn add_arguments(&self, values: &[ParameterValue<'_>], allow_dash: &BTreeSet<String>, argv: &mut ArgvBuilder) {
        for element in &self.elements {
            if argv.is_full() {
                return;
            }
            match element.argument(values, allow_dash) {
                Ok(argument) => {
                    argv.add(argument.len());
                    argv.argv.push(argument);
                }
                Err(problem) => argv.problem(problem),
            }
        }
    }
}

/// The arguments so far, their size, and the problems. It stays small however large the call is.
#[derive(Debug, Default)]
pub(super) struct ArgvBuilder {
    pub(super) argv: Vec<String>,
    pub(super) problems: Vec<String>,
    bytes: usize,
}

impl ArgvBuilder {
    /// Counts an argument or a variable of so many bytes.
    pub(super) fn add(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes + ARG_COST);
    }

    /// Keeps the first problems, each once.
    pub(super) fn problem(&mut self, problem: String) {
        if self.problems.len() < PROBLEMS_MAX && !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }

    pub(super) fn is_too_large(&self) -> bool {
        self.bytes > ARGS_BYTES_MAX
    }

    /// Nothing that follows could change the result.
    fn is_full(&self) -> bool {
        self.is_too_large() || self.problems.len() >= PROBLEMS_MAX
    }
}

#[derive(Debug)]
pub(crate) struct CommandTemplate {
    steps: Vec<CompiledPart>,
    allow_dash: BTreeSet<String>,
}

impl CommandTemplate {
    /// Checks a command against the schema of its arguments.
    pub(crate) fn compile(command: &[Part], schema: &Value, allow_dash: &[String]) -> Result<Self, String> {
        match command.first() {
            None => return Err("it is empty: the first element is the program, the others are its arguments".to_owned()),
            Some(Part::One(program)) if program.trim().is_empty() => {
                return Err("the first element is the program, and it is empty".to_owned());
            }
            Some(Part::One(_)) => {}
            Some(Part::Group(_) | Part::When { .. }) => {
                return Err("the first element is the program: it must be a text, not a list or a table".to_owned());
            }
        }
        let parameters = Parameters::of(schema);
        let steps = command.iter().map(|part| CompiledPart::compile(part, parameters)).collect::<Result<Vec<_>, _>>()?;
        if let Some(name) = steps.first().and_then(|program| program.parameters.first()) {
            return Err(format!("the first element is the program, and whoever calls must not choose it: `{{{name}}}` cannot be in it"));
        }
        let allow_dash: BTreeSet<String> = allow_dash.iter().cloned().collect();
        code::check(&steps, &allow_dash)?;
        Ok(Self { steps, allow_dash })
    }

    /// Adds the arguments for these values, the program first, and what is wrong with them.
    pub(super) fn fill(&self, values: &Map<String, Value>, argv: &mut ArgvBuilder) {
        for step in &self.steps {
            step.fill(values, &self.allow_dash, argv);
        }
    }

    pub(super) fn parameters(&self) -> impl Iterator<Item = &str> {
        self.steps.iter().flat_map(|step| &step.parameters).map(String::as_str)
    }

    /// The parameters of `when`.
    pub(super) fn conditions(&self) -> impl Iterator<Item = &str> {
        self.steps.iter().filter_map(|step| step.when.as_deref())
    }

    pub(super) fn program(&self) -> &str {
        self.steps.first().and_then(|step| step.elements.first()).and_then(Element::literal).unwrap_or_default()
    }

    /// Warns of commands that probably do not do what their author wants, or let callers choose what is run.
    pub(super) fn warnings(&self) -> Vec<String> {
        code::warnings(&self.steps)
    }

    /// The program that runs what comes on the command's standard input.
    pub(super) fn stdin_reader(&self) -> Option<StdinReader<'_>> {
        code::stdin_reader(&self.steps)
    }

    /// The shell scripts in files of their own that get values.
    pub(super) fn scripts(&self) -> Vec<Script<'_>> {
        code::scripts(&self.steps)
    }
}

/// A template for the environment or the standard input of a command. It is always one text: a list in it is JSON.
#[derive(Debug)]
pub(crate) struct TextTemplate(Element);

impl TextTemplate {
    /// Checks a text against the schema of the arguments.
    pub(crate) fn compile(text: &str, schema: &Value) -> Result<Self, String> {
        Element::parse(text, Parameters::of(schema)).map(Self)
    }

    /// The text for these values; None if one of its parameters is absent.
    pub(crate) fn fill(&self, values: &Map<String, Value>) -> Result<Option<String>, String> {
        let mut filled = String::new();
        for piece in &self.0.pieces {
            match piece {
                TemplatePiece::Literal(text) => filled.push_str(text),
                TemplatePiece::Parameter(name) => match values.get(name) {
                    None | Some(Value::Null) => return Ok(None),
                    Some(value) => {
                        let text = rendered(value);
                        without_nul(name, &text)?;
                        filled.push_str(&text);
                    }
                },
            }
        }
        Ok(Some(filled))
    }

    pub(super) fn parameters(&self) -> impl Iterator<Item = &str> {
        self.0.parameters()
    }

    /// The first parameter that may be any text.
    pub(super) fn free_text_parameter(&self) -> Option<&str> {
        self.0.free_text_parameter.as_deref()
    }
}

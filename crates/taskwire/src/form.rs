//! Forms that a server asks a person to fill in: reads them from their schema, parses typed text, checks answers.
//!
//! A form is a flat object of texts, numbers, flags and choices. Nothing here asks or prints. Titles and descriptions come
//! from the server: code that shows them on a terminal must escape them.

use std::{collections::HashMap, fmt};

use jsonschema::error::ValidationErrorKind;
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};
use serde_json::{Map, Number, Value, value::RawValue};
use taskwire_core::Payload;

use crate::schema::{Misfit, Schema, SchemaKind};

/// Errors that one check lists.
const ERRORS_MAX: usize = 100;
/// Choices that a message lists.
const LISTED_MAX: usize = 10;
/// Characters of a wrong value that a message repeats.
const QUOTED_MAX: usize = 60;

/// What a person is asked to fill in.
#[derive(Debug, Clone, PartialEq)]
pub struct Form {
    /// The fields. [`Form::of_question`] has them in the order in which the server wrote them.
    pub fields: Vec<Field>,
}

/// A field of a form.
#[derive(Debug, Clone, PartialEq)]
pub struct Field {
    /// Its name in the answer.
    pub name: String,
    /// The name to show to people.
    pub title: String,
    /// Its description.
    pub description: Option<String>,
    /// Whether it must be filled in.
    pub required: bool,
    /// Its value if nothing is filled in. A default that breaks the field's own rules is ignored.
    pub default: Option<Value>,
    /// What can be filled in.
    pub kind: FieldKind,
    /// Its schema, as the server wrote it.
    schema: Value,
}

/// What can be filled in.
#[derive(Debug, Clone, PartialEq)]
pub enum FieldKind {
    /// A text.
    Text {
        /// The fewest characters.
        min: Option<u64>,
        /// The most characters.
        max: Option<u64>,
        /// `email`, `uri`, `date`, `date-time`.
        format: Option<String>,
        /// A regular expression that it must match.
        pattern: Option<String>,
    },
    /// A number.
    Number {
        /// Whether it must be whole.
        integer: bool,
        /// The smallest.
        min: Option<f64>,
        /// The largest.
        max: Option<f64>,
    },
    /// Yes or no.
    Flag,
    /// One of several options.
    Choice {
        /// The options.
        options: Vec<Choice>,
    },
    /// Some of several options.
    Choices {
        /// The options.
        options: Vec<Choice>,
        /// The fewest to choose.
        min: Option<u64>,
        /// The most to choose.
        max: Option<u64>,
    },
}

/// An option of a choice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// Its value in the answer.
    pub value: String,
    /// The text to show.
    pub title: String,
}

/// What is wrong with an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldError {
    /// The field; empty if the answer as a whole is wrong.
    pub field: String,
    /// What is wrong.
    pub reason: String,
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.field.as_str() {
            "" => f.write_str(&self.reason),
            field => write!(f, "`{field}`: {}", self.reason),
        }
    }
}

impl Form {
    /// Reads a form from its schema. A JSON value does not keep the order of its members, so the fields come in any order;
    /// [`Form::of_question`] keeps it.
    ///
    /// # Errors
    /// When the schema has something that no form may have.
    pub fn read(schema: &Value) -> Result<Self, String> {
        compile(schema).map_err(|why| format!("the form's schema is not valid: {why}"))?;
        match schema.get("type") {
            None => {}
            Some(kind) if kind == "object" => {}
            Some(kind) => return Err(format!("a form is an object, but this one is {kind}")),
        }
        let required: Vec<&str> =
            schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
        let none = Map::new();
        let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&none);
        if let Some(name) = required.iter().find(|name| !properties.contains_key(**name)) {
            return Err(format!("the form requires `{name}` and does not say what that is"));
        }
        let field = |(name, property): (&String, &Value)| Field::read(name, property, required.contains(&name.as_str()));
        Ok(Self { fields: properties.iter().map(field).collect::<Result<_, _>>()? })
    }

    /// Reads the form of a question, `{"method": "elicitation/create", "params": {"requestedSchema": …}}`, with its fields in
    /// the order in which the server wrote them.
    ///
    /// # Errors
    /// When there is no form in it, and as [`Form::read`].
    pub fn of_question(request: &Payload) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Request<'a> {
            #[serde(borrow)]
            params: Params<'a>,
        }
        #[derive(Deserialize)]
        struct Params<'a> {
            #[serde(borrow, rename = "requestedSchema")]
            schema: &'a RawValue,
        }
        #[derive(Deserialize)]
        struct Schema {
            #[serde(default)]
            properties: Names,
        }
        let request: Request<'_> = request.read().map_err(|error| format!("the question has no form: {error}"))?;
        let text = request.params.schema.get();
        let schema: Value = serde_json::from_str(text).map_err(|error| format!("the form's schema cannot be read: {error}"))?;
        let mut form = Self::read(&schema)?;
        if let Ok(Schema { properties: Names(names) }) = serde_json::from_str(text) {
            let positions: HashMap<String, usize> = names.into_iter().zip(0..).collect();
            form.fields.sort_by_key(|field| positions.get(&field.name).copied());
        }
        Ok(form)
    }

    /// Checks an answer.
    ///
    /// # Errors
    /// When it breaks the schema, with what is wrong.
    pub fn check(schema: &Value, content: &Value) -> Result<(), Vec<FieldError>> {
        let whole = |reason: String| vec![FieldError { field: String::new(), reason }];
        if !content.is_object() {
            return Err(whole(format!("the answer to a form is an object, not {}", quoted(content))));
        }
        let compiled = compile(schema).map_err(|why| whole(format!("the form's schema is not valid: {why}")))?;
        let errors = field_errors(&compiled, schema, content);
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }

    /// The answer if nothing is filled in: the defaults of the fields that have one.
    #[must_use]
    pub fn defaults(schema: &Value) -> Value {
        let properties = schema.get("properties").and_then(Value::as_object).into_iter().flatten();
        properties.filter_map(|(name, property)| Some((name.clone(), default_of(property)?))).collect::<Map<_, _>>().into()
    }
}

/// Checks arguments against the schema of a tool. It leaves formats to the server, and a schema that cannot be used forbids nothing.
#[cfg(feature = "client")]
pub(crate) fn check_arguments(schema: &Value, arguments: &Value) -> Vec<FieldError> {
    Schema::read(SchemaKind::Foreign, schema).map_or_else(|_| Vec::new(), |compiled| field_errors(&compiled, schema, arguments))
}

fn field_errors(compiled: &Schema, schema: &Value, content: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for misfit in compiled.misfits(content, ERRORS_MAX) {
        push_errors(schema, &misfit, &mut errors);
    }
    errors
}

/// The names of an object's members, in the order in which they are written.
#[derive(Default)]
struct Names(Vec<String>);

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Names;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Names, A::Error> {
                let mut names = Vec::new();
                while let Some((name, IgnoredAny)) = map.next_entry()? {
                    names.push(name);
                }
                Ok(Names(names))
            }
        }
        deserializer.deserialize_map(Members)
    }
}

impl Field {
    fn read(name: &str, property: &Value, required: bool) -> Result<Self, String> {
        let kind = FieldKind::read(property).map_err(|why| format!("the field `{name}` {why}"))?;
        let text = |member: &str| property.get(member).and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned);
        Ok(Self {
            name: name.to_owned(),
            title: text("title").unwrap_or_else(|| name.to_owned()),
            description: text("description"),
            required,
            default: default_of(property),
            kind,
            schema: property.clone(),
        })
    }

    /// Parses what a person typed. Empty text means the default, or that the field is left out. A flag is `yes`, `y`, `true`,
    /// or `no`, `n`, `false`. A choice is its value, its title or its number, counted from 1; commas separate several, and `-`
    /// is none.
    ///
    /// # Errors
    /// When the text does not fit the field, with what is wrong.
    pub fn parse(&self, text: &str) -> Result<Option<Value>, String> {
        let word = text.trim();
        if word.is_empty() {
            return match &self.default {
                Some(default) => Ok(Some(default.clone())),
                None if self.required => Err("this must be filled in".to_owned()),
                None => Ok(None),
            };
        }
        let value: Value = match &self.kind {
            FieldKind::Text { format: None, .. } => text.trim_end_matches(['\r', '\n']).into(),
            FieldKind::Text { .. } => word.into(),
            FieldKind::Number { integer, .. } => number(word, *integer)?,
            FieldKind::Flag => flag(word)?.into(),
            FieldKind::Choice { options } => pick(options, word).ok_or_else(|| none_of(word, options))?.value.as_str().into(),
            FieldKind::Choices { options, .. } => pick_all(options, word)?.into_iter().map(|choice| choice.value.as_str()).collect(),
        };
        if let Some(misfit) = compile(&self.schema)?.misfits(&value, 1).first() {
            return Err(reason(&self.schema, misfit));
        }
        Ok(Some(value))
    }
}

impl FieldKind {
    fn read(property: &Value) -> Result<Self, String> {
        let whole = |member: &str| property.get(member).and_then(whole_number);
        let number = |member: &str| property.get(member).and_then(Value::as_f64);
        let text = |member: &str| property.get(member).and_then(Value::as_str).map(str::to_owned);
        let some = |options: Option<Vec<Choice>>| match options {
            Some(options) if options.is_empty() => Err("offers no choice that is a text"),
            options => Ok(options),
        };
        let kind = match property.get("type") {
            None => None,
            Some(Value::String(kind)) => Some(kind.as_str()),
            Some(kinds) => return Err(format!("has several types, {kinds}; a field of a form has one")),
        };
        match kind {
            Some("boolean") => Ok(Self::Flag),
            Some("integer") => Ok(Self::Number { integer: true, min: number("minimum"), max: number("maximum") }),
            Some("number") => Ok(Self::Number { integer: false, min: number("minimum"), max: number("maximum") }),
            Some("array") => match some(property.get("items").and_then(choices))? {
                Some(options) => Ok(Self::Choices { options, min: whole("minItems"), max: whole("maxItems") }),
                None => Err("is a list of something else than choices, which no form may have".to_owned()),
            },
            Some("string") | None => match some(choices(property))? {
                Some(options) => Ok(Self::Choice { options }),
                None if kind.is_some() => {
                    Ok(Self::Text { min: whole("minLength"), max: whole("maxLength"), format: text("format"), pattern: text("pattern") })
                }
                None => Err("does not say its type".to_owned()),
            },
            Some("object") => Err("has fields of its own, which no form may have".to_owned()),
            Some(kind) => Err(format!("is of type `{kind}`, which no form may have")),
        }
    }
}

/// The options of a schema: `enum`, with or without `enumNames`, or alternatives with a `const` each.
fn choices(schema: &Value) -> Option<Vec<Choice>> {
    let titled = |value: &Value, title: Option<&Value>| {
        let value = value.as_str()?;
        let title = title.and_then(Value::as_str).filter(|title| !title.is_empty()).unwrap_or(value);
        Some(Choice { value: value.to_owned(), title: title.to_owned() })
    };
    if let Some(values) = schema.get("enum").and_then(Value::as_array) {
        let names = schema.get("enumNames");
        return Some(values.iter().enumerate().filter_map(|(nth, value)| titled(value, names.and_then(|names| names.get(nth)))).collect());
    }
    if let Some(value) = schema.get("const") {
        return Some(titled(value, None).into_iter().collect());
    }
    let alternatives = schema.get("oneOf").or_else(|| schema.get("anyOf"))?.as_array()?;
    let constants = alternatives.iter().map(|each| each.get("const").map(|value| titled(value, each.get("title"))));
    Some(constants.collect::<Option<Vec<_>>>()?.into_iter().flatten().collect())
}

/// Reads a count, which JSON may write as 3 or 3.0.
pub(crate) fn whole_number(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_f64().filter(|number| *number >= 0.0).map(|number| number as u64))
}

/// The default of a field, if it fits the field's own schema.
fn default_of(property: &Value) -> Option<Value> {
    let default = property.get("default")?;
    compile(property).ok()?.fits(default).then(|| default.clone())
}

fn compile(schema: &Value) -> Result<Schema, String> {
    let mut schema = schema.clone();
    // Forms use only what all drafts of JSON Schema have in common, so the draft that a server names does not matter.
    if let Some(members) = schema.as_object_mut() {
        members.remove("$schema");
    }
    Schema::read(SchemaKind::Form, &schema)
}

fn number(word: &str, integer: bool) -> Result<Value, String> {
    /// Above it, floating-point numbers skip some whole numbers.
    const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
    if let Ok(number) = word.parse::<i64>() {
        return Ok(number.into());
    }
    if let Ok(number) = word.parse::<u64>() {
        return Ok(number.into());
    }
    let number = word.parse::<f64>().ok().filter(|number| number.is_finite());
    match number {
        Some(number) if !integer => Number::from_f64(number).map(Value::Number).ok_or_else(|| format!("`{word}` is not a number")),
        Some(number) if number.fract() == 0.0 && number.abs() <= EXACT_MAX => Ok((number as i64).into()),
        _ if integer => Err(format!("`{word}` is not a whole number")),
        _ => Err(format!("`{word}` is not a number")),
    }
}

fn flag(word: &str) -> Result<bool, String> {
    match word.to_lowercase().as_str() {
        "y" | "yes" | "true" => Ok(true),
        "n" | "no" | "false" => Ok(false),
        _ => Err(format!("`{word}` is neither yes nor no")),
    }
}

/// Finds the choice that a person typed. A value that looks like a number goes before the number of a choice.
fn pick<'a>(options: &'a [Choice], word: &str) -> Option<&'a Choice> {
    let exactly = options.iter().find(|choice| choice.value == word).or_else(|| options.iter().find(|choice| choice.title == word));
    let by_number = || options.get(word.parse::<usize>().ok()?.checked_sub(1)?);
    let roughly = || {
        let word = word.to_lowercase();
        let mut alike = options.iter().filter(|choice| choice.value.to_lowercase() == word || choice.title.to_lowercase() == word);
        let first = alike.next()?;
        alike.next().is_none().then_some(first)
    };
    exactly.or_else(by_number).or_else(roughly)
}

/// Finds the choices that a person typed, each once.
fn pick_all<'a>(options: &'a [Choice], text: &str) -> Result<Vec<&'a Choice>, String> {
    if text == "-" && pick(options, text).is_none() {
        return Ok(Vec::new());
    }
    let words: Vec<&str> = text.split(',').collect();
    // A choice can have commas of its own: the longest match wins.
    let commas = |text: &str| text.matches(',').count();
    let words_max = 1 + options.iter().map(|choice| commas(&choice.value).max(commas(&choice.title))).max().unwrap_or(0);
    let mut picked: Vec<&Choice> = Vec::new();
    let mut at = 0;
    while at < words.len() {
        let counts = (1..=words_max.min(words.len() - at)).rev();
        let mut fits = counts.filter_map(|count| Some((count, pick(options, words[at..at + count].join(",").trim())?)));
        match fits.next() {
            Some((count, choice)) => {
                if !picked.contains(&choice) {
                    picked.push(choice);
                }
                at += count;
            }
            None if words[at].trim().is_empty() => at += 1,
            None => return Err(none_of(words[at].trim(), options)),
        }
    }
    if picked.is_empty() { Err("this names no choice".to_owned()) } else { Ok(picked) }
}

fn none_of(word: &str, options: &[Choice]) -> String {
    format!("{} is none of the choices: {}", quoted(&word.into()), listed(options))
}

fn listed(options: &[Choice]) -> String {
    let mut text = options.iter().take(LISTED_MAX).map(|choice| choice.value.as_str()).collect::<Vec<_>>().join(", ");
    if options.len() > LISTED_MAX {
        text.push_str(", …");
    }
    text
}

/// A value as a message quotes it, shortened.
fn quoted(value: &Value) -> String {
    let text = match value {
        Value::String(text) => format!("`{text}`"),
        value => value.to_string(),
    };
    match text.char_indices().nth(QUOTED_MAX) {
        None => text,
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

/// Adds what is wrong, with the field of the form.
fn push_errors(schema: &Value, misfit: &Misfit<'_>, errors: &mut Vec<FieldError>) {
    match (misfit.path.first(), &misfit.kind) {
        (None, ValidationErrorKind::Required { property }) => {
            let field = property.as_str().unwrap_or_default().to_owned();
            errors.push(FieldError { field, reason: "this must be filled in".to_owned() });
        }
        (None, ValidationErrorKind::AdditionalProperties { unexpected }) => {
            let stray = |field: &String| FieldError { field: field.clone(), reason: "there is no such field".to_owned() };
            errors.extend(unexpected.iter().map(stray));
        }
        (None, _) => errors.push(FieldError { field: String::new(), reason: misfit.message.clone() }),
        (Some(field), _) => errors.push(FieldError { field: field.clone(), reason: reason(&schema["properties"][field], misfit) }),
    }
}

/// Says what is wrong with the value of a field.
fn reason(property: &Value, misfit: &Misfit<'_>) -> String {
    let value = || quoted(misfit.value);
    match &misfit.kind {
        ValidationErrorKind::Format { format } => match format.as_str() {
            "email" => format!("{} is not an e-mail address, such as name@example.com", value()),
            "uri" => format!("{} is not a URI, such as https://example.com/page", value()),
            "date" => format!("{} is not a date, such as 2026-07-28", value()),
            "date-time" => format!("{} is not a date with time and zone, such as 2026-07-28T12:30:00Z", value()),
            format => format!("{} is not of the format `{format}`", value()),
        },
        ValidationErrorKind::Enum { .. }
        | ValidationErrorKind::Constant { .. }
        | ValidationErrorKind::AnyOf { .. }
        | ValidationErrorKind::OneOfNotValid { .. } => {
            let options = choices(property).or_else(|| property.get("items").and_then(choices)).filter(|options| !options.is_empty());
            options.map_or_else(|| misfit.message.clone(), |options| format!("{} is none of the choices: {}", value(), listed(&options)))
        }
        ValidationErrorKind::MinLength { limit } => format!("this has fewer than {limit} characters"),
        ValidationErrorKind::MaxLength { limit } => format!("this has more than {limit} characters"),
        ValidationErrorKind::Minimum { limit } => format!("{} is less than {limit}", value()),
        ValidationErrorKind::Maximum { limit } => format!("{} is more than {limit}", value()),
        ValidationErrorKind::MinItems { limit } => format!("choose at least {limit}"),
        ValidationErrorKind::MaxItems { limit } => format!("choose at most {limit}"),
        ValidationErrorKind::Pattern { pattern } => format!("{} does not match `{pattern}`", value()),
        _ => misfit.message.clone(),
    }
}

#[cfg(test)]
mod tests;

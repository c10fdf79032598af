//! One question of a task: its text for a model, and the model's answer read back.

use serde_json::{Map, Number, Value};
use taskwire_core::{Payload, TaskId};

use super::{ANSWER, arguments};
use crate::form::{Choice, Field, FieldKind, Form};

/// Choices that are listed.
const CHOICES_MAX: usize = 30;
/// Fields that are listed.
const FIELDS_MAX: usize = 30;
/// Bytes of a text that somebody else wrote.
const TEXT_BYTES_MAX: usize = 4 * 1024;

/// Placeholders in an example of an answer.
const TEXT: &str = "<text>";
const NUMBER: &str = "<number>";
const FLAG: &str = "<true or false>";
const CHOICE: &str = "<one of the choices>";

#[derive(Debug)]
pub(super) enum Question {
    /// Something to fill in.
    Form {
        message: String,
        schema: Value,
        /// The schema as a form, if it is as simple as forms are.
        form: Option<Form>,
    },
    /// A page to be opened.
    Page { message: String, url: String },
    /// A question that only the client's program can answer.
    ClientOnly { method: String },
}

impl Question {
    /// Reads a question as a task keeps it.
    pub(super) fn read(request: &Payload) -> Self {
        let asked: Value = request.read().unwrap_or_default();
        let params = &asked["params"];
        let message = || shortened(params["message"].as_str().unwrap_or_default());
        match asked["method"].as_str() {
            Some("elicitation/create") if params["mode"] == "url" => {
                Self::Page { message: message(), url: params["url"].as_str().unwrap_or_default().to_owned() }
            }
            Some("elicitation/create") => {
                Self::Form { message: message(), schema: params["requestedSchema"].clone(), form: Form::of_question(request).ok() }
            }
            method => Self::ClientOnly { method: method.unwrap_or("unknown").to_owned() },
        }
    }

    /// Whether a person can answer it, or a model for that person.
    pub(super) fn is_for_users(&self) -> bool {
        !matches!(self, Self::ClientOnly { .. })
    }

    /// Whether there is nothing to fill in, only a yes or a no.
    pub(super) fn has_no_fields(&self) -> bool {
        match self {
            Self::Form { form, .. } => form.as_ref().is_some_and(|form| form.fields.is_empty()),
            Self::Page { .. } | Self::ClientOnly { .. } => true,
        }
    }

    /// The question in words, and how to answer it.
    pub(super) fn to_text(&self, id: TaskId, key: &str) -> String {
        let copy = |more: &[(&str, Value)]| {
            let all: Vec<_> = [("key", key.into())].into_iter().chain(more.iter().cloned()).collect();
            format!("`{ANSWER}` with {}", arguments(id, &all))
        };
        match self {
            Self::Form { message, form: Some(Form { fields }), .. } if fields.is_empty() => {
                format!("Question `{key}`: {message}\nIf the answer is yes, call {}.", copy(&[("action", "accept".into())]))
            }
            Self::Form { message, .. } => {
                let answer = copy(&[("value", self.example())]);
                format!("Question `{key}`: {message}\n{}\nAnswer: call {answer}.{}", self.fields(), self.defaults_hint())
            }
            Self::Page { message, url } => format!(
                "Question `{key}`: {message}\nYour user must open this page: {url}\nGive them the link; when they say that they are done, \
                 call {}.",
                copy(&[("action", "accept".into())])
            ),
            Self::ClientOnly { method } => format!(
                "Question `{key}` (`{method}`) can be answered only by the client program itself, not by you: there is nothing to do but \
                 wait, or to stop the task."
            ),
        }
    }

    /// Whether every required field has a default.
    pub(super) fn can_accept_defaults(&self) -> bool {
        let Self::Form { form: Some(form), .. } = self else { return false };
        form.fields.iter().all(|field| field.default.is_some() || !field.required)
    }

    /// How to accept the defaults, where that is possible.
    fn defaults_hint(&self) -> &'static str {
        match self {
            Self::Form { form: Some(form), .. }
                if self.can_accept_defaults() && form.fields.iter().any(|field| field.default.is_some()) =>
            {
                " To agree with the defaults, say \"action\":\"accept\" in place of \"value\"."
            }
            _ => "",
        }
    }

    /// The fields to fill in, one line each.
    pub(super) fn fields(&self) -> String {
        match self {
            Self::Form { form: Some(Form { fields }), .. } => {
                let mut lines: Vec<String> = fields.iter().take(FIELDS_MAX).map(line).collect();
                if fields.len() > FIELDS_MAX {
                    lines.push(format!("- and {} more", fields.len() - FIELDS_MAX));
                }
                let what = if fields.len() > 1 { "Fields of `value`, a JSON object as text" } else { "Field of `value`" };
                format!("{what}:\n{}", lines.join("\n"))
            }
            Self::Form { schema, .. } => {
                format!("`value`, a JSON object as text, must fit this JSON Schema: {}", shortened(&schema.to_string()))
            }
            Self::Page { .. } | Self::ClientOnly { .. } => String::new(),
        }
    }

    /// An example to copy, with a placeholder for each field: that of the only field, or all fields as the text of an object, since every
    /// client can send text.
    fn example(&self) -> Value {
        let Self::Form { form: Some(Form { fields }), .. } = self else { return "{}".into() };
        if let [Field { kind, .. }] = fields.as_slice() {
            return if matches!(kind, FieldKind::Choices { .. }) { CHOICE.into() } else { placeholder(kind) };
        }
        let needed = fields.iter().any(|field| field.required);
        let shown = fields.iter().filter(|field| field.required || !needed).take(FIELDS_MAX);
        let members: Map<String, Value> = shown.map(|field| (field.name.clone(), placeholder(&field.kind))).collect();
        Value::Object(members).to_string().into()
    }

    /// The filled-in form that a value stands for, or its problems, one line each.
    pub(super) fn fill_in(&self, value: Option<Value>) -> Result<Value, Vec<String>> {
        match self {
            Self::Form { schema, form: Some(form), .. } => filled(schema, form, value),
            Self::Form { schema, form: None, .. } => match value.map(from_text) {
                Some(value @ Value::Object(_)) if schema.is_object() => checked(schema, value),
                Some(value @ Value::Object(_)) => Ok(value),
                _ => Err(vec!["`value` must be an object".to_owned()]),
            },
            Self::Page { .. } | Self::ClientOnly { .. } => Err(vec!["there is nothing to fill in".to_owned()]),
        }
    }
}

fn filled(schema: &Value, form: &Form, value: Option<Value>) -> Result<Value, Vec<String>> {
    let field = |name: &str| form.fields.iter().find(|field| field.name == name);
    let (mut content, mut problems) = (Map::new(), Vec::new());
    for (name, value) in members(form, value)? {
        match field(&name) {
            None => problems.push(format!("`{}`: the form has no such field", shortened(&name))),
            // Models often send null for a field that they leave out.
            Some(field) if value.is_null() && !field.required => {}
            Some(field) if value == placeholder(&field.kind) || value == CHOICE => {
                problems.push(format!("`{name}`: {value} stands for an answer and is none: ask your user"));
            }
            Some(field) => drop(content.insert(name, coerce(&field.kind, value))),
        }
    }
    for field in &form.fields {
        if let Some(default) = field.default.as_ref().filter(|_| !content.contains_key(&field.name)) {
            content.insert(field.name.clone(), default.clone());
        }
    }
    if problems.is_empty() { checked(schema, content.into()) } else { Err(problems) }
}

fn checked(schema: &Value, content: Value) -> Result<Value, Vec<String>> {
    match Form::check(schema, &content) {
        Ok(()) => Ok(content),
        Err(errors) => Err(errors.iter().take(FIELDS_MAX).map(ToString::to_string).collect()),
    }
}

/// The fields that a value fills in. A plain value is for the only field, or for the only one that is required.
fn members(form: &Form, value: Option<Value>) -> Result<Map<String, Value>, Vec<String>> {
    let names = || form.fields.iter().map(|field| format!("`{}`", field.name)).collect::<Vec<_>>().join(", ");
    let has = |name: &str| form.fields.iter().any(|field| field.name == name);
    let mut needed = form.fields.iter().filter(|field| field.required);
    let only = match form.fields.as_slice() {
        [only] => Some(only),
        _ => needed.next().filter(|_| needed.next().is_none()),
    };
    let value = match value.map(|value| unwrap_value(&has, only.is_some(), value)) {
        None if form.fields.is_empty() => return Ok(Map::new()),
        None if form.fields.len() == 1 => return Err(vec![format!("`value` is missing: it is what {} shall be", names())]),
        None => return Err(vec![format!("`value` is missing: it is an object with {}, as JSON text", names())]),
        Some(Value::Object(members)) => return Ok(members),
        Some(_) if form.fields.is_empty() => {
            return Err(vec!["there is nothing to fill in: use `action` \"accept\" or \"decline\" and leave `value` out".to_owned()]);
        }
        Some(value) => value,
    };
    match only {
        Some(field) => Ok(Map::from_iter([(field.name.clone(), value)])),
        None => Err(vec![format!("`value` must be an object with {}, as JSON text", names())]),
    }
}

/// Parses a text that is the JSON of an object.
fn from_text(value: Value) -> Value {
    match value.as_str().map(serde_json::from_str::<Map<String, Value>>) {
        Some(Ok(members)) => members.into(),
        _ => value,
    }
}

/// Unwraps a value: an object that came as its JSON text, or the content of a whole answer. An answer that declines is not taken for a yes.
/// Where a plain value would do (`plain`), a text that is JSON of something else is that value.
fn unwrap_value(has: &impl Fn(&str) -> bool, plain: bool, value: Value) -> Value {
    let is_answer = |members: &Map<String, Value>| {
        members.contains_key("action") && members.keys().all(|name| ["action", "content"].contains(&name.as_str()))
    };
    let is_meant =
        |members: &Map<String, Value>| !plain || is_answer(members) || (!members.is_empty() && members.keys().all(|name| has(name)));
    let value = match (value.is_string(), from_text(value.clone())) {
        (true, Value::Object(members)) if is_meant(&members) => members.into(),
        _ => value,
    };
    match value {
        Value::Object(mut members)
            if members.get("action").is_some_and(|action| action == "accept") && !has("action") && !has("content") =>
        {
            match members.remove("content") {
                Some(content @ Value::Object(_)) => content,
                Some(content) => {
                    members.insert("content".to_owned(), content);
                    members.into()
                }
                None => members.into(),
            }
        }
        value => value,
    }
}

/// Converts a value to the field's kind where it can mean only one thing; else leaves it as it is.
fn coerce(kind: &FieldKind, value: Value) -> Value {
    match (kind, value) {
        (FieldKind::Text { .. }, value @ (Value::Number(_) | Value::Bool(_))) => value.to_string().into(),
        (FieldKind::Number { .. }, Value::String(text)) => match serde_json::from_str::<Number>(text.trim()) {
            Ok(number) => number.into(),
            Err(_) => text.into(),
        },
        (FieldKind::Flag, Value::String(text)) => match text.trim().to_lowercase().as_str() {
            "true" | "yes" | "y" => true.into(),
            "false" | "no" | "n" => false.into(),
            _ => text.into(),
        },
        (FieldKind::Choice { options }, value) => find_choice(options, &value).unwrap_or(value),
        (FieldKind::Choices { options, .. }, Value::Array(items)) => {
            items.into_iter().map(|item| find_choice(options, &item).unwrap_or(item)).collect()
        }
        (FieldKind::Choices { options, .. }, Value::String(text)) => {
            if let Some(one) = find_choice(options, &text.as_str().into()) {
                return vec![one].into();
            }
            if let Ok(items) = serde_json::from_str::<Vec<Value>>(&text) {
                return coerce(kind, items.into());
            }
            let all: Option<Vec<Value>> = text.split(',').map(|word| find_choice(options, &word.trim().into())).collect();
            all.map_or_else(|| text.into(), Into::into)
        }
        (_, value) => value,
    }
}

/// The choice that a value means: by its value, by its title, or by either without regard to case if only one fits.
fn find_choice(options: &[Choice], value: &Value) -> Option<Value> {
    let text = match value {
        Value::String(text) => text.trim().to_owned(),
        Value::Number(_) | Value::Bool(_) => value.to_string(),
        _ => return None,
    };
    let lower = text.to_lowercase();
    let mut alike = options.iter().filter(|choice| choice.value.to_lowercase() == lower || choice.title.to_lowercase() == lower);
    let exactly = options.iter().find(|choice| choice.value == text).or_else(|| options.iter().find(|choice| choice.title == text));
    let choice = exactly.or_else(|| alike.next().filter(|_| alike.next().is_none()))?;
    Some(choice.value.as_str().into())
}

fn placeholder(kind: &FieldKind) -> Value {
    match kind {
        FieldKind::Text { .. } => TEXT.into(),
        FieldKind::Number { .. } => NUMBER.into(),
        FieldKind::Flag => FLAG.into(),
        FieldKind::Choice { .. } => CHOICE.into(),
        FieldKind::Choices { .. } => vec![CHOICE].into(),
    }
}

/// A field in one line.
fn line(field: &Field) -> String {
    let need = match (&field.default, field.required) {
        (Some(default), _) => format!("default {default}"),
        (None, true) => "required".to_owned(),
        (None, false) => "optional".to_owned(),
    };
    let mut text = format!("- `{}` ({}; {need})", field.name, kind(&field.kind));
    if field.title != field.name {
        text.push_str(&format!(": {}", shortened(&field.title)));
    }
    if let Some(description) = &field.description {
        text.push_str(&format!(": {}", shortened(description)));
    }
    text
}

/// What can be filled in, in words.
fn kind(kind: &FieldKind) -> String {
    match kind {
        FieldKind::Text { min, max, format, pattern } => {
            let mut text = match format.as_deref() {
                None => "text".to_owned(),
                Some("email") => "an e-mail address".to_owned(),
                Some("uri") => "a URI".to_owned(),
                Some("date") => "a date such as 2026-07-28".to_owned(),
                Some("date-time") => "a date with time and zone such as 2026-07-28T12:30:00Z".to_owned(),
                Some(format) => format!("text of the format {format}"),
            };
            text.push_str(&bounds("characters", min.as_ref(), max.as_ref()));
            if let Some(pattern) = pattern {
                text.push_str(&format!(", must match {}", shortened(pattern)));
            }
            text
        }
        FieldKind::Number { integer, min, max } => {
            let kind = if *integer { "whole number" } else { "number" };
            match (min, max) {
                (Some(min), Some(max)) => format!("{kind} from {min} to {max}"),
                (Some(min), None) => format!("{kind}, at least {min}"),
                (None, Some(max)) => format!("{kind}, at most {max}"),
                (None, None) => kind.to_owned(),
            }
        }
        FieldKind::Flag => "true or false".to_owned(),
        FieldKind::Choice { options } => format!("one of {}", listed(options)),
        FieldKind::Choices { options, min, max } => {
            format!("a list of some of {}{}", listed(options), bounds("of them", min.as_ref(), max.as_ref()))
        }
    }
}

fn bounds(what: &str, min: Option<&u64>, max: Option<&u64>) -> String {
    match (min.filter(|min| **min > 0), max) {
        (Some(min), Some(max)) if min == max => format!(", {min} {what}"),
        (Some(min), Some(max)) => format!(", {min} to {max} {what}"),
        (Some(min), None) => format!(", at least {min} {what}"),
        (None, Some(max)) => format!(", at most {max} {what}"),
        (None, None) => String::new(),
    }
}

fn listed(options: &[Choice]) -> String {
    let shown = options.iter().take(CHOICES_MAX).map(|choice| {
        let value = Value::from(shortened(&choice.value));
        if choice.title == choice.value { value.to_string() } else { format!("{value} ({})", shortened(&choice.title)) }
    });
    let mut text = shown.collect::<Vec<_>>().join(", ");
    if options.len() > CHOICES_MAX {
        text.push_str(&format!(" and {} more", options.len() - CHOICES_MAX));
    }
    text
}

pub(super) fn shortened(text: &str) -> String {
    let cut = &text[..text.floor_char_boundary(TEXT_BYTES_MAX.min(text.len()))];
    if cut.len() < text.len() { format!("{cut}…") } else { cut.to_owned() }
}

#[cfg(test)]
mod tests;

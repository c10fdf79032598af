//! One question of a task, as a model is told of it, and the answer as a model gives it.

use serde_json::{Map, Number, Value};
use taskwire_core::{Payload, TaskId};

use super::{ANSWER, arguments};
use crate::client::form::{Choice, Field, FieldKind, Form};

/// Choices that are listed.
const CHOICES_MAX: usize = 30;
/// Fields that are listed.
const FIELDS_MAX: usize = 30;
/// Bytes of a text that somebody else wrote.
const TEXT_BYTES_MAX: usize = 4 * 1024;

/// What stands for a value in an answer to copy.
const TEXT: &str = "<text>";
const NUMBER: &str = "<number>";
const FLAG: &str = "<true or false>";
const CHOICE: &str = "<one of the choices>";

/// A question.
#[derive(Debug)]
pub(super) enum Question {
    /// Something to fill in.
    Form {
        /// What it is about.
        message: String,
        /// What is to be filled in.
        schema: Value,
        /// The same, if it is as simple as forms are.
        form: Option<Form>,
    },
    /// A page to be opened.
    Page {
        /// What it is about.
        message: String,
        /// Where it is.
        url: String,
    },
    /// Something that only a program knows.
    Client {
        /// The method by which it is asked.
        method: String,
    },
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
                Self::Form { message: message(), schema: params["requestedSchema"].clone(), form: Form::of(request).ok() }
            }
            method => Self::Client { method: method.unwrap_or("unknown").to_owned() },
        }
    }

    /// Whether a person can answer it, or a model for it.
    pub(super) fn is_for_users(&self) -> bool {
        !matches!(self, Self::Client { .. })
    }

    /// Whether there is nothing to fill in, only a yes or a no.
    pub(super) fn is_plain(&self) -> bool {
        match self {
            Self::Form { form, .. } => form.as_ref().is_some_and(|form| form.fields.is_empty()),
            Self::Page { .. } | Self::Client { .. } => true,
        }
    }

    /// The question in words, and how to answer it.
    pub(super) fn ask(&self, id: TaskId, key: &str) -> String {
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
                format!("Question `{key}`: {message}\n{}\nAnswer: call {answer}.{}", self.fields(), self.agree())
            }
            Self::Page { message, url } => format!(
                "Question `{key}`: {message}\nYour user must open this page: {url}\nGive them the link; when they say that they are done, \
                 call {}.",
                copy(&[("action", "accept".into())])
            ),
            Self::Client { method } => format!(
                "Question `{key}` (`{method}`) can be answered only by the client program itself, not by you: there is nothing to do but \
                 wait, or to stop the task."
            ),
        }
    }

    /// Whether nothing must be filled in: what is required has a default.
    pub(super) fn needs_nothing(&self) -> bool {
        let Self::Form { form: Some(form), .. } = self else { return false };
        form.fields.iter().all(|field| field.default.is_some() || !field.required)
    }

    /// How to agree with the defaults, where they are an answer.
    fn agree(&self) -> &'static str {
        match self {
            Self::Form { form: Some(form), .. } if self.needs_nothing() && form.fields.iter().any(|field| field.default.is_some()) => {
                " To agree with the defaults, say \"action\":\"accept\" in place of \"value\"."
            }
            _ => "",
        }
    }

    /// What is to be filled in, one line each.
    pub(super) fn fields(&self) -> String {
        match self {
            Self::Form { form: Some(Form { fields }), .. } => {
                let mut lines: Vec<String> = fields.iter().take(FIELDS_MAX).map(line).collect();
                if fields.len() > FIELDS_MAX {
                    lines.push(format!("- and {} more", fields.len() - FIELDS_MAX));
                }
                format!("Fields of `value`:\n{}", lines.join("\n"))
            }
            Self::Form { schema, .. } => format!("`value` must fit this JSON Schema: {}", shortened(&schema.to_string())),
            Self::Page { .. } | Self::Client { .. } => String::new(),
        }
    }

    /// A value with the right fields, and in place of each answer what kind it is.
    fn example(&self) -> Value {
        let Self::Form { form: Some(Form { fields }), .. } = self else { return Value::Object(Map::new()) };
        let needed = fields.iter().any(|field| field.required);
        let shown = fields.iter().filter(|field| field.required || !needed).take(FIELDS_MAX);
        shown.map(|field| (field.name.clone(), placeholder(&field.kind))).collect::<Map<_, _>>().into()
    }

    /// The filled-in form that a value stands for, or what is wrong with it, one line each.
    pub(super) fn fit(&self, value: Option<Value>) -> Result<Value, Vec<String>> {
        match self {
            Self::Form { schema, form: Some(form), .. } => filled(schema, form, value),
            Self::Form { schema, form: None, .. } => match value {
                Some(value @ Value::Object(_)) if schema.is_object() => checked(schema, value),
                Some(value @ Value::Object(_)) => Ok(value),
                _ => Err(vec!["`value` must be an object".to_owned()]),
            },
            Self::Page { .. } | Self::Client { .. } => Err(vec!["there is nothing to fill in".to_owned()]),
        }
    }
}

fn filled(schema: &Value, form: &Form, value: Option<Value>) -> Result<Value, Vec<String>> {
    let field = |name: &str| form.fields.iter().find(|field| field.name == name);
    let (mut content, mut problems) = (Map::new(), Vec::new());
    for (name, value) in members(form, value)? {
        match field(&name) {
            None => problems.push(format!("`{}`: the form has no such field", shortened(&name))),
            // What a model does not want to fill in, it often calls null.
            Some(field) if value.is_null() && !field.required => {}
            Some(field) if value == placeholder(&field.kind) => {
                problems.push(format!("`{name}`: {value} stands for an answer and is none: ask your user"));
            }
            Some(field) => drop(content.insert(name, as_meant(&field.kind, value))),
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

/// The fields that a value fills in. A plain value is that of the only field, or of the only one that is needed.
fn members(form: &Form, value: Option<Value>) -> Result<Map<String, Value>, Vec<String>> {
    let names = || form.fields.iter().map(|field| format!("`{}`", field.name)).collect::<Vec<_>>().join(", ");
    let has = |name: &str| form.fields.iter().any(|field| field.name == name);
    let value = match value.map(|value| opened(&has, value)) {
        None if form.fields.is_empty() => return Ok(Map::new()),
        None => return Err(vec![format!("`value` is missing: it is an object with {}", names())]),
        Some(Value::Object(members)) => return Ok(members),
        Some(_) if form.fields.is_empty() => {
            return Err(vec!["there is nothing to fill in: use `action` \"accept\" or \"decline\" and leave `value` out".to_owned()]);
        }
        Some(value) => value,
    };
    let mut needed = form.fields.iter().filter(|field| field.required);
    let only = match form.fields.as_slice() {
        [only] => Some(only),
        _ => needed.next().filter(|_| needed.next().is_none()),
    };
    match only {
        Some(field) => Ok(Map::from_iter([(field.name.clone(), value)])),
        None => Err(vec![format!("`value` must be an object with {}", names())]),
    }
}

/// The value itself, where a model wrapped it: an object as its JSON text, or a whole answer instead of its content. An answer
/// that says no is not taken for a yes.
fn opened(has: &impl Fn(&str) -> bool, value: Value) -> Value {
    let value = match value {
        Value::String(text) => match serde_json::from_str::<Map<String, Value>>(&text) {
            Ok(members) if !members.is_empty() && members.keys().all(|name| has(name)) => members.into(),
            _ => text.into(),
        },
        value => value,
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

/// A value as the field wants it, where there is only one thing that it can mean; else as it is.
fn as_meant(kind: &FieldKind, value: Value) -> Value {
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
        (FieldKind::Choice { options }, value) => picked(options, &value).unwrap_or(value),
        (FieldKind::Choices { options, .. }, Value::Array(items)) => {
            items.into_iter().map(|item| picked(options, &item).unwrap_or(item)).collect()
        }
        (FieldKind::Choices { options, .. }, Value::String(text)) => {
            if let Some(one) = picked(options, &text.as_str().into()) {
                return vec![one].into();
            }
            if let Ok(items) = serde_json::from_str::<Vec<Value>>(&text) {
                return as_meant(kind, items.into());
            }
            let all: Option<Vec<Value>> = text.split(',').map(|word| picked(options, &word.trim().into())).collect();
            all.map_or_else(|| text.into(), Into::into)
        }
        (_, value) => value,
    }
}

/// The choice that a value means: by what it is, by its title, or by either without regard to case if only one fits.
fn picked(options: &[Choice], value: &Value) -> Option<Value> {
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

/// What can be filled in.
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
mod tests {
    use serde_json::json;
    use taskwire_core::{Timestamp, id::ID_RANDOM_BYTES};

    use super::*;

    fn form(properties: Value, required: Value) -> Question {
        let schema = json!({"type": "object", "properties": properties, "required": required});
        let request = json!({"method": "elicitation/create", "params": {"mode": "form", "message": "Well?", "requestedSchema": schema}});
        Question::read(&request.into())
    }

    fn one(property: Value) -> Question {
        form(json!({"it": property}), json!(["it"]))
    }

    fn fits(question: &Question, value: Value) -> Value {
        question.fit(Some(value.clone())).unwrap_or_else(|problems| panic!("{value}: {problems:?}"))
    }

    fn misfits(question: &Question, value: Value) -> String {
        match question.fit(Some(value.clone())) {
            Ok(content) => panic!("{value} was taken for {content}"),
            Err(problems) => problems.join("\n"),
        }
    }

    fn ask(question: &Question) -> String {
        question.ask(TaskId::new(Timestamp::from_millis(1), [1; ID_RANDOM_BYTES]), "k")
    }

    #[test]
    fn a_plain_value_is_that_of_the_only_field() {
        for property in [json!({"type": "string"}), json!({"type": "string", "minLength": 2})] {
            assert_eq!(fits(&one(property), json!("Ada")), json!({"it": "Ada"}));
        }
        assert_eq!(fits(&one(json!({"type": "string"})), json!({"it": "Ada"})), json!({"it": "Ada"}));
        let two = form(json!({"a": {"type": "string"}, "b": {"type": "string"}}), json!(["a", "b"]));
        assert!(misfits(&two, json!("Ada")).contains("`value` must be an object with `a`, `b`"));
        let one_needed = form(json!({"a": {"type": "string"}, "b": {"type": "string"}}), json!(["b"]));
        assert_eq!(fits(&one_needed, json!("Ada")), json!({"b": "Ada"}));
    }

    #[test]
    fn text_becomes_what_the_field_wants_where_that_is_clear() {
        let number = one(json!({"type": "integer", "minimum": 1, "maximum": 9}));
        assert_eq!((fits(&number, json!("3")), fits(&number, json!({"it": " 4 "}))), (json!({"it": 3}), json!({"it": 4})));
        assert!(misfits(&number, json!("three")).starts_with("`it`:"));
        assert!(misfits(&number, json!(12)).contains("`it`: 12 is more than 9"));
        assert!(misfits(&number, json!("2.5")).starts_with("`it`:"));
        let flag = one(json!({"type": "boolean"}));
        for (text, meant) in [("true", true), ("Yes", true), ("no", false), ("FALSE", false)] {
            assert_eq!(fits(&flag, json!(text)), json!({"it": meant}));
        }
        assert!(misfits(&flag, json!("perhaps")).starts_with("`it`:"));
        assert!(misfits(&flag, json!(1)).starts_with("`it`:"));
        let text = one(json!({"type": "string"}));
        assert_eq!((fits(&text, json!(7)), fits(&text, json!(true))), (json!({"it": "7"}), json!({"it": "true"})));
        assert_eq!(fits(&text, json!("{\"a\":1}")), json!({"it": "{\"a\":1}"}), "text that happens to be JSON stays text");
    }

    #[test]
    fn a_choice_is_found_by_value_title_or_without_regard_to_case() {
        let choice = one(json!({"type": "string", "oneOf": [{"const": "eu-1", "title": "Europe"}, {"const": "us-1", "title": "America"}]}));
        for said in ["eu-1", "Europe", "europe", " EU-1 "] {
            assert_eq!(fits(&choice, json!(said)), json!({"it": "eu-1"}), "{said}");
        }
        for said in [json!("asia"), json!("1"), json!(1), json!("")] {
            assert!(misfits(&choice, said).contains("none of the choices: eu-1, us-1"));
        }
        let sizes = one(json!({"type": "string", "enum": ["1", "2", "a", "A"]}));
        assert_eq!((fits(&sizes, json!(2)), fits(&sizes, json!("A"))), (json!({"it": "2"}), json!({"it": "A"})));
        let many = one(json!({"type": "array", "items": {"type": "string", "enum": ["x", "y", "z, too"]}}));
        for said in [json!(["x", "Y"]), json!("x, y"), json!("[\"x\",\"y\"]")] {
            assert_eq!(fits(&many, said), json!({"it": ["x", "y"]}));
        }
        assert_eq!(fits(&many, json!("z, too")), json!({"it": ["z, too"]}));
        assert!(misfits(&many, json!("x, q")).starts_with("`it`:"));
    }

    #[test]
    fn what_a_model_wraps_is_unwrapped() {
        let two = form(json!({"a": {"type": "string"}, "b": {"type": "integer"}}), json!(["a", "b"]));
        let meant = json!({"a": "x", "b": 2});
        for said in [meant.clone(), json!(meant.to_string()), json!({"action": "accept", "content": meant}), json!({"a": "x", "b": "2"})] {
            assert_eq!(fits(&two, said), meant);
        }
        for action in ["decline", "cancel"] {
            let no = misfits(&two, json!({"action": action, "content": meant}));
            assert!(no.contains("`action`: the form has no such field"), "a no is no yes: {no}");
        }
        let named = form(json!({"action": {"type": "string"}, "content": {"type": "string"}}), json!(["action", "content"]));
        let own = json!({"action": "a", "content": "c"});
        assert_eq!(fits(&named, own.clone()), own, "fields may have any name");
    }

    #[test]
    fn what_is_left_out_has_its_default_and_what_does_not_belong_is_named() {
        let question = form(
            json!({"name": {"type": "string"}, "n": {"type": "integer", "default": 5}, "note": {"type": "string"}}),
            json!(["name", "n"]),
        );
        assert_eq!(fits(&question, json!({"name": "x", "note": null})), json!({"name": "x", "n": 5}));
        assert_eq!(misfits(&question, json!({"nmae": "x"})), "`nmae`: the form has no such field");
        assert_eq!(misfits(&question, json!({})), "`name`: this must be filled in");
        assert!(misfits(&question, json!({"name": null})).starts_with("`name`:"));
        assert!(question.fit(None).expect_err("nothing").join("").contains("`value` is missing"));
    }

    #[test]
    fn who_can_agree_with_the_defaults_is_told_how() {
        let told =
            |question: &Question| ask(question).contains("To agree with the defaults, say \"action\":\"accept\" in place of \"value\".");
        let (text, number) = (json!({"type": "string"}), json!({"type": "integer", "default": 5}));
        let fields = || json!({"note": text, "n": number});
        for required in [json!([]), json!(["n"])] {
            let question = form(fields(), required);
            assert!(question.needs_nothing() && told(&question), "{}", ask(&question));
            assert!(ask(&question).ends_with("}}. To agree with the defaults, say \"action\":\"accept\" in place of \"value\"."));
            assert_eq!(fits(&question, json!({})), json!({"n": 5}));
            assert!(question.fit(None).is_err(), "silence is no yes");
        }
        let needed = form(fields(), json!(["note", "n"]));
        assert!(!needed.needs_nothing() && !told(&needed));
        let optional = form(json!({"note": text}), json!([]));
        assert!(optional.needs_nothing() && !told(&optional), "there are no defaults to agree with");
        let broken = form(json!({"n": {"type": "integer", "maximum": 3, "default": 5}}), json!(["n"]));
        assert!(!broken.needs_nothing() && !told(&broken), "a default that does not fit is none");
    }

    #[test]
    fn what_only_stands_for_an_answer_is_none() {
        let question = form(json!({"name": {"type": "string"}, "sure": {"type": "boolean"}}), json!(["name", "sure"]));
        let problems = misfits(&question, question.example());
        assert_eq!(problems.lines().count(), 2, "{problems}");
        assert!(problems.contains("`name`: \"<text>\" stands for an answer"), "{problems}");
    }

    #[test]
    fn a_form_without_fields_is_a_yes_or_a_no() {
        let question = form(json!({}), json!([]));
        assert_eq!(question.fit(None), Ok(json!({})));
        assert!(misfits(&question, json!(true)).contains("leave `value` out"));
        assert!(ask(&question).contains("\"action\":\"accept\"") && !ask(&question).contains("Fields"));
        assert!(question.is_plain() && !one(json!({"type": "string"})).is_plain());
    }

    #[test]
    fn fields_are_told_in_their_order_with_all_that_is_asked_of_them() {
        let schema = r#"{"type":"object","required":["z"],"properties":{
            "z":{"type":"string","minLength":1,"maxLength":8,"description":"The last letter"},
            "mail":{"type":"string","format":"email"},
            "n":{"type":"integer","minimum":1,"maximum":3,"default":2,"title":"How many"},
            "x":{"type":"array","maxItems":2,"items":{"type":"string","enum":["a","b"]}}}}"#;
        let request = format!(r#"{{"method":"elicitation/create","params":{{"message":"Well?","requestedSchema":{schema}}}}}"#);
        let question = Question::read(&Payload::parse(request).expect("JSON"));
        assert_eq!(
            question.fields(),
            "Fields of `value`:\n\
             - `z` (text, 1 to 8 characters; required): The last letter\n\
             - `mail` (an e-mail address; optional)\n\
             - `n` (whole number from 1 to 3; default 2): How many\n\
             - `x` (a list of some of \"a\", \"b\", at most 2 of them; optional)"
        );
        assert!(ask(&question).contains(r#""key":"k","value":{"z":"<text>"}}"#), "{}", ask(&question));
    }

    #[test]
    fn schemas_that_are_no_forms_are_shown_and_checked_all_the_same() {
        let schema = json!({"type": "object", "properties": {"deep": {"type": "object"}}, "required": ["deep"]});
        let request = json!({"method": "elicitation/create", "params": {"message": "Well?", "requestedSchema": schema}});
        let question = Question::read(&request.into());
        assert!(question.fields().contains("JSON Schema: {"), "{}", question.fields());
        assert_eq!(fits(&question, json!({"deep": {"a": 1}})), json!({"deep": {"a": 1}}));
        assert!(misfits(&question, json!({})).contains("deep") && misfits(&question, json!("x")).contains("must be an object"));
        let none = Question::read(&json!({"method": "elicitation/create", "params": {"message": "Well?"}}).into());
        assert_eq!(fits(&none, json!({"a": 1})), json!({"a": 1}));
    }

    #[test]
    fn pages_and_programs_have_nothing_to_fill_in() {
        let page = Question::read(
            &json!({"method": "elicitation/create", "params": {"mode": "url", "message": "Sign", "url": "https://x.test/1"}}).into(),
        );
        assert!(page.is_for_users() && ask(&page).contains("https://x.test/1") && ask(&page).contains("\"action\":\"accept\""));
        let roots = Question::read(&json!({"method": "roots/list", "params": {}}).into());
        assert!(!roots.is_for_users() && ask(&roots).contains("`roots/list`"));
        assert!(page.is_plain() && roots.is_plain());
        assert!(page.fit(Some(json!("x"))).is_err() && roots.fit(Some(json!([]))).is_err());
    }

    #[test]
    fn long_texts_and_lists_are_cut() {
        let options: Vec<String> = (0..100).map(|n| format!("choice-{n}")).collect();
        let question = one(json!({"type": "string", "enum": options, "description": "é".repeat(10_000)}));
        let text = question.fields();
        assert!(text.contains("\"choice-29\" and 70 more") && text.len() < 6_000, "{}", text.len());
    }
}

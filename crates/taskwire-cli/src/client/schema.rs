//! A tool's parameters, read from its JSON Schema: names, kinds of values, choices. Converts text to values.

use serde_json::{Number, Value};

/// How deep references and choices are followed.
const DEPTH_MAX: usize = 16;

/// The parameters of a tool, or the fields of a form.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parameters<'a> {
    root: &'a Value,
}

/// One parameter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parameter<'a> {
    pub(crate) name: &'a str,
    pub(crate) is_required: bool,
    root: &'a Value,
    schema: &'a Value,
}

impl<'a> Parameters<'a> {
    pub(crate) fn new(schema: &'a Value) -> Self {
        Self { root: schema }
    }

    /// All parameters, the required ones first.
    pub(crate) fn all(self) -> Vec<Parameter<'a>> {
        let properties = self.root["properties"].as_object();
        let mut all: Vec<_> = properties.into_iter().flatten().map(|(name, schema)| self.parameter(name, schema)).collect();
        all.sort_by_key(|parameter| !parameter.is_required);
        all
    }

    fn parameter(self, name: &'a str, schema: &'a Value) -> Parameter<'a> {
        Parameter { name, is_required: self.required().any(|required| required == name), root: self.root, schema }
    }

    pub(crate) fn get(self, name: &str) -> Option<Parameter<'a>> {
        let (name, schema) = self.root["properties"].as_object()?.get_key_value(name)?;
        Some(self.parameter(name, schema))
    }

    pub(crate) fn required(self) -> impl Iterator<Item = &'a str> {
        self.root["required"].as_array().into_iter().flatten().filter_map(Value::as_str)
    }

    /// Whether a name that is not listed is a mistake.
    pub(crate) fn is_closed(self) -> bool {
        let others = &self.root["additionalProperties"];
        self.root["properties"].is_object()
            && matches!(others, Value::Null | Value::Bool(false))
            && self.root["patternProperties"].is_null()
    }

    /// `path (string, required), lines (integer, optional)`.
    pub(crate) fn summary(self) -> String {
        let describe = |parameter: Parameter<'_>| {
            let need = if parameter.is_required { "required" } else { "optional" };
            format!("{} ({}, {need})", parameter.name, parameter.kind())
        };
        let all: Vec<String> = self.all().into_iter().map(describe).collect();
        if all.is_empty() { "none".to_owned() } else { all.join(", ") }
    }
}

/// The kinds of values that a schema allows. None of them: anything goes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Kinds {
    text: bool,
    integer: bool,
    number: bool,
    flag: bool,
    null: bool,
    list: bool,
    object: bool,
}

impl Kinds {
    fn add(&mut self, name: &str) {
        match name {
            "string" => self.text = true,
            "integer" => self.integer = true,
            "number" => self.number = true,
            "boolean" => self.flag = true,
            "null" => self.null = true,
            "array" => self.list = true,
            "object" => self.object = true,
            _ => {}
        }
    }

    fn add_value(&mut self, value: &Value) {
        self.add(match value {
            Value::String(_) => "string",
            Value::Number(number) if number.is_f64() => "number",
            Value::Number(_) => "integer",
            Value::Bool(_) => "boolean",
            Value::Null => "null",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        });
    }

    fn names(self) -> Vec<&'static str> {
        let all = [
            (self.text, "string"),
            (self.integer, "integer"),
            (self.number, "number"),
            (self.flag, "boolean"),
            (self.list, "array"),
            (self.object, "object"),
        ];
        all.into_iter().filter(|(there, _)| *there).map(|(_, name)| name).collect()
    }

    fn expected(self) -> String {
        let all = [
            (self.integer, "an integer"),
            (self.number, "a number"),
            (self.flag, "true or false"),
            (self.list, "a JSON array"),
            (self.object, "a JSON object"),
            (self.null, "null"),
        ];
        all.into_iter().filter(|(there, _)| *there).map(|(_, name)| name).collect::<Vec<_>>().join(" or ")
    }
}

impl<'a> Parameter<'a> {
    pub(crate) fn description(&self) -> Option<&'a str> {
        let described = |schema: &'a Value| schema["description"].as_str().or_else(|| schema["title"].as_str());
        described(self.schema).or_else(|| described(resolved(self.root, self.schema)))
    }

    pub(crate) fn default(&self) -> Option<&'a Value> {
        self.schema.get("default").or_else(|| resolved(self.root, self.schema).get("default"))
    }

    /// A number or text within the schema, such as `minimum`.
    pub(crate) fn keyword(&self, name: &str) -> Option<&'a Value> {
        resolved(self.root, self.schema).get(name)
    }

    /// `integer`, `string`, `red|green`.
    pub(crate) fn kind(&self) -> String {
        if let Some(choices) = self.choices() {
            return choices.join("|");
        }
        let names = self.kinds().names();
        if names.is_empty() { "any".to_owned() } else { names.join(" or ") }
    }

    /// The texts that are allowed, if nothing else is.
    pub(crate) fn choices(&self) -> Option<Vec<&'a str>> {
        let mut choices = Vec::new();
        let is_closed = collect_choices(self.root, self.schema, 0, &mut choices);
        (is_closed && !choices.is_empty()).then_some(choices)
    }

    pub(crate) fn is_list(&self) -> bool {
        let kinds = self.kinds();
        kinds.list && !kinds.text
    }

    fn kinds(&self) -> Kinds {
        let mut kinds = Kinds::default();
        collect_kinds(self.root, self.schema, 0, &mut kinds);
        kinds
    }

    /// The value that this text stands for; text stays text wherever the schema allows it.
    pub(crate) fn value(&self, text: &str) -> Result<Value, String> {
        let kinds = self.kinds();
        if kinds.null && text == "null" && (!kinds.text || self.choices().is_some()) {
            return Ok(Value::Null);
        }
        if let Some(choices) = self.choices().filter(|choices| !choices.contains(&text)) {
            let list = choices.iter().map(|choice| format!("`{choice}`")).collect::<Vec<_>>().join(", ");
            let hint = nearest(text, choices.iter().copied()).map(|choice| format!("; did you mean `{choice}`?")).unwrap_or_default();
            return Err(format!("`{}` must be one of {list}, not `{text}`{hint}", self.name));
        }
        if kinds == Kinds::default() || kinds.text {
            return Ok(Value::String(text.to_owned()));
        }
        let value = flag(text)
            .filter(|_| kinds.flag)
            .or_else(|| integer(text).filter(|_| kinds.integer))
            .or_else(|| number(text).filter(|_| kinds.number))
            .or_else(|| json(text).filter(Value::is_object).filter(|_| kinds.object));
        if let Some(value) = value {
            return Ok(value);
        }
        if kinds.list {
            return self.list(text);
        }
        Err(format!("`{}` must be {}, not `{text}`", self.name, kinds.expected()))
    }

    /// A list: all of it as JSON, or one element of it.
    fn list(&self, text: &str) -> Result<Value, String> {
        if text.trim_start().starts_with('[') {
            return json(text).filter(Value::is_array).ok_or_else(|| format!("`{}` must be a JSON array, not `{text}`", self.name));
        }
        static ANYTHING: Value = Value::Bool(true);
        let items = list_items(self.root, self.schema, 0).unwrap_or(&ANYTHING);
        let element = Parameter { schema: items, ..*self };
        element.value(text).map(|value| Value::Array(vec![value]))
    }
}

/// The schema that a reference within the same document points to.
fn resolved<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    let mut schema = schema;
    for _ in 0..DEPTH_MAX {
        let target = schema["$ref"].as_str().and_then(|link| link.strip_prefix('#')).and_then(|pointer| root.pointer(pointer));
        match target {
            Some(target) => schema = target,
            None => break,
        }
    }
    schema
}

fn alternatives(schema: &Value) -> impl Iterator<Item = &Value> {
    ["anyOf", "oneOf", "allOf"].into_iter().filter_map(move |name| schema[name].as_array()).flatten()
}

fn collect_kinds(root: &Value, schema: &Value, depth: usize, kinds: &mut Kinds) {
    if depth > DEPTH_MAX {
        return;
    }
    let schema = resolved(root, schema);
    match &schema["type"] {
        Value::String(name) => kinds.add(name),
        Value::Array(names) => names.iter().filter_map(Value::as_str).for_each(|name| kinds.add(name)),
        _ => {
            let values = schema["enum"].as_array().into_iter().flatten().chain(schema.get("const"));
            values.for_each(|value| kinds.add_value(value));
            alternatives(schema).for_each(|schema| collect_kinds(root, schema, depth + 1, kinds));
        }
    }
}

/// Adds the texts that are allowed; false if others are allowed, too.
fn collect_choices<'a>(root: &'a Value, schema: &'a Value, depth: usize, choices: &mut Vec<&'a str>) -> bool {
    if depth > DEPTH_MAX {
        return false;
    }
    let schema = resolved(root, schema);
    let mut values = schema["enum"].as_array().into_iter().flatten().chain(schema.get("const")).peekable();
    if values.peek().is_some() {
        return values.all(|value| match value {
            Value::String(text) => {
                choices.push(text);
                true
            }
            other => other.is_null(),
        });
    }
    let mut others = alternatives(schema).peekable();
    match others.peek() {
        Some(_) => others.all(|schema| collect_choices(root, schema, depth + 1, choices)),
        None => schema["type"] == "null",
    }
}

fn list_items<'a>(root: &'a Value, schema: &'a Value, depth: usize) -> Option<&'a Value> {
    let schema = resolved(root, schema);
    if depth > DEPTH_MAX {
        return None;
    }
    schema.get("items").or_else(|| alternatives(schema).find_map(|schema| list_items(root, schema, depth + 1)))
}

fn json(text: &str) -> Option<Value> {
    serde_json::from_str(text).ok()
}

fn flag(text: &str) -> Option<Value> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" => Some(Value::Bool(true)),
        "false" | "no" => Some(Value::Bool(false)),
        _ => None,
    }
}

fn number(text: &str) -> Option<Value> {
    serde_json::from_str::<Number>(text).ok().map(Value::Number)
}

/// A whole number, however it is written.
fn integer(text: &str) -> Option<Value> {
    let number = serde_json::from_str::<Number>(text).ok()?;
    if !number.is_f64() {
        return Some(Value::Number(number));
    }
    let float = number.as_f64().filter(|float| float.fract() == 0.0 && float.abs() < 9_007_199_254_740_992.0)?;
    Some(Value::from(float as i64))
}

/// The name that was probably meant.
pub(crate) fn nearest<'a>(unknown: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let distance = |known: &str| strsim::damerau_levenshtein(unknown, known);
    known.min_by_key(|known| distance(known)).filter(|known| distance(known) <= known.len().max(unknown.len()) / 2)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// What `text` becomes for a parameter of this schema.
    fn value(schema: Value, text: &str) -> Result<Value, String> {
        let root = json!({"properties": {"p": schema}, "$defs": {"Colour": {"enum": ["red", "green"]}, "Count": {"type": "integer"}}});
        Parameters::new(&root).get("p").expect("it is there").value(text)
    }

    #[test]
    fn text_becomes_what_the_schema_wants() {
        for (schema, text, expected) in [
            (json!({"type": "string"}), "5", json!("5")),
            (json!({}), "5", json!("5")),
            (json!({"type": "integer"}), "-5", json!(-5)),
            (json!({"type": "integer"}), "5.0", json!(5)),
            (json!({"type": "integer"}), "18446744073709551615", json!(u64::MAX)),
            (json!({"type": "number"}), "0.5", json!(0.5)),
            (json!({"type": "boolean"}), "yes", json!(true)),
            (json!({"type": ["integer", "null"]}), "null", json!(null)),
            (json!({"type": ["string", "null"]}), "null", json!("null")),
            (json!({"type": "object"}), "{\"a\":1}", json!({"a": 1})),
            (json!({"type": "array", "items": {"type": "integer"}}), "[1,2]", json!([1, 2])),
            (json!({"type": "array", "items": {"type": "integer"}}), "1", json!([1])),
            (json!({"type": "array"}), "a,b", json!(["a,b"])),
            (json!({"anyOf": [{"$ref": "#/$defs/Count"}, {"type": "null"}]}), "7", json!(7)),
            (json!({"$ref": "#/$defs/Colour"}), "red", json!("red")),
            (json!({"anyOf": [{"$ref": "#/$defs/Colour"}, {"type": "null"}]}), "null", json!(null)),
            (json!({"enum": [1, 2]}), "2", json!(2)),
            (json!({"type": ["boolean", "integer"]}), "1", json!(1)),
        ] {
            assert_eq!(value(schema.clone(), text), Ok(expected), "{schema} {text}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_with_what_would() {
        for (schema, text, expected) in [
            (json!({"type": "integer"}), "x", "`p` must be an integer, not `x`"),
            (json!({"type": "integer"}), "1.5", "`p` must be an integer, not `1.5`"),
            (json!({"type": ["number", "null"]}), "", "`p` must be a number or null, not ``"),
            (json!({"type": "boolean"}), "2", "`p` must be true or false, not `2`"),
            (json!({"type": "object"}), "[1]", "`p` must be a JSON object, not `[1]`"),
            (json!({"type": "array"}), "[1", "`p` must be a JSON array, not `[1`"),
            (json!({"type": "array", "items": {"type": "integer"}}), "x", "`p` must be an integer, not `x`"),
            (json!({"$ref": "#/$defs/Colour"}), "rad", "`p` must be one of `red`, `green`, not `rad`; did you mean `red`?"),
            (json!({"oneOf": [{"const": "a"}, {"const": "b"}]}), "c", "`p` must be one of `a`, `b`, not `c`"),
        ] {
            assert_eq!(value(schema.clone(), text), Err(expected.to_owned()), "{schema}");
        }
    }

    #[test]
    fn endless_references_come_to_an_end() {
        let root = json!({"properties": {"p": {"$ref": "#/$defs/A"}, "q": {"$ref": "#/$defs/B"}},
            "$defs": {"A": {"$ref": "#/$defs/A"}, "B": {"anyOf": [{"$ref": "#/$defs/B"}]}}});
        for name in ["p", "q"] {
            assert_eq!(Parameters::new(&root).get(name).expect("there").value("x"), Ok(json!("x")));
        }
    }

    #[test]
    fn parameters_are_told_in_a_few_words() {
        let schema = json!({
            "properties": {"lines": {"type": "integer"}, "path": {"type": "string"}, "how": {"enum": ["fast", "slow"]}},
            "required": ["path"],
        });
        assert_eq!(Parameters::new(&schema).summary(), "path (string, required), how (fast|slow, optional), lines (integer, optional)");
        assert_eq!(Parameters::new(&json!({})).summary(), "none");
        assert!(Parameters::new(&schema).is_closed());
        assert!(!Parameters::new(&json!({"properties": {}, "additionalProperties": true})).is_closed());
        assert!(!Parameters::new(&json!({})).is_closed());
    }
}

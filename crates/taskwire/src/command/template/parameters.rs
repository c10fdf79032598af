//! The parameters of a tool, as far as its schema describes them.

use serde_json::Value;

use crate::schema::meant;

/// How deep lists of lists are checked.
const DEPTH_MAX: usize = 8;

#[derive(Debug, Clone, Copy)]
pub(in crate::command) struct Parameters<'a> {
    schema: &'a Value,
}

impl<'a> Parameters<'a> {
    pub(in crate::command) fn of(schema: &'a Value) -> Self {
        Self { schema }
    }

    /// All parameters with their schemas.
    pub(in crate::command) fn all(self) -> impl Iterator<Item = (&'a str, &'a Value)> {
        self.schema.get("properties").and_then(Value::as_object).into_iter().flatten().map(|(name, schema)| (name.as_str(), schema))
    }

    fn get(self, name: &str) -> Option<&'a Value> {
        self.schema.get("properties")?.get(name)
    }

    /// The parameter that an author wants in a text like `{a b} and more`, though its name cannot stand in braces.
    pub(super) fn unnameable(self, text: &str) -> Option<&'a str> {
        let braced = |name: &str| text.strip_prefix('{').and_then(|rest| rest.strip_prefix(name)).is_some_and(|rest| rest.starts_with('}'));
        self.all().map(|(name, _)| name).find(|name| !name.trim().is_empty() && braced(name))
    }

    /// Whether every value of this parameter is of this type (or null).
    pub(super) fn is(self, name: &str, kind: &str) -> bool {
        let Some(schema) = self.get(name) else { return false };
        match self.resolve_ref(schema).get("type") {
            Some(Value::String(only)) => only == kind,
            Some(Value::Array(several)) => several.iter().any(|one| one == kind) && several.iter().all(|one| one == kind || one == "null"),
            _ => false,
        }
    }

    /// The schema that this one refers to, or itself.
    pub(in crate::command) fn resolve_ref(self, schema: &'a Value) -> &'a Value {
        meant(self.schema, schema)
    }

    /// Whether no value of it can be code: all are numbers, booleans, or values that the author wrote down.
    pub(super) fn cannot_be_code(self, name: &str) -> bool {
        self.get(name).is_some_and(|schema| self.schema_cannot_be_code(schema, DEPTH_MAX))
    }

    fn schema_cannot_be_code(self, schema: &'a Value, depth: usize) -> bool {
        let schema = self.resolve_ref(schema);
        let is_tame = |kind: &Value| match kind.as_str() {
            Some("integer" | "number" | "boolean" | "null") => true,
            Some("array") => {
                let items = schema.get("items").filter(|_| depth > 0 && schema.get("prefixItems").is_none());
                items.is_some_and(|items| self.schema_cannot_be_code(items, depth - 1))
            }
            _ => false,
        };
        let is_chosen = schema.get("enum").is_some() || schema.get("const").is_some();
        is_chosen
            || match schema.get("type") {
                Some(Value::Array(several)) => several.iter().all(is_tame),
                Some(only) => is_tame(only),
                None => false,
            }
    }

    fn may_be(self, name: &str, kind: &str) -> bool {
        let Some(schema) = self.get(name).map(|schema| self.resolve_ref(schema)) else { return true };
        match (schema.get("type"), schema.get("enum")) {
            (Some(Value::String(only)), _) => only == kind,
            (Some(Value::Array(several)), _) => several.iter().any(|one| one == kind),
            (_, Some(Value::Array(values))) => values.iter().any(|value| if kind == "null" { value.is_null() } else { value.is_array() }),
            _ => true,
        }
    }

    /// Whether it may be a list, which becomes any number of arguments.
    pub(super) fn may_be_list(self, name: &str) -> bool {
        self.may_be(name, "array")
    }

    pub(super) fn always_has_value(self, name: &str) -> bool {
        let is_required = self.schema.get("required").and_then(Value::as_array).is_some_and(|names| names.iter().any(|one| one == name));
        let has_default = self.get(name).and_then(|schema| schema.get("default")).is_some_and(|default| !default.is_null());
        (is_required || has_default) && !self.may_be(name, "null") && !self.may_be_list(name)
    }

    /// An error if there is no such parameter. `hint` says what else the author may have wanted.
    pub(in crate::command) fn require(self, name: &str, hint: &str) -> Result<(), String> {
        if self.get(name).is_some() {
            return Ok(());
        }
        let known: Vec<&str> = self.all().map(|(name, _)| name).collect();
        let near = known.iter().map(|other| (edit_distance(name, other), *other)).min().filter(|(far, _)| *far <= 1 + name.len() / 4);
        let which = match (near, known.is_empty()) {
            (Some((_, other)), _) => format!("did you mean `{other}`?"),
            (None, true) => "the tool has none.".to_owned(),
            (None, false) => format!("it has: {}.", known.join(", ")),
        };
        Err(format!("`{name}` is not a parameter of this tool: {which}{hint}"))
    }
}

/// How many characters must be added, removed or replaced to turn one name into the other.
pub(super) fn edit_distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (above, a) in one.chars().enumerate() {
        let mut corner = above;
        row[0] = above + 1;
        for (at, b) in other.iter().enumerate() {
            let replaced = corner + usize::from(a != *b);
            corner = row[at + 1];
            row[at + 1] = replaced.min(row[at] + 1).min(corner + 1);
        }
    }
    row[other.len()]
}

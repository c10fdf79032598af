//! What a schema says of a value itself, without the schemas that it applies to it or to its parts: for the library to check and to word.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use jsonschema::Validator;
use serde_json::{Map, Value};

use super::{SchemaKind, budget::cost_of_pattern};

/// What a schema says of a value itself.
const ASSERTIONS: [&str; 20] = [
    "type",
    "enum",
    "const",
    "multipleOf",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "minLength",
    "maxLength",
    "pattern",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "required",
    "dependentRequired",
    "format",
    "contentEncoding",
    "contentMediaType",
];

pub(super) type Members = Map<String, Value>;

/// One schema without those that it applies.
#[derive(Debug)]
pub(super) struct Assertions {
    pub(super) validator: Validator,
    /// What it counts as beyond the step that any schema is.
    pub(super) cost: u64,
}

/// The leaves of a schema that were needed so far, by where they stand in its text.
#[derive(Debug, Default)]
pub(super) struct AssertionCache(Mutex<HashMap<usize, Option<Arc<Assertions>>>>);

impl AssertionCache {
    /// What a schema says of a value itself, if it says anything.
    pub(super) fn of_schema(&self, rules: SchemaKind, root: &Value, schema: &Members) -> Option<Arc<Assertions>> {
        self.get(address(schema), || make(rules, root, assertion_keywords(schema)))
    }

    /// What takes the texts that match a pattern.
    pub(super) fn of_pattern(&self, rules: SchemaKind, root: &Value, pattern: &str) -> Option<Arc<Assertions>> {
        self.get(pattern.as_ptr().addr(), || make(rules, root, Members::from_iter([("pattern".to_owned(), pattern.into())])))
    }

    /// What a schema says of the names of members, if it does not leave that to another one.
    pub(super) fn of_names(&self, rules: SchemaKind, root: &Value, schema: &Value) -> Option<Arc<Assertions>> {
        let make = || make(rules, root, Members::from_iter([("propertyNames".to_owned(), schema.clone())]));
        self.get(address(schema), || if has_reference(schema) { None } else { make() })
    }

    fn get(&self, place: usize, make: impl FnOnce() -> Option<Assertions>) -> Option<Arc<Assertions>> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.entry(place).or_insert_with(|| make().map(Arc::new)).clone()
    }
}

fn make(rules: SchemaKind, root: &Value, mut text: Members) -> Option<Assertions> {
    if text.is_empty() {
        return None;
    }
    let cost = text.get("pattern").and_then(Value::as_str).map_or(0, |pattern| cost_of_pattern(pattern) - 1);
    // A schema from elsewhere is read as the draft that it names.
    if let (SchemaKind::Foreign, Some(draft)) = (rules, root.get("$schema")) {
        text.insert("$schema".to_owned(), draft.clone());
    }
    let validator = rules.options().build(&Value::Object(text)).ok()?;
    Some(Assertions { validator, cost })
}

/// What a schema says of a value itself, as a schema of its own.
fn assertion_keywords(rules: &Members) -> Members {
    let mut own: Members = ASSERTIONS.iter().filter_map(|key| Some(((*key).to_owned(), rules.get(*key)?.clone()))).collect();
    if rules.get("additionalProperties").is_some_and(|others| *others == false) {
        for key in ["properties", "patternProperties"] {
            if let Some(named) = rules.get(key).and_then(Value::as_object) {
                own.insert(key.to_owned(), named.keys().map(|name| (name.clone(), true)).collect());
            }
        }
        own.insert("additionalProperties".to_owned(), false.into());
    }
    own
}

fn has_reference(value: &Value) -> bool {
    match value {
        Value::Object(members) => members.iter().any(|(key, value)| matches!(key.as_str(), "$ref" | "$dynamicRef") || has_reference(value)),
        Value::Array(items) => items.iter().any(has_reference),
        _ => false,
    }
}

/// Where something is, which stays the same as long as it is borrowed.
pub(super) fn address<T>(it: &T) -> usize {
    std::ptr::from_ref(it).addr()
}

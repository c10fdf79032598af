//! The assertions of one schema: what it says of a value itself, apart from its subschemas. The library checks and words them.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use jsonschema::Validator;
use serde_json::{Map, Value};

use super::{SchemaKind, budget::cost_of_pattern};

/// Keywords that say something of the value itself.
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

/// The assertions of one schema, compiled without its subschemas.
#[derive(Debug)]
pub(super) struct Assertions {
    pub(super) validator: Validator,
    /// Steps that a check costs beyond the one of any schema.
    pub(super) cost: u64,
}

/// The assertions that were needed so far, by the address of their schema or pattern.
#[derive(Debug, Default)]
pub(super) struct AssertionCache(Mutex<HashMap<usize, Option<Arc<Assertions>>>>);

impl AssertionCache {
    pub(super) fn of_schema(&self, kind: SchemaKind, root: &Value, schema: &Members) -> Option<Arc<Assertions>> {
        self.get(address(schema), || make(kind, root, assertion_keywords(schema)))
    }

    /// Checks whether a text matches a pattern.
    pub(super) fn of_pattern(&self, kind: SchemaKind, root: &Value, pattern: &str) -> Option<Arc<Assertions>> {
        self.get(pattern.as_ptr().addr(), || make(kind, root, Members::from_iter([("pattern".to_owned(), pattern.into())])))
    }

    /// Checks the names of members; `None` if their schema refers to another one.
    pub(super) fn of_names(&self, kind: SchemaKind, root: &Value, schema: &Value) -> Option<Arc<Assertions>> {
        let make = || make(kind, root, Members::from_iter([("propertyNames".to_owned(), schema.clone())]));
        self.get(address(schema), || if has_reference(schema) { None } else { make() })
    }

    fn get(&self, address: usize, make: impl FnOnce() -> Option<Assertions>) -> Option<Arc<Assertions>> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.entry(address).or_insert_with(|| make().map(Arc::new)).clone()
    }
}

fn make(kind: SchemaKind, root: &Value, mut text: Members) -> Option<Assertions> {
    if text.is_empty() {
        return None;
    }
    let cost = text.get("pattern").and_then(Value::as_str).map_or(0, |pattern| cost_of_pattern(pattern) - 1);
    // A schema from elsewhere is read as the draft that it names.
    if let (SchemaKind::Foreign, Some(draft)) = (kind, root.get("$schema")) {
        text.insert("$schema".to_owned(), draft.clone());
    }
    let validator = kind.options().build(&Value::Object(text)).ok()?;
    Some(Assertions { validator, cost })
}

/// The assertions of a schema, as a schema of their own.
fn assertion_keywords(keywords: &Members) -> Members {
    let mut own: Members = ASSERTIONS.iter().filter_map(|key| Some(((*key).to_owned(), keywords.get(*key)?.clone()))).collect();
    if keywords.get("additionalProperties").is_some_and(|others| *others == false) {
        for key in ["properties", "patternProperties"] {
            if let Some(named) = keywords.get(key).and_then(Value::as_object) {
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

/// The address of a value, which identifies it as long as it is borrowed.
pub(super) fn address<T>(it: &T) -> usize {
    std::ptr::from_ref(it).addr()
}

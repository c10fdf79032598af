//! Decides which calls are the same: the fingerprint of a tool and its arguments.

use std::{borrow::Cow, sync::Arc};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::tool::integer;

/// Equal for the same tool with arguments that are equal JSON values. The order of keys does not matter, nor `1` or `1.0`, nor whether
/// an argument is missing or equals its default in the tool's input schema.
pub(super) fn fingerprint(tool: &str, schema: &Value, arguments: &Value) -> Arc<str> {
    let mut hash = Sha256::new();
    hash.update((tool.len() as u64).to_be_bytes());
    hash.update(tool);
    hash.update(in_order(&with_defaults(schema, arguments)).to_string());
    URL_SAFE_NO_PAD.encode(hash.finalize()).into()
}

fn with_defaults(schema: &Value, arguments: &Value) -> Value {
    let mut all = arguments.clone();
    if let Some(members) = all.as_object_mut() {
        for (name, property) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
            if let Some(default) = property.get("default") {
                members.entry(name.as_str()).or_insert_with(|| default.clone());
            }
        }
    }
    all
}

/// The value with the keys of every object sorted, and equal numbers written alike.
fn in_order(value: &Value) -> Cow<'_, Value> {
    match value {
        Value::Object(members) => {
            let mut members: Vec<(&String, &Value)> = members.iter().collect();
            members.sort_by_key(|(key, _)| *key);
            Cow::Owned(Value::Object(members.into_iter().map(|(key, value)| (key.clone(), in_order(value).into_owned())).collect()))
        }
        Value::Array(values) => Cow::Owned(values.iter().map(|value| in_order(value).into_owned()).collect()),
        Value::Number(number) => integer(number).map_or(Cow::Borrowed(value), |integer| Cow::Owned(Value::from(integer))),
        _ => Cow::Borrowed(value),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn calls_are_the_same_whatever_the_order_of_their_keys() {
        let of = |tool: &str, arguments: &Value| fingerprint(tool, &json!({"type": "object"}), arguments);
        let read = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
        let one = read(r#"{"a":1,"b":{"x":[{"p":1,"q":2}],"y":null}}"#);
        let other = read(r#"{"b":{"y":null,"x":[{"q":2,"p":1}]},"a":1}"#);
        assert_eq!(of("t", &one), of("t", &other));
        for different in [json!({"a": 1}), json!({"a": "1", "b": one["b"]}), json!({"a": 1, "b": {"x": [{"p": 1, "q": 2}]}})] {
            assert_ne!(of("t", &one), of("t", &different), "{different}");
        }
        assert_ne!(of("t", &json!({"a": [1, 2]})), of("t", &json!({"a": [2, 1]})), "a list has an order");
        assert_ne!(of("t", &one), of("u", &one), "another tool");
        assert_ne!(of("t", &json!("u")), of("t\"u\"", &json!(null)));
    }

    #[test]
    fn calls_are_the_same_with_a_default_and_without() {
        let schema = json!({"type": "object", "properties": {
            "n": {"type": "integer"}, "note": {"type": "string", "default": "d"}, "size": {"default": 2.0}, "odd": true,
        }});
        let same = |one: Value, other: Value| fingerprint("t", &schema, &one) == fingerprint("t", &schema, &other);
        assert!(same(json!({"n": 1}), json!({"n": 1, "note": "d"})));
        assert!(same(json!({}), json!({"size": 2, "note": "d"})));
        assert!(same(json!({"note": "x"}), json!({"size": 2, "note": "x"})));
        for different in [json!({"n": 1, "note": "x"}), json!({"n": 1, "note": null}), json!({"note": "d"}), json!({"n": 1, "more": "d"})] {
            assert!(!same(json!({"n": 1}), different.clone()), "{different}");
        }
        assert!(!same(json!({"n": {}}), json!({"n": {"note": "d"}})), "what is inside a value has no defaults here");
    }

    #[test]
    fn numbers_that_are_equal_are_the_same() {
        let same = |one: Value, other: Value| {
            let in_all = |value: Value| fingerprint("t", &json!({"type": "object"}), &json!({"n": value, "deep": [{"n": [value]}]}));
            in_all(one) == in_all(other)
        };
        for (one, other) in [(json!(1), json!(1.0)), (json!(1000), json!(1e3)), (json!(-4), json!(-4.0)), (json!(0), json!(-0.0))] {
            assert!(same(one.clone(), other.clone()), "{one} and {other}");
        }
        assert!(same(json!(9_007_199_254_740_991_i64), json!(9_007_199_254_740_991.0)));
        for (one, other) in [
            (json!(1), json!(1.5)),
            (json!(1), json!("1")),
            (json!(1), json!(true)),
            (json!(9_007_199_254_740_993_i64), json!(9_007_199_254_740_992.0)),
            (json!(u64::MAX), json!(2_f64.powi(64))),
        ] {
            assert!(!same(one.clone(), other.clone()), "{one} and {other}");
        }
    }
}

//! A `null` for something optional counts as omitted: clients and frameworks fill in all that a schema has.

use serde_json::Value;

use crate::schema::{meant, referred};

/// Levels of nested schemas that are searched.
const DEPTH_MAX: usize = 16;

/// Removes each `null`, however deep, under an optional name whose schema does not accept `null`; returns whether there was any. Under a
/// required name it stays, and does not fit.
pub(crate) fn drop_nulls(schema: &Value, value: &mut Value) -> bool {
    within(schema, schema, value)
}

fn within(root: &Value, schema: &Value, value: &mut Value) -> bool {
    let schema = meant(root, schema);
    let mut changed = false;
    match value {
        Value::Object(members) => {
            let required = |name: &str| schema.get("required").and_then(Value::as_array).is_some_and(|all| all.iter().any(|it| it == name));
            for (name, property) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
                let Some(value) = members.get_mut(name) else { continue };
                if !value.is_null() {
                    changed |= within(root, property, value);
                } else if !required(name) && !takes_null(root, property, 0) {
                    members.remove(name);
                    changed = true;
                }
            }
        }
        Value::Array(values) => {
            if let Some(items) = schema.get("items") {
                for value in values {
                    changed |= within(root, items, value);
                }
            }
        }
        _ => {}
    }
    changed
}

/// Whether `null` fits, as far as can be seen. In doubt it does: then the check of the arguments decides.
fn takes_null(root: &Value, schema: &Value, depth: usize) -> bool {
    let Some(members) = schema.as_object() else { return *schema != false };
    if depth > DEPTH_MAX {
        return true;
    }
    let takes = |inner: &Value| takes_null(root, inner, depth + 1);
    members.iter().all(|(key, said)| match (key.as_str(), said) {
        ("type", Value::Array(kinds)) => kinds.iter().any(|kind| kind == "null"),
        ("type", kind) => kind == "null",
        ("const", value) => value.is_null(),
        ("enum", Value::Array(values)) => values.contains(&Value::Null),
        ("anyOf" | "oneOf", Value::Array(several)) => several.iter().any(takes),
        ("allOf", Value::Array(several)) => several.iter().all(takes),
        ("$ref", target) => referred(root, target).is_none_or(takes),
        _ => true,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn without(schema: &Value, mut value: Value) -> Value {
        let before = value.clone();
        assert_eq!(drop_nulls(schema, &mut value), value != before, "{before}");
        value
    }

    #[test]
    fn a_null_for_what_may_be_left_out_is_left_out() {
        let schema = json!({
            "type": "object",
            "properties": {
                "needed": {"type": "string"},
                "size": {"type": "integer"},
                "kind": {"enum": ["a", "b"]},
                "either": {"anyOf": [{"type": "string"}, {"type": "number"}]},
                "other": {"$ref": "#/$defs/text"},
                "never": false,
            },
            "required": ["needed"],
            "$defs": {"text": {"type": "string"}},
        });
        let all = json!({"needed": "x", "size": null, "kind": null, "either": null, "other": null, "never": null});
        assert_eq!(without(&schema, all), json!({"needed": "x"}));
        assert_eq!(without(&schema, json!({"needed": null, "size": 3})), json!({"needed": null, "size": 3}), "it is needed");
        assert_eq!(without(&schema, json!({"unknown": null})), json!({"unknown": null}), "nobody knows what that is");
        assert_eq!(without(&schema, json!(null)), json!(null));
    }

    #[test]
    fn a_null_that_means_something_stays() {
        for property in [
            json!({"type": ["string", "null"]}),
            json!({"type": "null"}),
            json!({"enum": ["a", null]}),
            json!({"const": null}),
            json!({"anyOf": [{"type": "string"}, {"type": "null"}]}),
            json!({"allOf": [{"description": "anything"}]}),
            json!({"$ref": "#/$defs/may"}),
            json!({"$ref": "#/properties/a"}),
            json!({"description": "anything"}),
            json!({}),
            json!(true),
        ] {
            let schema = json!({"type": "object", "properties": {"a": property}, "$defs": {"may": {"type": ["string", "null"]}}});
            assert_eq!(without(&schema, json!({"a": null})), json!({"a": null}), "{property}");
        }
    }

    #[test]
    fn it_is_found_within_objects_and_lists() {
        let part = json!({"type": "object", "properties": {"n": {"type": "integer"}, "next": {"$ref": "#/$defs/part"}}});
        let schema = json!({
            "type": "object",
            "properties": {"parts": {"type": "array", "items": {"$ref": "#/$defs/part"}}, "list": {"type": "array", "items": {"type": "string"}}},
            "$defs": {"part": part},
        });
        let deep = json!({"parts": [{"n": null}, {"n": 1, "next": {"n": null, "next": null}}], "list": ["a", null]});
        let cleaned = json!({"parts": [{}, {"n": 1, "next": {}}], "list": ["a", null]});
        assert_eq!(without(&schema, deep), cleaned, "an item of a list is in its place, and stays");
    }
}

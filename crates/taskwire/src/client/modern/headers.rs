//! Header values of the modern era: encoding, and arguments that travel as `Mcp-Param-…` headers.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::Value;

/// The largest integer that every JSON reader keeps exactly.
const SAFE_MAX: u64 = (1 << 53) - 1;

/// Encodes a value for a header, with base64 if it is not plain ASCII.
pub(super) fn value(text: &str) -> String {
    let plain = text.bytes().all(|byte| (0x20..0x7f).contains(&byte)) && text.trim() == text;
    let marked = text.starts_with("=?base64?") && text.ends_with("?=");
    if plain && !marked { text.to_owned() } else { format!("=?base64?{}?=", STANDARD.encode(text)) }
}

/// The path of each annotated argument, and the name of its header.
pub(super) type HeaderParams = Vec<(Vec<String>, String)>;

/// Collects the `x-mcp-header` annotations of an input schema.
pub(super) fn of_schema(schema: &Value) -> Result<HeaderParams, String> {
    let mut found = Vec::new();
    collect(schema, &mut Vec::new(), true, &mut found)?;
    for (n, (_, name)) in found.iter().enumerate() {
        if found[..n].iter().any(|(_, other)| other.eq_ignore_ascii_case(name)) {
            return Err(format!("two parameters share the header `{name}`"));
        }
    }
    Ok(found)
}

fn collect(schema: &Value, path: &mut Vec<String>, reachable: bool, found: &mut HeaderParams) -> Result<(), String> {
    let Value::Object(members) = schema else {
        if let Value::Array(list) = schema {
            list.iter().try_for_each(|one| collect(one, path, false, found))?;
        }
        return Ok(());
    };
    if let Some(annotation) = members.get("x-mcp-header") {
        let name = annotation.as_str().filter(|name| !name.is_empty() && name.bytes().all(is_token));
        let name = name.ok_or_else(|| format!("`{annotation}` is no name for a header"))?;
        if !reachable || path.is_empty() {
            return Err(format!("`{name}` stands where no argument is"));
        }
        if !matches!(members.get("type").and_then(Value::as_str), Some("string" | "integer" | "boolean")) {
            return Err(format!("`{name}` is neither text, a whole number nor true or false"));
        }
        found.push((path.clone(), name.to_owned()));
    }
    for (key, value) in members {
        match (key.as_str(), value) {
            ("properties", Value::Object(properties)) => {
                for (name, property) in properties {
                    path.push(name.clone());
                    collect(property, path, reachable, found)?;
                    path.pop();
                }
            }
            ("enum" | "const" | "default" | "examples" | "x-mcp-header", _) => {}
            (_, value) => collect(value, path, false, found)?,
        }
    }
    Ok(())
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// The headers for the annotated arguments that are present.
pub(super) fn of_arguments(annotated: &HeaderParams, arguments: &Value) -> Vec<(String, String)> {
    let text = |argument: &Value| match argument {
        Value::String(text) => Some(value(text)),
        Value::Bool(flag) => Some(flag.to_string()),
        Value::Number(number) => whole(number),
        _ => None,
    };
    let headers = annotated.iter().filter_map(|(path, name)| {
        let argument = path.iter().try_fold(arguments, |value, key| value.get(key))?;
        Some((format!("Mcp-Param-{name}"), text(argument)?))
    });
    headers.collect()
}

fn whole(number: &serde_json::Number) -> Option<String> {
    let float = number.as_f64().filter(|float| float.fract() == 0.0 && float.abs() <= SAFE_MAX as f64)?;
    Some(number.as_i64().map_or_else(|| format!("{float:.0}"), |number| number.to_string()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_header_cannot_carry_is_encoded() {
        assert_eq!(value("us west1"), "us west1");
        assert_eq!(value(""), "");
        assert_eq!(value("Grüße"), "=?base64?R3LDvMOfZQ==?=");
        for odd in [" a", "a ", "a\tb", "a\nb", "=?base64?YQ==?=", "\u{7f}"] {
            assert_eq!(value(odd), format!("=?base64?{}?=", STANDARD.encode(odd)), "{odd:?}");
        }
    }

    #[test]
    fn arguments_that_are_there_become_headers() {
        let schema = json!({"type": "object", "properties": {
            "region": {"type": "string", "x-mcp-header": "Region"}, "count": {"type": "integer", "x-mcp-header": "Count"},
            "dry": {"type": "boolean", "x-mcp-header": "Dry"}, "gone": {"type": "string", "x-mcp-header": "Gone"},
            "deep": {"type": "object", "properties": {"er": {"type": "string", "x-mcp-header": "Deeper"}}}, "plain": {"type": "string"}}});
        let annotated = of_schema(&schema).expect("it is sound");
        let mut headers =
            of_arguments(&annotated, &json!({"region": "eu", "count": 3, "dry": false, "gone": null, "deep": {"er": "x"}, "plain": "y"}));
        headers.sort();
        let expected = [("Mcp-Param-Count", "3"), ("Mcp-Param-Deeper", "x"), ("Mcp-Param-Dry", "false"), ("Mcp-Param-Region", "eu")];
        assert_eq!(headers, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }

    #[test]
    fn annotations_that_are_not_allowed_are_found() {
        let property = |property: Value| json!({"type": "object", "properties": {"a": property}});
        let bad = [
            property(json!({"type": "string", "x-mcp-header": ""})),
            property(json!({"type": "string", "x-mcp-header": "a b"})),
            property(json!({"type": "string", "x-mcp-header": "é"})),
            property(json!({"type": "string", "x-mcp-header": 3})),
            property(json!({"type": "number", "x-mcp-header": "A"})),
            property(json!({"type": "object", "x-mcp-header": "A"})),
            property(json!({"type": "array", "items": {"type": "string", "x-mcp-header": "A"}})),
            property(json!({"anyOf": [{"type": "string", "x-mcp-header": "A"}]})),
            json!({"type": "object", "properties": {"a": {"type": "string", "x-mcp-header": "A"}, "b": {"type": "string", "x-mcp-header": "a"}}}),
            json!({"type": "object", "$defs": {"d": {"type": "string", "x-mcp-header": "A"}}}),
            json!({"type": "object", "x-mcp-header": "A"}),
        ];
        for schema in bad {
            assert!(of_schema(&schema).is_err(), "{schema}");
        }
        assert_eq!(of_schema(&json!({"type": "object", "properties": {"x-mcp-header": {"type": "string"}}})), Ok(Vec::new()));
    }
}

//! The error of a schema that cannot be used, and the arguments that clients also send as headers (`x-mcp-header`).

use serde_json::{Number, Value};

/// A schema that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} of tool `{tool}` cannot be used: {why}")]
pub struct InvalidSchema {
    /// The tool's name.
    pub tool: String,
    /// Which of its schemas, or its name.
    pub what: &'static str,
    /// The reason.
    pub why: String,
}

/// Below this (2^53) a float is exactly the whole number that it seems to be.
const EXACT_BELOW: f64 = (1_u64 << 53) as f64;

/// The integer that a float without a fraction stands for, where that is exact.
pub(crate) fn integer(number: &Number) -> Option<i64> {
    let float = number.as_f64().filter(|float| number.is_f64() && float.fract() == 0.0)?;
    (float.abs() < EXACT_BELOW).then_some(float as i64)
}

/// An argument that clients also send as a header `Mcp-Param-{header}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HeaderParam {
    /// Where the argument is, as a path of property names.
    pub(crate) path: Vec<String>,
    /// The header, lower-case, with its prefix.
    pub(crate) header: String,
}

/// Finds the arguments annotated with `x-mcp-header`, and checks the rules for them.
pub(crate) fn header_params(schema: &Value) -> Result<Vec<HeaderParam>, String> {
    let mut found = Vec::new();
    collect(schema, &mut Vec::new(), &mut found)?;
    for (i, param) in found.iter().enumerate() {
        if found[..i].iter().any(|earlier| earlier.header == param.header) {
            return Err(format!("two arguments have the same `x-mcp-header` ({})", param.header));
        }
    }
    Ok(found)
}

fn collect(schema: &Value, path: &mut Vec<String>, found: &mut Vec<HeaderParam>) -> Result<(), String> {
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else { return Ok(()) };
    for (name, property) in properties {
        path.push(name.clone());
        if let Some(header) = property.get("x-mcp-header") {
            let token = header.as_str().filter(|text| !text.is_empty() && text.bytes().all(is_token));
            let token = token.ok_or_else(|| format!("`x-mcp-header` of `{}` is not a header name", path.join(".")))?;
            if !matches!(property.get("type").and_then(Value::as_str), Some("string" | "integer" | "boolean")) {
                return Err(format!("`x-mcp-header` of `{}` needs the type string, integer or boolean", path.join(".")));
            }
            found.push(HeaderParam { path: path.clone(), header: format!("mcp-param-{}", token.to_ascii_lowercase()) });
        }
        collect(property, path, found)?;
        path.pop();
    }
    Ok(())
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn header_params_are_found_and_checked() {
        let good = json!({"properties": {"a": {"type": "string", "x-mcp-header": "Region"}, "o": {"properties": {"n": {"type": "integer", "x-mcp-header": "N"}}}}});
        let found = header_params(&good).expect("good");
        assert_eq!(found.len(), 2);
        assert_eq!(found[0], HeaderParam { path: vec!["a".into()], header: "mcp-param-region".into() });
        assert_eq!(found[1].path, ["o", "n"]);
        for bad in [
            json!({"properties": {"a": {"type": "number", "x-mcp-header": "A"}}}),
            json!({"properties": {"a": {"type": "string", "x-mcp-header": ""}}}),
            json!({"properties": {"a": {"type": "string", "x-mcp-header": "a b"}}}),
            json!({"properties": {"a": {"type": "string", "x-mcp-header": 3}}}),
            json!({"properties": {"a": {"type": "string", "x-mcp-header": "X"}, "b": {"type": "string", "x-mcp-header": "x"}}}),
        ] {
            assert!(header_params(&bad).is_err(), "{bad}");
        }
    }
}

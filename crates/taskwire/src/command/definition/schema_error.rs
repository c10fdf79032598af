//! Describes an error in a schema in words that name the parameter and the key.

use serde_json::Value;

const TYPES: &str = "string, integer, number, boolean, array, object or null";

/// Where in the schema the error is, and what it is; None if JSON Schema allows the schema.
pub(super) fn schema_error(schema: &Value) -> Option<(Vec<String>, String)> {
    let error = jsonschema::draft202012::meta::validate(schema).err()?;
    let pointer = error.instance_path().to_string();
    let path: Vec<String> = pointer.split('/').skip(1).map(|step| step.replace("~1", "/").replace("~0", "~")).collect();
    let (name, inner) = match path.as_slice() {
        [properties, name, inner @ ..] if properties == "properties" => (Some(name), inner),
        all => (None, all),
    };
    let key = inner.join("/");
    let words = match (name, inner.last().map(String::as_str)) {
        (_, Some("type")) => format!("`{key}` cannot be {}: it is {TYPES}", error.instance()),
        (_, Some(_)) => format!("`{key}`: {error}"),
        (Some(_), None) => format!("{} is no schema; one is {{\"type\": \"string\"}}", error.instance()),
        (None, None) => error.to_string(),
    };
    let words = name.map_or_else(|| words.clone(), |name| format!("`{name}`: {words}"));
    Some((path, words))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_parameter_and_the_key_are_named() {
        let properties = |properties: Value| json!({"type": "object", "properties": properties});
        for (schema, expected_path, words) in [
            (properties(json!({"p": {"type": "strng"}})), "properties p type", "`p`: `type` cannot be \"strng\": it is string, integer, "),
            (properties(json!({"a/b": {"type": 5}})), "properties a/b type", "`a/b`: `type` cannot be 5: it is "),
            (properties(json!({"p": {"items": {"type": "x"}}})), "properties p items type", "`p`: `items/type` cannot be \"x\": "),
            (properties(json!({"p": {"minLength": "3"}})), "properties p minLength", "`p`: `minLength`: \"3\""),
            (properties(json!({"p": "string"})), "properties p", "`p`: \"string\" is no schema"),
            (json!({"type": "objekt"}), "type", "`type` cannot be \"objekt\": it is "),
            (json!({"type": "object", "required": "p"}), "required", "`required`: \"p\""),
        ] {
            let (path, message) = schema_error(&schema).expect("a flaw");
            assert_eq!(path.join(" "), expected_path, "{message}");
            assert!(message.starts_with(words), "{message}");
        }
        assert_eq!(schema_error(&properties(json!({"p": {"type": ["string", "null"]}}))), None);
    }
}

//! Rust types as schemas for clients, and values from clients as Rust types.

use schemars::{JsonSchema, generate::SchemaSettings};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::nulls::drop_nulls;

/// The schema of a type's fields, as every client accepts it: everything inline, since many know no `$ref`; no `null` where a field may be
/// left out; choices as a list; no formats of numbers, which say nothing to a model and which some clients refuse.
pub(super) fn schema_of<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let mut schema = settings.into_generator().into_root_schema_for::<T>();
    schema.remove("title");
    schema.remove("$schema");
    let mut schema = schema.to_value();
    simplify(&mut schema);
    if let Some(members) = schema.as_object_mut() {
        members.insert("type".to_owned(), "object".into());
        members.entry("properties").or_insert_with(|| json!({}));
    }
    schema
}

fn simplify(schema: &mut Value) {
    let Some(members) = schema.as_object_mut() else { return };
    let required = members.get("required").cloned().unwrap_or_default();
    let is_required = |name: &str| required.as_array().is_some_and(|all| all.iter().any(|it| it == name));
    for (name, property) in members.get_mut("properties").and_then(Value::as_object_mut).into_iter().flatten() {
        if !is_required(name) {
            without_null(property);
        }
    }
    as_choices(members);
    if matches!(members.get("type").and_then(Value::as_str), Some("integer" | "number")) {
        members.remove("format");
    }
    for key in ["properties", "$defs"] {
        members.get_mut(key).and_then(Value::as_object_mut).into_iter().flat_map(Map::values_mut).for_each(simplify);
    }
    for key in ["anyOf", "oneOf", "allOf", "prefixItems"] {
        members.get_mut(key).and_then(Value::as_array_mut).into_iter().flatten().for_each(simplify);
    }
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = members.get_mut(key) {
            simplify(inner);
        }
    }
}

/// Removes `null` from the schema of a field that may be left out instead.
pub(super) fn without_null(field: &mut Value) {
    let Some(members) = field.as_object_mut() else { return };
    let is_null = |kind: &Value| kind == "null" || kind["type"] == "null";
    if let Some(kinds) = members.get_mut("type").and_then(Value::as_array_mut) {
        kinds.retain(|kind| !is_null(kind));
        if let [only] = kinds.as_slice() {
            let only = only.clone();
            members.insert("type".to_owned(), only);
        }
    }
    if let Some(values) = members.get_mut("enum").and_then(Value::as_array_mut) {
        values.retain(|value| !value.is_null());
    }
    if let Some(kinds) = members.get_mut("anyOf").and_then(Value::as_array_mut) {
        kinds.retain(|kind| !is_null(kind));
        if let [Value::Object(only)] = kinds.as_slice() {
            let only = only.clone();
            members.remove("anyOf");
            for (key, said) in only {
                // The field's own description wins over that of its type.
                members.entry(key).or_insert(said);
            }
        }
    }
    if members.get("default").is_some_and(Value::is_null) {
        members.remove("default");
    }
}

/// Turns choices that are schemas of their own, because each has a description, into a list. The descriptions go into the field's.
pub(super) fn as_choices(members: &mut Map<String, Value>) {
    let Some(kinds) = members.get("oneOf").and_then(Value::as_array) else { return };
    let (mut choices, mut lines) = (Vec::new(), Vec::new());
    for kind in kinds {
        if let Some(text) = kind.get("const").and_then(Value::as_str) {
            choices.push(Value::from(text));
            lines.extend(kind.get("description").and_then(Value::as_str).map(|said| format!("- `{text}`: {said}")));
        } else if let Some(several) = kind.get("enum").and_then(Value::as_array).filter(|all| all.iter().all(Value::is_string)) {
            choices.extend(several.iter().cloned());
        } else {
            return;
        }
    }
    if choices.is_empty() {
        return;
    }
    members.remove("oneOf");
    members.insert("type".to_owned(), "string".into());
    members.insert("enum".to_owned(), choices.into());
    if !lines.is_empty() {
        let said = members.get("description").and_then(Value::as_str).map(str::to_owned);
        let all: Vec<String> = said.into_iter().chain(lines).collect();
        members.insert("description".to_owned(), all.join("\n").into());
    }
}

/// Reads a type from texts by name: a text becomes a number or a flag where the schema wants one.
pub(super) fn read_texts<T: DeserializeOwned>(schema: &Value, texts: Map<String, Value>) -> Result<T, serde_json::Error> {
    let meant = |(name, value): (String, Value)| {
        let kind = schema["properties"][name.as_str()]["type"].as_str();
        let read = match &value {
            Value::String(text) if matches!(kind, Some("integer" | "number" | "boolean")) => serde_json::from_str(text.trim()).ok(),
            _ => None,
        };
        (name, read.unwrap_or(value))
    };
    let mut values = Value::Object(texts.into_iter().map(meant).collect());
    drop_nulls(schema, &mut values);
    serde_json::from_value(values)
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;
    use crate::tool::portability;

    /// How fast.
    #[derive(Debug, PartialEq, Deserialize, JsonSchema)]
    #[serde(rename_all = "lowercase")]
    enum Speed {
        /// As a snail.
        Slow,
        Fast,
    }

    #[derive(Debug, PartialEq, Deserialize, JsonSchema)]
    struct Part {
        name: String,
        #[serde(default)]
        weight: Option<f64>,
    }

    #[derive(Debug, PartialEq, Deserialize, JsonSchema)]
    struct Everything {
        text: String,
        count: u32,
        big: Option<u64>,
        #[serde(default)]
        flag: Option<bool>,
        /// Which way.
        speed: Option<Speed>,
        sure: Speed,
        parts: Vec<Part>,
        part: Option<Part>,
        #[serde(default)]
        list: Option<Vec<String>>,
    }

    #[test]
    fn the_schema_of_a_type_is_one_that_every_client_takes() {
        let schema = schema_of::<Everything>();
        assert_eq!(portability("t", "", &schema), [""; 0], "{schema}");
        let fields = &schema["properties"];
        assert_eq!(schema["required"], json!(["text", "count", "sure", "parts"]));
        assert_eq!(fields["count"], json!({"type": "integer", "minimum": 0}));
        assert_eq!(fields["big"], json!({"type": "integer", "minimum": 0}));
        assert_eq!(fields["flag"], json!({"type": "boolean"}));
        assert_eq!(fields["list"], json!({"type": "array", "items": {"type": "string"}}));
        for field in ["speed", "sure"] {
            let mut choices = fields[field]["enum"].as_array().cloned().unwrap_or_default();
            choices.sort_by_key(ToString::to_string);
            assert_eq!((choices, &fields[field]["type"]), (vec![json!("fast"), json!("slow")], &json!("string")), "{fields}");
            let said = fields[field]["description"].as_str().unwrap_or_default();
            assert!(said.ends_with("- `slow`: As a snail."), "{said}");
        }
        let part = json!({"name": {"type": "string"}, "weight": {"type": "number"}});
        assert_eq!((&fields["part"]["properties"], &fields["parts"]["items"]["properties"]), (&part, &part), "{fields}");
    }

    #[test]
    fn a_type_without_fields_is_an_object_without_properties() {
        #[derive(Deserialize, JsonSchema)]
        struct Nothing {}
        assert_eq!(schema_of::<Nothing>()["properties"], json!({}));
        assert_eq!(portability("t", "", &schema_of::<Nothing>()), [""; 0]);
    }

    #[test]
    fn texts_are_read_as_what_the_type_wants() {
        #[derive(Debug, PartialEq, Deserialize, JsonSchema)]
        struct Wanted {
            text: String,
            count: u32,
            sure: Option<bool>,
            note: Option<String>,
        }
        let read = |texts: Value| read_texts::<Wanted>(&schema_of::<Wanted>(), texts.as_object().cloned().unwrap_or_default());
        let wanted = |sure| Wanted { text: "7".to_owned(), count: 7, sure, note: None };
        assert_eq!(read(json!({"text": "7", "count": "7", "sure": "true"})).expect("it fits"), wanted(Some(true)));
        assert_eq!(read(json!({"text": "7", "count": 7, "note": null})).expect("it fits"), wanted(None));
        let wrong = read(json!({"text": "7", "count": "many"})).expect_err("it does not fit").to_string();
        assert!(wrong.contains("many"), "{wrong}");
    }
}

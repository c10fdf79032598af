//! What some clients, or the providers of their models, refuse: tools that are good MCP and still cannot be used there.
//!
//! Decision 0051 has each rule and its source. Only what breaks something is reported: most clients that refuse one tool lose all other
//! tools of its server, too.

use serde_json::{Map, Value};

/// Characters of a tool's name.
const NAME_MAX: usize = 64;
/// Characters of a tool's description.
const DESCRIPTION_MAX: usize = 1024;
/// Warnings about one tool; more would not help.
const COMPLAINTS_MAX: usize = 10;

/// Formats that AutoGen knows; with any other it lists no tool at all.
const FORMATS: &str = "binary byte date date-time decimal double duration email float hostname int32 int64 ipv4 ipv4-network ipv6 \
    ipv6-network password path time uri uuid uuid1 uuid2 uuid3 uuid4 uuid5";

/// What must not stand at the top of a schema.
const NOT_ON_TOP: [&str; 5] = ["allOf", "anyOf", "enum", "not", "oneOf"];

/// What widely used clients or models would refuse about a tool: one line each, with a JSON pointer into the schema. Empty if nothing is
/// known.
///
/// ```
/// use serde_json::json;
/// let schema = json!({"type": "object", "properties": {"paths": {"type": "array"}}});
/// let warnings = taskwire::tool::portability("copy", "Copies files", &schema);
/// assert!(warnings[0].starts_with("`/properties/paths` is an array without `items`"));
/// ```
#[must_use]
pub fn portability(name: &str, description: &str, input_schema: &Value) -> Vec<String> {
    let mut check = Check::default();
    check.name(name);
    let length = description.chars().count();
    if length > DESCRIPTION_MAX {
        check.found.push(format!("the description has {length} characters: OpenAI refuses a tool with more than {DESCRIPTION_MAX}"));
    }
    check.top(input_schema);
    check.schema(input_schema, "");
    let rest = check.found.len().saturating_sub(COMPLAINTS_MAX);
    if rest > 0 {
        check.found.truncate(COMPLAINTS_MAX);
        check.found.push(format!("and {rest} more of the kind"));
    }
    check.found
}

#[derive(Default)]
struct Check {
    found: Vec<String>,
}

impl Check {
    fn name(&mut self, name: &str) {
        let fits = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
        if let Some(odd) = name.chars().find(|c| !fits(*c)) {
            self.found.push(format!("the name has a {odd:?} in it: OpenAI and Claude take only letters, digits, '_' and '-'"));
        } else if name.len() > NAME_MAX {
            self.found.push(format!("the name has {} characters: OpenAI and Claude take at most {NAME_MAX}", name.len()));
        }
    }

    /// Checks what holds for the schema of all arguments but not for its parts.
    fn top(&mut self, schema: &Value) {
        for key in NOT_ON_TOP.iter().filter(|key| schema.get(**key).is_some()) {
            self.say("", &format!("has `{key}` at the top"), "OpenAI and Claude refuse such a tool; it can stand within a parameter");
        }
        let Some(properties) = schema.get("properties").and_then(Value::as_object) else {
            self.say("", "has no `properties`", "OpenAI refuses such a tool; an empty object will do");
            return;
        };
        let fits = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
        for name in properties.keys().filter(|name| name.is_empty() || name.len() > NAME_MAX || !name.chars().all(fits)) {
            let pointer = below("/properties", name);
            let who = format!("Claude takes only names of 1 to {NAME_MAX} letters, digits, '_', '.' and '-'");
            self.say(&pointer, "cannot be named so", &who);
        }
    }

    /// Checks any schema, and all within it.
    fn schema(&mut self, schema: &Value, pointer: &str) {
        let Some(members) = schema.as_object() else {
            self.say(pointer, "has no `type`", "Gemini and AutoGen refuse such a tool");
            return;
        };
        if members.contains_key("$ref") {
            self.say(pointer, "refers to another place by `$ref`", "Gemini refuses such a tool; write it out in its place");
        }
        self.kind(members, pointer);
        if !pointer.is_empty() {
            self.combined(members, pointer);
        }
        self.values(members, pointer);
        self.required(members, pointer);
        self.inner(members, pointer);
    }

    fn kind(&mut self, members: &Map<String, Value>, pointer: &str) {
        let kinds: Vec<&str> = match members.get("type") {
            Some(Value::String(kind)) => vec![kind.as_str()],
            Some(Value::Array(kinds)) => {
                let who = "Gemini, AutoGen and CrewAI refuse such a tool; choose one (what may be left out need not be null)";
                self.say(pointer, "has a list of types", who);
                kinds.iter().filter_map(Value::as_str).collect()
            }
            _ => Vec::new(),
        };
        let stands_for_it = ["$ref", "allOf", "anyOf", "const", "oneOf"];
        if !members.contains_key("type") && !stands_for_it.iter().any(|key| members.contains_key(*key)) {
            self.say(pointer, "has no `type`", "Gemini and AutoGen refuse such a tool");
        }
        if kinds.contains(&"array") && members.get("items").is_none_or(|items| *items == false) {
            self.say(pointer, "is an array without `items`", "OpenAI, Gemini and VS Code refuse such a tool; say what is in it");
        }
    }

    fn combined(&mut self, members: &Map<String, Value>, pointer: &str) {
        for (key, instead) in [("oneOf", "`anyOf` does"), ("allOf", "write out what they are together")] {
            if members.contains_key(key) {
                self.say(pointer, &format!("has `{key}`"), &format!("OpenAI and Gemini refuse such a tool; {instead}"));
            }
        }
    }

    fn values(&mut self, members: &Map<String, Value>, pointer: &str) {
        if members.contains_key("const") {
            self.say(pointer, "has `const`", "Gemini refuses such a tool; an `enum` of one value does");
        }
        let odd = |values: &Vec<Value>| values.iter().any(|value| !value.is_string());
        if members.get("enum").and_then(Value::as_array).is_some_and(odd) {
            self.say(pointer, "has an `enum` of other values than texts", "Gemini refuses such a tool");
        }
        if let Some(format) =
            members.get("format").and_then(Value::as_str).filter(|format| !FORMATS.split(' ').any(|known| known == *format))
        {
            self.say(pointer, &format!("has the `format` {format:?}"), "AutoGen does not know it and lists no tool of the server");
        }
    }

    fn required(&mut self, members: &Map<String, Value>, pointer: &str) {
        let properties = members.get("properties").and_then(Value::as_object);
        for name in members.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str) {
            if properties.is_none_or(|properties| !properties.contains_key(name)) {
                self.say(pointer, &format!("requires {name:?}, which is not among its `properties`"), "Gemini refuses such a tool");
            }
        }
    }

    fn inner(&mut self, members: &Map<String, Value>, pointer: &str) {
        for key in ["properties", "$defs", "definitions"] {
            for (name, schema) in members.get(key).and_then(Value::as_object).into_iter().flatten() {
                self.schema(schema, &below(&below(pointer, key), name));
            }
        }
        for key in ["anyOf", "oneOf", "allOf", "prefixItems"] {
            for (at, schema) in members.get(key).and_then(Value::as_array).into_iter().flatten().enumerate() {
                // At the top these describe the same object, and `top` has reported them already.
                if !(pointer.is_empty() && schema.get("type").is_none()) {
                    self.schema(schema, &below(&below(pointer, key), &at.to_string()));
                }
            }
        }
        if let Some(items) = members.get("items").filter(|items| **items != false) {
            self.schema(items, &below(pointer, "items"));
        }
        // An `additionalProperties` that is a boolean or empty describes no values.
        if let Some(others) = members.get("additionalProperties").filter(|others| others.as_object().is_some_and(|it| !it.is_empty())) {
            self.schema(others, &below(pointer, "additionalProperties"));
        }
    }

    fn say(&mut self, pointer: &str, what: &str, who: &str) {
        let pointer = if pointer.is_empty() { "the schema".to_owned() } else { format!("`{pointer}`") };
        self.found.push(format!("{pointer} {what}: {who}"));
    }
}

/// The JSON pointer to a member.
fn below(pointer: &str, name: &str) -> String {
    format!("{pointer}/{}", name.replace('~', "~0").replace('/', "~1"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(properties: Value) -> Vec<String> {
        portability("tool", "A tool", &json!({"type": "object", "properties": properties}))
    }

    #[test]
    fn what_every_client_takes_is_not_complained_about() {
        let good = json!({
            "text": {"type": "string", "description": "any", "minLength": 1, "pattern": "^a", "default": "a"},
            "number": {"type": "integer", "minimum": 0, "maximum": 9},
            "flag": {"type": "boolean"},
            "size": {"type": "string", "enum": ["small", "large"]},
            "when": {"type": "string", "format": "date-time"},
            "list": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
            "either": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
            "free": {"type": "object"},
            "named": {"type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"], "additionalProperties": false},
            "any-name_1.x": {"type": "string"},
        });
        assert_eq!(of(good), [""; 0]);
        assert_eq!(portability("a-Z_9", "", &json!({"type": "object", "properties": {}, "additionalProperties": false})), [""; 0]);
    }

    #[test]
    fn each_complaint_has_its_pointer_and_who_would_refuse_it() {
        for (property, expected) in [
            (json!({"type": ["string", "null"]}), "has a list of types: Gemini, AutoGen and CrewAI"),
            (json!({"type": "array"}), "is an array without `items`: OpenAI, Gemini and VS Code"),
            (json!({"type": "array", "prefixItems": [{"type": "string"}]}), "is an array without `items`"),
            (json!({"type": "array", "items": false}), "is an array without `items`"),
            (json!({"description": "anything"}), "has no `type`: Gemini and AutoGen"),
            (json!({"enum": ["a"]}), "has no `type`"),
            (json!(true), "has no `type`"),
            (json!({"oneOf": [{"type": "string"}]}), "has `oneOf`: OpenAI and Gemini"),
            (json!({"allOf": [{"type": "string"}]}), "has `allOf`: OpenAI and Gemini"),
            (json!({"const": "a"}), "has `const`: Gemini"),
            (json!({"type": "integer", "enum": [1, 2]}), "has an `enum` of other values than texts: Gemini"),
            (json!({"type": "integer", "format": "uint32"}), "has the `format` \"uint32\": AutoGen"),
            (json!({"$ref": "#/$defs/x"}), "refers to another place by `$ref`: Gemini"),
            (json!({"type": "object", "required": ["a"]}), "requires \"a\", which is not among its `properties`: Gemini"),
        ] {
            let found = of(json!({"x": property}));
            assert_eq!(found.len(), 1, "{property}: {found:?}");
            assert!(found[0].starts_with(&format!("`/properties/x` {expected}")), "{property}: {found:?}");
        }
    }

    #[test]
    fn pointers_are_right_however_deep_they_are() {
        let array = json!({"type": "array"});
        for (property, pointer) in [
            (json!({"type": "array", "items": array}), "/properties/a~1b/items"),
            (json!({"type": "object", "properties": {"c~d": array}}), "/properties/a~1b/properties/c~0d"),
            (json!({"anyOf": [{"type": "string"}, array]}), "/properties/a~1b/anyOf/1"),
            (json!({"type": "object", "additionalProperties": array}), "/properties/a~1b/additionalProperties"),
        ] {
            let found = of(json!({"a/b": property}));
            assert!(found.iter().any(|line| line.starts_with(&format!("`{pointer}` is an array"))), "{property}: {found:?}");
        }
        let defined = json!({"type": "object", "properties": {}, "$defs": {"x": array}});
        assert!(portability("t", "", &defined)[0].starts_with("`/$defs/x` is an array"), "{defined}");
    }

    #[test]
    fn the_top_is_an_object_of_properties_and_nothing_else() {
        for key in NOT_ON_TOP {
            let schema = json!({"type": "object", "properties": {}, key: [{"required": ["a"]}]});
            let found = portability("t", "", &schema);
            assert!(found[0].starts_with(&format!("the schema has `{key}` at the top: OpenAI and Claude")), "{found:?}");
        }
        let bare = portability("t", "", &json!({"type": "object"}));
        assert!(bare.len() == 1 && bare[0].starts_with("the schema has no `properties`: OpenAI"), "{bare:?}");
        for name in ["a b", "", "naïve", &"x".repeat(65)] {
            let found = of(json!({name: {"type": "string"}}));
            assert!(found.len() == 1 && found[0].contains("cannot be named so: Claude"), "{found:?}");
        }
    }

    #[test]
    fn names_and_descriptions_have_their_limits() {
        let schema = json!({"type": "object", "properties": {}});
        let warnings = |name: &str, description: &str| portability(name, description, &schema);
        assert_eq!(warnings(&"x".repeat(64), &"é".repeat(1024)), [""; 0]);
        assert_eq!(warnings("files.copy", ""), ["the name has a '.' in it: OpenAI and Claude take only letters, digits, '_' and '-'"]);
        assert_eq!(warnings(&"x".repeat(65), ""), ["the name has 65 characters: OpenAI and Claude take at most 64"]);
        assert_eq!(warnings("x", &"é".repeat(1025)), ["the description has 1025 characters: OpenAI refuses a tool with more than 1024"]);
    }

    #[test]
    fn who_has_many_complaints_is_told_some() {
        let many: Map<String, Value> = (0..30).map(|n| (format!("p{n}"), json!({"type": "array"}))).collect();
        let found = of(many.into());
        assert_eq!((found.len(), found[10].as_str()), (11, "and 20 more of the kind"));
    }
}

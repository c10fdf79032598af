//! A value for a client's configuration, and its form in JSON, TOML and YAML.

use serde_json::{Map, Value};

/// A value with its members in the order in which they are written.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum OrderedValue {
    Text(String),
    Flag(bool),
    Number(u32),
    List(Vec<OrderedValue>),
    Members(Vec<(String, OrderedValue)>),
}

impl OrderedValue {
    pub(super) fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    pub(super) fn texts<T: Into<String>>(texts: impl IntoIterator<Item = T>) -> Self {
        Self::List(texts.into_iter().map(Self::text).collect())
    }

    pub(super) fn members<K: Into<String>>(members: impl IntoIterator<Item = (K, OrderedValue)>) -> Self {
        Self::Members(members.into_iter().map(|(key, item)| (key.into(), item)).collect())
    }

    /// Nests the value in objects with these names, the outermost first.
    pub(super) fn within<'a>(self, path: impl DoubleEndedIterator<Item = &'a str>) -> Self {
        path.rev().fold(self, |item, key| Self::members([(key, item)]))
    }

    /// As other programs read it.
    pub(super) fn value(&self) -> Value {
        match self {
            Self::Text(text) => Value::from(text.as_str()),
            Self::Flag(flag) => Value::from(*flag),
            Self::Number(number) => Value::from(*number),
            Self::List(items) => items.iter().map(Self::value).collect::<Vec<_>>().into(),
            Self::Members(members) => members.iter().map(|(key, item)| (key.clone(), item.value())).collect::<Map<_, _>>().into(),
        }
    }

    /// JSON on several lines. `indent` is that of the line on which it begins, `unit` what each level adds.
    pub(super) fn json(&self, indent: &str, unit: &str, newline: &str) -> String {
        match self {
            Self::Members(members) if !members.is_empty() => {
                let inner = format!("{indent}{unit}");
                let member = |(key, item): &(String, OrderedValue)| format!("{inner}{}: {}", quoted(key), item.json(&inner, unit, newline));
                let members: Vec<String> = members.iter().map(member).collect();
                format!("{{{newline}{}{newline}{indent}}}", members.join(&format!(",{newline}")))
            }
            Self::List(items) => {
                let items: Vec<String> = items.iter().map(|item| item.json(indent, unit, newline)).collect();
                format!("[{}]", items.join(", "))
            }
            plain => plain.value().to_string(),
        }
    }

    /// A table of TOML with this heading; its values are no tables themselves.
    pub(super) fn toml(&self, heading: &str, newline: &str) -> String {
        let Self::Members(members) = self else { return String::new() };
        // A JSON string is valid TOML, and so is a list of them.
        let lines = members.iter().map(|(key, item)| format!("{key} = {}{newline}", item.json("", "", "")));
        format!("[{heading}]{newline}{}", lines.collect::<String>())
    }

    /// YAML, each line with this indentation.
    pub(super) fn yaml(&self, indent: &str) -> String {
        match self {
            Self::Members(members) => members
                .iter()
                .map(|(key, item)| match item {
                    Self::Members(inner) if !inner.is_empty() => format!("{indent}{key}:\n{}", item.yaml(&format!("{indent}  "))),
                    Self::List(items) if items.iter().any(|item| matches!(item, Self::Members(_))) => {
                        format!("{indent}{key}:\n{}", item.yaml(&format!("{indent}  ")))
                    }
                    // JSON is valid YAML.
                    plain => format!("{indent}{key}: {}\n", plain.json("", "", "")),
                })
                .collect(),
            Self::List(items) => items
                .iter()
                .map(|item| {
                    let lines = item.yaml(&format!("{indent}  "));
                    format!("{indent}- {}", lines.get(indent.len() + 2..).unwrap_or_default())
                })
                .collect(),
            plain => format!("{indent}{}\n", plain.json("", "", "")),
        }
    }
}

/// A string of JSON.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn item() -> OrderedValue {
        let inner =
            OrderedValue::members([("command", OrderedValue::text("/a \"b\"")), ("args", OrderedValue::texts(["serve", "--stdio"]))]);
        OrderedValue::members([("on", OrderedValue::Flag(true)), ("wait", OrderedValue::Number(3)), ("inner", inner)])
    }

    #[test]
    fn each_format_keeps_the_order_and_says_the_same() {
        let json_text = item().json("", "  ", "\n");
        let expected = "{\n  \"on\": true,\n  \"wait\": 3,\n  \"inner\": {\n    \"command\": \"/a \\\"b\\\"\",\n    \"args\": [\"serve\", \
                        \"--stdio\"]\n  }\n}";
        assert_eq!(json_text, expected);
        assert_eq!(serde_json::from_str::<Value>(&json_text).expect("JSON"), item().value());
        let OrderedValue::Members(members) = item() else { panic!("they are members") };
        let toml_text = members[2].1.toml("mcp_servers.x", "\n");
        assert_eq!(toml_text, "[mcp_servers.x]\ncommand = \"/a \\\"b\\\"\"\nargs = [\"serve\", \"--stdio\"]\n");
        let read: toml::Table = toml::from_str(&toml_text).expect("TOML");
        assert_eq!(read["mcp_servers"]["x"]["args"][1].as_str(), Some("--stdio"));
    }

    #[test]
    fn yaml_has_lists_of_members() {
        let servers =
            OrderedValue::List(vec![OrderedValue::members([("name", OrderedValue::text("x")), ("args", OrderedValue::texts(["a"]))])]);
        let text = OrderedValue::members([("schema", OrderedValue::text("v1")), ("mcpServers", servers), ("inner", item())]).yaml("");
        let expected = "schema: \"v1\"\nmcpServers:\n  - name: \"x\"\n    args: [\"a\"]\ninner:\n  on: true\n  wait: 3\n  inner:\n    \
                        command: \"/a \\\"b\\\"\"\n    args: [\"serve\", \"--stdio\"]\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn what_is_within_is_named_from_the_outside() {
        let nested = OrderedValue::text("x").within(["a", "b"].into_iter());
        assert_eq!(nested.value(), json!({"a": {"b": "x"}}));
    }
}

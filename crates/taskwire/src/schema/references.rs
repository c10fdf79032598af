//! The references within one schema.

use std::{borrow::Cow, collections::HashMap};

use serde_json::Value;

use super::budget::is_data;

/// Finds what a reference in a schema points to.
pub(super) struct References<'s> {
    pub(super) root: &'s Value,
    ids: HashMap<&'s str, &'s Value>,
    anchors: HashMap<&'s str, &'s Value>,
    /// Whether a part of the schema has its own id, so that `#` means something else there.
    has_inner_ids: bool,
}

impl<'s> References<'s> {
    pub(super) fn of(root: &'s Value) -> Self {
        let mut names = Self { root, ids: HashMap::new(), anchors: HashMap::new(), has_inner_ids: false };
        names.collect(root);
        names.has_inner_ids = names.ids.values().any(|schema| !std::ptr::eq(*schema, root));
        names
    }

    fn collect(&mut self, value: &'s Value) {
        match value {
            Value::Object(members) => {
                let text = |key: &str| members.get(key).and_then(Value::as_str);
                self.ids.extend(text("$id").map(|id| (id, value)));
                self.anchors.extend(["$anchor", "$dynamicAnchor"].into_iter().filter_map(text).map(|name| (name, value)));
                members.iter().filter(|(key, _)| !is_data(key)).for_each(|(_, value)| self.collect(value));
            }
            Value::Array(items) => items.iter().for_each(|item| self.collect(item)),
            _ => {}
        }
    }

    pub(super) fn find(&self, reference: &str) -> Option<&'s Value> {
        match reference.strip_prefix('#') {
            None => self.ids.get(reference).copied(),
            Some(_) if self.has_inner_ids => None,
            Some("") => Some(self.root),
            Some(pointer) if pointer.starts_with('/') => self.root.pointer(&percent_decoded(pointer)),
            Some(name) => self.anchors.get(name).copied(),
        }
    }
}

/// References that are followed in a row.
pub(super) const HOPS_MAX: usize = 16;

/// The schema that this one refers to by a JSON pointer into `root`; itself if it has no such reference.
pub(crate) fn meant<'s>(root: &'s Value, mut schema: &'s Value) -> &'s Value {
    for _ in 0..HOPS_MAX {
        let Some(next) = schema.get("$ref").and_then(|target| referred(root, target)) else { break };
        schema = next;
    }
    schema
}

/// The target of a `$ref` that is a JSON pointer into `root`.
pub(crate) fn referred<'s>(root: &'s Value, target: &Value) -> Option<&'s Value> {
    root.pointer(target.as_str()?.strip_prefix('#')?)
}

/// Decodes `%20` and the like in a part of a URI. Bytes that are no text stay as they are.
pub(crate) fn percent_decoded(part: &str) -> Cow<'_, str> {
    if !part.contains('%') {
        return part.into();
    }
    let is_hex = |digits: &&str| digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let hex = |at: usize| part.get(at..at + 2).filter(is_hex).and_then(|digits| u8::from_str_radix(digits, 16).ok());
    let (mut bytes, mut at) = (Vec::with_capacity(part.len()), 0);
    while let Some(byte) = part.as_bytes().get(at) {
        match hex(at + 1).filter(|_| *byte == b'%') {
            Some(meant) => {
                bytes.push(meant);
                at += 3;
            }
            None => {
                bytes.push(*byte);
                at += 1;
            }
        }
    }
    String::from_utf8(bytes).map_or(Cow::Borrowed(part), Cow::Owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn references_are_found_by_pointer_by_anchor_and_by_id() {
        let text = json!({"$id": "https://example.com/s", "$defs": {"a b/c": {"$anchor": "x"}}, "const": {"$anchor": "y"}});
        let names = References::of(&text);
        let meant = &text["$defs"]["a b/c"];
        for (reference, found) in [("#", Some(&text)), ("#/$defs/a%20b~1c", Some(meant)), ("#x", Some(meant)), ("#y", None), ("t", None)] {
            assert_eq!(names.find(reference), found, "{reference}");
        }
        let parts = json!({"$defs": {"n": {"$id": "node", "items": {"$ref": "node"}}}});
        let names = References::of(&parts);
        assert_eq!(names.find("node"), Some(&parts["$defs"]["n"]));
        assert_eq!(names.find("#"), None, "that depends on where it stands");
    }
}

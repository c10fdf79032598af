//! JSON objects written member by member, so that payloads are copied and never parsed again.

use serde::Serialize;

/// An object being written.
pub(crate) struct Object(Vec<u8>);

impl Object {
    /// An object without members yet, with room for some.
    pub(crate) fn roomy() -> Self {
        let mut object = Self(Vec::with_capacity(512));
        object.0.push(b'{');
        object
    }

    /// An object without members yet.
    pub(crate) fn open() -> Self {
        Self(b"{".to_vec())
    }

    /// Adds a member.
    pub(crate) fn put<T: Serialize + ?Sized>(mut self, key: &str, value: &T) -> Self {
        self.key(key);
        write(&mut self.0, value);
        self
    }

    /// Adds a member whose text is JSON already.
    pub(crate) fn raw(mut self, key: &str, json: &str) -> Self {
        self.key(key);
        self.0.extend_from_slice(json.as_bytes());
        self
    }

    /// Adds all members of an object whose text is JSON already.
    pub(crate) fn splice(mut self, object: &str) -> Self {
        let members = object.trim().trim_start_matches('{').trim_start();
        if members.starts_with('}') {
            return self;
        }
        if self.0.last() != Some(&b'{') {
            self.0.push(b',');
        }
        let members = members.strip_suffix('}').unwrap_or(members);
        self.0.extend_from_slice(members.as_bytes());
        self
    }

    pub(crate) fn end(mut self) -> Vec<u8> {
        self.0.push(b'}');
        self.0
    }

    /// The finished text.
    pub(crate) fn into_text(self) -> String {
        String::from_utf8(self.end()).expect("only JSON text was written")
    }

    /// The text so far, of an object that somebody else will end.
    pub(crate) fn begun(self) -> String {
        String::from_utf8(self.0).expect("only JSON text was written")
    }

    fn key(&mut self, key: &str) {
        if self.0.last() != Some(&b'{') {
            self.0.push(b',');
        }
        write(&mut self.0, key);
        self.0.push(b':');
    }
}

/// Writes a value.
pub(crate) fn write<T: Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) {
    serde_json::to_writer(out, value).expect("identifiers, texts and JSON values can always be written");
}

/// A value as JSON text.
pub(crate) fn text<T: Serialize + ?Sized>(value: &T) -> String {
    serde_json::to_string(value).expect("identifiers, texts and JSON values can always be written")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn members_are_joined_whatever_they_are() {
        let object = Object::open().splice("{}").put("a", "x\"y").splice(r#" { "b" : [{}] } "#).splice("{ }").raw("c", "null");
        let value: serde_json::Value = serde_json::from_str(&object.into_text()).expect("JSON");
        assert_eq!(value, json!({"a": "x\"y", "b": [{}], "c": null}));
        assert_eq!(Object::open().splice(r#"{"a":{}}"#).into_text(), r#"{"a":{}}"#);
    }
}

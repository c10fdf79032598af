//! Writes JSON objects member by member, so that payloads are copied and not parsed again.

use serde::Serialize;

pub(crate) struct Object(Vec<u8>);

impl Object {
    /// An empty object, allocated for several members.
    pub(crate) fn roomy() -> Self {
        let mut object = Self(Vec::with_capacity(512));
        object.0.push(b'{');
        object
    }

    pub(crate) fn open() -> Self {
        Self(b"{".to_vec())
    }

    pub(crate) fn put<T: Serialize + ?Sized>(mut self, key: &str, value: &T) -> Self {
        self.key(key);
        write(&mut self.0, value);
        self
    }

    pub(crate) fn raw(mut self, key: &str, json: &str) -> Self {
        self.key(key);
        self.0.extend_from_slice(json.as_bytes());
        self
    }

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

    pub(crate) fn into_text(self) -> String {
        String::from_utf8(self.end()).expect("only JSON text was written")
    }

    /// The text so far; the caller of this function ends the object.
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

pub(crate) fn write<T: Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) {
    serde_json::to_writer(out, value).expect("identifiers, texts and JSON values can always be written");
}

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

//! JSON that is carried and never opened: arguments, results, questions, answers.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Well-formed JSON text on one line, cheap to clone. Its bytes stay as they came, but for line breaks, which would end a
/// message on the wire.
#[derive(Clone)]
pub struct Payload(Arc<RawValue>);

impl Payload {
    /// Checks that `text` is JSON and keeps it.
    ///
    /// # Errors
    /// When it is not JSON.
    pub fn parse(text: String) -> Result<Self, serde_json::Error> {
        RawValue::from_string(text).map(Self::from)
    }

    /// Writes `value` as JSON.
    ///
    /// # Errors
    /// When `value` cannot be written as JSON (a map with keys that are not text, for one).
    pub fn of<T: Serialize + ?Sized>(value: &T) -> Result<Self, serde_json::Error> {
        serde_json::value::to_raw_value(value).map(Self::from)
    }

    /// The JSON text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.get()
    }

    /// Reads the JSON into a type.
    ///
    /// # Errors
    /// When the JSON has another shape.
    pub fn read<'a, T: Deserialize<'a>>(&'a self) -> Result<T, serde_json::Error> {
        serde_json::from_str(self.as_str())
    }
}

impl From<Box<RawValue>> for Payload {
    fn from(raw: Box<RawValue>) -> Self {
        if memchr::memchr2(b'\n', b'\r', raw.get().as_bytes()).is_none() {
            return Self(raw.into());
        }
        // Within a string a line break is always escaped, so these stand between tokens, where a blank does as well.
        let line = raw.get().replace(['\n', '\r'], " ");
        Self(RawValue::from_string(line).expect("blanks for blanks leave JSON as it is").into())
    }
}

impl From<&RawValue> for Payload {
    fn from(raw: &RawValue) -> Self {
        raw.to_owned().into()
    }
}

impl From<serde_json::Value> for Payload {
    fn from(value: serde_json::Value) -> Self {
        Self::of(&value).expect("a JSON value can always be written")
    }
}

/// Equal if the text is equal, byte for byte.
impl PartialEq for Payload {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Payload {}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Payload {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Payload {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Box::<RawValue>::deserialize(deserializer).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_always_one_line() {
        let text = "{\r\n \"a\": \"x\\ny\",\n\"b\":[1,\n2]\n}";
        let payload = Payload::parse(text.to_owned()).expect("JSON");
        assert!(!payload.as_str().contains(['\n', '\r']));
        assert_eq!(payload.read::<serde_json::Value>().expect("JSON"), serde_json::from_str::<serde_json::Value>(text).expect("JSON"));
        let raw: Payload = serde_json::from_str(" [1,\n2] ").expect("JSON");
        assert_eq!(raw.as_str(), "[1, 2]");
    }
}

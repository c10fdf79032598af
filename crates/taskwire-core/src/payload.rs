//! JSON that is carried and never opened: arguments, results, questions, answers.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Well-formed JSON text, cheap to clone. Its bytes stay as they came.
#[derive(Clone)]
pub struct Payload(Arc<RawValue>);

impl Payload {
    /// Checks that `text` is JSON and keeps it.
    ///
    /// # Errors
    /// When it is not JSON.
    pub fn parse(text: String) -> Result<Self, serde_json::Error> {
        RawValue::from_string(text).map(|raw| Self(raw.into()))
    }

    /// Writes `value` as JSON.
    ///
    /// # Errors
    /// When `value` cannot be written as JSON (a map with keys that are not text, for one).
    pub fn of<T: Serialize + ?Sized>(value: &T) -> Result<Self, serde_json::Error> {
        serde_json::value::to_raw_value(value).map(|raw| Self(raw.into()))
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
        Self(raw.into())
    }
}

impl From<&RawValue> for Payload {
    fn from(raw: &RawValue) -> Self {
        Self(raw.to_owned().into())
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

//! Reads members of `params` strictly: a member that is `null` counts as present, and a list is no object.

use std::{borrow::Cow, fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, value::MapAccessDeserializer},
};
use serde_json::value::RawValue;
use taskwire_core::task::AcceptedQuestions;

use super::Fault;

/// Log levels, from least to most severe.
const LEVELS: [&str; 8] = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];

/// Reads a member that is `null` as present.
pub(crate) fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

pub(crate) fn text<'a>(raw: Option<&'a RawValue>, key: &str) -> Result<Cow<'a, str>, Fault> {
    #[derive(Deserialize)]
    struct Text<'a>(#[serde(borrow)] Cow<'a, str>);
    let raw = raw.ok_or_else(|| Fault::params(format!("`{key}` is missing")))?;
    serde_json::from_str(raw.get()).map(|Text(text)| text).map_err(|_| Fault::params(format!("`{key}` must be a string")))
}

/// A member that must be a whole number, not negative; `default` if it is missing.
pub(crate) fn number(raw: Option<&RawValue>, key: &str, default: u64) -> Result<u64, Fault> {
    match raw {
        None => Ok(default),
        Some(raw) => serde_json::from_str(raw.get()).map_err(|_| Fault::params(format!("`{key}` must be a whole number, not negative"))),
    }
}

/// The members of an object. serde alone would also read a struct from a list.
#[derive(Default)]
pub(crate) struct Members<T>(pub(crate) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Members<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> serde::de::Visitor<'de> for Visitor<T> {
            type Value = Members<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Members<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Members)
            }
        }
        deserializer.deserialize_map(Visitor(PhantomData))
    }
}

/// An object whose members do not matter.
#[derive(Deserialize)]
pub(crate) struct Anything {}

/// The client's `elicitation` capability.
#[derive(Deserialize, Default)]
#[serde(default)]
pub(crate) struct Elicitation {
    form: Option<Members<Anything>>,
    url: Option<Members<Anything>>,
}

/// The client's `sampling` capability.
#[derive(Deserialize, Default)]
#[serde(default)]
pub(crate) struct Sampling {
    tools: Option<Members<Anything>>,
}

/// Which questions a client with these capabilities accepts.
pub(crate) fn accepts(elicitation: Option<&Members<Elicitation>>, sampling: Option<&Members<Sampling>>, roots: bool) -> AcceptedQuestions {
    let (elicit_form, elicit_url) = match elicitation {
        None => (false, false),
        // An empty object means forms: the earlier versions had nothing else.
        Some(Members(Elicitation { form: None, url: None })) => (true, false),
        Some(Members(Elicitation { form, url })) => (form.is_some(), url.is_some()),
    };
    let sampling_tools = sampling.is_some_and(|Members(sampling)| sampling.tools.is_some());
    AcceptedQuestions { elicit_form, elicit_url, sampling: sampling.is_some(), sampling_tools, roots }
}

pub(crate) fn level_of(name: &str) -> Option<usize> {
    LEVELS.iter().position(|level| *level == name)
}

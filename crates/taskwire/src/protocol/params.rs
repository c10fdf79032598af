//! Members of `params`, read with care: what is there counts as there, and a list is no object.

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

/// A member that is there counts as there, also when it is `null`.
pub(crate) fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

/// A member that must be text.
pub(crate) fn text<'a>(raw: Option<&'a RawValue>, key: &str) -> Result<Cow<'a, str>, Fault> {
    #[derive(Deserialize)]
    struct Text<'a>(#[serde(borrow)] Cow<'a, str>);
    let raw = raw.ok_or_else(|| Fault::params(format!("`{key}` is missing")))?;
    serde_json::from_str(raw.get()).map(|Text(text)| text).map_err(|_| Fault::params(format!("`{key}` must be a string")))
}

/// A member that must be a whole number, not negative; `default` where it is not there.
pub(crate) fn number(raw: Option<&RawValue>, key: &str, default: u64) -> Result<u64, Fault> {
    match raw {
        None => Ok(default),
        Some(raw) => serde_json::from_str(raw.get()).map_err(|_| Fault::params(format!("`{key}` must be a whole number, not negative"))),
    }
}

/// The members of an object. Unlike serde's own reading of a struct, a list is not taken for one.
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

/// An object of which only its presence counts.
#[derive(Deserialize)]
pub(crate) struct Anything {}

/// Which kinds of questions a person can be asked.
#[derive(Deserialize, Default)]
#[serde(default)]
pub(crate) struct Elicitation {
    form: Option<Members<Anything>>,
    url: Option<Members<Anything>>,
}

/// What a language model can be asked.
#[derive(Deserialize, Default)]
#[serde(default)]
pub(crate) struct Sampling {
    tools: Option<Members<Anything>>,
}

/// What a client that declares these capabilities can be asked.
pub(crate) fn accepts(elicitation: Option<&Members<Elicitation>>, sampling: Option<&Members<Sampling>>, roots: bool) -> AcceptedQuestions {
    let (elicit_form, elicit_url) = match elicitation {
        None => (false, false),
        // An empty object means forms, as it did before there was anything else.
        Some(Members(Elicitation { form: None, url: None })) => (true, false),
        Some(Members(Elicitation { form, url })) => (form.is_some(), url.is_some()),
    };
    let sampling_tools = sampling.is_some_and(|Members(sampling)| sampling.tools.is_some());
    AcceptedQuestions { elicit_form, elicit_url, sampling: sampling.is_some(), sampling_tools, roots }
}

/// How severe a log level is.
pub(crate) fn level_of(name: &str) -> Option<usize> {
    LEVELS.iter().position(|level| *level == name)
}

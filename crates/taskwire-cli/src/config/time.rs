//! Time spans, as people write them.

use std::{fmt, time::Duration};

use serde::{Deserialize, Deserializer, de};

/// A time span such as `"1s"` or `"10m"`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span(pub(super) Duration);

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SpanVisitor { unlimited_word: None }).map(|span| Self(span.unwrap_or_default()))
    }
}

/// A time span, or `"forever"`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SpanOrForever(pub(super) Option<Duration>);

impl<'de> Deserialize<'de> for SpanOrForever {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SpanVisitor { unlimited_word: Some("forever") }).map(Self)
    }
}

impl SpanOrForever {
    /// The span; the longest there is for "forever".
    pub(super) fn or_max(self) -> Duration {
        self.0.unwrap_or(Duration::MAX)
    }
}

/// A time span, or `"never"`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SpanOrNever(pub(super) Option<Duration>);

impl<'de> Deserialize<'de> for SpanOrNever {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SpanVisitor { unlimited_word: Some("never") }).map(Self)
    }
}

/// Reads a time span; `None` for the word that stands for no limit.
struct SpanVisitor {
    unlimited_word: Option<&'static str>,
}

impl de::Visitor<'_> for SpanVisitor {
    type Value = Option<Duration>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a time span such as \"1s\" or \"10m\"")?;
        self.unlimited_word.map_or(Ok(()), |word| write!(f, ", or \"{word}\""))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        if self.unlimited_word == Some(text) {
            return Ok(None);
        }
        humantime::parse_duration(text).map(Some).map_err(|error| {
            let word = self.unlimited_word.map(|word| format!(", nor \"{word}\"")).unwrap_or_default();
            // Where there is no number at all, the parser's reason does not help.
            let why = if text.starts_with(|c: char| c.is_ascii_digit()) { format!(": {error}") } else { String::new() };
            E::custom(format!("`{text}` is not a time span such as \"1s\" or \"10m\"{word}{why}"))
        })
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Self::Value, E> {
        match number {
            0.. => Err(E::custom(format!("a time span has a unit: write \"{number}s\""))),
            _ => Err(E::invalid_value(de::Unexpected::Signed(number), &self)),
        }
    }
}

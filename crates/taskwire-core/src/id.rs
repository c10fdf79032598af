//! Ids and numbers, one type each, so that none can be mistaken for another.
//!
//! A [`TaskId`] is 48 bits of milliseconds followed by 112 random bits: unguessable, and clustered by time in any
//! ordered store. Its text is 32 characters of lower-case base32 that sort like its bytes and are safe in a header.

use std::{fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

const ALPHABET: &[u8; 32] = b"0123456789abcdefghijklmnopqrstuv";
const ID_BYTES: usize = 20;
const ID_CHARS: usize = 32;
const TIME_BYTES: usize = 6;

/// How many random bytes a [`TaskId`] needs.
pub const ID_RANDOM_BYTES: usize = ID_BYTES - TIME_BYTES;

/// The id of a task.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId([u8; ID_BYTES]);

impl TaskId {
    /// Makes an id from the moment of creation and fresh random bytes.
    #[must_use]
    pub fn new(now: Timestamp, random: [u8; ID_RANDOM_BYTES]) -> Self {
        let millis = now.as_millis().max(0).to_be_bytes();
        let mut bytes = [0; ID_BYTES];
        bytes[..TIME_BYTES].copy_from_slice(&millis[8 - TIME_BYTES..]);
        bytes[TIME_BYTES..].copy_from_slice(&random);
        Self(bytes)
    }

    /// The id as a store keeps it.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; ID_BYTES] {
        &self.0
    }

    /// The id that a store kept, if the length is right.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    fn to_text(self) -> [u8; ID_CHARS] {
        let mut text = [0; ID_CHARS];
        for (five, chars) in self.0.chunks_exact(5).zip(text.chunks_exact_mut(8)) {
            let group = five.iter().fold(0u64, |acc, byte| (acc << 8) | u64::from(*byte));
            for (i, out) in chars.iter_mut().enumerate() {
                *out = ALPHABET[((group >> (35 - 5 * i)) & 31) as usize];
            }
        }
        text
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.to_text();
        f.write_str(std::str::from_utf8(&text).map_err(|_| fmt::Error)?)
    }
}

impl fmt::Debug for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not a task id: it names no task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a task id: expected {ID_CHARS} characters of 0-9 and a-v")]
pub struct ParseTaskIdError;

impl FromStr for TaskId {
    type Err = ParseTaskIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text: &[u8; ID_CHARS] = text.as_bytes().try_into().map_err(|_| ParseTaskIdError)?;
        let mut bytes = [0; ID_BYTES];
        for (chars, five) in text.chunks_exact(8).zip(bytes.chunks_exact_mut(5)) {
            let mut group = 0u64;
            for c in chars {
                let digit = match c {
                    b'0'..=b'9' => c - b'0',
                    b'a'..=b'v' => c - b'a' + 10,
                    _ => return Err(ParseTaskIdError),
                };
                group = (group << 5) | u64::from(digit);
            }
            five.copy_from_slice(&group.to_be_bytes()[3..]);
        }
        Ok(Self(bytes))
    }
}

impl Serialize for TaskId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TaskId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            /// One of this text.
            #[must_use]
            pub fn new(name: &str) -> Self {
                Self(name.into())
            }

            /// Its text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
    };
}

name! {
    /// The authenticated principal that owns a task.
    CallerId
}
name! {
    /// The id of a session: what was agreed with a client, stored.
    SessionId
}
name! {
    /// The key of a question; a task uses each once.
    QuestionKey
}

macro_rules! position {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl $name {
            /// The one after this.
            #[must_use]
            pub const fn next(self) -> Self {
                Self(self.0 + 1)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

position! {
    /// The number of a chunk within its task: dense, from 0.
    Seq
}
position! {
    /// How many events a task has seen; the first event makes version 1.
    Version
}
position! {
    /// The number of one run of a task, from 1.
    Attempt
}
position! {
    /// The number of a start of the server on its store: it grows each time and fences what an earlier start left.
    Epoch
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_bytes_sort_alike_and_round_trip() {
        let mut ids: Vec<TaskId> = (0..200u64)
            .map(|i| {
                TaskId::new(Timestamp::from_millis(i64::try_from(i * 7919 % 1000).expect("small")), [(i * 31 % 256) as u8; ID_RANDOM_BYTES])
            })
            .collect();
        ids.sort();
        let texts: Vec<String> = ids.iter().map(ToString::to_string).collect();
        assert!(texts.is_sorted());
        for (id, text) in ids.iter().zip(&texts) {
            assert_eq!(text.len(), ID_CHARS);
            assert_eq!(text.parse(), Ok(*id));
            assert_eq!(TaskId::from_bytes(id.as_bytes()), Some(*id));
        }
    }

    #[test]
    fn other_text_is_no_id() {
        let good = TaskId::new(Timestamp::from_millis(1), [7; ID_RANDOM_BYTES]).to_string();
        for bad in ["", "x", &good[1..], &good.to_uppercase(), &good.replacen('0', "w", 1), &format!("{good}0"), "é".repeat(16).as_str()] {
            assert_eq!(bad.parse::<TaskId>(), Err(ParseTaskIdError), "{bad}");
        }
    }
}

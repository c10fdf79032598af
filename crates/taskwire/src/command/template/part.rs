//! One part of a command as an author writes it.

use std::fmt;

use serde::{Deserialize, Deserializer, de};

/// One part of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// One argument: `"--out={path}"`.
    One(String),
    /// Arguments that belong together: `["--out", "{path}"]`. All are left out if one parameter is absent, and all are repeated for each
    /// item of a list.
    Group(Vec<String>),
    /// A group that is there only if a boolean parameter is true: `{ when = "verbose", args = ["-v"] }`.
    When {
        /// The parameter.
        when: String,
        /// The arguments.
        args: Vec<String>,
    },
}

impl From<&str> for Part {
    fn from(text: &str) -> Self {
        Self::One(text.to_owned())
    }
}

/// Written by hand, because the error of an untagged enum would not say what is wrong.
impl<'de> Deserialize<'de> for Part {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct When {
            when: String,
            args: Vec<String>,
        }

        struct Shapes;

        impl<'de> de::Visitor<'de> for Shapes {
            type Value = Part;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, a list of texts that belong together, or { when = \"parameter\", args = [\"text\"] }")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Part, E> {
                Ok(Part::One(text.to_owned()))
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, list: A) -> Result<Part, A::Error> {
                Vec::<String>::deserialize(de::value::SeqAccessDeserializer::new(list)).map(Part::Group)
            }

            fn visit_map<A: de::MapAccess<'de>>(self, table: A) -> Result<Part, A::Error> {
                let When { when, args } = When::deserialize(de::value::MapAccessDeserializer::new(table))?;
                Ok(Part::When { when, args })
            }
        }

        deserializer.deserialize_any(Shapes)
    }
}

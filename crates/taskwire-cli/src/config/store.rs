//! Where tasks are kept.

use std::{path::Path, str::FromStr};

use serde::Deserialize;
use taskwire::store::{self, Memory, MemoryStore, SqliteStore};

/// Where tasks are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(try_from = "String")]
pub(crate) enum StoreKind {
    /// In the data directory.
    #[default]
    Embedded,
    /// In memory: tasks end with the server.
    Memory,
}

/// A store that was opened.
pub(crate) enum OpenedStore {
    Embedded(Box<SqliteStore>),
    Memory(MemoryStore),
}

impl StoreKind {
    pub(crate) fn open(self, data: &Path) -> Result<OpenedStore, store::Error> {
        match self {
            Self::Embedded => SqliteStore::open(data).map(|store| OpenedStore::Embedded(Box::new(store))),
            Self::Memory => Memory::default().open_in(data).map(OpenedStore::Memory),
        }
    }
}

impl FromStr for StoreKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "" => Ok(Self::Embedded),
            "memory:" => Ok(Self::Memory),
            other => Err(format!("no store is called `{other}`: leave it out to keep tasks in the data directory, or write `memory:`")),
        }
    }
}

impl TryFrom<String> for StoreKind {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

//! Where tasks are kept.

use std::{fmt, path::Path, str::FromStr};

use serde::Deserialize;
use taskwire::store::{self, Memory, MemoryStore, PostgresConfig, PostgresStore, SqliteStore};

/// Where tasks are kept.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(try_from = "String")]
pub(crate) enum StoreKind {
    /// In the data directory.
    #[default]
    Embedded,
    /// In memory: tasks end with the server.
    Memory,
    /// In a PostgreSQL database, which other nodes may share.
    Postgres(DatabaseUrl),
}

/// A store that was opened.
pub(crate) enum OpenedStore {
    Embedded(Box<SqliteStore>),
    Memory(MemoryStore),
    Postgres(Box<PostgresStore>),
}

impl StoreKind {
    /// Opens it. `postgres` has what the rest of the configuration says of a database.
    pub(crate) async fn open(&self, data: &Path, postgres: impl FnOnce(&str) -> PostgresConfig) -> Result<OpenedStore, store::Error> {
        match self {
            Self::Embedded => SqliteStore::open(data).map(|store| OpenedStore::Embedded(Box::new(store))),
            Self::Memory => Memory::default().open_in(data).map(OpenedStore::Memory),
            Self::Postgres(url) => PostgresStore::open_in(postgres(&url.0), data).await.map(|store| OpenedStore::Postgres(Box::new(store))),
        }
    }
}

impl FromStr for StoreKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "" => Ok(Self::Embedded),
            "memory:" => Ok(Self::Memory),
            _ if DatabaseUrl::is_one(text) => Ok(Self::Postgres(text.parse()?)),
            _ => match text.strip_prefix("env:") {
                Some(name) => Ok(Self::Postgres(text.parse().map_err(|error| format!("`{name}`: {error}"))?)),
                None => Err(format!(
                    "no store is called `{}`: leave it out to keep tasks in the data directory, or write `memory:`, `postgres://…` or \
                     `env:NAME` for a variable that has such a URL",
                    text.split("://").next().unwrap_or_default()
                )),
            },
        }
    }
}

impl TryFrom<String> for StoreKind {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// The URL of a database. It may have a password, so it is not shown.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct DatabaseUrl(pub(crate) String);

impl DatabaseUrl {
    fn is_one(text: &str) -> bool {
        text.starts_with("postgres://") || text.starts_with("postgresql://")
    }
}

impl FromStr for DatabaseUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let url = match text.strip_prefix("env:") {
            Some(name) => std::env::var(name).map_err(|_| format!("the variable `{name}` is not set"))?,
            None => text.to_owned(),
        };
        if Self::is_one(&url) { Ok(Self(url)) } else { Err("a database has a URL that begins with `postgres://`".to_owned()) }
    }
}

impl TryFrom<String> for DatabaseUrl {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Equal for equal URLs, so that a change is noticed.
        let mut hasher = std::hash::DefaultHasher::new();
        std::hash::Hash::hash(&self.0, &mut hasher);
        write!(f, "DatabaseUrl({:x})", std::hash::Hasher::finish(&hasher))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_known_by_its_url_which_is_never_shown() {
        let parsed = |text: &str| text.parse::<StoreKind>();
        assert_eq!(parsed(""), Ok(StoreKind::Embedded));
        assert_eq!(parsed("memory:"), Ok(StoreKind::Memory));
        for url in ["postgres://me:secret@db/tasks", "postgresql:///tasks"] {
            let store = parsed(url).expect("a database");
            assert_eq!(store, StoreKind::Postgres(DatabaseUrl(url.to_owned())));
            assert!(!format!("{store:?}").contains("secret"), "{store:?}");
        }
        for wrong in ["mysql://me:secret@db/tasks", "postgres", "env:TASKWIRE_TEST_NO_SUCH_VARIABLE", "env:PATH"] {
            let error = parsed(wrong).expect_err("no store");
            assert!(!error.contains("secret") && error.len() > 20, "{error}");
        }
    }
}

//! Where tasks are kept.

use std::{fmt, path::Path, time::Duration};

use serde::Deserialize;
use taskwire::{
    server,
    store::{self, Memory, MemoryStore, PostgresStore, SqliteStore},
};

use super::Config;

/// Where tasks are kept.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum StoreKind {
    /// In the data directory.
    #[default]
    Embedded,
    /// In memory: tasks end with the server.
    Memory,
    /// In a PostgreSQL database, which other nodes may share.
    Postgres(Secret),
}

/// A store that was opened.
pub(crate) enum OpenedStore {
    Embedded(Box<SqliteStore>),
    Memory(MemoryStore),
    Postgres(Box<PostgresStore>),
}

impl StoreKind {
    /// Opens it.
    pub(crate) async fn open(&self, data: &Path, config: &Config) -> Result<OpenedStore, store::Error> {
        match self {
            Self::Embedded => SqliteStore::open(data).map(|store| OpenedStore::Embedded(Box::new(store))),
            Self::Memory => Memory::default().open_in(data).map(OpenedStore::Memory),
            Self::Postgres(url) => {
                let config = config.postgres(&url.0).map_err(|error| store::Error::Unusable(error.to_string()))?;
                PostgresStore::open_in(config, data).await.map(|store| OpenedStore::Postgres(Box::new(store)))
            }
        }
    }
}

impl StoreKind {
    /// The store that a text names. The error does not repeat the text, which may have a password.
    pub(crate) fn parse(text: &Secret) -> Result<Self, String> {
        match text.0.as_str() {
            "" => Ok(Self::Embedded),
            "memory:" => Ok(Self::Memory),
            other if is_url(other) || other.starts_with("env:") => text.database_url().map(Self::Postgres),
            other => {
                let scheme = other.split_once("://").map(|(scheme, _)| scheme).filter(|scheme| scheme.chars().all(char::is_alphanumeric));
                let what = scheme.map_or("this is no store".to_owned(), |scheme| format!("no store is called `{scheme}`"));
                Err(format!(
                    "{what}: leave it out to keep tasks in the data directory, or write `memory:`, `postgres://…` or `env:NAME` for a \
                     variable that has such a URL"
                ))
            }
        }
    }
}

impl Config {
    /// How long commands go on whose server is gone, where nodes share a store.
    pub(crate) fn orphan_after(&self) -> Duration {
        self.orphan_after.map_or_else(|| server::Config::default().engine.orphan_after, |span| span.0)
    }
}

/// A text that may have a password, so it is not shown.
#[derive(Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(transparent)]
pub(crate) struct Secret(pub(crate) String);

impl Secret {
    /// The URL of a database, or the one in the variable that is named. The error does not repeat the text.
    pub(crate) fn database_url(&self) -> Result<Self, String> {
        let url = match self.0.strip_prefix("env:") {
            Some(name) => std::env::var(name).map_err(|_| format!("the variable `{name}` is not set"))?,
            None => self.0.clone(),
        };
        if is_url(&url) { Ok(Self(url)) } else { Err("a database has a URL that begins with `postgres://`".to_owned()) }
    }
}

fn is_url(text: &str) -> bool {
    text.starts_with("postgres://") || text.starts_with("postgresql://")
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Equal for equal texts, so that a change is noticed.
        let mut hasher = std::hash::DefaultHasher::new();
        std::hash::Hash::hash(&self.0, &mut hasher);
        write!(f, "Secret({:x})", std::hash::Hasher::finish(&hasher))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_known_by_its_url_which_is_never_shown() {
        let parsed = |text: &str| StoreKind::parse(&Secret(text.to_owned()));
        assert_eq!(parsed(""), Ok(StoreKind::Embedded));
        assert_eq!(parsed("memory:"), Ok(StoreKind::Memory));
        for url in ["postgres://me:secret@db/tasks", "postgresql:///tasks"] {
            let store = parsed(url).expect("a database");
            assert_eq!(store, StoreKind::Postgres(Secret(url.to_owned())));
            assert!(!format!("{store:?}").contains("secret"), "{store:?}");
        }
        for wrong in [
            "mysql://me:secret@db/tasks",
            "postgres",
            "postgres:/me:secret@db/tasks",
            "postgresme:secret://db",
            "env:TASKWIRE_TEST_NO_SUCH_VARIABLE",
            "env:PATH",
        ] {
            let error = parsed(wrong).expect_err("no store");
            assert!(!error.contains("secret") && error.len() > 20, "{error}");
        }
    }
}

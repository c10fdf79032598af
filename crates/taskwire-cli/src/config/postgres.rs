//! `[postgres]`: how a node uses its database.

use serde::Deserialize;
use taskwire::store::PostgresConfig;

use super::{Span, set, store::Secret};

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct PostgresTable {
    /// A way to the database that is not through a pooler in transaction mode, on which nodes hear at once what others change.
    /// Default: as `store`.
    listen_url: Option<Secret>,
    /// The schema that has the tables: small letters, digits and `_`. Default: `"taskwire"`.
    schema: Option<String>,
    /// Connections for reading, at least 1; a node has up to seven more. Default: `16`.
    max_connections: Option<usize>,
    /// How long it may take to connect. Default: `"5s"`.
    connect_timeout: Option<Span>,
    /// How long the database may take to answer. Default: `"10s"`.
    statement_timeout: Option<Span>,
    /// Whether statements are not prepared, as some poolers in transaction mode need it; mostly this is found out. Default: `false`.
    unnamed_statements: Option<bool>,
}

impl PostgresTable {
    /// Applies the values that are set.
    pub(super) fn apply(&self, config: &mut PostgresConfig) -> Result<(), String> {
        let listen_url =
            self.listen_url.as_ref().map(Secret::database_url).transpose().map_err(|why| format!("`postgres.listen_url`: {why}"))?;
        config.listen_url = listen_url.map(|url| url.0);
        set(&mut config.schema, self.schema.clone());
        set(&mut config.max_connections, self.max_connections);
        set(&mut config.connect_timeout, self.connect_timeout.map(|span| span.0));
        set(&mut config.statement_timeout, self.statement_timeout.map(|span| span.0));
        set(&mut config.unnamed_statements, self.unnamed_statements);
        Ok(())
    }
}

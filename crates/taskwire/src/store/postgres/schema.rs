//! The tables, and how they come to be.
//!
//! `task` holds what is locked and compared: numbers, no index on those that change with each write, and room in each page for them to
//! change in place. `head` holds the rest of each task, `log` its events, `chunk` its output; what ended a task is only in `log`. All keys
//! begin with the id of a task, or lead to one, and no number is counted across tasks: they can be spread over several servers later.
//!
//! Rows have no checksums: the pages of PostgreSQL have, if the server was set up with them (`initdb --data-checksums`).
//!
//! Any client of PostgreSQL can read the tables. Texts that callers choose have `\\` for `\` and `\0` for a zero, which PostgreSQL refuses.

use tokio_postgres::{Row, types::Type};

use super::{
    connection::{Database, Sql},
    error::classify,
};
use crate::{
    clock::random_bytes,
    store::{Error, marker::Marker},
};

/// The stored format. Version 1 is the first; each later one is a step in [`STEPS`].
///
/// Nodes are replaced one by one, so nodes of the release before are writing while a step is done and after it. A step must leave them what
/// they need: it adds columns with a default, tables and indexes; it removes only what the release before does not use any more. An index
/// on a large table is made without the step, by upkeep, `CONCURRENTLY`.
pub(super) const FORMAT: i64 = 1;

const STEPS: [&str; 1] = [SCHEMA_1];

/// `task.ended` is the version of the event that ended it, `task.queued` the tool for whose slots it waits. `call_key.kind`: 0 is an idempotency key, 1 the fingerprint of a task that its
/// caller knows, 2 of one that it does not know. `usage` has a row for each caller and slot, and their sum counts: nodes that write for one
/// caller at one time have different slots and do not wait for each other. `gone` has since when nodes have no lease.
const SCHEMA_1: &str = r#"
CREATE TABLE @task(
    id bytea PRIMARY KEY, caller text COLLATE "C" NOT NULL, ended bigint, due bigint, epoch bigint NOT NULL, version bigint NOT NULL,
    next_seq bigint NOT NULL, blocks bigint NOT NULL, output_bytes bigint NOT NULL, stored_bytes bigint NOT NULL,
    queued text COLLATE "C"
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX task_open ON @task(id) WHERE ended IS NULL;
CREATE INDEX task_epoch ON @task(epoch, id) WHERE ended IS NULL;
CREATE INDEX task_due ON @task(due, id) WHERE due IS NOT NULL;
CREATE INDEX task_queued ON @task(queued, id) WHERE queued IS NOT NULL;
CREATE INDEX task_caller ON @task(caller, id);
CREATE TABLE @head(id bytea PRIMARY KEY, head text NOT NULL) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.05);
CREATE TABLE @log(task bytea NOT NULL, version bigint NOT NULL, at bigint NOT NULL, event text NOT NULL, PRIMARY KEY(task, version));
CREATE TABLE @chunk(
    task bytea NOT NULL, seq bigint NOT NULL, count bigint NOT NULL, version bigint NOT NULL, at bigint NOT NULL,
    first_block bigint NOT NULL, blocks_total bigint NOT NULL, bytes_total bigint NOT NULL, blocks text NOT NULL, PRIMARY KEY(task, seq)
) PARTITION BY RANGE (task);
CREATE TABLE @call_key(
    caller text COLLATE "C" NOT NULL, kind smallint NOT NULL, key text COLLATE "C" NOT NULL, task bytea NOT NULL,
    PRIMARY KEY(caller, kind, key)
);
CREATE TABLE @same_call(
    caller text COLLATE "C" NOT NULL, hidden boolean NOT NULL, key text COLLATE "C" NOT NULL, task bytea NOT NULL,
    PRIMARY KEY(caller, hidden, key, task)
);
CREATE TABLE @usage(
    caller text COLLATE "C" NOT NULL, slot smallint NOT NULL, open bigint NOT NULL, bytes bigint NOT NULL, PRIMARY KEY(caller, slot)
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.05);
CREATE TABLE @session(
    id text COLLATE "C" PRIMARY KEY, caller text COLLATE "C" NOT NULL, last_used bigint NOT NULL, outbox_end bigint NOT NULL DEFAULT 0,
    data text NOT NULL
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX session_last_used ON @session(last_used);
CREATE INDEX session_caller ON @session(caller, last_used DESC, id);
CREATE TABLE @outbox(
    session text COLLATE "C" NOT NULL, position bigint NOT NULL, task bytea NOT NULL, first_version bigint NOT NULL,
    last_version bigint NOT NULL, first_seq bigint NOT NULL, end_seq bigint NOT NULL, PRIMARY KEY(session, position)
);
CREATE TABLE @node(
    epoch bigint PRIMARY KEY, name text NOT NULL, started bigint NOT NULL, expires bigint NOT NULL, orphan_after bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 20);
CREATE TABLE @gone(epoch bigint PRIMARY KEY, since bigint NOT NULL, orphan_after bigint NOT NULL);
DO $$ BEGIN
    ALTER TABLE @log ALTER COLUMN event SET COMPRESSION lz4;
    ALTER TABLE @chunk ALTER COLUMN blocks SET COMPRESSION lz4;
EXCEPTION WHEN feature_not_supported OR invalid_parameter_value THEN NULL; -- This server was built without it.
END $$;
INSERT INTO @meta(key, number) VALUES('epoch', 0), ('upkeep', 0),
    ('first_day', floor(extract(epoch FROM clock_timestamp()) / 86400)::bigint);
"#;

/// Output of tasks that are older than the store: their work had begun before.
const FIRST_PARTITION: &str = r"
CREATE TABLE @chunk_before(LIKE @chunk INCLUDING ALL);
DO $$ BEGIN EXECUTE format('ALTER TABLE @chunk ATTACH PARTITION @chunk_before FOR VALUES FROM (MINVALUE) TO (%L)',
    (SELECT substr(int8send(number * 86400000), 3) FROM @meta WHERE key = 'first_day'));
END $$;
";

/// The oldest server that can be used, as it says its version.
pub(super) const VERSION_MIN: i32 = 140_000;
pub(super) const SETTINGS: Sql = Sql {
    text: "SELECT current_setting('server_version_num')::integer, current_setting('server_encoding'), current_setting('fsync') = 'on',
        current_setting('synchronous_commit') = 'off', current_setting('data_checksums') = 'on', to_regnamespace($1) IS NOT NULL",
    types: &[Type::TEXT],
};
pub(super) const READ_META: Sql = Sql { text: "SELECT number, bytes FROM @meta WHERE key = $1", types: &[Type::TEXT] };
const SET_FORMAT: Sql = Sql {
    text: "INSERT INTO @meta(key, number) VALUES('format', $1) ON CONFLICT (key) DO UPDATE SET number = excluded.number",
    types: &[Type::INT8],
};
const SET_SECRET: Sql =
    Sql { text: "INSERT INTO @meta(key, bytes) VALUES('secret', $1) ON CONFLICT (key) DO NOTHING", types: &[Type::BYTEA] };

/// What was found when the store was opened.
pub(super) struct Opened {
    pub(super) secret: [u8; 32],
    /// Whether a commit need not be durable by default.
    pub(super) commits_loosely: bool,
}

/// Makes the tables if there are none, and brings those of an earlier format up to this one.
pub(super) async fn open(database: &Database) -> Result<Opened, Error> {
    let client = database.connect_session().await?;
    let schema = &database.config.schema;
    let rows = database.run_in(&client, &SETTINGS, &[schema]).await?;
    let settings = rows.first().ok_or_else(|| Error::Unusable("the database does not say how it is set up".to_owned()))?;
    let value = |index: usize| settings.try_get::<_, bool>(index).map_err(classify);
    let (version, encoding): (i32, String) = (settings.try_get(0).map_err(classify)?, settings.try_get(1).map_err(classify)?);
    if version < VERSION_MIN {
        return Err(Error::Unusable(format!("the database is PostgreSQL {}: use 14 or newer", version / 10_000)));
    }
    if encoding != "UTF8" {
        return Err(Error::Unusable(format!("the database has the encoding {encoding}: use one with UTF8")));
    }
    let (is_durable, commits_loosely, has_checksums, has_schema) = (value(2)?, value(3)?, value(4)?, value(5)?);
    if !is_durable {
        tracing::error!("the database has fsync = off: a crash of its machine may lose and damage what was acknowledged");
    }
    if commits_loosely {
        tracing::warn!("the database has synchronous_commit = off: each commit of Taskwire turns it on");
    }
    if !has_checksums {
        tracing::warn!("the pages of the database have no checksums (initdb --data-checksums): damage by a disk is not noticed");
    }
    // One node at a time. Whatever fails, the connection ends with the transaction.
    let begin = "BEGIN; SET LOCAL statement_timeout = 0;
        SELECT pg_advisory_xact_lock(hashtextextended('taskwire format of @', 0)); SET LOCAL lock_timeout = 10000";
    run(database, &client, begin).await?;
    if !has_schema {
        run(database, &client, &format!("CREATE SCHEMA IF NOT EXISTS \"{schema}\"")).await?;
    }
    let found = migrate(database, &client).await?;
    let mut fresh = [0u8; 32];
    random_bytes(&mut fresh);
    database.run_in(&client, &SET_SECRET, &[&&fresh[..]]).await?;
    let rows = database.run_in(&client, &READ_META, &[&"secret"]).await?;
    let secret: Option<[u8; 32]> = rows.first().and_then(|row| row.try_get::<_, &[u8]>(1).ok()).and_then(|bytes| bytes.try_into().ok());
    run(database, &client, "COMMIT").await?;
    if found < FORMAT {
        tracing::info!(%schema, format = FORMAT, "the tables were made or brought up to date");
    }
    let secret = secret.ok_or_else(|| Error::corrupt("the secret of the store", "it does not have 32 bytes"))?;
    Ok(Opened { secret, commits_loosely })
}

/// The row of `meta` that has the number of starts: its other column is for the mark of a move, so that none begins while there is one.
pub(super) const EPOCH: &str = "epoch";

/// Refuses a store whose tasks are elsewhere, or that is being filled.
pub(super) async fn check_not_moved(database: &Database) -> Result<(), Error> {
    let rows = database.run(&READ_META, &[&EPOCH]).await?;
    let marker = rows.first().map(marker_at).transpose()?.flatten();
    marker.map_or(Ok(()), |marker| Err(marker.in_database(&place(database), &database.config.schema)))
}

/// The mark in a row of [`READ_META`].
pub(super) fn marker_at(row: &Row) -> Result<Option<Marker>, Error> {
    let bytes: Option<&[u8]> = row.try_get(1).map_err(classify)?;
    Ok(bytes.map(|bytes| Marker::parse(&String::from_utf8_lossy(bytes))))
}

/// The tables, for people.
pub(super) fn place(database: &Database) -> String {
    format!("the schema {} of {}", database.config.schema, database.sessions_at())
}

/// Does the steps that are missing, and returns the format that was found.
async fn migrate(database: &Database, client: &deadpool_postgres::ClientWrapper) -> Result<i64, Error> {
    run(database, client, "CREATE TABLE IF NOT EXISTS @meta(key text PRIMARY KEY, number bigint, bytes bytea)").await?;
    let rows = database.run_in(client, &READ_META, &[&"format"]).await?;
    let found = rows.first().map_or(Ok(0), |row| row.try_get::<_, i64>(0)).map_err(classify)?;
    if found > FORMAT {
        return Err(Error::TooNew { path: place(database), found, known: FORMAT });
    }
    for step in STEPS.iter().skip(usize::try_from(found).unwrap_or(0)) {
        run(database, client, step).await?;
    }
    if found == 0 {
        run(database, client, FIRST_PARTITION).await?;
    }
    if found < FORMAT {
        database.run_in(client, &SET_FORMAT, &[&FORMAT]).await?;
    }
    Ok(found)
}

async fn run(database: &Database, client: &deadpool_postgres::ClientWrapper, text: &str) -> Result<(), Error> {
    client.batch_execute(&database.render(text)).await.map_err(classify)
}

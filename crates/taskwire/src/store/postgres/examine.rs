//! A look at a database from outside, for whoever operates the nodes. Nothing is changed.

use std::sync::{Arc, atomic::Ordering};

use super::{
    cluster,
    connection::{Database, EndOnDrop, Sql},
    error::classify,
    schema,
    wakeups::{self, Wakeups},
};
use crate::{
    clock::{Clock, SystemClock},
    store::{Error, NodeInfo},
};

const NOW: Sql = Sql { text: "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint", types: &[] };

/// What a look at a database found.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PostgresFindings {
    /// Which database it is, without user and password.
    pub place: String,
    /// Its version, such as 17.
    pub version: i32,
    /// The oldest version that can be used.
    pub oldest_version: i32,
    /// How it encodes text: only `UTF8` can be used.
    pub encoding: String,
    /// Whether a crash of its machine keeps what it has acknowledged (`fsync`).
    pub is_durable: bool,
    /// Whether `synchronous_commit` is off. Taskwire turns it on for its own commits.
    pub commits_loosely: bool,
    /// Whether its pages have checksums.
    pub has_checksums: bool,
    /// How far its clock is ahead of the one here, in milliseconds, as far as one can know from afar.
    pub clock_ahead_ms: i64,
    /// The format of the tables; none if there are no tables yet.
    pub format: Option<i64>,
    /// The format that this release writes.
    pub known_format: i64,
    /// Why no node may serve it: its tasks are elsewhere, or a move into it was interrupted. The text says what to do.
    pub moved: Option<String>,
    /// Whether nodes hear at once what others change (`LISTEN`).
    pub hears: bool,
    /// The nodes that have not been declared dead.
    pub nodes: Vec<NodeInfo>,
}

pub(super) async fn examine(database: Database) -> Result<PostgresFindings, Error> {
    let database = Arc::new(database);
    database.find_pooler().await?;
    let rows = database.run(&schema::SETTINGS, &[&database.config.schema]).await?;
    let settings = rows.first().ok_or_else(|| Error::Unusable("the database does not say how it is set up".to_owned()))?;
    let value = |index: usize| settings.try_get::<_, bool>(index).map_err(classify);
    let (version, encoding): (i32, String) = (settings.try_get(0).map_err(classify)?, settings.try_get(1).map_err(classify)?);
    let clock_ahead_ms = clock_ahead_ms(&database).await?;
    let format = format(&database).await?;
    let moved = match format {
        None => None,
        Some(_) => match schema::check_not_moved(&database).await {
            Err(Error::Moved(why)) => Some(why),
            checked => checked.map(|()| None)?,
        },
    };
    let nodes = cluster::nodes(&database).await?;
    let hears = hears(&database).await;
    Ok(PostgresFindings {
        place: schema::place(&database),
        version: version / 10_000,
        oldest_version: schema::VERSION_MIN / 10_000,
        encoding,
        is_durable: value(2)?,
        commits_loosely: value(3)?,
        has_checksums: value(4)?,
        clock_ahead_ms,
        format,
        known_format: schema::FORMAT,
        moved,
        hears,
        nodes,
    })
}

/// The question and the answer travel for some time: the middle counts.
async fn clock_ahead_ms(database: &Database) -> Result<i64, Error> {
    let asked = SystemClock.now().as_millis();
    let rows = database.run(&NOW, &[]).await?;
    let answered = SystemClock.now().as_millis();
    let theirs: i64 = match rows.first() {
        Some(row) => row.try_get(0).map_err(classify)?,
        None => return Err(Error::Unusable("the database does not say what time it is".to_owned())),
    };
    Ok(theirs - (asked + answered) / 2)
}

/// The format of the tables; none if there are none.
async fn format(database: &Database) -> Result<Option<i64>, Error> {
    match database.run(&schema::READ_META, &[&"format"]).await {
        Err(Error::Postgres(error)) if error.is_about_no_table() => Ok(None),
        rows => rows?.first().map(|row| row.try_get(0)).transpose().map_err(classify),
    }
}

/// Whether a notification to oneself arrives.
async fn hears(database: &Arc<Database>) -> bool {
    let wakeups = Arc::new(Wakeups::new(&database.config.schema));
    let _hearing = EndOnDrop::spawn(wakeups::listen(database.clone(), wakeups.clone()));
    wakeups.ready().await;
    wakeups.arrive.load(Ordering::Relaxed)
}

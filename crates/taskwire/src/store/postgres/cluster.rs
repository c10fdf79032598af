//! A node among the others: its lease, who is dead, and what all nodes together have stored.

use std::{
    fs::OpenOptions,
    io::{Read, Write},
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures_util::future::BoxFuture;
use taskwire_core::{CallerId, Epoch, TaskId, Timestamp, Version};
use tokio_postgres::{Row, types::Type};

use super::{
    columns::{from_text, to_text},
    connection::{Database, EndOnDrop, Sql, number},
    error::classify,
    read::{id_at, number_at},
    schema,
    wakeups::Wakeups,
};
use crate::{
    clock::{Clock, SystemClock},
    owned_files,
    store::{Changes, Cluster, Error, Lease, NodeInfo, StrandedTask, Usage},
};

/// How long a lease lasts.
const LEASE: Duration = Duration::from_secs(6);
/// How far the time of whoever judges may be from that of the database.
const JUDGE_SLACK: Duration = Duration::from_secs(2);
/// How many starts fit between two timelines of the server.
const TIMELINE_SHIFT: u32 = 40;

/// The first eight digits of a WAL file's name are the timeline of the server.
const TIMELINE: Sql = Sql { text: "SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)", types: &[] };
/// Each epoch is larger than any before, also where another server has taken over that never saw the last ones: `$3` begins with its
/// timeline. There is none while the store is moved, nor after that.
const JOIN: Sql = Sql {
    text: "WITH begun AS (UPDATE @meta SET number = greatest(number + 1, $3) WHERE key = 'epoch' AND bytes IS NULL RETURNING number),
            moment AS (SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now)
        INSERT INTO @node(epoch, name, started, expires) SELECT number, $1, now, now + $2 FROM begun, moment RETURNING epoch, started",
    types: &[Type::TEXT, Type::INT8, Type::INT8],
};
/// Also says how long commands of any other node that is known may go on without it.
const RENEW: Sql = Sql {
    text: "UPDATE @node SET expires = floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + $2, orphan_after = $3 WHERE epoch = $1
        RETURNING expires,
            greatest(0, (SELECT max(orphan_after) FROM @node WHERE epoch <> $1), (SELECT max(orphan_after) FROM @gone))",
    types: &[Type::INT8, Type::INT8, Type::INT8],
};
const LEAVE: Sql = Sql {
    text: "WITH left_now AS (DELETE FROM @node WHERE epoch = $1 RETURNING epoch, orphan_after)
        INSERT INTO @gone(epoch, since, orphan_after)
        SELECT epoch, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint, orphan_after FROM left_now ON CONFLICT DO NOTHING",
    types: &[Type::INT8],
};
const IS_ALIVE: Sql = Sql { text: "SELECT 1 FROM @node WHERE epoch = $1", types: &[Type::INT8] };
/// Declares nodes dead whose lease has expired, or lies further ahead than any lease: the clock was set back. Only if whoever judges has seen the
/// clock as it is now.
const JUDGE: Sql = Sql {
    text: "WITH moment AS (SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now),
        dead AS (
            DELETE FROM @node USING moment WHERE abs(now - $1) <= $3 AND (expires <= $1 OR expires > $1 + $2)
            RETURNING epoch, name, least(expires, now) AS since, orphan_after
        ), remembered AS (
            INSERT INTO @gone(epoch, since, orphan_after) SELECT epoch, since, orphan_after FROM dead ON CONFLICT DO NOTHING
        )
        SELECT epoch, name FROM dead",
    types: &[Type::INT8, Type::INT8, Type::INT8],
};
/// From one epoch to the next by the index, and in each from one task to the next: there are few epochs, and many tasks.
const STRANDED: Sql = Sql {
    text: "WITH RECURSIVE known(epoch) AS (
            (SELECT epoch FROM @task WHERE ended IS NULL AND epoch >= $1 ORDER BY epoch LIMIT 1) UNION ALL
            SELECT (SELECT t.epoch FROM @task AS t WHERE t.ended IS NULL AND t.epoch > k.epoch ORDER BY t.epoch LIMIT 1)
            FROM known AS k WHERE k.epoch IS NOT NULL
        )
        SELECT t.id, t.epoch, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint - g.since
        FROM (
            SELECT epoch FROM known AS k WHERE epoch IS NOT NULL AND NOT EXISTS (SELECT 1 FROM @node AS n WHERE n.epoch = k.epoch)
        ) AS lost
        CROSS JOIN LATERAL (
            SELECT id, epoch FROM @task WHERE ended IS NULL AND epoch = lost.epoch
                AND id > CASE WHEN lost.epoch = $1 THEN $2 ELSE ''::bytea END ORDER BY id LIMIT $3
        ) AS t LEFT JOIN @gone AS g ON g.epoch = t.epoch ORDER BY t.epoch, t.id LIMIT $3",
    types: &[Type::INT8, Type::BYTEA, Type::INT8],
};
const QUEUED: Sql = Sql {
    text: "SELECT t.id, t.epoch FROM UNNEST($1, $2) AS n(tool, free) CROSS JOIN LATERAL (
            SELECT q.id, q.epoch FROM @task AS q WHERE q.queued = n.tool AND q.epoch <> $3
                AND EXISTS (SELECT 1 FROM @node AS a WHERE a.epoch = q.epoch) ORDER BY q.id LIMIT n.free
        ) AS t",
    types: &[Type::TEXT_ARRAY, Type::INT8_ARRAY, Type::INT8],
};
const VERSIONS: Sql = Sql {
    text: "SELECT t.version FROM UNNEST($1) WITH ORDINALITY AS n(id, nth) LEFT JOIN @task AS t ON t.id = n.id ORDER BY n.nth",
    types: &[Type::BYTEA_ARRAY],
};
const USAGE: Sql = Sql {
    text: "SELECT coalesce(sum(open), 0)::bigint, coalesce(sum(bytes), 0)::bigint FROM @usage WHERE caller = $1",
    types: &[Type::TEXT],
};
const NODES: Sql = Sql {
    text: "SELECT epoch, name, started, greatest(expires - floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint, 0),
            (SELECT count(*) FROM @task AS t WHERE t.ended IS NULL AND t.epoch = n.epoch)
        FROM @node AS n ORDER BY epoch",
    types: &[],
};

/// This node.
pub(super) struct Node {
    database: Arc<Database>,
    wakeups: Arc<Wakeups>,
    /// The epoch that the store was opened with.
    pub(super) epoch: Epoch,
    /// When that was: by the database, and by the local monotonic clock a moment earlier.
    opened_at: (Timestamp, Duration),
    /// Where it is written down which node has the data directory.
    epoch_file: Option<PathBuf>,
    /// What runs in the background as long as this node does.
    _background: Vec<EndOnDrop>,
}

impl Node {
    /// Begins the first lease.
    pub(super) async fn open(
        database: Arc<Database>,
        wakeups: Arc<Wakeups>,
        background: Vec<EndOnDrop>,
        epoch_file: Option<PathBuf>,
    ) -> Result<Self, Error> {
        if let Some(last) = epoch_file.as_deref().and_then(read_epoch) {
            // Its process had the same directory, which one has at a time: it is gone, and nobody need wait for its lease to end.
            database.run_for_lease(&LEAVE, &[&number(last.0)]).await?;
        }
        let asked_at = SystemClock.monotonic();
        let (epoch, began) = join(&database).await?;
        let node = Self { database, wakeups, epoch, opened_at: (began, asked_at), epoch_file, _background: background };
        node.write_epoch(epoch);
        Ok(node)
    }

    /// Writes down which node has the directory. Without it the next one takes over a few seconds later.
    fn write_epoch(&self, epoch: Epoch) {
        let Some(path) = &self.epoch_file else { return };
        let opened = owned_files::open(OpenOptions::new().write(true).create(true).truncate(true), path);
        if let Err(error) = opened.and_then(|mut file| write!(file, "{}", epoch.0)) {
            tracing::warn!(%error, "the epoch of this node could not be written down");
        }
    }
}

/// The epoch that is written down, if one is.
fn read_epoch(path: &Path) -> Option<Epoch> {
    let mut text = String::new();
    owned_files::open(OpenOptions::new().read(true), path).ok()?.take(32).read_to_string(&mut text).ok()?;
    text.parse().ok().map(Epoch)
}

/// The nodes that have not been declared dead.
pub(super) async fn nodes(database: &Database) -> Result<Vec<NodeInfo>, Error> {
    let rows = match database.run(&NODES, &[]).await {
        // Nobody has made the tables yet.
        Err(Error::Postgres(error)) if error.is_about_no_table() => Vec::new(),
        rows => rows?,
    };
    rows.iter().map(node_of).collect::<Result<_, _>>().map_err(|what| Error::corrupt("a node", what))
}

async fn join(database: &Database) -> Result<(Epoch, Timestamp), Error> {
    let timeline = match database.run(&TIMELINE, &[]).await {
        Ok(rows) => {
            let digits = rows.first().and_then(|row| row.try_get::<_, &str>(0).ok());
            digits.and_then(|digits| i64::from_str_radix(digits, 16).ok()).unwrap_or(0)
        }
        // Some services have no such function, and do not lose what is committed when a server takes over.
        Err(Error::Postgres(error)) => {
            tracing::debug!(%error, "the database does not say its timeline");
            0
        }
        Err(error) => return Err(error),
    };
    let name = to_text(&database.config.node);
    let first = (timeline << TIMELINE_SHIFT) + 1;
    let rows = database.run_for_lease(&JOIN, &[&name, &millis(LEASE), &first]).await?;
    let Some(row) = rows.first() else {
        schema::check_not_moved(database).await?;
        return Err(Error::corrupt("the number of starts", "it is not there"));
    };
    let epoch = number_at(row, 0).map_err(|what| Error::corrupt("the number of starts", what))?;
    Ok((Epoch(epoch), Timestamp::from_millis(row.try_get(1).map_err(classify)?)))
}

fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

fn renewed(row: &Row, orphan_after: Duration) -> Result<Lease, tokio_postgres::Error> {
    let (expires, longest): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
    let longest = Duration::from_millis(u64::try_from(longest).unwrap_or(0));
    Ok(Lease { now: Timestamp::from_millis(expires - millis(LEASE)), lasts: LEASE, orphan_after: longest.max(orphan_after) })
}

fn stranded_of(row: &Row) -> Result<Option<StrandedTask>, tokio_postgres::Error> {
    let (epoch, gone_for): (i64, Option<i64>) = (row.try_get(1)?, row.try_get(2)?);
    // Nobody knows, or the clock was set back since: then the time counts for which others have seen it gone.
    let gone_for = gone_for.and_then(|millis| u64::try_from(millis).ok()).map_or(Duration::MAX, Duration::from_millis);
    Ok(id_at(row, 0)?.map(|id| StrandedTask { id, epoch: Epoch(epoch.cast_unsigned()), gone_for }))
}

fn queued_of(row: &Row) -> Result<Option<(TaskId, Epoch)>, tokio_postgres::Error> {
    let epoch: i64 = row.try_get(1)?;
    Ok(id_at(row, 0)?.map(|id| (id, Epoch(epoch.cast_unsigned()))))
}

fn node_of(row: &Row) -> Result<NodeInfo, String> {
    let started = row.try_get(2).map_err(|error| error.to_string())?;
    let name: &str = row.try_get(1).map_err(|error| error.to_string())?;
    Ok(NodeInfo {
        epoch: Epoch(number_at(row, 0)?),
        name: from_text(name).into(),
        since: Timestamp::from_millis(started),
        lease_left: Duration::from_millis(number_at(row, 3)?),
        open_tasks: number_at(row, 4)?,
    })
}

impl Cluster for Node {
    fn first_lease(&self) -> (Lease, Duration) {
        let (now, asked_at) = self.opened_at;
        (Lease { now, lasts: LEASE, orphan_after: Duration::ZERO }, SystemClock.monotonic().saturating_sub(asked_at))
    }

    fn renew(&self, epoch: Epoch, orphan_after: Duration) -> BoxFuture<'_, Result<Option<Lease>, Error>> {
        Box::pin(async move {
            let rows = self.database.run_for_lease(&RENEW, &[&number(epoch.0), &millis(LEASE), &millis(orphan_after)]).await?;
            rows.first().map(|row| renewed(row, orphan_after)).transpose().map_err(classify)
        })
    }

    fn rejoin(&self) -> BoxFuture<'_, Result<Epoch, Error>> {
        Box::pin(async move {
            let (epoch, _) = join(&self.database).await?;
            self.write_epoch(epoch);
            Ok(epoch)
        })
    }

    fn leave(&self, epoch: Epoch) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move { self.database.run_for_lease(&LEAVE, &[&number(epoch.0)]).await.map(drop) })
    }

    fn is_alive(&self, epoch: Epoch) -> BoxFuture<'_, Result<bool, Error>> {
        Box::pin(async move { Ok(!self.database.run(&IS_ALIVE, &[&number(epoch.0)]).await?.is_empty()) })
    }

    fn stranded_tasks(
        &self,
        judge_at: Option<Timestamp>,
        after: Option<(Epoch, TaskId)>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<StrandedTask>, Error>> {
        Box::pin(async move {
            let dead = match judge_at {
                Some(at) => self.database.run(&JUDGE, &[&at.as_millis(), &millis(LEASE * 2), &millis(JUDGE_SLACK)]).await?,
                None => Vec::new(),
            };
            for row in &dead {
                let (epoch, name): (i64, &str) = (row.try_get(0).map_err(classify)?, row.try_get(1).map_err(classify)?);
                tracing::warn!(node = name, epoch, "a node has not renewed its lease: other nodes take over what it ran");
            }
            let (epoch, id) = after.as_ref().map_or((0, &[][..]), |(epoch, id)| (number(epoch.0), &id.as_bytes()[..]));
            let rows = self.database.run(&STRANDED, &[&epoch, &id, &number(limit as u64)]).await?;
            rows.iter().filter_map(|row| stranded_of(row).transpose()).collect::<Result<_, _>>().map_err(classify)
        })
    }

    fn queued_tasks<'a>(&'a self, epoch: Epoch, free: &'a [(String, usize)]) -> BoxFuture<'a, Result<Vec<(TaskId, Epoch)>, Error>> {
        Box::pin(async move {
            let tools: Vec<_> = free.iter().map(|(tool, _)| to_text(tool)).collect();
            let counts: Vec<i64> = free.iter().map(|(_, count)| number(*count as u64)).collect();
            let rows = self.database.run(&QUEUED, &[&tools, &counts, &number(epoch.0)]).await?;
            rows.iter().filter_map(|row| queued_of(row).transpose()).collect::<Result<_, _>>().map_err(classify)
        })
    }

    fn versions<'a>(&'a self, ids: &'a [TaskId]) -> BoxFuture<'a, Result<Vec<Option<Version>>, Error>> {
        Box::pin(async move {
            if ids.is_empty() {
                return Ok(Vec::new());
            }
            let bytes: Vec<&[u8]> = ids.iter().map(|id| &id.as_bytes()[..]).collect();
            let rows = self.database.run(&VERSIONS, &[&bytes]).await?;
            let version =
                |row: &Row| row.try_get::<_, Option<i64>>(0).map(|version| version.map(|version| Version(version.cast_unsigned())));
            rows.iter().map(version).collect::<Result<_, _>>().map_err(classify)
        })
    }

    fn usage_of<'a>(&'a self, caller: &'a CallerId) -> BoxFuture<'a, Result<Usage, Error>> {
        Box::pin(async move {
            let rows = self.database.run(&USAGE, &[&to_text(caller.as_str())]).await?;
            let Some(row) = rows.first() else { return Ok(Usage::default()) };
            let value = |index: usize| row.try_get::<_, i64>(index).map(|value| u64::try_from(value).unwrap_or(0)).map_err(classify);
            Ok(Usage { open: value(0)?, bytes: value(1)? })
        })
    }

    fn nodes(&self) -> BoxFuture<'_, Result<Vec<NodeInfo>, Error>> {
        Box::pin(nodes(&self.database))
    }

    fn announce(&self, changes: Changes) {
        self.wakeups.announce(changes);
    }

    fn next_changes(&self) -> BoxFuture<'_, Changes> {
        Box::pin(self.wakeups.next())
    }

    fn has_wakeups(&self) -> bool {
        self.wakeups.arrive.load(Ordering::Relaxed)
    }
}

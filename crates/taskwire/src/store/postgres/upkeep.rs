//! Keeping the tables in shape: partitions of output are made ahead, and dropped when no task of their day is left.
//!
//! The id of a task begins with its time, so the output of a day's tasks is in one partition. To forget a task deletes none of it.

use std::{sync::Arc, time::Duration};

use deadpool_postgres::ClientWrapper;
use taskwire_core::TaskId;
use tokio::time::{Instant, sleep};
use tokio_postgres::{Row, types::Type};

use super::{
    connection::{Database, Sql, number},
    error::{away, classify},
};
use crate::store::Error;

const HOUR: Duration = Duration::from_secs(3600);
/// How long after a start the first upkeep is: a node that is about to fail should not begin with it.
const FIRST_AFTER: Duration = Duration::from_secs(60);
const DAY_MS: i64 = 86_400_000;
/// Days for which there are partitions ahead.
const DAYS_AHEAD: i64 = 3;
/// Days that a partition stays at least: a call that has run for so long can still become a task, under the id that it began with.
const DAYS_KEPT: i64 = 2;
/// Tasks that one step of a sweep looks at, and rows that it deletes at most: a large row is many more in the database.
const SWEEP_TASKS: u64 = 1_000;
const SWEEP_ROWS: u64 = 1_000;
/// Callers whose rows are removed in one statement.
const SWEEP_CALLERS: u64 = 1_000;

const TODAY: Sql = Sql { text: "SELECT floor(extract(epoch FROM clock_timestamp()) / 86400)::bigint", types: &[] };

/// Which of these days have no partition that takes rows, what it is called, and whether it is one that somebody began to detach: nothing
/// can have its place before that is done. Earlier output than the first day has a partition of its own.
const MISSING: Sql = Sql {
    text: "SELECT day, name, p.inhrelid IS NOT NULL FROM (
            SELECT day, 'chunk_' || to_char(timestamp '1970-01-01' + day * interval '1 day', 'YYYYMMDD') AS name FROM UNNEST($1) AS day
        ) AS wanted LEFT JOIN (
            SELECT i.inhrelid, i.inhdetachpending, c.relname
            FROM pg_catalog.pg_inherits AS i JOIN pg_catalog.pg_class AS c ON c.oid = i.inhrelid WHERE i.inhparent = to_regclass('@chunk')
        ) AS p ON p.relname = name
        WHERE day >= (SELECT number FROM @meta WHERE key = 'first_day') AND coalesce(p.inhdetachpending, true) ORDER BY day",
    types: &[Type::INT8_ARRAY],
};

const IS_PARTITION: Sql = Sql {
    text: "SELECT 1 FROM pg_catalog.pg_inherits AS i JOIN pg_catalog.pg_class AS c ON c.oid = i.inhrelid
        WHERE i.inhparent = to_regclass('@chunk') AND c.relname = $1",
    types: &[Type::TEXT],
};

/// Partitions of days before `$2`: name, day, whether it is one still, whether it is about to be none, whether its day has tasks. Only one
/// can be about to be none, and no other can be detached before that is done.
const OLD: Sql = Sql {
    text: "SELECT name, day, is_attached, is_pending, EXISTS (
            SELECT 1 FROM @task AS t WHERE t.id >= substr(int8send(day * 86400000), 3) AND t.id < substr(int8send((day + 1) * 86400000), 3)
        ) FROM (
            SELECT c.relname::text AS name, i.inhrelid IS NOT NULL AS is_attached, coalesce(i.inhdetachpending, false) AS is_pending,
                CASE WHEN c.relname ~ '^chunk_[0-9]{8}$'
                    THEN (to_date(substr(c.relname, 7), 'YYYYMMDD') - date '1970-01-01')::bigint END AS day
            FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
            LEFT JOIN pg_catalog.pg_inherits AS i ON i.inhrelid = c.oid WHERE n.nspname = $1 AND c.relkind = 'r'
        ) AS p WHERE day < $2 ORDER BY is_pending DESC, day",
    types: &[Type::TEXT, Type::INT8],
};

const HAS_TASKS: Sql = Sql {
    text: "SELECT EXISTS (
        SELECT 1 FROM @task WHERE id >= substr(int8send($1 * 86400000), 3) AND id < substr(int8send(($1 + 1) * 86400000), 3)
    )",
    types: &[Type::INT8],
};

/// One node each hour does what is to be done once.
const TAKE_TURN: Sql = Sql {
    text: "UPDATE @meta SET number = floor(extract(epoch FROM clock_timestamp()))::bigint
        WHERE key = 'upkeep' AND number < extract(epoch FROM clock_timestamp()) - 3000 RETURNING key",
    types: &[],
};

/// Removes rows of callers who have nothing: any rows whose sum is zero can go.
const SWEEP_USAGE: Sql = Sql {
    text: "WITH swept AS (
            DELETE FROM @usage AS u USING (
                SELECT caller, array_agg(slot) AS slots FROM (
                    SELECT caller, slot, open, bytes FROM @usage WHERE caller IN (
                        SELECT caller FROM @usage GROUP BY caller HAVING sum(open) = 0 AND sum(bytes) = 0 LIMIT $1
                    ) ORDER BY caller, slot FOR UPDATE SKIP LOCKED
                ) AS locked GROUP BY caller HAVING sum(open) = 0 AND sum(bytes) = 0
            ) AS empty WHERE u.caller = empty.caller AND u.slot = ANY(empty.slots) RETURNING u.caller
        ) SELECT count(DISTINCT caller) FROM swept",
    types: &[Type::INT8],
};

/// It is remembered when a node went for an hour, and as long as a task is open that began before: the node may have run it, also for
/// another one. The ids of tasks begin with their time.
const FORGET_GONE: Sql = Sql {
    text: "DELETE FROM @gone WHERE since < floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint - 3600000
        AND substr(int8send(since), 3) <= coalesce((SELECT id FROM @task WHERE ended IS NULL ORDER BY id LIMIT 1), '\\xff'::bytea)",
    types: &[],
};

/// No two nodes change partitions at one time.
const BEGIN: &str = "BEGIN; SET LOCAL lock_timeout = 2000; SELECT pg_advisory_xact_lock(hashtextextended('taskwire partitions of @', 0))";

/// Makes the partitions for today and the next days.
pub(super) async fn make_ahead(database: &Database) -> Result<(), Error> {
    let today = today(database).await?;
    make_partitions(database, (today..=today + DAYS_AHEAD).collect()).await
}

/// Makes the partitions for the output of these tasks.
pub(super) async fn make_for(database: &Database, tasks: impl Iterator<Item = TaskId>) -> Result<(), Error> {
    let mut days: Vec<i64> = tasks.map(day_of).collect();
    days.sort_unstable();
    days.dedup();
    make_partitions(database, days).await
}

/// The day in which a task began.
fn day_of(id: TaskId) -> i64 {
    id.as_bytes()[..6].iter().fold(0, |millis, byte| (millis << 8) | i64::from(*byte)) / DAY_MS
}

async fn today(database: &Database) -> Result<i64, Error> {
    let rows = database.run(&TODAY, &[]).await?;
    rows.first().map_or(Ok(0), |row| row.try_get(0)).map_err(classify)
}

async fn make_partitions(database: &Database, days: Vec<i64>) -> Result<(), Error> {
    // A look takes no lock.
    let missing = database.run(&MISSING, &[&days]).await?;
    if missing.is_empty() {
        return Ok(());
    }
    let client = database.connect_session().await?;
    let mut made = Ok(());
    for row in missing {
        let (day, name, is_pending): (i64, String, bool) = row_of(&row).map_err(classify)?;
        if is_pending && let Err(error) = finalize(database, &client, &name).await {
            tracing::debug!(%error, partition = name, "a partition that somebody began to detach is not detached yet");
        }
        if let Err(error) = make_partition(database, &client, day).await {
            // One that cannot be made does not keep others from being made.
            run(database, &client, "ROLLBACK").await?;
            made = Err(error);
        }
    }
    made
}

/// Makes the partition of a day, unless another node was faster.
async fn make_partition(database: &Database, client: &ClientWrapper, day: i64) -> Result<(), Error> {
    run(database, client, BEGIN).await?;
    for row in database.run_in(client, &MISSING, &[&&[day][..]]).await? {
        let (_, name, is_pending): (i64, String, bool) = row_of(&row).map_err(classify)?;
        if is_pending {
            return Err(away(format_args!("the partition {name} is being detached, and another transaction holds that up")));
        }
        // To attach a table takes a weaker lock than to make a partition.
        run(database, client, &format!("CREATE TABLE IF NOT EXISTS @{name}(LIKE @chunk INCLUDING ALL)")).await?;
        attach(database, client, &name, day).await?;
    }
    run(database, client, "COMMIT").await
}

/// A row of [`MISSING`].
fn row_of(row: &Row) -> Result<(i64, String, bool), tokio_postgres::Error> {
    Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?))
}

/// Ends what was begun and interrupted. It waits for whoever looks at the partition, so not while others wait for us.
async fn finalize(database: &Database, client: &ClientWrapper, name: &str) -> Result<(), Error> {
    run(database, client, &format!("SET LOCAL lock_timeout = 2000; ALTER TABLE @chunk DETACH PARTITION @{name} FINALIZE")).await
}

async fn attach(database: &Database, client: &ClientWrapper, name: &str, day: i64) -> Result<(), Error> {
    let (from, to) = (day * DAY_MS, (day + 1) * DAY_MS);
    let text = format!("ALTER TABLE @chunk ATTACH PARTITION @{name} FOR VALUES FROM ('\\x{from:012x}') TO ('\\x{to:012x}')");
    run(database, client, &text).await
}

async fn run(database: &Database, client: &ClientWrapper, text: &str) -> Result<(), Error> {
    client.batch_execute(&database.render(text)).await.map_err(classify)
}

/// Does what is to be done, each hour.
pub(super) async fn keep_up(database: Arc<Database>) {
    sleep(FIRST_AFTER).await;
    loop {
        if let Err(error) = make_ahead(&database).await {
            tracing::warn!(%error, "no partitions could be made for the output of the next days: trying again in an hour");
        }
        if let Err(error) = remove_old(&database).await {
            tracing::warn!(%error, "old output could not be removed: trying again in an hour");
        }
        // A new connection looks at the settings on which durability relies.
        if let Err(error) = database.connect_session().await {
            tracing::debug!(%error, "the settings of the database could not be looked at");
        }
        sleep(HOUR).await;
    }
}

/// Removes what nobody needs any more.
pub(super) async fn remove_old(database: &Database) -> Result<(), Error> {
    if database.run(&TAKE_TURN, &[]).await?.is_empty() {
        return Ok(());
    }
    database.run(&FORGET_GONE, &[]).await?;
    sweep_usage(database).await?;
    let before = today(database).await? - DAYS_KEPT;
    let client = database.connect_session().await?;
    let rows = database.run_in(&client, &OLD, &[&database.config.schema, &before]).await?;
    let days = rows.iter().map(Old::of).collect::<Result<Vec<_>, _>>().map_err(classify)?;
    for old in days.into_iter().chain([Old::before_all_days()]) {
        if let Err(error) = remove(database, &client, &old).await {
            tracing::warn!(%error, partition = old.name, "old output could not be removed: trying again in an hour");
            // The others may be removed all the same.
            run(database, &client, "ROLLBACK").await?;
        }
    }
    Ok(())
}

/// A partition of [`OLD`].
struct Old {
    name: String,
    day: i64,
    is_attached: bool,
    is_pending: bool,
    has_tasks: bool,
}

impl Old {
    fn of(row: &Row) -> Result<Self, tokio_postgres::Error> {
        let (is_attached, is_pending, has_tasks) = (row.try_get(2)?, row.try_get(3)?, row.try_get(4)?);
        Ok(Self { name: row.try_get(0)?, day: row.try_get(1)?, is_attached, is_pending, has_tasks })
    }

    /// That of tasks which are older than the store. It stays.
    fn before_all_days() -> Self {
        Self { name: "chunk_before".to_owned(), day: 0, is_attached: true, is_pending: false, has_tasks: true }
    }
}

/// Removes the output of a day, or that of its tasks that are forgotten.
async fn remove(database: &Database, client: &ClientWrapper, old: &Old) -> Result<(), Error> {
    let Old { name, day, .. } = old;
    if old.is_pending {
        // It was interrupted.
        finalize(database, client, name).await?;
    } else if old.is_attached && old.has_tasks {
        return sweep(database, client, name).await;
    } else if old.is_attached {
        // It waits for whoever uses the partition, and locks nobody out. If that takes too long, the next upkeep goes on.
        run(database, client, &format!("ALTER TABLE @chunk DETACH PARTITION @{name} CONCURRENTLY")).await?;
    }
    drop_detached(database, client, name, *day).await
}

/// Drops a table that was a partition, unless a task of its day was made since.
async fn drop_detached(database: &Database, client: &ClientWrapper, name: &str, day: i64) -> Result<(), Error> {
    run(database, client, BEGIN).await?;
    // Whoever has attached it again meanwhile, and writes to it, is seen after this.
    run(database, client, &format!("LOCK TABLE @{name} IN ACCESS EXCLUSIVE MODE")).await?;
    if !database.run_in(client, &IS_PARTITION, &[&name]).await?.is_empty() {
        return run(database, client, "COMMIT").await;
    }
    let rows = database.run_in(client, &HAS_TASKS, &[&day]).await?;
    if rows.first().map_or(Ok(true), |row| row.try_get(0)).map_err(classify)? {
        attach(database, client, name, day).await?;
    } else {
        run(database, client, &format!("DROP TABLE @{name}")).await?;
        tracing::debug!(partition = name, "old output was removed");
    }
    run(database, client, "COMMIT").await
}

/// Removes the rows of callers who have nothing.
async fn sweep_usage(database: &Database) -> Result<(), Error> {
    loop {
        let rows = database.run(&SWEEP_USAGE, &[&number(SWEEP_CALLERS)]).await?;
        let swept: i64 = rows.first().map_or(Ok(0), |row| row.try_get(0)).map_err(classify)?;
        if swept < number(SWEEP_CALLERS) {
            return Ok(());
        }
    }
}

/// Deletes output of forgotten tasks from a partition that other tasks keep, in steps that lock little and leave the database half of its
/// time.
async fn sweep(database: &Database, client: &ClientWrapper, name: &str) -> Result<(), Error> {
    let text = database.render(&sweep_step(name));
    let mut after: Vec<u8> = Vec::new();
    loop {
        let began = Instant::now();
        let row = client.query_typed_one(&text, &[(&after, Type::BYTEA)]).await.map_err(classify)?;
        let (looked_at, deleted): (i64, i64) = (row.try_get(0).map_err(classify)?, row.try_get(1).map_err(classify)?);
        // There can be more of the last tasks that were looked at.
        if deleted < number(SWEEP_ROWS) {
            if looked_at < number(SWEEP_TASKS) {
                return Ok(());
            }
            after = row.try_get(2).map_err(classify)?;
        }
        sleep(began.elapsed()).await;
    }
}

/// One step of a sweep, from the task `$1` on: from one task to the next by the index, not by all their rows, and to the rows of a
/// forgotten one by the index, too. Says how many tasks it looked at, how many rows it deleted, and which task was the last.
fn sweep_step(name: &str) -> String {
    format!(
        "WITH RECURSIVE known(task, nth) AS (
            (SELECT task, 1 FROM @{name} WHERE task > $1 ORDER BY task LIMIT 1) UNION ALL
            SELECT (SELECT c.task FROM @{name} AS c WHERE c.task > k.task ORDER BY c.task LIMIT 1), nth + 1 FROM known AS k
            WHERE k.task IS NOT NULL AND nth < {SWEEP_TASKS}
        ), deleted AS (
            DELETE FROM @{name} WHERE ctid = ANY(ARRAY(
                SELECT c.ctid FROM known AS k
                CROSS JOIN LATERAL (SELECT c.ctid FROM @{name} AS c WHERE c.task = k.task ORDER BY c.seq LIMIT {SWEEP_ROWS}) AS c
                WHERE NOT EXISTS (SELECT 1 FROM @task AS t WHERE t.id = k.task) LIMIT {SWEEP_ROWS}
            )) RETURNING 1
        )
        SELECT count(task), (SELECT count(*) FROM deleted), (SELECT task FROM known WHERE task IS NOT NULL ORDER BY nth DESC LIMIT 1)
        FROM known"
    )
}

//! Keeping the tables in shape: partitions of output are made ahead, and dropped when no task of their day is left.
//!
//! The id of a task begins with its time, so the output of a day's tasks is in one partition. To forget a task deletes none of it.

use std::{sync::Arc, time::Duration};

use deadpool_postgres::ClientWrapper;
use taskwire_core::TaskId;
use tokio_postgres::types::Type;

use super::{
    connection::{Database, Sql},
    error::classify,
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
/// How often a partition is swept in one upkeep.
const SWEEPS_MAX: usize = 20;
/// Tasks whose output is removed in one statement.
const SWEEP_TASKS: u64 = 200;

const TODAY: Sql = Sql { text: "SELECT floor(extract(epoch FROM clock_timestamp()) / 86400)::bigint", types: &[] };

/// Which of these days have no partition, and what it is to be called. Earlier output than the first day has a partition of its own.
const MISSING: Sql = Sql {
    text: "SELECT day, name FROM (
            SELECT day, 'chunk_' || to_char(timestamp '1970-01-01' + day * interval '1 day', 'YYYYMMDD') AS name FROM UNNEST($1) AS day
        ) AS wanted
        WHERE day >= (SELECT number FROM @meta WHERE key = 'first_day') AND NOT EXISTS (
            SELECT 1 FROM pg_catalog.pg_inherits AS i JOIN pg_catalog.pg_class AS c ON c.oid = i.inhrelid
            WHERE i.inhparent = to_regclass('@chunk') AND c.relname = name
        ) ORDER BY day",
    types: &[Type::INT8_ARRAY],
};

const IS_PARTITION: Sql = Sql {
    text: "SELECT 1 FROM pg_catalog.pg_inherits AS i JOIN pg_catalog.pg_class AS c ON c.oid = i.inhrelid
        WHERE i.inhparent = to_regclass('@chunk') AND c.relname = $1",
    types: &[Type::TEXT],
};

/// Partitions of days before `$2`: name, day, whether it is one still, whether it is about to be none, whether its day has tasks.
const OLD: Sql = Sql {
    text: "SELECT name, day, is_attached, is_pending, EXISTS (
            SELECT 1 FROM @task AS t WHERE t.id >= substr(int8send(day * 86400000), 3) AND t.id < substr(int8send((day + 1) * 86400000), 3)
        ) FROM (
            SELECT c.relname::text AS name, i.inhrelid IS NOT NULL AS is_attached, coalesce(i.inhdetachpending, false) AS is_pending,
                CASE WHEN c.relname ~ '^chunk_[0-9]{8}$'
                    THEN (to_date(substr(c.relname, 7), 'YYYYMMDD') - date '1970-01-01')::bigint END AS day
            FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
            LEFT JOIN pg_catalog.pg_inherits AS i ON i.inhrelid = c.oid WHERE n.nspname = $1 AND c.relkind = 'r'
        ) AS p WHERE day < $2 ORDER BY day",
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
    text: "DELETE FROM @usage AS u USING (
            SELECT caller, array_agg(slot) AS slots FROM (
                SELECT caller, slot, open, bytes FROM @usage WHERE caller IN (
                    SELECT caller FROM @usage GROUP BY caller HAVING sum(open) = 0 AND sum(bytes) = 0 LIMIT 1000
                ) ORDER BY caller, slot FOR UPDATE SKIP LOCKED
            ) AS locked GROUP BY caller HAVING sum(open) = 0 AND sum(bytes) = 0
        ) AS empty WHERE u.caller = empty.caller AND u.slot = ANY(empty.slots)",
    types: &[],
};

/// For an hour and longer it is remembered when a node went.
const FORGET_GONE: Sql =
    Sql { text: "DELETE FROM @gone WHERE since < floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint - 3600000", types: &[] };

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
    if database.run(&MISSING, &[&days]).await?.is_empty() {
        return Ok(());
    }
    let client = database.connect_session().await?;
    run(database, &client, BEGIN).await?;
    for row in database.run_in(&client, &MISSING, &[&days]).await? {
        let (day, name): (i64, String) = (row.try_get(0).map_err(classify)?, row.try_get(1).map_err(classify)?);
        // To attach a table takes a weaker lock than to make a partition.
        run(database, &client, &format!("CREATE TABLE IF NOT EXISTS @{name}(LIKE @chunk INCLUDING ALL)")).await?;
        attach(database, &client, &name, day).await?;
    }
    run(database, &client, "COMMIT").await
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
    tokio::time::sleep(FIRST_AFTER).await;
    loop {
        if let Err(error) = make_ahead(&database).await {
            tracing::warn!(%error, "no partitions could be made for the output of the next days: trying again in an hour");
        }
        if let Err(error) = remove_old(&database).await {
            tracing::warn!(%error, "old output could not be removed: trying again in an hour");
        }
        tokio::time::sleep(HOUR).await;
    }
}

/// Removes what nobody needs any more.
async fn remove_old(database: &Database) -> Result<(), Error> {
    if database.run(&TAKE_TURN, &[]).await?.is_empty() {
        return Ok(());
    }
    database.run(&FORGET_GONE, &[]).await?;
    database.run(&SWEEP_USAGE, &[]).await?;
    let before = today(database).await? - DAYS_KEPT;
    let client = database.connect_session().await?;
    sweep(database, &client, "chunk_before").await?;
    for row in database.run_in(&client, &OLD, &[&database.config.schema, &before]).await? {
        let (name, day): (String, i64) = (row.try_get(0).map_err(classify)?, row.try_get(1).map_err(classify)?);
        let flag = |index: usize| row.try_get::<_, bool>(index).map_err(classify);
        let (is_attached, is_pending, has_tasks) = (flag(2)?, flag(3)?, flag(4)?);
        if is_pending {
            // It was interrupted.
            run(database, &client, &format!("ALTER TABLE @chunk DETACH PARTITION @{name} FINALIZE")).await?;
        } else if is_attached && has_tasks {
            if let Err(error) = sweep(database, &client, &name).await {
                tracing::warn!(%error, partition = name, "old output could not be removed: trying again in an hour");
            }
            continue;
        } else if is_attached {
            // It waits for whoever uses the partition, and locks nobody out. If that takes too long, the next upkeep goes on.
            run(database, &client, &format!("ALTER TABLE @chunk DETACH PARTITION @{name} CONCURRENTLY")).await?;
        }
        drop_detached(database, &client, &name, day).await?;
    }
    Ok(())
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

/// Deletes output of forgotten tasks from a partition that other tasks keep.
async fn sweep(database: &Database, client: &ClientWrapper, name: &str) -> Result<(), Error> {
    // From one task to the next by the index, not by all their rows.
    let text = database.render(&format!(
        "WITH RECURSIVE known(task) AS (
            (SELECT task FROM @{name} ORDER BY task LIMIT 1) UNION ALL
            SELECT (SELECT c.task FROM @{name} AS c WHERE c.task > k.task ORDER BY c.task LIMIT 1) FROM known AS k WHERE k.task IS NOT NULL
        ), gone AS MATERIALIZED (
            SELECT task FROM known WHERE task IS NOT NULL AND NOT EXISTS (SELECT 1 FROM @task AS t WHERE t.id = known.task)
            LIMIT {SWEEP_TASKS}
        ), deleted AS (DELETE FROM @{name} AS c USING gone WHERE c.task = gone.task)
        SELECT count(*) FROM gone"
    ));
    for _ in 0..SWEEPS_MAX {
        let row = client.query_typed_one(&text, &[]).await.map_err(classify)?;
        if row.try_get::<_, i64>(0).map_err(classify)?.cast_unsigned() < SWEEP_TASKS {
            break;
        }
    }
    Ok(())
}

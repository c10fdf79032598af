//! A bare client of PostgreSQL: writes the rows that the nodes have written, into the same tables, in the same batches.
//!
//! The rows are read back from the tables of the nodes. The transaction that made a row (`xmin`) says which rows were one batch. Each node
//! has a connection of its own here, too, and each batch is one transaction of two round trips, as a node's is: `BEGIN`, then all the rest.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use futures_util::future::{BoxFuture, try_join_all};
use tokio::{task::JoinSet, time::sleep};
use tokio_postgres::{
    Client, Row, Statement,
    types::{FromSqlOwned, ToSql},
};

use super::{
    Bench,
    cluster::{Cluster, Cpu},
    database::{SETTLE, render},
    found::RateSample,
};
use crate::process::cpu;

type Param = Box<dyn ToSql + Sync + Send>;

/// New tasks by node and transaction.
const CREATED: &str = "SELECT t.epoch, l.xmin::text::bigint, t.id, t.caller, t.stored_bytes, h.head, l.at, l.event, s.key
    FROM @log AS l JOIN @task AS t ON t.id = l.task JOIN @head AS h ON h.id = l.task LEFT JOIN @same_call AS s ON s.task = l.task
    WHERE l.version = 1 AND l.task = ANY($1) ORDER BY 1, 2, 3";
/// Rows of chunks by node and transaction.
const APPENDED: &str = "SELECT t.epoch, c.xmin::text::bigint, c.task, c.seq, c.count, c.version, c.at, c.first_block, c.blocks_total,
        c.bytes_total, c.blocks, t.caller
    FROM @chunk AS c JOIN @task AS t ON t.id = c.task WHERE c.task = ANY($1) ORDER BY 1, 2, 3, 4";
/// The tasks that are written to, as they were before.
const COPY_TASKS: &str = "INSERT INTO @task(id, caller, epoch, version, next_seq, blocks, output_bytes, stored_bytes)
    SELECT id, caller, epoch, 1, 0, 0, 0, 512 FROM #task WHERE id = ANY($1)";
const EMPTY: &str = "TRUNCATE @task, @head, @log, @chunk, @same_call, @usage";

/// What makes tasks.
const CREATES: [&str; 5] = [
    "INSERT INTO @task(id, caller, epoch, version, next_seq, blocks, output_bytes, stored_bytes)
        SELECT n.id, n.caller, n.epoch, 1, 0, 0, 0, n.stored FROM UNNEST($1::bytea[], $2::text[], $3::bigint[], $4::bigint[])
            AS n(id, caller, epoch, stored)",
    "INSERT INTO @head(id, head) SELECT * FROM UNNEST($1::bytea[], $2::text[])",
    "INSERT INTO @log(task, version, at, event)
        SELECT n.task, 1, n.at, n.event FROM UNNEST($1::bytea[], $2::bigint[], $3::text[]) AS n(task, at, event)",
    "INSERT INTO @same_call(caller, hidden, key, task)
        SELECT n.caller, false, n.key, n.task FROM UNNEST($1::text[], $2::text[], $3::bytea[]) AS n(caller, key, task)",
    USAGE,
];
/// What writes output.
const APPENDS: [&str; 3] = [
    "UPDATE @task AS t SET version = n.version, next_seq = n.next_seq, blocks = n.blocks, output_bytes = n.bytes, stored_bytes = n.bytes
        FROM UNNEST($1::bytea[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[]) AS n(id, version, next_seq, blocks, bytes)
        WHERE t.id = n.id",
    "INSERT INTO @chunk(task, seq, count, version, at, first_block, blocks_total, bytes_total, blocks)
        SELECT * FROM UNNEST($1::bytea[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[],
            $9::text[])",
    USAGE,
];
/// How much a caller has: one row for each node.
const USAGE: &str = "INSERT INTO @usage AS u(caller, slot, open, bytes) VALUES($1, $2, $3, $4)
    ON CONFLICT (caller, slot) DO UPDATE SET open = u.open + excluded.open, bytes = u.bytes + excluded.bytes";

/// One transaction.
struct Batch {
    /// Values for each of the statements; none for one that is not needed.
    calls: Vec<Option<Vec<Param>>>,
}

/// What nodes have written.
pub struct Recording {
    statements: &'static [&'static str],
    by_node: Vec<Vec<Batch>>,
    /// Tasks or chunks.
    count: usize,
    commits: usize,
    /// The tasks that must be there before, and the schema that they come from.
    before: Option<(Vec<Vec<u8>>, String)>,
}

impl Recording {
    /// The creation of these tasks.
    pub async fn creates(client: &Client, schema: &str, tasks: Vec<Vec<u8>>) -> Result<Self> {
        let rows = client.query(&render(CREATED, schema), &[&tasks]).await?;
        ensure!(rows.len() == tasks.len(), "{} new tasks are in the tables instead of {}", rows.len(), tasks.len());
        let by_node = by_transaction(&rows, created)?;
        let commits = by_node.iter().map(Vec::len).sum();
        Ok(Self { statements: &CREATES, by_node, count: rows.len(), commits, before: None })
    }

    /// All output of these tasks.
    pub async fn appends(client: &Client, schema: &str, tasks: Vec<Vec<u8>>) -> Result<Self> {
        let rows = client.query(&render(APPENDED, schema), &[&tasks]).await?;
        let chunks: i64 = column::<i64>(&rows, 4)?.iter().sum();
        let by_node = by_transaction(&rows, appended)?;
        let commits = by_node.iter().map(Vec::len).sum();
        let before = Some((tasks, schema.to_owned()));
        Ok(Self { statements: &APPENDS, by_node, count: usize::try_from(chunks)?, commits, before })
    }

    /// How many tasks or chunks one transaction had, on average.
    pub fn per_commit(&self) -> f64 {
        self.count as f64 / self.commits.max(1) as f64
    }

    /// Writes all of it again. New tasks come into empty tables, and output behind them.
    pub async fn replay(self, bench: &Bench, tables: &Tables) -> Result<RateSample> {
        let (database, schema, per_commit) = (&bench.database, &tables.schema, self.per_commit());
        match &self.before {
            None => database.run(schema, EMPTY).await?,
            // Beside the tasks that were made before, as with the nodes.
            Some((tasks, source)) => {
                let copy = render(&COPY_TASKS.replace('#', &format!("\"{source}\".")), schema);
                database.client.execute(&copy, &[tasks]).await?;
            }
        }
        let mut writers = Vec::new();
        for batches in self.by_node {
            let client = database.connect().await?;
            let mut statements = Vec::new();
            for text in self.statements {
                statements.push(client.prepare(&render(text, schema)).await?);
            }
            writers.push((client, statements, batches));
        }
        database.settle().await?;
        let spent = || Ok::<_, anyhow::Error>(Cpu { own: cpu(std::process::id())?, store: database.cpu()? });
        let before = spent()?;
        let began = Instant::now();
        let mut running = JoinSet::new();
        for (client, statements, batches) in writers {
            running.spawn(write(client, statements, batches));
        }
        while let Some(written) = running.join_next().await {
            written.context("a writer broke")??;
        }
        let seconds = began.elapsed().as_secs_f64();
        sleep(SETTLE).await;
        let spent = spent()?.since(before);
        Ok(RateSample { per_commit: Some(per_commit), ..RateSample::new(self.count, seconds, spent) })
    }
}

/// Tables as nodes have them, which no node uses.
pub struct Tables {
    schema: String,
}

impl Tables {
    /// Makes them: by a node, which then is killed.
    pub async fn make(bench: &Bench) -> Result<Self> {
        let mut cluster = Cluster::start(bench, 1).await?;
        cluster.kill().await?;
        Ok(Self { schema: cluster.schema })
    }
}

async fn write(client: Client, statements: Vec<Statement>, batches: Vec<Batch>) -> Result<()> {
    for batch in &batches {
        client.batch_execute("BEGIN").await?;
        commit(&client, &statements, batch).await?;
    }
    Ok(())
}

/// Sends everything at once, and waits for the answers.
async fn commit(client: &Client, statements: &[Statement], batch: &Batch) -> Result<(), tokio_postgres::Error> {
    let mut answers: Vec<BoxFuture<'_, Result<(), tokio_postgres::Error>>> = Vec::new();
    for (statement, params) in statements.iter().zip(&batch.calls) {
        let Some(params) = params else { continue };
        answers.push(Box::pin(async move {
            let params: Vec<&(dyn ToSql + Sync)> = params.iter().map(|param| &**param as &(dyn ToSql + Sync)).collect();
            client.execute(statement, &params).await.map(drop)
        }));
    }
    // They are sent when they are polled first, which is in this order.
    answers.push(Box::pin(client.batch_execute("COMMIT")));
    try_join_all(answers).await.map(drop)
}

/// Batches of rows that are sorted by node and transaction.
fn by_transaction(rows: &[Row], batch: fn(&[Row], i16) -> Result<Batch>) -> Result<Vec<Vec<Batch>>> {
    let (epochs, transactions) = (column::<i64>(rows, 0)?, column::<i64>(rows, 1)?);
    let mut by_node: Vec<Vec<Batch>> = Vec::new();
    let (mut start, mut last_epoch) = (0, None);
    while start < rows.len() {
        let of = (epochs[start], transactions[start]);
        let len = (start..rows.len()).take_while(|nth| (epochs[*nth], transactions[*nth]) == of).count();
        if last_epoch.replace(of.0) != Some(of.0) {
            by_node.push(Vec::new());
        }
        let slot = i16::try_from(by_node.len())?;
        by_node.last_mut().context("there is a node")?.push(batch(&rows[start..start + len], slot)?);
        start += len;
    }
    Ok(by_node)
}

/// A batch of [`CREATES`], from rows of [`CREATED`].
fn created(rows: &[Row], slot: i16) -> Result<Batch> {
    let (ids, callers) = (column::<Vec<u8>>(rows, 2)?, column::<String>(rows, 3)?);
    let (stored, ats, events) = (column::<i64>(rows, 4)?, column::<i64>(rows, 6)?, column::<String>(rows, 7)?);
    let (mut same_callers, mut same_keys, mut same_tasks) = (Vec::new(), Vec::new(), Vec::new());
    for (nth, key) in column::<Option<String>>(rows, 8)?.into_iter().enumerate() {
        if let Some(key) = key {
            same_callers.push(callers[nth].clone());
            same_keys.push(key);
            same_tasks.push(ids[nth].clone());
        }
    }
    let usage = usage(&callers, slot, i64::try_from(rows.len())?, stored.iter().sum())?;
    let has_same = !same_keys.is_empty();
    let same: Vec<Param> = vec![Box::new(same_callers), Box::new(same_keys), Box::new(same_tasks)];
    let heads: Vec<Param> = vec![Box::new(ids.clone()), Box::new(column::<String>(rows, 5)?)];
    let events: Vec<Param> = vec![Box::new(ids.clone()), Box::new(ats), Box::new(events)];
    let tasks: Vec<Param> = vec![Box::new(ids), Box::new(callers), Box::new(column::<i64>(rows, 0)?), Box::new(stored)];
    Ok(Batch { calls: vec![Some(tasks), Some(heads), Some(events), has_same.then_some(same), Some(usage)] })
}

/// A batch of [`APPENDS`], from rows of [`APPENDED`].
fn appended(rows: &[Row], slot: i16) -> Result<Batch> {
    let ids = column::<Vec<u8>>(rows, 2)?;
    let numbers = (3..=9).map(|index| column::<i64>(rows, index)).collect::<Result<Vec<_>>>()?;
    let (mut tasks, mut versions, mut next_seqs, mut blocks, mut bytes) = (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (nth, id) in ids.iter().enumerate() {
        // The last row of a task says what it comes to.
        if ids.get(nth + 1) != Some(id) {
            let of = |index: usize| numbers[index][nth];
            tasks.push(id.clone());
            versions.push(of(2) + of(1) - 1);
            next_seqs.push(of(0) + of(1));
            blocks.push(of(5));
            bytes.push(of(6));
        }
    }
    let texts = column::<String>(rows, 10)?;
    let written = texts.iter().map(String::len).sum::<usize>();
    let usage = usage(&column::<String>(rows, 11)?, slot, 0, i64::try_from(written)?)?;
    let tasks: Vec<Param> = vec![Box::new(tasks), Box::new(versions), Box::new(next_seqs), Box::new(blocks), Box::new(bytes)];
    let mut chunks: Vec<Param> = vec![Box::new(ids)];
    for column in numbers {
        chunks.push(Box::new(column));
    }
    chunks.push(Box::new(texts));
    Ok(Batch { calls: vec![Some(tasks), Some(chunks), Some(usage)] })
}

/// Values for [`USAGE`]. All tasks of the load generator belong to one caller.
fn usage(callers: &[String], slot: i16, open: i64, bytes: i64) -> Result<Vec<Param>> {
    let caller = callers.first().context("a batch has rows")?.clone();
    Ok(vec![Box::new(caller), Box::new(slot), Box::new(open), Box::new(bytes)])
}

fn column<T: FromSqlOwned>(rows: &[Row], index: usize) -> Result<Vec<T>> {
    rows.iter().map(|row| Ok(row.try_get(index)?)).collect()
}

//! How the number of stored tasks changes what things cost: the same on stores with a thousand of them to a million.
//!
//! The tasks are copies of one that a node has made: it has ended, and has written something. They get ids of the last hour, and are put
//! into the tables by SQL, since it would take hours to call them all.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result};
use taskwire::core::{TaskId, Timestamp, id::ID_RANDOM_BYTES};

use super::{
    Bench,
    cluster::{Cluster, stored_ids},
    database::render,
    found::{Case, Found, What},
    writers::{self, Writers},
};
use crate::load::Op;

/// Tasks that one statement makes.
const PART: usize = 20_000;
/// Tasks that are read.
const READ_MAX: usize = 2_000;
/// Over which time the ids are spread.
const SPREAD: Duration = Duration::from_secs(3_600);

/// `$1` are the ids of copies, `$2` is that of the task; `$3` and `$4` are the same as texts. None of them is forgotten while this runs.
const COPIES: [&str; 4] = [
    "INSERT INTO @task(id, caller, ended, due, epoch, version, next_seq, blocks, output_bytes, stored_bytes, queued)
        SELECT n.id, t.caller, t.ended, t.due + 86400000, t.epoch, t.version, t.next_seq, t.blocks, t.output_bytes, t.stored_bytes, t.queued
        FROM UNNEST($1::bytea[]) AS n(id), @task AS t WHERE t.id = $2",
    "INSERT INTO @log(task, version, at, event)
        SELECT n.id, l.version, l.at, l.event FROM UNNEST($1::bytea[]) AS n(id), @log AS l WHERE l.task = $2",
    "INSERT INTO @chunk(task, seq, count, version, at, first_block, blocks_total, bytes_total, blocks)
        SELECT n.id, c.seq, c.count, c.version, c.at, c.first_block, c.blocks_total, c.bytes_total, c.blocks
        FROM UNNEST($1::bytea[]) AS n(id), @chunk AS c WHERE c.task = $2",
    "INSERT INTO @head(id, head)
        SELECT n.id, replace(h.head, $4, n.text) FROM UNNEST($1::bytea[], $3::text[]) AS n(id, text), @head AS h WHERE h.id = $2",
];

/// Each round: fresh stores, each number of tasks in turn.
pub async fn rounds(bench: &Bench, found: &mut Found) -> Result<()> {
    let plan = &bench.plan;
    for round in 0..plan.rounds {
        let mut sizes = plan.stored.clone();
        sizes.rotate_left(round % plan.stored.len());
        for stored in sizes {
            eprintln!("round {} of {}: one node with {stored} stored tasks", round + 1, plan.rounds);
            let result = among(bench, stored, found).await;
            found.note_failure(&format!("{stored} stored tasks"), result);
        }
    }
    Ok(())
}

async fn among(bench: &Bench, stored: usize, found: &mut Found) -> Result<()> {
    let (plan, dir) = (&bench.plan, bench.scratch.fresh()?);
    let mut maker = Cluster::start_in(bench, &dir, 1).await?;
    let writers = Writers::make(&maker, 1, 1).await?;
    writers.begin(&maker).await?;
    writers.end(bench, &maker).await?;
    maker.kill().await?;
    let task = writers.tasks.first().context("a task was made")?;
    let read = Arc::new(copy(bench, &maker.schema, task, stored).await?);

    let cluster = Cluster::start_in(bench, &dir, 1).await?;
    cluster.warm_up(bench).await?;
    let gets = cluster.everywhere(&Op::GetEnded(read.clone()));
    found.rate(Case::among(What::Get, stored), cluster.measure(bench, &gets, plan.growth_reads).await?.0);
    let pages = cluster.everywhere(&Op::Page(read));
    found.rate(Case::among(What::Page, stored), cluster.measure(bench, &pages, plan.growth_reads).await?.0);
    let (sample, _) = writers::measure(bench, &cluster, plan.writers, plan.growth_texts).await?;
    found.rate(Case::among(What::Append, stored), sample);
    // The last, because they are stored tasks, too.
    let creates = cluster.everywhere(&Op::Create("park"));
    found.rate(Case::among(What::Create, stored), cluster.measure(bench, &creates, plan.growth_creates.min(stored)).await?.0);
    cluster.stop(bench).await
}

/// Copies a task so many times. Returns some of the copies.
async fn copy(bench: &Bench, schema: &str, task: &str, count: usize) -> Result<Vec<String>> {
    let client = bench.database.connect().await?;
    client.batch_execute("SET synchronous_commit = off").await?;
    let mut statements = Vec::new();
    for text in COPIES {
        statements.push(client.prepare(&render(text, schema)).await?);
    }
    let [tasks, log, chunks, heads] = &statements[..] else { unreachable!("each text is one statement") };
    let id = stored_ids(&[task.to_owned()])?.swap_remove(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock is wrong")?;
    let (mut noise, mut some) = (Noise(0), Vec::new());
    let mut made = 0;
    while made < count {
        let until = count.min(made + PART);
        let copies: Vec<TaskId> = (made..until)
            .map(|nth| {
                let age = SPREAD.mul_f64((count - nth) as f64 / count as f64);
                let millis = i64::try_from(now.saturating_sub(age).as_millis()).unwrap_or(i64::MAX);
                TaskId::new(Timestamp::from_millis(millis), noise.bytes())
            })
            .collect();
        let ids: Vec<&[u8]> = copies.iter().map(|copy| &copy.as_bytes()[..]).collect();
        let texts: Vec<String> = copies.iter().map(TaskId::to_string).collect();
        for statement in [tasks, log, chunks] {
            client.execute(statement, &[&ids, &id]).await?;
        }
        client.execute(heads, &[&ids, &id, &texts, &task]).await?;
        some.extend(texts.into_iter().step_by(count.div_ceil(READ_MAX)));
        made = until;
    }
    // What would be done later, during the measures.
    bench.database.run(schema, "VACUUM (ANALYZE) @task, @head, @log, @chunk").await?;
    Ok(some)
}

/// Numbers that look random, and are the same each time.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn bytes(&mut self) -> [u8; ID_RANDOM_BYTES] {
        let mut bytes = [0; ID_RANDOM_BYTES];
        for part in bytes.chunks_mut(8) {
            let number = self.next().to_be_bytes();
            part.copy_from_slice(&number[..part.len()]);
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_copies_have_the_same_id() {
        let mut noise = Noise(0);
        let ids: std::collections::HashSet<_> = (0..1_000).map(|_| noise.bytes()).collect();
        assert_eq!(ids.len(), 1_000);
    }
}

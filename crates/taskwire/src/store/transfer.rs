//! Moves all that a store has: from a data directory to a database, or back.
//!
//! Rows are copied with the values that both stores have, a batch at a time, so nothing is decided anew and nothing is held in memory.
//! [`StoreMove::open`] makes sure that nobody uses either store; [`check`](StoreMove::check) reads all of the first one;
//! [`copy`](StoreMove::copy) fills the second one and reads that; [`finish`](StoreMove::finish) turns over. Until then the first store is
//! as it was, and the second one has a mark with which nobody serves it (`marker`). If the move is interrupted, the next one begins anew,
//! unless it was about to turn over: then both stores have the mark of the same move.

mod rows;
mod sqlite;

use std::{collections::BTreeSet, fmt::Write as _, mem, path::PathBuf, pin::pin, sync::Arc, time::Duration};

use futures_util::{StreamExt, future::try_join, stream};
use taskwire_core::{Epoch, Payload, SessionId, TaskId, task::Task};

use self::{rows::TaskCheck, sqlite::SqliteSide};
use super::{
    Error, ErrorKind, OpenCommand, OutboxItem, PostgresConfig,
    marker::{Marker, MoveState},
    postgres::PostgresSide,
};
use crate::clock::random_bytes;

pub use self::rows::Contents;
pub(super) use self::rows::{
    Batch, ChunkRow, EventRow, Meta, PAGE_BYTES, PAGE_ROWS, PAGE_TASKS, RowPage, SessionPage, SessionRow, TaskPage, TaskRow,
};

/// About how much is written at one time.
const BATCH_BYTES: usize = 4 * 1024 * 1024;
/// What a small row adds to that.
const ROW_BYTES: usize = 128;
/// Tasks whose logs are read at one time.
const READS: usize = 4;
/// Damaged tasks that are named at most.
const DAMAGED_MAX: usize = 10_000;

/// Where a store is, or is to be.
#[derive(Debug, Clone)]
pub enum Place {
    /// The data directory of a server.
    Directory(PathBuf),
    /// A schema of a database.
    Postgres(PostgresConfig),
}

/// What a move is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MoveStep {
    /// Reads all that there is.
    Check,
    /// Copies it.
    Copy,
    /// Reads the copy.
    Compare,
}

/// How far a move has come.
#[derive(Debug, Clone, Copy)]
pub struct MoveProgress {
    /// With which step.
    pub step: MoveStep,
    /// What was read in it so far.
    pub done: Contents,
    /// All that there is, if that is known.
    pub total: Option<Contents>,
}

/// What was found in a store.
#[derive(Debug, Clone, Default)]
pub struct Findings {
    /// How much it has, without what is damaged.
    pub contents: Contents,
    /// Damaged tasks, and what is wrong with each.
    pub damaged: Vec<(TaskId, String)>,
    /// How many sessions are damaged.
    pub damaged_sessions: u64,
    /// Commands that have not ended.
    pub open_commands: Vec<OpenCommand>,
    /// The latest epoch that a task names.
    pub last_epoch: Epoch,
}

impl Findings {
    /// Whether something cannot be moved.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        !self.damaged.is_empty() || self.damaged_sessions > 0
    }
}

/// Whoever looks on while a store is moved.
type Watcher<'a> = &'a mut dyn FnMut(MoveProgress);

/// A store, as a move reads and writes it.
pub(super) trait Side {
    /// What it is called, for people.
    fn name(&self) -> String;

    /// Why it is not served, if it has this mark.
    fn refusal(&self, marker: &Marker) -> Error;

    /// What it has besides its rows.
    async fn meta(&self) -> Result<Meta, Error>;

    /// Tasks after this one, in the order of their ids.
    async fn tasks(&self, after: Option<TaskId>) -> Result<TaskPage, Error>;

    /// Events of a task after this version.
    async fn events(&self, task: TaskId, after: u64) -> Result<RowPage<EventRow>, Error>;

    /// Rows of a task's output from this chunk on.
    async fn chunks(&self, task: TaskId, from: u64) -> Result<RowPage<ChunkRow>, Error>;

    /// Sessions after this one, in an order.
    async fn sessions(&self, after: Option<&SessionId>) -> Result<SessionPage, Error>;

    /// Items of a session's outbox after this position.
    async fn outbox(&self, session: &SessionId, after: u64) -> Result<RowPage<OutboxItem>, Error>;

    /// How long commands may still run whose servers are gone.
    async fn commands_end_in(&self) -> Result<Duration, Error>;

    /// Empties it and marks it, so that nobody serves it.
    async fn begin(&mut self, marker: &Marker) -> Result<(), Error>;

    /// Writes rows.
    async fn write(&mut self, batch: &Batch) -> Result<(), Error>;

    /// Writes what it has besides them, and makes all of it durable. Commands may go on for `orphan_after` without a server.
    async fn seal(&mut self, meta: &Meta, orphan_after: Duration) -> Result<(), Error>;

    /// Takes the mark of this move away.
    async fn complete(&mut self, id: &str) -> Result<(), Error>;

    /// Marks it as one whose tasks are elsewhere.
    async fn leave(&mut self, marker: &Marker) -> Result<(), Error>;
}

/// A store that is moved. Neither it nor the place where it is to be can be used meanwhile.
pub struct StoreMove(Direction);

enum Direction {
    ToDatabase(Moving<SqliteSide, PostgresSide>),
    ToDirectory(Moving<PostgresSide, SqliteSide>),
}

impl std::fmt::Debug for StoreMove {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreMove").finish_non_exhaustive()
    }
}

/// Does the same with a move in either direction.
macro_rules! either {
    ($self:expr, $moving:ident => $does:expr) => {
        match $self {
            Direction::ToDatabase($moving) => $does,
            Direction::ToDirectory($moving) => $does,
        }
    };
}

impl StoreMove {
    /// Looks at both stores. Nothing is changed.
    ///
    /// # Errors
    /// When one of them is in use, when there is nothing to be moved or no place for it, or when a store cannot be reached or read.
    pub async fn open(from: &Place, to: &Place) -> Result<Self, Error> {
        let direction = match (from, to) {
            (Place::Directory(from), Place::Postgres(to)) => {
                let from = SqliteSide::source(from)?;
                Direction::ToDatabase(Moving::new(from, PostgresSide::target(to.clone()).await)?)
            }
            (Place::Postgres(from), Place::Directory(to)) => {
                let from = PostgresSide::source(from.clone()).await?;
                Direction::ToDirectory(Moving::new(from, SqliteSide::target(to))?)
            }
            (Place::Directory(_), Place::Directory(_)) => {
                return Err(Error::Unusable("both are directories: stop the server, and move the directory itself (`mv`)".to_owned()));
            }
            (Place::Postgres(_), Place::Postgres(_)) => {
                return Err(Error::Unusable("both are databases: stop the nodes, and use `pg_dump` and `pg_restore`".to_owned()));
            }
        };
        Ok(Self(direction))
    }

    /// Whether an earlier move was interrupted when only [`finish`](Self::finish) was left to be done.
    #[must_use]
    pub fn is_copied(&self) -> bool {
        either!(&self.0, moving => moving.is_copied)
    }

    /// What both stores are called, without passwords.
    #[must_use]
    pub fn names(&self) -> (String, String) {
        either!(&self.0, moving => (moving.from.name(), moving.to.name()))
    }

    /// Reads all that there is.
    ///
    /// # Errors
    /// When it cannot be read. What is damaged is no error, but a finding.
    pub async fn check(&self, watcher: &mut dyn FnMut(MoveProgress)) -> Result<Findings, Error> {
        either!(&self.0, moving => moving.check(watcher).await)
    }

    /// Copies all that was found and is not damaged, and reads the copy. What the other place had is gone then. Commands may go on for
    /// `orphan_after` without a server.
    ///
    /// # Errors
    /// When a store fails, when another process begins to use one of them, or when the copy is not what was found.
    pub async fn copy(&mut self, found: &Findings, orphan_after: Duration, watcher: &mut dyn FnMut(MoveProgress)) -> Result<(), Error> {
        either!(&mut self.0, moving => moving.copy(found, orphan_after, watcher).await)
    }

    /// How long commands may still run whose servers are gone.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn commands_end_in(&self) -> Result<Duration, Error> {
        either!(&self.0, moving => moving.from.commands_end_in().await)
    }

    /// The last epoch of the store that is moved.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn epoch(&self) -> Result<Epoch, Error> {
        either!(&self.0, moving => Ok(moving.from.meta().await?.epoch))
    }

    /// Turns over: from then on the tasks are in the other place, and only there.
    ///
    /// # Errors
    /// When a store fails, or when another process has begun to use one of them. The same move can be made again.
    pub async fn finish(mut self) -> Result<(), Error> {
        self.leave().await?;
        self.complete().await
    }

    /// The first half of turning over: nobody serves the store any more that is moved.
    pub(super) async fn leave(&mut self) -> Result<(), Error> {
        either!(&mut self.0, moving => moving.leave().await)
    }

    /// The second half: the other one may be served.
    async fn complete(self) -> Result<(), Error> {
        either!(self.0, moving => moving.complete().await)
    }
}

/// A move from one store to another.
struct Moving<F, T> {
    from: F,
    to: T,
    /// The id in the marks of both.
    id: String,
    /// Whether the store has been left already.
    is_left: bool,
    /// Whether all is there, and was compared.
    is_copied: bool,
}

impl<F: Side, T: Side> Moving<F, T> {
    /// A move between stores that have these marks.
    fn new((from, left): (F, Option<Marker>), to: Result<(T, Option<Marker>), Error>) -> Result<Self, Error> {
        let (to, filled) = match (to, &left) {
            // Nothing is to be moved any more, whatever is there.
            (Err(error), Some(left)) if error.kind() != ErrorKind::Away => return Err(from.refusal(left)),
            (to, _) => to?,
        };
        let Some(left) = left else { return Ok(Self { from, to, id: new_id(), is_left: false, is_copied: false }) };
        // It was left only after all was there.
        let is_same = !left.id.is_empty() && filled.is_some_and(|filled| filled.id == left.id);
        if !is_same {
            return Err(from.refusal(&left));
        }
        Ok(Self { from, to, id: left.id, is_left: true, is_copied: true })
    }

    fn marker(&self, state: MoveState, other: String) -> Marker {
        Marker { state, id: self.id.clone(), other }
    }

    async fn check(&self, watcher: Watcher<'_>) -> Result<Findings, Error> {
        let nothing = BTreeSet::new();
        read(Reading::new(MoveStep::Check, None, &nothing, watcher), &self.from, None::<&mut T>).await
    }

    async fn copy(&mut self, found: &Findings, orphan_after: Duration, watcher: Watcher<'_>) -> Result<(), Error> {
        let marker = self.marker(MoveState::Moving, self.from.name());
        let Meta { secret, epoch } = self.from.meta().await?;
        self.to.begin(&marker).await?;
        let left_out: BTreeSet<TaskId> = found.damaged.iter().map(|(id, _)| *id).collect();
        let copying = Reading::new(MoveStep::Copy, Some(found.contents), &left_out, &mut *watcher);
        let copied = read(copying, &self.from, Some(&mut self.to)).await?;
        if copied.contents != found.contents {
            let name = self.from.name();
            return Err(Error::Unusable(format!("{name} was changed while it was moved: stop whoever uses it, and make the move again")));
        }
        let meta = Meta { secret, epoch: epoch.max(copied.last_epoch) };
        self.to.seal(&meta, orphan_after).await?;
        let nothing = BTreeSet::new();
        let comparing = Reading::new(MoveStep::Compare, Some(copied.contents), &nothing, watcher);
        let there = read(comparing, &self.to, None::<&mut F>).await?;
        let kept = self.to.meta().await?;
        if there.is_damaged() || there.contents != copied.contents || kept.secret != secret || kept.epoch < meta.epoch {
            let (name, difference) = (self.to.name(), difference(&copied.contents, &there));
            return Err(Error::Unusable(format!(
                "the copy in {name} is not what was read{difference}, so it is not used: make the move again; if that happens again, look \
                 for a failing disk"
            )));
        }
        self.is_copied = true;
        Ok(())
    }

    async fn leave(&mut self) -> Result<(), Error> {
        if !self.is_copied {
            return Err(Error::Unusable("nothing was copied yet".to_owned()));
        }
        if !self.is_left {
            let marker = self.marker(MoveState::Moved, self.to.name());
            self.from.leave(&marker).await?;
            self.is_left = true;
        }
        Ok(())
    }

    async fn complete(mut self) -> Result<(), Error> {
        self.to.complete(&self.id).await
    }
}

/// An id that no other move has.
fn new_id() -> String {
    let mut bytes = [0; 16];
    random_bytes(&mut bytes);
    bytes.iter().fold(String::with_capacity(32), |mut id, byte| {
        let _ = write!(id, "{byte:02x}");
        id
    })
}

/// How a copy differs from what was read, in a few words.
fn difference(read: &Contents, there: &Findings) -> String {
    let counts = |of: &Contents| [of.tasks, of.events, of.chunks, of.sessions, of.outbox_items];
    let names = ["tasks", "events", "chunks", "sessions", "items of outboxes"];
    let differ = names.into_iter().zip(counts(read)).zip(counts(&there.contents)).filter(|((_, read), there)| read != there);
    let differ: Vec<String> = differ.map(|((name, read), there)| format!("{there} {name} instead of {read}")).collect();
    match there.damaged.first() {
        Some((id, what)) => format!(" (task {id}: {what})"),
        None if differ.is_empty() => String::new(),
        None => format!(" ({})", differ.join(", ")),
    }
}

/// One look at all that a store has.
struct Reading<'a> {
    step: MoveStep,
    total: Option<Contents>,
    /// Tasks that are left out.
    left_out: &'a BTreeSet<TaskId>,
    watcher: Watcher<'a>,
    findings: Findings,
}

impl<'a> Reading<'a> {
    fn new(step: MoveStep, total: Option<Contents>, left_out: &'a BTreeSet<TaskId>, watcher: Watcher<'a>) -> Self {
        Self { step, total, left_out, watcher, findings: Findings::default() }
    }

    /// Counts a task, and tells whoever looks on.
    fn add_task(&mut self, task: &Task, contents: &Contents, checkpoint: Option<Payload>) {
        self.findings.contents.add(contents);
        let named = task.awaited_by().chain([task.epoch]).max().unwrap_or_default();
        self.findings.last_epoch = self.findings.last_epoch.max(named);
        if self.step == MoveStep::Check {
            self.findings.open_commands.extend(OpenCommand::of(task, checkpoint));
        }
        (self.watcher)(MoveProgress { step: self.step, done: self.findings.contents, total: self.total });
    }

    fn add_damaged(&mut self, id: TaskId, what: String) -> Result<(), Error> {
        if self.findings.damaged.len() >= DAMAGED_MAX {
            return Err(Error::Unusable(format!("more than {DAMAGED_MAX} tasks are damaged: put a copy of the store in its place")));
        }
        self.findings.damaged.push((id, what));
        Ok(())
    }
}

/// Rows on their way into a store, if they are to be written.
struct Filling<'a, T> {
    to: Option<&'a mut T>,
    batch: Batch,
}

impl<T: Side> Filling<'_, T> {
    /// Adds rows to what is written next.
    fn add(&mut self, bytes: usize, add: impl FnOnce(&mut Batch)) {
        if self.to.is_some() {
            add(&mut self.batch);
            self.batch.bytes += bytes + ROW_BYTES;
        }
    }

    /// Writes what was added, if it is at least so much.
    async fn flush(&mut self, least: usize) -> Result<(), Error> {
        if let Some(to) = &mut self.to
            && self.batch.bytes >= least.max(1)
        {
            to.write(&mem::take(&mut self.batch)).await?;
        }
        Ok(())
    }
}

/// Reads all that a store has, and writes it to another one, if there is one. What is damaged is a finding, but not where it is written.
async fn read<F: Side, T: Side>(mut reading: Reading<'_>, from: &F, to: Option<&mut T>) -> Result<Findings, Error> {
    let mut filling = Filling { to, batch: Batch::default() };
    let mut after = None;
    loop {
        let page = from.tasks(after).await?;
        let Some((last, _)) = page.last() else { break };
        after = Some(*last);
        let left_out = reading.left_out;
        let wanted = page.into_iter().filter(|(id, _)| !left_out.contains(id));
        let mut tasks = pin!(stream::iter(wanted.map(|(id, row)| begin_task(from, id, row))).buffered(READS));
        while let Some((id, begun)) = tasks.next().await {
            let task = match begun {
                Ok(begun) => read_task(from, begun, &mut filling).await,
                Err(error) => Err(error),
            };
            match task {
                Ok((task, contents, checkpoint)) => reading.add_task(&task, &contents, checkpoint),
                Err(Error::Corrupt { what, .. }) if filling.to.is_none() => reading.add_damaged(id, what)?,
                Err(error) => return Err(error),
            }
        }
    }
    read_sessions(&mut reading, from, &mut filling).await?;
    filling.flush(0).await?;
    Ok(reading.findings)
}

/// A task, with the beginning of its log.
struct BegunTask {
    row: TaskRow,
    events: RowPage<EventRow>,
    chunks: RowPage<ChunkRow>,
}

async fn begin_task<F: Side>(from: &F, id: TaskId, row: Result<TaskRow, String>) -> (TaskId, Result<BegunTask, Error>) {
    let begun = async {
        let row = row.map_err(|what| Error::corrupt_task(id, what))?;
        let (events, chunks) = try_join(from.events(id, 0), from.chunks(id, 0)).await?;
        Ok::<_, Error>(BegunTask { row, events, chunks })
    };
    (id, begun.await)
}

/// Reads the rest of a task. Gives how much it has, and its last checkpoint.
async fn read_task<F: Side, T: Side>(
    from: &F,
    begun: BegunTask,
    filling: &mut Filling<'_, T>,
) -> Result<(Arc<Task>, Contents, Option<Payload>), Error> {
    let BegunTask { row, mut events, mut chunks } = begun;
    let (task, mut check) = (row.task.clone(), TaskCheck::new(&row));
    let id = task.id;
    filling.add(row.head.len(), |batch| batch.tasks.push(row));
    loop {
        let next = events.rows.last().map(|last| last.version).filter(|_| events.more);
        for event in events.rows {
            check.event(&event)?;
            filling.add(event.event.len(), |batch| batch.events.push((id, event)));
        }
        filling.flush(BATCH_BYTES).await?;
        let Some(after) = next else { break };
        events = from.events(id, after).await?;
    }
    loop {
        let next = chunks.rows.last().map(|last| last.seq + last.count).filter(|_| chunks.more);
        for chunk in chunks.rows {
            check.chunk(&chunk)?;
            filling.add(chunk.blocks.len(), |batch| batch.chunks.push((id, chunk)));
        }
        filling.flush(BATCH_BYTES).await?;
        let Some(seq) = next else { break };
        chunks = from.chunks(id, seq).await?;
    }
    let (contents, checkpoint) = check.finish()?;
    Ok((task, contents, checkpoint))
}

async fn read_sessions<F: Side, T: Side>(reading: &mut Reading<'_>, from: &F, filling: &mut Filling<'_, T>) -> Result<(), Error> {
    let mut after: Option<SessionId> = None;
    loop {
        let page = from.sessions(after.as_ref()).await?;
        let Some((last, _)) = page.last() else { return Ok(()) };
        after = Some(last.clone());
        for (id, row) in page {
            let Ok(row) = row else {
                reading.findings.damaged_sessions += 1;
                continue;
            };
            reading.findings.contents.add_session(&row);
            filling.add(row.session.data.as_str().len(), |batch| batch.sessions.push(row));
            let mut position = 0;
            loop {
                let RowPage { rows, more, .. } = from.outbox(&id, position).await?;
                let next = rows.last().map(|last| last.position).filter(|_| more);
                for item in rows {
                    reading.findings.contents.add_outbox_item(&id, &item);
                    filling.add(0, |batch| batch.outbox.push((id.clone(), item)));
                }
                filling.flush(BATCH_BYTES).await?;
                let Some(after) = next else { break };
                position = after;
            }
        }
    }
}

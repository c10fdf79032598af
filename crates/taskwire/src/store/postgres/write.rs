//! The writer's side: a batch is one transaction of two round trips.
//!
//! The first one locks: the tasks in the order of their ids, then sessions, then keys of calls, so that nodes that want the same wait for
//! each other in one order. What is found decides which writes are carried out. The second one writes all of those, reads what became of
//! the others, and commits.
//!
//! If the answer to a commit is lost, the number of its transaction is kept: before anything else is done, the database has to say that
//! this transaction is over.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use deadpool_postgres::ClientWrapper;
use taskwire_core::{Payload, SessionId, TaskId, Version, task::Task};
use tokio::time::timeout;
use tokio_postgres::{Row, types::Type};

use super::{
    columns::{KeyColumns, kind_of, to_text},
    connection::{Call, Database, PLANNING, Param, Pipeline, Sql},
    error::{away, classify, describe, is_conflict, is_damage, is_refusal, is_without_partition},
    read::{TASKS, id_at, number_at, task_of},
    rows::{Rows, state_after},
    upkeep,
};
use crate::store::{CallKey, Error, Session, SessionChange, TaskWrite, Written};

/// How often a batch is done again that others were in the way of.
const TRIES_MAX: u32 = 5;
/// How many times longer than one statement each half of a batch may take.
const STATEMENTS: u32 = 3;

const TRANSACTION: Sql = Sql { text: "SELECT pg_current_xact_id()::text", types: &[] };
/// What became of a transaction. An error if there is none of this number yet, as after another server has taken over.
const STATUS: Sql = Sql { text: "SELECT pg_xact_status($1::text::xid8)", types: &[Type::TEXT] };
const LOCK_TASKS: Sql = Sql {
    text: "SELECT id, version, ended IS NULL, stored_bytes FROM @task WHERE id = ANY($1) ORDER BY id FOR UPDATE",
    types: &[Type::BYTEA_ARRAY],
};
const LOCK_SESSIONS: Sql =
    Sql { text: "SELECT id, outbox_end FROM @session WHERE id = ANY($1) ORDER BY id FOR UPDATE", types: &[Type::TEXT_ARRAY] };
/// Of two tasks of a batch with one key the first gets it. Waits for other transactions that are about to take a key.
const TAKE_KEYS: Sql = Sql {
    text: "INSERT INTO @call_key(caller, kind, key, task)
        SELECT n.caller, n.kind, n.key, n.task FROM UNNEST($1, $2, $3, $4) WITH ORDINALITY AS n(caller, kind, key, task, nth)
        ORDER BY n.caller COLLATE \"C\", n.kind, n.key COLLATE \"C\", n.nth
        ON CONFLICT (caller, kind, key) DO NOTHING RETURNING kind, task",
    types: &[Type::TEXT_ARRAY, Type::INT2_ARRAY, Type::TEXT_ARRAY, Type::BYTEA_ARRAY],
};
/// Who has keys that others wanted, and which of those it was.
const KEY_HOLDERS: Sql = Sql {
    text: "SELECT n.wanted_by, k.task FROM UNNEST($1, $2, $3, $4) AS n(caller, kind, key, wanted_by)
        JOIN @call_key AS k ON k.caller = n.caller AND k.kind = n.kind AND k.key = n.key
        WHERE EXISTS (SELECT 1 FROM @task AS t WHERE t.id = k.task) ORDER BY n.kind",
    types: &[Type::TEXT_ARRAY, Type::INT2_ARRAY, Type::TEXT_ARRAY, Type::BYTEA_ARRAY],
};
/// A key whose task is gone is free: somebody has removed its row by hand.
const FREE_KEYS: Sql = Sql {
    text: "DELETE FROM @call_key AS k USING UNNEST($1, $2, $3, $4) AS n(caller, kind, key, wanted_by)
        WHERE k.caller = n.caller AND k.kind = n.kind AND k.key = n.key AND NOT EXISTS (SELECT 1 FROM @task AS t WHERE t.id = k.task)",
    types: &[Type::TEXT_ARRAY, Type::INT2_ARRAY, Type::TEXT_ARRAY, Type::BYTEA_ARRAY],
};
const BEGIN_SESSION: Sql = Sql {
    text: "INSERT INTO @session(id, caller, last_used, data) VALUES($1, $2, $3, $4) ON CONFLICT (id) DO UPDATE
        SET caller = excluded.caller, last_used = excluded.last_used, data = excluded.data",
    types: &[Type::TEXT, Type::TEXT, Type::INT8, Type::TEXT],
};
const UPDATE_SESSION: Sql = Sql {
    text: "UPDATE @session SET caller = $2, last_used = greatest(last_used, $3), data = $4 WHERE id = $1 AND ($5 IS NULL OR data = $5)",
    types: &[Type::TEXT, Type::TEXT, Type::INT8, Type::TEXT, Type::TEXT],
};
const END_SESSION: Sql =
    Sql { text: "WITH items AS (DELETE FROM @outbox WHERE session = $1) DELETE FROM @session WHERE id = $1", types: &[Type::TEXT] };

/// Changes nothing, but is written to the log of the database: a commit that writes nothing does not wait for a standby.
const TOUCH: Sql = Sql { text: "SELECT 1 FROM @meta WHERE key = 'format' FOR KEY SHARE", types: &[] };

/// What a task was when it was locked.
#[derive(Clone, Copy)]
struct Found {
    version: u64,
    is_open: bool,
    stored_bytes: i64,
}

/// What the first half of a batch found, and got.
struct Locked {
    transaction: String,
    tasks: HashMap<TaskId, Found>,
    /// Where the outboxes of sessions end.
    outbox_ends: HashMap<String, u64>,
    /// Kinds of keys that were free, with the tasks that got them.
    keys: HashSet<(i16, TaskId)>,
}

/// What is done with a write.
enum Verdict {
    Done,
    Conflict,
    KeyTaken,
}

/// Why a batch was not carried out.
enum Failed {
    /// Something was in the way: it may succeed if it is done again.
    Blocked(tokio_postgres::Error),
    Error(Error),
}

impl From<tokio_postgres::Error> for Failed {
    fn from(error: tokio_postgres::Error) -> Self {
        if is_conflict(&error) || is_without_partition(&error) {
            return Self::Blocked(error);
        }
        // One of the writes met it, and all are undone: whoever tries them one by one finds out which.
        let is_damage = is_damage(&error);
        Self::Error(if is_damage { Error::corrupt("a task that is written to", describe(&error)) } else { classify(error) })
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

/// The connection that writes.
pub(super) struct Writer {
    database: Arc<Database>,
    /// None before the first batch, and after one that failed: a connection that may have a transaction is never used again.
    connection: Option<ClientWrapper>,
    /// A transaction that may have been committed.
    in_doubt: Option<String>,
    begin: String,
    /// Which rows of the usage of callers this node changes.
    slot: i16,
}

impl Writer {
    pub(super) fn new(database: Arc<Database>, slot: i16, commits_loosely: bool) -> Self {
        let millis = database.config.statement_timeout.as_millis();
        // Nothing here waits for longer than a lease lasts, so that a node that is stopped does not hold up the others. Each statement is
        // planned once, not anew for each number of rows.
        let begin = format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL statement_timeout = {millis}; SET LOCAL lock_timeout = 5000; \
             SET LOCAL idle_in_transaction_session_timeout = 5000; SET LOCAL plan_cache_mode = force_generic_plan; {}{}",
            PLANNING.map(|setting| format!("SET LOCAL {setting}")).join("; "),
            if commits_loosely { "; SET LOCAL synchronous_commit = on" } else { "" }
        );
        Self { database, connection: None, in_doubt: None, begin, slot }
    }

    /// Waits until it is certain what became of the last transaction, and that it stays so.
    pub(super) async fn settle(&mut self) -> Result<(), Error> {
        let Some(transaction) = self.in_doubt.clone() else { return Ok(()) };
        let status = match self.database.run(&STATUS, &[&transaction]).await {
            Ok(rows) => rows.first().and_then(|row| row.try_get::<_, Option<String>>(0).ok().flatten()),
            // Another server has taken over, which never saw it.
            Err(Error::Postgres(error)) if error.is_bad_value() => None,
            Err(error) => return Err(error),
        };
        // A number that is too old to be known is over, too.
        if status.as_deref() == Some("in progress") {
            return Err(away("the database is still busy with the last commit"));
        }
        // A server that was started anew has it, and perhaps no standby. Whoever has a later commit has this one, too. If that one is in
        // doubt, it is the one to ask for.
        if let Err(failed) = self.try_commit(&[], &[]).await {
            self.in_doubt.get_or_insert(transaction);
            return Err(match failed {
                Failed::Blocked(error) => away(describe(&error)),
                Failed::Error(Error::Away { reason, .. }) => away(reason),
                Failed::Error(error) => error,
            });
        }
        let status = status.as_deref().unwrap_or("unknown");
        tracing::info!(transaction, status, "what became of a commit is known");
        self.in_doubt = None;
        Ok(())
    }

    /// See [`Store::commit`](crate::store::Store::commit).
    pub(super) async fn commit(&mut self, writes: &[TaskWrite], sessions: &[SessionChange]) -> Result<Vec<Written>, Error> {
        self.settle().await?;
        let mut obstacle = String::new();
        for _ in 0..TRIES_MAX {
            match self.try_commit(writes, sessions).await {
                Ok(written) => return Ok(written),
                Err(Failed::Blocked(error)) => {
                    obstacle = describe(&error);
                    self.database.note(&error);
                    if is_without_partition(&error) {
                        upkeep::make_for(&self.database, writes.iter().map(|write| write.task.id)).await?;
                    }
                }
                Err(Failed::Error(error)) => return Err(error),
            }
        }
        Err(away(format_args!("other transactions were in the way each time: {obstacle}")))
    }

    async fn try_commit(&mut self, writes: &[TaskWrite], sessions: &[SessionChange]) -> Result<Vec<Written>, Failed> {
        // If anything fails below, it is not put back.
        let connection = match self.connection.take().filter(|connection| !connection.is_closed()) {
            Some(connection) => connection,
            None => self.database.connect().await?,
        };
        let limit = self.database.config.statement_timeout * STATEMENTS;
        let locked = timeout(limit, lock(&self.database, &connection, &self.begin, writes, sessions)).await;
        let mut locked = locked.map_err(|_| away("the database took too long to begin a commit"))??;
        let (verdicts, rows) = decide(writes, &mut locked)?;
        let mut calls = rows.into_calls(self.slot)?;
        let wanted = wanted_keys(writes, &verdicts, &locked);
        let holders = calls.len();
        calls.extend(wanted.clone().into_call(&KEY_HOLDERS));
        calls.extend(wanted.into_call(&FREE_KEYS));
        let conflicts = calls.len();
        let ids = ids_of(writes, &verdicts);
        calls.extend((!ids.is_empty()).then(|| Call::new(&TASKS, vec![Box::new(ids)])));
        let changes = calls.len();
        calls.extend(sessions.iter().map(session_call));
        if calls.is_empty() {
            calls.push(Call::new(&TOUCH, vec![]));
        }
        let answers = self.write(&connection, &calls, locked.transaction).await?;
        self.connection = Some(connection);
        let of = |from: usize, to: usize| answers.get(from).filter(|_| from < to).map(Vec::as_slice).unwrap_or_default();
        Ok(written(writes, &verdicts, of(conflicts, changes), of(holders, conflicts)))
    }

    /// The second half: writes and commits. The answers are those to `calls`.
    async fn write(&mut self, connection: &ClientWrapper, calls: &[Call<'_>], transaction: String) -> Result<Vec<Vec<Row>>, Failed> {
        let prepared = self.database.prepare(connection, calls).await?;
        let mut pipeline = Pipeline::new();
        pipeline.calls(connection, calls, &prepared);
        // If one of these could not even be sent, the commit must not be.
        pipeline.send().await?;
        pipeline.command(connection, "COMMIT");
        self.in_doubt = Some(transaction);
        let answered = timeout(self.database.config.statement_timeout * STATEMENTS, pipeline.finish()).await;
        let reason = match answered {
            Ok(Ok(answers)) => {
                self.in_doubt = None;
                return Ok(answers);
            }
            // The server has refused a statement, so all of it, or the commit itself.
            Ok(Err(error)) if is_refusal(&error) => {
                self.in_doubt = None;
                return Err(error.into());
            }
            Ok(Err(error)) => describe(&error),
            Err(_) => "the database took too long to commit".to_owned(),
        };
        Err(Failed::Error(Error::Away { in_doubt: true, reason }))
    }
}

/// The first half: begins a transaction and locks.
async fn lock(
    database: &Database,
    connection: &ClientWrapper,
    begin: &str,
    writes: &[TaskWrite],
    sessions: &[SessionChange],
) -> Result<Locked, Failed> {
    let ids: Vec<&[u8]> = writes.iter().map(|write| &write.task.id.as_bytes()[..]).collect();
    let outboxes = writes.iter().filter_map(|write| Some(write.outbox_item()?.0));
    let changed = sessions.iter().map(|change| match change {
        SessionChange::Begin(session) | SessionChange::Update { session, .. } => &session.id,
        SessionChange::End(id) => id,
    });
    let named: BTreeSet<&str> = outboxes.chain(changed).map(SessionId::as_str).collect();
    let mut keys = KeyColumns::default();
    for write in writes.iter().filter(|write| write.first_version == Version(1)) {
        CallKey::of(&write.task.spec).for_each(|key| keys.push(key, &write.task.id));
    }
    let mut calls = vec![Call::new(&TRANSACTION, vec![]), Call::new(&LOCK_TASKS, vec![Box::new(ids)])];
    let locks_sessions = !named.is_empty();
    if locks_sessions {
        calls.push(Call::new(&LOCK_SESSIONS, vec![Box::new(named.into_iter().map(to_text).collect::<Vec<_>>())]));
    }
    let (sessions_at, keys_at) = (if locks_sessions { 3 } else { usize::MAX }, 3 + usize::from(locks_sessions));
    calls.extend(keys.into_call(&TAKE_KEYS));
    let answers = async {
        let prepared = database.prepare(connection, &calls).await?;
        let mut pipeline = Pipeline::new();
        pipeline.command(connection, begin);
        pipeline.calls(connection, &calls, &prepared);
        pipeline.send().await?;
        pipeline.finish().await
    };
    let answers = answers.await?;
    // The first answer is that to `BEGIN`.
    let rows = |nth: usize| answers.get(nth).into_iter().flatten();
    let transaction = rows(1).next().map(|row| row.try_get(0)).transpose()?.unwrap_or_default();
    let mut locked = Locked { transaction, tasks: HashMap::new(), outbox_ends: HashMap::new(), keys: HashSet::new() };
    for row in rows(2) {
        let Some(id) = id_at(row, 0)? else { continue };
        let version = number_at(row, 1).map_err(|what| Error::corrupt_task(id, what))?;
        locked.tasks.insert(id, Found { version, is_open: row.try_get(2)?, stored_bytes: row.try_get(3)? });
    }
    for row in rows(sessions_at) {
        let end = number_at(row, 1).map_err(|what| Error::corrupt("the outbox of a session", what))?;
        locked.outbox_ends.insert(row.try_get(0)?, end);
    }
    for row in rows(keys_at) {
        if let Some(id) = id_at(row, 1)? {
            locked.keys.insert((row.try_get(0)?, id));
        }
    }
    Ok(locked)
}

/// Decides which writes are carried out, and what that writes.
fn decide<'a>(writes: &'a [TaskWrite], locked: &mut Locked) -> Result<(Vec<Verdict>, Rows<'a>), Error> {
    let (mut verdicts, mut rows) = (Vec::with_capacity(writes.len()), Rows::new());
    for write in writes {
        let id = &write.task.id;
        let found = locked.tasks.get(id).copied();
        let is_at_version = found.map_or(0, |found| found.version) + 1 == write.first_version.0;
        let is_new = write.first_version == Version(1);
        let lacks_key = is_new && CallKey::of(&write.task.spec).any(|key| !locked.keys.contains(&(kind_of(key), *id)));
        if !is_at_version || lacks_key {
            // Keys that it has got all the same are free again, unless an earlier write of this batch has made the task.
            let has_got = is_new && !rows.creates(id);
            let got = CallKey::of(&write.task.spec).filter(|key| has_got && locked.keys.contains(&(kind_of(*key), *id)));
            got.for_each(|key| rows.release(key, id));
            verdicts.push(if is_at_version { Verdict::KeyTaken } else { Verdict::Conflict });
            continue;
        }
        let was = found.map_or((false, 0), |found| (found.is_open, found.stored_bytes));
        let session = write.outbox_item().map(|(session, _)| to_text(session.as_str()));
        rows.add(write, was, session.and_then(|session| locked.outbox_ends.get_mut(&*session)))?;
        match state_after(write) {
            Some((is_open, stored_bytes)) => {
                locked.tasks.insert(*id, Found { version: write.task.version.0, is_open, stored_bytes });
            }
            None => drop(locked.tasks.remove(id)),
        }
        verdicts.push(Verdict::Done);
    }
    Ok((verdicts, rows))
}

/// The keys that writes lack, with the tasks that want them.
fn wanted_keys<'a>(writes: &'a [TaskWrite], verdicts: &[Verdict], locked: &Locked) -> KeyColumns<'a> {
    let mut wanted = KeyColumns::default();
    for (write, _) in writes.iter().zip(verdicts).filter(|(_, verdict)| matches!(verdict, Verdict::KeyTaken)) {
        let id = &write.task.id;
        CallKey::of(&write.task.spec).filter(|key| !locked.keys.contains(&(kind_of(*key), *id))).for_each(|key| wanted.push(key, id));
    }
    wanted
}

/// The tasks that are not at the version that their writes were decided on.
fn ids_of<'a>(writes: &'a [TaskWrite], verdicts: &[Verdict]) -> Vec<&'a [u8]> {
    let refused = writes.iter().zip(verdicts).filter(|(_, verdict)| matches!(verdict, Verdict::Conflict));
    refused.map(|(write, _)| &write.task.id.as_bytes()[..]).collect()
}

fn session_params(session: &Session) -> Vec<Param<'_>> {
    vec![
        Box::new(to_text(session.id.as_str())),
        Box::new(to_text(session.caller.as_str())),
        Box::new(session.last_used.as_millis()),
        Box::new(session.data.as_str()),
    ]
}

fn session_call(change: &SessionChange) -> Call<'_> {
    match change {
        SessionChange::Begin(session) => Call::new(&BEGIN_SESSION, session_params(session)),
        SessionChange::Update { session, before } => {
            let mut params = session_params(session);
            params.push(Box::new(before.as_ref().map(Payload::as_str)));
            Call::new(&UPDATE_SESSION, params)
        }
        SessionChange::End(id) => Call::new(&END_SESSION, vec![Box::new(to_text(id.as_str()))]),
    }
}

/// What became of each write, by what was read of tasks that are at another version, and of those that have keys.
fn written(writes: &[TaskWrite], verdicts: &[Verdict], conflicts: &[Row], holders: &[Row]) -> Vec<Written> {
    // Whoever decides again reads a damaged task, and learns that it is.
    let mut tasks: HashMap<TaskId, Task> = conflicts.iter().filter_map(|row| task_of(row).ok()).map(|task| (task.id, task)).collect();
    let holder = |id: TaskId| {
        let of = |row: &&Row| id_at(row, 0).is_ok_and(|wanted_by| wanted_by == Some(id));
        holders.iter().find(of).and_then(|row| id_at(row, 1).ok().flatten())
    };
    let of = |(write, verdict): (&TaskWrite, &Verdict)| match verdict {
        Verdict::Done => Written::Done,
        Verdict::Conflict => Written::Conflict(tasks.remove(&write.task.id).map(Box::new)),
        // If nobody has the key any more, it is decided again.
        Verdict::KeyTaken => holder(write.task.id).map_or(Written::Conflict(None), Written::KeyTaken),
    };
    writes.iter().zip(verdicts).map(of).collect()
}

//! A data directory, as a move reads and fills it.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rusqlite::{Connection, Row, params};
use taskwire_core::{
    CallerId, Epoch, Payload, Seq, SessionId, TaskId, Timestamp, Version,
    task::{Task, wants},
};

use super::{
    Batch, ChunkRow, EventRow, Meta, PAGE_BYTES, PAGE_ROWS, PAGE_TASKS, RowPage, SessionPage, SessionRow, Side, TaskPage, TaskRow,
};
use crate::{
    owned_files,
    store::{
        Error, OutboxItem, Session,
        busy::begin_transaction,
        checksum,
        data_dir::{self, DirLock, EPOCH, MOVED, MOVING, file_error, sync},
        files::{DB, SHM, WAL},
        marker::{Marker, MoveState},
        sqlite::{FORMAT, connect, migrate},
        sqlite_read::{ChunkRowHeader, checksum_fits, id_of, read_output_end, text},
        wal::{self, END_FILE, PreviousWalEnd},
    },
};

/// The files of a store.
const FILES: [&str; 5] = [DB, WAL, SHM, "tasks.db-journal", END_FILE];

/// A data directory that this process alone uses.
pub(super) struct SqliteSide {
    /// As its user calls it.
    shown: PathBuf,
    /// None as long as it is not there.
    open: Option<OpenDir>,
}

struct OpenDir {
    path: PathBuf,
    /// None if nothing was read or written yet, and after the end.
    connection: Option<Connection>,
    // The last, so that nobody else has the directory before the database is closed.
    _lock: DirLock,
}

impl OpenDir {
    fn db(&self) -> PathBuf {
        self.path.join(DB)
    }

    /// Closes the database: all is in one file then.
    fn close(&mut self) -> Result<(), Error> {
        self.connection.take().map_or(Ok(()), |connection| connection.close().map_err(|(_, error)| error.into()))
    }
}

impl SqliteSide {
    /// The store in a directory, and the mark that it has if its tasks were moved elsewhere.
    pub(super) fn source(shown: &Path) -> Result<(Self, Option<Marker>), Error> {
        if !shown.join(DB).exists() {
            let dir = shown.display();
            return Err(Error::Unusable(format!("there are no tasks in {dir}: name the directory that a server has as its `data`")));
        }
        let (path, lock, _) = data_dir::open(shown)?;
        let marker = data_dir::marker(&path)?;
        if let Some(marker) = marker.as_ref().filter(|marker| marker.state == MoveState::Moving) {
            return Err(marker.in_directory(shown));
        }
        let (db, last) = (path.join(DB), PreviousWalEnd::look(&path));
        let connection = connect(&db)?;
        check_format(&connection, shown)?;
        if let Some(last) = &last {
            last.report(wal::frames(&connection, &db)?, shown);
        }
        connection.pragma_update(None, "query_only", "on")?;
        let open = OpenDir { path, connection: Some(connection), _lock: lock };
        Ok((Self { shown: shown.to_owned(), open: Some(open) }, marker))
    }

    /// A place for a store, and the mark that it has if an earlier move was interrupted.
    pub(super) fn target(shown: &Path) -> Result<(Self, Option<Marker>), Error> {
        // A directory that is not there is made later.
        let (open, marker) = if shown.exists() { open_empty(shown).map(|(open, marker)| (Some(open), marker))? } else { (None, None) };
        Ok((Self { shown: shown.to_owned(), open }, marker))
    }

    fn opened(&mut self) -> Result<&mut OpenDir, Error> {
        self.open.as_mut().ok_or_else(|| closed(&self.shown))
    }

    fn connection(&self) -> Result<&Connection, Error> {
        self.open.as_ref().and_then(|open| open.connection.as_ref()).ok_or_else(|| closed(&self.shown))
    }
}

fn closed(shown: &Path) -> Error {
    Error::Unusable(format!("the store in {} is closed", shown.display()))
}

/// Opens a directory that has no tasks, making it if there is none.
fn open_empty(shown: &Path) -> Result<(OpenDir, Option<Marker>), Error> {
    let (path, lock, _) = data_dir::open(shown)?;
    if path.join(EPOCH).exists() {
        return Err(Error::OfNode { path: shown.display().to_string() });
    }
    let (dir, marker) = (shown.display(), data_dir::marker(&path)?);
    if let Some(Marker { state: MoveState::Moved, other, .. }) = &marker {
        return Err(Error::Unusable(format!(
            "{dir} has the tasks that were moved to {other}, as they were then: choose another directory, or remove `tasks.db*` and \
             `{MOVED}` in it"
        )));
    }
    if marker.is_none() && has_tasks(&path.join(DB), shown)? {
        return Err(Error::Unusable(format!("{dir} has tasks already: choose a directory that has none, or one that is not there")));
    }
    Ok((OpenDir { path, connection: None, _lock: lock }, marker))
}

/// Refuses a database of another format than that of this release.
fn check_format(connection: &Connection, shown: &Path) -> Result<(), Error> {
    let found: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    if found > FORMAT {
        return Err(Error::TooNew { path: shown.display().to_string(), found, known: FORMAT });
    }
    if found < FORMAT {
        return Err(Error::Unusable(format!(
            "the store in {} has the older format {found}: start and stop a server of this release there, then move it",
            shown.display()
        )));
    }
    Ok(())
}

/// Whether a database is there and has tasks.
fn has_tasks(db: &Path, shown: &Path) -> Result<bool, Error> {
    // One that was never written to has none.
    if fs::metadata(db).map_or(0, |found| found.len()) == 0 {
        return Ok(false);
    }
    let connection = connect(db)?;
    check_format(&connection, shown)?;
    Ok(connection.query_row("SELECT EXISTS(SELECT 1 FROM task)", [], |row| row.get(0))?)
}

/// Makes a small file last, whole or not at all.
fn put_file(dir: &Path, name: &str, text: &str) -> Result<(), Error> {
    let (path, new) = (dir.join(name), dir.join(format!("{name}.new")));
    let written = owned_files::open(OpenOptions::new().write(true).create(true).truncate(true), &new).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    let put = written.and_then(|()| fs::rename(&new, &path)).and_then(|()| sync(dir));
    put.map_err(|source| file_error(&path, source))
}

/// Removes a file, if it is there.
fn remove_file(dir: &Path, name: &str) -> Result<(), Error> {
    let path = dir.join(name);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(file_error(&path, error)),
        _ => Ok(()),
    }
}

/// What is wrong with a row, if that is all: any other error is one of the database.
fn or_damage<T>(read: Result<T, Error>, of: impl std::fmt::Display) -> Result<Result<T, String>, Error> {
    match read.map_err(|error| error.or_corrupt(of)) {
        Ok(row) => Ok(Ok(row)),
        Err(Error::Corrupt { what, .. }) => Ok(Err(what)),
        Err(error) => Err(error),
    }
}

/// A row of `id`, `caller`, `open`, `due`, `head`, `checksum` and `bytes`.
fn task_row(connection: &Connection, row: &Row<'_>, id: TaskId) -> Result<TaskRow, Error> {
    let (caller, head) = (text(row, 1)?, text(row, 4)?);
    if !checksum_fits(row, 5, checksum::of_task(id, caller, row.get(2)?, row.get(3)?, head))? {
        return Err(Error::corrupt_task(id, "its head does not fit its checksum"));
    }
    let mut task: Task = serde_json::from_str(head).map_err(|error| Error::corrupt_task(id, error))?;
    if task.id != id {
        return Err(Error::corrupt_task(id, "its head is another task's"));
    }
    if let Some(end) = read_output_end(connection, id)? {
        task.restore_output(end.output, end.version);
    }
    // As everywhere: a number that is damaged is none.
    let stored_bytes = row.get::<_, i64>(6).ok().and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(0);
    Ok(TaskRow { head: head.to_owned(), task: Arc::new(task), stored_bytes })
}

/// A row of `version`, `at`, `event` and `checksum`.
fn event_row(row: &Row<'_>, id: TaskId) -> Result<EventRow, Error> {
    let (version, at, event) = (row.get::<_, u64>(0)?, row.get(1)?, text(row, 2)?);
    if !checksum_fits(row, 3, checksum::of_event(id, version.cast_signed(), at, event))? {
        return Err(Error::corrupt_task(id, format_args!("event {version} does not fit its checksum")));
    }
    Ok(EventRow { version, at, event: event.to_owned() })
}

/// A row of a [`ChunkRowHeader`] and `blocks`.
fn chunk_row(row: &Row<'_>, id: TaskId) -> Result<ChunkRow, Error> {
    let ChunkRowHeader { seq, count, version, at, first_block, blocks_total, bytes_total, text_checksum } = ChunkRowHeader::read(row, id)?;
    let blocks = text(row, 9)?;
    if text_checksum.is_some_and(|stored| stored != checksum::of_text(blocks)) {
        return Err(Error::corrupt_task(id, format_args!("its output from chunk {seq} on is not what was written")));
    }
    Ok(ChunkRow { seq, count, version, at, first_block, blocks_total, bytes_total, blocks: blocks.to_owned() })
}

/// A row of `id`, `caller`, `last_used`, `data`, `checksum` and the end of its outbox.
fn session_row(row: &Row<'_>, id: &SessionId) -> Result<SessionRow, Error> {
    let (caller, last_used, data) = (text(row, 1)?, row.get(2)?, text(row, 3)?);
    let damaged = |what: &dyn std::fmt::Display| Error::corrupt("a session", what);
    if !checksum_fits(row, 4, checksum::of_session(id.as_str(), caller, last_used, data))? {
        return Err(damaged(&"it does not fit its checksum"));
    }
    let data = serde_json::from_str::<Payload>(data).map_err(|error| damaged(&error))?;
    let session = Session { id: id.clone(), caller: CallerId::new(caller), last_used: Timestamp::from_millis(last_used), data };
    Ok(SessionRow { session, outbox_end: row.get(5)? })
}

impl Side for SqliteSide {
    fn name(&self) -> String {
        format!("the directory {}", std::path::absolute(&self.shown).unwrap_or_else(|_| self.shown.clone()).display())
    }

    fn refusal(&self, marker: &Marker) -> Error {
        marker.in_directory(&self.shown)
    }

    async fn meta(&self) -> Result<Meta, Error> {
        let connection = self.connection()?;
        let secret = connection.query_row("SELECT value FROM meta WHERE key = 'secret'", [], |row| row.get(0))?;
        let epoch = connection.query_row("SELECT value FROM meta WHERE key = 'epoch'", [], |row| row.get(0))?;
        Ok(Meta { secret, epoch: Epoch(epoch) })
    }

    async fn tasks(&self, after: Option<TaskId>) -> Result<TaskPage, Error> {
        let connection = self.connection()?;
        let sql = "SELECT id, caller, open, due, head, checksum, bytes FROM task WHERE id > ? ORDER BY id LIMIT ?";
        let mut statement = connection.prepare_cached(sql)?;
        let after = after.as_ref().map_or(&[][..], |id| &id.as_bytes()[..]);
        let mut rows = statement.query(params![after, PAGE_TASKS])?;
        let (mut page, mut bytes) = (TaskPage::new(), 0);
        while let Some(row) = rows.next()? {
            let id = id_of(row)?.ok_or_else(|| Error::corrupt("a task", "its id does not have 20 bytes"))?;
            let read = or_damage(task_row(connection, row, id), format_args!("task {id}"))?;
            bytes += read.as_ref().map_or(0, |row| row.head.len());
            page.push((id, read));
            if bytes >= PAGE_BYTES {
                break;
            }
        }
        Ok(page)
    }

    async fn events(&self, task: TaskId, after: u64) -> Result<RowPage<EventRow>, Error> {
        let read = || -> Result<RowPage<EventRow>, Error> {
            let sql = "SELECT version, at, event, checksum FROM log WHERE task = ? AND version > ? ORDER BY version";
            let mut statement = self.connection()?.prepare_cached(sql)?;
            let mut rows = statement.query(params![&task.as_bytes()[..], after])?;
            let mut page = RowPage::new();
            while let Some(row) = rows.next()? {
                if page.is_full() {
                    page.more = true;
                    break;
                }
                let row = event_row(row, task)?;
                let bytes = row.event.len();
                page.push(row, bytes);
            }
            Ok(page)
        };
        read().map_err(|error| error.or_corrupt(format_args!("task {task}")))
    }

    async fn chunks(&self, task: TaskId, from: u64) -> Result<RowPage<ChunkRow>, Error> {
        let read = || -> Result<RowPage<ChunkRow>, Error> {
            let sql = "SELECT seq, count, version, at, first_block, blocks_total, bytes_total, text_checksum, checksum, blocks FROM chunk
                WHERE task = ? AND seq >= ? ORDER BY seq";
            let mut statement = self.connection()?.prepare_cached(sql)?;
            let mut rows = statement.query(params![&task.as_bytes()[..], from])?;
            let mut page = RowPage::new();
            while let Some(row) = rows.next()? {
                if page.is_full() {
                    page.more = true;
                    break;
                }
                let row = chunk_row(row, task)?;
                let bytes = row.blocks.len();
                page.push(row, bytes);
            }
            Ok(page)
        };
        read().map_err(|error| error.or_corrupt(format_args!("task {task}")))
    }

    async fn sessions(&self, after: Option<&SessionId>) -> Result<SessionPage, Error> {
        let sql = "SELECT s.id, s.caller, s.last_used, s.data, s.checksum,
                (SELECT ifnull(max(o.position), 0) FROM outbox AS o WHERE o.session = s.id)
            FROM session AS s WHERE s.id > ? ORDER BY s.id LIMIT ?";
        let mut statement = self.connection()?.prepare_cached(sql)?;
        let mut rows = statement.query(params![after.map_or("", SessionId::as_str), PAGE_ROWS])?;
        let mut page = SessionPage::new();
        while let Some(row) = rows.next()? {
            let id = SessionId::new(text(row, 0)?);
            let read = or_damage(session_row(row, &id), "a session")?;
            page.push((id, read));
        }
        Ok(page)
    }

    async fn outbox(&self, session: &SessionId, after: u64) -> Result<RowPage<OutboxItem>, Error> {
        let sql = "SELECT task, position, first_version, last_version, first_seq, end_seq FROM outbox
            WHERE session = ? AND position > ? ORDER BY position";
        let mut statement = self.connection()?.prepare_cached(sql)?;
        let mut rows = statement.query(params![session.as_str(), after])?;
        let mut page = RowPage::new();
        while let Some(row) = rows.next()? {
            if page.is_full() {
                page.more = true;
                break;
            }
            // As for readers: what leads to no task is not sent.
            let Some(task) = id_of(row)? else { continue };
            let (first_version, last_version) = (Version(row.get(2)?), Version(row.get(3)?));
            let (first_seq, end_seq) = (Seq(row.get(4)?), Seq(row.get(5)?));
            page.push(OutboxItem { position: row.get(1)?, task, first_version, last_version, first_seq, end_seq }, 0);
        }
        Ok(page)
    }

    async fn commands_end_in(&self) -> Result<Duration, Error> {
        // They do not end without a server.
        Ok(Duration::ZERO)
    }

    async fn begin(&mut self, marker: &Marker) -> Result<(), Error> {
        if self.open.is_none() {
            self.open = Some(open_empty(&self.shown)?.0);
        }
        let open = self.opened()?;
        open.close()?;
        put_file(&open.path, MOVING, &marker.encode())?;
        FILES.iter().try_for_each(|name| remove_file(&open.path, name))?;
        let db = open.db();
        owned_files::open(OpenOptions::new().write(true).create(true).truncate(false), &db).map_err(|source| file_error(&db, source))?;
        let connection = connect(&db)?;
        // All of it is made durable at the end.
        connection.pragma_update(None, "synchronous", "normal")?;
        let transaction = begin_transaction(&connection, &db)?;
        migrate(&transaction, 0)?;
        transaction.commit()?;
        open.connection = Some(connection);
        Ok(())
    }

    async fn write(&mut self, batch: &Batch) -> Result<(), Error> {
        let db = self.opened()?.db();
        let transaction = begin_transaction(self.connection()?, &db)?;
        for row in &batch.tasks {
            write_task(&transaction, row)?;
        }
        let mut log = transaction.prepare_cached("INSERT INTO log VALUES(?, ?, ?, ?, ?)")?;
        for (id, row) in &batch.events {
            let EventRow { version, at, event } = row;
            let sum = checksum::of_event(*id, version.cast_signed(), *at, event);
            log.execute(params![&id.as_bytes()[..], version, at, event, sum])?;
        }
        let mut output = transaction.prepare_cached("INSERT INTO chunk VALUES(NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")?;
        for (id, row) in &batch.chunks {
            let text_checksum = Some(checksum::of_text(&row.blocks));
            let ChunkRow { seq, count, version, at, first_block, blocks_total, bytes_total, ref blocks } = *row;
            let header = ChunkRowHeader { seq, count, version, at, first_block, blocks_total, bytes_total, text_checksum };
            let sum = header.checksum(*id);
            let id = &id.as_bytes()[..];
            output.execute(params![id, seq, count, version, at, first_block, blocks_total, bytes_total, text_checksum, sum, blocks])?;
        }
        let mut sessions = transaction.prepare_cached("INSERT INTO session VALUES(?, ?, ?, ?, ?)")?;
        for row in &batch.sessions {
            let Session { id, caller, last_used, data } = &row.session;
            let (id, caller, last_used, data) = (id.as_str(), caller.as_str(), last_used.as_millis(), data.as_str());
            sessions.execute(params![id, caller, last_used, data, checksum::of_session(id, caller, last_used, data)])?;
        }
        let mut outbox = transaction.prepare_cached("INSERT INTO outbox VALUES(?, ?, ?, ?, ?, ?, ?)")?;
        for (session, item) in &batch.outbox {
            let OutboxItem { position, task, first_version, last_version, first_seq, end_seq } = item;
            let task = &task.as_bytes()[..];
            outbox.execute(params![session.as_str(), position, task, first_version.0, last_version.0, first_seq.0, end_seq.0])?;
        }
        drop((log, output, sessions, outbox));
        transaction.commit()?;
        Ok(())
    }

    async fn seal(&mut self, meta: &Meta, _orphan_after: Duration) -> Result<(), Error> {
        let shown = self.shown.clone();
        let open = self.opened()?;
        let (db, connection) = (open.db(), open.connection.as_ref().ok_or_else(|| closed(&shown))?);
        let transaction = begin_transaction(connection, &db)?;
        transaction.execute("INSERT OR REPLACE INTO meta VALUES('epoch', ?1), ('secret', ?2)", params![meta.epoch.0, &meta.secret[..]])?;
        transaction.commit()?;
        connection.pragma_update(None, "synchronous", "full")?;
        connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
        // The directory may be new, too.
        let above = open.path.parent().map_or(Ok(()), sync);
        above.and_then(|()| sync(&open.path)).map_err(|source| file_error(&open.path, source))
    }

    async fn complete(&mut self, id: &str) -> Result<(), Error> {
        let shown = self.shown.clone();
        let open = self.opened()?;
        open.close()?;
        if data_dir::marker(&open.path)?.is_none_or(|marker| marker.state != MoveState::Moving || marker.id != id) {
            return Err(Error::Unusable(format!("somebody has changed {} meanwhile: make the move again", shown.display())));
        }
        remove_file(&open.path, MOVING)?;
        sync(&open.path).map_err(|source| file_error(&open.path, source))
    }

    async fn leave(&mut self, marker: &Marker) -> Result<(), Error> {
        let open = self.opened()?;
        open.close()?;
        put_file(&open.path, MOVED, &marker.encode())
    }
}

/// A task with the keys by which it is found. If an earlier task has the same key, that is one which nobody could find any more.
fn write_task(transaction: &Connection, row: &TaskRow) -> Result<(), Error> {
    let (task, spec) = (&row.task, &row.task.spec);
    let (id, caller, open) = (&task.id.as_bytes()[..], spec.caller.as_str(), i64::from(task.ended.is_none()));
    let due = wants(task).due.map(Timestamp::as_millis);
    let sum = checksum::of_task(task.id, caller, open, due, &row.head);
    transaction
        .prepare_cached("INSERT INTO task(id, caller, open, due, head, checksum, bytes) VALUES(?, ?, ?, ?, ?, ?, ?)")?
        .execute(params![id, caller, open, due, row.head, sum, row.stored_bytes])?;
    if let Some(key) = spec.idempotency_key.as_deref() {
        let sum = checksum::of_key(caller, key, task.id);
        let sql = "INSERT OR REPLACE INTO idempotency VALUES(?, ?, ?, ?)";
        transaction.prepare_cached(sql)?.execute(params![caller, key, id, sum])?;
    }
    if let Some(fingerprint) = spec.fingerprint.as_deref().filter(|_| task.ended.is_none()) {
        let sql = "INSERT OR REPLACE INTO dedupe VALUES(?, ?, ?, ?)";
        transaction.prepare_cached(sql)?.execute(params![caller, spec.hidden, fingerprint, id])?;
    }
    Ok(())
}

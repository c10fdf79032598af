//! Writes sessions and their outboxes to the embedded store.

use rusqlite::{Connection, OptionalExtension, params};
use taskwire_core::Payload;

use super::{Error, OutboxItem, SessionChange, TaskWrite, checksum};

/// Adds an item to the outbox of the task's session, if that session is still there.
pub(super) fn write_outbox(transaction: &Connection, write: &TaskWrite) -> Result<(), Error> {
    let Some((session, OutboxItem { task, first_version: first, last_version: last, first_seq: from, end_seq: end, .. })) =
        write.outbox_item()
    else {
        return Ok(());
    };
    let position: Option<u64> = transaction
        .prepare_cached(
            "INSERT INTO outbox SELECT ?1, ifnull((SELECT max(position) FROM outbox WHERE session = ?1), 0) + 1, ?2, ?3, ?4, ?5, ?6
             WHERE EXISTS(SELECT 1 FROM session WHERE id = ?1) RETURNING position",
        )?
        .query_row(params![session.as_str(), &task.as_bytes()[..], first.0, last.0, from.0, end.0], |row| row.get(0))
        .optional()?;
    if let Some(oldest) = position.and_then(|position| position.checked_sub(write.outbox_max)) {
        transaction.prepare_cached("DELETE FROM outbox WHERE session = ? AND position <= ?")?.execute(params![session.as_str(), oldest])?;
    }
    Ok(())
}

/// Carries out a change of a session.
pub(super) fn write_session(transaction: &Connection, change: &SessionChange) -> Result<(), Error> {
    let (session, before, sql) = match change {
        SessionChange::Begin(session) => (session, None, "INSERT INTO session VALUES(?1, ?2, ?3, ?4, ?5)"),
        SessionChange::Update { session, before } => {
            let sql =
                "UPDATE session SET caller = ?2, last_used = ?3, data = ?4, checksum = ?5 WHERE id = ?1 AND (?6 IS NULL OR data = ?6)";
            (session, Some(before.as_ref().map(Payload::as_str)), sql)
        }
        SessionChange::End(id) => {
            transaction.prepare_cached("DELETE FROM session WHERE id = ?")?.execute([id.as_str()])?;
            transaction.prepare_cached("DELETE FROM outbox WHERE session = ?")?.execute([id.as_str()])?;
            return Ok(());
        }
    };
    let (id, caller, seen, data) = (session.id.as_str(), session.caller.as_str(), session.last_used.as_millis(), session.data.as_str());
    let checksum = checksum::of_session(id, caller, seen, data);
    let mut statement = transaction.prepare_cached(sql)?;
    match before {
        None => statement.execute(params![id, caller, seen, data, checksum])?,
        Some(before) => statement.execute(params![id, caller, seen, data, checksum, before])?,
    };
    Ok(())
}

//! Whether a damaged page of the embedded store is in the way of some tasks or of all.

use std::path::Path;

use rusqlite::{Connection, params};

use super::{Error, busy::begin_transaction};

/// Rows of the tables to which almost every commit adds one, or in which it changes one: in `task` one of each kind that the indexes of open
/// and of due tasks have. All output is added at one end of `chunk`.
const ROWS: [&str; 3] = [
    "INSERT INTO log VALUES(?1, 0, 0, ?2, NULL)",
    "INSERT INTO task(id, caller, open, due, head) VALUES(?1, ?2, 1, iif(length(?1) = 0, -1, 9e15), '')",
    "INSERT INTO chunk(task, seq, count, version, at, first_block, blocks_total, bytes_total, blocks) VALUES(?1, 0, 0, 0, 0, 0, 0, 0, ?2)",
];
/// An id and a caller before all others, and after all others: their rows go to the two ends of a table.
const ENDS: [(&[u8], &str); 2] = [(b"", ""), (&[0xff; 21], "\u{10ffff}")];

/// Fails if a table takes a row at neither of its ends: then the page that is damaged is one that all tasks need.
pub(super) fn check(connection: &Connection, path: &Path) -> Result<(), Error> {
    for row in ROWS {
        if let [Err(error), Err(_)] = ENDS.map(|end| try_row(connection, path, row, end)) {
            return Err(error);
        }
    }
    Ok(())
}

/// Adds a row, and takes it back. After a damaged page SQLite writes nothing more in a transaction, so each row has one of its own.
fn try_row(connection: &Connection, path: &Path, row: &str, (id, caller): (&[u8], &str)) -> Result<(), Error> {
    let transaction = begin_transaction(connection, path)?;
    transaction.execute(row, params![id, caller])?;
    transaction.rollback()?;
    Ok(())
}

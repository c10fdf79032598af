//! What an error of PostgreSQL means for the store.

use std::{error::Error as _, fmt};

use taskwire_core::TaskId;
use tokio_postgres::error::{DbError, Severity};

use crate::store::Error;

/// An error of PostgreSQL. Its text has no values of rows: the ids of sessions are as good as passwords.
pub struct PostgresError(tokio_postgres::Error);

impl PostgresError {
    /// Whether a table or a schema is not there.
    pub(super) fn is_about_no_table(&self) -> bool {
        self.0.code().is_some_and(|code| matches!(code.code(), "42P01" | "3F000"))
    }

    /// Whether the server says that a parameter has a value that it cannot use.
    pub(super) fn is_bad_value(&self) -> bool {
        self.0.code().is_some_and(|code| code.code() == "22023")
    }
}

impl fmt::Display for PostgresError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&describe(&self.0))
    }
}

impl fmt::Debug for PostgresError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&describe(&self.0))
    }
}

impl std::error::Error for PostgresError {}

/// The error in words. The server's `DETAIL` is left out, since it has values of rows.
pub(super) fn describe(error: &tokio_postgres::Error) -> String {
    if let Some(error) = error.as_db_error() {
        return format!("{} (SQLSTATE {})", error.message(), error.code().code());
    }
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    if text.contains("TLS handshake") {
        text.push_str(
            " (certificates are always verified: name the one of the server's authority as `sslrootcert=`, or use `sslmode=disable` where \
             nobody else is on the network)",
        );
    }
    text
}

/// The store cannot be reached for a while, and nothing was written.
pub(super) fn away(reason: impl fmt::Display) -> Error {
    Error::Away { in_doubt: false, reason: reason.to_string() }
}

fn code(error: &tokio_postgres::Error) -> &str {
    error.code().map_or("", |code| code.code())
}

/// What follows from an error of a statement that did not commit anything.
pub(super) fn classify(error: tokio_postgres::Error) -> Error {
    if is_passing(&error) { away(describe(&error)) } else { Error::Postgres(PostgresError(error)) }
}

/// The same, of a statement that reads one task: what is stored of that may be damaged.
pub(super) fn or_corrupt(error: Error, id: TaskId) -> Error {
    match error {
        Error::Postgres(error) if is_damage(&error.0) => Error::corrupt_task(id, error),
        other => other,
    }
}

/// Whether a page of the database is damaged.
pub(super) fn is_damage(error: &tokio_postgres::Error) -> bool {
    matches!(code(error), "XX001" | "XX002")
}

/// Whether it may be over in a while: another connection, another primary, a server that has been started or has room again.
fn is_passing(error: &tokio_postgres::Error) -> bool {
    if error.as_db_error().is_none() {
        return !is_mistake(error);
    }
    let code = code(error);
    // Connections; conflicts of transactions; resources; an operator's doing, time limits among it; the server's files.
    let is_class = ["08", "40", "53", "57", "58"].iter().any(|class| code.starts_with(class));
    // Not the primary any more, a transaction that was ended, a lock that was not got, an internal error.
    is_class || matches!(code, "25006" | "25P02" | "25P03" | "25P04" | "55006" | "55P03" | "XX000") || is_about_names(error)
}

/// Whether it is our own mistake, such as a wrong type. All other errors that are not the server's are about the connection.
fn is_mistake(error: &tokio_postgres::Error) -> bool {
    let text = error.to_string();
    ["error serializing", "error deserializing", "invalid column", "expected ", "query returned"]
        .iter()
        .any(|start| text.starts_with(start))
}

/// Whether a connection that had this error can still be used: the server has refused a statement and goes on.
pub(super) fn leaves_connection(error: &tokio_postgres::Error) -> bool {
    is_refusal(error) && !is_about_prepared(error)
}

/// Whether the server has refused a statement, and with it the transaction. An error that also ends the connection says less: it may come
/// from a pooler, or after the commit.
pub(super) fn is_refusal(error: &tokio_postgres::Error) -> bool {
    error.as_db_error().and_then(DbError::parsed_severity) == Some(Severity::Error)
}

/// Whether a prepared statement is gone, there already, or of another time: behind a pooler each transaction may have another connection of
/// the server, and a newer release may have changed a table.
fn is_about_prepared(error: &tokio_postgres::Error) -> bool {
    is_about_names(error) || code(error) == "0A000"
}

/// Whether names of prepared statements do not lead where they should, as behind a pooler.
pub(super) fn is_about_names(error: &tokio_postgres::Error) -> bool {
    matches!(code(error), "26000" | "42P05")
}

/// Whether a commit may succeed if all of it is done again, on another connection: a deadlock, a task that was made in this moment, a
/// statement that must be prepared anew.
pub(super) fn is_conflict(error: &tokio_postgres::Error) -> bool {
    matches!(code(error), "40001" | "40P01" | "23505") || is_about_prepared(error)
}

/// Whether there is no partition for a row.
pub(super) fn is_without_partition(error: &tokio_postgres::Error) -> bool {
    code(error) == "23514"
}

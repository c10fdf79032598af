//! Waits while another program has locked the database: nothing was written yet, so waiting loses nothing.

use std::{path::Path, time::Duration};

use rusqlite::{Connection, ErrorCode, Transaction, TransactionBehavior};

use super::{Error, free_bytes};

/// How long SQLite waits in one try.
pub(super) const WAIT: Duration = Duration::from_secs(1);
/// How many tries: ten minutes in all.
const TRIES: u32 = 600;
/// After how many tries the first warning is logged, and after how many more the next.
const WARN_AFTER_TRIES: u32 = 2;
const WARN_EVERY_TRIES: u32 = 60;

fn is_busy(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
}

/// Runs `operation` on the database at `path`, and tries again while another program has locked it.
pub(super) fn retry_while_busy<T>(path: &Path, mut operation: impl FnMut() -> rusqlite::Result<T>) -> Result<T, Error> {
    let shown = path.display();
    for tries in 1..=TRIES {
        match operation() {
            Err(error) if is_busy(&error) => {
                if tries % WARN_EVERY_TRIES == WARN_AFTER_TRIES {
                    tracing::warn!(
                        "another program has locked {shown}: nothing is stored until it lets go (`fuser -v {shown}` says which)"
                    );
                }
            }
            done => return done.map_err(|error| Error::from(error).or_full(|| free_bytes(path))),
        }
    }
    Err(Error::Busy { path: shown.to_string(), minutes: WAIT.as_secs() * u64::from(TRIES) / 60 })
}

pub(super) fn begin_transaction<'a>(connection: &'a Connection, path: &Path) -> Result<Transaction<'a>, Error> {
    retry_while_busy(path, || Transaction::new_unchecked(connection, TransactionBehavior::Immediate))
}

#[cfg(test)]
mod tests {
    use rusqlite::ffi;

    use super::*;

    fn failure(code: i32) -> rusqlite::Error {
        rusqlite::Error::SqliteFailure(ffi::Error::new(code), None)
    }

    #[test]
    fn who_locks_the_database_is_waited_for_and_not_for_ever() {
        let mut tries = 0;
        let done = retry_while_busy(Path::new("x"), || {
            tries += 1;
            if tries < 90 { Err(failure(ffi::SQLITE_BUSY)) } else { Ok("done") }
        });
        assert_eq!((done.expect("it is let in"), tries), ("done", 90));
        tries = 0;
        let given_up = retry_while_busy(Path::new("x"), || {
            tries += 1;
            Err::<(), _>(failure(ffi::SQLITE_BUSY))
        });
        let error = given_up.expect_err("it was never let in");
        assert!(error.to_string().contains("for 10 minutes"), "{error}");
        assert_eq!(tries, TRIES);
    }

    #[test]
    fn any_other_failure_is_told_at_once() {
        let mut tries = 0;
        let failed = retry_while_busy(Path::new("x"), || {
            tries += 1;
            Err::<(), _>(failure(ffi::SQLITE_READONLY))
        });
        assert!(matches!(failed, Err(Error::Database(_))), "{failed:?}");
        assert_eq!(tries, 1);
    }
}

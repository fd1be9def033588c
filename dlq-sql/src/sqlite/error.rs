//! Meaning of errors of SQLite.

use dlq_core::StoreErrorKind;
use rusqlite::ErrorCode;

use crate::error::Fault;

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        use StoreErrorKind::{Corrupt, Incompatible, NotFound, Refused, Unavailable, Unexpected};
        let (kind, detail) = match error.sqlite_error_code() {
            // `Unavailable` is waited out; only `Refused` gives a letter up, so that it is kept for what concerns the
            // letter alone.
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                (Unavailable, "another connection holds the lock; try again")
            }
            Some(ErrorCode::OutOfMemory) => {
                (Unavailable, "there is no memory for it; make room and try again")
            }
            Some(ErrorCode::DiskFull) => {
                (Unavailable, "the disk or its quota is full; make room and try again")
            }
            Some(ErrorCode::ReadOnly) => {
                (Unavailable, "the file or its directory is read-only; make it writable")
            }
            Some(ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => {
                (Unavailable, "the file cannot be opened; check the path and its permissions")
            }
            Some(ErrorCode::SystemIoFailure | ErrorCode::FileLockingProtocolFailed) => {
                (Unavailable, "the file cannot be read or written; check the disk")
            }
            Some(ErrorCode::NotADatabase) => (Incompatible, "the file is not a dlq database"),
            Some(ErrorCode::DatabaseCorrupt) => {
                (Corrupt, "the database file is damaged; restore it or recover what it holds")
            }
            // These two are of what was written, and nothing else need be wrong.
            Some(ErrorCode::TooBig) => (Refused, "it is larger than SQLite takes"),
            Some(ErrorCode::ConstraintViolation) => {
                (Refused, "a constraint or trigger of the database keeps it out")
            }
            _ if says(&error, &["no such table"]) => (
                NotFound,
                "the tables are not there; run `dlq migrate`, or open the store anew where it may create them",
            ),
            _ if says(&error, &["no such column", "has no column named"]) => (
                Incompatible,
                "the tables are not those that this program knows; run `dlq migrate`",
            ),
            _ => match error {
                rusqlite::Error::FromSqlConversionFailure(..)
                | rusqlite::Error::IntegralValueOutOfRange(..)
                | rusqlite::Error::InvalidColumnType(..)
                | rusqlite::Error::Utf8Error(..) => {
                    (Corrupt, "what is stored cannot be read; check the file")
                }
                _ => (Unexpected, "the database refused"),
            },
        };
        Self::new(kind, detail).with_source(error)
    }
}

/// Returns true if SQLite's own text has one of these: one code stands for everything that is wrong with a statement.
fn says(error: &rusqlite::Error, any: &[&str]) -> bool {
    let text = match error {
        rusqlite::Error::SqliteFailure(_, Some(text)) => text,
        rusqlite::Error::SqlInputError { msg, .. } => msg,
        _ => return false,
    };
    any.iter().any(|one| text.contains(one))
}

#[cfg(test)]
mod tests {
    use rusqlite::{Connection, ffi};

    use super::*;

    fn kind(error: rusqlite::Error) -> StoreErrorKind {
        Fault::from(error).kind()
    }

    /// Only `Refused` may be taken for a word about one letter.
    #[test]
    fn every_error_has_the_kind_that_it_is() {
        let of = |code| kind(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None));
        for (code, expected) in [
            (ffi::SQLITE_NOMEM, StoreErrorKind::Unavailable),
            (ffi::SQLITE_FULL, StoreErrorKind::Unavailable),
            (ffi::SQLITE_TOOBIG, StoreErrorKind::Refused),
            (ffi::SQLITE_CONSTRAINT_CHECK, StoreErrorKind::Refused),
            (ffi::SQLITE_CONSTRAINT_TRIGGER, StoreErrorKind::Refused),
            (ffi::SQLITE_CORRUPT, StoreErrorKind::Corrupt),
            (ffi::SQLITE_ERROR, StoreErrorKind::Unexpected),
            (ffi::SQLITE_MISUSE, StoreErrorKind::Unexpected),
        ] {
            assert_eq!(of(code), expected, "{code}");
        }
    }

    #[test]
    fn tables_that_are_not_there_are_not_found() {
        let conn = Connection::open_in_memory().unwrap();
        let gone = conn.prepare("SELECT 1 FROM dlq_events").unwrap_err();
        assert_eq!(kind(gone), StoreErrorKind::NotFound);
        conn.execute_batch("CREATE TABLE dlq_events (one)").unwrap();
        let other = conn.prepare("SELECT two FROM dlq_events").unwrap_err();
        assert_eq!(kind(other), StoreErrorKind::Incompatible);
        let other = conn.prepare("INSERT INTO dlq_events (two) VALUES (1)").unwrap_err();
        assert_eq!(kind(other), StoreErrorKind::Incompatible);
    }
}

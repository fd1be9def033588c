//! What SQLite's errors mean.

use dlq_core::StoreErrorKind;
use rusqlite::ErrorCode;

use crate::error::Fault;

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        use StoreErrorKind::{Corrupt, Incompatible, Unavailable, Unexpected};
        let (kind, detail) = match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                (Unavailable, "another connection holds the lock; try again")
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

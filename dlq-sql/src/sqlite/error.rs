//! [`Fault`]: what went wrong inside, before it is known which call it concerns.

use std::sync::Arc;

use dlq_core::{StoreError, StoreErrorKind};
use rusqlite::ErrorCode;

pub(super) type Result<T> = std::result::Result<T, Fault>;

/// An error without the name of the call. Can be copied, since one failed transaction may concern several calls.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    kind: StoreErrorKind,
    detail: String,
    source: Option<Arc<rusqlite::Error>>,
}

impl Fault {
    pub(super) fn new(kind: StoreErrorKind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into(), source: None }
    }

    /// What is stored cannot be read: `what` names it.
    pub(super) fn corrupt(what: &str, error: &dyn std::fmt::Display) -> Self {
        Self::new(
            StoreErrorKind::Corrupt,
            format!("the stored {what} cannot be read ({error}); check the file"),
        )
    }

    pub(super) fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    pub(super) fn during(self, operation: &'static str) -> StoreError {
        let error = StoreError::new(self.kind, operation).with_detail(self.detail);
        match self.source {
            Some(source) => error.with_source(source),
            None => error,
        }
    }
}

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
        Self { kind, detail: detail.to_owned(), source: Some(Arc::new(error)) }
    }
}

/// Names the call that failed.
pub(super) trait During<T> {
    fn during(self, operation: &'static str) -> std::result::Result<T, StoreError>;
}

impl<T> During<T> for Result<T> {
    fn during(self, operation: &'static str) -> std::result::Result<T, StoreError> {
        self.map_err(|fault| fault.during(operation))
    }
}

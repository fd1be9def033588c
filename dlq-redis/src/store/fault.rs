//! [`Fault`]: what went wrong inside, before it is known which call it concerns.

use std::fmt::Display;

use dlq_core::{StoreError, StoreErrorKind};

use crate::client::{RedisError, RedisErrorKind};

pub(super) type Result<T> = std::result::Result<T, Fault>;

/// An error without the name of the call.
#[derive(Debug)]
pub(super) enum Fault {
    /// Found by the store.
    Own(StoreErrorKind, String),
    /// Told by the client.
    Redis(RedisError),
}

impl Fault {
    pub(super) fn new(kind: StoreErrorKind, detail: impl Into<String>) -> Self {
        Self::Own(kind, detail.into())
    }

    /// Stored data that cannot be read: `what` names it.
    pub(super) fn corrupt(what: &str, error: impl Display) -> Self {
        let detail =
            format!("the stored {what} cannot be read ({error}); restore it from a backup");
        Self::new(StoreErrorKind::Corrupt, detail)
    }

    /// Returns true if it is open whether the server has done what it was asked for.
    pub(super) fn is_open(&self) -> bool {
        // An error with a code was answered by the server, which has written nothing then (see `write`).
        let is_silent = |error: &RedisError| {
            error.kind() == RedisErrorKind::Unavailable && error.code().is_none()
        };
        matches!(self, Self::Redis(error) if is_silent(error))
    }
}

impl From<RedisError> for Fault {
    fn from(error: RedisError) -> Self {
        Self::Redis(error)
    }
}

/// Gives the error of a call its name.
pub(super) trait During<T> {
    fn during(self, operation: &'static str) -> std::result::Result<T, StoreError>;
}

impl<T> During<T> for Result<T> {
    fn during(self, operation: &'static str) -> std::result::Result<T, StoreError> {
        self.map_err(|fault| match fault {
            Fault::Own(kind, detail) => StoreError::new(kind, operation).with_detail(detail),
            Fault::Redis(error) => error.for_running_store(operation),
        })
    }
}

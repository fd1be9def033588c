//! [`Fault`]: an error before it is known which call it concerns.

use std::sync::Arc;

use dlq_core::{StoreError, StoreErrorKind};
use mongodb::error::{Error, ErrorKind};

pub(crate) type Result<T> = std::result::Result<T, Fault>;

/// An error without the name of the call.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    kind: StoreErrorKind,
    detail: String,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
    /// True if the same command may succeed when it is sent again at once.
    is_again: bool,
}

impl Fault {
    pub(crate) fn new(kind: StoreErrorKind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into(), source: None, is_again: false }
    }

    /// Stored data that cannot be read: `what` names it.
    pub(crate) fn corrupt(what: &str, error: &dyn std::fmt::Display) -> Self {
        let detail = format!("the stored {what} cannot be read ({error}); check the database");
        Self::new(StoreErrorKind::Corrupt, detail)
    }

    pub(crate) fn unavailable(detail: impl Into<String>) -> Self {
        Self::new(StoreErrorKind::Unavailable, detail)
    }

    pub(crate) const fn is_again(&self) -> bool {
        self.is_again
    }

    pub(crate) fn again(mut self) -> Self {
        self.is_again = true;
        self
    }

    pub(crate) fn during(self, operation: &'static str) -> StoreError {
        let error = StoreError::new(self.kind, operation).with_detail(self.detail);
        match self.source {
            Some(source) => error.with_source(source),
            None => error,
        }
    }
}

/// Codes of servers that are shutting down, stepping down, or not the primary any more.
const PASSING: &[i32] =
    &[6, 7, 64, 89, 91, 112, 134, 189, 262, 9001, 10_107, 10_058, 11_600, 11_602, 13_435, 13_436];

/// True if a server that answers with this code may do so no longer when it is asked again.
pub(crate) fn is_passing(code: i32) -> bool {
    PASSING.contains(&code)
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        let (kind, detail, is_again) = match &*error.kind {
            ErrorKind::Io(_) | ErrorKind::ConnectionPoolCleared { .. } => {
                let detail = "connection lost; see that the server runs and can be reached";
                (StoreErrorKind::Unavailable, detail.to_owned(), true)
            }
            // The driver itself has searched for as long as it was given, so it is not asked again.
            ErrorKind::ServerSelection { .. } | ErrorKind::DnsResolve { .. } => {
                let detail =
                    "no server that takes writes was found; see that it runs and can be reached";
                (StoreErrorKind::Unavailable, detail.to_owned(), false)
            }
            ErrorKind::Authentication { .. } => {
                let detail = "the server refused the login; check user, password and authSource";
                (StoreErrorKind::InvalidConfig, detail.to_owned(), false)
            }
            ErrorKind::InvalidArgument { .. } | ErrorKind::InvalidTlsConfig { .. } => {
                let detail = "the address or its options are not valid; correct the URL";
                (StoreErrorKind::InvalidConfig, detail.to_owned(), false)
            }
            ErrorKind::Command(command) => {
                let kind = match command.code {
                    code if is_passing(code) => StoreErrorKind::Unavailable,
                    13 | 18 => StoreErrorKind::InvalidConfig,
                    _ => StoreErrorKind::Unexpected,
                };
                let detail = format!("the server answered with error {}", command.code);
                (kind, detail, is_passing(command.code))
            }
            _ => (StoreErrorKind::Unexpected, "the driver reports an error".to_owned(), false),
        };
        Self { kind, detail, source: Some(Arc::new(error)), is_again }
    }
}

/// Names the call that failed.
pub(crate) trait During<T> {
    fn during(self, operation: &'static str) -> std::result::Result<T, StoreError>;
}

impl<T> During<T> for Result<T> {
    fn during(self, operation: &'static str) -> std::result::Result<T, StoreError> {
        self.map_err(|fault| fault.during(operation))
    }
}

//! [`Fault`]: what went wrong inside, before it is known which call it concerns.

use std::sync::Arc;

#[cfg(feature = "postgres")]
use dlq_core::store::EditError;
use dlq_core::{StoreError, StoreErrorKind};

pub(crate) type Result<T> = std::result::Result<T, Fault>;

/// Answer whether the same call may be made again at once.
#[cfg(feature = "postgres")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Again {
    No,
    /// It lost against another call.
    Collided,
    /// The connection was broken, perhaps long since.
    Broken,
    /// The database said nothing for too long: not at once.
    Silent,
}

/// An error without the name of the call. Can be copied, since one failed transaction may concern several calls.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    kind: StoreErrorKind,
    #[cfg(feature = "postgres")]
    again: Again,
    detail: String,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

impl Fault {
    pub(crate) fn new(kind: StoreErrorKind, detail: impl Into<String>) -> Self {
        Self {
            kind,
            #[cfg(feature = "postgres")]
            again: Again::No,
            detail: detail.into(),
            source: None,
        }
    }

    /// Error that stored data cannot be read: `what` names it.
    pub(crate) fn corrupt(what: &str, error: &dyn std::fmt::Display) -> Self {
        Self::new(
            StoreErrorKind::Corrupt,
            format!("the stored {what} cannot be read ({error}); check the database"),
        )
    }

    /// The error of the database underneath.
    pub(crate) fn with_source(
        mut self,
        source: impl std::error::Error + Send + Sync + 'static,
    ) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    #[cfg(feature = "postgres")]
    pub(crate) fn with_again(self, again: Again) -> Self {
        Self { again, ..self }
    }

    #[cfg(feature = "postgres")]
    pub(crate) fn again(&self) -> Again {
        self.again
    }

    pub(crate) fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    pub(crate) fn during(self, operation: &'static str) -> StoreError {
        let error = StoreError::new(self.kind, operation).with_detail(self.detail);
        match self.source {
            Some(source) => error.with_source(source),
            None => error,
        }
    }
}

#[cfg(feature = "postgres")]
impl From<EditError> for Fault {
    fn from(error: EditError) -> Self {
        Self::new(error.kind(), error.to_string())
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

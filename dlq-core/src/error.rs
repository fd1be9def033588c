//! The errors at the boundaries: [`StoreError`] of stores and sinks, [`TransportError`] of sources and settle handles.

use std::error::Error;
use std::fmt;

/// Any error, at seams where the type does not matter.
pub type BoxError = Box<dyn Error + Send + Sync + 'static>;

/// Kind of failure of a store operation, for programs.
///
/// Dead-letter routing takes `Unavailable`, `Corrupt` and `Incompatible` for trouble of the store, and its consumer
/// pauses. It takes any other kind for trouble of one letter, whose message waits alone while the rest goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// The requested item does not exist.
    NotFound,
    /// The request contradicts what is stored, or what another holds.
    Conflict,
    /// The request is not acceptable as it stands, e.g. a destructive call without a filter, or a letter that is larger
    /// than the store takes. Says nothing against another request: the store itself works.
    Refused,
    /// The store cannot be reached, is locked, full or read-only; the same call may succeed later.
    Unavailable,
    /// The store was opened with a configuration that it cannot serve.
    InvalidConfig,
    /// The stored data is not what this version wrote.
    Corrupt,
    /// The store is of a newer or foreign format.
    Incompatible,
    /// Anything else.
    Unexpected,
}

impl fmt::Display for StoreErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotFound => "not found",
            Self::Conflict => "conflict",
            Self::Refused => "refused",
            Self::Unavailable => "unavailable",
            Self::InvalidConfig => "invalid configuration",
            Self::Corrupt => "corrupt",
            Self::Incompatible => "incompatible",
            Self::Unexpected => "unexpected",
        })
    }
}

/// A store operation that did not complete. Nothing was changed unless the error's text says otherwise, or the store made
/// the change and its answer was lost (`Unavailable`). Repeating the call is safe.
#[derive(Debug)]
pub struct StoreError {
    kind: StoreErrorKind,
    operation: &'static str,
    detail: Option<String>,
    source: Option<BoxError>,
}

impl StoreError {
    /// An error of `kind` in `operation` (a verb phrase, e.g. `list letters`).
    #[must_use]
    pub const fn new(kind: StoreErrorKind, operation: &'static str) -> Self {
        Self { kind, operation, detail: None, source: None }
    }

    /// Adds what was found and what to do.
    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// Adds to what was found, e.g. what had been done before.
    #[must_use]
    pub fn with_addition(mut self, more: impl fmt::Display) -> Self {
        let detail = self.detail.take().unwrap_or_else(|| self.kind.to_string());
        self.detail = Some(format!("{detail}; {more}"));
        self
    }

    /// Adds the error underneath.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<BoxError>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Returns the kind of error.
    #[must_use]
    pub const fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// Returns the operation that failed.
    #[must_use]
    pub const fn operation(&self) -> &'static str {
        self.operation
    }

    /// Returns true if the same call may succeed later.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        matches!(self.kind, StoreErrorKind::Unavailable)
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.detail {
            Some(detail) => write!(f, "cannot {}: {detail}", self.operation),
            None => write!(f, "cannot {}: {}", self.operation, self.kind),
        }
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

/// Kind of failure of a transport operation, for programs. A source may be asked again after `Unavailable` and
/// `Corrupt`; after any other kind it has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TransportErrorKind {
    /// The broker cannot be reached or did not answer in time.
    Unavailable,
    /// Something that the broker holds can never be read, and nothing else is concerned: whoever asks may go on at once. A
    /// source says so now and then only.
    Corrupt,
    /// The lease ran out, or the delivery was settled before; the broker may hand the message out again.
    Lost,
    /// The configuration cannot be served by this transport.
    InvalidConfig,
    /// The transport was closed.
    Closed,
    /// Anything else.
    Unexpected,
}

/// A transport operation that did not complete. The message concerned is to be taken as unsettled.
#[derive(Debug)]
pub struct TransportError {
    kind: TransportErrorKind,
    operation: &'static str,
    detail: Option<String>,
    source: Option<BoxError>,
}

impl TransportError {
    /// An error of `kind` in `operation` (a verb phrase, e.g. `acknowledge`).
    #[must_use]
    pub const fn new(kind: TransportErrorKind, operation: &'static str) -> Self {
        Self { kind, operation, detail: None, source: None }
    }

    /// Adds what was found and what to do.
    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// Adds the error underneath.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<BoxError>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Returns the kind of error.
    #[must_use]
    pub const fn kind(&self) -> TransportErrorKind {
        self.kind
    }

    /// Returns true if the same call may succeed later.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        // A message that can never be read is skipped by its source, so the next call concerns another one.
        matches!(self.kind, TransportErrorKind::Unavailable | TransportErrorKind::Corrupt)
    }
}

impl fmt::Display for TransportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {}", self.operation)?;
        match (&self.detail, self.kind) {
            (Some(detail), _) => write!(f, ": {detail}"),
            (None, TransportErrorKind::Unavailable) => f.write_str(": broker unavailable"),
            (None, TransportErrorKind::Lost) => f.write_str(": the delivery is no longer ours"),
            (None, TransportErrorKind::InvalidConfig) => f.write_str(": invalid configuration"),
            (None, TransportErrorKind::Closed) => f.write_str(": closed"),
            (None, TransportErrorKind::Corrupt) => f.write_str(": it is damaged"),
            (None, TransportErrorKind::Unexpected) => f.write_str(": unexpected"),
        }
    }
}

impl Error for TransportError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

use std::error::Error;
use std::fmt;

use dlq_core::{BoxError, Cause};

/// A message that a handler cannot take. The handler does not run; the message is given up as permanent.
#[derive(Debug)]
pub struct Rejection {
    cause: Cause,
    message: String,
    kind: &'static str,
    absent: bool,
    source: Option<BoxError>,
}

impl Rejection {
    fn new(cause: Cause, message: impl Into<String>) -> Self {
        Self { cause, message: message.into(), kind: "rejection", absent: false, source: None }
    }

    /// The payload cannot be decoded. Say what was expected, and where it differs.
    #[must_use]
    pub fn decode(message: impl Into<String>) -> Self {
        Self::new(Cause::Decode, message)
    }

    /// The message is not what the handler expects. Say what was expected, and what was found.
    #[must_use]
    pub fn malformed(message: impl Into<String>) -> Self {
        Self::new(Cause::Malformed, message)
    }

    /// The message lacks what the handler needs. An `Option` of the extractor is then `None`.
    #[must_use]
    pub fn absent(message: impl Into<String>) -> Self {
        Self { absent: true, ..Self::new(Cause::Malformed, message) }
    }

    /// The message exceeds a limit. Say the limit and the size.
    #[must_use]
    pub fn oversize(message: impl Into<String>) -> Self {
        Self::new(Cause::Oversize, message)
    }

    /// Adds the error underneath, and takes its type for the record.
    #[must_use]
    pub fn with_source<E: Error + Send + Sync + 'static>(mut self, source: E) -> Self {
        self.kind = std::any::type_name::<E>();
        self.source = Some(Box::new(source));
        self
    }

    /// Returns the kind of problem: `decode`, `malformed` or `oversize`.
    #[must_use]
    pub const fn cause(&self) -> Cause {
        self.cause
    }

    /// Returns true if the requested part is absent rather than broken.
    #[must_use]
    pub const fn is_absent(&self) -> bool {
        self.absent
    }

    /// The type of the error underneath, or `rejection`.
    pub(crate) const fn kind(&self) -> &'static str {
        self.kind
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for Rejection {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

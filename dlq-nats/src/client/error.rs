//! Errors of the server in words.

use std::error::Error;
use std::{fmt, iter};

use async_nats::jetstream::{self, ErrorCode};
use dlq_core::{BoxError, StoreError, StoreErrorKind, TransportError, TransportErrorKind};

/// A stream, a consumer or a bucket that could not be made ready.
#[derive(Debug)]
pub(crate) enum SetupError {
    /// The requested setting, or an existing one, is not acceptable.
    Config(String),
    /// The server did not answer, or not now.
    Unavailable(String, Option<BoxError>),
}

impl SetupError {
    pub(crate) fn unavailable(what: impl Into<String>, source: impl Into<BoxError>) -> Self {
        Self::Unavailable(what.into(), Some(source.into()))
    }

    /// An answer of JetStream's: one that the request deserved is not helped by asking again. That a cluster has no place
    /// for something passes when its servers are back.
    pub(crate) fn answered(what: &str, error: jetstream::Error) -> Self {
        let text = format!("{what}: {error}");
        let refused = error.error_code() == ErrorCode::STREAM_INVALID_CONFIG;
        // 408 is a time-out within the cluster, which asking again may help.
        let passes = error.code() == 408 || error.error_code() == ErrorCode::CLUSTER_NO_PEERS;
        if refused || ((400..500).contains(&error.code()) && !passes) {
            Self::Config(text)
        } else {
            Self::Unavailable(text, Some(error.into()))
        }
    }

    /// The same of what was as it should be before, and may be so again: somebody changes it, and nobody gives up.
    pub(crate) fn passing(self) -> Self {
        match self {
            Self::Config(text) => Self::Unavailable(text, None),
            unavailable => unavailable,
        }
    }

    pub(crate) fn for_store(self, operation: &'static str) -> StoreError {
        match self {
            Self::Config(text) => {
                StoreError::new(StoreErrorKind::InvalidConfig, operation).with_detail(text)
            }
            Self::Unavailable(text, source) => {
                let error = StoreError::new(StoreErrorKind::Unavailable, operation);
                let error = error.with_detail(text);
                match source {
                    Some(source) => error.with_source(source),
                    None => error,
                }
            }
        }
    }

    pub(crate) fn for_transport(self, operation: &'static str) -> TransportError {
        match self {
            Self::Config(text) => {
                TransportError::new(TransportErrorKind::InvalidConfig, operation).with_detail(text)
            }
            Self::Unavailable(text, source) => {
                let error = TransportError::new(TransportErrorKind::Unavailable, operation);
                let error = error.with_detail(text);
                match source {
                    Some(source) => error.with_source(source),
                    None => error,
                }
            }
        }
    }
}

impl fmt::Display for SetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(text) | Self::Unavailable(text, _) => f.write_str(text),
        }
    }
}

/// Returns the answer of JetStream, if it is among the causes.
pub(crate) fn answer<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a jetstream::Error> {
    iter::successors(Some(error), |&error| error.source()).find_map(<dyn Error>::downcast_ref)
}

/// An error of the client's while something was asked of the server.
pub(crate) fn unavailable(
    operation: &'static str,
    error: impl Error + Send + Sync + 'static,
) -> TransportError {
    TransportError::new(TransportErrorKind::Unavailable, operation)
        .with_detail(error.to_string())
        .with_source(error)
}

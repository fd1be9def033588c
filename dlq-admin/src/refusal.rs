//! [`Refusal`]: why a request was not carried out.

use axum::http::StatusCode;
use dlq_core::store::{EditError, EmptyFilter};
use dlq_core::{StoreError, StoreErrorKind};

/// Reason why a request was not carried out: a status, and a text for people.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
    /// Heading of its page, where the status alone would give another one.
    pub(crate) title: Option<&'static str>,
    /// Seconds after which the request may be made again.
    pub(crate) retry_after: Option<u64>,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), title: None, retry_after: None }
    }

    /// The request is not acceptable as it stands.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// There is no such thing.
    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, message)
    }

    /// The request contradicts what is stored.
    pub(crate) fn conflict(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, message)
    }

    /// The request is understood, and refused.
    pub(crate) fn refused(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, message)
    }

    /// The visitor may not do that.
    pub(crate) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, message)
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        let status = match error.kind() {
            StoreErrorKind::NotFound => StatusCode::NOT_FOUND,
            StoreErrorKind::Conflict => StatusCode::CONFLICT,
            StoreErrorKind::Refused => StatusCode::UNPROCESSABLE_ENTITY,
            // 503 tells clients and proxies that the same request may succeed later, which 500 does not.
            StoreErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            // Kinds are added to stores over time; one that is not known is the fault of no visitor.
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        // The sources of an error may quote what is secret about the store, so they go to the log alone.
        if status.is_server_error() {
            tracing::warn!(error = &error as &dyn std::error::Error, "a store did not answer");
        }
        Self::new(status, error.to_string())
    }
}

impl From<EmptyFilter> for Refusal {
    fn from(_: EmptyFilter) -> Self {
        Self::refused(
            "no filter was given, which would mean every letter; narrow it, or say all=true",
        )
    }
}

impl From<EditError> for Refusal {
    fn from(error: EditError) -> Self {
        let detail = error.to_string();
        StoreError::new(error.kind(), "edit the letter").with_detail(detail).into()
    }
}

use dlq_core::policy::InvalidPolicy;
use dlq_core::{BoxError, InvalidSubjectPattern};

/// Settings that contradict each other, or cannot be read. Says which, and what to write instead.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct InvalidConfig {
    message: String,
    source: Option<BoxError>,
}

impl InvalidConfig {
    /// Settings that are wrong for this reason.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), source: None }
    }

    /// A consumer cannot be built for this reason.
    pub(crate) fn consumer(message: impl std::fmt::Display) -> Self {
        Self::new(format!("cannot build the consumer: {message}"))
    }

    /// The policy of the handler `name` is wrong.
    pub(crate) fn policy(name: &str, error: InvalidPolicy) -> Self {
        let message = format!("the handler `{name}` has no valid policy");
        Self { message, source: Some(error.into()) }
    }

    /// The pattern of a route is wrong.
    pub(crate) fn pattern(error: InvalidSubjectPattern) -> Self {
        Self { message: "a route has no valid pattern".to_owned(), source: Some(error.into()) }
    }
}

use std::error::Error;
use std::io;
use std::process::ExitCode;

use dlq_core::store::EmptyFilter;
use dlq_core::{StoreError, StoreErrorKind};

/// End of a command before its time, with its exit code.
#[derive(Debug)]
pub(crate) enum CliError {
    /// Exit code 1: it could not be done.
    Failed(String),
    /// Exit code 2: it was asked for in a way that is refused.
    Refused(String),
    /// Exit code 0: whoever read our output has closed it.
    Closed,
}

impl CliError {
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::Failed(message.into())
    }

    pub(crate) fn refused(message: impl Into<String>) -> Self {
        Self::Refused(message.into())
    }

    /// Something that was not foreseen, with its sources.
    #[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
    pub(crate) fn caused_by(error: &(dyn Error + 'static)) -> Self {
        Self::failed(chain(error))
    }

    /// The same, saying first what it is about.
    pub(crate) fn about(self, subject: &str) -> Self {
        match self {
            Self::Failed(message) => Self::Failed(format!("{subject}: {message}")),
            Self::Refused(message) => Self::Refused(format!("{subject}: {message}")),
            Self::Closed => Self::Closed,
        }
    }

    /// The same, saying last what to do.
    pub(crate) fn hinting(self, hint: &str) -> Self {
        match self {
            Self::Failed(message) => Self::Failed(format!("{message}; {hint}")),
            Self::Refused(message) => Self::Refused(format!("{message}; {hint}")),
            Self::Closed => Self::Closed,
        }
    }

    /// Returns the message, without passwords.
    pub(crate) fn into_message(self) -> String {
        match self {
            Self::Failed(message) | Self::Refused(message) => crate::secret::hide(&message),
            Self::Closed => "the output is closed".to_owned(),
        }
    }

    /// Says it on standard error and yields the exit code.
    pub(crate) fn report(self) -> ExitCode {
        let (message, code) = match self {
            Self::Failed(message) => (message, 1),
            Self::Refused(message) => (message, 2),
            Self::Closed => return ExitCode::SUCCESS,
        };
        say!("dlq: {}", crate::output::escape(&crate::secret::hide(&message)));
        ExitCode::from(code)
    }
}

impl From<io::Error> for CliError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::Closed,
            _ => Self::Failed(format!("cannot write the output: {error}")),
        }
    }
}

impl From<serde_json::Error> for CliError {
    fn from(error: serde_json::Error) -> Self {
        match error.io_error_kind() {
            Some(kind) => io::Error::from(kind).into(),
            None => Self::Failed(format!("cannot write JSON: {error}")),
        }
    }
}

impl From<StoreError> for CliError {
    fn from(error: StoreError) -> Self {
        let message = chain(&error);
        match error.kind() {
            StoreErrorKind::Refused | StoreErrorKind::Conflict => Self::Refused(message),
            _ => Self::Failed(message),
        }
    }
}

impl From<EmptyFilter> for CliError {
    fn from(_: EmptyFilter) -> Self {
        Self::refused(
            "no filter was given, which would mean every letter; narrow it (e.g. --cause decode), or say --all",
        )
    }
}

/// An error and its sources, joined by `: `.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        // Some errors say what their source says.
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

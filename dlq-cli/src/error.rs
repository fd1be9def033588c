use std::error::Error;
use std::io;
use std::process::ExitCode;

use dlq_core::store::EmptyFilter;
use dlq_core::{StoreError, StoreErrorKind};

/// Error that ends a command. The variant decides the exit code.
#[derive(Debug)]
pub(crate) enum CliError {
    /// Exit code 1: the command failed, and the same command may succeed later.
    Failed(String),
    /// Exit code 2: the arguments, the configuration or the request are not acceptable; the user has to change something.
    Refused(String),
    /// Exit code 0: the reader of standard output has closed it, as `head` does.
    Closed,
}

impl CliError {
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::Failed(message.into())
    }

    pub(crate) fn refused(message: impl Into<String>) -> Self {
        Self::Refused(message.into())
    }

    /// Makes a `Failed` error of any error, with the texts of its sources. Used by the ingest, hence the features.
    #[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
    pub(crate) fn caused_by(error: &(dyn Error + 'static)) -> Self {
        Self::failed(chain(error))
    }

    /// Puts `subject` and a colon in front of the message, e.g. the URL or file that the error concerns.
    pub(crate) fn about(self, subject: &str) -> Self {
        match self {
            Self::Failed(message) => Self::Failed(format!("{subject}: {message}")),
            Self::Refused(message) => Self::Refused(format!("{subject}: {message}")),
            Self::Closed => Self::Closed,
        }
    }

    /// Appends advice to the message, after a semicolon.
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

    /// Prints the message on standard error, without passwords and control characters, and returns the exit code.
    pub(crate) fn report(self) -> ExitCode {
        let (message, code) = match self {
            Self::Failed(message) => (message, 1),
            Self::Refused(message) => (message, 2),
            // `dlq list | head` has done all that was asked of it.
            Self::Closed => return ExitCode::SUCCESS,
        };
        // Passwords first: escaping may change their characters, and then they would not be found.
        say!("dlq: {}", crate::output::escape(&crate::secret::hide(&message)));
        ExitCode::from(code)
    }
}

/// Treats the error as one of writing the output, where nearly all I/O with `?` happens. Map errors of other I/O by hand.
impl From<io::Error> for CliError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::Closed,
            _ => Self::Failed(format!(
                "cannot write the output: {error}; check the disk or file that it goes to"
            )),
        }
    }
}

/// Treats the error as one of writing JSON to the output. Map errors of reading JSON by hand.
impl From<serde_json::Error> for CliError {
    fn from(error: serde_json::Error) -> Self {
        match error.io_error_kind() {
            // The kind is enough to tell a closed pipe, which is success, from a disk that is full.
            Some(kind) => io::Error::from(kind).into(),
            None => Self::Failed(format!("cannot write JSON: {error}")),
        }
    }
}

impl From<StoreError> for CliError {
    fn from(error: StoreError) -> Self {
        let message = chain(&error);
        match error.kind() {
            // Both mean that the request has to change, as with wrong arguments.
            StoreErrorKind::Refused | StoreErrorKind::Conflict => Self::Refused(message),
            _ => Self::Failed(message),
        }
    }
}

impl From<EmptyFilter> for CliError {
    fn from(_: EmptyFilter) -> Self {
        Self::refused(
            "cannot choose letters: no filter was given; add one, e.g. --cause decode, or --all for every letter",
        )
    }
}

/// Returns the text of an error and of its sources, joined by `: `.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        // Some libraries end an error's text with that of its source. Print it once.
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

/// Kind of failure to provide a server, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// It is not installed and cannot be installed here; the text says what to run.
    NotInstalled,
    /// There is no recipe for this here; for a server, a URL in the environment is the only way.
    Unsupported,
    /// It was started and did not become ready, or ended; the text has the end of its log.
    NotReady,
    /// Another program listens on the port that it was given.
    PortTaken,
    /// It did not answer, or not as it should.
    NoAnswer,
    /// It is not ours (its URL was given), so it cannot be killed, paused or restarted.
    External,
    /// Something else about files or processes.
    System,
}

/// A server that could not be installed, started or asked.
#[derive(Debug, thiserror::Error)]
#[error("{subject}: {detail}")]
pub struct Error {
    kind: ErrorKind,
    subject: &'static str,
    detail: String,
}

impl Error {
    pub(crate) fn new(
        kind: ErrorKind,
        subject: impl Into<&'static str>,
        detail: impl Into<String>,
    ) -> Self {
        Self { kind, subject: subject.into(), detail: detail.into() }
    }

    /// For the many calls that fail for reasons of the system.
    pub(crate) fn system<S: Into<&'static str>>(
        subject: S,
        what: &str,
    ) -> impl FnOnce(std::io::Error) -> Self + use<S> {
        let what = what.to_owned();
        move |error| Self::new(ErrorKind::System, subject, format!("cannot {what}: {error}"))
    }

    /// Returns the kind of error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

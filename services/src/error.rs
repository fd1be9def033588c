use std::fmt;

use crate::Service;

/// What a program may want to know about a server that could not be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// It is not installed and cannot be installed here; the text says what to run.
    NotInstalled,
    /// There is no recipe for this server here; a URL in the environment is the only way.
    Unsupported,
    /// It was started and did not become ready, or ended; the text has the end of its log.
    NotReady,
    /// It did not answer a ping.
    NoAnswer,
    /// It is not ours (its URL came from the environment), so it cannot be killed, paused or restarted.
    External,
    /// Something else about files or processes.
    System,
}

/// A server that could not be installed, started or asked.
#[derive(Debug, thiserror::Error)]
#[error("{service}: {detail}")]
pub struct Error {
    kind: ErrorKind,
    service: Name,
    detail: String,
}

#[derive(Debug)]
struct Name(Service);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, service: Service, detail: impl Into<String>) -> Self {
        Self { kind, service: Name(service), detail: detail.into() }
    }

    /// For the many calls that fail for reasons of the system.
    pub(crate) fn system(service: Service, what: &str) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.to_owned();
        move |error| Self::new(ErrorKind::System, service, format!("cannot {what}: {error}"))
    }

    /// What kind of error it is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

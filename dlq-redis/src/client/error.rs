//! [`RedisError`]: failures of a server.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dlq_core::{StoreError, StoreErrorKind, TransportError, TransportErrorKind};
use redis::ErrorKind;

/// Reason why a call to Redis failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RedisErrorKind {
    /// The server cannot be reached, does not respond, is loading, full, read-only or between two masters. The same call
    /// may succeed later.
    Unavailable,
    /// The URL or the server cannot be used as they are.
    InvalidConfig,
    /// The user may not run a command, or may not touch a key.
    Forbidden,
    /// A key holds a value of another type.
    WrongType,
    /// The stream or its consumer group does not exist.
    NoGroup,
    /// Anything else.
    Unexpected,
}

/// A call to Redis that failed. Its text never repeats a URL, since that may hold a password.
#[derive(Clone)]
pub struct RedisError {
    kind: RedisErrorKind,
    text: Arc<str>,
    code: Option<Arc<str>>,
    source: Option<redis::RedisError>,
}

/// Codes of errors that pass by themselves, or once an operator has helped.
const PASSING: [&str; 12] = [
    "LOADING",
    "READONLY",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "NOREPLICAS",
    "OOM",
    "MISCONF",
    "BUSY",
    "MOVED",
    "ASK",
    "UNBLOCKED",
];
/// Codes that a server of version 6.2 hides in the text when a script fails.
const HIDDEN: [&str; 5] = ["WRONGTYPE", "NOGROUP", "NOPERM", "OOM", "NOREPLICAS"];

impl RedisError {
    pub(crate) fn new(kind: RedisErrorKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into().into(), code: None, source: None }
    }

    /// Adds the error underneath.
    pub(crate) fn caused_by(self, error: Self) -> Self {
        Self { source: error.source, ..self }
    }

    pub(crate) fn config(text: impl Into<String>) -> Self {
        Self::new(RedisErrorKind::InvalidConfig, text)
    }

    pub(crate) fn timeout(limit: Duration) -> Self {
        Self::new(RedisErrorKind::Unavailable, format!("no response within {limit:?}"))
    }

    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> RedisErrorKind {
        self.kind
    }

    /// Returns true if the same call may succeed later.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        self.kind == RedisErrorKind::Unavailable
    }

    /// Returns the code with which the server responded, such as `WRONGTYPE`, if it responded.
    #[must_use]
    pub fn code(&self) -> Option<&str> {
        self.code.as_deref()
    }

    /// Returns true if the connection is of no use any more.
    pub(crate) fn ends_connection(&self) -> bool {
        // A master that was demoted goes on answering: only a new connection finds its successor.
        let is_demoted = self.code().is_some_and(|code| code == "READONLY");
        is_demoted || (self.kind == RedisErrorKind::Unavailable && self.code.is_none())
    }

    /// Returns true if the connection was lost before there was a response.
    pub(crate) fn is_connection_lost(&self) -> bool {
        // Not a refusal by the server and not a time-out: only a lost connection tells that no answer will come.
        self.source.as_ref().is_some_and(|error| error.is_io_error() && !error.is_timeout())
    }

    /// The error of a store or a sink while it is being opened.
    pub(crate) fn for_store(&self, operation: &'static str) -> StoreError {
        self.store_error(
            operation,
            match self.kind {
                RedisErrorKind::Unavailable => StoreErrorKind::Unavailable,
                RedisErrorKind::InvalidConfig
                | RedisErrorKind::Forbidden
                | RedisErrorKind::WrongType
                | RedisErrorKind::NoGroup => StoreErrorKind::InvalidConfig,
                RedisErrorKind::Unexpected => StoreErrorKind::Unexpected,
            },
        )
    }

    /// The error of a store or a sink that worked before.
    ///
    /// A key of another type or a right that was taken away concern the store and not a letter: they are `Unavailable`, so
    /// that a consumer waits until somebody has helped. `Refused` would give the letter up.
    pub(crate) fn for_running_store(&self, operation: &'static str) -> StoreError {
        self.store_error(
            operation,
            match self.kind {
                RedisErrorKind::Unexpected => StoreErrorKind::Unexpected,
                _ => StoreErrorKind::Unavailable,
            },
        )
    }

    fn store_error(&self, operation: &'static str, kind: StoreErrorKind) -> StoreError {
        let error = StoreError::new(kind, operation).with_detail(&*self.text);
        match &self.source {
            Some(source) => error.with_source(source.clone()),
            None => error,
        }
    }

    /// The error of a source while it is being opened.
    pub(crate) fn for_transport(&self, operation: &'static str) -> TransportError {
        self.transport_error(
            operation,
            match self.kind {
                RedisErrorKind::Unavailable => TransportErrorKind::Unavailable,
                RedisErrorKind::Unexpected => TransportErrorKind::Unexpected,
                _ => TransportErrorKind::InvalidConfig,
            },
        )
    }

    /// The error of a source that worked before: it goes on once somebody has helped.
    pub(crate) fn for_running_transport(&self, operation: &'static str) -> TransportError {
        // Whatever it is: a source that ended because of a right that was taken away would have to be started again by hand.
        self.transport_error(operation, TransportErrorKind::Unavailable)
    }

    fn transport_error(&self, operation: &'static str, kind: TransportErrorKind) -> TransportError {
        let error = TransportError::new(kind, operation).with_detail(&*self.text);
        match &self.source {
            Some(source) => error.with_source(source.clone()),
            None => error,
        }
    }

    fn answered(code: &str, detail: &str) -> (RedisErrorKind, String) {
        // Read from the text as well, since 6.2 hides the code in there when a script fails.
        let is_forbidden = code == "NOPERM" || detail.contains("has no permissions");
        if is_forbidden || detail.contains("can't run this command") {
            // The server names the command or the key between quotes, but not if a script runs it.
            let is_script = detail.contains("can't run this command");
            let name = detail.split('\'').nth(1).filter(|name| !is_script && !name.is_empty());
            let what = match name {
                Some(name) => format!("the user may not run `{name}`"),
                None if is_script => {
                    "the user may not run a command that a script needs".to_owned()
                }
                None => format!("the user lacks a right ({detail})"),
            };
            return (RedisErrorKind::Forbidden, format!("{what}; grant it with `ACL SETUSER`"));
        }
        match code {
            "WRONGTYPE" => {
                let text =
                    "a key holds a value of another type; use another name or remove the key";
                (RedisErrorKind::WrongType, text.to_owned())
            }
            "NOGROUP" => (
                RedisErrorKind::NoGroup,
                "the stream or its consumer group does not exist".to_owned(),
            ),
            "NOAUTH" | "WRONGPASS" => {
                let text = "the server does not accept user and password; check the URL";
                (RedisErrorKind::InvalidConfig, text.to_owned())
            }
            "CROSSSLOT" => {
                let text = "keys of one call are on several nodes; give their names one hash tag";
                (RedisErrorKind::InvalidConfig, text.to_owned())
            }
            "OOM" => (
                RedisErrorKind::Unavailable,
                "the memory of the server is full; remove data or raise `maxmemory`".to_owned(),
            ),
            code if PASSING.contains(&code) => {
                (RedisErrorKind::Unavailable, format!("the server responds {code} {detail}"))
            }
            "ERR" if detail.starts_with("unknown command") => {
                (RedisErrorKind::InvalidConfig, format!("the server is too old: {detail}"))
            }
            "ERR" if detail.contains("max number of clients") => (
                RedisErrorKind::Unavailable,
                "the server has no room for another client".to_owned(),
            ),
            // Not among those that pass: a caller would repeat for ever what the server never takes.
            _ => (RedisErrorKind::Unexpected, format!("the server responds {code} {detail}")),
        }
    }
}

/// Returns true if TLS refused the certificate. The client tells it by text alone.
fn is_untrusted(error: &redis::RedisError) -> bool {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if error.to_string().contains("invalid peer certificate") {
            return true;
        }
        cause = error.source();
    }
    false
}

impl From<redis::RedisError> for RedisError {
    fn from(error: redis::RedisError) -> Self {
        let (kind, text, code) = match error.kind() {
            ErrorKind::Server(_) | ErrorKind::Extension => {
                let detail = error.detail().unwrap_or_default();
                let hidden =
                    || HIDDEN.iter().copied().find(|code| detail.contains(&format!("{code} ")));
                let code = match error.code().unwrap_or("ERR") {
                    // Otherwise a full memory or a missing group would look like an error that nobody expects, and nobody
                    // would wait for it to pass.
                    "ERR" => hidden().unwrap_or("ERR"),
                    code => code,
                };
                let (kind, text) = Self::answered(code, detail);
                (kind, text, Some(Arc::from(code)))
            }
            ErrorKind::AuthenticationFailed => {
                let text = "the server does not accept user and password; check the URL";
                // A server that is busy or has no room fails the log-in, too.
                let is_down = error.is_connection_dropped() || error.is_timeout();
                let kind = if is_down {
                    RedisErrorKind::Unavailable
                } else {
                    RedisErrorKind::InvalidConfig
                };
                (kind, text.to_owned(), None)
            }
            ErrorKind::InvalidClientConfig => {
                (RedisErrorKind::InvalidConfig, "the URL cannot be used".to_owned(), None)
            }
            ErrorKind::Io if is_untrusted(&error) => {
                let text = "the certificate of the server is not trusted; give the certificate of its authority with \
                            `RedisConfig::root_certificate`, and name the server as its certificate does";
                (RedisErrorKind::InvalidConfig, text.to_owned(), None)
            }
            ErrorKind::Io if error.is_timeout() => (
                RedisErrorKind::Unavailable,
                "no response from the server in time".to_owned(),
                None,
            ),
            ErrorKind::Io => (RedisErrorKind::Unavailable, "connection lost".to_owned(), None),
            ErrorKind::ClusterConnectionNotFound
            | ErrorKind::MasterNameNotFoundBySentinel
            | ErrorKind::NoValidReplicasFoundBySentinel => {
                (RedisErrorKind::Unavailable, "no node can be reached".to_owned(), None)
            }
            _ => (RedisErrorKind::Unexpected, "the response cannot be understood".to_owned(), None),
        };
        Self { kind, text: text.into(), code, source: Some(error) }
    }
}

/// The error of a client that could not be opened.
impl From<RedisError> for StoreError {
    fn from(error: RedisError) -> Self {
        error.for_store("connect to Redis")
    }
}

impl fmt::Display for RedisError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for RedisError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisError")
            .field("kind", &self.kind)
            .field("text", &self.text)
            .field("source", &self.source)
            .finish()
    }
}

impl Error for RedisError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}

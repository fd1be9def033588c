//! [`RedisClient`]: connections to one server, to a cluster, or to the master that sentinels name.
//!
//! ```no_run
//! # async fn open() -> Result<(), dlq_redis::RedisError> {
//! let client = dlq_redis::RedisClient::open("redis://localhost:6379").await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Connections
//!
//! All calls share one connection, on which they do not wait for each other. A reader that blocks has a connection of its
//! own. A connection that was lost, that timed out, or whose server has become a replica is replaced at the next call; by
//! sentinels the new master is asked for then.
//!
//! # Repeating
//!
//! The first call after an unnoticed cut fails, and it is open whether the server has carried it out. Every call of this
//! crate is idempotent, mostly since it is a script that looks before it writes; so it is repeated once. A response that
//! did not come in time is not waited for again.

mod check;
#[cfg(feature = "cluster")]
mod cluster;
mod config;
mod endpoint;
mod error;
mod script;
#[cfg(test)]
mod tests;
#[cfg(feature = "tls")]
mod tls;
mod value;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dlq_core::Timestamp;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, Value};
use tokio::sync::Mutex;

use crate::consumer::Written;

pub use check::ServerInfo;
pub use config::RedisConfig;
use endpoint::{Endpoint, Link};
pub use error::{RedisError, RedisErrorKind};
pub(crate) use script::{Script, ScriptCall};
#[allow(unused_imports, reason = "rooms that are built apart use different ones")]
pub(crate) use value::{as_array, as_bytes, as_int, as_text};

/// A client of Redis or Valkey. Cheap to clone; clones share one connection.
///
/// See the [crate docs](crate) for an example.
#[derive(Clone)]
pub struct RedisClient {
    shared: Arc<Inner>,
}

struct Inner {
    endpoint: Endpoint,
    config: RedisConfig,
    info: ServerInfo,
    connection: Mutex<Connection>,
    /// Number of attempts to connect that have failed.
    failures: AtomicU64,
    written: Written,
}

/// The connection that calls share.
struct Connection {
    link: Option<Link>,
    /// Number of connections so far.
    number: u64,
    failed: Option<RedisError>,
}

impl RedisClient {
    /// Connects to one server with the default [settings](RedisConfig):
    /// `redis://[user:password@]host:port[/database]`, or `rediss://` with the feature `tls`.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` when the URL cannot be read, user or password are wrong, or the server cannot be used: it is older
    /// than 6.2, a replica, a node of a cluster, or evicts keys when its memory is full. `Unavailable` when it does not
    /// respond.
    pub async fn open(url: &str) -> Result<Self, RedisError> {
        RedisConfig::new().open(url).await
    }

    /// Connects to a cluster with the default settings. See [`RedisConfig::cluster`].
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open); `InvalidConfig` when a URL names a database.
    #[cfg(feature = "cluster")]
    pub async fn cluster<U: AsRef<str>>(
        urls: impl IntoIterator<Item = U>,
    ) -> Result<Self, RedisError> {
        RedisConfig::new().cluster(urls).await
    }

    /// Connects to the master of this name with the default settings. See [`RedisConfig::sentinel`].
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    #[cfg(feature = "sentinel")]
    pub async fn sentinel<U: AsRef<str>>(
        urls: impl IntoIterator<Item = U>,
        master: &str,
    ) -> Result<Self, RedisError> {
        RedisConfig::new().sentinel(urls, master).await
    }

    /// Returns the facts that the server said of itself when the client was opened.
    #[must_use]
    pub fn server(&self) -> &ServerInfo {
        &self.shared.info
    }

    /// Returns true if the nodes of a cluster divide the keys.
    #[must_use]
    pub fn is_cluster(&self) -> bool {
        self.shared.endpoint.is_cluster()
    }

    /// Returns the records that clones of this client have written and whose messages are not acknowledged yet.
    pub(crate) fn written(&self) -> &Written {
        &self.shared.written
    }

    async fn connect(endpoint: Endpoint, config: RedisConfig) -> Result<Self, RedisError> {
        let limit = config.response_timeout;
        let mut node = endpoint.node("", &config, Some(limit)).await?;
        let info =
            endpoint::within(limit, redis::cmd("INFO").query_async::<Value>(&mut node)).await;
        let info = match info {
            Ok(text) => ServerInfo::read(&as_text(&text).unwrap_or_default()),
            // A user with few rights may not run it, and what is not known is no reason to refuse a server that may be well.
            Err(error) if error.kind() == RedisErrorKind::Forbidden => {
                tracing::warn!(address = %endpoint, "the user may not run `info`: version and settings are unknown");
                ServerInfo::default()
            }
            Err(error) => return Err(error),
        };
        #[cfg(feature = "sentinel")]
        let by_sentinel = matches!(endpoint, Endpoint::Sentinel { .. });
        #[cfg(not(feature = "sentinel"))]
        let by_sentinel = false;
        let address = endpoint.to_string();
        info.judge(&address, endpoint.is_cluster(), by_sentinel, config.allow_eviction)?;
        // The connection that was made for `INFO` serves calls from now on. A cluster has a client of its own for them.
        let link = match endpoint.is_cluster() {
            true => endpoint.connect(&config).await?,
            false => Link::Node(node),
        };
        let connection = Mutex::new(Connection { link: Some(link), number: 1, failed: None });
        let failures = AtomicU64::new(0);
        let written = Written::default();
        let shared = Inner { endpoint, config, info, connection, failures, written };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Returns the connection and its number, and connects where there is none.
    ///
    /// Callers that waited while an attempt failed share its error: each would wait for a time limit of its own otherwise.
    async fn link(&self) -> Result<(Link, u64), RedisError> {
        let shared = &*self.shared;
        // The number is read before the lock is waited for: a greater one afterwards means that an attempt has failed
        // meanwhile.
        let before = shared.failures.load(Ordering::Acquire);
        let mut connection = shared.connection.lock().await;
        if let Some(link) = &connection.link {
            return Ok((link.clone(), connection.number));
        }
        if shared.failures.load(Ordering::Acquire) != before
            && let Some(error) = &connection.failed
        {
            return Err(error.clone());
        }
        match shared.endpoint.connect(&shared.config).await {
            Ok(link) => {
                connection.number += 1;
                connection.link = Some(link.clone());
                Ok((link, connection.number))
            }
            Err(error) => {
                connection.failed = Some(error.clone());
                shared.failures.fetch_add(1, Ordering::AcqRel);
                Err(error)
            }
        }
    }

    /// Gives up a connection that is of no use. The client of a cluster replaces connections to its nodes by itself.
    async fn dismiss(&self, number: u64, error: &RedisError) {
        if !error.ends_connection() || self.is_cluster() {
            return;
        }
        let mut connection = self.shared.connection.lock().await;
        // Another call may have replaced the connection by now, and its successor works.
        if connection.number == number {
            connection.link = None;
        }
    }

    /// Makes a call, and repeats it after its connection was lost. Returns the answer and the number of its connection.
    async fn attempt<T, F>(&self, call: impl Fn(Link) -> F) -> Result<(T, u64), RedisError>
    where
        F: Future<Output = Result<T, RedisError>>,
    {
        let mut left = self.shared.config.retries;
        loop {
            let (link, number) = self.link().await?;
            let error = match call(link).await {
                Ok(answer) => return Ok((answer, number)),
                Err(error) => error,
            };
            self.dismiss(number, &error).await;
            // A time-out is not repeated: the server may still be at it, and the caller has waited its time.
            if left == 0 || !error.is_connection_lost() {
                return Err(error);
            }
            tracing::debug!(address = %self.shared.endpoint, %error, "connection lost; retrying");
            left -= 1;
        }
    }

    fn limit(&self) -> Duration {
        self.shared.config.response_timeout
    }

    /// Runs a command that may be repeated.
    pub(crate) async fn command(&self, cmd: &Cmd) -> Result<Value, RedisError> {
        let limit = self.limit();
        let answer = self.attempt(|mut link| async move { link.run(cmd, limit).await }).await?;
        Ok(answer.0)
    }

    /// Runs commands that may be repeated, in one round trip; each has its own answer. In a cluster their keys are in one
    /// slot.
    pub(crate) async fn commands(
        &self,
        cmds: &[Cmd],
    ) -> Result<Vec<Result<Value, RedisError>>, RedisError> {
        self.commands_within(cmds, self.limit()).await
    }

    async fn commands_within(
        &self,
        cmds: &[Cmd],
        limit: Duration,
    ) -> Result<Vec<Result<Value, RedisError>>, RedisError> {
        if cmds.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipeline = Pipeline::with_capacity(cmds.len());
        for cmd in cmds {
            pipeline.add_command(cmd.clone());
        }
        // Each command keeps its own answer, so that a letter that is refused does not fail the others.
        pipeline.ignore_errors();
        let pipeline = &pipeline;
        let (answers, number) =
            self.attempt(|mut link| async move { link.run_all(pipeline, limit).await }).await?;
        let mut outcomes = Vec::with_capacity(answers.len());
        for answer in answers {
            let outcome = answer.map_err(RedisError::from);
            // A master that was demoted answers every command of a pipeline.
            if let Err(error) = &outcome {
                self.dismiss(number, error).await;
            }
            outcomes.push(outcome);
        }
        Ok(outcomes)
    }

    /// Runs a script.
    pub(crate) async fn script(&self, call: &ScriptCall) -> Result<Value, RedisError> {
        // A server knows the script unless it has restarted or failed over, so the text is not sent each time.
        match self.command(call.by_digest()).await {
            Err(error) if error.code() == Some("NOSCRIPT") => self.command(&call.by_text()).await,
            answer => answer,
        }
    }

    /// Runs a script and then `touch`, which writes in the same slot, and waits until `wanted` replicas have both. Returns the
    /// answer and the number of replicas that have.
    ///
    /// `WAIT` only knows what its own connection has written, so all three go over one connection in one round trip. It counts
    /// from the last write of that connection: `touch` is later than whatever the script has found written before. So a
    /// repetition after a lost answer is confirmed as well.
    pub(crate) async fn replicated(
        &self,
        call: &ScriptCall,
        touch: &Cmd,
        wanted: u32,
        replica_timeout: Duration,
    ) -> Result<(Value, u64), RedisError> {
        let mut wait = redis::cmd("WAIT");
        // Zero would be for ever.
        let millis = u64::try_from(replica_timeout.as_millis()).unwrap_or(u64::MAX).max(1);
        wait.arg(wanted).arg(millis);
        // The server may wait for its replicas for that long before it answers at all.
        let limit = self.limit().saturating_add(replica_timeout);
        // The text goes along only when the server turns out not to know the script.
        let mut script = call.by_digest().clone();
        loop {
            // Known by its own first word: a server that does not know a script by its text either would be asked for ever.
            let is_told = script.args_iter().next() == Some(redis::Arg::Simple(b"EVAL".as_slice()));
            let cmds = [script, touch.clone(), wait.clone()];
            let mut answers = self.commands_within(&cmds, limit).await?.into_iter();
            let missing = || RedisError::new(RedisErrorKind::Unavailable, "an answer is missing");
            let mut next = || answers.next().ok_or_else(missing)?;
            match next() {
                Err(error) if error.code() == Some("NOSCRIPT") && !is_told => {
                    script = call.by_text();
                }
                Err(error) => return Err(error),
                Ok(answer) => {
                    next()?;
                    return Ok((answer, u64::try_from(as_int(&next()?)).unwrap_or(0)));
                }
            }
        }
    }

    /// Runs several scripts in one round trip, each with its own answer. Those that the server does not know are run
    /// afterwards, in a second one.
    pub(crate) async fn scripts(
        &self,
        calls: &[ScriptCall],
    ) -> Result<Vec<Result<Value, RedisError>>, RedisError> {
        let cmds: Vec<Cmd> = calls.iter().map(|call| call.by_digest().clone()).collect();
        let mut answers = self.commands(&cmds).await?;
        let is_unknown = |answer: &Result<Value, RedisError>| {
            answer.as_ref().is_err_and(|error| error.code() == Some("NOSCRIPT"))
        };
        let unknown: Vec<usize> =
            (0..answers.len()).filter(|at| is_unknown(&answers[*at])).collect();
        if unknown.is_empty() {
            return Ok(answers);
        }
        // The first call of a script brings its text; the server runs them in this order.
        let mut told: Vec<&'static Script> = Vec::new();
        let cmds: Vec<Cmd> = unknown
            .iter()
            .map(|at| {
                let call = &calls[*at];
                if told.iter().any(|script| call.is_of(script)) {
                    return call.by_digest().clone();
                }
                told.push(call.script());
                call.by_text()
            })
            .collect();
        for (at, answer) in unknown.into_iter().zip(self.commands(&cmds).await?) {
            answers[at] = answer;
        }
        Ok(answers)
    }

    /// Opens a connection to each server that has keys: to each master of a cluster, otherwise to the one server.
    pub(crate) async fn masters(&self) -> Result<Vec<MultiplexedConnection>, RedisError> {
        self.shared.endpoint.masters(&self.shared.config).await
    }

    /// Returns the time of the server.
    pub(crate) async fn time(&self) -> Result<Timestamp, RedisError> {
        let answer = self.command(&redis::cmd("TIME")).await?;
        let parts = as_array(&answer);
        let part = |at: usize| parts.get(at).map_or(0, as_int);
        Ok(Timestamp::from_nanos(part(0).saturating_mul(1_000_000).saturating_add(part(1)) * 1_000))
    }

    /// Opens a connection for one reader, to the node that has this key. A response on it may take any time.
    pub(crate) async fn dedicated(&self, key: &str) -> Result<MultiplexedConnection, RedisError> {
        self.shared.endpoint.node(key, &self.shared.config, None).await
    }
}

impl fmt::Debug for RedisClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisClient")
            .field("address", &self.shared.endpoint.to_string())
            .finish_non_exhaustive()
    }
}

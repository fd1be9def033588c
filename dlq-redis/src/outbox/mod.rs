//! [`RedisOutbox`]: sends letters of a store back to streams.

mod scripts;
mod send;
mod survey;

use std::collections::BTreeSet;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use dlq_core::outbox::{Address, Outbox, Outgoing, Sent, Settled, Survey};
use dlq_core::replay::Skipped;
use dlq_core::store::Target;
use dlq_core::{BindingKey, DeadLetter, StoreError, Timestamp};
use tokio::time::Instant;

use crate::client::RedisClient;
use crate::consumer::Keys;
use crate::consumer::wire::Fields;

/// Time for which a stream's slot keeps what was sent.
const KEPT: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// The name of an action in its errors.
const REPLAYING: &str = "send a dead letter back";

/// Sends letters of a store back to the streams of one server or cluster; an [`Outbox`].
///
/// | target | where a letter goes |
/// |---|---|
/// | origin | to the stream where it was born |
/// | a subject | to the stream whose key it is |
/// | handler | nowhere: what is due for a handler is kept by the store |
///
/// ```no_run
/// # async fn outboxes() -> Result<(), Box<dyn std::error::Error>> {
/// use dlq_core::outbox::Outboxes;
/// use dlq_redis::{RedisClient, RedisOutbox};
///
/// let client = RedisClient::open("redis://localhost:6379").await?;
/// let mut outboxes = Outboxes::new();
/// outboxes.add(RedisOutbox::new(&client).cluster("eu"))?;
/// # Ok(()) }
/// ```
///
/// # Once
///
/// One script looks for the mark of a letter, adds the letter to its stream, and sets the mark. Stream and mark are in one
/// slot, so that both are there or neither is. The mark is a key of its own with the id of the entry; it is kept for 7 days
/// and names the letter, its generation and the operation, so that whoever repeats a letter finds it.
///
/// | what happens | the server has | then |
/// |---|---|---|
/// | the process dies before the script has run | nothing | settle finds no mark: not there |
/// | it dies after it | the letter and the mark | settle finds the mark: arrived |
/// | a sender that stood still goes on after its lease | | it finds the mark of its successor, or the successor finds its mark |
/// | a fail-over forgets letter and mark | nothing | a letter that was recorded as `sent` before is lost |
/// | a fail-over forgets, and nothing was recorded | nothing | settle finds no mark: the letter is sent again |
///
/// An answer about a claim that is older than 7 days is unclear.
///
/// # What is refused
///
/// A letter whose stream is not there or whose key is no stream, and one that the server finds too large, is
/// [`Sent::Refused`]. A server that is full, loading or read-only gives [`Sent::Later`]; one that does not respond,
/// [`Sent::Unknown`].
///
/// # Rights
///
/// To run `EVALSHA`, `EVAL`, `TYPE`, `GET`, `SET` and `XADD` on the keys of the streams and of their marks. A
/// [survey](Outbox::survey) names those that are missing, from version 7 of the server on.
#[derive(Clone, Debug)]
#[must_use]
pub struct RedisOutbox {
    client: RedisClient,
    cluster: Arc<str>,
    sender: Arc<str>,
    key: Option<BindingKey>,
    fields: Fields,
}

impl RedisOutbox {
    /// Makes an outbox for the cluster `default`, with a sender of its own.
    pub fn new(client: &RedisClient) -> Self {
        Self {
            client: client.clone(),
            cluster: "default".into(),
            sender: format!("redis-{:016x}", RandomState::new().build_hasher().finish()).into(),
            key: None,
            fields: Fields::default(),
        }
    }

    /// Sets the alias of the cluster, by which origins of letters name it. Defaults to `default`.
    pub fn cluster(mut self, alias: impl Into<Arc<str>>) -> Self {
        self.cluster = alias.into();
        self
    }

    /// Sets the name of the sender. Defaults to one that no other has.
    pub fn sender(mut self, name: impl Into<Arc<str>>) -> Self {
        self.sender = name.into();
        self
    }

    /// Sets the secret by which letters are bound; the same as the consumer's. Defaults to none.
    pub fn binding_key(mut self, key: BindingKey) -> Self {
        self.key = Some(key);
        self
    }

    /// Sets the field of an entry that has the payload; the same as the consumer's. Defaults to `d`.
    pub fn payload_field(mut self, name: impl Into<String>) -> Self {
        self.fields.payload = name.into();
        self
    }

    /// Sets the field of an entry that has the key; the same as the consumer's. Defaults to `k`.
    pub fn key_field(mut self, name: impl Into<String>) -> Self {
        self.fields.key = name.into();
        self
    }
}

impl Outbox for RedisOutbox {
    fn transport(&self) -> &'static str {
        "redis"
    }

    fn cluster(&self) -> &str {
        &self.cluster
    }

    fn sender(&self) -> &str {
        &self.sender
    }

    fn route(&self, letter: &DeadLetter, to: &Target) -> Result<Address, Skipped> {
        let origin = &letter.origin;
        let stream = match to {
            Target::Origin => {
                // A stream of the same name at another server is another stream.
                let is_here = origin.transport() == "redis" && origin.cluster() == &*self.cluster;
                is_here.then_some(origin.stream())
            }
            Target::Subject(stream) => Some(stream.as_str()),
            _ => None,
        };
        // Without keys of its own in the same slot, a letter could not be sent once.
        let stream = stream.filter(|stream| Keys::of(stream).is_ok());
        let address = |stream: &str| Address::new("redis", Arc::clone(&self.cluster), stream);
        stream.map(address).ok_or(Skipped::NoOrigin)
    }

    async fn survey(&self, to: BTreeSet<Address>) -> Result<Survey, StoreError> {
        self.look(to).await
    }

    async fn send(&self, batch: Vec<Outgoing>, until: Instant) -> Result<Vec<Sent>, StoreError> {
        Ok(self.send_all(&batch, until).await)
    }

    async fn settle(
        &self,
        _: String,
        since: Timestamp,
        batch: Vec<Outgoing>,
    ) -> Result<Vec<Settled>, StoreError> {
        self.settle_all(since, &batch).await
    }
}

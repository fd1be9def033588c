use std::sync::Arc;
use std::time::Duration;

use dlq_core::protocol::Incoming;
use dlq_core::{
    Addressee, BindingKey, BoxCrashMarks, BoxRetryQueue, BoxSink, OpenError, Opened, SharedClock,
    StoreError, SystemClock, Transport, TransportError,
};

use super::keys::Keys;
use super::marks::RedisCrashMarks;
use super::place::{GroupMember, unique_name};
use super::retry_queue::RedisRetryQueue;
use super::scripts::PERMITTED;
use super::shared::SourceState;
use super::source::RedisSource;
use super::wire::Fields;
use crate::client::{RedisClient, RedisError, RedisErrorKind, as_array, as_text};
use crate::dead::RedisSink;

const OPENING: &str = "open a stream";

/// The entry at which a consumer group begins that the server does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Start {
    /// The first entry of the stream.
    Earliest,
    /// The first entry that is added from now on.
    Latest,
}

/// Description of a stream and its consumer group, from which everything is opened that a consumer needs.
///
/// ```no_run
/// # async fn open() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use dlq_redis::{RedisClient, RedisTransport};
///
/// let client = RedisClient::open("redis://localhost:6379").await?;
/// let opened = RedisTransport::new("payments").name("billing").open(&client).await?;
/// // `opened.source`, `opened.retry_queue`, `opened.dead_letters` and `opened.crash_marks` go to a stack composed by hand.
/// # Ok(())
/// # }
/// ```
///
/// A consumer (`Consumer::on` of `dlq-tower`) takes the description and the client, opens what it needs, and names the group
/// after its handler.
#[derive(Clone, Debug)]
#[must_use]
pub struct RedisTransport {
    stream: String,
    name: Option<Arc<str>>,
    start: Start,
    lease: Duration,
    prefetch: usize,
    fields: Fields,
    event_header: Option<Arc<str>>,
    cluster: Arc<str>,
    key: Option<BindingKey>,
    recreate: bool,
    confirms: bool,
    dead: Option<String>,
    most: Option<u64>,
    window: Duration,
    clock: SharedClock,
}

impl RedisTransport {
    /// Describes the stream with this key.
    pub fn new(stream: impl Into<String>) -> Self {
        Self {
            stream: stream.into(),
            name: None,
            start: Start::Earliest,
            lease: Duration::from_secs(60),
            prefetch: 32,
            fields: Fields::default(),
            event_header: None,
            cluster: Arc::from("default"),
            key: None,
            recreate: false,
            confirms: false,
            dead: None,
            most: None,
            window: Duration::from_secs(3600),
            clock: SystemClock::shared(),
        }
    }

    /// Sets the name of the consumer, which is that of its consumer group. Defaults to the name of the handler. Letters that
    /// are sent back to their handler look for the group by it.
    pub fn name(mut self, name: impl Into<Arc<str>>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets the entry at which a new group begins. Defaults to [`Start::Earliest`].
    pub fn start(mut self, start: Start) -> Self {
        self.start = start;
        self
    }

    /// Sets the time after which a message of a silent process is handed to another. Leases are renewed while a handler
    /// runs. All processes of a group need the same. Defaults to 60 seconds.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Sets the number of messages that are fetched ahead; at least 1. Defaults to 32.
    pub fn prefetch(mut self, messages: usize) -> Self {
        self.prefetch = messages.max(1);
        self
    }

    /// Sets the field with the payload. An entry without it is handed out with all of its fields as JSON. Defaults to `d`.
    pub fn payload_field(mut self, name: impl Into<String>) -> Self {
        self.fields.payload = name.into();
        self
    }

    /// Sets the field with the key. Defaults to `k`.
    pub fn key_field(mut self, name: impl Into<String>) -> Self {
        self.fields.key = name.into();
        self
    }

    /// Sets the header with the type of the event. A field `NAME` of a foreign entry is the header `field:NAME`. Defaults to
    /// none.
    pub fn event_header(mut self, name: impl Into<Arc<str>>) -> Self {
        self.event_header = Some(name.into());
        self
    }

    /// Sets the alias of the server, which is part of the identity of letters. Defaults to `default`.
    pub fn cluster_alias(mut self, alias: impl Into<Arc<str>>) -> Self {
        self.cluster = alias.into();
        self
    }

    /// Sets the secret by which letters are bound that are sent back to the stream. Defaults to none.
    pub fn binding_key(mut self, key: BindingKey) -> Self {
        self.key = Some(key);
        self
    }

    /// Allows that the group is recreated at the first entry when it disappears while it is read. Messages may then be lost
    /// or come again, and the log says so at level `ERROR`. Defaults to false: the source fails until an operator has
    /// recreated it.
    pub fn recreate_group(mut self, allow: bool) -> Self {
        self.recreate = allow;
        self
    }

    /// Sets whether the acknowledgement of a message that succeeded is awaited before its place is given to another.
    /// Otherwise it is sent and not awaited, up to 1,024 of them: more messages come again when the process dies, and each is a
    /// duplicate where it has an idempotency key. Letters and retry records are confirmed before their message is
    /// acknowledged, whatever is set. Defaults to false.
    pub fn confirm_acks(mut self, confirm: bool) -> Self {
        self.confirms = confirm;
        self
    }

    /// Sets the key of the stream of dead letters, which has to be in the slot of the stream. Defaults to `{STREAM}:dlq`.
    pub fn dead_letter_stream(mut self, key: impl Into<String>) -> Self {
        self.dead = Some(key.into());
        self
    }

    /// Sets the number of dead letters beyond which none is taken. Consumption stops then, until letters are removed; none
    /// is ever trimmed. Defaults to no bound.
    pub fn max_dead_letters(mut self, letters: u64) -> Self {
        self.most = Some(letters);
        self
    }

    /// Sets the time for which a second copy of a letter or a retry record is recognised. Defaults to an hour.
    pub fn duplicate_window(mut self, time: Duration) -> Self {
        self.window = time;
        self
    }

    /// Sets the clock from which due times are taken. Defaults to the machine's.
    pub fn clock(mut self, clock: SharedClock) -> Self {
        self.clock = clock;
        self
    }

    /// Writes a message as fields and values of an entry, for `XADD`.
    #[must_use]
    pub fn entry(&self, message: &dlq_core::Message) -> Vec<Vec<u8>> {
        let subject = self.keys().map(|keys| keys.subject()).unwrap_or_default();
        super::wire::entry(message, &self.fields, &subject)
    }

    fn group(&self) -> Result<Arc<str>, RedisError> {
        self.name.clone().ok_or_else(|| {
            RedisError::config(format!(
                "the consumer of `{}` has no name; give it that of its handler: `.name(…)`",
                self.stream
            ))
        })
    }

    fn named(&self, name: &str) -> Self {
        self.clone().name(name)
    }

    fn keys(&self) -> Result<Keys, RedisError> {
        Keys::of(&self.stream)
    }

    /// Opens source, retry queue, dead-letter sink and crash marks.
    ///
    /// # Errors
    ///
    /// As [`source`](Self::source).
    pub async fn open(&self, client: &RedisClient) -> Result<Opened<RedisSource>, OpenError> {
        Opened::open(self, client).await
    }

    /// Opens the source, and creates stream and group where they are missing.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` when it has no name, a key holds a value of another type, or the user may not run a command
    /// that is needed; `Unavailable` when the server does not respond.
    pub async fn source(&self, client: &RedisClient) -> Result<RedisSource, TransportError> {
        let prepared = self.prepare(client).await;
        let place = prepared.map_err(|error| error.for_transport(OPENING))?;
        let incoming = Incoming {
            addressee: Addressee::new(Arc::clone(&place.group)),
            key: self.key.clone(),
            id_header: None,
            event_header: self.event_header.clone(),
        };
        let shared = SourceState::new(
            client.clone(),
            Arc::new(place),
            self.prefetch,
            self.recreate,
            self.confirms,
        );
        Ok(RedisSource::new(shared, incoming, Arc::clone(&self.cluster), true))
    }

    /// Opens the retry queue.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` when the key of the stream has braces that are no hash tag.
    pub async fn retry_queue(&self, client: &RedisClient) -> Result<RedisRetryQueue, StoreError> {
        self.queue(client).map_err(|error| error.for_store("open a retry queue"))
    }

    /// Opens the stream of dead letters.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` when its key is not in the slot of the stream.
    pub async fn dead_letters(&self, client: &RedisClient) -> Result<RedisSink, StoreError> {
        self.sink(client).map_err(|error| error.for_store("open a stream of dead letters"))
    }

    /// Opens the crash marks.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` when the key of the stream has braces that are no hash tag.
    pub async fn crash_marks(&self, client: &RedisClient) -> Result<RedisCrashMarks, StoreError> {
        let keys = self.keys().map_err(|error| error.for_store("open crash marks"))?;
        Ok(RedisCrashMarks::new(client.clone(), keys))
    }

    fn queue(&self, client: &RedisClient) -> Result<RedisRetryQueue, RedisError> {
        Ok(RedisRetryQueue {
            client: client.clone(),
            keys: self.keys()?,
            group: self.group()?,
            clock: self.clock.clone(),
            window: self.window,
        })
    }

    fn dead_key(&self, keys: &Keys) -> Result<String, RedisError> {
        let dead = self.dead.clone().unwrap_or_else(|| keys.dead());
        // One script writes the letter and its mark, and in a cluster it reaches keys of one slot only.
        if keys.is_near(&dead) && dead != self.stream {
            return Ok(dead);
        }
        let wanted = keys.dead();
        Err(RedisError::config(format!(
            "`{dead}` cannot take the dead letters of `{}`: it has to be another key with the same hash tag, as `{wanted}`",
            self.stream
        )))
    }

    fn sink(&self, client: &RedisClient) -> Result<RedisSink, RedisError> {
        let keys = self.keys()?;
        let dead = self.dead_key(&keys)?;
        Ok(RedisSink::new(client.clone(), keys, dead, self.most, self.window))
    }

    /// Checks what can be known at the start, and creates stream and group.
    async fn prepare(&self, client: &RedisClient) -> Result<GroupMember, RedisError> {
        let keys = self.keys()?;
        let dead = self.dead_key(&keys)?;
        let group = self.group()?;
        // A right that is missing would show in the middle of a settlement, when the handler has run already.
        self.check_rights(client, &keys, &dead, &group).await?;
        // A wrong type is refused at the start: scripts would meet it only when a message is to be settled.
        for (key, wanted) in [
            (&*keys.stream, "stream"),
            (&*dead, "stream"),
            (&*keys.due(&group), "zset"),
            (&*keys.later(&group), "zset"),
        ] {
            let found = client.command(redis::cmd("TYPE").arg(key)).await?;
            let found = as_text(&found).unwrap_or_default();
            if found != "none" && found != wanted {
                return Err(RedisError::new(
                    RedisErrorKind::WrongType,
                    format!(
                        "key `{key}` holds a value of type {found}, not {wanted}; use another name or remove the key"
                    ),
                ));
            }
        }
        // `MKSTREAM` creates the stream as well, so that a consumer may start before its producer.
        let mut cmd = redis::cmd("XGROUP");
        cmd.arg("CREATE").arg(&*keys.stream).arg(&*group);
        cmd.arg(if self.start == Start::Latest { "$" } else { "0" }).arg("MKSTREAM");
        match client.command(&cmd).await {
            Ok(_) => {}
            // Another process of the group, or an earlier start, has created it.
            Err(error) if error.code() == Some("BUSYGROUP") => {}
            Err(error) => return Err(error),
        }
        let subject = keys.subject();
        let (lease, window, fields) = (self.lease, self.window, self.fields.clone());
        Ok(GroupMember { keys, group, me: unique_name(), lease, window, fields, subject })
    }

    /// Names commands that the user may not run, where the server can tell (7.0 and later).
    async fn check_rights(
        &self,
        client: &RedisClient,
        keys: &Keys,
        dead: &str,
        group: &str,
    ) -> Result<(), RedisError> {
        // The last key stands for all keys beside the stream, whose names begin alike.
        let call = PERMITTED.keys(&[&*keys.stream, dead, &keys.later(group)]);
        let forbidden = client.script(&call).await?;
        let names: Vec<_> = as_array(&forbidden)
            .iter()
            .filter_map(as_text)
            .map(|name| format!("`{name}`"))
            .collect();
        if names.is_empty() {
            return Ok(());
        }
        Err(RedisError::new(
            RedisErrorKind::Forbidden,
            format!(
                "the user may not run {} on keys of `{}`; grant it with `ACL SETUSER`",
                names.join(", "),
                self.stream
            ),
        ))
    }
}

impl Transport<RedisClient> for RedisTransport {
    type Source = RedisSource;

    fn consumer_name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    fn summary(&self) -> String {
        format!("Redis stream {}", self.stream)
    }

    async fn source(
        &self,
        client: &RedisClient,
        name: &str,
    ) -> Result<RedisSource, TransportError> {
        self.named(name).source(client).await
    }

    async fn retry_queue(
        &self,
        client: &RedisClient,
        name: &str,
    ) -> Result<Option<BoxRetryQueue>, StoreError> {
        Ok(Some(BoxRetryQueue::new(self.named(name).retry_queue(client).await?)))
    }

    async fn dead_letters(&self, client: &RedisClient, name: &str) -> Result<BoxSink, StoreError> {
        Ok(BoxSink::new(self.named(name).dead_letters(client).await?))
    }

    async fn crash_marks(
        &self,
        client: &RedisClient,
        _source: &mut RedisSource,
    ) -> Result<Option<BoxCrashMarks>, StoreError> {
        Ok(Some(BoxCrashMarks::new(RedisTransport::crash_marks(self, client).await?)))
    }
}

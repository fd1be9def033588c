//! A server for each check.

use std::fmt::Debug;
use std::marker::PhantomData;
use std::sync::Arc;

use dlq_core::outbox::{Once, Outbox as _, Outgoing, Sent};
use dlq_core::protocol::Replay;
use dlq_core::store::Target;
use dlq_core::{DeadLetter, LetterId, Message, OperationId, Origin, Position, Timestamp};
use dlq_redis::{RedisClient, RedisOutbox, redis};
use dlq_services::{Error, Redis, Running, Service, ensure_installed, or_skip};
use dlq_testkit::fixtures::{CONSUMER, letter};
use dlq_testkit::outbox::OutboxFixture;
use redis::aio::MultiplexedConnection;
use redis::{AsyncCommands as _, Value};
use tokio::time::{Duration, Instant};

/// Time that a test waits for what must come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) const STREAM: &str = "orders.created";

/// A server that checks run at.
pub(crate) trait Which: Debug + Send + Sync + 'static {
    fn start(settings: &[(&str, &str)]) -> Result<Running, Error>;
}

#[derive(Debug)]
pub(crate) struct Redis7;

#[derive(Debug)]
pub(crate) struct Redis6;

#[derive(Debug)]
pub(crate) struct Valkey9;

fn start(version: Option<&str>, settings: &[(&str, &str)]) -> Result<Running, Error> {
    let mut builder = Redis::builder().ours();
    if let Some(version) = version {
        builder = builder.program(Redis::installed(version)?);
    } else {
        ensure_installed(Service::Redis)?;
    }
    for (name, value) in settings {
        builder = builder.setting(*name, *value);
    }
    builder.start()
}

impl Which for Redis7 {
    fn start(settings: &[(&str, &str)]) -> Result<Running, Error> {
        start(None, settings)
    }
}

impl Which for Redis6 {
    fn start(settings: &[(&str, &str)]) -> Result<Running, Error> {
        start(Some("6.2"), settings)
    }
}

impl Which for Valkey9 {
    fn start(settings: &[(&str, &str)]) -> Result<Running, Error> {
        start(Some("valkey-9"), settings)
    }
}

/// A server with a stream, and a key that is none.
#[derive(Debug)]
pub(crate) struct Fixture<W> {
    pub(crate) server: Running,
    which: PhantomData<W>,
}

impl<W: Which> Fixture<W> {
    /// Starts a server with these settings; `None` where there is none to be had.
    pub(crate) async fn new(settings: &[(&str, &str)]) -> Option<Self> {
        let server = or_skip(Service::Redis, W::start(settings)).ok()?;
        let fixture = Self { server, which: PhantomData };
        let mut raw = fixture.raw().await;
        let _: () = raw.xgroup_create_mkstream(STREAM, "billing", "0").await.unwrap();
        let _: () = raw.set("no-stream", "x").await.unwrap();
        Some(fixture)
    }

    pub(crate) async fn raw(&self) -> MultiplexedConnection {
        let client = redis::Client::open(self.server.url()).unwrap();
        client.get_multiplexed_async_connection().await.unwrap()
    }

    /// Number of entries in the stream.
    pub(crate) async fn entries(&self) -> u64 {
        self.raw().await.xlen(STREAM).await.unwrap()
    }
}

/// The `n`-th letter of the testkit, as one that was born in this stream.
pub(crate) fn born(n: u64, stream: &str) -> DeadLetter {
    let mut letter = letter(n);
    letter.origin = Origin::new("redis", stream, Position::Offset(n));
    letter.id = LetterId::of(&letter.origin, letter.message.published_at(), CONSUMER);
    letter
}

/// Letters to their origin, by one operation.
pub(crate) fn batch(outbox: &RedisOutbox, letters: Vec<DeadLetter>) -> Vec<Outgoing> {
    let operation = OperationId::from_bytes([3; 16]);
    let outgoing = |letter: DeadLetter| Outgoing {
        to: outbox.route(&letter, &Target::Origin).unwrap(),
        once: Once::in_operation(letter.death(), operation),
        replay: Replay { operation, count: 1, from: "store".to_owned(), at: Timestamp::EPOCH },
        letter: Arc::new(letter),
    };
    letters.into_iter().map(outgoing).collect()
}

pub(crate) async fn send(outbox: &RedisOutbox, batch: Vec<Outgoing>) -> Vec<Sent> {
    dlq_core::outbox::Outbox::send(outbox, batch, Instant::now() + PATIENCE).await.unwrap()
}

impl<W: Which> OutboxFixture for Fixture<W> {
    type Outbox = RedisOutbox;

    fn is_available() -> bool {
        or_skip(Service::Redis, ensure_installed(Service::Redis)).is_ok()
    }

    async fn fresh(_: &'static str) -> Self {
        Self::new(&[]).await.expect("it is installed")
    }

    async fn outbox(&self, sender: &str) -> RedisOutbox {
        let client = RedisClient::open(self.server.url()).await.unwrap();
        RedisOutbox::new(&client).sender(sender)
    }

    fn letter(&self, n: u64) -> DeadLetter {
        born(n, STREAM)
    }

    fn unacceptable(&self, _: &RedisOutbox, n: u64) -> DeadLetter {
        born(n, "no-stream")
    }

    async fn listen(&self, consumer: &str) -> bool {
        let mut raw = self.raw().await;
        let _: () = raw.xgroup_create(STREAM, consumer, "$").await.unwrap();
        true
    }

    /// Calls that were handed to the server before are answered before one on the same connection.
    async fn calm(&self, outbox: &RedisOutbox) {
        let marker = born(1_000_000, "no-stream");
        send(outbox, batch(outbox, vec![marker])).await;
    }

    async fn arrived(&self) -> Vec<Message> {
        let mut raw = self.raw().await;
        let entries: Value =
            redis::cmd("XRANGE").arg(STREAM).arg("-").arg("+").query_async(&mut raw).await.unwrap();
        let entries: Vec<(String, Fields)> = redis::from_redis_value(entries).unwrap();
        entries.into_iter().map(|(_, fields)| message(fields)).collect()
    }
}

/// Names and values of an entry.
type Fields = Vec<(String, Vec<u8>)>;

/// An entry as consumers read it.
fn message(fields: Fields) -> Message {
    let mut message = Message::tombstone(STREAM);
    for (name, value) in fields {
        message = match (&*name, name.strip_prefix("h:")) {
            ("d", _) => message.with_payload(Some(value.into())),
            ("k", _) => message.with_key(value),
            ("id", _) => message.with_id(String::from_utf8(value).unwrap()),
            (_, Some(header)) => message.with_header(header.to_owned(), value),
            _ => panic!("field `{name}` is not of a message"),
        };
    }
    message
}

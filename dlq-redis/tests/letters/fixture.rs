//! A stream and its dead letters, as the conformance suite for brokers wants them.

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use dlq_core::log::Log as _;
use dlq_core::replay::{ReplayOutcome, ReplayPlan, ReplayReport};
use dlq_core::{DeadLetter, LetterId, Origin, Position, Sink as _, StoreError, StoreErrorKind};
use dlq_redis::{RedisClient, RedisEntries, RedisLetters, RedisSink, RedisSource, RedisTransport};
use dlq_services::{Redis, Running, Service, ensure_installed, or_skip};
use dlq_testkit::broker::{
    Arrived, BrokerFixture, LogFixture, LogLetters, Mark, ReplaySpec, ReplayTarget,
};
use redis::Value;
use redis::aio::MultiplexedConnection;

/// A lease so short that one who was killed is not waited for long.
const LEASE: Duration = Duration::from_millis(300);

/// A stream, and that of its dead letters.
pub(crate) struct RedisLettersFixture {
    running: Arc<Mutex<Running>>,
    pub(crate) client: RedisClient,
    sink: RedisSink,
    /// The end of every name here.
    number: u32,
}

impl fmt::Debug for RedisLettersFixture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.stream().fmt(f)
    }
}

fn start() -> Arc<Mutex<Running>> {
    let builder = Redis::builder().ours();
    Arc::new(Mutex::new(tokio::task::block_in_place(|| builder.start().unwrap())))
}

/// The server that all share.
fn shared() -> Arc<Mutex<Running>> {
    static SERVER: OnceLock<Arc<Mutex<Running>>> = OnceLock::new();
    Arc::clone(SERVER.get_or_init(start))
}

impl RedisLettersFixture {
    pub(crate) fn stream(&self) -> String {
        format!("orders{}", self.number)
    }

    pub(crate) fn dead(&self) -> &str {
        self.sink.key()
    }

    pub(crate) fn url(&self) -> String {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).url().to_owned()
    }

    pub(crate) async fn raw(&self) -> MultiplexedConnection {
        let client = redis::Client::open(self.url()).unwrap();
        client.get_multiplexed_async_connection().await.unwrap()
    }

    /// Runs a command, written as words.
    pub(crate) async fn run(&self, words: &str) -> Value {
        let mut words = words.split(' ');
        let mut cmd = redis::cmd(words.next().unwrap());
        words.for_each(|word| {
            cmd.arg(word);
        });
        cmd.query_async(&mut self.raw().await).await.unwrap()
    }
}

impl LogFixture for RedisLettersFixture {
    type Log = RedisLetters;

    fn log(&self) -> RedisLetters {
        RedisLetters::new(&self.client, self.dead()).unwrap()
    }
}

impl BrokerFixture for RedisLettersFixture {
    type Letters = LogLetters<RedisLetters>;
    type Replay = ();
    type Feed = RedisEntries;
    type Source = RedisSource;

    fn is_available() -> bool {
        or_skip(Service::Redis, ensure_installed(Service::Redis)).is_ok()
    }

    async fn fresh(check: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let running = if check.contains("restart") { start() } else { shared() };
        let url = running.lock().unwrap_or_else(PoisonError::into_inner).url().to_owned();
        let client = RedisClient::open(&url).await.unwrap();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let transport = RedisTransport::new(format!("orders{number}")).group(Self::CONSUMER);
        let sink = transport.dead_letters(&client).await.unwrap();
        let place = Self { running, client, sink, number };
        place.run(&format!("XGROUP CREATE {} billing 0 MKSTREAM", place.stream())).await;
        place
    }

    fn subject(&self) -> String {
        self.stream()
    }

    fn origin(&self, number: u32) -> Origin {
        let at = Position::Pair(1_790_000_000_000, u64::from(number));
        Origin::new("redis", self.stream(), at)
    }

    async fn bury(&self, letters: Vec<DeadLetter>) {
        self.sink.put(letters).await.unwrap();
    }

    /// Foreign, with other bytes, with another identity, with half of a field.
    async fn bury_unreadable(&self) -> u64 {
        let mut raw = self.raw().await;
        let first: Value = redis::cmd("XRANGE")
            .arg(self.dead())
            .arg("-")
            .arg("+")
            .arg("COUNT")
            .arg(1)
            .query_async(&mut raw)
            .await
            .unwrap();
        let first: Vec<(String, Vec<(String, Vec<u8>)>)> = redis::from_redis_value(first).unwrap();
        self.run(&format!("XADD {} * type paid", self.dead())).await;
        let id = "00000000000000000000000000000007";
        for (name, value) in [("d", "tampered"), ("h:dlq.id", id), ("rest", "{\"half\":")] {
            let mut add = redis::cmd("XADD");
            add.arg(self.dead()).arg("*");
            for (field, before) in &first[0].1 {
                let value = if field == name { value.as_bytes() } else { before };
                add.arg(field).arg(value);
            }
            let _: Value = add.query_async(&mut raw).await.unwrap();
        }
        0
    }

    fn letters(&self) -> LogLetters<RedisLetters> {
        LogLetters::new(self.log())
    }

    fn replay(&self, _: &LogLetters<RedisLetters>, _: ReplaySpec) {}

    async fn plan((): &()) -> Result<ReplayPlan, StoreError> {
        Err(StoreError::new(StoreErrorKind::Refused, "send letters back"))
    }

    async fn run(
        (): &(),
        _: impl Future<Output = ()> + Send,
        _: impl FnMut(LetterId, &ReplayOutcome) + Send,
    ) -> Result<ReplayReport, StoreError> {
        Err(StoreError::new(StoreErrorKind::Refused, "send letters back"))
    }

    async fn arrived(&self, _: ReplayTarget) -> Vec<Arrived> {
        Vec::new()
    }

    async fn source(&self, _: &str) -> Option<RedisSource> {
        None
    }

    async fn feed(&self, store: &str, ends: bool) -> Result<RedisEntries, StoreError> {
        let log = if ends { self.log().until_end() } else { self.log() };
        log.follow(store.to_owned(), LEASE).await
    }

    async fn marks(&self) -> Vec<Mark> {
        let marks = self.log().marks().await.unwrap().into_iter();
        marks.map(|mark| Mark { store: mark.store, confirmed: mark.confirmed }).collect()
    }

    async fn restart(&self) -> bool {
        tokio::task::block_in_place(|| {
            self.running.lock().unwrap_or_else(PoisonError::into_inner).restart().unwrap();
        });
        true
    }
}

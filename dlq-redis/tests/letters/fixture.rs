//! A stream and its dead letters, as the conformance suite for brokers wants them.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use dlq_core::log::Log as _;
use dlq_core::replay::{ReplayOutcome, ReplayPlan, ReplayReport};
use dlq_core::{
    DeadLetter, Header, Headers, LetterId, Message, Origin, Position, Sink as _, StoreError,
};
use dlq_redis::{
    RedisClient, RedisEntries, RedisLetters, RedisReplay, RedisSink, RedisSource, RedisTarget,
    RedisTransport,
};
use dlq_services::{Redis, Running, Service, ensure_installed, or_skip};
use dlq_testkit::broker::{
    Arrived, BrokerFixture, LogFixture, LogLetters, Mark, ReplaySpec, ReplayTarget,
};
use redis::Value;
use redis::aio::MultiplexedConnection;

/// A lease so short that one who was killed is not waited for long.
const LEASE: Duration = Duration::from_millis(300);

/// A stream, and that of its dead letters.
pub(crate) struct RedisLettersFixture<W = Redis7> {
    running: Arc<Mutex<Running>>,
    pub(crate) client: RedisClient,
    sink: RedisSink,
    /// The end of every name here.
    number: u32,
    which: PhantomData<W>,
}

impl<W: Which> fmt::Debug for RedisLettersFixture<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.stream())
    }
}

/// A place at the default version.
pub(crate) type Own = RedisLettersFixture<Redis7>;

/// A server that checks run at.
pub(crate) trait Which: fmt::Debug + Send + Sync + 'static {
    /// The version, by the name that the services know; `None` for the default.
    const VERSION: Option<&'static str>;
    /// The server that all checks share.
    fn shared() -> &'static OnceLock<Arc<Mutex<Running>>>;
}

macro_rules! versions {
    ($($name:ident = $version:expr;)+) => {
        $(
            #[derive(Debug)]
            pub(crate) struct $name;

            impl Which for $name {
                const VERSION: Option<&'static str> = $version;

                fn shared() -> &'static OnceLock<Arc<Mutex<Running>>> {
                    static SERVER: OnceLock<Arc<Mutex<Running>>> = OnceLock::new();
                    &SERVER
                }
            }
        )+
    };
}

versions! {
    Redis7 = None;
    Redis6 = Some("6.2");
    Valkey9 = Some("valkey-9");
}

fn start<W: Which>() -> Arc<Mutex<Running>> {
    let start = || {
        let builder = Redis::builder().ours();
        let builder = match W::VERSION {
            Some(version) => builder.program(Redis::installed(version).unwrap()),
            None => builder,
        };
        Arc::new(Mutex::new(builder.start().unwrap()))
    };
    tokio::task::block_in_place(start)
}

impl<W: Which> RedisLettersFixture<W> {
    pub(crate) fn stream(&self) -> String {
        format!("orders{}", self.number)
    }

    fn key_of(&self, target: ReplayTarget) -> String {
        match target {
            ReplayTarget::Origin => self.stream(),
            ReplayTarget::Elsewhere => format!("{{orders{}}}:repair", self.number),
            ReplayTarget::Handler | ReplayTarget::Nowhere => format!("nobody{}", self.number),
        }
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
    pub(crate) async fn command(&self, words: &str) -> Value {
        let mut words = words.split(' ');
        let mut cmd = redis::cmd(words.next().unwrap());
        words.for_each(|word| {
            cmd.arg(word);
        });
        cmd.query_async(&mut self.raw().await).await.unwrap()
    }
}

impl<W: Which> LogFixture for RedisLettersFixture<W> {
    type Log = RedisLetters;

    fn log(&self) -> RedisLetters {
        RedisLetters::new(&self.client, self.dead()).unwrap()
    }
}

impl<W: Which> BrokerFixture for RedisLettersFixture<W> {
    type Letters = LogLetters<RedisLetters>;
    type Replay = RedisReplay;
    type Feed = RedisEntries;
    type Source = RedisSource;

    fn is_available() -> bool {
        or_skip(Service::Redis, ensure_installed(Service::Redis)).is_ok()
    }

    async fn fresh(check: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let running = match check.contains("restart") {
            true => start::<W>(),
            false => Arc::clone(W::shared().get_or_init(start::<W>)),
        };
        let url = running.lock().unwrap_or_else(PoisonError::into_inner).url().to_owned();
        let client = RedisClient::open(&url).await.unwrap();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let transport = RedisTransport::new(format!("orders{number}")).name(Self::CONSUMER);
        let sink = transport.dead_letters(&client).await.unwrap();
        let place = Self { running, client, sink, number, which: PhantomData };
        for target in [ReplayTarget::Origin, ReplayTarget::Elsewhere] {
            let key = place.key_of(target);
            place.command(&format!("XGROUP CREATE {key} billing 0 MKSTREAM")).await;
        }
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
        let first: Vec<(String, Fields)> = redis::from_redis_value(first).unwrap();
        self.command(&format!("XADD {} * type paid", self.dead())).await;
        let id = "00000000000000000000000000000007";
        for (name, value) in [("d", "tampered"), ("h:dlq.id", id), ("rest", "{\"half\":")] {
            let mut add = redis::cmd("XADD");
            add.arg(self.dead()).arg("*");
            for (field, before) in &first[0].1 {
                let value = if field == name.as_bytes() { value.as_bytes() } else { before };
                add.arg(field).arg(value);
            }
            let _: Value = add.query_async(&mut raw).await.unwrap();
        }
        0
    }

    fn letters(&self) -> LogLetters<RedisLetters> {
        LogLetters::new(self.log())
    }

    fn replay(&self, letters: &LogLetters<RedisLetters>, spec: ReplaySpec) -> RedisReplay {
        let target = match spec.target {
            ReplayTarget::Origin => RedisTarget::Origin,
            target => RedisTarget::Stream(self.key_of(target)),
        };
        let rules = spec.rules;
        let replay = RedisReplay::new(letters.log(), spec.filter, target, rules.operation)
            .limit(rules.limit)
            .cap(rules.cap)
            .lease(spec.lease);
        let replay = if rules.again { replay.again() } else { replay };
        match rules.rate {
            Some(rate) => replay.rate(rate),
            None => replay,
        }
    }

    async fn plan(replay: &RedisReplay) -> Result<ReplayPlan, StoreError> {
        replay.plan().await
    }

    async fn run(
        replay: &RedisReplay,
        stop: impl Future<Output = ()> + Send,
        mut tell: impl FnMut(LetterId, &ReplayOutcome) + Send,
    ) -> Result<ReplayReport, StoreError> {
        replay.run(stop, |replayed| tell(replayed.id, &replayed.outcome)).await
    }

    async fn arrived(&self, target: ReplayTarget) -> Vec<Arrived> {
        let key = self.key_of(target);
        let all = self.command(&format!("XRANGE {key} - +")).await;
        let all: Vec<(String, Fields)> = redis::from_redis_value(all).unwrap();
        let all = all.into_iter().map(|(_, fields)| Arrived(message(&key, fields)));
        all.filter(|arrived| arrived.header("replay.id").is_some()).collect()
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

/// Names and values of an entry, which are bytes.
type Fields = Vec<(Vec<u8>, Vec<u8>)>;

/// An entry as consumers read it.
fn message(stream: &str, fields: Fields) -> Message {
    let (mut message, mut headers) = (Message::tombstone(stream), Headers::new());
    for (name, value) in fields {
        let part = |from: usize| name[from..].to_vec().into();
        match &name[..] {
            b"d" => message = message.with_payload(Some(value.into())),
            b"k" => message = message.with_key(value),
            b"absent" | b"id" | b"s" => {}
            [b'h', b':', ..] => headers.push(Header { name: part(2), value: Some(value.into()) }),
            [b'n', b':', ..] => headers.push(Header { name: part(2), value: None }),
            _ => panic!("field {name:?} is not of a message"),
        }
    }
    message.with_headers(headers)
}

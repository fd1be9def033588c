//! A server of its own for each test, so that each can kill it.

use std::str::FromStr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::header::{HeaderMap, HeaderName, HeaderValue};
use async_nats::jetstream::context::PublishErrorKind;
use async_nats::jetstream::{self, Context, stream};
use async_nats::{Client, ConnectOptions};
use dlq_core::log::Range;
use dlq_core::store::Letters as _;
use dlq_core::{
    Delivery, Disposition, Filter, Message, Position, Settle, SharedClock, Source, StoreError,
    SystemClock, TransportError,
};
use dlq_letters::log::Reading;
use dlq_nats::{
    NatsLetters, NatsRetryQueue, NatsSettle, NatsSource, NatsTransport, RetryStream, StoredLetter,
};
use dlq_services::{Builder, Running, Service, ensure_installed, or_skip};
use dlq_testkit::broker::LogLetters;
use dlq_testkit::transport::{TransportFixture, is_quick};
use tokio::time::{sleep, timeout};

/// How long a test waits for what must come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const LEASE: Duration = Duration::from_secs(3);
pub(crate) const STREAM: &str = "ORDERS";
const KEY: &str = "key";

/// Whether there is a server to be had; says so if not.
pub(crate) fn available() -> bool {
    or_skip(Service::Nats, ensure_installed(Service::Nats)).is_ok()
}

/// Publishes it, also in a cluster: not every server has heard yet of a stream that was just created, and one that has not
/// says that nobody keeps the subject.
pub(crate) async fn published(context: &Context, subject: &str, payload: &str) {
    let kept = async {
        loop {
            let sent = context.publish(subject.to_owned(), payload.to_owned().into()).await;
            match sent.unwrap().await {
                Err(error) if error.kind() == PublishErrorKind::StreamNotFound => {
                    sleep(Duration::from_millis(50)).await;
                }
                kept => return kept,
            }
        }
    };
    timeout(PATIENCE, kept).await.expect("somebody keeps it").unwrap();
}

/// A server with the stream `ORDERS` of subjects `orders.>`, and a client.
#[derive(Debug)]
pub(crate) struct Server {
    running: Mutex<Running>,
    pub(crate) client: Client,
    pub(crate) context: Context,
}

impl Server {
    pub(crate) async fn start() -> Self {
        Self::with("max_payload", "1MB").await
    }

    pub(crate) async fn with(setting: &str, value: &str) -> Self {
        Self::of(Service::Nats.builder().ours().setting(setting, value)).await
    }

    pub(crate) async fn of(builder: Builder) -> Self {
        let running = tokio::task::block_in_place(|| builder.start().unwrap());
        let options = ConnectOptions::new()
            .reconnect_delay_callback(|_| Duration::from_millis(50))
            .retry_on_initial_connect();
        let client = options.connect(running.url()).await.unwrap();
        let context = jetstream::new(client.clone());
        let server = Self { running: Mutex::new(running), client, context };
        server.create_stream().await;
        server
    }

    /// One with these settings, among them a user who may do everything; so may who does not say who they are.
    pub(crate) async fn bare(settings: &[(&str, &str)], user: &str, password: &str) -> Self {
        let mut builder = Service::Nats.builder().ours().setting("no_auth_user", user);
        for (setting, value) in settings {
            builder = builder.setting(*setting, *value);
        }
        let running = tokio::task::block_in_place(|| builder.start().unwrap());
        let client = connect(running.url(), user, password).await;
        let context = jetstream::new(client.clone());
        let server = Self { running: Mutex::new(running), client, context };
        server.create_stream().await;
        server
    }

    /// Another user.
    pub(crate) async fn connect(&self, user: &str, password: &str) -> Client {
        let url = self.running().url().to_owned();
        connect(&url, user, password).await
    }

    pub(crate) async fn create_stream(&self) {
        let config = stream::Config {
            name: STREAM.to_owned(),
            subjects: vec!["orders.>".to_owned()],
            ..stream::Config::default()
        };
        self.context.create_stream(config).await.unwrap();
    }

    pub(crate) fn running(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Kills it if it still runs, and starts it again on its data.
    pub(crate) async fn kill_and_restart(&self) {
        let starts = self.running().starts();
        tokio::task::block_in_place(|| self.running().restart().unwrap());
        assert_eq!(self.running().starts(), starts + 1, "it was really killed");
        self.await_connection().await;
    }

    pub(crate) async fn await_connection(&self) {
        let answers = async {
            while self.context.get_stream(STREAM).await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(PATIENCE, answers).await.expect("the client finds the server again");
    }

    /// Publishes messages of which each is its number.
    pub(crate) async fn publish(&self, numbers: impl IntoIterator<Item = u32>) {
        for number in numbers {
            let sent = self.context.publish("orders.created", number.to_string().into()).await;
            sent.unwrap().await.unwrap();
        }
    }

    pub(crate) async fn source(&self, consumer: &NatsTransport) -> NatsSource {
        consumer.source(&self.client).await.unwrap()
    }

    /// Every message of a stream: subject, headers, payload.
    pub(crate) async fn stored(&self, stream: &str) -> Vec<stream_message::Stored> {
        let mut stream = self.context.get_stream(stream).await.unwrap();
        let state = stream.info().await.unwrap().state.clone();
        let mut stored = Vec::new();
        for sequence in state.first_sequence..=state.last_sequence {
            if let Ok(message) = stream.direct_get(sequence).await {
                stored.push(stream_message::Stored {
                    subject: message.subject.to_string(),
                    headers: message.headers,
                    payload: message.payload,
                });
            }
        }
        stored
    }

    pub(crate) async fn count(&self, stream: &str) -> u64 {
        self.context.get_stream(stream).await.unwrap().get_info().await.unwrap().state.messages
    }
}

async fn connect(url: &str, user: &str, password: &str) -> Client {
    let options = ConnectOptions::with_user_and_password(user.to_owned(), password.to_owned());
    let options = options.reconnect_delay_callback(|_| Duration::from_millis(50));
    options.connect(url).await.unwrap()
}

pub(crate) mod stream_message {
    #[derive(Debug)]
    pub(crate) struct Stored {
        pub(crate) subject: String,
        pub(crate) headers: async_nats::HeaderMap,
        pub(crate) payload: bytes::Bytes,
    }
}

/// The consumer that most tests are about.
pub(crate) fn billing() -> NatsTransport {
    consumer("billing")
}

pub(crate) fn consumer(name: &str) -> NatsTransport {
    NatsTransport::new(STREAM)
        .name(name)
        .subject("orders.>")
        .lease(LEASE)
        .prefetch(4)
        .key_header(KEY)
}

/// The next delivery; errors that pass are waited out, as a consumer does.
pub(crate) async fn next(source: &mut NatsSource) -> (Delivery, NatsSettle) {
    let next = async {
        loop {
            match source.next().await {
                Ok(next) => return next.expect("the source has not ended"),
                Err(error) if error.is_transient() => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                Err(error) => panic!("the source failed: {error}"),
            }
        }
    };
    timeout(PATIENCE, next).await.expect("a delivery comes")
}

pub(crate) async fn handle(source: &mut NatsSource) -> Result<Delivery, TransportError> {
    let (delivery, settle) = next(source).await;
    settle.settle(Disposition::Succeeded).await.map(|()| delivery)
}

pub(crate) fn number(delivery: &Delivery) -> u32 {
    std::str::from_utf8(delivery.message().payload().unwrap()).unwrap().parse().unwrap()
}

/// The header as NATS has it: of text; `None` where it cannot be one.
pub(crate) fn text_header(name: &[u8], value: Option<&[u8]>) -> Option<(HeaderName, HeaderValue)> {
    let name = std::str::from_utf8(name).ok().filter(|name| !name.is_empty())?;
    let value = std::str::from_utf8(value?).ok()?;
    Some((HeaderName::from_str(name).ok()?, HeaderValue::from_str(value).ok()?))
}

/// As the conformance suite wants it.
#[derive(Debug)]
pub(crate) struct NatsFixture {
    server: Server,
    retries: RetryStream,
    lease: Duration,
}

impl NatsFixture {
    fn consumer(&self, name: &str) -> NatsTransport {
        consumer(name).retry_stream(self.retries.clone()).lease(self.lease)
    }
}

impl TransportFixture for NatsFixture {
    type Source = NatsSource;
    type DeliveredFrom = NatsRetryQueue;

    const PAUSED: bool = false;

    fn is_available() -> bool {
        available()
    }

    async fn fresh(check: &'static str) -> Self {
        let lease = if is_quick(check) { PATIENCE } else { LEASE };
        Self { server: Server::start().await, retries: RetryStream::new(), lease }
    }

    async fn publish(&self, message: Message) -> bool {
        let mut headers = HeaderMap::new();
        let key = message.key().map(|key| (&b"key"[..], Some(&key[..])));
        let id = message.id().map(|id| (&b"Nats-Msg-Id"[..], Some(id.as_bytes())));
        let own =
            message.headers().iter().map(|header| (&header.name[..], header.value.as_deref()));
        for (name, value) in own.chain(key).chain(id) {
            let Some((name, value)) = text_header(name, value) else { return false };
            headers.append(name, value);
        }
        let Some(payload) = message.payload().cloned() else { return false };
        let subject = message.subject().to_owned();
        let sent = self.server.context.publish_with_headers(subject, headers, payload).await;
        sent.unwrap().await.unwrap();
        true
    }

    async fn source(&self, consumer: &str) -> NatsSource {
        self.server.source(&self.consumer(consumer)).await
    }

    async fn retry_queue(&self) -> Option<NatsRetryQueue> {
        let queue = self.consumer("billing").retry_queue(&self.server.client).await.unwrap();
        Some(queue)
    }

    /// In good order: a server that is killed may have forgotten acknowledgements of its last moments, so that what
    /// was settled comes again. That is tested apart.
    async fn restart(&self) -> bool {
        tokio::task::block_in_place(|| self.server.running().stop().unwrap());
        self.server.kill_and_restart().await;
        true
    }

    fn lease(&self) -> Duration {
        self.lease
    }

    fn clock(&self) -> SharedClock {
        SystemClock::shared()
    }
}

/// The same without the server's schedules.
#[derive(Debug)]
pub(crate) struct WithoutSchedules(NatsFixture);

impl TransportFixture for WithoutSchedules {
    type Source = NatsSource;
    type DeliveredFrom = NatsRetryQueue;

    const PAUSED: bool = false;

    fn is_available() -> bool {
        available()
    }

    async fn fresh(check: &'static str) -> Self {
        let mut fixture = NatsFixture::fresh(check).await;
        fixture.retries = fixture.retries.without_schedules();
        Self(fixture)
    }

    async fn publish(&self, message: Message) -> bool {
        self.0.publish(message).await
    }

    async fn source(&self, consumer: &str) -> NatsSource {
        self.0.source(consumer).await
    }

    async fn retry_queue(&self) -> Option<NatsRetryQueue> {
        let queue = self.0.retry_queue().await;
        assert!(queue.as_ref().is_some_and(|queue| !queue.has_schedules()));
        queue
    }

    async fn restart(&self) -> bool {
        self.0.restart().await
    }

    fn lease(&self) -> Duration {
        self.0.lease()
    }

    fn clock(&self) -> SharedClock {
        self.0.clock()
    }
}

/// The letters as they stand whenever they are asked for.
pub(crate) fn now(letters: &NatsLetters) -> LogLetters<NatsLetters> {
    LogLetters::new(letters.clone())
}

/// The letters that match, as they stand, in the order of their stream.
pub(crate) async fn read(
    letters: &NatsLetters,
    filter: &Filter,
) -> Result<Vec<StoredLetter>, StoreError> {
    let reading = Reading::of(letters.clone(), Range::all()).await?;
    let mut found = Vec::new();
    for row in reading.rows(filter).await? {
        let &Position::Offset(sequence) = row.place.position() else { unreachable!("{row:?}") };
        let letter = reading.get(row.letter.id).await?;
        found.extend(letter.map(|letter| StoredLetter { letter, sequence }));
    }
    found.sort_unstable_by_key(|stored| stored.sequence);
    Ok(found)
}

//! The letters of a stream, as the conformance suite for brokers wants them.

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use async_nats::jetstream::message::{PublishMessage, StreamMessage};
use async_nats::jetstream::{self, Context, stream};
use async_nats::{Client, ConnectOptions, HeaderMap};
use dlq_core::log::Log as _;
use dlq_core::replay::{ReplayOutcome, ReplayPlan, ReplayReport};
use dlq_core::{
    DeadLetter, Header, Headers, LetterId, Message, Origin, Position, Sink as _, StoreError,
};
use dlq_nats::{
    DlqStream, NatsEntries, NatsLetters, NatsReplay, NatsSink, NatsSource, NatsTarget,
    NatsTransport, RetryStream,
};
use dlq_services::{Running, Service};
use dlq_testkit::broker::{
    Arrived, BrokerFixture, LogFixture, LogLetters, Mark, ReplaySpec, ReplayTarget,
};
use dlq_testkit::fixtures::letter;
use futures_util::StreamExt as _;
use tokio::sync::OnceCell;
use tokio::time::{sleep, timeout};

use crate::fixture::{LEASE, PATIENCE, available, text_header};

/// A window so short that the server forgets soon what was sent to it.
const WINDOW: Duration = Duration::from_millis(100);
const KEY: &str = "key";

/// A stream, and that of its dead letters.
pub(crate) struct NatsLettersFixture {
    running: Arc<Mutex<Running>>,
    client: Client,
    context: Context,
    /// The end of every name here.
    number: u32,
    sink: OnceCell<NatsSink>,
}

impl fmt::Debug for NatsLettersFixture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.stream().fmt(f)
    }
}

fn start() -> Arc<Mutex<Running>> {
    let builder = Service::Nats.builder().ours().setting("max_payload", "1MB");
    Arc::new(Mutex::new(tokio::task::block_in_place(|| builder.start().unwrap())))
}

/// The server that all share.
fn shared() -> Arc<Mutex<Running>> {
    static SERVER: OnceLock<Arc<Mutex<Running>>> = OnceLock::new();
    Arc::clone(SERVER.get_or_init(start))
}

impl NatsLettersFixture {
    fn stream(&self) -> String {
        format!("ORDERS{}", self.number)
    }

    fn dlq(&self) -> DlqStream {
        let stream = DlqStream::new().name(format!("DLQ{}", self.number));
        stream.prefix(format!("dlq{}", self.number)).duplicate_window(WINDOW)
    }

    fn retries(&self) -> RetryStream {
        let retries = RetryStream::new().name(format!("RETRY{}", self.number));
        retries.prefix(format!("retry{}", self.number))
    }

    fn subject_of(&self, target: ReplayTarget) -> String {
        match target {
            ReplayTarget::Origin => format!("orders{}.created", self.number),
            ReplayTarget::Elsewhere => format!("orders{}.repair", self.number),
            ReplayTarget::Handler => format!("retry{}.billing", self.number),
            ReplayTarget::Nowhere => "nobody.listens".to_owned(),
        }
    }

    async fn sink(&self) -> &NatsSink {
        let open = || async { NatsSink::open(&self.client, self.dlq()).await.unwrap() };
        self.sink.get_or_init(open).await
    }

    async fn publish(&self, subject: String, headers: HeaderMap, payload: &'static str) {
        let sent = self.context.publish_with_headers(subject, headers, payload.into()).await;
        sent.unwrap().await.unwrap();
    }
}

impl LogFixture for NatsLettersFixture {
    type Log = NatsLetters;

    fn log(&self) -> NatsLetters {
        NatsLetters::new(&self.client, self.dlq()).key_header(KEY)
    }
}

impl BrokerFixture for NatsLettersFixture {
    type Letters = LogLetters<NatsLetters>;
    type Replay = NatsReplay;
    type Feed = NatsEntries;
    type Source = NatsSource;

    const KEEPS_ORDER_OF_HEADERS: bool = false;

    fn is_available() -> bool {
        available()
    }

    async fn fresh(check: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let running = if check.contains("restart") { start() } else { shared() };
        let url = running.lock().unwrap_or_else(PoisonError::into_inner).url().to_owned();
        let options = ConnectOptions::new()
            .reconnect_delay_callback(|_| Duration::from_millis(50))
            .retry_on_initial_connect();
        let client = options.connect(url).await.unwrap();
        let context = jetstream::new(client.clone());
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let config = stream::Config {
            name: format!("ORDERS{number}"),
            subjects: vec![format!("orders{number}.>")],
            duplicate_window: WINDOW,
            ..stream::Config::default()
        };
        context.create_stream(config).await.unwrap();
        let place = Self { running, client, context, number, sink: OnceCell::new() };
        let _ = place.sink().await;
        place
    }

    fn subject(&self) -> String {
        self.subject_of(ReplayTarget::Origin)
    }

    fn origin(&self, number: u32) -> Origin {
        Origin::new("nats", self.stream(), Position::Offset(u64::from(number) + 1))
    }

    /// A message without a payload is one with an empty payload, and headers are text.
    fn carries(message: &Message) -> bool {
        let is_text =
            |header: &Header| text_header(&header.name, header.value.as_deref()).is_some();
        message.payload().is_some() && message.headers().iter().all(is_text)
    }

    async fn bury(&self, letters: Vec<DeadLetter>) {
        self.sink().await.put(letters).await.unwrap();
    }

    /// Foreign, without its identity, with other bytes, with another identity, with parts that are no sequences.
    async fn bury_unreadable(&self) -> u64 {
        let stream = self.context.get_stream(format!("DLQ{}", self.number)).await.unwrap();
        let first = stream.get_raw_message(1).await.unwrap();
        let foreign = format!("dlq{}.foreign", self.number);
        self.publish(foreign, HeaderMap::new(), "{}").await;
        let other_id = letter(3).id.to_string();
        for (n, (header, value)) in
            [("x", "y"), ("dlq.id", &*other_id), ("dlq.nats.rest", "{\"half\":")].iter().enumerate()
        {
            let mut headers = first.headers.clone();
            headers.insert("Nats-Msg-Id", format!("tampered-{n}").as_str());
            headers.insert(*header, *value);
            self.publish(first.subject.to_string(), headers, "tampered").await;
        }
        0
    }

    fn letters(&self) -> LogLetters<NatsLetters> {
        LogLetters::new(self.log())
    }

    fn replay(&self, letters: &LogLetters<NatsLetters>, spec: ReplaySpec) -> NatsReplay {
        let target = match spec.target {
            ReplayTarget::Origin => NatsTarget::Origin,
            ReplayTarget::Handler => NatsTarget::Handler(self.retries()),
            target => NatsTarget::Subject(self.subject_of(target)),
        };
        let rules = spec.rules;
        let replay = NatsReplay::new(letters.log(), spec.filter, target, rules.operation)
            .limit(rules.limit)
            .cap(rules.cap)
            .lease(spec.lease);
        let replay = if rules.again { replay.again() } else { replay };
        match rules.rate {
            Some(rate) => replay.rate(rate),
            None => replay,
        }
    }

    async fn plan(replay: &NatsReplay) -> Result<ReplayPlan, StoreError> {
        replay.plan().await
    }

    async fn run(
        replay: &NatsReplay,
        stop: impl Future<Output = ()> + Send,
        mut tell: impl FnMut(LetterId, &ReplayOutcome) + Send,
    ) -> Result<ReplayReport, StoreError> {
        replay.run(stop, |replayed| tell(replayed.id, &replayed.outcome)).await
    }

    async fn arrived(&self, target: ReplayTarget) -> Vec<Arrived> {
        let stream = self.context.get_stream(self.stream()).await.unwrap();
        let last = stream.cached_info().state.last_sequence;
        let all = (1..=last).map(|sequence| stream.get_raw_message(sequence));
        let all: Vec<_> = futures_util::stream::iter(all).buffered(64).collect().await;
        let subject = self.subject_of(target);
        let sent = all.into_iter().map(Result::unwrap).filter(|message| {
            *message.subject == *subject && message.headers.get("replay.id").is_some()
        });
        sent.map(arrived).collect()
    }

    async fn forget(&self) {
        let subject = format!("orders{}.probe", self.number);
        let probe = self.client.new_inbox();
        let forgotten = async {
            let mut sent = 0;
            loop {
                let probe = PublishMessage::build().message_id(&probe);
                let ack = self.context.send_publish(subject.clone(), probe).await.unwrap();
                sent += 1;
                if !ack.await.unwrap().duplicate && sent > 1 {
                    return;
                }
            }
        };
        timeout(PATIENCE, forgotten).await.expect("the window passes");
    }

    async fn source(&self, consumer: &str) -> Option<NatsSource> {
        let consumer = NatsTransport::new(self.stream())
            .name(consumer)
            .subject(format!("orders{}.>", self.number))
            .lease(LEASE)
            .prefetch(4)
            .key_header(KEY)
            .retry_stream(self.retries());
        Some(consumer.source(&self.client).await.unwrap())
    }

    async fn feed(&self, store: &str, ends: bool) -> Result<NatsEntries, StoreError> {
        // One that is killed leaves little to wait for.
        let log = self.log().prefetch(8);
        let log = if ends { log.until_end() } else { log };
        log.follow(store.to_owned(), Duration::from_secs(5)).await
    }

    async fn marks(&self) -> Vec<Mark> {
        let marks = self.log().marks().await.unwrap().into_iter();
        marks.map(|mark| Mark { store: mark.store, confirmed: mark.confirmed }).collect()
    }

    async fn restart(&self) -> bool {
        tokio::task::block_in_place(|| {
            self.running.lock().unwrap_or_else(PoisonError::into_inner).restart().unwrap();
        });
        let answers = async {
            while self.context.get_stream(self.stream()).await.is_err() {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(PATIENCE, answers).await.expect("the client finds the server again");
        true
    }
}

fn arrived(sent: StreamMessage) -> Arrived {
    let key = sent.headers.get(KEY).map(|key| key.as_str().to_owned());
    let all = sent.headers.iter().flat_map(|(name, values)| {
        values.iter().map(move |value| Header {
            name: name.to_string().into_bytes().into(),
            value: Some(value.as_str().to_owned().into_bytes().into()),
        })
    });
    let headers: Headers = all.collect();
    let message = Message::new(sent.subject.to_string(), sent.payload).with_headers(headers);
    Arrived(match key {
        Some(key) => message.with_key(key),
        None => message,
    })
}

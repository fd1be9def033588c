//! The letters of a topic, as the conformance suite for brokers wants them.

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dlq_core::log::Log;
use dlq_core::replay::{ReplayOutcome, ReplayPlan, ReplayReport};
use dlq_core::{
    DeadLetter, Header, Headers, LetterId, Message, Origin, Position, Sink as _, StoreError,
};
use dlq_kafka::rdkafka::message::{self, OwnedHeaders};
use dlq_kafka::rdkafka::producer::{FutureProducer, FutureRecord};
use dlq_kafka::{
    DlqTopic, KafkaEntries, KafkaLetters, KafkaReplay, KafkaSink, KafkaSource, KafkaTarget,
    KafkaTransport, Ladder,
};
use dlq_services::Running;
use dlq_testkit::broker::{
    Arrived, BrokerFixture, LogFixture, LogLetters, Mark, ReplaySpec, ReplayTarget,
};
use dlq_testkit::fixtures::letter;
use tokio::sync::OnceCell;

use crate::fixture::{self, LEASE, PATIENCE, available, start};
use crate::fixture_letters::{self, fill};
use crate::fixture_replay::{PARTITIONS, Read, Shop};

/// A topic, and that of its dead letters.
pub(crate) struct KafkaLettersFixture {
    running: Arc<Mutex<Running>>,
    shop: Shop,
    producer: FutureProducer,
    sink: OnceCell<KafkaSink>,
}

impl fmt::Debug for KafkaLettersFixture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shop.topic.fmt(f)
    }
}

/// A ladder of one stage, at which nothing waits.
fn ladder() -> Ladder {
    Ladder::of([Duration::from_secs(30)])
}

impl KafkaLettersFixture {
    fn elsewhere(&self) -> String {
        format!("{}-repair", self.shop.topic)
    }

    fn consumer(&self, name: &str) -> KafkaTransport {
        KafkaTransport::new(&*self.shop.topic)
            .name(name)
            .dead_letter_topic(self.dlq())
            .ladder(ladder())
            .create_missing_topics()
    }

    fn dlq(&self) -> DlqTopic {
        DlqTopic::new().name(&self.shop.dlq).partitions(2)
    }

    /// A sink of nobody's: that of a consumer adds its group to what it writes.
    async fn sink(&self) -> &KafkaSink {
        let open = || async {
            // It makes the topics.
            let _ = self.consumer("billing").sink(&self.shop.brokers()).await.unwrap();
            let of = [self.shop.topic.clone()];
            KafkaSink::open(&self.shop.brokers(), self.dlq(), &of).await.unwrap()
        };
        self.sink.get_or_init(open).await
    }

    async fn send(&self, record: FutureRecord<'_, [u8], [u8]>) -> (i32, i64) {
        let written = self.producer.send(record, PATIENCE).await.unwrap();
        (written.partition, written.offset)
    }
}

impl LogFixture for KafkaLettersFixture {
    type Log = KafkaLetters;

    fn log(&self) -> KafkaLetters {
        self.shop.letters()
    }
}

impl BrokerFixture for KafkaLettersFixture {
    type Letters = LogLetters<KafkaLetters>;
    type Replay = KafkaReplay;
    type Feed = KafkaEntries;
    type Source = KafkaSource;

    fn is_available() -> bool {
        available()
    }

    /// Feeds have groups, of which a broker that plans replays should have few.
    async fn fresh(check: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // A check that restarts its broker must not take that away from the others, which run at the same time.
        let running = if check.contains("restart") {
            Arc::new(Mutex::new(start()))
        } else if check.starts_with("ingest") {
            fixture::shared()
        } else {
            fixture_letters::shared()
        };
        let url = running.lock().unwrap_or_else(PoisonError::into_inner).url().to_owned();
        let shop = Shop::at(url, &format!("letters-{}", NEXT.fetch_add(1, Ordering::Relaxed)));
        shop.create(&shop.topic, PARTITIONS, &[]).await;
        let producer = shop.config().set("linger.ms", "0").create().unwrap();
        let place = Self { running, shop, producer, sink: OnceCell::new() };
        if check.contains("elsewhere") {
            place.shop.create(&place.elsewhere(), 1, &[]).await;
        }
        let _ = place.sink().await;
        place
    }

    fn subject(&self) -> String {
        self.shop.topic.clone()
    }

    fn origin(&self, number: u32) -> Origin {
        let partition = number % u32::try_from(PARTITIONS).unwrap();
        let position = Position::Offset(number.into());
        Origin::new("kafka", self.shop.topic.as_str(), position).with_partition(partition)
    }

    async fn bury(&self, letters: Vec<DeadLetter>) {
        self.sink().await.put(letters).await.unwrap();
    }

    /// Without anything; a tombstone; with other bytes than its identity; with half of what it needs; with odd headers.
    /// Whatever is in the topic is a letter.
    async fn bury_unreadable(&self) -> u64 {
        let at = || FutureRecord::<[u8], _>::to(&self.shop.dlq).partition(0);
        let (one, two) = (letter(1), letter(2));
        self.send(at().payload(&b"{}"[..])).await;
        self.send(at().key(&b"key"[..])).await;
        self.send(fill(at(), &one).payload(&b"tampered"[..])).await;
        let torn = message::Header { key: "dlq.kafka.rest", value: Some("{\"half\":") };
        let mut half = fill(at(), &two);
        half.headers = Some(OwnedHeaders::new().insert(torn));
        self.send(half).await;
        let odd = OwnedHeaders::new()
            .insert(message::Header::<&[u8]> { key: "null", value: None })
            .insert(message::Header { key: "", value: Some(&b"\xff\0"[..]) })
            .insert(message::Header { key: "dlq.id", value: Some(&[b'7'; 70_000][..]) })
            .insert(message::Header { key: "dlq.id", value: Some(&b"x"[..]) });
        self.send(at().headers(odd).payload(&b"odd"[..])).await;
        5
    }

    async fn bury_pointers(&self) -> Option<(DeadLetter, LetterId)> {
        let trace = message::Header { key: "trace", value: Some("t-1") };
        let record = FutureRecord::to(&self.shop.topic).partition(1).payload(&b"message"[..]);
        let record = record.key(&b"key"[..]).headers(OwnedHeaders::new().insert(trace));
        let (partition, offset) = self.send(record).await;
        let topic = &self.shop.topic;
        let there = format!("{topic}/{partition}/{offset}");
        let all = [(8, there), (9, format!("{topic}/{partition}/{}", offset + 7))];
        for (n, to) in all {
            let mut pointing = letter(n);
            pointing.message = pointing.message.with_payload(None).with_headers(Headers::new());
            pointing.attributes.insert("kafka.pointer".to_owned(), to);
            self.send(fill(FutureRecord::to(&self.shop.dlq), &pointing)).await;
        }
        let mut shown = letter(8);
        let headers = [Header { name: "trace".into(), value: Some("t-1".into()) }];
        shown.message = Message::new(shown.message.subject(), "message").with_key("key");
        shown.message = shown.message.with_headers(headers.into_iter().collect());
        Some((shown, letter(9).id))
    }

    fn letters(&self) -> LogLetters<KafkaLetters> {
        LogLetters::new(self.log())
    }

    fn replay(&self, letters: &LogLetters<KafkaLetters>, spec: ReplaySpec) -> KafkaReplay {
        let target = match spec.target {
            ReplayTarget::Origin => KafkaTarget::Origin { keep_partition: false },
            ReplayTarget::Handler => KafkaTarget::Handler(ladder()),
            ReplayTarget::Elsewhere => KafkaTarget::Topic(self.elsewhere()),
            ReplayTarget::Nowhere => KafkaTarget::Topic(format!("{}-nobody", self.shop.topic)),
        };
        let rules = spec.rules;
        let replay = KafkaReplay::new(letters.log(), spec.filter, target, rules.operation)
            .limit(rules.limit)
            .cap(rules.cap);
        let replay = if rules.again { replay.again() } else { replay };
        match rules.rate {
            Some(rate) => replay.rate(rate),
            None => replay,
        }
    }

    async fn plan(replay: &KafkaReplay) -> Result<ReplayPlan, StoreError> {
        replay.plan().await
    }

    async fn run(
        replay: &KafkaReplay,
        stop: impl Future<Output = ()> + Send,
        mut tell: impl FnMut(LetterId, &ReplayOutcome) + Send,
    ) -> Result<ReplayReport, StoreError> {
        replay.run(stop, |replayed| tell(replayed.id, &replayed.outcome)).await
    }

    async fn arrived(&self, target: ReplayTarget) -> Vec<Arrived> {
        let topic = match target {
            ReplayTarget::Elsewhere => self.elsewhere(),
            _ => self.shop.topic.clone(),
        };
        let there = self.shop.read(&topic).await.into_iter();
        there.filter(|read| read.header("replay.id").is_some()).map(arrived).collect()
    }

    async fn source(&self, consumer: &str) -> Option<KafkaSource> {
        Some(self.consumer(consumer).source(&self.shop.brokers()).await.unwrap())
    }

    async fn feed(&self, store: &str, ends: bool) -> Result<KafkaEntries, StoreError> {
        let log = self.log();
        let log = if ends { log.until_end() } else { log };
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

fn arrived(read: Read) -> Arrived {
    let headers = read.headers.into_iter().map(|(name, value)| Header {
        name: name.into_bytes().into(),
        value: value.map(Into::into),
    });
    let message = Message::tombstone("letters").with_payload(read.payload.map(Into::into));
    let message = message.with_headers(headers.collect());
    Arrived(match read.key {
        Some(key) => message.with_key(key),
        None => message,
    })
}

//! Handlers are called otherwise than the `KafkaTransport`, as those of a router are.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlq_core::policy::Backoff;
use dlq_core::protocol::{Replay, on_replay};
use dlq_core::{
    Classification, Delivery, Disposition, LetterId, Message, OperationId, Origin, Position,
    RetryPolicy, Settle as _, Source as _, Timestamp,
};
use dlq_kafka::rdkafka::consumer::{BaseConsumer, Consumer as _};
use dlq_kafka::rdkafka::{Offset, TopicPartitionList};
use dlq_kafka::{KafkaTransport, Ladder};
use dlq_testkit::doubles::Called;
use dlq_testkit::fixtures::letter_of;
use dlq_tower::consumer::Consumer;
use dlq_tower::extract::State;
use dlq_tower::handler::handler;
use dlq_tower::router::Router;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::fixture::{PATIENCE, TestTopic, available, next};
use crate::topic;

#[derive(Debug)]
struct Down;

impl std::fmt::Display for Down {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("down")
    }
}

impl std::error::Error for Down {}

/// What the handler of these tests has seen.
#[derive(Clone)]
struct Seen {
    place: TestTopic,
    runs: Arc<AtomicU32>,
    /// What the group had committed while it ran.
    words: Arc<Mutex<Vec<String>>>,
    done: Arc<Notify>,
}

impl Seen {
    fn new(place: &TestTopic) -> Self {
        let (runs, words, done) = (Arc::default(), Arc::default(), Arc::default());
        Self { place: place.clone(), runs, words, done }
    }
}

/// Fails the first time.
async fn created(_: Delivery, State(seen): State<Seen>) -> Result<(), Down> {
    seen.words.lock().unwrap().push(word(&seen.place).1);
    if seen.runs.fetch_add(1, Ordering::Relaxed) == 0 {
        return Err(Down);
    }
    seen.done.notify_one();
    Ok(())
}

/// A router that hands everything to `created`, which is called `shop.created`.
fn router(seen: &Seen) -> Router {
    let second = Backoff::constant(Duration::from_secs(1));
    // By a retry topic, however soon.
    let policy = RetryPolicy::new().with_backoff(second).with_max_in_process_delay(Duration::ZERO);
    let created = handler("shop.created", created)
        .with_state(seen.clone())
        .classify(|_: &Down| Classification::transient())
        .policy(policy);
    Router::new().name("shop").route(">", created).build().unwrap()
}

fn shop(place: &TestTopic) -> KafkaTransport {
    let ladder = Ladder::of([Duration::from_secs(1)]).names("{topic}.retry.{delay}");
    place.billing().ladder(ladder)
}

/// Runs it until a handler has succeeded.
async fn run(place: &TestTopic, seen: &Seen) {
    let source = shop(place).source(&place.brokers).await.unwrap();
    let marks = source.crash_marks();
    let consumer = Consumer::builder(source)
        .handler(router(seen))
        .crash_marks(marks)
        .retry_queue(shop(place).retry_queue(&place.brokers).await.unwrap())
        .sink(shop(place).sink(&place.brokers).await.unwrap())
        .build()
        .unwrap();
    let done = async { timeout(PATIENCE, seen.done.notified()).await.expect("it succeeds") };
    let report = consumer.run(done).await;
    assert_eq!((report.handled, report.dead), (1, 0), "{report}");
}

fn client(place: &TestTopic) -> BaseConsumer {
    let group = format!("{}-billing", place.topic);
    place.config().set("group.id", group).create().unwrap()
}

/// Position and metadata that the group has committed.
fn word(place: &TestTopic) -> (Offset, String) {
    let mut list = TopicPartitionList::new();
    list.add_partition(&place.topic, 0);
    let client = client(place);
    let found = tokio::task::block_in_place(|| client.committed_offsets(list, PATIENCE)).unwrap();
    let element = &found.elements()[0];
    (element.offset(), element.metadata().to_owned())
}

/// Two processes have died in a row where the group begins.
fn suspected(place: &TestTopic) {
    let mut list = TopicPartitionList::new();
    let mut element = list.add_partition(&place.topic, 0);
    element.set_offset(Offset::Offset(0)).unwrap();
    element.set_metadata("dlq1;open;by=9;deaths=1;until=1000");
    topic::commit(&client(place), &list);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_retry_records_of_a_routers_handlers_come_back_in_topics_that_groups_share() {
    if !available() {
        return;
    }
    let place = TestTopic::with_partitions("routed", 1).await;
    let seen = Seen::new(&place);
    place.publish([1]).await;
    run(&place, &seen).await;
    assert_eq!(seen.runs.load(Ordering::Relaxed), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g3_a_suspect_is_marked_whatever_its_handler_is_called() {
    if !available() {
        return;
    }
    let place = TestTopic::with_partitions("suspected", 1).await;
    let seen = Seen::new(&place);
    suspected(&place);
    place.publish([1]).await;
    run(&place, &seen).await;
    let words = seen.words.lock().unwrap();
    assert!(words[0].contains("marks="), "it ran without a mark: {words:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g3_a_suspect_that_was_given_back_is_one_still() {
    if !available() {
        return;
    }
    let place = TestTopic::with_partitions("given-back", 1).await;
    suspected(&place);
    place.publish([1]).await;
    let mut source = place.billing().source(&place.brokers).await.unwrap();
    let (first, settle) = next(&mut source).await;
    assert_eq!(first.deliveries(), 3);
    settle.settle(Disposition::Deferred { after: Duration::ZERO }).await.unwrap();
    let (again, _settle) = next(&mut source).await;
    // Whoever gave it back takes that off again.
    assert_eq!(again.deliveries(), 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g2_a_letter_that_was_sent_back_is_known_by_the_name_of_its_handler() {
    if !available() {
        return;
    }
    let place = TestTopic::with_partitions("sent-back", 1).await;
    let mut letter = letter_of(Message::new(&*place.topic, "1"), 1);
    letter.origin = Origin::new("kafka", &*place.topic, Position::Offset(7)).with_partition(0);
    let at = Timestamp::from_millis(1_790_000_000_000);
    let operation = OperationId::of("ana", at, 1);
    let replay = Replay { operation, count: 1, from: "orders.dlq/0/1".to_owned(), at };
    for consumer in ["shop.created", "shop.created", "billing", "other"] {
        letter.consumer = consumer.to_owned();
        letter.id = LetterId::of(&letter.origin, None, consumer);
        let headers = on_replay(&letter, &replay);
        let text = |name| std::str::from_utf8(name).unwrap();
        let headers = headers.iter().map(|one| (text(&one.name), one.value.as_deref().unwrap()));
        place.send(&place.topic, b"1", &headers.collect::<Vec<_>>()).await;
    }
    let mut source = place.billing().source(&place.brokers).await.unwrap();
    let (unknown, _settle) = next(&mut source).await;
    assert_eq!(unknown.generation(), 0, "nobody here is called that");
    source.bind(Arc::new(Called::by(["shop", "shop.created"])));
    let (known, _settle) = next(&mut source).await;
    let id = LetterId::of(&letter.origin, None, "shop.created");
    assert_eq!((known.death("shop.created").letter, known.generation()), (id, 1));
    assert_eq!(known.replays(), 1);
    let (before, _settle) = next(&mut source).await;
    assert_eq!(before.generation(), 1, "it died before its handler had a name of its own");
    let (other, _settle) = next(&mut source).await;
    assert_eq!(other.generation(), 0);
}

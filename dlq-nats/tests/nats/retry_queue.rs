//! The retry queue, and who is believed to be a known letter.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use dlq_core::protocol::{Replay, on_replay};
use dlq_core::{
    Attempt, Cause, Clock, DeadLetter, DelayedRetry, DeliveredFrom, Delivery, Disposition,
    ErrorClass, Failure, Headers, Message, OperationId, Origin, Position, RetryQueue, Settle,
    Source, SystemClock, Timestamp,
};
use dlq_nats::{NatsSource, RetryStream};
use dlq_testkit::doubles::Called;
use dlq_testkit::fixtures::letter_of;
use tokio::time::timeout;

use crate::fixture::{LEASE, STREAM, Server, available, billing, consumer, handle, next, number};

pub(crate) fn delayed_retry(delivery: Delivery, consumer: &str, due: Timestamp) -> DelayedRetry {
    let failure = Failure::new(ErrorClass::Transient, Cause::Error, "tests::Refused", "not yet");
    let mut history = delivery.history().clone();
    history.push(Attempt { number: 1, generation: delivery.generation(), failure });
    DelayedRetry { delivery, consumer: consumer.into(), due, history, attempts: 1 }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_keeps_records_until_they_are_due() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let queue = billing().retry_queue(&server.client).await.unwrap();
    assert!(queue.has_schedules(), "this server has them");
    server.publish([1]).await;
    let mut source = server.source(&billing()).await;
    let (delivery, settle) = next(&mut source).await;
    let far = Timestamp::MAX.before(Duration::from_secs(1));
    let due = delivery.message().published_at().unwrap().after(Duration::from_secs(7200));
    assert!(due < far);
    // The handler has another name than the consumer, as behind a router: its records are heard all the same.
    queue.enqueue(delayed_retry(delivery, "payments.charge", due)).await.unwrap();
    settle.settle(Disposition::Succeeded).await.unwrap();
    let stored = server.stored("DLQ_RETRY").await;
    assert_eq!(stored.len(), 1);
    assert!(stored[0].subject.starts_with("retry-at.billing."), "{}", stored[0].subject);
    assert_eq!(
        stored[0].headers.get("Nats-Schedule-Target").unwrap().as_str(),
        "retry.billing.orders.created"
    );
    let fires = format!("@at {}", due.before(Duration::from_millis(300)));
    assert_eq!(stored[0].headers.get("Nats-Schedule").unwrap().as_str(), fires);
    assert_eq!(stored[0].payload, "1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_record_comes_before_it_is_due_and_none_is_handed_out_twice() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let queue = billing().retry_queue(&server.client).await.unwrap();
    server.publish(1..=20).await;
    let mut source = server.source(&billing()).await;
    // All first: a retry that is due may come before messages that wait.
    let mut messages = Vec::new();
    for _ in 0..20 {
        messages.push(next(&mut source).await);
    }
    let mut dues = BTreeMap::new();
    for (n, (delivery, settle)) in (0..20_u64).zip(messages) {
        // Some are due before the server would look at a schedule, some by their schedules.
        let due = SystemClock.now().after(Duration::from_millis(150 * (n % 5)));
        dues.insert(number(&delivery), due);
        queue.enqueue(delayed_retry(delivery, "billing", due)).await.unwrap();
        settle.settle(Disposition::Succeeded).await.unwrap();
    }
    for _ in 0..20 {
        let record = handle(&mut source).await.unwrap();
        let now = SystemClock.now();
        assert_eq!(record.delivered_from(), DeliveredFrom::Retry);
        assert_eq!(record.deliveries(), 1, "it waited here, and was not given back");
        assert!(dues[&number(&record)] <= now);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_of_another_handler_of_the_consumer_is_heard() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let queue = consumer("a.b c").retry_queue(&server.client).await.unwrap();
    server.publish([1]).await;
    let mut source = server.source(&consumer("a.b c")).await;
    let (delivery, settle) = next(&mut source).await;
    let death = delivery.death("payments.charge");
    queue.enqueue(delayed_retry(delivery, "payments.charge", Timestamp::EPOCH)).await.unwrap();
    settle.settle(Disposition::Succeeded).await.unwrap();
    let record = handle(&mut source).await.unwrap();
    assert_eq!((record.delivered_from(), number(&record)), (DeliveredFrom::Retry, 1));
    assert_eq!(record.death("payments.charge"), death);
    assert_eq!(server.count("DLQ_RETRY").await, 0, "a settled record is gone");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g8_a_message_as_large_as_can_be_waits_too() {
    if !available() {
        return;
    }
    let server = Server::with("max_payload", "131072").await;
    let queue = billing().retry_queue(&server.client).await.unwrap();
    let mut source = server.source(&billing()).await;
    let long = "x".repeat(60_000);
    for (payload, header) in [(131_072 - 20, ""), (10, long.as_str()), (0, long.as_str())] {
        let large = bytes::Bytes::from(vec![b'1'; payload]);
        let mut headers = async_nats::HeaderMap::new();
        headers.insert("long", header);
        let sent = server.context.publish_with_headers("orders.created", headers, large.clone());
        sent.await.unwrap().await.unwrap();
        let (delivery, settle) = next(&mut source).await;
        let message = delivery.message().clone();
        let hop = delayed_retry(delivery, "billing", Timestamp::EPOCH);
        queue.enqueue(hop.clone()).await.unwrap();
        queue.enqueue(hop.clone()).await.unwrap();
        settle.settle(Disposition::Succeeded).await.unwrap();
        let record = handle(&mut source).await.unwrap();
        assert_eq!((record.delivered_from(), record.message()), (DeliveredFrom::Retry, &message));
        assert_eq!((record.attempt(), record.history()), (2, &hop.history));
        assert_eq!(server.count("DLQ_RETRY").await, 0, "its parts are gone with it");
    }
}

/// A delivery that no handler runs, and what it is refused for.
async fn refused(source: &mut NatsSource) -> String {
    let refused = handle(source).await.unwrap();
    let failure = refused.refusal().unwrap_or_else(|| panic!("it would run: {refused:?}"));
    assert_eq!(failure.cause, Cause::Malformed);
    failure.message().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g9_a_record_whose_parts_have_gone_is_refused_and_keeps_nobody_from_others() {
    const MOST: usize = 65_536;
    if !available() {
        return;
    }
    let server = Server::with("max_payload", &MOST.to_string()).await;
    let queue = billing().retry_queue(&server.client).await.unwrap();
    let mut source = server.source(&billing()).await;
    for _ in 0..3 {
        let large = vec![b'1'; MOST - 20];
        let sent = server.context.publish("orders.created", large.into()).await;
        sent.unwrap().await.unwrap();
        let (delivery, settle) = next(&mut source).await;
        let far = delivery.message().published_at().unwrap().after(Duration::from_secs(5));
        queue.enqueue(delayed_retry(delivery, "billing", far)).await.unwrap();
        settle.settle(Disposition::Succeeded).await.unwrap();
    }
    // An operator cleans up.
    let stream = server.context.get_stream("DLQ_RETRY").await.unwrap();
    let purged = stream.purge().filter("retry-aside.>").await.unwrap();
    assert!(purged.purged > 0);
    for _ in 0..3 {
        let why = refused(&mut source).await;
        assert!(why.contains("has gone") && why.contains("stream `DLQ_RETRY`"), "{why}");
    }
    server.publish([2]).await;
    assert_eq!(number(&handle(&mut source).await.unwrap()), 2);
    assert_eq!(server.count("DLQ_RETRY").await, 0, "nothing comes again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g9_a_record_that_names_parts_which_never_were_is_refused_once() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let mut source = server.source(&billing()).await;
    for forged in ["4711", "1,1", "0"] {
        let mut headers = async_nats::HeaderMap::new();
        headers.insert("dlq.nats.rest", forged);
        let subject = "retry.billing.orders.created";
        let sent = server.context.publish_with_headers(subject, headers, "7".into()).await;
        sent.unwrap().await.unwrap();
        let why = refused(&mut source).await;
        assert!(why.contains("can never be read whole"), "{why}");
        assert_eq!(server.count("DLQ_RETRY").await, 0, "it does not come again");
    }
}

/// The clock of a process that is behind.
#[derive(Debug)]
struct Behind(Duration);

impl Clock for Behind {
    fn now(&self) -> Timestamp {
        SystemClock.now().before(self.0)
    }
}

/// A record that is handed out often is a suspect.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g3_a_clock_that_is_behind_makes_no_record_a_suspect() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let behind = billing().clock(Arc::new(Behind(Duration::from_secs(1))));
    let queue = behind.retry_queue(&server.client).await.unwrap();
    assert!(queue.has_schedules());
    server.publish([1]).await;
    let mut source = server.source(&behind).await;
    let (delivery, settle) = next(&mut source).await;
    let due = SystemClock.now().after(Duration::from_secs(1));
    queue.enqueue(delayed_retry(delivery, "billing", due)).await.unwrap();
    settle.settle(Disposition::Succeeded).await.unwrap();
    let record = handle(&mut source).await.unwrap();
    assert_eq!((record.delivered_from(), record.deliveries()), (DeliveredFrom::Retry, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_a_hop_of_another_replay_or_of_other_bytes_is_another_record() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    for stream in [RetryStream::new(), RetryStream::new().name("PLAIN").prefix("plain")] {
        let name = if stream == RetryStream::new() { "DLQ_RETRY" } else { "PLAIN" };
        let stream = if name == "PLAIN" { stream.without_schedules() } else { stream };
        let queue = billing().retry_stream(stream).retry_queue(&server.client).await.unwrap();
        let origin = Origin::new("nats", STREAM, Position::Offset(1));
        let first = Delivery::to("billing", Message::new("orders.created", "1"), origin.clone());
        let death = first.death("billing");
        let edited = Delivery::to("billing", Message::new("orders.created", "2"), origin);
        let due = SystemClock.now().after(Duration::from_secs(7200));
        for (records, hop) in [
            (1, first.clone()),
            (1, first.clone()),
            (2, first.with_replays(1)),
            (3, edited.with_death(death).with_replays(1)),
        ] {
            queue.enqueue(delayed_retry(hop, "billing", due)).await.unwrap();
            assert_eq!(server.count(name).await, records);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_stream_that_was_deleted_is_made_again() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let consumer = billing().retry_stream(RetryStream::new().name("RETRIES"));
    let queue = consumer.retry_queue(&server.client).await.unwrap();
    server.publish([1]).await;
    let mut source = server.source(&consumer).await;
    let (delivery, settle) = next(&mut source).await;
    server.context.delete_stream("RETRIES").await.unwrap();
    queue.enqueue(delayed_retry(delivery, "billing", Timestamp::EPOCH)).await.unwrap();
    settle.settle(Disposition::Succeeded).await.unwrap();
    assert_eq!(handle(&mut source).await.unwrap().delivered_from(), DeliveredFrom::Retry);
}

/// Returns what a replay to the origin says.
fn sent_back(letter: &DeadLetter) -> Headers {
    let at = Timestamp::from_millis(1_790_000_000_000);
    let operation = OperationId::of("ana", at, 1);
    on_replay(letter, &Replay { operation, count: 1, from: "DLQ@1".to_owned(), at })
}

/// Publishes what a replay to the origin would, with this payload.
async fn replay(server: &Server, letter: &DeadLetter, payload: &'static str) {
    publish(server, letter, sent_back(letter), payload).await;
}

async fn publish(server: &Server, letter: &DeadLetter, said: Headers, payload: &'static str) {
    let mut headers = async_nats::HeaderMap::new();
    for header in &said {
        let name = std::str::from_utf8(&header.name).unwrap();
        let value = std::str::from_utf8(header.value.as_deref().unwrap()).unwrap();
        headers.append(name, value);
    }
    let subject = letter.message.subject().to_owned();
    let sent = server.context.publish_with_headers(subject, headers, payload.into()).await;
    sent.unwrap().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g2_an_absurd_retry_record_is_a_message_of_its_own() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let queue = billing().retry_queue(&server.client).await.unwrap();
    server.publish([1]).await;
    let mut source = server.source(&billing()).await;
    let (delivery, settle) = next(&mut source).await;
    let mut absurd = delivery.death("billing");
    absurd.generation = u32::MAX;
    let forged = delivery.clone().with_death(absurd);
    queue.enqueue(delayed_retry(forged, "billing", Timestamp::EPOCH)).await.unwrap();
    settle.settle(Disposition::Succeeded).await.unwrap();
    let record = handle(&mut source).await.unwrap();
    assert_eq!((record.delivered_from(), record.generation()), (DeliveredFrom::Retry, 0));
    assert_eq!(record.origin().stream(), "DLQ_RETRY");
    assert_eq!(record.message().payload(), delivery.message().payload());
    assert_ne!(record.death("billing").letter, absurd.letter);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g2_a_replayed_letter_is_known_and_copied_headers_are_not_believed() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    server.publish([1]).await;
    let mut source = server.source(&billing()).await;
    let original = handle(&mut source).await.unwrap();
    let mut letter = letter_of(original.message().clone(), 1);
    letter.origin = original.origin().clone();
    letter.consumer = "billing".to_owned();
    letter.id = original.death("billing").letter;
    replay(&server, &letter, "1").await;
    let known = handle(&mut source).await.unwrap();
    assert_eq!((known.death("billing").letter, known.generation()), (letter.id, 1));
    assert_eq!((known.replays(), known.origin()), (1, original.origin()));
    assert_eq!(known.message(), original.message(), "our headers are not the producer's");
    // Headers copied onto a new message.
    replay(&server, &letter, "2").await;
    let copied = handle(&mut source).await.unwrap();
    assert_ne!(copied.death("billing").letter, letter.id);
    assert_eq!((copied.generation(), copied.replays()), (0, 0));
    // Whoever is called that is one of those whom a router hands messages to.
    letter.consumer = "shop.billing".to_owned();
    letter.id = original.death("shop.billing").letter;
    source.bind(Arc::new(Called::by(["shop"])));
    replay(&server, &letter, "1").await;
    assert_eq!(handle(&mut source).await.unwrap().generation(), 0, "nobody is called that");
    source.bind(Arc::new(Called::by(["shop", "shop.billing"])));
    replay(&server, &letter, "1").await;
    assert_eq!(handle(&mut source).await.unwrap().death("shop.billing").letter, letter.id);
    letter.consumer = "billing".to_owned();
    letter.id = original.death("billing").letter;
    replay(&server, &letter, "1").await;
    let before = handle(&mut source).await.unwrap();
    assert_eq!(before.generation(), 1, "it died before its handler had a name of its own");
    // Another consumer has its own letters.
    let mut shipping = server.source(&consumer("shipping")).await;
    for _ in 0..6 {
        let delivery = handle(&mut shipping).await.unwrap();
        assert_ne!(delivery.death("shipping").letter, letter.id);
        assert_eq!(delivery.generation(), 0);
    }
    assert!(timeout(LEASE, source.next()).await.is_err());
}

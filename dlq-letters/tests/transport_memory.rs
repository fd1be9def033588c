//! The broker in memory passes every check for transports, and one that acknowledges early does not.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use dlq_core::memory::{MemoryBroker, MemoryRetryQueue, MemorySource, Start};
use dlq_core::{
    Disposition, Message, Position, Settle, SharedClock, Sink, Source, TransportErrorKind,
};
use dlq_testkit::doubles::{
    EarlyAckSource, FaultyRetryQueue, FaultySource, RetryQueueFault, SourceFault,
};
use dlq_testkit::transport::{
    MemoryFixture, TransportFixture, closing, delivering, retry_queue, run, settling,
};

mod memory {
    dlq_testkit::transport_conformance!(dlq_testkit::transport::MemoryFixture);
}

/// The broker in memory, reached in a way that breaks a promise.
#[derive(Debug)]
struct Broken<const FAULT: usize>(MemoryFixture);

/// By number, since a fixture is a type.
const SOURCES: [SourceFault; 5] = [
    SourceFault::LosesWhenDropped,
    SourceFault::KeepsWhenClosed,
    SourceFault::Reorders,
    SourceFault::CountsNothing,
    SourceFault::AddsHeaders,
];
const QUEUES: [RetryQueueFault; 5] = [
    RetryQueueFault::Early,
    RetryQueueFault::Repeats,
    RetryQueueFault::ForgetsAttempts,
    RetryQueueFault::Loses,
    RetryQueueFault::TellsOthers,
];

impl<const FAULT: usize> TransportFixture for Broken<FAULT> {
    type Source = FaultySource<MemorySource>;
    type DeliveredFrom = FaultyRetryQueue<MemoryRetryQueue>;

    const PAUSED: bool = true;

    async fn fresh(check: &'static str) -> Self {
        Self(MemoryFixture::fresh(check).await)
    }

    async fn publish(&self, message: Message) -> bool {
        self.0.publish(message).await
    }

    async fn source(&self, consumer: &str) -> Self::Source {
        FaultySource::new(self.0.source(consumer).await, SOURCES.get(FAULT).copied())
    }

    async fn retry_queue(&self) -> Option<Self::DeliveredFrom> {
        let fault = FAULT.checked_sub(SOURCES.len()).and_then(|fault| QUEUES.get(fault)).copied();
        self.0.retry_queue().await.map(|queue| FaultyRetryQueue::new(queue, fault))
    }

    fn lease(&self) -> Duration {
        self.0.lease()
    }

    fn clock(&self) -> SharedClock {
        self.0.clock()
    }
}

/// Nothing is wrong with the double itself: without a fault it passes.
mod double_without_fault {
    use super::Broken;

    dlq_testkit::transport_conformance!(Broken<99>);
}

#[test]
fn a_source_that_breaks_a_promise_is_found() {
    let text = fails(|| run::<Broken<0>, _>("drop", delivering::dropping_next_loses_nothing));
    assert!(text.contains("out of reach until its lease ended"), "{text}");
    let text = fails(|| run::<Broken<1>, _>("close", closing::closing_gives_back));
    assert!(text.contains("had to wait"), "{text}");
    let text = fails(|| run::<Broken<2>, _>("order", delivering::order_is_as_declared));
    assert!(text.contains("left == right"), "{text}");
    let text = fails(|| run::<Broken<3>, _>("count", settling::what_is_not_settled_comes_again));
    assert!(text.contains("the second delivery says so"), "{text}");
    let text = fails(|| run::<Broken<4>, _>("bytes", delivering::bytes_are_exact));
    assert!(text.contains("headers of"), "{text}");
}

#[test]
fn a_retry_queue_that_breaks_a_promise_is_found() {
    let text = fails(|| run::<Broken<5>, _>("early", retry_queue::a_record_comes_when_it_is_due));
    assert!(text.contains("due in"), "{text}");
    let text =
        fails(|| run::<Broken<6>, _>("twice", retry_queue::a_hop_written_twice_is_one_record));
    assert!(text.contains("nothing was expected"), "{text}");
    let text = fails(|| run::<Broken<7>, _>("attempts", retry_queue::a_record_continues_the_count));
    assert!(text.contains("one attempt was made before"), "{text}");
    let text = fails(|| run::<Broken<8>, _>("loses", retry_queue::a_record_survives_a_crash));
    assert!(text.contains("no delivery within"), "{text}");
    let text = fails(|| {
        run::<Broken<9>, _>("others", retry_queue::a_record_is_heard_by_its_consumer_only)
    });
    assert!(text.contains("nothing was expected"), "{text}");
}

/// The broker in memory, read by a source that acknowledges on receipt.
#[derive(Debug)]
struct EarlyAck(MemoryFixture);

impl TransportFixture for EarlyAck {
    type Source = EarlyAckSource<MemorySource>;
    type DeliveredFrom = MemoryRetryQueue;

    const PAUSED: bool = true;

    async fn fresh(check: &'static str) -> Self {
        Self(MemoryFixture::fresh(check).await)
    }

    async fn publish(&self, message: Message) -> bool {
        self.0.publish(message).await
    }

    async fn source(&self, consumer: &str) -> Self::Source {
        EarlyAckSource::new(self.0.source(consumer).await)
    }

    async fn retry_queue(&self) -> Option<MemoryRetryQueue> {
        self.0.retry_queue().await
    }

    fn lease(&self) -> Duration {
        self.0.lease()
    }

    fn clock(&self) -> SharedClock {
        self.0.clock()
    }
}

fn fails(check: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(check)).expect_err("the check must fail");
    match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => panic.downcast::<&str>().map(|text| (*text).to_owned()).unwrap_or_default(),
    }
}

#[test]
fn acknowledging_on_receipt_is_found() {
    let unsettled = fails(|| {
        run::<EarlyAck, _>("early_ack", settling::what_is_not_settled_comes_again);
    });
    assert!(unsettled.contains("no delivery within"), "{unsettled}");
    let deferred =
        fails(|| run::<EarlyAck, _>("early_ack", settling::a_deferred_message_comes_later));
    assert!(deferred.contains("no delivery within"), "{deferred}");
    let dropped =
        fails(|| run::<EarlyAck, _>("early_ack", settling::a_dropped_delivery_comes_again));
    assert!(dropped.contains("no delivery within"), "{dropped}");
}

#[tokio::test(start_paused = true)]
async fn whoever_lost_a_message_is_told() {
    let fixture = MemoryFixture::fresh("lost").await;
    fixture.publish(Message::new("s", "x")).await;
    let (_, mut settle) = fixture.source("c").await.next().await.unwrap().unwrap();
    let mut other = fixture.source("c").await;
    let (again, _held) = other.next().await.unwrap().unwrap();
    assert_eq!(again.deliveries(), 2);
    assert_eq!(settle.extend().await.unwrap_err().kind(), TransportErrorKind::Lost);
    let lost = settle.settle(Disposition::Succeeded).await.unwrap_err();
    assert_eq!(lost.kind(), TransportErrorKind::Lost);
    assert_eq!(fixture.broker().pending("c"), 1, "the other still has it");
}

#[tokio::test(start_paused = true)]
async fn a_crash_ends_every_lease_of_the_group_at_once() {
    let fixture = MemoryFixture::fresh("crash").await;
    for _ in 0..3 {
        fixture.publish(Message::new("s", "x")).await;
    }
    let mut source = fixture.source("c").await;
    let (_, settle) = source.next().await.unwrap().unwrap();
    fixture.broker().crash("c");
    let start = tokio::time::Instant::now();
    let mut heir = fixture.source("c").await;
    let mut positions = Vec::new();
    for _ in 0..3 {
        let (delivery, settle) = heir.next().await.unwrap().unwrap();
        positions.push(delivery.origin().position().clone());
        settle.settle(Disposition::Succeeded).await.unwrap();
    }
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!(positions, [1, 2, 3].map(Position::Offset));
    assert!(settle.settle(Disposition::Succeeded).await.is_err());
    fixture.broker().idle("c").await;
}

#[tokio::test(start_paused = true)]
async fn a_group_begins_where_it_is_told() {
    let fixture = MemoryFixture::fresh("start").await;
    let broker = fixture.broker();
    for number in 1..=3 {
        broker.publish(Message::new("s", number.to_string()));
    }
    broker.start("latest", Start::Latest);
    broker.start("third", Start::At(3));
    broker.start("odd", Start::At(99));
    assert_eq!(["fresh", "latest", "third", "odd"].map(|g| broker.pending(g)), [3, 0, 1, 0]);
    broker.publish(Message::new("s", "4"));
    assert_eq!(["fresh", "latest", "third", "odd"].map(|g| broker.pending(g)), [4, 1, 2, 1]);
    broker.start("third", Start::Earliest);
    assert_eq!(broker.pending("third"), 4);
    assert_eq!(broker.messages().len(), 4);
    assert!(broker.clone().stream("other").messages().is_empty(), "streams are apart");
}

#[tokio::test(start_paused = true)]
async fn a_stream_of_dead_letters_keeps_one_letter_per_death() {
    use dlq_core::memory::MemorySink;
    use dlq_core::store::Receipt;
    use dlq_testkit::fixtures::{died_again, letter};

    let sink = MemorySink::new();
    let first = letter(1);
    let again = died_again(&first);
    let mut other = first.clone();
    other.message = other.message.with_payload(Some("other bytes".into()));
    other.generation = 1;
    let conflict = first.id.conflicting(&other.message);
    let put = |letter: &dlq_core::DeadLetter| sink.put(vec![letter.clone()]);
    assert_eq!(put(&first).await.unwrap(), [Receipt::Stored]);
    assert_eq!(put(&first).await.unwrap(), [Receipt::Unchanged]);
    assert_eq!(put(&again).await.unwrap(), [Receipt::Reopened]);
    assert_eq!(put(&first).await.unwrap(), [Receipt::Superseded]);
    assert_eq!(put(&other).await.unwrap(), [Receipt::Conflicting(conflict)]);
    assert_eq!(put(&other).await.unwrap(), [Receipt::Conflicting(conflict)]);
    assert_eq!(sink.letters().len(), 2);
    assert_eq!(sink.get(first.id).unwrap().generation, 1);
}

#[tokio::test(start_paused = true)]
async fn a_producers_time_is_kept() {
    let clock: SharedClock = MemoryFixture::fresh("time").await.clock();
    let broker = MemoryBroker::new().clock(clock.clone());
    let given = dlq_core::Timestamp::from_millis(7);
    broker.publish(Message::new("s", "").with_published_at(given));
    broker.publish(Message::new("s", ""));
    let times: Vec<_> = broker.messages().iter().map(|m| m.published_at().unwrap()).collect();
    assert_eq!(times, [given, clock.now()]);
}

//! What a source shows of itself while it works.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dlq_core::{
    DelayedRetry, DeliveredFrom, Disposition, History, RetryQueue as _, Settle as _, Source as _,
};
use dlq_kafka::{KafkaSource, Ladder};
use dlq_testkit::fixtures::ManualClock;
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use metrics_util::registry::{AtomicStorage, Registry};
use tokio::time::{sleep, timeout};

use crate::fixture::{PATIENCE, TestTopic, available, handle, next};

/// How long records wait, by a clock that stands still meanwhile.
const STAGE: Duration = Duration::from_secs(1);

/// What is told of a source. A gauge keeps what it was set to, however often it is asked.
pub(crate) struct Told {
    registry: Registry<Key, AtomicStorage>,
    group: String,
}

impl Told {
    fn gauge(&self, name: &str) -> Option<f64> {
        let mut all = self.registry.get_gauge_handles().into_iter();
        let (_, value) = all.find(|(key, _)| is_of(key, name, &self.group))?;
        Some(f64::from_bits(value.load(Ordering::Acquire)))
    }

    /// How many records were written to a retry topic.
    fn retries(&self, topic: &str) -> u64 {
        let all = self.registry.get_counter_handles().into_iter();
        let of_topic = all.filter(|(key, _)| is_of(key, "dlq_kafka_retries_total", topic));
        of_topic.map(|(_, count)| count.load(Ordering::Acquire)).sum()
    }

    fn lateness(&self, topic: &str) -> Vec<f64> {
        let all = self.registry.get_histogram_handles().into_iter();
        let of_topic = all.filter(|(key, _)| is_of(key, "dlq_kafka_lateness_seconds", topic));
        of_topic.flat_map(|(_, values)| values.data()).collect()
    }

    pub(crate) async fn until(&self, name: &str, is_right: impl Fn(f64) -> bool) {
        let told = async {
            while !self.gauge(name).is_some_and(&is_right) {
                sleep(Duration::from_millis(5)).await;
            }
        };
        let told = timeout(PATIENCE, told).await;
        assert!(told.is_ok(), "`{name}` stays {:?}", self.gauge(name));
    }
}

/// `whose` is a group or a topic.
fn is_of(key: &Key, name: &str, whose: &str) -> bool {
    key.name() == name && key.labels().any(|label| label.value() == whose)
}

impl Recorder for Told {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        self.registry.get_or_create_counter(key, |count| Arc::clone(count).into())
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        self.registry.get_or_create_gauge(key, |value| Arc::clone(value).into())
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        self.registry.get_or_create_histogram(key, |values| Arc::clone(values).into())
    }
}

/// Waits until this is told while the source is asked for what does not come.
async fn meanwhile(source: &mut KafkaSource, told: impl Future<Output = ()>) {
    let early = async {
        loop {
            match source.next().await {
                Err(error) if error.is_transient() => {}
                next => return next.map(|next| next.map(|next| next.0)),
            }
        }
    };
    tokio::select! {
        () = told => {}
        early = early => panic!("it came too early: {early:?}"),
    }
}

/// Tries something with a topic of so many partitions, whose gauges are told. The source and its futures are of this
/// thread, whose recorder it is.
pub(crate) fn with_told(name: &str, partitions: i32, check: impl AsyncFnOnce(&TestTopic, &Told)) {
    if !available() {
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let place = runtime.block_on(TestTopic::with_partitions(name, partitions));
    let group = format!("{}-billing", place.topic);
    let told = Told { registry: Registry::atomic(), group };
    metrics::with_local_recorder(&told, || runtime.block_on(check(&place, &told)));
}

#[test]
fn what_waits_and_is_paused_is_shown_and_how_late_it_came() {
    with_told("gauged", 1, shown);
}

async fn shown(place: &TestTopic, told: &Told) {
    let clock = ManualClock::new();
    let ladder = Ladder::of([STAGE]);
    let consumer = place.billing().ladder(ladder).prefetch(1).clock(clock.shared());
    let (mut source, queue) = (
        consumer.source(&place.brokers).await.unwrap(),
        consumer.retry_queue(&place.brokers).await.unwrap(),
    );
    place.publish(1..=3).await;
    for _ in 0..3 {
        let (delivery, settle) = next(&mut source).await;
        let delayed_retry = DelayedRetry {
            delivery,
            consumer: "billing".into(),
            due: clock.shared().now(),
            history: History::new(),
            attempts: 1,
        };
        queue.enqueue(delayed_retry).await.unwrap();
        settle.settle(Disposition::Succeeded).await.unwrap();
    }
    let stage = format!("{}.{}.retry.1s", place.topic, told.group);
    assert_eq!(told.retries(&stage), 3);
    meanwhile(&mut source, told.until("dlq_kafka_waiting", |records| records == 3.0)).await;
    let is_soon = |seconds| seconds > 0.0 && seconds <= STAGE.as_secs_f64();
    meanwhile(&mut source, told.until("dlq_kafka_next_due_seconds", is_soon)).await;
    clock.advance(STAGE * 10);
    for _ in 0..3 {
        assert_eq!(handle(&mut source).await.delivered_from(), DeliveredFrom::Retry);
    }
    let late = told.lateness(&stage);
    assert_eq!(late, [9.0; 3], "it had waited for a second of ten");
    let is_none = |value| value == 0.0;
    meanwhile(&mut source, told.until("dlq_kafka_waiting", is_none)).await;
    meanwhile(&mut source, told.until("dlq_kafka_next_due_seconds", is_none)).await;

    // Nobody takes anything: its topic and the retry topic pause, and go on when somebody does.
    assert_eq!(told.gauge("dlq_kafka_paused"), Some(0.0));
    place.publish(1..=100).await;
    told.until("dlq_kafka_paused", |partitions| partitions == 2.0).await;
    for _ in 0..100 {
        let _ = handle(&mut source).await;
    }
    meanwhile(&mut source, told.until("dlq_kafka_paused", is_none)).await;
}

#[test]
fn the_time_until_the_next_record_is_due_falls_while_nothing_comes_and_nothing_is_shown_at_the_end()
{
    with_told("gauged-due", 1, due);
}

async fn due(place: &TestTopic, told: &Told) {
    const LONG: Duration = Duration::from_secs(60);
    let consumer = place.billing().ladder(Ladder::of([LONG]));
    let (mut source, queue) = (
        consumer.source(&place.brokers).await.unwrap(),
        consumer.retry_queue(&place.brokers).await.unwrap(),
    );
    place.publish([1]).await;
    let (delivery, settle) = next(&mut source).await;
    let delayed_retry = DelayedRetry {
        delivery,
        consumer: "billing".into(),
        due: dlq_core::SystemClock::shared().now(),
        history: History::new(),
        attempts: 1,
    };
    queue.enqueue(delayed_retry).await.unwrap();
    settle.settle(Disposition::Succeeded).await.unwrap();
    meanwhile(&mut source, told.until("dlq_kafka_waiting", |records| records == 1.0)).await;
    let (name, first) = ("dlq_kafka_next_due_seconds", Cell::new(0.0));
    let is_set = |left| {
        first.set(left);
        left > 0.0
    };
    meanwhile(&mut source, told.until(name, is_set)).await;
    assert!(first.get() <= LONG.as_secs_f64(), "{first:?}");
    let has_fallen = |left| left > 0.0 && left < first.get() - 1.0;
    meanwhile(&mut source, told.until(name, has_fallen)).await;
    source.close().await;
    let names = ["dlq_kafka_waiting", "dlq_kafka_paused", name];
    assert_eq!(names.map(|name| told.gauge(name)), [Some(0.0); 3]);
}

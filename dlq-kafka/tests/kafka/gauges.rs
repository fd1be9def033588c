//! What a source shows of itself while it works.

use std::time::Duration;

use dlq_core::{Disposition, Escalation, History, Lane, RetryLane as _, Settle as _, Source as _};
use dlq_kafka::{KafkaSource, Ladder};
use dlq_testkit::fixtures::ManualClock;
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use tokio::time::{sleep, timeout};

use crate::fixture::{PATIENCE, Place, available, handle, next};

/// How long records wait, by a clock that stands still meanwhile.
const STAGE: Duration = Duration::from_secs(1);

/// What was told last.
struct Told {
    snapshotter: Snapshotter,
    group: String,
}

impl Told {
    fn gauge(&self, name: &str) -> Option<f64> {
        let all = self.snapshotter.snapshot().into_vec().into_iter();
        let mut ours = all.filter(|(key, ..)| {
            let mut labels = key.key().labels();
            key.key().name() == name && labels.any(|label| label.value() == self.group)
        });
        match ours.next()?.3 {
            DebugValue::Gauge(value) => Some(value.into_inner()),
            other => panic!("`{name}` is no gauge: {other:?}"),
        }
    }

    /// What was recorded since this was asked last.
    fn lateness(&self, topic: &str) -> Vec<f64> {
        let all = self.snapshotter.snapshot().into_vec().into_iter();
        let of_topic = all.filter(|(key, ..)| {
            let mut labels = key.key().labels();
            key.key().name() == "dlq_kafka_lateness_seconds"
                && labels.any(|label| label.value() == topic)
        });
        let values = of_topic.flat_map(|(.., value)| match value {
            DebugValue::Histogram(values) => values,
            other => panic!("it is no histogram: {other:?}"),
        });
        values.map(|value| value.into_inner()).collect()
    }

    async fn until(&self, name: &str, is_right: impl Fn(f64) -> bool) {
        let told = async {
            while !self.gauge(name).is_some_and(&is_right) {
                sleep(Duration::from_millis(5)).await;
            }
        };
        let told = timeout(PATIENCE, told).await;
        assert!(told.is_ok(), "`{name}` stays {:?}", self.gauge(name));
    }
}

/// Waits until this is told while the source is asked for what does not come.
async fn meanwhile(source: &mut KafkaSource, told: impl Future<Output = ()>) {
    tokio::select! {
        () = told => {}
        next = source.next() => panic!("it came too early: {:?}", next.map(|next| next.map(|next| next.0))),
    }
}

/// The source and its futures are of this thread, whose recorder it is.
#[test]
fn what_waits_and_is_paused_is_shown_and_how_late_it_came() {
    if !available() {
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let recorder = DebuggingRecorder::new();
    let place = runtime.block_on(Place::with_partitions("gauged", 1));
    let group = format!("{}-billing", place.topic);
    let told = Told { snapshotter: recorder.snapshotter(), group };
    metrics::with_local_recorder(&recorder, || runtime.block_on(shown(&place, &told)));
}

async fn shown(place: &Place, told: &Told) {
    let clock = ManualClock::new();
    let ladder = Ladder::of([STAGE]);
    let consumer = place.billing().with_ladder(ladder).with_prefetch(1).with_clock(clock.shared());
    let (mut source, lane) =
        (consumer.source().await.unwrap(), consumer.retry_lane().await.unwrap());
    place.publish(1..=3).await;
    for _ in 0..3 {
        let (delivery, settle) = next(&mut source).await;
        let escalation = Escalation {
            delivery,
            consumer: "billing".into(),
            due: clock.shared().now(),
            history: History::new(),
            attempts: 1,
        };
        lane.escalate(escalation).await.unwrap();
        settle.settle(Disposition::Succeeded).await.unwrap();
    }
    meanwhile(&mut source, told.until("dlq_kafka_waiting", |records| records == 3.0)).await;
    let is_soon = |seconds| seconds > 0.0 && seconds <= STAGE.as_secs_f64();
    meanwhile(&mut source, told.until("dlq_kafka_next_due_seconds", is_soon)).await;
    clock.advance(STAGE * 10);
    for _ in 0..3 {
        assert_eq!(handle(&mut source).await.lane(), Lane::Retry);
    }
    let late = told.lateness(&format!("{}.{}.retry.1s", place.topic, told.group));
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

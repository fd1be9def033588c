use std::collections::BTreeMap;

use dlq_core::{Delivery, ErrorClass, Message, Origin, Position, Reason};
use dlq_tower::classify::ClassifyLayer;
use dlq_tower::dead_letter::DeadLetterLayer;
use dlq_tower::metrics::{MetricsLayer, Recorder};
use dlq_tower::retry::RetryLayer;
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use tower::ServiceBuilder;

use crate::support::*;

/// Every counter that is not zero as `name{labels}`, and every histogram's number of values.
fn counted(snapshotter: &Snapshotter) -> BTreeMap<String, u64> {
    let mut counted = BTreeMap::new();
    for (key, _, _, value) in snapshotter.snapshot().into_vec() {
        let labels: Vec<_> =
            key.key().labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        let value = match value {
            DebugValue::Counter(count) => count,
            DebugValue::Histogram(values) => values.len() as u64,
            DebugValue::Gauge(_) => continue,
        };
        if value > 0 {
            counted.insert(format!("{}{{{}}}", key.key().name(), labels.join(",")), value);
        }
    }
    counted
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
}

#[test]
fn messages_are_counted_once_and_failures_each() {
    let installed = DebuggingRecorder::new();
    let snapshotter = installed.snapshotter();
    metrics::with_local_recorder(&installed, || {
        runtime().block_on(async {
            let recorder = Recorder::new();
            let script = [Act::Succeed, Act::Fail(down()), Act::Fail(down()), Act::Fail(bad())];
            let service = ServiceBuilder::new()
                .layer(MetricsLayer::new().recorder(recorder.clone()))
                .layer(DeadLetterLayer::new(TestSink::default()).recorder(recorder.clone()))
                .layer(RetryLayer::new(policy(5, secs(1))).recorder(recorder))
                .layer(ClassifyLayer::new(judge))
                .service(Handler::new(script));
            let _ = call(&service, delivery(1)).await.unwrap();
            let _ = call(&service, delivery(2)).await.unwrap();
        });
    });
    let expected = [
        ("events_processed_total{subject=payments.created,status=success}", 1),
        ("events_processed_total{subject=payments.created,status=failed}", 3),
        ("events_processed_total{subject=payments.created,status=dlq}", 1),
        ("events_processing_duration_seconds{subject=payments.created}", 2),
        ("messages_in_dlq_total{topic=payments.created,class=permanent}", 1),
    ];
    let expected: BTreeMap<_, _> =
        expected.into_iter().map(|(name, count)| (name.to_owned(), count)).collect();
    assert_eq!(counted(&snapshotter), expected);
}

#[test]
fn labels_are_bounded() {
    let installed = DebuggingRecorder::new();
    let snapshotter = installed.snapshotter();
    metrics::with_local_recorder(&installed, || {
        let recorder = Recorder::new();
        for number in 0..1500 {
            recorder.attempt_failed(&format!("subject-{number}").into());
            dlq_core::store::count_quarantined(
                Some(&format!("event-{number}")),
                Reason::MaxReplays,
            );
        }
        recorder.attempt_failed(&"subject-7".into());
        recorder.letter_written(&"subject-1400".into(), ErrorClass::Transient);
    });
    let counted = counted(&snapshotter);
    assert_eq!(counted["events_processed_total{subject=other,status=failed}"], 500);
    assert_eq!(counted["events_processed_total{subject=subject-7,status=failed}"], 2);
    assert_eq!(counted["messages_in_dlq_total{topic=other,class=transient}"], 1);
    let quarantined = "dlq_messages_quarantined_total{event=other,reason=max_replays}";
    assert_eq!(counted[quarantined], 500);
    assert_eq!(counted.len(), 1001 + 1 + 1001);
}

#[test]
fn a_message_that_could_not_be_routed_is_not_counted_as_dead() {
    let installed = DebuggingRecorder::new();
    let snapshotter = installed.snapshotter();
    metrics::with_local_recorder(&installed, || {
        runtime().block_on(async {
            let sink = TestSink::new([Put::Refuse(dlq_core::StoreErrorKind::Unavailable)]);
            let service = ServiceBuilder::new()
                .layer(MetricsLayer::new())
                .layer(DeadLetterLayer::new(sink))
                .layer(RetryLayer::never())
                .layer(ClassifyLayer::new(judge))
                .service(Handler::always(bad()));
            let message = Message::new("s", "");
            let delivery = Delivery::new(message, Origin::new("memory", "s", Position::Offset(1)));
            assert!(call(&service, delivery.clone()).await.is_err());
            assert!(call(&service, delivery).await.is_ok());
        });
    });
    let counted = counted(&snapshotter);
    assert_eq!(counted["events_processed_total{subject=s,status=dlq}"], 1);
    assert_eq!(counted["messages_in_dlq_total{topic=s,class=permanent}"], 1);
    // The second time it is written, and not run.
    assert_eq!(counted["events_processed_total{subject=s,status=failed}"], 1);
}

#[test]
fn threads_that_learn_subjects_at_once_learn_each_once() {
    let recorder = Recorder::new();
    let start = std::sync::Barrier::new(4);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                start.wait();
                for number in 0..400 {
                    recorder.attempt_failed(&format!("subject-{number}").into());
                }
            });
        }
    });
    assert_eq!(format!("{recorder:?}"), "Recorder { subjects: 400 }");
}

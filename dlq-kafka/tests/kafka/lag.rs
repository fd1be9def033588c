//! Ends and lag are those of the brokers, whether anybody reads or not.

use std::future::poll_fn;
use std::task::Poll;
use std::time::{Duration, Instant};

use dlq_core::TransportErrorKind;
use dlq_kafka::lag::TopicLag;
use dlq_kafka::rdkafka::ClientConfig;
use dlq_kafka::rdkafka::consumer::BaseConsumer;
use dlq_kafka::rdkafka::{Offset, TopicPartitionList};
use dlq_kafka::{Brokers, KafkaLag};
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use tokio::time::timeout;

use crate::fixture::start;
use crate::fixture_topics::{Operator, PATIENCE, available, shared};
use crate::topic;

/// Deadline for what waits for nobody: a client that hung would do so for ever.
const AT_ONCE: Duration = PATIENCE;

fn commit(url: &str, group: &str, topic: &str, partition: i32, offset: i64) {
    let mut config = ClientConfig::new();
    let consumer: BaseConsumer =
        config.set("bootstrap.servers", url).set("group.id", group).create().unwrap();
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(topic, partition, Offset::Offset(offset)).unwrap();
    topic::commit(&consumer, &list);
}

fn figures(read: &[TopicLag]) -> Vec<(&str, u64, u64)> {
    read.iter().map(|one| (one.topic.as_str(), one.end_offset, one.lag)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_is_behind_by_what_it_has_not_committed() {
    if !available() {
        return;
    }
    let url = shared();
    let operator = Operator::at(&url);
    operator.create("behind", 3, &[]).await;
    operator.create("behind.dlq", 1, &[]).await;
    for partition in [0, 0, 0, 0, 1, 1, 2] {
        operator.write("behind", partition, None).await;
    }
    operator.write("behind.dlq", 0, None).await;
    let topics = ["behind.dlq", "behind", "behind.gone"];
    let lag = KafkaLag::new(operator.brokers.clone(), "behind", topics);
    let read = lag.read().await.unwrap();
    assert_eq!(figures(&read), [("behind", 7, 7), ("behind.dlq", 1, 1)]);
    commit(&url, "behind", "behind", 0, 3);
    commit(&url, "behind", "behind", 1, 2);
    assert_eq!(figures(&lag.read().await.unwrap())[0], ("behind", 7, 2));
    operator.write("behind", 1, None).await;
    assert_eq!(figures(&lag.read().await.unwrap())[0], ("behind", 8, 3));
    let other = KafkaLag::new(operator.brokers.clone(), "other", ["behind"]);
    assert_eq!(figures(&other.read().await.unwrap()), [("behind", 8, 8)]);
    // What was removed is not waited for, committed or not.
    operator.remove("behind", 0, 4).await;
    assert_eq!(figures(&lag.read().await.unwrap())[0], ("behind", 8, 2));
    assert_eq!(figures(&other.read().await.unwrap()), [("behind", 8, 4)]);
    let start = Instant::now();
    drop((lag, other));
    assert!(start.elapsed() < AT_ONCE, "it left no group: {:?}", start.elapsed());
}

#[test]
fn gauges_are_set_until_it_is_stopped() {
    if !available() {
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let operator = Operator::at(&runtime.block_on(async { shared() }));
    runtime.block_on(async {
        operator.create("gauged", 1, &[]).await;
        operator.write("gauged", 0, None).await;
    });
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let gauges = || {
        let snapshot = snapshotter.snapshot().into_vec();
        let told = snapshot.into_iter().map(|(key, _, _, value)| {
            let labels =
                key.key().labels().map(|label| format!("{}={}", label.key(), label.value()));
            (key.key().name().to_owned(), labels.collect::<Vec<_>>().join(","), value)
        });
        told.collect::<Vec<_>>()
    };
    // The future that reads runs on this thread, whose recorder it is.
    metrics::with_local_recorder(&recorder, || {
        runtime.block_on(async {
            let lag = KafkaLag::new(operator.brokers.clone(), "gauged", ["gauged"]);
            let is_two = |(name, _, value): &(String, String, DebugValue)| {
                name == "dlq_kafka_lag" && *value == DebugValue::Gauge(2.0.into())
            };
            operator.write("gauged", 0, None).await;
            let mut watched = Vec::new();
            // Asked at least as often as it reads.
            let told = poll_fn(|_| {
                watched = gauges();
                if watched.iter().any(is_two) { Poll::Ready(()) } else { Poll::Pending }
            });
            let running = lag.run(Duration::from_millis(100), told);
            timeout(PATIENCE, running).await.expect("the second is counted");
            let two = || DebugValue::Gauge(2.0.into());
            let name = |name: &str, labels: &str| (name.to_owned(), labels.to_owned(), two());
            assert!(watched.contains(&name("dlq_kafka_lag", "topic=gauged,group=gauged")));
            assert!(watched.contains(&name("dlq_kafka_end_offset", "topic=gauged")), "{watched:?}");
            assert_eq!(watched.len(), 2, "{watched:?}");
        });
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_goes_away_is_told_and_found_again() {
    if !available() {
        return;
    }
    let mut broker = start();
    let operator = Operator::at(broker.url());
    operator.create("away", 2, &[]).await;
    operator.write("away", 0, None).await;
    commit(broker.url(), "away", "away", 1, 0);
    let lag = KafkaLag::new(operator.brokers.clone(), "away", ["away"]);
    assert_eq!(figures(&lag.read().await.unwrap()), [("away", 1, 1)]);
    broker.kill().unwrap();
    let error = lag.read().await.unwrap_err();
    assert_eq!(error.kind(), TransportErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains(broker.url()), "{error}");
    tokio::task::block_in_place(|| broker.restart().unwrap());
    assert_eq!(broker.starts(), 2, "it was really away");
    let again = async {
        loop {
            if let Ok(read) = lag.read().await {
                break read;
            }
        }
    };
    assert_eq!(figures(&timeout(PATIENCE, again).await.unwrap()), [("away", 1, 1)]);
    broker.kill().unwrap();
    let start = Instant::now();
    drop(lag);
    assert!(start.elapsed() < AT_ONCE, "it waits for nobody: {:?}", start.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn brokers_that_do_not_answer_are_told() {
    let lag = KafkaLag::new(Brokers::at("127.0.0.1:1"), "billing", ["orders"]);
    let error = lag.read().await.unwrap_err();
    assert_eq!(error.kind(), TransportErrorKind::Unavailable, "{error}");
    let text = error.to_string();
    assert!(text.contains("at `127.0.0.1:1`") && text.contains("topic `orders`"), "{text}");
    let start = Instant::now();
    drop(lag);
    assert!(start.elapsed() < AT_ONCE, "it hangs on nothing: {:?}", start.elapsed());
}

//! Topics of ours are created as they have to be, once; and what cannot be is told by name.

use std::time::{Duration, Instant};

use dlq_core::StoreErrorKind;
use dlq_kafka::admin::Deployment;
use dlq_kafka::{Brokers, DlqTopic, RetryTopics};
use futures_util::future::join_all;
use tokio::time::{sleep, timeout};

use crate::fixture::start;
use crate::fixture_topics::{Operator, PATIENCE, available, of_topics, ours, shared};

async fn refused(deployment: &Deployment, brokers: &Brokers) -> (StoreErrorKind, String) {
    let error = deployment.create(brokers).await.unwrap_err();
    (error.kind(), error.to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_missing_is_created_and_will_do() {
    if !available() {
        return;
    }
    let operator = Operator::at(&shared());
    operator.create("made", 3, &[("max.message.bytes", "2000000")]).await;
    let deployment = ours("made");
    let done = deployment.create(&operator.brokers).await.unwrap();
    assert_eq!(
        done.created,
        [
            "topic `made.billing.retry.1h`",
            "topic `made.billing.retry.30s`",
            "topic `made.billing.retry.5m`",
            "topic `made.dlq`"
        ]
    );
    assert_eq!(done.differs, []);
    assert_eq!(of_topics(operator.check(&deployment).await), []);
    let settings = operator.settings("made.dlq").await;
    for (setting, value) in [
        ("cleanup.policy", "delete"),
        ("retention.ms", "2592000000"),
        ("retention.bytes", "-1"),
        ("max.message.bytes", "2065536"),
        ("message.timestamp.type", "CreateTime"),
    ] {
        assert_eq!(settings[setting], value, "{setting}");
    }
    assert_eq!(operator.settings("made.billing.retry.1h").await["retention.ms"], "604800000");
    assert_eq!(operator.partitions("made.dlq"), 3);
    assert_eq!(operator.partitions("made.billing.retry.30s"), 3);
    let again = deployment.create(&operator.brokers).await.unwrap();
    assert_eq!((again.created.len(), again.differs.len()), (0, 0), "{again:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_died_half_way_is_completed() {
    if !available() {
        return;
    }
    let operator = Operator::at(&shared());
    operator.create("half", 2, &[]).await;
    let mut deployment = ours("half");
    deployment.letters = DlqTopic::new().partitions(1);
    deployment.retries = RetryTopics::new().partitions(4);
    // What is left when a process dies between two of the topics.
    let mut part = deployment.clone();
    part.consumers[0].ladder = None;
    assert_eq!(part.create(&operator.brokers).await.unwrap().created, ["topic `half.dlq`"]);
    let done = deployment.create(&operator.brokers).await.unwrap();
    assert_eq!(done.created.len(), 3, "{done:?}");
    assert_eq!(operator.partitions("half.dlq"), 1);
    assert_eq!(operator.partitions("half.billing.retry.30s"), 4);
    assert_eq!(of_topics(operator.check(&deployment).await), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_that_start_together_create_once() {
    if !available() {
        return;
    }
    let operator = Operator::at(&shared());
    operator.create("raced", 2, &[]).await;
    let deployment = ours("raced");
    let all = join_all((0..4).map(|_| deployment.create(&operator.brokers))).await;
    let created: usize = all.into_iter().map(|done| done.unwrap().created.len()).sum();
    assert_eq!(created, 4, "each topic by one of them");
    assert_eq!(of_topics(operator.check(&deployment).await), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_topic_of_a_consumer_is_not_created() {
    if !available() {
        return;
    }
    let brokers = Brokers::at(shared());
    for _ in 0..2 {
        let (kind, text) = refused(&ours("nowhere"), &brokers).await;
        assert_eq!(kind, StoreErrorKind::NotFound, "{text}");
        let said = "cannot create a deployment: topic `nowhere` is not there; check its name, or create it";
        assert_eq!(text, said, "looking for it makes none, nor are topics made for it");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_brokers_are_about_to_hear_of_is_there() {
    if !available() {
        return;
    }
    let operator = Operator::at(&shared());
    // Whether it is made soon enough depends on the machine, too.
    for attempt in 0..5 {
        let name = format!("soon-{attempt}");
        let deployment = ours(&name);
        let making = async {
            // When the other has asked.
            sleep(Duration::from_millis(300 >> attempt)).await;
            operator.create(&name, 1, &[]).await;
        };
        match tokio::join!(deployment.create(&operator.brokers), making).0 {
            Ok(done) => return assert_eq!(done.created.len(), 4),
            Err(error) if error.is_transient() => {}
            Err(error) => assert_eq!(error.kind(), StoreErrorKind::NotFound, "{error}"),
        }
    }
    panic!("it is not asked for again");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_brokers_refuse_is_told_with_topic_and_setting() {
    if !available() {
        return;
    }
    let operator = Operator::at(&shared());
    operator.create("refused", 1, &[]).await;
    let mut deployment = ours("refused");
    deployment.letters = DlqTopic::of("refused").replication(3);
    let (kind, text) = refused(&deployment, &operator.brokers).await;
    assert_eq!(kind, StoreErrorKind::InvalidConfig, "{text}");
    assert!(
        text.contains("create topic `refused.dlq` (partitions: 1, replication: 3)")
            && text.contains("ask for less"),
        "{text}"
    );
    deployment.letters = DlqTopic::new().name("{topic}");
    let (kind, text) = refused(&deployment, &operator.brokers).await;
    assert!(kind == StoreErrorKind::InvalidConfig && text.contains("its own source"), "{text}");
    let wrong = Brokers::at(shared()).with("reconnect.backoff", "1");
    let (kind, text) = refused(&ours("refused"), &wrong).await;
    assert!(kind == StoreErrorKind::InvalidConfig && text.contains("reconnect.backoff"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_without_a_broker_is_told_within_bounded_time() {
    let deployment = &ours("orders");
    let ask = |address: &'static str| async move {
        let start = Instant::now();
        let brokers = Brokers::at(address);
        let (kind, text) = timeout(PATIENCE, refused(deployment, &brokers)).await.unwrap();
        assert_eq!(kind, StoreErrorKind::Unavailable, "{text}");
        assert!(text.contains(&format!("at `{address}`")), "{text}");
        println!("after {:?}: {text}", start.elapsed());
        text
    };
    let (closed, unknown) = tokio::join!(ask("127.0.0.1:1"), ask("kafka.invalid:9092"));
    assert!(closed.contains("Connection refused"), "{closed}");
    assert!(unknown.contains("resolve"), "{unknown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_away_at_the_start_is_found_when_it_is_back() {
    if !available() {
        return;
    }
    let mut broker = start();
    let operator = Operator::at(broker.url());
    operator.create("back", 1, &[]).await;
    broker.kill().unwrap();
    let (kind, text) = refused(&ours("back"), &operator.brokers).await;
    assert_eq!(kind, StoreErrorKind::Unavailable, "{text}");
    assert!(text.contains(broker.url()) && text.contains("topic `back`"), "{text}");
    tokio::task::block_in_place(|| broker.restart().unwrap());
    assert_eq!(broker.starts(), 2, "it was really away");
    assert_eq!(ours("back").create(&operator.brokers).await.unwrap().created.len(), 4);
}

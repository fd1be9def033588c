//! A topic of dead letters that may not be written, beside another that may.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlq_core::{Delivery, ErrorClass, Filter, PageRequest};
use dlq_kafka::rdkafka::consumer::{BaseConsumer, Consumer as _};
use dlq_kafka::rdkafka::{Offset, TopicPartitionList};
use dlq_kafka::{DlqTopic, KafkaLetters, KafkaSink, KafkaTransport};
use dlq_tower::consumer::{Consumer, ConsumerHealth, HealthHandle};
use dlq_tower::dead_letter::PARKED;
use dlq_tower::handler::{HandlerStack, handler};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::access::{DESCRIBE, TOPIC, WRITE, allow_only, guarded};
use crate::fixture::{PATIENCE, TestTopic, available};
use crate::fixture_reading::Look as _;

/// Counts what it handles; what is negative dies.
fn counting(handled: &Arc<Mutex<usize>>) -> HandlerStack {
    let handled = Arc::clone(handled);
    let work = move |delivery: Delivery| {
        let fails = delivery.message().payload().is_some_and(|payload| payload.starts_with(b"-"));
        *handled.lock().unwrap() += usize::from(!fails);
        let done = if fails { Err(std::io::Error::other("no account")) } else { Ok(()) };
        std::future::ready(done)
    };
    handler("billing", work).classify(|_: &std::io::Error| ErrorClass::Permanent).build().unwrap()
}

async fn until(health: &mut HealthHandle, holds: impl FnMut(&ConsumerHealth) -> bool) {
    timeout(PATIENCE, health.wait_for(holds)).await.expect("it is so in time").expect("it runs");
}

/// Returns what a group has committed of the first partition of a topic.
fn committed(place: &TestTopic, group: &str, topic: &str) -> Offset {
    let client: BaseConsumer = place.config().set("group.id", group).create().unwrap();
    let mut list = TopicPartitionList::new();
    list.add_partition(topic, 0);
    client.committed_offsets(list, PATIENCE).unwrap().elements()[0].offset()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g4_a_topic_of_letters_that_may_not_be_written_delays_its_own_messages_only() {
    if !available() {
        return;
    }
    let place = TestTopic::at(Arc::new(Mutex::new(guarded())), "one-acl", 1).await;
    let other = format!("{}.other", place.topic);
    place.create(&other, 1, &[]).await;
    let brokers = place.brokers.clone().with("delivery.timeout.ms", "10000");
    let of_group = |group: &str| {
        KafkaTransport::new(&*place.topic)
            .name("billing")
            .topic(&other)
            .group(format!("{}-{group}", place.topic))
            .without_retries()
            .create_missing_topics()
    };
    let first = of_group("first");
    let (source, sink) =
        (first.source(&brokers).await.unwrap(), first.sink(&brokers).await.unwrap());
    let refused = format!("{other}.dlq");
    allow_only(&place.running(), TOPIC, &refused, DESCRIBE);
    // It dies again and again until the rule is in force.
    place.send(&other, b"-1", &[]).await;

    let (handled, stop) = (Arc::default(), Notify::new());
    let marks = source.crash_marks();
    let consumer = Consumer::builder(source)
        .handler(counting(&handled))
        .sink(sink)
        .crash_marks(marks)
        .build()
        .unwrap();
    let mut health = consumer.health();
    let watch = async {
        // A rule takes a moment to be in force.
        let mut number = 1;
        while health.get().refused_letters.is_none() {
            number += 1;
            place.send(&other, format!("-{number}").as_bytes(), &[]).await;
            sleep(Duration::from_millis(200)).await;
            assert!(number < 300, "the rule is in force after a minute");
        }
        let told = health.get().refused_letters.unwrap();
        println!("{told}");
        assert!(told.why.contains(&format!("topic `{refused}`")), "{told}");
        place.publish(1..=100).await;
        // Its own letters are written beside it.
        place.send(&place.topic, b"-7", &[]).await;
        let all = async {
            while *handled.lock().unwrap() < 100 {
                sleep(Duration::from_millis(20)).await;
                let health = health.get();
                assert!(health.route_error.is_none(), "fetching pauses: {health:?}");
            }
            let letters = KafkaLetters::new(&place.brokers, format!("{}.dlq", place.topic));
            while letters.count(Filter::new()).await.unwrap() == 0 {}
        };
        timeout(PATIENCE, all).await.expect("nobody else waits");
        assert!(health.get().refused_letters.is_some());
        allow_only(&place.running(), TOPIC, &refused, WRITE);
        until(&mut health, ConsumerHealth::is_healthy).await;
        stop.notify_one();
    };
    tokio::join!(consumer.run(stop.notified()), watch).0.to_string();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g4_what_may_not_be_written_is_parked_and_holds_up_no_commit() {
    if !available() {
        return;
    }
    let place = TestTopic::at(Arc::new(Mutex::new(guarded())), "parking", 1).await;
    let group = format!("{}-billing", place.topic);
    let kafka = KafkaTransport::new(&*place.topic)
        .name("billing")
        .group(&*group)
        .without_retries()
        .create_missing_topics();
    let (source, sink) =
        (kafka.source(&place.brokers).await.unwrap(), kafka.sink(&place.brokers).await.unwrap());
    let (dead, parking) = (format!("{}.dlq", place.topic), format!("{}.parking", place.topic));
    place.create(&parking, 1, &[("retention.ms", "-1")]).await;
    let named = DlqTopic::new().name(&parking);
    let second = KafkaSink::open(&place.brokers, named, std::slice::from_ref(&place.topic));
    let second = second.await.unwrap();
    allow_only(&place.running(), TOPIC, &dead, DESCRIBE);

    let (handled, stop) = (Arc::default(), Notify::new());
    let marks = source.crash_marks();
    let consumer = Consumer::builder(source)
        .handler(counting(&handled))
        .sink(sink)
        .routing(|routing| routing.parking(second))
        .crash_marks(marks)
        .build()
        .unwrap();
    let health = consumer.health();
    let letters = KafkaLetters::new(&place.brokers, parking);
    let watch = async {
        let mut sent = 0_i64;
        let parked = async {
            // A rule takes a moment to be in force.
            while letters.count(Filter::new()).await.unwrap() == 0 {
                sent += 1;
                place.send(&place.topic, format!("-{sent}").as_bytes(), &[]).await;
                sleep(Duration::from_millis(200)).await;
            }
        };
        timeout(PATIENCE, parked).await.expect("a letter is parked");
        let page = letters.list(Filter::new(), PageRequest::new().limit(1)).await.unwrap();
        let letter = letters.get(page.letters[0].id).await.unwrap().unwrap();
        assert!(letter.attributes[PARKED].contains("allow `Write`"), "{letter:?}");
        let passed = async {
            while committed(&place, &group, &place.topic) != Offset::Offset(sent) {
                sleep(Duration::from_millis(100)).await;
            }
        };
        timeout(PATIENCE, passed).await.expect("the commit goes on");
        assert!(health.get().is_healthy());
        stop.notify_one();
    };
    let (report, ()) = tokio::join!(consumer.run(stop.notified()), watch);
    assert_eq!(report.deferred, 0, "{report}");
}

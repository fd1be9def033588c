//! A topic of dead letters of which one partition cannot be written.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlq_core::{Delivery, ErrorClass, RetryPolicy};
use dlq_kafka::rdkafka::admin::{NewTopic, TopicReplication};
use dlq_kafka::rdkafka::consumer::{BaseConsumer, Consumer as _};
use dlq_kafka::rdkafka::producer::{FutureProducer, FutureRecord};
use dlq_kafka::rdkafka::{ClientConfig, Message as _, Offset, TopicPartitionList};
use dlq_kafka::{Brokers, KafkaTransport};
use dlq_services::{Service, or_skip};
use dlq_tower::consumer::Consumer;
use dlq_tower::handler::handler;
use tokio::sync::Notify;
use tokio::task::block_in_place;
use tokio::time::timeout;

use crate::fixture::PATIENCE;
use crate::leaderless::await_leaderless;
use crate::topic;

const TOPIC: &str = "payments";
const DEAD: &str = "payments.dlq";
/// The one whose broker is away.
const AWAY: i32 = 2;
const COUNT: usize = 30;

/// How often each key ran.
type Runs = Arc<Mutex<BTreeMap<String, u32>>>;

/// How many letters each key has, and in which partition, once all have one.
fn letters(config: &ClientConfig) -> BTreeMap<String, (i32, u32)> {
    let reader: BaseConsumer = config.clone().set("group.id", "reader").create().unwrap();
    let mut list = TopicPartitionList::new();
    for partition in 0..3 {
        list.add_partition_offset(DEAD, partition, Offset::Beginning).unwrap();
    }
    reader.assign(&list).unwrap();
    let (mut letters, until) = (BTreeMap::new(), std::time::Instant::now() + PATIENCE);
    while letters.len() < COUNT {
        assert!(std::time::Instant::now() < until, "letters are missing: {letters:?}");
        let Some(Ok(letter)) = reader.poll(Duration::from_millis(100)) else { continue };
        let key = std::str::from_utf8(letter.key().unwrap()).unwrap().to_owned();
        letters.entry(key).or_insert((letter.partition(), 0)).1 += 1;
    }
    letters
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g2_a_partition_that_cannot_be_written_costs_letters_of_others_no_run() {
    let start = || or_skip(Service::Kafka, Service::Kafka.builder().ours().start_cluster()).ok();
    let Some(mut cluster) = block_in_place(start) else { return };
    let url = cluster.url();
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", &url).set("linger.ms", "0");
    let here = TopicReplication::Variable(&[&[1]]);
    let spread = TopicReplication::Variable(&[&[1], &[2], &[3]]);
    topic::make(&url, &NewTopic::new(TOPIC, 1, here)).await;
    let dead = NewTopic::new(DEAD, 3, spread).set("retention.ms", "-1");
    topic::make(&url, &dead).await;
    let producer: FutureProducer = config.create().unwrap();
    for number in 0..COUNT {
        let key = number.to_string();
        let record = FutureRecord::to(TOPIC).key(&key).payload(b"1");
        producer.send(record, PATIENCE).await.unwrap();
    }
    let brokers = Brokers::at(&*url).with("delivery.timeout.ms", "10000");
    let kafka = KafkaTransport::new(TOPIC).name("billing").without_retries();
    let sink = kafka.sink(&brokers).await.unwrap();
    block_in_place(|| {
        cluster.kill(2).unwrap();
        await_leaderless(&config, DEAD, AWAY);
    });

    let runs = Runs::default();
    let counted = Arc::clone(&runs);
    let fails = move |delivery: Delivery| {
        let key = String::from_utf8(delivery.message().key().unwrap().to_vec()).unwrap();
        *counted.lock().unwrap().entry(key).or_default() += 1;
        std::future::ready(Err::<(), _>(io::Error::other("no account")))
    };
    let stack = handler("billing", fails)
        .policy(RetryPolicy::new().with_max_attempts(1))
        .classify(|_: &io::Error| ErrorClass::Permanent)
        .build()
        .unwrap();
    let source = kafka.source(&brokers).await.unwrap();
    let marks = source.crash_marks();
    let consumer = Consumer::builder(source).handler(stack).sink(sink).crash_marks(marks);
    let (consumer, stop) = (consumer.build().unwrap(), Notify::new());
    let mut health = consumer.health();
    let watch = async {
        let failed = health.wait_for(|health| health.route_error.is_some());
        timeout(PATIENCE, failed).await.expect("letters are not written").unwrap();
        block_in_place(|| cluster.restart(2).unwrap());
        let letters = block_in_place(|| letters(&config));
        stop.notify_one();
        letters
    };
    let (_, letters) = tokio::join!(consumer.run(stop.notified()), watch);
    let runs = runs.lock().unwrap();
    let is_away = |(partition, _): &(i32, u32)| *partition == AWAY;
    assert!(letters.values().any(is_away) && !letters.values().all(is_away), "{letters:?}");
    for (key, place) in &letters {
        // A letter whose confirmation was not heard is written again.
        let is_once = place.1 == 1 || is_away(place);
        assert!(runs[key] == 1 && is_once, "key {key}: {} runs, {place:?}", runs[key]);
    }
}

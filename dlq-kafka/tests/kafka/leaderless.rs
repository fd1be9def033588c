//! A partition whose broker is away, and no other has it.

use std::time::{Duration, Instant};

use dlq_core::{Disposition, Settle as _, Source as _};
use dlq_kafka::rdkafka::admin::{NewTopic, TopicReplication};
use dlq_kafka::rdkafka::consumer::{BaseConsumer, Consumer as _};
use dlq_kafka::rdkafka::producer::{FutureProducer, FutureRecord, Producer as _};
use dlq_kafka::rdkafka::{ClientConfig, Offset, TopicPartitionList};
use dlq_kafka::{Brokers, KafkaSource, KafkaTransport, Start};
use dlq_services::{Service, or_skip};
use tokio::task::block_in_place;
use tokio::time::{sleep, timeout};

use crate::fixture::{PATIENCE, next};
use crate::topic;

/// Everything is done of its partitions, which are on brokers 1 and 3.
const ENDED: &str = "ended";
/// Nothing was committed of its partitions, which are on brokers 3, 1 and 3.
const NEW: &str = "begun-late";

/// Returns when the cluster has noticed that nobody leads a partition.
pub(crate) fn await_leaderless(config: &ClientConfig, topic: &str, partition: i32) {
    let is_led = || {
        let client: BaseConsumer = config.create().unwrap();
        let found = client.fetch_metadata(Some(topic), PATIENCE).unwrap();
        let mut partitions = found.topics()[0].partitions().iter();
        partitions.any(|found| found.id() == partition && found.leader() >= 0)
    };
    let until = Instant::now() + PATIENCE;
    while is_led() {
        assert!(Instant::now() < until, "it is still led");
    }
}

async fn write(config: &ClientConfig, topic: &str, partition: i32) {
    let producer: FutureProducer = config.create().unwrap();
    let record = FutureRecord::<[u8], _>::to(topic).partition(partition).payload(b"1");
    producer.send(record, PATIENCE).await.unwrap();
}

/// The same in a transaction, which leaves a mark behind the record.
async fn write_and_commit(config: &ClientConfig, topic: &str, partition: i32) {
    let mut config = config.clone();
    let producer: FutureProducer = config.set("transactional.id", topic).create().unwrap();
    block_in_place(|| producer.init_transactions(PATIENCE)).unwrap();
    producer.begin_transaction().unwrap();
    let record = FutureRecord::<[u8], _>::to(topic).partition(partition).payload(b"1");
    producer.send(record, PATIENCE).await.unwrap();
    block_in_place(|| producer.commit_transaction(PATIENCE)).unwrap();
}

async fn handle(source: &mut KafkaSource) {
    next(source).await.1.settle(Disposition::Succeeded).await.unwrap();
}

/// What is written to a partition comes. What was written before it was begun does not.
async fn comes(config: &ClientConfig, source: &mut KafkaSource, partition: i32) {
    let number = u32::try_from(partition).ok();
    let come = async {
        loop {
            write(config, NEW, partition).await;
            match timeout(Duration::from_millis(500), source.next()).await {
                Ok(Ok(Some((delivery, _)))) if delivery.origin().partition() == number => break,
                Ok(Ok(next)) => assert!(next.is_some(), "the source has ended"),
                Ok(Err(error)) => assert!(error.is_transient(), "{error}"),
                Err(_) => {}
            }
        }
    };
    timeout(PATIENCE, come).await.expect("it comes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g4_a_partition_without_a_leader_holds_up_no_other() {
    let start = || or_skip(Service::Kafka, Service::Kafka.builder().ours().start_cluster()).ok();
    let Some(mut cluster) = block_in_place(start) else { return };
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", cluster.url()).set("linger.ms", "0");
    let ended = NewTopic::new(ENDED, 2, TopicReplication::Variable(&[&[1], &[3]]));
    let new = NewTopic::new(NEW, 3, TopicReplication::Variable(&[&[3], &[1], &[3]]));
    for topic in [&ended, &new] {
        topic::make(&cluster.url(), topic).await;
    }
    let consumer = |topic| KafkaTransport::new(topic).name(topic).without_retries();
    let mut of_ended = consumer(ENDED).source(&Brokers::at(cluster.url())).await.unwrap();
    for partition in [0, 1] {
        write(&config, ENDED, partition).await;
        handle(&mut of_ended).await;
    }
    let of_new = consumer(NEW).start(Start::Latest);
    block_in_place(|| {
        cluster.kill(2).unwrap();
        for (topic, partition) in [(ENDED, 1), (NEW, 0), (NEW, 2)] {
            await_leaderless(&config, topic, partition);
        }
    });
    let mut of_new = of_new.source(&Brokers::at(cluster.url())).await.unwrap();
    comes(&config, &mut of_new, 1).await;

    write_and_commit(&config, ENDED, 0).await;
    handle(&mut of_ended).await;
    let asking: BaseConsumer = config.clone().set("group.id", ENDED).create().unwrap();
    let committed = || {
        let mut list = TopicPartitionList::new();
        list.add_partition(ENDED, 0);
        Some(asking.committed_offsets(list, PATIENCE).ok()?.elements()[0].offset())
    };
    let passed = async {
        // After two records and the mark of the transaction.
        while block_in_place(committed) != Some(Offset::Offset(3)) {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, passed).await.expect("its end is passed");

    block_in_place(|| cluster.restart(2).unwrap());
    comes(&config, &mut of_new, 0).await;
}

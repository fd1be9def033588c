//! A build with the feature `zstd` reads and writes records that are compressed with it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "kafka/topic.rs"]
#[allow(dead_code, reason = "other tests change topics and commit, too")]
mod topic;

use std::time::Duration;

use dlq_core::{Disposition, Settle as _, Source as _};
use dlq_kafka::rdkafka::ClientConfig;
use dlq_kafka::rdkafka::admin::{NewTopic, TopicReplication};
use dlq_kafka::rdkafka::producer::{FutureProducer, FutureRecord};
use dlq_kafka::{Brokers, KafkaTransport};
use dlq_services::{Service, ensure_installed, or_skip};
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_that_are_compressed_with_zstd_are_read() {
    if or_skip(Service::Kafka, ensure_installed(Service::Kafka)).is_err() {
        return;
    }
    let server = tokio::task::block_in_place(|| Service::Kafka.builder().ours().start().unwrap());
    let new = NewTopic::new("packed", 1, TopicReplication::Fixed(1));
    topic::make(server.url(), &new).await;
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", server.url()).set("compression.type", "zstd");
    let producer: FutureProducer = config.create().unwrap();
    for number in ["1", "2", "3"] {
        let record = FutureRecord::<[u8], _>::to("packed").payload(number.as_bytes());
        producer.send(record, PATIENCE).await.unwrap();
    }
    let transport = KafkaTransport::new("packed").name("billing").create_missing_topics();
    let mut source = transport.source(&Brokers::at(server.url())).await.unwrap();
    for expected in ["1", "2", "3"] {
        let next = async {
            loop {
                match source.next().await {
                    Ok(next) => break next.expect("the source has not ended"),
                    Err(error) if error.is_transient() => {}
                    Err(error) => panic!("the source failed: {error}"),
                }
            }
        };
        let (delivery, settle) = timeout(PATIENCE, next).await.expect("a record comes");
        assert_eq!(delivery.message().payload().unwrap(), expected.as_bytes());
        settle.settle(Disposition::Succeeded).await.unwrap();
    }
}

//! Dead letters that a broker writes for a share group, which brokers do from 4.4.0 on.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use dlq_core::{ErrorClass, Filter, PageRequest, Reason};
use dlq_kafka::rdkafka::ClientConfig;
use dlq_kafka::rdkafka::admin::{NewTopic, TopicReplication};
use dlq_kafka::rdkafka::producer::{FutureProducer, FutureRecord};
use dlq_kafka::{Brokers, KafkaLetters};
use dlq_services::{Kafka, Service, or_skip};
use tokio::task::block_in_place;

use crate::fixture::{PATIENCE, start_as};
use crate::fixture_reading::Look as _;
use crate::topic::make;

const VERSION: &str = "4.4.0";

/// Runs a tool of Kafka to its end.
fn tool(jars: &Path, name: &str, args: &[&str]) {
    let path = format!("{}/*", jars.display());
    let mut command = Command::new("java");
    command.args(["-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", &path, name]).args(args);
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_share_group_rejects_is_read_as_the_broker_wrote_it() {
    let installed = block_in_place(|| Kafka::installed(VERSION));
    let Ok(jars) = or_skip(Service::Kafka, installed) else { return };
    let broker = start_as(Service::Kafka.builder().ours().program(&jars));
    let url = broker.url().to_owned();
    make(&url, &NewTopic::new("orders", 1, TopicReplication::Fixed(1))).await;
    for (group, copies) in [("copying", "true"), ("pointing", "false")] {
        let dead = format!("dlq.{group}");
        let topic = NewTopic::new(&dead, 1, TopicReplication::Fixed(1));
        make(&url, &topic.set("errors.deadletterqueue.group.enable", "true")).await;
        let settings = format!(
            "share.auto.offset.reset=earliest,errors.deadletterqueue.topic.name={dead},\
             errors.deadletterqueue.copy.record.enable={copies}"
        );
        let group = ["--entity-type", "groups", "--entity-name", group];
        let alter = ["--bootstrap-server", &url, "--alter", "--add-config", &settings];
        block_in_place(|| {
            tool(&jars, "org.apache.kafka.tools.ConfigCommand", &[&alter[..], &group].concat());
        });
    }
    let mut config = ClientConfig::new();
    let producer: FutureProducer = config.set("bootstrap.servers", &url).create().unwrap();
    let record = FutureRecord::to("orders").key("k").payload("{\"amount\":7}");
    producer.send(record, PATIENCE).await.unwrap();
    for group in ["copying", "pointing"] {
        let letters = KafkaLetters::new(&Brokers::at(&url), format!("dlq.{group}"));
        let until = Instant::now() + PATIENCE * 3;
        // Until the group is there, the record may be none of its own.
        while letters.count(Filter::new()).await.unwrap() == 0 {
            assert!(Instant::now() < until, "the broker writes no letter for `{group}`");
            let args = ["--bootstrap-server", &url, "--topic", "orders", "--group", group];
            let reject = ["--reject", "--timeout-ms", "5000"];
            let consumer = "org.apache.kafka.tools.consumer.ConsoleShareConsumer";
            block_in_place(|| tool(&jars, consumer, &[&args[..], &reject].concat()));
        }
        let found = letters.list(Filter::new(), PageRequest::new()).await.unwrap().letters;
        let letter = letters.get(found[0].id).await.unwrap().unwrap();
        assert_eq!(letter.attributes["dlq.dialect"], "share-group");
        assert_eq!(letter.origin.to_string(), "kafka://default/orders[0]@0");
        assert_eq!((letter.consumer.as_str(), letter.deliveries), (group, 1));
        assert_eq!((letter.class, letter.reason), (ErrorClass::Permanent, Reason::Permanent));
        // Where it has no copy, the message is fetched from where it was born.
        assert_eq!(letter.message.payload().unwrap(), "{\"amount\":7}");
        assert_eq!(letter.message.key().unwrap(), "k");
    }
}

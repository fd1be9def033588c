//! Kafka: what `dlq-kafka` costs beside its client, used raw, on the same broker in the same run.
//!
//! Rounds of one and the other take turns, each with a group of its own, and the fastest of each counts: other processes
//! on the machine only ever add.

pub(crate) mod consume;
pub(crate) mod healthy;
mod held;
pub(crate) mod ladder;
mod ours;
mod raw;
pub(crate) mod waiting;

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use dlq_kafka::Brokers;
use dlq_kafka::rdkafka::ClientConfig;
use dlq_kafka::rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use dlq_kafka::rdkafka::client::DefaultClientContext;
use dlq_kafka::rdkafka::error::{KafkaError, RDKafkaErrorCode};
use dlq_kafka::rdkafka::producer::{
    BaseRecord, DefaultProducerContext, Producer, ThreadedProducer,
};
use dlq_services::{Running, Service, ensure_installed, or_skip};

use crate::cpu::{self, Computed};
use crate::measure::Size;
use crate::proxy::Proxy;

type Failed = Box<dyn Error>;

/// Bytes of a record's value.
const BYTES: usize = 100;
const PARTITIONS: i32 = 4;
/// Added to each way by the proxy.
const DELAY: Duration = Duration::from_millis(5);

/// A broker, near or behind a delaying proxy.
struct Bench {
    broker: Running,
    _proxy: Option<Proxy>,
    address: String,
    rounds: u32,
}

impl Bench {
    /// `None` when there is no broker to be had.
    async fn start(far: bool) -> Result<Option<Self>, Failed> {
        if or_skip(Service::Kafka, ensure_installed(Service::Kafka)).is_err() {
            return Ok(None);
        }
        let mut builder = Service::Kafka.builder().ours();
        let mut proxy = None;
        if far {
            // Clients go where the broker says that it is.
            let way = Proxy::waiting(DELAY)?;
            let advertised = format!("PLAINTEXT://{}", way.address());
            builder = builder.setting("advertised.listeners", advertised);
            proxy = Some(way);
        }
        let broker = builder.start()?;
        let mut address = broker.url().to_owned();
        if let Some(proxy) = &proxy {
            proxy.leads_to(address.parse::<SocketAddr>()?);
            address = proxy.address().to_string();
        }
        Ok(Some(Self { broker, _proxy: proxy, address, rounds: 0 }))
    }

    fn brokers(&self) -> Brokers {
        Brokers::at(&*self.address)
    }

    fn config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.address);
        config
    }

    fn computed(&self) -> Computed {
        cpu::of_both(self.broker.process_id())
    }

    fn next_name(&mut self) -> String {
        self.rounds += 1;
        format!("round-{}", self.rounds)
    }

    async fn create(&self, topic: &str) -> Result<(), Failed> {
        create_topic(&self.address, topic).await
    }

    /// A topic with so many records.
    async fn fill(&self, topic: &str, records: usize) -> Result<(), Failed> {
        self.create(topic).await?;
        let producer: ThreadedProducer<DefaultProducerContext> = self
            .config()
            .set("linger.ms", "20")
            .set("queue.buffering.max.messages", "1000000")
            .create()?;
        let payload = vec![b'x'; BYTES];
        for number in 0..records {
            let key = number.to_le_bytes();
            let mut record = BaseRecord::to(topic).payload(&payload).key(&key[..]);
            record.partition = Some(i32::try_from(number % 4)?);
            while let Err((error, unsent)) = producer.send(record) {
                if error != KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull) {
                    return Err(error.into());
                }
                record = unsent;
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        producer.flush(Duration::from_secs(60))?;
        Ok(())
    }
}

/// A new topic of [`PARTITIONS`] partitions.
pub(crate) async fn create_topic(address: &str, topic: &str) -> Result<(), Failed> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", address);
    let admin: AdminClient<DefaultClientContext> = config.create()?;
    let new = NewTopic::new(topic, PARTITIONS, TopicReplication::Fixed(1));
    for made in admin.create_topics([&new], &AdminOptions::new()).await? {
        made.map_err(|(name, code)| format!("{name}: {code}"))?;
    }
    Ok(())
}

fn block_on(work: impl Future<Output = Result<(), Failed>>) -> Result<(), Failed> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(work)
}

fn far_or_near(far: bool) -> &'static str {
    if far { "5 ms added to each way" } else { "no way to go" }
}

/// Returns a number of records, unless `DLQ_BENCH_RECORDS` overrides it.
fn records(short: usize, full: usize, size: Size) -> usize {
    let asked = std::env::var("DLQ_BENCH_RECORDS").ok().and_then(|text| text.parse().ok());
    asked.unwrap_or(size.pick(short, full))
}

fn rounds(size: Size) -> usize {
    size.pick(1, 3)
}

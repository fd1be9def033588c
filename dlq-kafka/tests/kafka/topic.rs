//! Topics that are there once they have been made.

use std::time::{Duration, Instant};

use dlq_kafka::rdkafka::admin::{
    AdminClient, AdminOptions, AlterConfig, NewTopic, ResourceSpecifier,
};
use dlq_kafka::rdkafka::client::DefaultClientContext;
use dlq_kafka::rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use dlq_kafka::rdkafka::error::KafkaError;
use dlq_kafka::rdkafka::{ClientConfig, TopicPartitionList};

const PATIENCE: Duration = Duration::from_secs(60);

/// Makes a topic, and returns when every broker knows who leads it, and who leads it knows: the controller answers before,
/// on a busy machine long before.
pub(crate) async fn make(bootstrap: &str, new: &NewTopic<'_>) {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", bootstrap);
    let admin: AdminClient<DefaultClientContext> = config.create().unwrap();
    let options = AdminOptions::new().operation_timeout(Some(PATIENCE));
    let made = admin.create_topics([new], &options).await.unwrap();
    made.into_iter().next().unwrap().unwrap();
    let until = Instant::now() + PATIENCE;
    for broker in bootstrap.split(',') {
        config.set("bootstrap.servers", broker);
        while let Err(error) = tokio::task::block_in_place(|| ends(&config, new)) {
            assert!(Instant::now() < until, "`{}` is not there: {error:?}", new.name);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Asks each partition where it ends, which only its leader answers. The first question of a client is for the broker that
/// it was told of.
fn ends(config: &ClientConfig, new: &NewTopic<'_>) -> Result<(), Option<KafkaError>> {
    let client: BaseConsumer = config.create()?;
    let found = client.fetch_metadata(Some(new.name), PATIENCE)?;
    let partitions = found.topics()[0].partitions();
    if partitions.len() != usize::try_from(new.num_partitions).unwrap() {
        return Err(None);
    }
    for partition in partitions {
        client.fetch_watermarks(new.name, partition.id(), PATIENCE)?;
    }
    Ok(())
}

/// Changes a setting of a topic; returns once the broker goes by it.
pub(crate) async fn alter(
    admin: &AdminClient<DefaultClientContext>,
    topic: &str,
    setting: &str,
    value: &str,
) {
    let of = ResourceSpecifier::Topic(topic);
    // A broker says what it has heard before it goes by it, and goes by it before it hears of the next.
    let next = ("file.delete.delay.ms", "60001");
    for also in [None, Some(next)] {
        let new = AlterConfig::new(of).set(setting, value);
        let new = also.iter().fold(new, |new, (name, value)| new.set(name, value));
        let altered = admin.alter_configs([&new], &AdminOptions::new()).await.unwrap();
        altered.into_iter().next().unwrap().unwrap();
        let (name, value) = also.unwrap_or((setting, value));
        let is_heard = async {
            loop {
                let found = admin.describe_configs([&of], &AdminOptions::new()).await.unwrap();
                let found = found.into_iter().next().unwrap().unwrap();
                if found.get(name).unwrap().value.as_deref() == Some(value) {
                    break;
                }
            }
        };
        tokio::time::timeout(PATIENCE, is_heard).await.expect("the setting is heard of");
    }
}

/// Returns when every transaction in a topic has ended for who reads what was committed, a moment after its producer was
/// told.
pub(crate) fn settled(bootstrap: &str, topic: &str) {
    let client = |isolation: &str| -> BaseConsumer {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", bootstrap).set("isolation.level", isolation);
        config.create().unwrap()
    };
    let (all, committed) = (client("read_uncommitted"), client("read_committed"));
    let found = all.fetch_metadata(Some(topic), PATIENCE).unwrap();
    // Of who died in one the brokers end it a minute after it was begun, when they look the next time.
    let until = Instant::now() + PATIENCE * 3;
    // Who leads it may have changed a moment ago.
    let end = |client: &BaseConsumer, partition| {
        loop {
            match client.fetch_watermarks(topic, partition, PATIENCE) {
                Ok((_, end)) => return end,
                Err(error) => assert!(Instant::now() < until, "where `{topic}` ends: {error}"),
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    for partition in found.topics()[0].partitions() {
        let last = end(&all, partition.id());
        while end(&committed, partition.id()) < last {
            assert!(Instant::now() < until, "a transaction in `{topic}` does not end");
        }
    }
}

/// Deletes a topic, and returns when it is gone.
pub(crate) async fn delete(bootstrap: &str, name: &str) {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", bootstrap);
    let admin: AdminClient<DefaultClientContext> = config.create().unwrap();
    admin.delete_topics(&[name], &AdminOptions::new()).await.unwrap()[0].as_ref().unwrap();
    let client: BaseConsumer = config.create().unwrap();
    let until = Instant::now() + PATIENCE;
    loop {
        let metadata =
            tokio::task::block_in_place(|| client.fetch_metadata(Some(name), PATIENCE)).unwrap();
        if metadata.topics().iter().all(|topic| topic.error().is_some()) {
            return;
        }
        assert!(Instant::now() < until, "`{name}` is still there");
    }
}

/// Commits, once the coordinator of the group is found.
pub(crate) fn commit(client: &BaseConsumer, list: &TopicPartitionList) {
    let until = Instant::now() + PATIENCE;
    let commit = || tokio::task::block_in_place(|| client.commit(list, CommitMode::Sync));
    while let Err(error) = commit() {
        assert!(Instant::now() < until, "{error}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

//! Topics that are there once they have been made.

use std::time::{Duration, Instant};

use dlq_kafka::rdkafka::ClientConfig;
use dlq_kafka::rdkafka::admin::{AdminClient, AdminOptions, NewTopic};
use dlq_kafka::rdkafka::client::DefaultClientContext;
use dlq_kafka::rdkafka::consumer::{BaseConsumer, Consumer as _};
use dlq_kafka::rdkafka::error::KafkaError;

const PATIENCE: Duration = Duration::from_secs(60);

/// Makes a topic, and returns when the broker leads all of it: the controller answers before, on a busy machine long
/// before.
pub(crate) async fn make(bootstrap: &str, new: &NewTopic<'_>) {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", bootstrap);
    let admin: AdminClient<DefaultClientContext> = config.create().unwrap();
    let options = AdminOptions::new().operation_timeout(Some(PATIENCE));
    let made = admin.create_topics([new], &options).await.unwrap();
    made.into_iter().next().unwrap().unwrap();
    let client: BaseConsumer = config.create().unwrap();
    let until = Instant::now() + PATIENCE;
    while let Err(error) = tokio::task::block_in_place(|| ends(&client, new)) {
        assert!(Instant::now() < until, "`{}` is not there: {error:?}", new.name);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Asks each partition where it ends, which only its leader answers.
fn ends(client: &BaseConsumer, new: &NewTopic<'_>) -> Result<(), Option<KafkaError>> {
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

//! Reports to a consumer at its start, by the real broker. Creating topics is tested beside `admin`.

use dlq_services::{Running, Service, ensure_installed, or_skip};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;

use super::*;
use crate::client::ladder::Ladder;

fn found(name: &str, partitions: i32) -> FoundTopic {
    FoundTopic { name: name.to_owned(), partitions }
}

fn broker() -> Option<Running> {
    let start = || Service::Kafka.builder().ours().start().unwrap();
    or_skip(Service::Kafka, ensure_installed(Service::Kafka)).ok().map(|_| start())
}

async fn create(url: &str, topics: &[NewTopic<'_>]) {
    let mut config = ClientConfig::new();
    let admin: AdminClient<DefaultClientContext> =
        config.set("bootstrap.servers", url).create().unwrap();
    let options = AdminOptions::new().operation_timeout(Some(PATIENCE));
    for done in admin.create_topics(topics, &options).await.unwrap() {
        done.unwrap();
    }
    // Brokers know of them a moment later.
    let (brokers, names) = (Brokers::at(url), topics.iter().map(|topic| topic.name.to_owned()));
    let names: Vec<_> = names.collect();
    let known = blocking(move || {
        let mut cluster = Cluster::new(&brokers, None)?;
        names.iter().try_for_each(|name| await_leaders(&mut cluster, name).map(drop))
    });
    known.await.unwrap();
}

#[tokio::test]
async fn a_consumer_starts_with_fit_topics_only() {
    let Some(broker) = broker() else { return };
    let brokers = Brokers::at(broker.url());
    let topic = |name, partitions| NewTopic::new(name, partitions, TopicReplication::Fixed(1));
    let bad =
        topic("orders.bad", 2).set("cleanup.policy", "compact").set("retention.bytes", "1000000");
    create(broker.url(), &[topic("orders", 2), bad]).await;

    let stages = Ladder::new().stages("orders", "billing").unwrap();
    let mut wanted = vec![WantedTopic::source("orders")];
    wanted.extend(RetryTopics::new().wanted(&stages, "orders"));
    wanted.push(DlqTopic::of("orders").partitions(1).wanted("orders"));

    // Not asked to create, it names each that is missing, and makes none: the second answer is the same.
    for _ in 0..2 {
        let error = ensure(&brokers, &wanted, false).await.unwrap_err();
        assert!(matches!(error, SetupError::NotFound(_)), "{error:?}");
        let text = error.to_string();
        for name in wanted[1..].iter().map(|topic| &topic.name) {
            assert!(text.contains(&format!("topic `{name}` is not there, a ")), "{text}");
        }
        assert!(text.contains("create it, or have missing topics created"), "{text}");
        assert!(!text.contains("`orders`"), "{text}");
    }
    let all = [
        found("orders", 2),
        found("orders.billing.retry.30s", 2),
        found("orders.billing.retry.5m", 2),
        found("orders.billing.retry.1h", 2),
        found("orders.dlq", 1),
    ];
    assert_eq!(ensure(&brokers, &wanted, true).await.unwrap(), all, "created, in the order asked");
    assert_eq!(ensure(&brokers, &wanted, false).await.unwrap(), all, "and there");

    // What will not do is refused, created or not, and every setting of it is told.
    let bad = DlqTopic::new().name("orders.bad").wanted("orders");
    for create in [false, true] {
        let error = ensure(&brokers, std::slice::from_ref(&bad), create).await.unwrap_err();
        assert!(matches!(error, SetupError::Config(_)), "{error:?}");
        let text = error.to_string();
        assert!(
            text.contains(
                "topic `orders.bad` will not do: `cleanup.policy` is compact, wanted is delete: "
            ) && text.contains("`retention.ms` is 7d, wanted is 30d or more")
                && text.contains("`retention.bytes` is 1000000, wanted is -1")
                && !text.contains("max.message.bytes"),
            "{text}"
        );
    }
}

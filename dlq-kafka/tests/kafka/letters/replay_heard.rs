//! What a plan says of who will hear letters, and of who will not.

use std::time::Duration;

use dlq_core::{DeadLetter, LetterId};
use dlq_kafka::rdkafka::producer::{FutureProducer, FutureRecord};
use dlq_kafka::{KafkaTarget, KafkaTransport, Ladder};
use tokio::time::timeout;

use crate::access::{DESCRIBE_CONFIGS, GROUP, allow_only, guarded};
use crate::fixture::{available, handle};
use crate::fixture_feed::Topic;
use crate::fixture_replay::{PATIENCE, Shop, replay, to_origin};

/// A letter of this consumer.
fn of(shop: &Shop, consumer: &str) -> DeadLetter {
    let mut letter = shop.dead([1]).remove(0);
    letter.consumer = consumer.to_owned();
    letter.id = LetterId::of(&letter.origin, letter.message.published_at(), consumer);
    letter
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g9_a_retry_topic_that_its_consumer_does_not_read_is_told_beforehand() {
    let Some(shop) = Shop::open("deaf").await else { return };
    let ladder = |seconds| Ladder::of([Duration::from_secs(seconds)]);
    let stage =
        |seconds, consumer| ladder(seconds).stages(&shop.topic, consumer).unwrap().remove(0).topic;
    let consumer = KafkaTransport::new(&*shop.topic).name("deaf-billing");
    let consumer = consumer.ladder(ladder(60)).create_missing_topics();
    let mut source = consumer.source(&shop.brokers()).await.unwrap();
    // Stages that were made after it has looked which there are.
    for consumer in ["deaf-billing", "deaf-nobody"] {
        shop.create(&stage(30, consumer), 1, &[]).await;
    }
    let producer: FutureProducer = shop.config().create().unwrap();
    producer.send(FutureRecord::<[u8], _>::to(&shop.topic).payload("1"), PATIENCE).await.unwrap();
    let _ = handle(&mut source).await;
    let letters = shop.bury(&[of(&shop, "deaf-billing"), of(&shop, "deaf-nobody")]).await;
    let notes = async |seconds| {
        let replay = replay(&letters, KafkaTarget::Handler(ladder(seconds)), 1);
        replay.plan().await.unwrap().notes
    };
    let said = notes(30).await;
    println!("{said:?}");
    assert_eq!(said.len(), 2, "{said:?}");
    let deaf = format!("nobody of group `deaf-billing` reads `{}`", stage(30, "deaf-billing"));
    let gone = format!("has never read `{}`", stage(30, "deaf-nobody"));
    assert!(said.iter().any(|note| note.contains(&deaf)), "{said:?}");
    assert!(said.iter().any(|note| note.contains(&gone)), "{said:?}");
    let said = notes(60).await;
    assert!(said.iter().all(|note| !note.contains("deaf-billing")), "{said:?}");
    drop(source);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g9_groups_that_cannot_be_asked_are_named() {
    if !available() {
        return;
    }
    let broker = guarded();
    let shop = Shop::at(broker.url().to_owned(), "unasked");
    shop.create(&shop.dlq, 1, &[]).await;
    let topic = Topic::at(&shop.url, &shop.topic, 1).await;
    for group in ["audit", "shipping"] {
        topic.commit(group, 0, "");
    }
    allow_only(&broker, GROUP, "shipping", DESCRIBE_CONFIGS);
    let letters = shop.bury(&shop.dead([3])).await;
    let named = async {
        loop {
            let plan = to_origin(&letters, 1).plan().await.unwrap();
            if !plan.subscribers.iter().any(|subscriber| subscriber.consumer == "shipping") {
                break plan;
            }
        }
    };
    let plan = timeout(PATIENCE, named).await.expect("the rule is in force");
    assert!(plan.subscribers.iter().any(|subscriber| subscriber.consumer == "audit"), "{plan:?}");
    let is_said =
        |note: &String| note.contains("heard by `shipping`") && note.contains("`Describe`");
    assert!(plan.notes.iter().any(is_said), "{plan:?}");
}

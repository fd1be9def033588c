//! Letters go back to handlers by retry topics that several groups share.

use std::future::pending;
use std::time::Duration;

use dlq_core::{DeadLetter, Delivery, LetterId, Sink as _};
use dlq_kafka::admin::{ConsumerPlan, Deployment, Severity};
use dlq_kafka::rdkafka::message::{Header, OwnedHeaders};
use dlq_kafka::rdkafka::producer::{FutureProducer, FutureRecord};
use dlq_kafka::{
    KafkaLetters, KafkaReplay, KafkaSource, KafkaTarget, KafkaTransport, Ladder, ReplayOutcome,
};
use tokio::time::timeout;

use crate::fixture::{handle, number};
use crate::fixture_replay::{PATIENCE, Shop, replay, run};

fn ladder() -> Ladder {
    Ladder::of([Duration::from_secs(30)]).names("{topic}.retry.{delay}")
}

fn consumer(shop: &Shop, name: &str, group: &str) -> KafkaTransport {
    KafkaTransport::new(&*shop.topic)
        .name(name)
        .group(group)
        .ladder(ladder())
        .create_missing_topics()
}

/// A source of this group, which has read a message.
async fn source(shop: &Shop, name: &str, group: &str) -> KafkaSource {
    let mut source = consumer(shop, name, group).source(&shop.brokers()).await.unwrap();
    assert_eq!(number(&next(&mut source).await), 7);
    source
}

async fn next(source: &mut KafkaSource) -> Delivery {
    timeout(PATIENCE, handle(source)).await.expect("it comes")
}

async fn publish(shop: &Shop, payload: &str) {
    let producer: FutureProducer = shop.config().create().unwrap();
    producer
        .send(FutureRecord::<[u8], _>::to(&shop.topic).payload(payload), PATIENCE)
        .await
        .unwrap();
}

/// A letter of this handler.
fn of(shop: &Shop, handler: &str) -> DeadLetter {
    let mut letter = shop.dead([1]).remove(0);
    letter.consumer = handler.to_owned();
    letter.id = LetterId::of(&letter.origin, letter.message.published_at(), handler);
    letter
}

fn to_handler(letters: &KafkaLetters, number: u64) -> KafkaReplay {
    replay(letters, KafkaTarget::Handler(ladder()), number)
}

/// How many letters were sent, and why others were not.
async fn outcome(replay: KafkaReplay) -> (u64, Vec<String>) {
    let mut why = Vec::new();
    let report = replay.run(pending(), |replayed| {
        if let ReplayOutcome::Failed(error) = &replayed.outcome {
            why.push(error.to_string());
        }
    });
    (report.await.unwrap().sent, why)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_a_letter_that_no_group_would_take_is_not_sent() {
    let Some(shop) = Shop::open("shared-nobody").await else { return };
    publish(&shop, "7").await;
    let mut source = source(&shop, "billing", "shared-nobody-pay").await;
    let letters = shop.bury(&[of(&shop, "shared-nobody-gone")]).await;
    let plan = to_handler(&letters, 1).plan().await.unwrap();
    assert!(plan.notes.iter().any(|note| note.contains("`shared-nobody-gone`")), "{plan:?}");
    let (sent, why) = outcome(to_handler(&letters, 1)).await;
    assert_eq!(sent, 0, "it would be passed over by every group");
    assert!(why[0].contains("`shared-nobody-gone`") && why[0].contains(&shop.topic), "{why:?}");
    let stage = ladder().stages(&shop.topic, "any").unwrap().remove(0).topic;
    assert!(shop.read(&stage).await.is_empty());
    // Whoever knows the group can say it.
    assert_eq!(run(to_handler(&letters, 2).group("shared-nobody-pay")).await.sent, 1);
    let delivery = next(&mut source).await;
    assert_eq!((number(&delivery), delivery.consumer()), (1, "shared-nobody-gone"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_a_letter_goes_to_the_group_that_wrote_it_whatever_its_handler_is_called_now() {
    let Some(shop) = Shop::open("shared-renamed").await else { return };
    publish(&shop, "7").await;
    // Its handler was called `billing.charge` once.
    let mut pay = source(&shop, "billing", "shared-renamed-pay").await;
    let mut ship = source(&shop, "shipping", "shared-renamed-ship").await;
    let sink =
        consumer(&shop, "billing", "shared-renamed-pay").sink(&shop.brokers()).await.unwrap();
    sink.put(vec![of(&shop, "billing.charge")]).await.unwrap();
    let letters = KafkaLetters::new(&shop.brokers(), format!("{}.dlq", shop.topic));
    assert_eq!(run(to_handler(&letters, 1)).await.sent, 1);
    let delivery = next(&mut pay).await;
    assert_eq!((number(&delivery), delivery.consumer()), (1, "billing.charge"));
    publish(&shop, "8").await;
    assert_eq!(number(&next(&mut ship).await), 8, "nobody else hears it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_letter_goes_by_the_retry_topics_of_its_group_where_that_is_called_otherwise() {
    let Some(shop) = Shop::open("own-group").await else { return };
    publish(&shop, "7").await;
    let ladder = Ladder::of([Duration::from_secs(30)]);
    let consumer = consumer(&shop, "billing", "own-group-pay").ladder(ladder.clone());
    let mut pay = consumer.source(&shop.brokers()).await.unwrap();
    let sink = consumer.sink(&shop.brokers()).await.unwrap();
    sink.put(vec![of(&shop, "billing")]).await.unwrap();
    let letters = KafkaLetters::new(&shop.brokers(), format!("{}.dlq", shop.topic));
    assert_eq!(run(replay(&letters, KafkaTarget::Handler(ladder), 1)).await.sent, 1);
    let mut numbers = [number(&next(&mut pay).await), number(&next(&mut pay).await)];
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 7]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g9_records_that_no_group_takes_are_found_by_a_check() {
    let Some(shop) = Shop::open("shared-check").await else { return };
    publish(&shop, "7").await;
    let mut pay = source(&shop, "billing", "shared-check-pay").await;
    let letters = shop.bury(&[of(&shop, "billing")]).await;
    assert_eq!(run(to_handler(&letters, 1).group("shared-check-pay")).await.sent, 1);
    assert_eq!(number(&next(&mut pay).await), 1);
    let stage = ladder().stages(&shop.topic, "any").unwrap().remove(0).topic;
    let mut plan = ConsumerPlan::new(&*shop.topic, "shared-check-pay");
    plan.ladder = Some(ladder());
    let mut deployment = Deployment::default();
    deployment.consumers.push(plan);
    let found = async || {
        let findings = deployment.check(&shop.brokers()).await.unwrap();
        let of_groups = findings.into_iter().filter(|finding| finding.setting == "groups");
        of_groups.map(|finding| (finding.severity, finding.found)).collect::<Vec<_>>()
    };
    assert_eq!(found().await, []);
    // As it was sent, to a group that has gone since, and as versions before have sent it.
    let producer: FutureProducer = shop.config().create().unwrap();
    for read in shop.read(&stage).await {
        for rest in [Some(r#"{"group":"shared-check-gone"}"#), None] {
            let kept = read.headers.iter().filter(|(key, _)| key != "dlq.kafka.rest");
            let headers = kept.fold(OwnedHeaders::new(), |all, (key, value)| {
                all.insert(Header { key, value: value.as_ref() })
            });
            let headers = match rest {
                Some(rest) => headers.insert(Header { key: "dlq.kafka.rest", value: Some(rest) }),
                None => headers,
            };
            let record = FutureRecord::<[u8], _>::to(&stage).payload("1").headers(headers);
            producer.send(record, PATIENCE).await.unwrap();
        }
    }
    let wanted = [
        (Severity::Error, "1 records of group `shared-check-gone`".to_owned()),
        (Severity::Warning, "1 records for `billing`, of no group".to_owned()),
    ];
    assert_eq!(found().await, wanted);
}

//! Letters of a store go back to their topics, each once.

use std::sync::Arc;
use std::time::Duration;

use dlq_core::outbox::{Once, Outbox, Outgoing, Sent, Settled};
use dlq_core::protocol::Replay;
use dlq_core::replay::Skipped;
use dlq_core::store::Target;
use dlq_core::{Clock, DeadLetter, Message, StoreErrorKind, SystemClock, Timestamp};
use dlq_kafka::rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use dlq_kafka::rdkafka::{Offset, TopicPartitionList};
use dlq_kafka::{KafkaOutbox, Ladder};
use dlq_testkit::outbox::OutboxFixture;
use tokio::time::Instant;

use crate::access::{DESCRIBE, DESCRIBE_CONFIGS, TOPIC, allow_only, guarded};
use crate::fixture::{PATIENCE, available, start};
use crate::fixture_replay::{PARTITIONS, Shop, operation};

mod conformance {
    dlq_testkit::outbox_conformance!(super::Fixture);
}

#[derive(Debug)]
struct Fixture {
    topic: String,
    shop: Shop,
}

impl OutboxFixture for Fixture {
    type Outbox = KafkaOutbox;

    fn is_available() -> bool {
        available()
    }

    async fn fresh(check: &'static str) -> Self {
        let topic = format!("outbox-{}", check.replace('_', "-"));
        let shop = Shop::open(&topic).await.unwrap();
        Self { topic, shop }
    }

    async fn outbox(&self, sender: &str) -> KafkaOutbox {
        self.shop.outbox(sender).await
    }

    fn letter(&self, n: u64) -> DeadLetter {
        self.shop.born(n)
    }

    fn unacceptable(&self, _: &KafkaOutbox, n: u64) -> DeadLetter {
        let mut letter = self.shop.born(n);
        letter.message = letter.message.with_payload(Some(vec![b'x'; 2 * 1024 * 1024].into()));
        letter
    }

    async fn listen(&self, consumer: &str) -> bool {
        let client: BaseConsumer = self.shop.config().set("group.id", consumer).create().unwrap();
        let mut all = TopicPartitionList::new();
        all.add_partition_offset(&self.topic, 0, Offset::Offset(0)).unwrap();
        tokio::task::block_in_place(|| client.commit(&all, CommitMode::Sync).unwrap());
        true
    }

    /// Whoever settles ends what a sender has open.
    async fn calm(&self, _: &KafkaOutbox) {}

    async fn arrived(&self) -> Vec<Message> {
        self.shop.arrived().await
    }
}

impl Shop {
    async fn outbox(&self, sender: &str) -> KafkaOutbox {
        KafkaOutbox::open_as(&self.brokers(), self.ledger(), sender).await.unwrap()
    }

    fn ledger(&self) -> String {
        format!("{}.outbox", self.topic)
    }

    fn born(&self, n: u64) -> DeadLetter {
        self.dead([u32::try_from(n).unwrap()]).remove(0)
    }

    async fn arrived(&self) -> Vec<Message> {
        let messages = self.read(&self.topic).await.into_iter().map(|read| {
            let mut message = Message::new(self.topic.as_str(), read.payload.unwrap());
            if let Some(key) = read.key {
                message = message.with_key(key);
            }
            for (name, value) in read.headers {
                message = message.with_header(name, value.unwrap());
            }
            message
        });
        messages.collect()
    }
}

fn outgoing(outbox: &KafkaOutbox, letter: DeadLetter, to: &Target) -> Outgoing {
    let operation = operation(1);
    Outgoing {
        to: outbox.route(&letter, to).unwrap(),
        once: Once::in_operation(letter.death(), operation),
        replay: Replay { operation, count: 1, from: "store".to_owned(), at: Timestamp::EPOCH },
        letter: Arc::new(letter),
    }
}

/// To their origin.
fn batch(
    shop: &Shop,
    outbox: &KafkaOutbox,
    numbers: impl IntoIterator<Item = u64>,
) -> Vec<Outgoing> {
    numbers.into_iter().map(|n| outgoing(outbox, shop.born(n), &Target::Origin)).collect()
}

async fn send(outbox: &KafkaOutbox, batch: Vec<Outgoing>) -> Vec<Sent> {
    outbox.send(batch, Instant::now() + PATIENCE).await.unwrap()
}

async fn settle(
    outbox: &KafkaOutbox,
    sender: &KafkaOutbox,
    since: Timestamp,
    batch: Vec<Outgoing>,
) -> Vec<Settled> {
    outbox.settle(sender.sender().to_owned(), since, batch).await.unwrap()
}

/// A sender that was stopped beyond its lease, and goes on after another has taken over what it had claimed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_a_sender_that_was_settled_is_fenced_off() {
    if !available() {
        return;
    }
    let since = SystemClock.now();
    let shop = Shop::open("outbox-fenced").await.unwrap();
    let paused = shop.outbox("paused").await;
    assert!(send(&paused, batch(&shop, &paused, [1])).await[0].is_confirmed());
    let heir = shop.outbox("heir").await;
    let settled = settle(&heir, &paused, since, batch(&shop, &heir, [1, 2])).await;
    assert!(matches!(settled[..], [Settled::Arrived(_), Settled::Not]), "{settled:?}");
    // It goes on, by its own word well within its time.
    let sent = send(&paused, batch(&shop, &paused, [2, 3])).await;
    assert!(sent.iter().all(|sent| matches!(sent, Sent::Later(_))), "{sent:?}");
    assert!(send(&heir, batch(&shop, &heir, [2])).await[0].is_confirmed());
    // What it claims from now on is its own again.
    assert!(send(&paused, batch(&shop, &paused, [3])).await[0].is_confirmed());
    shop.assert_once([1, 2, 3]).await;
    // It may settle itself, too, as after a commit without an answer.
    let settled = settle(&paused, &paused, since, batch(&shop, &paused, [2, 3, 4])).await;
    let arrived = settled.iter().map(|one| matches!(one, Settled::Arrived(_)));
    assert_eq!(arrived.collect::<Vec<_>>(), [true, true, false], "{settled:?}");
    assert!(send(&paused, batch(&shop, &paused, [4])).await[0].is_confirmed());
    shop.assert_once([1, 2, 3, 4]).await;
    let error = heir.settle("else".to_owned(), since, Vec::new()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Refused, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_where_the_ledger_does_not_go_back_so_far_it_is_unclear() {
    if !available() {
        return;
    }
    let shop = Shop::open("outbox-anew").await.unwrap();
    let outbox = shop.outbox("one").await;
    // As if the claim were older than everything that the ledger has.
    let long_ago = SystemClock.now().before(Duration::from_secs(3_600));
    assert!(send(&outbox, batch(&shop, &outbox, [1])).await[0].is_confirmed());
    let settled = settle(&outbox, &outbox, long_ago, batch(&shop, &outbox, [1, 2])).await;
    assert!(matches!(settled[..], [Settled::Arrived(_), Settled::Unclear(_)]), "{settled:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_a_cluster_that_is_killed_keeps_each_letter_once() {
    if !available() {
        return;
    }
    let since = SystemClock.now();
    let mut running = start();
    let shop = Shop::at(running.url().to_owned(), "outbox-away");
    shop.create(&shop.topic, PARTITIONS, &[]).await;
    let outbox = shop.outbox("one").await;
    assert!(send(&outbox, batch(&shop, &outbox, [1, 2])).await.iter().all(Sent::is_confirmed));
    tokio::task::block_in_place(|| running.stop().unwrap());
    let until = Instant::now() + Duration::from_secs(3);
    let sent = outbox.send(batch(&shop, &outbox, 3..=6), until).await.unwrap();
    let is_open = sent.iter().all(|one| matches!(one, Sent::Later(_) | Sent::Unknown(_)));
    assert!(is_open, "{sent:?}");
    tokio::task::block_in_place(|| running.restart().unwrap());
    let deadline = Instant::now() + PATIENCE * 2;
    let settled = loop {
        let sender = outbox.sender().to_owned();
        match outbox.settle(sender, since, batch(&shop, &outbox, 1..=6)).await {
            Ok(settled) => break settled,
            Err(error) => assert!(error.is_transient() && Instant::now() < deadline, "{error}"),
        }
    };
    let arrived: Vec<bool> = settled.iter().map(|one| matches!(one, Settled::Arrived(_))).collect();
    assert_eq!(arrived[..2], [true, true], "{settled:?}");
    let open = (1..=6).zip(arrived).filter(|(_, arrived)| !arrived).map(|(n, _)| n);
    let sent = send(&outbox, batch(&shop, &outbox, open)).await;
    assert!(sent.iter().all(Sent::is_confirmed), "{sent:?}");
    shop.assert_once(1..=6).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn letters_of_topics_that_are_not_there_are_refused_alone() {
    if !available() {
        return;
    }
    let shop = Shop::open("outbox-missing").await.unwrap();
    let outbox = shop.outbox("one").await;
    let to = |topic: &str| outgoing(&outbox, shop.born(1), &Target::Subject(topic.to_owned()));
    let mut all = batch(&shop, &outbox, [2]);
    all.extend([to("outbox-nowhere"), to("no topic"), to(&shop.ledger())]);
    // They have other identities.
    for (n, one) in (10..).zip(&mut all[1..]) {
        one.once = Once::in_operation(shop.born(n).death(), operation(1));
    }
    let survey = outbox.survey(all.iter().map(|one| one.to.clone()).collect()).await.unwrap();
    assert_eq!(survey.closed.len(), 3, "{survey:?}");
    let sent = send(&outbox, all).await;
    assert!(sent[0].is_confirmed(), "{sent:?}");
    assert!(sent[1..].iter().all(|sent| matches!(sent, Sent::Refused(_))), "{sent:?}");
    assert!(!shop.has_topic("outbox-nowhere"), "nothing is created by it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn letters_go_to_their_partition_and_to_their_handler_where_that_is_asked() {
    if !available() {
        return;
    }
    let shop = Shop::open("outbox-partition").await.unwrap();
    let outbox = shop.outbox("one").await;
    assert_eq!(outbox.route(&shop.born(1), &Target::Handler), Err(Skipped::NoOrigin));
    let ladder = Ladder::of([Duration::from_secs(30)]);
    let outbox = outbox.keep_partition().ladder(ladder.clone());
    let sent = send(&outbox, batch(&shop, &outbox, 0..6)).await;
    assert!(sent.iter().all(Sent::is_confirmed), "{sent:?}");
    for read in shop.read(&shop.topic).await {
        let number: i32 = read.text().parse().unwrap();
        assert_eq!(read.partition, number % PARTITIONS);
    }
    let one = outgoing(&outbox, shop.born(7), &Target::Handler);
    assert_eq!(one.to.consumer.as_deref(), Some("billing"));
    let stage = one.to.subject.to_string();
    let survey = outbox.survey([one.to.clone()].into()).await.unwrap();
    assert!(survey.closed[&one.to].contains("there is no retry topic"), "{survey:?}");
    shop.create(&stage, 1, &[]).await;
    assert!(send(&outbox, vec![one]).await[0].is_confirmed());
    let read = shop.read(&stage).await;
    assert_eq!((read.len(), read[0].header("dlq.consumer")), (1, Some("billing")));
    assert!(read[0].header("retry.due").is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rights_that_are_missing_are_named_before_anything_is_sent() {
    const TRANSACTIONAL_ID: i8 = 5;
    if !available() {
        return;
    }
    let broker = guarded();
    let shop = Shop::at(broker.url().to_owned(), "outbox-rights");
    shop.create(&shop.topic, PARTITIONS, &[]).await;
    let outbox = shop.outbox("one").await;
    let to = batch(&shop, &outbox, [1])[0].to.clone();
    assert!(outbox.survey([to.clone()].into()).await.unwrap().closed.is_empty());
    allow_only(&broker, TOPIC, &shop.topic, DESCRIBE_CONFIGS);
    let deadline = Instant::now() + PATIENCE;
    let error = loop {
        match outbox.survey([to.clone()].into()).await {
            Err(error) => break error,
            Ok(_) => assert!(Instant::now() < deadline, "the rule is in force at last"),
        }
    };
    assert_eq!(error.kind(), StoreErrorKind::InvalidConfig, "{error}");
    assert!(error.to_string().contains(&shop.topic), "{error}");
    let id = format!("dlq-outbox.{}.two", shop.ledger());
    allow_only(&broker, TRANSACTIONAL_ID, &id, DESCRIBE);
    let deadline = Instant::now() + PATIENCE;
    let error = loop {
        match KafkaOutbox::open_as(&shop.brokers(), shop.ledger(), "two").await {
            Err(error) => break error,
            Ok(_) => assert!(Instant::now() < deadline, "the rule is in force at last"),
        }
    };
    assert_eq!(error.kind(), StoreErrorKind::InvalidConfig, "{error}");
    assert!(error.to_string().contains(&id), "{error}");
}

//! A ledger that does not say of all letters whether they were sent back.

use std::future::pending;
use std::time::Duration;

use dlq_core::ingest::{Incident, Ingest};
use dlq_core::log::Entries as _;
use dlq_core::store::Letters;
use dlq_core::{Filter, PageRequest, Status, StoreErrorKind};
use dlq_kafka::rdkafka::message::{Header, OwnedHeaders};
use dlq_kafka::rdkafka::producer::{FutureProducer, FutureRecord};
use dlq_kafka::{KafkaLetters, ReplayOutcome};
use dlq_letters::memory::MemoryStore;

use crate::fixture_feed::follow;
use crate::fixture_reading::Look as _;
use crate::fixture_replay::{PATIENCE, Shop, run, to_origin};

const UNCLEAR: &str = "replays.unclear";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_a_mark_of_another_version_keeps_its_letter_back_and_no_other() {
    let Some(shop) = Shop::open("unclear").await else { return };
    let dead = shop.dead(0..3);
    let letters = shop.bury(&dead).await;
    let ledger = format!("{}.replays", shop.dlq);
    shop.create(&ledger, 1, &[("cleanup.policy", "compact")]).await;
    let producer: FutureProducer = shop.config().create().unwrap();
    let key = dead[1].death().to_string();
    let write = async |value: Option<&str>| {
        let mut record = FutureRecord::to(&ledger).key(&key);
        record.payload = value;
        producer.send(record, PATIENCE).await.unwrap();
    };
    write(Some(r#"{"version":9}"#)).await;

    assert_eq!(letters.count(Filter::new()).await.unwrap(), 3);
    assert_eq!(letters.all().await.unwrap().len(), 3);
    let shown = letters.get_all(dead.iter().map(|letter| letter.id).collect()).await.unwrap();
    let said: Vec<_> = shown.iter().map(|letter| letter.attributes.get(UNCLEAR)).collect();
    assert!(said[1].is_some_and(|why| why.contains(&ledger)), "{said:?}");
    assert_eq!((said[0], said[2]), (None, None));
    let plan = to_origin(&letters, 1).plan().await.unwrap();
    assert!(plan.notes.iter().any(|note| note.contains("none of this version")), "{plan:?}");

    let mut why = Vec::new();
    let replay = to_origin(&letters, 1);
    let report = replay.run(pending(), |replayed| {
        if let ReplayOutcome::Failed(error) = &replayed.outcome {
            why.push((replayed.id, error.to_string()));
        }
    });
    let report = report.await.unwrap();
    assert!(report.is_complete(), "{report}");
    assert_eq!((report.sent, report.failed), (2, 1), "{report}; {why:?}");
    assert_eq!(why[0].0, dead[1].id);
    println!("{}", why[0].1);
    assert!(why[0].1.contains(&ledger) && why[0].1.contains("without a value"), "{why:?}");
    shop.assert_once([0, 2]).await;

    // On somebody's word that it was not.
    write(None).await;
    assert_eq!(run(to_origin(&letters, 2)).await.sent, 1);
    shop.assert_once(0..3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_what_may_have_been_sent_is_quarantined_in_a_store_that_comes_later() {
    let Some(shop) = Shop::open("unclear-store").await else { return };
    let dead = shop.dead(0..3);
    let letters = shop.bury(&dead).await;
    assert_eq!(run(to_origin(&letters, 1).limit(1)).await.sent, 1);
    let ledger = format!("{}.replays", shop.dlq);
    let waiting = Filter::new().with_status(Status::Pending);
    let page = letters.list(waiting, PageRequest::new()).await.unwrap();
    let unclear = letters.get(page.letters[0].id).await.unwrap().unwrap().death();
    let producer: FutureProducer = shop.config().create().unwrap();
    let (key, value) = (unclear.to_string(), r#"{"version":9}"#);
    producer.send(FutureRecord::to(&ledger).key(&key).payload(value), PATIENCE).await.unwrap();

    let log = shop.letters().until_end();
    let feed = follow(&log, "memory", Duration::from_secs(10)).await.unwrap();
    let (store, mut told) = (MemoryStore::new(), Vec::new());
    let mut ingest = Ingest::new(feed, store.clone());
    let tell = |incidents: &[Incident]| {
        told.extend(incidents.iter().filter_map(|incident| incident.detail.clone()));
        Ok(())
    };
    ingest.run(pending(), tell).await.unwrap();
    let report = ingest.report().to_string();
    assert!(report.contains("; 1 quarantined"), "{report}");
    assert!(told.len() == 1 && told[0].contains(&ledger), "{told:?}");
    let quarantined = Letters::get(&store, unclear.letter).await.unwrap().unwrap();
    assert_eq!(quarantined.state.status, Status::Quarantined);
    assert_eq!(quarantined.attributes[UNCLEAR], told[0]);
    let stats = Letters::stats(&store, Filter::new()).await.unwrap();
    assert_eq!((stats.with_status(Status::Sent), stats.with_status(Status::Pending)), (1, 1));
}

/// A letter as Spring Kafka writes it, whose identity depends on how the cluster is called.
async fn of_spring(shop: &Shop, number: i64) {
    let producer: FutureProducer = shop.config().create().unwrap();
    let (partition, offset) = (0_i32.to_be_bytes(), number.to_be_bytes());
    let named = [
        ("kafka_dlt-original-topic", shop.topic.as_bytes()),
        ("kafka_dlt-original-partition", &partition),
        ("kafka_dlt-original-offset", &offset),
        ("kafka_dlt-exception-message", b"refused"),
    ];
    let insert = |headers: OwnedHeaders, (key, value): (&str, &[u8])| {
        headers.insert(Header { key, value: Some(value) })
    };
    let headers = named.into_iter().fold(OwnedHeaders::new(), insert);
    let (key, payload) = (format!("customer-{number}"), number.to_string());
    let record = FutureRecord::to(&shop.dlq).headers(headers).key(&key).payload(&payload);
    producer.send(record, PATIENCE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_nothing_is_sent_again_by_another_alias_of_the_cluster() {
    let Some(shop) = Shop::open("aliases").await else { return };
    of_spring(&shop, 0).await;
    let own = shop.bury(&shop.dead(1..2)).await;
    assert_eq!(run(to_origin(&own, 1)).await.sent, 2);
    shop.assert_once(0..2).await;

    // Somebody else calls the cluster by another name, and one more has died.
    let others = KafkaLetters::new(&shop.brokers().with_cluster("eu"), shop.dlq.as_str());
    of_spring(&shop, 2).await;
    let ledger = format!("{}.replays", shop.dlq);
    for refused in [
        to_origin(&others, 2).plan().await.unwrap_err(),
        to_origin(&others, 2).run(pending(), |_| {}).await.unwrap_err(),
    ] {
        let refused = refused.to_string();
        println!("{refused}");
        let says = [&*ledger, "`default`", "`eu`", "with_cluster", "`begun`"];
        assert!(says.iter().all(|said| refused.contains(said)), "{refused}");
    }
    shop.assert_once(0..2).await;
    // What is found in the ledger all the same was sent; of the others it is not known.
    let all = others.all().await.unwrap();
    let shown = others.get_all(all.iter().map(|one| one.letter.id).collect()).await.unwrap();
    let unclear = shown.iter().filter(|letter| letter.attributes.contains_key(UNCLEAR));
    assert_eq!((shown.len(), unclear.count()), (3, 2));

    // By its name it goes on, and nobody is in the way of who began.
    assert_eq!(run(to_origin(&shop.letters(), 3)).await.sent, 1);
    shop.assert_once(0..3).await;

    let log = KafkaLetters::new(&shop.brokers().with_cluster("eu"), &*shop.dlq);
    let mut feed = follow(&log, "memory", Duration::from_secs(10)).await.unwrap();
    let refused = feed.next(10).await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::InvalidConfig);
    assert!(refused.to_string().contains("`--kafka-cluster`"), "{refused}");

    // On somebody's word that the other name is right from now on.
    let producer: FutureProducer = shop.config().create().unwrap();
    let forgotten = FutureRecord::<str, str>::to(&ledger).key("begun");
    producer.send(forgotten, PATIENCE).await.unwrap();
    assert!(to_origin(&others, 4).plan().await.is_ok());
    assert_eq!(feed.next(10).await.unwrap().len(), 3);
}

/// The one has looked at the ledger before the other says its name in it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_of_two_aliases_that_begin_at_once_one_is_refused() {
    let Some(shop) = Shop::open("aliases-at-once").await else { return };
    of_spring(&shop, 0).await;
    let mut worn = shop.dead(1..2);
    worn[0].state.replays = 10;
    let own = shop.bury(&worn).await;
    let others = KafkaLetters::new(&shop.brokers().with_cluster("eu"), shop.dlq.as_str());
    let mut first = Some(run(to_origin(&own, 1)));
    let second = to_origin(&others, 2);
    let report = second.run(pending(), |replayed| {
        // Of this one is told before anything is sent.
        if let (ReplayOutcome::Skipped(_), Some(first)) = (&replayed.outcome, first.take()) {
            let runtime = tokio::runtime::Handle::current();
            let first = tokio::task::block_in_place(|| runtime.block_on(first));
            assert_eq!(first.sent, 1);
        }
    });
    let report = report.await.unwrap();
    assert!(first.is_none() && report.sent == 0, "{report}");
    let refused = report.stopped.unwrap().to_string();
    assert!(["`default`", "`eu`"].iter().all(|alias| refused.contains(alias)), "{refused}");
    shop.assert_once([0]).await;
    // It has said nothing of itself.
    of_spring(&shop, 2).await;
    assert_eq!(run(to_origin(&shop.letters(), 3)).await.sent, 1);
}

/// Whoever takes the right to send takes it from the other, who has looked at the ledger by then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_of_two_aliases_at_the_same_moment_one_sends() {
    let Some(shop) = Shop::open("aliases-meet").await else { return };
    for number in 0..5 {
        of_spring(&shop, number).await;
    }
    let others = KafkaLetters::new(&shop.brokers().with_cluster("eu"), shop.dlq.as_str());
    let (one, two) = (to_origin(&shop.letters(), 1), to_origin(&others, 2));
    let (one, two) = tokio::join!(one.run(pending(), |_| {}), two.run(pending(), |_| {}));
    let refused = [one, two].into_iter().filter_map(|ended| match ended {
        Ok(report) => report.stopped,
        Err(error) => Some(error),
    });
    let refused: Vec<_> = refused.map(|error| error.to_string()).collect();
    assert!(refused.len() == 1 && refused[0].contains("with_cluster"), "{refused:?}");
    shop.assert_once(0..5).await;
}

//! A record in the ledger that this version cannot read.

use std::future::pending;

use dlq_core::Filter;
use dlq_core::store::Letters as _;
use dlq_kafka::ReplayOutcome;
use dlq_kafka::rdkafka::producer::{FutureProducer, FutureRecord};

use crate::fixture_replay::{PATIENCE, Shop, run, to_origin};

const UNCLEAR: &str = "kafka.replays.unclear";

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
    assert_eq!(letters.read(&Filter::new()).await.unwrap().len(), 3);
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

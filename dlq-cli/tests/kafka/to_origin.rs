//! Letters of a store go back to the topics that they came from.

use dlq_core::store::{Letters as _, Sink as _};
use dlq_core::{DeadLetter, Filter, LetterId, Message, Origin, Position, Status};
use dlq_sql::sqlite::SqliteStore;
use dlq_testkit::fixtures::letter_of;

use crate::common::{Ran, dlq};
use crate::fixture::Bench;

fn run(args: &[&str]) -> Ran {
    tokio::task::block_in_place(|| dlq(args).output().unwrap().into())
}

/// Letters of messages of this topic, whose keys say which they are.
pub(crate) fn of_topic(topic: &str, numbers: impl Iterator<Item = u64>) -> Vec<DeadLetter> {
    let letter = |n: u64| {
        let message = Message::new(topic, n.to_string()).with_key(format!("k-{n}"));
        let mut letter = letter_of(message, n);
        letter.origin = Origin::new("kafka", topic, Position::Offset(n)).with_partition(0);
        letter.id = LetterId::of(&letter.origin, None, "billing");
        letter.consumer = "billing".to_owned();
        letter
    };
    numbers.map(letter).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn letters_of_a_store_go_back_to_their_topic() {
    let Some(bench) = Bench::new("storeback").await else { return };
    bench.create(&bench.source, 2).await;
    let store = SqliteStore::open(bench.file("dlq.db")).await.unwrap();
    let letters = of_topic(&bench.source, 0..20);
    store.put(letters.clone()).await.unwrap();
    let (from, via) = (bench.store_url(), format!("kafka://{}", bench.host));
    let all = ["replay", "--from", &from, "--all", "--to", "origin", "-y", "-o", "json"];
    let refused = run(&all);
    assert_eq!(refused.code, 2);
    assert!(refused.err.contains("--via kafka://HOST"), "{}", refused.err);
    let wrong = run(&[&all[..], &["--via", "kafka://127.0.0.1:1"]].concat());
    assert_ne!(wrong.code, 0, "nobody listens there");
    assert_eq!(store.count(Filter::new().with_status(Status::Pending)).await.unwrap(), 20);
    let ran = run(&[&all[..], &["--via", &via]].concat()).ok();
    assert_eq!(ran.json()["progress"]["by_outcome"]["sent"], 20, "{}", ran.err);
    assert_eq!(bench.records(&bench.source).len(), 20);
    assert_eq!(store.count(Filter::new().with_status(Status::Sent)).await.unwrap(), 20);
    let again = run(&[&all[..], &["--via", &via]].concat()).ok();
    assert_eq!(again.json()["id"], serde_json::Value::Null, "there is nothing left to send");
    assert_eq!(bench.records(&bench.source).len(), 20);
}

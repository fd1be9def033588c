//! What ends a log that is followed.

use std::time::Duration;

use dlq_core::log::Entries as _;
use dlq_kafka::KafkaLetters;
use futures_util::future::join;
use tokio::time::timeout;

use crate::fixture_feed::{PATIENCE, Topic, follow};

/// A client that was put out by its twin reads nothing ever after.
#[tokio::test(flavor = "multi_thread")]
async fn g9_who_follows_and_whose_place_in_the_group_was_taken_ends_and_says_why() {
    let Some(topic) = Topic::new("feed-twins", 1).await else { return };
    topic.write(0..3).await;
    let brokers = topic.brokers().with("group.instance.id", "twin");
    let letters = KafkaLetters::new(&brokers, &*topic.name);
    let open = || follow(&letters, "sqlite:///dlq.db", Duration::from_secs(10));
    let mut first = open().await.unwrap();
    assert!(!timeout(PATIENCE, first.next(1)).await.expect("letters come").unwrap().is_empty());
    let mut second = open().await.unwrap();
    let ends = async {
        loop {
            match first.next(1).await {
                Ok(fed) => assert!(!fed.is_empty()),
                Err(error) if error.is_transient() => {}
                Err(error) => break error,
            }
        }
    };
    let takes = async { while second.next(1).await.is_err() {} };
    let (error, ()) = timeout(PATIENCE, join(ends, takes)).await.expect("it ends");
    println!("{error}");
    assert!(error.to_string().contains("`group.instance.id`"), "{error}");
}

//! Letters that the client cannot read, among those that it can.

use std::collections::BTreeSet;
use std::time::Duration;

use dlq_core::log::{Content, Entries as _};
use dlq_core::{StoreError, StoreErrorKind};
use dlq_kafka::{KafkaEntries, KafkaLetters};
use tokio::time::timeout;

use crate::fixture_feed::{PATIENCE, Topic, follow};

const LEASE: Duration = Duration::from_secs(10);

async fn open(letters: KafkaLetters) -> KafkaEntries {
    follow(&letters, "sqlite:///dlq.db", LEASE).await.unwrap()
}

/// Takes and confirms letters until there is such an error, or all of these have come.
async fn read(
    feed: &mut KafkaEntries,
    mut wanted: BTreeSet<String>,
    kind: StoreErrorKind,
) -> Result<(), StoreError> {
    let reading = async {
        while !wanted.is_empty() {
            match feed.next(10).await {
                Ok(fed) => {
                    assert!(!fed.is_empty(), "it has ended without {wanted:?}");
                    for fed in fed {
                        let Content::Letter(letter) = fed.content else { panic!("{fed:?}") };
                        let text = letter.message.payload().unwrap();
                        wanted.remove(std::str::from_utf8(text).unwrap());
                    }
                    feed.confirm().await.unwrap();
                }
                Err(error) if error.kind() == kind => return Err(error),
                Err(error) => assert!(error.is_transient(), "{error}"),
            }
        }
        Ok(())
    };
    timeout(PATIENCE, reading).await.expect("it does not wait for ever")
}

fn texts(numbers: std::ops::Range<u32>) -> BTreeSet<String> {
    numbers.map(|number| format!("number {number}")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn g1_letters_that_cannot_be_read_are_told_and_hold_up_no_other() {
    if cfg!(feature = "zstd") {
        return;
    }
    let Some(topic) = Topic::new("feed-packed", 2).await else { return };
    topic.write(0..4).await;
    topic.alter("compression.type", "zstd").await;
    topic.write([4]).await;
    topic.alter("compression.type", "producer").await;
    topic.write([5]).await;
    let place = "topic `feed-packed`, partition 0, cannot be read from offset 2 on";
    let says_so = |error: &StoreError| {
        let text = error.to_string();
        assert!(text.contains(place) && text.contains("the feature `zstd`"), "{text}");
    };

    let mut ends = open(topic.letters().until_end()).await;
    let error = read(&mut ends, texts(0..6), StoreErrorKind::InvalidConfig).await.unwrap_err();
    says_so(&error);
    drop(ends);
    let group = KafkaLetters::group_of(&topic.name);
    assert_eq!(topic.committed(&group), [Some(2), Some(3)], "the rest is stored");

    let mut follows = open(topic.letters()).await;
    let error = read(&mut follows, texts(4..5), StoreErrorKind::Unavailable).await.unwrap_err();
    says_so(&error);
    topic.write([7]).await;
    let goes_on = async {
        while read(&mut follows, texts(7..8), StoreErrorKind::Unavailable).await.is_err() {}
    };
    timeout(PATIENCE, goes_on).await.expect("the other partition goes on");
}

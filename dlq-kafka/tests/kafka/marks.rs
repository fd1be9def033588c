//! By which groups it is known that the letters of a topic go into a store.

use std::time::Duration;

use dlq_core::log::{IngestMark, Log as _};
use dlq_core::{StoreError, StoreErrorKind};
use dlq_kafka::{KafkaEntries, KafkaLetters};
use tokio::time::timeout;

use crate::access::{DESCRIBE_CONFIGS, GROUP, allow_only, guarded};
use crate::fixture::{PATIENCE, available};
use crate::fixture_feed::{Topic, follow};

const STORE: &str = "sqlite:///dlq.db";
const LEASE: Duration = Duration::from_secs(10);

async fn open(topic: &Topic, group: &str) -> Result<KafkaEntries, StoreError> {
    follow(&topic.letters().group(group), STORE, LEASE).await
}

/// What one group says.
async fn mark(topic: &Topic, group: &str) -> Result<Option<IngestMark>, StoreError> {
    topic.letters().group(group).mark().await
}

#[tokio::test(flavor = "multi_thread")]
async fn g1_a_group_by_which_a_store_would_not_be_seen_is_refused() {
    let Some(topic) = Topic::new("marks-named", 1).await else { return };
    topic.write(0..3).await;
    let first = KafkaLetters::group_of(&topic.name);
    for group in
        ["orders-sink", "dlq-ingest", "my.dlq-ingest", &format!("{first}."), &format!("{first}2")]
    {
        let error = open(&topic, group).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Refused, "{group}: {error}");
        assert!(error.to_string().contains(&format!("`{first}`")), "{error}");
        assert_eq!(topic.committed(group), [None]);
        let error = mark(&topic, group).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Refused, "{group}: {error}");
    }
    let other = format!("{first}.orders-sink");
    drop(open(&topic, &other).await.unwrap());
    let all = topic.letters().marks().await.unwrap();
    let own = mark(&topic, &other).await.unwrap();
    assert_eq!((all.len(), Some(&all[0])), (1, own.as_ref()));
    assert_eq!(mark(&topic, &first).await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_that_may_not_be_seen_hide_no_other() {
    if !available() {
        return;
    }
    let broker = guarded();
    let topic = Topic::at(broker.url(), "marks-closed", 1).await;
    let first = KafkaLetters::group_of(&topic.name);
    drop(open(&topic, &first).await.unwrap());
    let closed = [&*format!("{first}.closed"), "dlq-ingest.payments.dlq"];
    for group in closed {
        topic.commit(group, 0, "");
        allow_only(&broker, GROUP, group, DESCRIBE_CONFIGS);
    }
    let closed = async { while mark(&topic, closed[0]).await.is_ok() {} };
    timeout(PATIENCE, closed).await.expect("the rules are in force");
    let marks = topic.letters().marks().await.unwrap();
    assert_eq!(marks.iter().map(|mark| &mark.by).collect::<Vec<_>>(), [&first]);
    // Whether the first one has a store has to be known.
    allow_only(&broker, GROUP, &first, DESCRIBE_CONFIGS);
    let refused = async {
        loop {
            if let Err(error) = topic.letters().marks().await {
                break error;
            }
        }
    };
    let error = timeout(PATIENCE, refused).await.expect("the rule is in force");
    assert_eq!(error.kind(), StoreErrorKind::InvalidConfig, "{error}");
    assert!(error.to_string().contains(&first), "{error}");
}

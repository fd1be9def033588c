//! Metadata of the commits of who follows, besides offsets.

use std::panic::{AssertUnwindSafe, catch_unwind};

use dlq_core::{StoreError, StoreErrorKind};
use rdkafka::error::KafkaResult;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList, TopicPartitionListElem};
use serde::{Deserialize, Serialize};

/// Maximum length of a store's name: brokers keep 4096 bytes with a commit.
const LONGEST: usize = 3000;

/// The metadata of a commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Mark {
    /// The store that the letters go into.
    #[serde(rename = "dlq.store")]
    pub(super) store: String,
    /// Number of letters of this partition that were confirmed.
    pub(super) confirmed: u64,
    /// True if nothing at or after this offset was yielded yet.
    pub(super) clean: bool,
}

impl Mark {
    /// Checks that the name of a store fits.
    pub(super) fn check(store: &str, operation: &'static str) -> Result<(), StoreError> {
        if store.len() <= LONGEST && !store.contains('\0') {
            return Ok(());
        }
        Err(StoreError::new(StoreErrorKind::InvalidConfig, operation).with_detail(format!(
            "the name of the store has {} bytes; at most {LONGEST}, none of them NUL, fit into the metadata of a commit",
            store.len()
        )))
    }

    /// Writes it beside an offset.
    pub(super) fn write(
        &self,
        list: &mut TopicPartitionList,
        topic: &str,
        partition: i32,
        offset: i64,
    ) -> KafkaResult<()> {
        let mut element = list.add_partition(topic, partition);
        element.set_offset(Offset::Offset(offset))?;
        let text = serde_json::to_string(self).expect("text, a number and a flag are JSON");
        element.set_metadata(text);
        Ok(())
    }

    /// Returns the metadata of an offset, if one who follows wrote it.
    pub(super) fn read(element: &TopicPartitionListElem<'_>) -> Option<Self> {
        // The client panics at metadata that are not UTF-8, which another tool may write.
        let text = catch_unwind(AssertUnwindSafe(|| element.metadata().to_owned())).ok()?;
        // Other metadata are somebody else's and no mark.
        serde_json::from_str(&text).ok()
    }
}

/// The offset that was committed; `None` for none.
pub(super) fn offset(element: &TopicPartitionListElem<'_>) -> Option<i64> {
    match element.offset() {
        Offset::Offset(offset) => Some(offset),
        _ => None,
    }
}

/// All partitions of a topic.
pub(super) fn all(topic: &str, partitions: &[i32]) -> TopicPartitionList {
    let mut list = TopicPartitionList::with_capacity(partitions.len());
    for partition in partitions {
        list.add_partition(topic, *partition);
    }
    list
}

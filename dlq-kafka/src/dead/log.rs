use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use dlq_core::log::{Entries, Entry, IngestMark, Log, Range};
use dlq_core::{DeadLetter, Origin, StoreError};

use super::KafkaLetters;
use super::entries::{ReadEntries, Says, is_of, place_of};
use super::follow::{Follow, marks};
use super::reading::unread;
use crate::dialect;

impl Log for KafkaLetters {
    type Entries = KafkaEntries;

    /// Returns what the commits of all [groups](KafkaLetters::group_of) say by which the topic can be followed. A group that
    /// this user may not see is skipped, except for the first one. It is `Unavailable` too where some groups are not known,
    /// since a broker does not answer: they may have stores.
    async fn marks(&self) -> Result<Vec<IngestMark>, StoreError> {
        marks::all(self.brokers(), &self.topic).await
    }

    async fn read(&self, range: Range) -> Result<KafkaEntries, StoreError> {
        let read = ReadEntries::open(self.clone(), range, Says::Sent).await?;
        Ok(KafkaEntries(Way::Read(Box::new(read))))
    }

    /// Follows by the [group](KafkaLetters::group) that was set. Brokers allow a lease of 6 s to 30 min unless they are told
    /// otherwise.
    ///
    /// # Errors
    ///
    /// As [`Log::follow`]; `Conflict` also where the group is somebody else's; `Refused` where it is [none](KafkaLetters::group_of)
    /// that is known to have a store.
    async fn follow(&self, store: String, lease: Duration) -> Result<KafkaEntries, StoreError> {
        let follow = Follow::open(self, store, lease).await?;
        Ok(KafkaEntries(Way::Follow(Box::new(follow))))
    }

    async fn at(&self, places: Vec<Origin>) -> Result<Vec<Option<DeadLetter>>, StoreError> {
        let here = |place: &Origin| place_of(place).filter(|_| is_of(place, &self.topic));
        let asked: BTreeSet<(u32, u64)> = places.iter().filter_map(here).collect();
        let mut found = BTreeMap::new();
        if !asked.is_empty() {
            let (topic, all) = (Arc::clone(&self.topic), asked.iter().copied().collect());
            // What a transaction holds back counts as not there: an entry has been seen only once it was committed.
            let (mut records, _) = self.lookup.records(topic, all).await.map_err(unread)?;
            while let Some(record) = records.next().await.map_err(unread)? {
                // Others come between them.
                let at = (record.partition, record.offset);
                if asked.contains(&at) {
                    found.insert(at, dialect::letter(&record, self.brokers().cluster_shared()));
                }
            }
        }
        // A place may be asked for twice.
        let letter = |place: &Origin| found.get(&here(place)?).cloned();
        Ok(places.iter().map(letter).collect())
    }

    /// Fetches messages from where letters say that they stand. A letter whose message has gone gets the attribute
    /// `kafka.pointer.gone`, and one whose message may not or cannot be read `kafka.pointer.unread`, which says why.
    async fn complete(&self, letters: Vec<DeadLetter>) -> Result<Vec<DeadLetter>, StoreError> {
        self.pointed_to(letters).await
    }
}

/// Entries of a topic of dead letters: of a reading, or of a member of a group that follows.
#[derive(Debug)]
pub struct KafkaEntries(Way);

#[derive(Debug)]
enum Way {
    // In boxes: both are large, and rarely moved.
    Read(Box<ReadEntries>),
    Follow(Box<Follow>),
}

impl Entries for KafkaEntries {
    async fn next(&mut self, limit: usize) -> Result<Vec<Entry>, StoreError> {
        match &mut self.0 {
            Way::Read(read) => read.next(limit).await,
            Way::Follow(follow) => follow.next(limit).await,
        }
    }

    async fn confirm(&mut self) -> Result<(), StoreError> {
        match &mut self.0 {
            Way::Read(read) => read.confirm().await,
            Way::Follow(follow) => follow.confirm().await,
        }
    }
}

//! What the group remembers.

use dlq_core::{StoreError, StoreErrorKind};
use rdkafka::consumer::{CommitMode, Consumer as _};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use super::assigned::Place;
use super::mark::{self, Mark};
use super::member::{Done, Member};
use super::{CONFIRMING, READING};
use crate::gauges::anew;
use crate::reach::{self, PATIENCE};

impl Member {
    /// Reads the commits of partitions that came to us, and says there that they are being read.
    pub(super) fn prepare(&self) -> Result<(), StoreError> {
        let fresh = self.consumer.context().lock().fresh();
        // What is read of a topic that is gone has no place, and is dropped.
        if fresh.is_empty() || self.consumer.context().ids.behind(&self.topic).0 {
            return Ok(());
        }
        let asked = |error| self.failed("read the offsets", error).for_store(READING);
        let list = mark::all(&self.topic, &fresh);
        let committed =
            reach::patiently(|| self.consumer.committed_offsets(list.clone(), PATIENCE))
                .map_err(asked)?;
        let id = self.consumer.context().ids.of(&self.topic);
        let mut places = Vec::new();
        let mut begun = TopicPartitionList::new();
        for element in committed.elements() {
            element.error().map_err(asked)?;
            let (partition, committed) = (element.partition(), mark::offset(&element));
            let mark = Mark::read(&element);
            if let Some(mark) = mark.as_ref().filter(|mark| mark.store != self.store) {
                return Err(StoreError::new(StoreErrorKind::Conflict, READING).with_detail(
                    format!(
                        "the letters of `{}` go into {}, and {} was begun at the same time; use one store, or a group for \
                         each",
                        self.topic, mark.store, self.store
                    ),
                ));
            }
            let topic = mark.as_ref().and_then(|mark| mark.topic.clone());
            let is_anew = self.is_anew(partition);
            let is_other = is_of_another(topic.as_deref(), id.as_deref(), is_anew);
            let is_anew = is_other || is_anew;
            // What is committed in a topic that is gone says nothing of this one.
            let committed = committed.filter(|_| !is_other);
            let is_clean = committed.is_none() || mark.as_ref().is_some_and(|mark| mark.clean);
            let (low, high) = if is_clean && committed.is_some() {
                (0, 0)
            } else {
                reach::watermarks(&self.consumer, &self.topic, partition).map_err(asked)?
            };
            let start = committed.unwrap_or(low);
            if is_anew {
                tracing::warn!(
                    topic = &*self.topic,
                    partition,
                    "the topic was deleted and made anew; it is read from its beginning"
                );
                anew(&self.topic);
                let start = Offset::Offset(start);
                self.consumer.seek(&self.topic, partition, start, PATIENCE).map_err(asked)?;
            }
            let place = Place {
                again_until: if is_clean { i64::MIN } else { high },
                yielded: start,
                committed: start,
                confirmed: mark.as_ref().map_or(0, |mark| mark.confirmed),
            };
            let topic = topic.filter(|_| !is_other).or_else(|| id.clone());
            if is_clean || mark.is_none() {
                let mark = self.mark_of(&place, topic.clone(), false);
                mark.write(&mut begun, &self.topic, partition, start).map_err(asked)?;
            }
            places.push((partition, place, topic));
        }
        if begun.count() > 0 {
            self.consumer.commit(&begun, CommitMode::Sync).map_err(asked)?;
        }
        let mut ours = self.consumer.context().lock();
        for (partition, place, topic) in places {
            if let Some(partition) = ours.ours.get_mut(&partition) {
                (partition.place, partition.topic, partition.is_anew) = (Some(place), topic, false);
            }
        }
        Ok(())
    }

    fn is_anew(&self, partition: i32) -> bool {
        self.consumer.context().lock().ours.get(&partition).is_some_and(|ours| ours.is_anew)
    }

    fn mark_of(&self, place: &Place, topic: Option<String>, clean: bool) -> Mark {
        Mark { store: self.store.clone(), confirmed: place.confirmed, clean, topic }
    }

    /// Commits what is done with, of partitions that are still ours.
    pub(super) fn confirm(&mut self, done: &[Done]) -> Result<(), StoreError> {
        let mut list = TopicPartitionList::new();
        let mut places = Vec::new();
        for one in done {
            let mut ours = self.consumer.context().lock();
            let place = ours.place(one.partition, one.epoch).copied();
            let topic = ours.ours.get(&one.partition).and_then(|ours| ours.topic.clone());
            drop(ours);
            let Some(mut place) = place else { continue };
            place.committed = one.next;
            place.confirmed += one.letters;
            self.mark_of(&place, topic, false)
                .write(&mut list, &self.topic, one.partition, one.next)
                .map_err(|error| self.failed("commit", error).for_store(CONFIRMING))?;
            places.push((one, place));
        }
        if places.is_empty() {
            return Ok(());
        }
        if let Err(error) = self.consumer.commit(&list, CommitMode::Sync) {
            // A group that is being shared anew goes on only when it is polled.
            self.hold();
            let failed = self.failed("commit", error).for_store(CONFIRMING);
            return Err(failed);
        }
        let mut ours = self.consumer.context().lock();
        for (one, place) in places {
            if let Some(there) = ours.place(one.partition, one.epoch) {
                (there.committed, there.confirmed) = (place.committed, place.confirmed);
            }
        }
        Ok(())
    }

    /// Says that what was confirmed is all that was read, and leaves the group by the drop that follows.
    pub(super) fn leave(&self) {
        let mut list = TopicPartitionList::new();
        for (partition, ours) in &self.consumer.context().lock().ours {
            let Some(place) = ours.place.filter(|place| place.yielded == place.committed) else {
                continue;
            };
            let mark = self.mark_of(&place, ours.topic.clone(), true);
            if let Err(error) = mark.write(&mut list, &self.topic, *partition, place.committed) {
                tracing::debug!(%error, "a partition is left without a word");
            }
        }
        if list.count() == 0 {
            return;
        }
        if let Err(error) = self.consumer.commit(&list, CommitMode::Sync) {
            tracing::debug!(%error, "the group is left without a word");
        }
    }
}

/// Whether a commit is of another topic than the one with this id. One that does not say is taken for it, unless the topic
/// was made anew while we read it: then it is one of before.
fn is_of_another(committed: Option<&str>, id: Option<&str>, is_anew: bool) -> bool {
    id.is_some() && committed != id && (committed.is_some() || is_anew)
}

#[cfg(test)]
mod tests {
    use super::is_of_another;

    #[test]
    fn g1_a_commit_without_an_id_is_not_believed_of_a_topic_that_was_made_anew() {
        let id = Some("two");
        assert!(is_of_another(None, id, true), "an earlier version wrote it before");
        assert!(!is_of_another(None, id, false));
        for is_anew in [false, true] {
            assert!(!is_of_another(id, id, is_anew));
            assert!(is_of_another(Some("one"), id, is_anew));
            assert!(!is_of_another(Some("one"), None, is_anew), "brokers give no ids");
        }
    }
}

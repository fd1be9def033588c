//! Committed offsets of the group.

use dlq_core::{StoreError, StoreErrorKind};
use rdkafka::consumer::{CommitMode, Consumer as _};
use rdkafka::topic_partition_list::TopicPartitionList;

use super::assigned::ReadPosition;
use super::mark::{self, Mark};
use super::member::{Done, Member};
use super::{CONFIRMING, READING};
use crate::client::reach::{self, PATIENCE};

impl Member {
    /// Reads the commits of partitions that came to us, and says there that they are being read.
    pub(super) fn prepare(&self) -> Result<(), StoreError> {
        let fresh = self.consumer.context().lock().fresh();
        if fresh.is_empty() {
            return Ok(());
        }
        let asked = |error| self.failed("read the offsets", error).for_store(READING);
        let list = mark::all(&self.topic, &fresh);
        let committed =
            reach::patiently(|| self.consumer.committed_offsets(list.clone(), PATIENCE))
                .map_err(asked)?;
        let mut places = Vec::new();
        let mut begun = TopicPartitionList::new();
        for element in committed.elements() {
            element.error().map_err(asked)?;
            let (partition, committed) = (element.partition(), mark::offset(&element));
            let mark = Mark::read(&element);
            // `join` has looked before, but two that begin at once may both find nothing. Each letter goes into one store only.
            if let Some(mark) = mark.as_ref().filter(|mark| mark.store != self.store) {
                return Err(StoreError::new(StoreErrorKind::Conflict, READING).with_detail(
                    format!(
                        "the letters of `{}` go into {}, and {} was begun at the same time; use one store, or a group for \
                         each",
                        self.topic, mark.store, self.store
                    ),
                ));
            }
            // Without a clean mark the owner before may have yielded entries up to the end and confirmed none of them.
            let is_clean = committed.is_none() || mark.as_ref().is_some_and(|mark| mark.clean);
            let (low, high) = if is_clean && committed.is_some() {
                (0, 0)
            } else {
                reach::watermarks(&self.consumer, &self.topic, partition).map_err(asked)?
            };
            let start = committed.unwrap_or(low);
            let place = ReadPosition {
                again_until: if is_clean { i64::MIN } else { high },
                yielded: start,
                committed: start,
                confirmed: mark.as_ref().map_or(0, |mark| mark.confirmed),
            };
            // `clean` is withdrawn before the first entry goes out.
            // If the process dies then, the next owner says that entries came before.
            if is_clean || mark.is_none() {
                let mark = self.mark_of(&place, false);
                mark.write(&mut begun, &self.topic, partition, start).map_err(asked)?;
            }
            places.push((partition, place));
        }
        if begun.count() > 0 {
            self.consumer.commit(&begun, CommitMode::Sync).map_err(asked)?;
        }
        let mut ours = self.consumer.context().lock();
        // A place is set only after the commit: `next` yields nothing of a partition without one.
        for (partition, place) in places {
            if let Some(partition) = ours.ours.get_mut(&partition) {
                partition.place = Some(place);
            }
        }
        Ok(())
    }

    fn mark_of(&self, place: &ReadPosition, clean: bool) -> Mark {
        Mark { store: self.store.clone(), confirmed: place.confirmed, clean }
    }

    /// Commits what is done with, of partitions that are still ours.
    pub(super) fn confirm(&mut self, done: &[Done]) -> Result<(), StoreError> {
        let mut list = TopicPartitionList::new();
        let mut places = Vec::new();
        for one in done {
            let mut ours = self.consumer.context().lock();
            let place = ours.place(one.partition, one.epoch).copied();
            drop(ours);
            // That assignment is over. The entries come again to whoever has the partition now.
            let Some(mut place) = place else { continue };
            // Only this copy changes. The place itself does after the commit, so what fails is committed again.
            place.committed = one.next;
            place.confirmed += one.letters;
            self.mark_of(&place, false)
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
            // The partition may have gone during the commit, and another assignment reads its own place.
            if let Some(there) = ours.place(one.partition, one.epoch) {
                (there.committed, there.confirmed) = (place.committed, place.confirmed);
            }
        }
        Ok(())
    }

    /// Says that what was confirmed is all that was read, and leaves the group by the drop that follows.
    pub(super) fn leave(&self) {
        let mut list = TopicPartitionList::new();
        // The mark of a partition with entries in flight stays as it is: they come again and say so.
        for (partition, ours) in &self.consumer.context().lock().ours {
            let Some(place) = ours.place.filter(|place| place.yielded == place.committed) else {
                continue;
            };
            let mark = self.mark_of(&place, true);
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

//! Number of letters that came into the store, for rates: a store keeps what is there, not what has ever come.
//!
//! Counted are the letters whose time of storing lies between two marks, both times of the store. The upper mark is the
//! newest letter of the look before, so that writers which were stamped and not yet committed then have had a pause to
//! do so. Letters that were resolved, deleted or claimed in that pause, and those that died again, are not counted; nor are
//! retry records, of which most never become letters.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dlq_core::store::Stats;
use dlq_core::{
    Clock as _, DeadLetters, ErrorClass, Filter, Status, StoreError, SystemClock, Timestamp,
};

use super::label::{MOST, OTHER, label, largest};

/// The finest time that every store keeps.
const STEP: Duration = Duration::from_micros(1);

/// Statuses that a letter may have right after its death, and a retry record may not.
const DEAD: [Status; 4] = [Status::Pending, Status::Held, Status::Quarantined, Status::Sent];

/// Letters that came since the first look, by topic and class.
#[derive(Debug, Default)]
pub(super) struct Written {
    /// Times up to which letters are counted, and up to which the next look counts; `None` before the first.
    marks: Option<(Timestamp, Timestamp)>,
    counts: BTreeMap<(String, ErrorClass), u64>,
    topics: BTreeSet<String>,
}

impl Written {
    /// Counts on; a look that fails half-way has counted nothing.
    pub(super) async fn look(
        &mut self,
        store: &DeadLetters,
        stats: &Stats,
    ) -> Result<(), StoreError> {
        // A letter from the future would end the counting until then.
        let newest = stats.newest.unwrap_or(Timestamp::EPOCH).min(SystemClock.now());
        // The first look counts nothing: what was there before this process is no rise of its counter.
        let Some((counted, upto)) = self.marks else {
            largest(&stats.by_subject).into_keys().for_each(|topic| self.learn(topic));
            self.marks = Some((newest, newest));
            return Ok(());
        };
        let mut found = Vec::new();
        if upto > counted {
            // `since` is inclusive and `until` is not; moved by a step, the intervals of two looks meet without an
            // overlap.
            let mut came = Filter::new().since(counted.after(STEP)).until(upto.after(STEP));
            came.statuses = DEAD.to_vec();
            for class in ErrorClass::ALL {
                let came = came.clone();
                found.push((class, store.stats(came.with_class(*class)).await?.by_subject));
            }
        }
        // All questions are asked before anything is added, so that an error in the middle leaves the counts as they
        // were.
        for (class, topics) in found {
            for (topic, count) in topics {
                self.learn(&topic);
                let topic = label(&topic);
                let topic = if self.topics.contains(topic) { topic } else { OTHER };
                *self.counts.entry((topic.to_owned(), *class)).or_default() += count;
            }
        }
        // The mark never goes back, as it would after the newest letter is deleted: letters would be counted twice.
        self.marks = Some((upto, newest.max(upto)));
        Ok(())
    }

    /// Gives the topic a label, unless there are too many. Counters begin at zero, or the first letter is no rise.
    fn learn(&mut self, topic: &str) {
        let topic = label(topic);
        if self.topics.len() < MOST && self.topics.insert(topic.to_owned()) {
            for class in ErrorClass::ALL {
                self.counts.entry((topic.to_owned(), *class)).or_default();
            }
        }
    }

    pub(super) fn counts(&self) -> impl Iterator<Item = (&str, ErrorClass, u64)> {
        self.counts.iter().map(|((topic, class), count)| (&**topic, *class, *count))
    }
}

#[cfg(test)]
mod tests {
    use dlq_core::Message;
    use dlq_core::RetryQueue as _;
    use dlq_core::store::{Actor, ClaimRequest, Claims as _, Maintenance as _};
    use dlq_letters::memory::MemoryStore;
    use dlq_testkit::fixtures::{delayed_retry, letter, letter_of};

    use super::*;

    async fn look(written: &mut Written, store: &DeadLetters) -> u64 {
        let stats = store.stats(Filter::new()).await.unwrap();
        written.look(store, &stats).await.unwrap();
        written.counts().map(|(_, _, count)| count).sum()
    }

    #[tokio::test]
    async fn what_came_is_counted_once() {
        let store = DeadLetters::new(MemoryStore::new());
        store.put((0..3).map(letter).collect()).await.unwrap();
        let mut written = Written::default();
        assert_eq!(look(&mut written, &store).await, 0, "what was there did not come");
        assert_eq!(written.counts().count(), ErrorClass::ALL.len(), "but has its series");
        store.put((3..10).map(letter).collect()).await.unwrap();
        assert_eq!(look(&mut written, &store).await, 0, "writers may not have committed");
        for _ in 0..3 {
            assert_eq!(look(&mut written, &store).await, 7);
        }
        store.put(vec![letter(10)]).await.unwrap();
        look(&mut written, &store).await;
        assert_eq!(look(&mut written, &store).await, 8);
    }

    /// A letter that was stored by a clock that was ahead, and imported from there.
    #[tokio::test]
    async fn a_letter_from_the_future_ends_no_counting() {
        let store = DeadLetters::new(MemoryStore::new());
        let mut written = Written::default();
        look(&mut written, &store).await;
        let mut ahead = letter(0);
        ahead.state.created_at = SystemClock.now().after(Duration::from_secs(3600));
        store.store().restore(vec![ahead], Actor::new("ana")).await.unwrap();
        look(&mut written, &store).await;
        store.put((1..4).map(letter).collect()).await.unwrap();
        look(&mut written, &store).await;
        assert_eq!(look(&mut written, &store).await, 3);
    }

    /// Retry records are not dead, and are counted if they die.
    #[tokio::test]
    async fn a_retry_record_is_no_letter() {
        let store = DeadLetters::new(MemoryStore::new());
        let mut written = Written::default();
        look(&mut written, &store).await;
        for n in 0..3 {
            let due = SystemClock.now().after(Duration::from_secs(u64::from(n > 0) * 3600));
            store.store().enqueue(delayed_retry(&letter(n), 1, due)).await.unwrap();
        }
        let request = ClaimRequest::due(["orders.handle"], 9, Duration::from_secs(60));
        assert_eq!(store.store().claim(request).await.unwrap().len(), 1);
        for _ in 0..2 {
            assert_eq!(look(&mut written, &store).await, 0);
        }
        store.put(vec![letter(0), letter(1)]).await.unwrap();
        look(&mut written, &store).await;
        assert_eq!(look(&mut written, &store).await, 2);
    }

    #[tokio::test]
    async fn its_labels_are_bounded() {
        let store = DeadLetters::new(MemoryStore::new());
        let mut written = Written::default();
        look(&mut written, &store).await;
        let letters = (0..150).map(|n| letter_of(Message::new(format!("orders.{n}"), "{}"), n));
        store.put(letters.collect()).await.unwrap();
        look(&mut written, &store).await;
        assert_eq!(look(&mut written, &store).await, 150);
        let topics: BTreeSet<_> = written.counts().map(|(topic, _, _)| topic.to_owned()).collect();
        assert_eq!((topics.len(), topics.contains(OTHER)), (MOST + 1, true));
    }
}

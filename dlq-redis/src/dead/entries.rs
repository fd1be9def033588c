//! Entries of a stream of dead letters that is read without a trace.

use std::collections::VecDeque;
use std::time::Duration;

use dlq_core::log::{Entries, Entry, Range};
use dlq_core::{StoreError, Timestamp};
use tokio::time::sleep;

use super::letters::{READING, RedisLetters, place_of, say_sent};
use super::passed::Passed;
use super::scan::{self, EntryId, Pages, Raw};

/// Pause of a reading without an end before it looks again.
const LOOK: Duration = Duration::from_millis(200);

/// Entries of a range.
#[derive(Debug)]
pub(super) struct ReadEntries {
    letters: RedisLetters,
    pages: Pages,
    /// The place of the last entry that was fetched.
    after: Option<EntryId>,
    /// The last place that is wanted; `None` where there is no end.
    to: Option<EntryId>,
    fetched: VecDeque<Raw>,
    /// Read, and not yet yielded.
    read: Vec<Entry>,
    passed: Passed,
}

impl ReadEntries {
    pub(super) async fn open(letters: RedisLetters, range: Range) -> Result<Self, StoreError> {
        let stands = letters.stands().await?;
        let mut from = range.from.first().map(place_of);
        if let Some(since) = range.since {
            from = from.max(Some((millis(since), 0)));
        }
        // Pages begin behind a place, and `from` itself is wanted.
        let mut after = from.and_then(before);
        match range.last {
            Some(0) => after = after.max(Some(stands.last)),
            Some(last) if last < stands.entries => {
                let first = scan::nth_last(&letters.client, letters.stream(), last).await;
                let first = first.map_err(|error| error.for_store(READING))?;
                after = after.max(first.and_then(before));
            }
            _ => {}
        }
        Ok(Self {
            pages: Pages::new(),
            after,
            to: (!range.for_ever).then_some(stands.last),
            fetched: VecDeque::new(),
            read: Vec::new(),
            passed: Passed::default(),
            letters,
        })
    }
}

/// The millisecond in which something at this time can be written first.
pub(super) fn millis(time: Timestamp) -> u64 {
    let millis = time.since(Timestamp::EPOCH).as_nanos().div_ceil(1_000_000);
    u64::try_from(millis).unwrap_or(u64::MAX)
}

/// The place before this one; `None` for the first.
pub(super) fn before((millis, number): EntryId) -> Option<EntryId> {
    match number.checked_sub(1) {
        Some(number) => Some((millis, number)),
        None => millis.checked_sub(1).map(|millis| (millis, u64::MAX)),
    }
}

impl Entries for ReadEntries {
    async fn next(&mut self, limit: usize) -> Result<Vec<Entry>, StoreError> {
        let limit = limit.max(1);
        // What was read before a future was dropped is yielded by the next one.
        while self.read.is_empty() {
            if self.fetched.is_empty() {
                if self.to.is_some() && self.after >= self.to {
                    self.passed.tell();
                    return Ok(Vec::new());
                }
                let (client, stream) = (&self.letters.client, self.letters.stream());
                let page = self.pages.after(client, stream, self.after, self.to, usize::MAX);
                self.fetched = page.await.map_err(|error| error.for_running_store(READING))?;
                match (self.fetched.back(), self.to) {
                    (Some(last), _) => self.after = Some(last.place),
                    (None, Some(to)) => self.after = Some(to),
                    (None, None) => {
                        self.passed.tell();
                        sleep(LOOK).await;
                    }
                }
                continue;
            }
            let count = limit.min(self.fetched.len());
            let read = self.fetched.drain(..count).map(|raw| self.letters.entry(raw, false));
            self.read = read.collect();
            self.passed.note(&self.read);
        }
        say_sent(&self.letters, &mut self.read).await?;
        Ok(std::mem::take(&mut self.read))
    }

    async fn confirm(&mut self) -> Result<(), StoreError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_have_an_order_without_gaps() {
        assert_eq!(before((7, 3)), Some((7, 2)));
        assert_eq!(before((7, 0)), Some((6, u64::MAX)));
        assert_eq!(before((0, 0)), None);
        let at = |nanos| millis(Timestamp::from_nanos(nanos));
        assert_eq!([at(0), at(1), at(1_000_000), at(1_000_001)], [0, 1, 1, 2]);
    }
}

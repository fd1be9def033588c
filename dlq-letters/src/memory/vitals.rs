use std::collections::{BTreeMap, BTreeSet};

use dlq_core::store::{Due, Vitals, Waiting, reading};
use dlq_core::{Filter, LetterId, Timestamp};

use super::world::{DueKey, World};
use crate::Row;

impl World {
    /// Returns the facts that the store knows without a search; the counts look at every letter here.
    pub(super) fn vitals(&self, now: Timestamp) -> Vitals {
        let stats = reading::stats(self.matching(&Filter::new()));
        let mut vitals = Vitals::new(now);
        vitals.oldest_unresolved = stats.oldest_unresolved;
        vitals.newest = stats.newest;
        vitals.operations = self.campaigns.iter().map(|one| one.operation.clone()).collect();
        vitals.processed = self.processed.len() as u64;
        let of_consumer = |line| self.waiting([line], now, Vitals::MOST);
        let waits = |(since, row): (Timestamp, &Row)| Waiting {
            status: row.letter.state.status,
            consumer: row.letter.consumer.clone(),
            since,
        };
        vitals.waiting = self.lines.values().flat_map(of_consumer).map(waits).collect();
        let last = |line: &BTreeSet<DueKey>| {
            let (due, _, id) = line.last()?;
            Some(waits((*due, self.rows.get(id)?)))
        };
        vitals.latest = self.lines.values().filter_map(last).collect();
        vitals
    }

    /// Letters that wait, by consumer.
    pub(super) fn due_by_consumer(&self, now: Timestamp, latest: Timestamp) -> Vec<Due> {
        let mut found = BTreeMap::new();
        for (since, row) in self.waiting(self.lines.values(), now, Due::MOST) {
            let consumer = &row.letter.consumer;
            let of_it = found.entry(consumer).or_insert_with(|| Due {
                consumer: consumer.clone(),
                letters: 0,
                overdue: 0,
                since,
            });
            of_it.letters += 1;
            of_it.overdue += u64::from(since <= latest);
        }
        found.into_values().collect()
    }

    /// Returns those of these rows that have waited longest to be claimed.
    fn waiting<'w>(
        &'w self,
        lines: impl IntoIterator<Item = &'w BTreeSet<DueKey>>,
        now: Timestamp,
        most: u32,
    ) -> impl Iterator<Item = (Timestamp, &'w Row)> {
        let due = ..=(now, Timestamp::MAX, LetterId::from_bytes([u8::MAX; 16]));
        let mut waiting: Vec<_> = lines.into_iter().flat_map(|line| line.range(due)).collect();
        waiting.sort_unstable();
        waiting.truncate(most as usize);
        waiting.into_iter().filter_map(|(since, _, id)| Some((*since, self.rows.get(id)?)))
    }
}

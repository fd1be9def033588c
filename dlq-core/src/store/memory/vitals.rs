use super::super::{Vitals, Waiting, reading};
use super::world::World;
use crate::{Filter, LetterId, Timestamp};

impl World {
    /// What is known of the store without looking for it; the counts look at every letter here.
    pub(super) fn vitals(&self, now: Timestamp) -> Vitals {
        let stats = reading::stats(self.matching(&Filter::new()));
        let mut vitals = Vitals::new(now);
        vitals.oldest_unresolved = stats.oldest_unresolved;
        vitals.newest = stats.newest;
        vitals.operations = self.campaigns.iter().map(|one| one.operation.clone()).collect();
        vitals.processed = self.processed.len() as u64;
        let due = ..=(now, Timestamp::MAX, LetterId::from_bytes([u8::MAX; 16]));
        let mut waiting: Vec<_> = self.lines.values().flat_map(|line| line.range(due)).collect();
        waiting.sort_unstable();
        waiting.truncate(Vitals::MOST as usize);
        let rows =
            waiting.into_iter().filter_map(|(since, _, id)| Some((since, self.rows.get(id)?)));
        vitals.waiting = rows
            .map(|(since, row)| Waiting {
                status: row.letter.state.status,
                consumer: row.letter.consumer.clone(),
                since: *since,
            })
            .collect();
        vitals
    }
}

use dlq_core::store::{Group, Hours, Letters, Stats, reading};
use dlq_core::{DeadLetter, Filter, LetterId, Page, PageRequest, StoreError, Timestamp};

use super::MemoryStore;

impl Letters for MemoryStore {
    async fn get(&self, id: LetterId) -> Result<Option<DeadLetter>, StoreError> {
        Ok(self.world().rows.get(&id).map(|row| row.letter.clone()))
    }

    async fn get_all(&self, ids: Vec<LetterId>) -> Result<Vec<DeadLetter>, StoreError> {
        let world = self.world();
        let rows = ids.iter().filter_map(|id| world.rows.get(id));
        Ok(rows.map(|row| row.letter.clone()).collect())
    }

    async fn with_prefix(&self, digits: String, limit: u32) -> Result<Vec<LetterId>, StoreError> {
        Ok(reading::with_prefix(&self.world().rows, &digits, limit))
    }

    async fn list(&self, filter: Filter, page: PageRequest) -> Result<Page, StoreError> {
        let world = self.world();
        let letter = |id: &LetterId| world.rows.get(id).map(|row| &row.letter);
        Ok(reading::page(&world.by_age, letter, &filter, page))
    }

    async fn count(&self, filter: Filter) -> Result<u64, StoreError> {
        Ok(self.world().matching(&filter).count() as u64)
    }

    async fn groups(&self, filter: Filter, limit: u32) -> Result<Vec<Group>, StoreError> {
        Ok(reading::groups(self.world().matching(&filter), limit))
    }

    async fn stats(&self, filter: Filter) -> Result<Stats, StoreError> {
        Ok(reading::stats(self.world().matching(&filter)))
    }

    async fn hours(
        &self,
        filter: Filter,
        since: Timestamp,
        hours: u32,
    ) -> Result<Hours, StoreError> {
        let mut found = Hours::new(since, hours);
        self.world().matching(&filter).for_each(|letter| found.add(&letter.state));
        Ok(found)
    }
}

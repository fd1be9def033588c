//! Plans of operations.

use dlq_core::Order;
use dlq_core::store::{OperationSpec, Plan};
use dlq_letters::Depth;

use super::Inner;
use super::codec::StoredRow;
use super::fault::Result;
use super::search::Search;
use super::select::is_free;

/// The most letters that a plan shows.
const SAMPLE: usize = 10;

impl Inner {
    pub(super) async fn plan_replay(&self, spec: &OperationSpec) -> Result<Plan> {
        let mut plan = Plan::default();
        let mut free = Vec::new();
        let search = Search::plan(&self.link, &spec.filter).await?;
        let see = |found: StoredRow| {
            let letter = &found.row.letter;
            if is_free(&found.row) {
                let is_past_cap = spec.is_past_cap(letter.state.replays);
                free.push((letter.state.created_at, letter.id, is_past_cap));
            } else {
                *plan.ineligible.entry(letter.state.status).or_default() += 1;
            }
        };
        // Letters are only counted and noted here, as a plan may concern millions of them.
        search.visit(&self.link, see).await?;
        free.sort_unstable();
        if spec.order == Order::NewestFirst {
            free.reverse();
        }
        let limit = spec.limit.and_then(|limit| usize::try_from(limit).ok());
        free.truncate(limit.unwrap_or(usize::MAX));
        plan.count = free.len() as u64;
        plan.past_cap = free.iter().filter(|(.., is_past_cap)| *is_past_cap).count() as u64;
        // Only these are read again: to keep all that were visited could take much memory.
        let ids: Vec<_> = free.iter().take(SAMPLE).map(|(_, id, _)| *id).collect();
        let sample = self.link.letters(ids, Depth::Head).await?.into_iter();
        plan.sample = sample.filter_map(|(_, found)| Some(found?.summary())).collect();
        Ok(plan)
    }
}

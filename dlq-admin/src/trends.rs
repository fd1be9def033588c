//! Letters of a store hour by hour. They are counted anew only now and then, since a count looks at every letter of a week.

use std::collections::HashMap;
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;

use dlq_core::store::Hours;
use dlq_core::{DeadLetters, Filter, StoreError};
use tokio::sync::Mutex;
use tokio::time::Instant;

/// Time for which a count is shown at least.
const KEPT: Duration = Duration::from_secs(30);
/// Share of its time that a store spends on counts at most, as its inverse.
// A count looks at far more letters than a poll of the overview.
const SHARE: u32 = 20;

/// When a count was made, how long that took, and what it was.
type Counted = Option<(Instant, Duration, Arc<Hours>)>;

/// Latest counts by the name of their store.
#[derive(Debug, Default)]
pub(crate) struct Trends(StdMutex<HashMap<String, Arc<Mutex<Counted>>>>);

impl Trends {
    /// Returns the letters of the last week by hour. Whoever asks while they are counted waits for the same count.
    pub(crate) async fn week(
        &self,
        store: &str,
        letters: &DeadLetters,
    ) -> Result<Arc<Hours>, StoreError> {
        let counted = {
            // The map is locked for the look-up alone; the count of one store does not keep pages of others waiting.
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(all.entry(store.to_owned()).or_default())
        };
        let mut counted = counted.lock().await;
        if let Some((at, took, hours)) = &*counted
            && at.elapsed() < KEPT.max(*took * SHARE)
        {
            return Ok(Arc::clone(hours));
        }
        let began = Instant::now();
        // The time that a count took is measured with the lock held, so it has no waiting for others in it.
        let hours = Arc::new(letters.hours(Filter::new(), Hours::WEEK).await?);
        *counted = Some((Instant::now(), began.elapsed(), Arc::clone(&hours)));
        Ok(hours)
    }
}

#[cfg(test)]
mod tests {
    use dlq_letters::memory::MemoryStore;
    use dlq_testkit::fixtures::letter;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_store_is_counted_now_and_then() {
        let (trends, letters) = (Trends::default(), DeadLetters::new(MemoryStore::new()));
        let stored = async || {
            let week = trends.week("a", &letters).await.unwrap();
            week.stored.iter().sum::<u64>()
        };
        assert_eq!(stored().await, 0);
        letters.put(vec![letter(1)]).await.unwrap();
        assert_eq!(stored().await, 0);
        tokio::time::advance(KEPT).await;
        assert_eq!(stored().await, 1);
    }
}

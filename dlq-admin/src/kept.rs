//! Counts for pages. A count that took long is shown again for a while, since it may have looked at every letter of a store.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError};
use std::time::Duration;

use dlq_core::{Clock as _, SystemClock, Timestamp};
use tokio::sync::Mutex;
use tokio::time::Instant;

/// Time from which on a count takes long. Others are made anew for each page.
const LONG: Duration = Duration::from_millis(200);
/// Share of its time that a store spends on a count at most, as its inverse.
const SHARE: u32 = 20;
/// Number of counts that are kept.
const MOST: usize = 32;

/// Identity of a count: its store, and the parameters of its page.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Question {
    pub(crate) store: String,
    pub(crate) asks: blake3::Hash,
}

/// Count, and when it was made.
#[derive(Debug)]
pub(crate) struct Counted<T> {
    pub(crate) value: T,
    pub(crate) at: Timestamp,
    since: Instant,
    took: Duration,
}

impl<T> Counted<T> {
    /// Returns true if it is shown again.
    fn is_current(&self, long: Duration, max_age: Duration) -> bool {
        let life = self.took.max(LONG) * SHARE;
        self.took >= long && self.since.elapsed() < life.min(max_age)
    }
}

type Latest<T> = Arc<Mutex<Option<Arc<Counted<T>>>>>;

/// Latest counts of one page.
#[derive(Debug)]
pub(crate) struct Kept<T> {
    latest: StdMutex<HashMap<Question, Latest<T>>>,
    /// Time from which on a count is kept.
    pub(crate) long: Duration,
}

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self { latest: StdMutex::default(), long: LONG }
    }
}

impl<T> Kept<T> {
    /// Returns the count that is kept, or else makes it. Whoever asks while it is made waits for it.
    pub(crate) async fn get<E>(
        &self,
        question: Question,
        max_age: Duration,
        count: impl Future<Output = Result<T, E>>,
    ) -> Result<Arc<Counted<T>>, E> {
        let latest = self.latest(question);
        // Cancel safety: a request that is dropped while it counts releases the lock, and the next one counts.
        let mut latest = latest.lock().await;
        if let Some(counted) =
            latest.as_ref().filter(|counted| counted.is_current(self.long, max_age))
        {
            return Ok(Arc::clone(counted));
        }
        // The time is that of the beginning: what is stored meanwhile may be missing.
        let (since, at) = (Instant::now(), SystemClock.now());
        let value = count.await?;
        let counted = Arc::new(Counted { value, at, since, took: since.elapsed() });
        *latest = Some(Arc::clone(&counted));
        Ok(counted)
    }

    /// Forgets all counts of a store. Counts that are being made are shown to those who wait for them, and to nobody else.
    pub(crate) fn forget(&self, store: &str) {
        self.all().retain(|question, _| question.store != store);
    }

    fn latest(&self, question: Question) -> Latest<T> {
        let mut all = self.all();
        if let Some(latest) = all.get(&question) {
            return Arc::clone(latest);
        }
        if all.len() >= MOST {
            // Visitors choose what is counted, so the number is bounded. Those that are being made or waited for stay.
            let other = all.iter().find(|(_, latest)| Arc::strong_count(latest) == 1);
            if let Some(other) = other.map(|(other, _)| other.clone()) {
                all.remove(&other);
            }
        }
        Arc::clone(all.entry(question).or_default())
    }

    fn all(&self) -> MutexGuard<'_, HashMap<Question, Latest<T>>> {
        // The map is locked for a look-up alone: a count of one store does not keep pages of others waiting.
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::time::{advance, sleep};

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn of(store: &str, asks: u32) -> Question {
        Question { store: store.to_owned(), asks: blake3::hash(&asks.to_le_bytes()) }
    }

    /// Counts that take a while, and say how many were made.
    struct Store {
        kept: Kept<u32>,
        made: AtomicU32,
        takes: Duration,
        max_age: Duration,
    }

    impl Store {
        fn taking(takes: Duration) -> Self {
            Self { kept: Kept::default(), made: AtomicU32::new(0), takes, max_age: MINUTE }
        }

        async fn ask(&self, question: Question) -> u32 {
            let count = async {
                sleep(self.takes).await;
                Ok::<_, ()>(self.made.fetch_add(1, Ordering::Relaxed) + 1)
            };
            self.kept.get(question, self.max_age, count).await.unwrap().value
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_count_that_took_long_is_shown_again_for_a_while() {
        let store = Store::taking(Duration::from_secs(1));
        assert_eq!(store.ask(of("a", 0)).await, 1);
        advance(Duration::from_secs(18)).await;
        assert_eq!(store.ask(of("a", 0)).await, 1);
        advance(Duration::from_secs(2)).await;
        assert_eq!(store.ask(of("a", 0)).await, 2);
        assert_eq!((store.ask(of("a", 1)).await, store.ask(of("b", 0)).await), (3, 4));
    }

    #[tokio::test(start_paused = true)]
    async fn a_count_that_is_quick_or_must_not_be_old_is_made_anew() {
        let quick = Store::taking(LONG - Duration::from_millis(1));
        assert_eq!((quick.ask(of("a", 0)).await, quick.ask(of("a", 0)).await), (1, 2));
        let mut slow = Store::taking(Duration::from_secs(30));
        let asked = slow.ask(of("a", 0)).await;
        advance(Duration::from_secs(29)).await;
        assert_eq!((asked, slow.ask(of("a", 0)).await), (1, 1), "of {:?} at most", slow.max_age);
        advance(Duration::from_secs(1)).await;
        assert_eq!(slow.ask(of("a", 0)).await, 2);
        slow.max_age = Duration::ZERO;
        assert_eq!(slow.ask(of("a", 0)).await, 3);
    }

    #[tokio::test(start_paused = true)]
    async fn those_who_ask_at_once_wait_for_one_count() {
        let store = Store::taking(Duration::from_secs(1));
        let all = futures_util::future::join_all((0..50).map(|_| store.ask(of("a", 0)))).await;
        assert_eq!(all, vec![1; 50]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_makes_counts_forgotten_also_while_they_are_made() {
        let store = Store::taking(Duration::from_secs(1));
        let _ = store.ask(of("b", 0)).await;
        let (before, ()) = tokio::join!(store.ask(of("a", 0)), async {
            sleep(Duration::from_millis(500)).await;
            store.kept.forget("a");
        });
        assert_eq!((before, store.ask(of("a", 0)).await), (2, 3));
        assert_eq!(store.ask(of("b", 0)).await, 1, "of another store");
    }

    #[tokio::test(start_paused = true)]
    async fn visitors_cannot_fill_the_memory_with_counts() {
        let store = Store::taking(LONG);
        for asks in 0..3 * MOST as u32 {
            let _ = store.ask(of("a", asks)).await;
        }
        assert_eq!(store.kept.all().len(), MOST);
    }
}

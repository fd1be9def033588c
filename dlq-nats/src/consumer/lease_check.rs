//! [`LeaseCheck`]: something that is looked at once in a lease.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

/// Looks at something once in a lease, beside what else is done.
#[derive(Debug)]
pub(crate) struct LeaseCheck<T> {
    looked: Instant,
    looking: JoinSet<T>,
}

impl<T> Default for LeaseCheck<T> {
    /// It was looked just now.
    fn default() -> Self {
        Self { looked: Instant::now(), looking: JoinSet::new() }
    }
}

impl<T: Send + 'static> LeaseCheck<T> {
    /// Returns the result of the look, once.
    pub(crate) fn seen(&mut self) -> Option<T> {
        // A look that panicked has no result; the next one comes after another lease.
        self.looking.try_join_next()?.ok()
    }

    /// Looks again when it is time.
    pub(crate) fn again<F>(&mut self, lease: Duration, look: impl FnOnce() -> F)
    where
        F: Future<Output = T> + Send + 'static,
    {
        // There is one look at a time, however long it takes: a caller that never waits does not drop it.
        if self.looking.is_empty() && self.looked.elapsed() >= lease {
            self.looked = Instant::now();
            self.looking.spawn(look());
        }
    }
}

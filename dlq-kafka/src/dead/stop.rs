use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

/// Says that a replay is to end, to whoever works for it, of whom one waits at a time.
#[derive(Debug, Default)]
pub(crate) struct Stop {
    is_set: AtomicBool,
    news: Notify,
}

impl Stop {
    pub(crate) fn set(&self) {
        self.is_set.store(true, Ordering::SeqCst);
        self.news.notify_one();
    }

    pub(crate) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::SeqCst)
    }

    /// Waits until then, or until it is set.
    pub(crate) async fn wait_until(&self, then: Instant) {
        if !self.is_set() {
            // Whether it is set is asked again by whoever goes on.
            drop(timeout_at(then, self.news.notified()).await);
        }
    }
}

/// Sets it when this is dropped, as by whoever waits for what is done.
pub(crate) struct StopOnDrop(pub(crate) Arc<Stop>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.set();
    }
}

//! Messages of this process that wait for a key which another message has in flight.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use tokio_util::sync::CancellationToken;

/// The keys that are waited for. Clones share them.
#[derive(Clone, Default)]
pub(super) struct Waiters(Arc<Keys>);

#[derive(Default)]
struct Keys {
    /// Number of keys: read without the lock at the end of each claim, changed under it.
    count: AtomicUsize,
    waited_for: Mutex<HashMap<Bytes, Weak<Waiter>>>,
}

/// Shared waiter of all messages that wait for a key.
pub(super) struct Waiter {
    keys: Arc<Keys>,
    key: Bytes,
    ended: CancellationToken,
}

impl Waiters {
    /// Joins those who wait for `key`. Whoever ended before is not heard of.
    pub(super) fn join(&self, key: Bytes) -> Arc<Waiter> {
        let mut waited_for = self.0.lock();
        if let Some(waiter) = waited_for.get(&key).and_then(Weak::upgrade) {
            return waiter;
        }
        let (keys, ended) = (Arc::clone(&self.0), CancellationToken::new());
        let waiter = Arc::new(Waiter { keys, key: key.clone(), ended });
        // Held weakly, so that a key is forgotten with the last of those who wait for it.
        waited_for.insert(key, Arc::downgrade(&waiter));
        self.0.count.store(waited_for.len(), Ordering::SeqCst);
        waiter
    }

    /// Wakes those who wait for `key`.
    #[inline]
    pub(super) fn wake(&self, key: &Bytes) {
        // A message that joins just after this look is not woken. Its first question to the store finds the key free.
        if self.0.count.load(Ordering::SeqCst) > 0 {
            self.0.wake(key);
        }
    }
}

impl Keys {
    fn lock(&self) -> MutexGuard<'_, HashMap<Bytes, Weak<Waiter>>> {
        self.waited_for.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cold]
    fn wake(&self, key: &Bytes) {
        let mut waited_for = self.lock();
        let waiter = waited_for.remove(key);
        self.count.store(waited_for.len(), Ordering::SeqCst);
        // Before the last of them may be dropped here, which takes the lock again.
        drop(waited_for);
        if let Some(waiter) = waiter.and_then(|waiter| waiter.upgrade()) {
            waiter.ended.cancel();
        }
    }
}

impl Waiter {
    /// Waits until somebody in this process is done with the key.
    pub(super) async fn ended(&self) {
        self.ended.cancelled().await;
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut waited_for = self.keys.lock();
        // Others may have begun to wait for the key meanwhile.
        if waited_for.get(&self.key).is_some_and(|waiter| waiter.strong_count() == 0) {
            waited_for.remove(&self.key);
        }
        self.keys.count.store(waited_for.len(), Ordering::SeqCst);
    }
}

impl fmt::Debug for Waiters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiters").field("count", &self.0.count).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn who_waits_is_woken_and_who_left_is_forgotten() {
        let waiters = Waiters::default();
        let key = |key: &'static str| Bytes::from_static(key.as_bytes());
        let (first, second, other) =
            (waiters.join(key("a")), waiters.join(key("a")), waiters.join(key("b")));
        waiters.wake(&key("a"));
        assert!(first.ended().now_or_never().is_some() && second.ended().now_or_never().is_some());
        assert!(other.ended().now_or_never().is_none());
        let again = waiters.join(key("a"));
        assert!(again.ended().now_or_never().is_none(), "it is in flight once more");
        drop((first, second));
        waiters.wake(&key("a"));
        assert!(again.ended().now_or_never().is_some());
        drop((other, again));
        assert!(waiters.0.lock().is_empty());
        assert_eq!(waiters.0.count.load(Ordering::SeqCst), 0);
    }
}

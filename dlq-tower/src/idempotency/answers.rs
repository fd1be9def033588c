use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dlq_core::StoreError;

/// True if the store answers when a key is to be claimed, and who wants to hear of it. Clones share it.
#[derive(Clone, Default)]
pub(super) struct Answers(Arc<State>);

#[derive(Default)]
struct State {
    /// Read without the lock for each message; changed under it, together with what was told.
    is_failing: AtomicBool,
    listeners: Mutex<Vec<Listener>>,
}

type Listener = Box<dyn Fn(Option<&StoreError>) + Send + Sync>;

impl Answers {
    /// Tells `listener` of each error, and of the first answer after one. Consumers that share a store have one each.
    pub(super) fn told_to(&self, listener: impl Fn(Option<&StoreError>) + Send + Sync + 'static) {
        self.lock().push(Box::new(listener));
    }

    /// The store has answered.
    #[inline]
    pub(super) fn works(&self) {
        if self.0.is_failing.load(Ordering::Relaxed) {
            self.change(None);
        }
    }

    /// The store has not answered.
    #[cold]
    pub(super) fn failed(&self, error: &StoreError) {
        self.change(Some(error));
    }

    #[cold]
    fn change(&self, error: Option<&StoreError>) {
        let listeners = self.lock();
        // The flag changes under the lock, so that the listener hears of changes in their order.
        self.0.is_failing.store(error.is_some(), Ordering::Relaxed);
        listeners.iter().for_each(|listener| listener(error));
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Listener>> {
        self.0.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Answers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answers").field("is_failing", &self.0.is_failing).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use dlq_core::StoreErrorKind;

    use super::*;

    /// Two consumers may share the keys.
    #[test]
    fn each_listener_hears_of_each_change() {
        let (answers, heard) = (Answers::default(), [const { AtomicU32::new(0) }; 2].map(Arc::new));
        for heard in heard.clone() {
            answers.clone().told_to(move |_| {
                heard.fetch_add(1, Ordering::Relaxed);
            });
        }
        answers.failed(&StoreError::new(StoreErrorKind::Unavailable, "claim a key"));
        answers.works();
        answers.works();
        assert_eq!(heard.map(|heard| heard.load(Ordering::Relaxed)), [2, 2]);
    }
}

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use dlq_core::StoreError;

/// True if the store answers when a key is to be claimed, and who wants to hear of it. Clones share it.
#[derive(Clone, Default)]
pub(super) struct Answers(Arc<State>);

#[derive(Default)]
struct State {
    /// Read without the lock for each message; changed under it, together with what was told.
    is_failing: AtomicBool,
    told: Mutex<()>,
    listener: OnceLock<Listener>,
}

type Listener = Box<dyn Fn(Option<&StoreError>) + Send + Sync>;

impl Answers {
    /// Tells `listener` of each error, and of the first answer after one. The first listener stays.
    pub(super) fn told_to(&self, listener: impl Fn(Option<&StoreError>) + Send + Sync + 'static) {
        let _ = self.0.listener.set(Box::new(listener));
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
        let _told = self.lock();
        // The flag changes under the lock, so that the listener hears of changes in their order.
        self.0.is_failing.store(error.is_some(), Ordering::Relaxed);
        if let Some(listener) = self.0.listener.get() {
            listener(error);
        }
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.0.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Answers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answers").field("is_failing", &self.0.is_failing).finish_non_exhaustive()
    }
}

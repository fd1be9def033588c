use std::panic::{AssertUnwindSafe, catch_unwind};

use dlq_core::DeadLetter;

/// Is told of each death once its letter is durable, before the broker is told.
///
/// The record of a letter that came from a store is its row there, and the row is written when the message is settled, just
/// after the hook was called. A process that dies in between has told of a death that the store does not have: the letter
/// is claimed again, and may succeed then.
///
/// It is called at least once per death: again when the message comes back because the broker was not reached.
/// [`DeadLetter::death`] tells repetitions apart. It must not block; a panic in it is logged and changes nothing.
///
/// Implemented for closures `Fn(&DeadLetter)` and, doing nothing, for `()`.
pub trait OnDeath: Send + Sync + 'static {
    /// A message died.
    fn on_death(&self, letter: &DeadLetter);
}

impl OnDeath for () {
    fn on_death(&self, _: &DeadLetter) {}
}

impl<F: Fn(&DeadLetter) + Send + Sync + 'static> OnDeath for F {
    fn on_death(&self, letter: &DeadLetter) {
        self(letter);
    }
}

/// Runs what a user gave us; a panic in it is logged, and must not lose the message that it was called for.
pub(super) fn guarded<T>(what: &str, run: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(run))
        .inspect_err(|_| tracing::error!(what, "a function given to dead-letter routing panicked"))
        .ok()
}

use std::fmt;

use dlq_core::StoreError;

use crate::{Needs, Rows};

/// A call on a store as a value: it decides over rows in plain memory, and has no effect of its own.
///
/// A backend may call [`decide`](Self::decide) any number of times, always over rows without the changes of an earlier
/// call.
pub trait Verb: fmt::Debug + Send + Sync + 'static {
    /// The answer of the call.
    type Output: Send + 'static;

    /// True if the call must not run again once the answer to its commit was lost, because a second run would not find
    /// that the first has happened.
    const ONCE: bool = false;

    /// Adds what is known beforehand to be needed. It is a saving only: whatever is missing is asked for later.
    fn needs(&self, needs: &mut Needs);

    /// Decides what changes, by calls on `rows`.
    ///
    /// # Errors
    ///
    /// [`Stop::Missing`] if rows were not loaded; `rows` knows which. A verb on many letters goes on past the first, so that
    /// all that is missing is loaded at once. [`Stop::Failed`] if the call is refused; nothing is changed then.
    fn decide(&self, rows: &mut Rows) -> Result<Self::Output, Stop>;
}

/// The reason why a verb did not decide.
#[derive(Debug)]
pub enum Stop {
    /// Rows were not loaded; [`Rows`] knows which.
    Missing,
    /// The call fails with this error.
    Failed(StoreError),
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Self {
        Self::Failed(error)
    }
}

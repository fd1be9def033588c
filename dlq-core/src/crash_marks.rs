//! [`CrashMarks`]: durable marks by which a message that kills the process is found.
//!
//! A message that was handed out again and again without a record that explains it is a suspect. It runs alone, and a
//! mark is written before the run and removed after it. A mark that is still there when the message comes back is a
//! run that ended with the process.
//!
//! Explanations of deliveries are kept here, too: a process that is stopped gives messages back, and a broker counts that like
//! the delivery of one whose process died.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::{LetterId, StoreError};

/// Counts runs that began and did not end, durably.
pub trait CrashMarks: fmt::Debug + Send + Sync + 'static {
    /// Notes durably that a run of this message begins, and returns how many earlier runs began and did not end.
    ///
    /// # Errors
    ///
    /// When the mark is not known to be durable; the message is then not run now. `Conflict` when it is known that
    /// another process has the message: then it is not run here at all.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves it open whether the mark is durable. A mark that stays counts as a crash until
    /// [`end`](Self::end) removes it.
    fn begin(&self, letter: LetterId) -> impl Future<Output = Result<u32, StoreError>> + Send;

    /// The run has ended, and leaves at most so many marks of this message: none when it is over, and when it is to run
    /// again those that were there [before](Self::begin), which are of other runs. Never adds one, and may be told twice.
    /// Not told while the message is given up for its crashes and the broker does not know of it, so nothing else may
    /// take its marks away: not that it is given back, nor that its delivery is dropped.
    ///
    /// # Errors
    ///
    /// When it is not known whether the marks are gone: other processes count what is left as a crash.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves it open whether the marks are gone. It may be told again.
    fn end(
        &self,
        letter: LetterId,
        left: u32,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Notes durably that one delivery of this message ended in good order: an orderly stop gave it back, or cut off its
    /// run. Defaults to a mark under another identity. Not told where the transport [does not
    /// count](crate::Capabilities::counts_stops) such deliveries.
    ///
    /// # Errors
    ///
    /// When that is not known to be durable.
    fn explain(&self, letter: LetterId) -> impl Future<Output = Result<(), StoreError>> + Send {
        async move { self.begin(good_ends(letter)).await.map(drop) }
    }

    /// Number of deliveries of this message that were [explained](Self::explain).
    ///
    /// # Errors
    ///
    /// When it cannot be found out.
    fn explained(&self, letter: LetterId) -> impl Future<Output = Result<u32, StoreError>> + Send {
        async move {
            // A process that dies in between leaves one delivery more explained than were.
            let explained = self.begin(good_ends(letter)).await?;
            self.end(good_ends(letter), explained).await?;
            Ok(explained)
        }
    }

    /// Forgets the explained deliveries of a message that is over.
    ///
    /// # Errors
    ///
    /// When it is not known whether they are forgotten.
    fn forget_explained(
        &self,
        letter: LetterId,
    ) -> impl Future<Output = Result<(), StoreError>> + Send {
        async move { self.end(good_ends(letter), 0).await }
    }
}

/// Under which identity good ends of a message's deliveries are counted where there is no other place for them.
fn good_ends(letter: LetterId) -> LetterId {
    // No message has this identity, but by a chance that hashes rule out.
    LetterId::from_bytes(letter.as_bytes().map(|byte| !byte))
}

type Erased<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

trait DynCrashMarks: fmt::Debug + Send + Sync {
    fn begin(&self, letter: LetterId) -> Erased<'_, u32>;
    fn end(&self, letter: LetterId, left: u32) -> Erased<'_, ()>;
    fn explain(&self, letter: LetterId) -> Erased<'_, ()>;
    fn explained(&self, letter: LetterId) -> Erased<'_, u32>;
    fn forget_explained(&self, letter: LetterId) -> Erased<'_, ()>;
}

impl<M: CrashMarks> DynCrashMarks for M {
    fn begin(&self, letter: LetterId) -> Erased<'_, u32> {
        Box::pin(CrashMarks::begin(self, letter))
    }

    fn end(&self, letter: LetterId, left: u32) -> Erased<'_, ()> {
        Box::pin(CrashMarks::end(self, letter, left))
    }

    fn explain(&self, letter: LetterId) -> Erased<'_, ()> {
        Box::pin(CrashMarks::explain(self, letter))
    }

    fn explained(&self, letter: LetterId) -> Erased<'_, u32> {
        Box::pin(CrashMarks::explained(self, letter))
    }

    fn forget_explained(&self, letter: LetterId) -> Erased<'_, ()> {
        Box::pin(CrashMarks::forget_explained(self, letter))
    }
}

/// Any crash marks, erased. Cheap to clone.
#[derive(Clone, Debug)]
pub struct BoxCrashMarks(Arc<dyn DynCrashMarks>);

impl BoxCrashMarks {
    /// Erases `marks`.
    #[must_use]
    pub fn new(marks: impl CrashMarks) -> Self {
        Self(Arc::new(marks))
    }
}

impl CrashMarks for BoxCrashMarks {
    async fn begin(&self, letter: LetterId) -> Result<u32, StoreError> {
        DynCrashMarks::begin(&*self.0, letter).await
    }

    async fn end(&self, letter: LetterId, left: u32) -> Result<(), StoreError> {
        DynCrashMarks::end(&*self.0, letter, left).await
    }

    async fn explain(&self, letter: LetterId) -> Result<(), StoreError> {
        DynCrashMarks::explain(&*self.0, letter).await
    }

    async fn explained(&self, letter: LetterId) -> Result<u32, StoreError> {
        DynCrashMarks::explained(&*self.0, letter).await
    }

    async fn forget_explained(&self, letter: LetterId) -> Result<(), StoreError> {
        DynCrashMarks::forget_explained(&*self.0, letter).await
    }
}

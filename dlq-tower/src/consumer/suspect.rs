//! A suspect that runs: its mark stands while an attempt runs, and not while it waits for the next one.

use std::fmt;
use std::future::{Future, pending};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dlq_core::{Death, DeliveredFrom, Delivery, Origin, StoreError, StoreErrorKind};
use tokio::sync::Notify;

use super::health::report;
use super::message::{ConsumerState, UNMARKED, Unmark};
use super::suspects::Suspicion;

/// A run of the stack for a message that does not run beside others.
pub(super) struct Suspect {
    shared: Arc<ConsumerState>,
    suspicion: Suspicion,
    origin: Origin,
    /// Crashes that came with it; only of a letter, whose claims the store counts.
    claims_lost: Option<u32>,
    /// Marks of runs before this one.
    earlier: AtomicU32,
    /// Returns why it is not run any more, and notes that this was found.
    not_run: Mutex<Option<NotRun>>,
    is_over: Notify,
}

/// The reason why a suspect is not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotRun {
    /// Another process has the message.
    Lost,
    /// No mark could be written.
    Unmarked,
}

impl Suspect {
    pub(super) fn new(
        shared: &Arc<ConsumerState>,
        suspicion: Suspicion,
        delivery: &Delivery,
    ) -> Self {
        Self {
            shared: Arc::clone(shared),
            suspicion,
            origin: delivery.origin().clone(),
            claims_lost: (delivery.delivered_from() == DeliveredFrom::Store)
                .then_some(delivery.crashes()),
            earlier: AtomicU32::new(0),
            not_run: Mutex::default(),
            is_over: Notify::new(),
        }
    }

    pub(super) fn suspicion(&self) -> Suspicion {
        self.suspicion
    }

    pub(super) fn is_marked(&self) -> bool {
        matches!(self.suspicion, Suspicion::Marked(_)) && self.shared.marks.is_some()
    }

    /// Number of marks that it leaves when it is not over.
    pub(super) fn earlier(&self) -> u32 {
        self.earlier.load(Ordering::Relaxed)
    }

    /// The stack is not to go on.
    pub(super) fn is_over(&self, why: NotRun) {
        *self.not_run.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
        // It keeps a permit, so that the news is not missed where nobody waits for it yet.
        self.is_over.notify_one();
    }

    /// Waits until the stack is not to go on.
    pub(super) async fn not_run(&self) -> NotRun {
        loop {
            self.is_over.notified().await;
            if let Some(why) = *self.not_run.lock().unwrap_or_else(PoisonError::into_inner) {
                return why;
            }
        }
    }

    /// Marks that an attempt begins, and returns how many earlier runs did not end.
    pub(super) async fn begin(&self, death: Death) -> Result<u32, StoreError> {
        // An error means that no mark is known to be durable, and then the attempt must not begin (G3).
        let begun = self.shared.mark(death).await?;
        // What a store counts are claims that were lost, while the letter ran or waited to run. Marks beyond them are of a
        // death before this one, whose settlement was not heard.
        let begun = self.claims_lost.map_or(begun, |known| begun.min(known));
        let earlier = self.shared.suspects.earlier(death, begun);
        self.earlier.store(earlier, Ordering::Relaxed);
        Ok(begun)
    }

    /// Marks that the next attempt begins; an error is how long it is not to be run.
    pub(super) async fn mark(&self) -> Result<(), Duration> {
        let Suspicion::Marked(death) = self.suspicion else { return Ok(()) };
        if !self.is_marked() {
            return Ok(());
        }
        let Err(error) = self.begin(death).await else { return Ok(()) };
        if self.refused(&error) == NotRun::Lost {
            // `ConsumerState::run` hears of it and drops the stack, and this future with it. Nothing
            // inside may go on until then.
            self.is_over(NotRun::Lost);
            pending::<()>().await;
        }
        Err(UNMARKED)
    }

    /// Says that a mark could not be written.
    pub(super) fn refused(&self, error: &StoreError) -> NotRun {
        // By the contract of `CrashMarks::begin`, a conflict says that another process has the message.
        if error.kind() == StoreErrorKind::Conflict {
            tracing::warn!(
                origin = %self.origin,
                error = report(error),
                "a suspect is not run here: it belongs to another process"
            );
            return NotRun::Lost;
        }
        tracing::error!(
            origin = %self.origin,
            error = report(error),
            "a crash mark could not be written; the suspect is not run"
        );
        NotRun::Unmarked
    }

    /// Removes the mark of an attempt that has ended; those of earlier runs stay.
    pub(super) fn unmark(&self) -> impl Future<Output = ()> + Send + use<> {
        let (shared, left) = (Arc::clone(&self.shared), self.earlier());
        let unmark = match self.suspicion {
            Suspicion::Marked(death) => Some(Unmark { death, left }),
            _ => None,
        };
        async move {
            if let Some(unmark) = unmark {
                shared.unmark(unmark).await;
            }
        }
    }
}

impl fmt::Debug for Suspect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Suspect")
            .field("suspicion", &self.suspicion)
            .field("origin", &self.origin)
            .finish_non_exhaustive()
    }
}

use std::sync::atomic::{AtomicU32, Ordering};

use dlq_core::{Escalation, History, RetryLane, StoreError, Timestamp};

/// Defect of a [`FaultyLane`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LaneFault {
    /// Records come at once, whatever they are due.
    Early,
    /// Writing the same record again makes another one.
    Repeats,
    /// Attempts start over at each hop (against G3).
    ForgetsAttempts,
    /// Records are confirmed and not written (against G1).
    Loses,
    /// Everybody hears of a record.
    TellsOthers,
}

/// A retry lane that breaks a promise.
#[derive(Debug)]
pub struct FaultyLane<L> {
    inner: L,
    fault: Option<LaneFault>,
    written: AtomicU32,
}

impl<L> FaultyLane<L> {
    /// Breaks a promise of `inner`; none, when there is no fault.
    #[must_use]
    pub fn new(inner: L, fault: Option<LaneFault>) -> Self {
        Self { inner, fault, written: AtomicU32::new(0) }
    }
}

impl<L: RetryLane> RetryLane for FaultyLane<L> {
    async fn escalate(&self, mut escalation: Escalation) -> Result<(), StoreError> {
        let written = self.written.fetch_add(1, Ordering::Relaxed);
        match self.fault {
            None => {}
            Some(LaneFault::Early) => escalation.due = Timestamp::EPOCH,
            Some(LaneFault::Repeats) => {
                // Another hop by its number, and so another record.
                escalation.delivery = escalation.delivery.with_escalations(100 + written);
            }
            Some(LaneFault::ForgetsAttempts) => {
                (escalation.attempts, escalation.history) = (0, History::new());
            }
            Some(LaneFault::Loses) => return Ok(()),
            Some(LaneFault::TellsOthers) => {
                for other in ["billing", "shipping"] {
                    let consumer = other.into();
                    self.inner.escalate(Escalation { consumer, ..escalation.clone() }).await?;
                }
                return Ok(());
            }
        }
        self.inner.escalate(escalation).await
    }
}

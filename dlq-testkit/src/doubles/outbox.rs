use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dlq_core::outbox::{Address, Outbox, Outgoing, Sent, Settled, Survey};
use dlq_core::replay::Skipped;
use dlq_core::store::Target;
use dlq_core::{DeadLetter, LetterId, StoreError, StoreErrorKind, Timestamp};
use tokio::sync::Notify;
use tokio::time::Instant;

/// Something that goes wrong in one call of [`FaultyOutbox::send`](Outbox::send).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OutboxFault {
    /// The process dies before anything is sent: the call never returns.
    DiesBefore,
    /// The process dies after everything was sent: the call never returns.
    DiesAfter,
    /// Everything is sent, and no answer comes back: each letter is unknown.
    LosesAnswers,
    /// Each letter is unknown, and is on its way until [`FaultyOutbox::deliver_late`].
    IsLate,
}

/// An outbox that fails as a test tells it to. Clones, which stand for several processes, share what was told.
#[derive(Clone, Debug)]
#[must_use]
pub struct FaultyOutbox<O> {
    inner: O,
    told: Arc<Told>,
}

#[derive(Debug, Default)]
struct Told {
    is_away: AtomicBool,
    is_unclear: AtomicBool,
    handed_over: AtomicU64,
    script: Mutex<Script>,
    died: Notify,
}

#[derive(Debug, Default)]
struct Script {
    next: VecDeque<OutboxFault>,
    refused: BTreeSet<LetterId>,
    late: Vec<Outgoing>,
}

impl<O> FaultyOutbox<O> {
    /// An outbox that does what `inner` does until it is told otherwise.
    pub fn new(inner: O) -> Self {
        Self { inner, told: Arc::default() }
    }

    /// Lets the next calls of `send` fail, one each, in this order.
    pub fn fail(&self, faults: impl IntoIterator<Item = OutboxFault>) {
        self.script().next.extend(faults);
    }

    /// Refuses this letter for good, alone.
    pub fn refuse(&self, letter: LetterId) {
        self.script().refused.insert(letter);
    }

    /// Sets whether the broker is away, for all calls that ask it.
    pub fn set_away(&self, is_away: bool) {
        self.told.is_away.store(is_away, Ordering::SeqCst);
    }

    /// Sets whether nobody can say what former senders sent.
    pub fn set_unclear(&self, is_unclear: bool) {
        self.told.is_unclear.store(is_unclear, Ordering::SeqCst);
    }

    /// Returns how many letters were handed to the outbox underneath to be sent.
    #[must_use]
    pub fn handed_over(&self) -> u64 {
        self.told.handed_over.load(Ordering::SeqCst)
    }

    /// Waits until a call has died.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn death(&self) {
        self.told.died.notified().await;
    }

    fn script(&self) -> MutexGuard<'_, Script> {
        self.told.script.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reach(&self) -> Result<(), StoreError> {
        if self.told.is_away.load(Ordering::SeqCst) {
            return Err(unavailable("the broker is away"));
        }
        Ok(())
    }

    async fn die<T>(&self) -> T {
        // A permit is left, so that a death that nobody waits for yet is seen later.
        self.told.died.notify_one();
        std::future::pending().await
    }
}

impl<O: Outbox> FaultyOutbox<O> {
    /// Delivers what is on its way, as a sender does that was stopped beyond its lease and goes on.
    ///
    /// # Errors
    ///
    /// The errors of the outbox underneath.
    pub async fn deliver_late(&self) -> Result<Vec<Sent>, StoreError> {
        let late = std::mem::take(&mut self.script().late);
        // The lease that these were sent under is over, and the outbox underneath refuses what is too late.
        self.inner.send(late, Instant::now() + Duration::from_secs(60)).await
    }
}

impl<O: Outbox> Outbox for FaultyOutbox<O> {
    fn transport(&self) -> &str {
        self.inner.transport()
    }

    fn cluster(&self) -> &str {
        self.inner.cluster()
    }

    fn sender(&self) -> &str {
        self.inner.sender()
    }

    fn route(&self, letter: &DeadLetter, to: &Target) -> Result<Address, Skipped> {
        self.inner.route(letter, to)
    }

    async fn survey(&self, to: BTreeSet<Address>) -> Result<Survey, StoreError> {
        self.reach()?;
        self.inner.survey(to).await
    }

    async fn send(&self, batch: Vec<Outgoing>, until: Instant) -> Result<Vec<Sent>, StoreError> {
        self.reach()?;
        let fault = self.script().next.pop_front();
        if fault == Some(OutboxFault::DiesBefore) {
            return self.die().await;
        }
        // The lock is given up before anything is awaited.
        let refused = {
            let script = self.script();
            let is_refused = |one: &Outgoing| script.refused.contains(&one.letter.id);
            batch.iter().map(is_refused).collect::<Vec<_>>()
        };
        let taken = batch.into_iter().zip(&refused);
        let taken: Vec<Outgoing> =
            taken.filter(|(_, refused)| !**refused).map(|(one, _)| one).collect();
        let count = taken.len();
        let unknown = || (0..count).map(|_| Sent::Unknown(unavailable("no answer came")));
        let sent = match fault {
            Some(OutboxFault::IsLate) => {
                self.script().late.extend(taken);
                unknown().collect()
            }
            _ => {
                // The count comes before the send, from which a process that dies does not return.
                self.told.handed_over.fetch_add(count as u64, Ordering::SeqCst);
                self.inner.send(taken, until).await?
            }
        };
        let sent: Vec<Sent> = match fault {
            // The broker has the letters by now, which only `settle` can find out.
            Some(OutboxFault::DiesAfter) => return self.die().await,
            Some(OutboxFault::LosesAnswers) => unknown().collect(),
            _ => sent,
        };
        // Answers of letters that were sent and refused go back into the order of the batch.
        let mut sent = sent.into_iter();
        let answer = |refused| {
            let error = || StoreError::new(StoreErrorKind::Refused, "send a letter back");
            if refused { Some(Sent::Refused(error().with_detail("told to"))) } else { sent.next() }
        };
        Ok(refused.into_iter().filter_map(answer).collect())
    }

    async fn settle(
        &self,
        sender: String,
        since: Timestamp,
        batch: Vec<Outgoing>,
    ) -> Result<Vec<Settled>, StoreError> {
        self.reach()?;
        if self.told.is_unclear.load(Ordering::SeqCst) {
            let unclear = |_| Settled::Unclear("told to".to_owned());
            return Ok(batch.iter().map(unclear).collect());
        }
        self.inner.settle(sender, since, batch).await
    }
}

fn unavailable(text: &str) -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, "send a letter back").with_detail(text)
}

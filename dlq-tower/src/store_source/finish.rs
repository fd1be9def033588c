//! Group commit: outcomes of claims that end at about the same time are recorded in one call of the store.
//!
//! There is no background task. Each caller puts its outcome into a queue and then waits for either its answer or the
//! leader lock. The caller that gets the lock takes up to [`BATCH`] outcomes from the queue, usually its own among
//! them, and writes them; outcomes that arrive meanwhile form the next batch.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dlq_core::store::{ClaimToken, Claims, Finish, Finished};
use dlq_core::{LetterId, StoreError};
use tokio::sync::oneshot;

use crate::backoff::Growing;
use crate::metrics::Recorder;

/// Maximum number of outcomes in one call of the store.
const BATCH: usize = 256;

/// First and longest delay before a letter runs again whose outcome the store refused.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(600);

/// Maximum number of letters whose delays are remembered, which bounds memory. Any further letter gets the longest delay.
const MAX_REMEMBERED: usize = 4096;

/// Reason why it is unknown whether an outcome was recorded. Try again: the token makes a second write change nothing.
#[derive(Debug)]
pub(super) enum Unfinished {
    /// The store returned an error, shared by all outcomes of the batch.
    Refused(Arc<StoreError>),
    /// The caller that was writing the batch was dropped before it had an answer.
    Interrupted,
}

#[derive(Debug)]
pub(super) struct Finisher<C> {
    claims: C,
    recorder: Recorder,
    queue: Mutex<VecDeque<Waiting>>,
    leader: tokio::sync::Mutex<()>,
    /// Letters whose outcomes were refused, and how long each waits the next time.
    refused: Mutex<HashMap<LetterId, Growing>>,
}

#[derive(Debug)]
struct Waiting {
    token: ClaimToken,
    finish: Finish,
    answer: oneshot::Sender<Result<Finished, Arc<StoreError>>>,
}

impl<C: Claims> Finisher<C> {
    pub(super) fn new(claims: C, recorder: Recorder) -> Self {
        let leader = tokio::sync::Mutex::new(());
        Self { claims, recorder, queue: Mutex::default(), leader, refused: Mutex::default() }
    }

    /// Returns the delay after which a letter may run again whose outcome the store refused. The delay doubles with each
    /// refusal of the same letter, so that a letter which can never be recorded does not run in a loop.
    pub(super) fn next_delay_after_refusal(&self, letter: LetterId) -> Duration {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        if refused.len() >= MAX_REMEMBERED && !refused.contains_key(&letter) {
            // A letter that is not remembered would else begin anew with each refusal and run in a loop.
            return LONGEST_WAIT;
        }
        let fresh = || Growing::new(FIRST_WAIT, LONGEST_WAIT);
        refused.entry(letter).or_insert_with(fresh).next()
    }

    /// Resets the delay of a letter, because its outcome was recorded.
    pub(super) fn forget_refusals(&self, letter: LetterId) {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).remove(&letter);
    }

    pub(super) fn claims(&self) -> &C {
        &self.claims
    }

    /// Returns the recorder that counts written letters.
    pub(super) fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// Records the end of a claim, in one call with others that end now.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not withdraw the outcome: it may be recorded already, or by a later leader. If this caller
    /// was writing a batch, the others in the batch get [`Unfinished::Interrupted`] and try again.
    pub(super) async fn finish(
        &self,
        token: ClaimToken,
        finish: Finish,
    ) -> Result<Finished, Unfinished> {
        let (answer, mut answered) = oneshot::channel();
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).push_back(Waiting {
            token,
            finish,
            answer,
        });
        loop {
            // Biased, the answer first: a caller whose outcome has been recorded must not write a batch for the others.
            tokio::select! {
                biased;
                result = &mut answered => {
                    return match result {
                        Ok(result) => result.map_err(Unfinished::Refused),
                        Err(_leader_was_dropped) => Err(Unfinished::Interrupted),
                    };
                }
                // No task writes in the background: whoever gets the lock writes for all who wait. The loop then looks for the
                // caller's own answer.
                _leader = self.leader.lock() => self.write_batch().await,
            }
        }
    }

    async fn write_batch(&self) {
        let batch: Vec<Waiting> = {
            let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            // The lock is released before the store is asked, so that others queue up meanwhile.
            let take = queue.len().min(BATCH);
            queue.drain(..take).collect()
        };
        match self.write(&batch).await {
            Ok(finished) => {
                for (waiting, finished) in batch.into_iter().zip(finished) {
                    let _ = waiting.answer.send(Ok(finished));
                }
            }
            // A permanent error may be due to one outcome, e.g. a letter that is too large. Write them one by one, so
            // that it does not fail the others.
            Err(error) if !error.is_transient() && batch.len() > 1 => {
                tracing::warn!(%error, outcomes = batch.len(), "store rejected batch of outcomes; retrying one by one");
                for waiting in batch {
                    let alone = self.write(std::slice::from_ref(&waiting)).await;
                    let alone = alone.map(|finished| finished[0]).map_err(Arc::new);
                    let _ = waiting.answer.send(alone);
                }
            }
            Err(error) => {
                let error = Arc::new(error);
                for waiting in batch {
                    let _ = waiting.answer.send(Err(Arc::clone(&error)));
                }
            }
        }
    }

    /// Returns an answer for each of the batch, or an error.
    async fn write(&self, batch: &[Waiting]) -> Result<Vec<Finished>, StoreError> {
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        let finishes = batch.iter().map(|waiting| (waiting.token, waiting.finish.clone()));
        let finished = self.claims.finish(finishes.collect()).await?;
        // Otherwise it cannot be told which result is of which claim, and none counts as recorded (G1).
        if finished.len() == batch.len() {
            return Ok(finished);
        }
        let detail = format!(
            "the store returned {} results for {} claims; this is a bug in the store",
            finished.len(),
            batch.len()
        );
        let kind = dlq_core::StoreErrorKind::Unexpected;
        Err(StoreError::new(kind, "finish claims").with_detail(detail))
    }
}

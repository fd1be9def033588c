//! Group commit of outcomes. There is no task of its own: whoever waits for its outcome to be recorded leads the next
//! write, for itself and for those that wait with it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dlq_core::store::{ClaimToken, Claims, Finish, Finished};
use dlq_core::{LetterId, StoreError};
use tokio::sync::oneshot;

use crate::backoff::Growing;
use crate::metrics::Recorder;

/// Outcomes per call at most.
const BATCH: usize = 256;

/// Delay of a letter whose outcome was refused, at first and at most.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(600);

/// Number of such letters that are remembered. Others wait longest at once.
const REMEMBERED: usize = 4096;

/// Reason why an outcome is not known to be recorded. Recording it again is harmless.
#[derive(Debug)]
pub(super) enum Unfinished {
    /// The store said so.
    Refused(Arc<StoreError>),
    /// The writer was dropped before the answer.
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

    /// Notes that the outcome of a letter was refused, and returns how long the letter is to wait.
    pub(super) fn refused(&self, letter: LetterId) -> Duration {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        if refused.len() >= REMEMBERED && !refused.contains_key(&letter) {
            return LONGEST_WAIT;
        }
        let fresh = || Growing::new(FIRST_WAIT, LONGEST_WAIT);
        refused.entry(letter).or_insert_with(fresh).next()
    }

    /// Notes that the outcome of a letter was recorded.
    pub(super) fn took(&self, letter: LetterId) {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).remove(&letter);
    }

    pub(super) fn claims(&self) -> &C {
        &self.claims
    }

    /// Returns the recorder that counts written letters.
    pub(super) fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// Records the end of a claim, together with others that end now.
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
            // The answer first: who has it need not lead.
            tokio::select! {
                biased;
                result = &mut answered => {
                    return match result {
                        Ok(result) => result.map_err(Unfinished::Refused),
                        Err(_leader_was_dropped) => Err(Unfinished::Interrupted),
                    };
                }
                _leader = self.leader.lock() => self.write_batch().await,
            }
        }
    }

    async fn write_batch(&self) {
        let batch: Vec<Waiting> = {
            let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            let take = queue.len().min(BATCH);
            queue.drain(..take).collect()
        };
        match self.write(&batch).await {
            Ok(finished) => {
                for (waiting, finished) in batch.into_iter().zip(finished) {
                    let _ = waiting.answer.send(Ok(finished));
                }
            }
            // One of them may be what the store does not like.
            Err(error) if !error.is_transient() && batch.len() > 1 => {
                tracing::warn!(%error, outcomes = batch.len(), "a batch of outcomes was refused; each is recorded alone");
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
        if finished.len() == batch.len() {
            return Ok(finished);
        }
        let detail =
            format!("the store gave {} answers for {} claims", finished.len(), batch.len());
        let kind = dlq_core::StoreErrorKind::Unexpected;
        Err(StoreError::new(kind, "finish claims").with_detail(detail))
    }
}

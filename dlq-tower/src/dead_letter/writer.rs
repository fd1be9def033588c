//! Group commit: letters that arrive while others are being written go together in the next call of the sink.
//!
//! There is no task of its own. Whoever waits for its letter leads a write when one may begin, for itself and for those
//! that wait behind it. A leader that is dropped in the middle leaves its followers unanswered; they queue again, which
//! is harmless, since writing the same death again changes nothing.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use dlq_core::store::{BoxSink, Receipt};
use dlq_core::{DeadLetter, Message, Sink, StoreError, StoreErrorKind};
use tokio::sync::{Notify, Semaphore, oneshot};

/// Number of bytes of messages that are written in one call, unless a single message has more. The receiver has to
/// answer in time, also from far away.
const BYTES: usize = 1024 * 1024;

/// Rules for writing letters together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Batch {
    /// Letters per call at most.
    pub(super) max: usize,
    /// Time that a call waits for more letters.
    pub(super) linger: Duration,
    /// Calls at once; `None` for as many as the sink says.
    pub(super) writers: Option<usize>,
}

impl Default for Batch {
    fn default() -> Self {
        // No linger: while one call is under way the next batch gathers by itself, and a lone letter waits for nothing.
        Self { max: 256, linger: Duration::ZERO, writers: None }
    }
}

/// A sink, and the letters that wait for it.
#[derive(Debug)]
pub(super) struct Writer {
    sink: BoxSink,
    batch: Batch,
    queue: Mutex<Queue>,
    leaders: Semaphore,
    filled: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    next: u64,
}

#[derive(Debug)]
struct Waiting {
    number: u64,
    letter: DeadLetter,
    answer: oneshot::Sender<WriteResult>,
}

#[derive(Debug)]
enum WriteResult {
    Written(Receipt),
    Failed(StoreError),
    /// The batch was refused, perhaps for the sake of one letter in it: each is to be written alone.
    Alone,
}

impl Writer {
    pub(super) fn new(sink: BoxSink, batch: Batch) -> Self {
        let writers = batch.writers.unwrap_or_else(|| sink.writers());
        let leaders = Semaphore::new(writers.clamp(1, Semaphore::MAX_PERMITS));
        Self { sink, batch, queue: Mutex::default(), leaders, filled: Notify::new() }
    }

    /// Writes `letter`, together with others that wait, and returns once it is durable.
    ///
    /// Cancel safe: a letter that is not yet being written is forgotten.
    pub(super) async fn put(&self, letter: &DeadLetter) -> Result<Receipt, StoreError> {
        loop {
            let (number, mut answer) = self.enqueue(letter.clone());
            let answered = loop {
                // The answer first: who has it need not lead.
                tokio::select! {
                    biased;
                    answered = &mut answer => break answered,
                    // No task writes in the background: one of those who wait leads, so that nothing is
                    // written that nobody waits for.
                    _leader = self.leaders.acquire(), if self.waits(number) => {
                        // Another leader may have taken the letter while this caller waited to lead.
                        if self.waits(number) {
                            self.write_batch().await;
                        }
                    }
                }
            };
            match answered {
                Ok(WriteResult::Written(receipt)) => return Ok(receipt),
                Ok(WriteResult::Failed(error)) => return Err(error),
                Ok(WriteResult::Alone) => return self.put_alone(letter.clone()).await,
                // Whether the batch was written is not known. Written again, the same death changes nothing (G2).
                Err(_leader_was_dropped) => {}
            }
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enqueue(&self, letter: DeadLetter) -> (u64, oneshot::Receiver<WriteResult>) {
        let (answer, receiver) = oneshot::channel();
        let mut queue = self.queue();
        let number = queue.next;
        queue.next += 1;
        queue.waiting.push_back(Waiting { number, letter, answer });
        if queue.waiting.len() >= self.batch.max {
            self.filled.notify_one();
        }
        (number, receiver)
    }

    /// Returns true if the letter with this number is not yet being written. Numbers grow along the queue.
    fn waits(&self, number: u64) -> bool {
        self.queue().waiting.front().is_some_and(|first| first.number <= number)
    }

    async fn write_batch(&self) {
        if !self.batch.linger.is_zero() {
            let full = async {
                while self.queue().waiting.len() < self.batch.max {
                    self.filled.notified().await;
                }
            };
            let _ = tokio::time::timeout(self.batch.linger, full).await;
        }
        let (letters, answers) = self.take_batch();
        if letters.is_empty() {
            return;
        }
        match self.sink.put_each(letters).await {
            Ok(outcomes) if outcomes.len() == answers.len() => {
                for (answer, outcome) in answers.into_iter().zip(outcomes) {
                    let _ =
                        answer.send(outcome.map_or_else(WriteResult::Failed, WriteResult::Written));
                }
            }
            Ok(outcomes) => {
                // Which letter an outcome is of cannot be told, so that none of them counts as durable (G1).
                let error = Arc::new(miscounted(outcomes.len(), answers.len()));
                fail_all(answers, &error);
            }
            // The sink cannot be reached: alone, each letter would fail of the same.
            Err(error) if error.is_transient() => fail_all(answers, &Arc::new(error)),
            Err(error) => match <[_; 1]>::try_from(answers) {
                // A batch of one was alone already.
                Ok([answer]) => drop(answer.send(WriteResult::Failed(error))),
                Err(answers) => {
                    tracing::warn!(%error, letters = answers.len(), "a batch of letters was refused; each is written alone");
                    for answer in answers {
                        let _ = answer.send(WriteResult::Alone);
                    }
                }
            },
        }
    }

    fn take_batch(&self) -> (Vec<DeadLetter>, Vec<oneshot::Sender<WriteResult>>) {
        let mut queue = self.queue();
        let (mut letters, mut answers, mut room) = (Vec::new(), Vec::new(), BYTES);
        while letters.len() < self.batch.max.max(1) {
            let Some(first) = queue.waiting.pop_front() else { break };
            // Nobody waits any more for what a dropped caller left behind.
            if first.answer.is_closed() {
                continue;
            }
            let size = size(&first.letter.message);
            // A letter that is larger than the room goes alone. Left in the queue it would never be written.
            if size > room && !letters.is_empty() {
                queue.waiting.push_front(first);
                break;
            }
            room = room.saturating_sub(size);
            letters.push(first.letter);
            answers.push(first.answer);
        }
        (letters, answers)
    }

    async fn put_alone(&self, letter: DeadLetter) -> Result<Receipt, StoreError> {
        let receipts = self.sink.put(vec![letter]).await?;
        match receipts.as_slice() {
            [receipt] => Ok(*receipt),
            receipts => Err(miscounted(receipts.len(), 1)),
        }
    }
}

/// Returns the number of bytes that the producer has sent.
fn size(message: &Message) -> usize {
    let length = |bytes: Option<&Bytes>| bytes.map_or(0, Bytes::len);
    let headers = message.headers().iter();
    let headers = headers.map(|header| header.name.len() + length(header.value.as_ref()));
    length(message.payload()) + length(message.key()) + headers.sum::<usize>()
}

fn miscounted(confirmed: usize, written: usize) -> StoreError {
    StoreError::new(StoreErrorKind::Unexpected, "write dead letters")
        .with_detail(format!("the sink gave {confirmed} receipts for {written} letters"))
}

/// Tells everybody of the same error.
fn fail_all(answers: Vec<oneshot::Sender<WriteResult>>, error: &Arc<StoreError>) {
    for answer in answers {
        let error = StoreError::new(error.kind(), "write a batch of dead letters")
            .with_source(Arc::clone(error));
        let _ = answer.send(WriteResult::Failed(error));
    }
}

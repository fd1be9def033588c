use std::time::Duration;

use dlq_core::store::{Maintenance, ProcessedEvent};
use metrics::counter;
use tokio::sync::mpsc::Receiver;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{AUDIT_LOST_TOTAL, BATCH, LINGER};

/// Number of tries of a batch that the store does not take.
const TRIES: u32 = 5;
/// Pause before the next try; doubles each time.
const PAUSE: Duration = Duration::from_millis(100);

/// Puts rows into a store, in batches. See the [module docs](super).
#[derive(Debug)]
#[must_use = "without its writer an audit keeps nothing"]
pub struct AuditWriter<U> {
    store: U,
    rows: Receiver<ProcessedEvent>,
}

impl<U: Maintenance> AuditWriter<U> {
    pub(super) fn new(store: U, rows: Receiver<ProcessedEvent>) -> Self {
        Self { store, rows }
    }

    /// Writes until `stop` is cancelled or every layer is gone, then writes what is left.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses the rows that are on their way.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            let more = tokio::select! {
                biased;
                // The rows come first: a stop ends the loop only once none is left.
                more = self.rows.recv_many(&mut batch, BATCH) => more > 0,
                () = stop.cancelled() => false,
            };
            if !more {
                break;
            }
            if batch.len() < BATCH {
                // Whatever comes while we linger is written with it; what is read stays in `batch`.
                let room = BATCH - batch.len();
                let _ = timeout(LINGER, fill(&mut self.rows, &mut batch, room, &stop)).await;
            }
            self.write(std::mem::take(&mut batch)).await;
        }
        // The layers still hold senders. A closed channel yields what is left and then ends.
        self.rows.close();
        while self.rows.recv_many(&mut batch, BATCH).await > 0 {
            self.write(std::mem::take(&mut batch)).await;
        }
    }

    async fn write(&self, batch: Vec<ProcessedEvent>) {
        let mut pause = PAUSE;
        for attempt in 1..=TRIES {
            match self.store.record_processed(batch.clone()).await {
                Ok(()) => return,
                // The tries are bounded: rows that come meanwhile have little room, and a stop waits for this.
                Err(error) if attempt == TRIES || !error.is_transient() => {
                    tracing::error!(%error, rows = batch.len(), "rows of the processing audit are lost");
                    counter!(AUDIT_LOST_TOTAL).increment(batch.len() as u64);
                    return;
                }
                Err(error) => {
                    tracing::warn!(%error, retry_in = ?pause, "the processing audit could not be written");
                    sleep(pause).await;
                    pause *= 2;
                }
            }
        }
    }
}

/// Reads up to `room` more rows, until there is no room or it is time to stop.
async fn fill(
    rows: &mut Receiver<ProcessedEvent>,
    batch: &mut Vec<ProcessedEvent>,
    mut room: usize,
    stop: &CancellationToken,
) {
    while room > 0 {
        let read = tokio::select! {
            biased;
            read = rows.recv_many(batch, room) => read,
            () = stop.cancelled() => 0,
        };
        if read == 0 {
            return;
        }
        room -= read;
    }
}

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::mpsc;

use crate::error::SetupError;
use crate::record::Record;

/// Progress of a scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScanProgress {
    /// Offsets that were read, those without a record among them.
    pub read: u64,
    /// Number of offsets to read. A scan that follows reads beyond those that existed when it began.
    pub total: u64,
}

/// Records that a reader hands over at once.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) records: Vec<Record>,
    /// Number of offsets that have been read with them.
    pub(super) read: u64,
}

/// The records of a scan.
#[derive(Debug)]
pub(crate) struct Records {
    topic: Arc<str>,
    is_endless: bool,
    receiver: mpsc::Receiver<Result<Batch, SetupError>>,
    batch: VecDeque<Record>,
    progress: ScanProgress,
    at: u64,
}

impl Records {
    /// `total` is how many offsets there are to be read; a scan that `is_endless` waits for more.
    pub(super) fn new(
        topic: Arc<str>,
        is_endless: bool,
        total: u64,
        receiver: mpsc::Receiver<Result<Batch, SetupError>>,
    ) -> Self {
        let progress = ScanProgress { read: 0, total };
        Self { topic, is_endless, receiver, batch: VecDeque::new(), progress, at: 0 }
    }

    /// The next record; `None` at the end. Awaiting it may be given up at any time.
    pub(crate) async fn next(&mut self) -> Result<Option<Record>, SetupError> {
        loop {
            if let Some(record) = self.batch.pop_front() {
                if self.batch.is_empty() {
                    self.progress.read = self.at;
                }
                return Ok(Some(record));
            }
            self.progress.read = self.at;
            match self.receiver.recv().await {
                Some(batch) => {
                    let batch = batch?;
                    (self.batch, self.at) = (batch.records.into(), batch.read);
                }
                None if self.is_endless => {
                    let text = format!("the reader of `{}` has ended; begin anew", self.topic);
                    return Err(SetupError::Unavailable(text, None));
                }
                None => return Ok(None),
            }
        }
    }

    pub(super) fn progress(&self) -> ScanProgress {
        self.progress
    }
}

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::mpsc;

use crate::client::error::SetupError;
use crate::client::record::Record;

/// Records that a reader hands over at once.
pub(super) type Batch = Vec<Record>;

/// The records of a scan.
#[derive(Debug)]
pub(crate) struct Records {
    topic: Arc<str>,
    is_endless: bool,
    receiver: mpsc::Receiver<Result<Batch, SetupError>>,
    batch: VecDeque<Record>,
}

impl Records {
    /// A scan that `is_endless` waits for more.
    pub(super) fn new(
        topic: Arc<str>,
        is_endless: bool,
        receiver: mpsc::Receiver<Result<Batch, SetupError>>,
    ) -> Self {
        Self { topic, is_endless, receiver, batch: VecDeque::new() }
    }

    /// The next record; `None` at the end. Awaiting it may be given up at any time.
    pub(crate) async fn next(&mut self) -> Result<Option<Record>, SetupError> {
        loop {
            if let Some(record) = self.batch.pop_front() {
                return Ok(Some(record));
            }
            match self.receiver.recv().await {
                Some(batch) => self.batch = batch?.into(),
                // The reader of an endless scan ends by an error or a panic, and neither is the end of the topic (G9).
                None if self.is_endless => {
                    let text = format!("the reader of `{}` has ended; begin anew", self.topic);
                    return Err(SetupError::Unavailable(text, None));
                }
                None => return Ok(None),
            }
        }
    }
}

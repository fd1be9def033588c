//! What is known of the letters that were sent back.

use async_nats::jetstream::Context;
use dlq_core::store::reading::Sent;
use dlq_core::{DeadLetter, StoreError};

use super::ledger::{self, Marks};
use super::reading::READING;
use super::scan::batch_of;
use super::snapshot::Seen;
use crate::buckets::stream_of;
use crate::streams::find;

/// What the ledger says, as it stood when it was looked at last.
#[derive(Debug)]
pub(crate) struct SentBack {
    bucket: String,
    seen: Option<Seen>,
    marks: Marks,
}

impl SentBack {
    pub(crate) fn in_bucket(bucket: impl Into<String>) -> Self {
        Self { bucket: bucket.into(), seen: None, marks: Marks::new() }
    }

    /// The stream of the ledger.
    pub(crate) fn stream(&self) -> String {
        stream_of(&self.bucket)
    }

    /// Has letters say that they were sent back, as far as the ledger says so, which is looked at again.
    pub(crate) async fn mark(
        &mut self,
        context: &Context,
        letters: impl Iterator<Item = &mut DeadLetter>,
    ) -> Result<(), StoreError> {
        let ledger = find(context, &self.stream()).await;
        let ledger = ledger.map_err(|error| error.for_store(READING))?;
        let seen = ledger.as_ref().map(Seen::of);
        if seen != self.seen {
            self.marks = match &ledger {
                Some(info) => ledger::marks(context, &self.bucket, batch_of(&info.state)).await?,
                None => Marks::new(),
            };
            self.seen = seen;
        }
        for letter in letters {
            if let Some(mark) = self.marks.get(&letter.death()) {
                Sent { at: mark.at, times: mark.times }.mark(&mut letter.state);
            }
        }
        Ok(())
    }
}

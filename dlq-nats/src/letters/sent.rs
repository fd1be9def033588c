//! What is known of the letters that were sent back.

use async_nats::jetstream::Context;
use dlq_core::store::reading::{Sent, quarantine_unclear};
use dlq_core::{DeadLetter, StoreError, Timestamp};

use super::ledger::{self, CHUNK, SKEW, Said};
use super::reading::READING;
use super::seen::Seen;
use crate::buckets::stream_of;
use crate::streams::find;

/// What the ledger says, as it stood when it was looked at last.
#[derive(Debug)]
pub(crate) struct SentBack {
    bucket: String,
    seen: Option<Seen>,
    said: Said,
}

impl SentBack {
    pub(crate) fn in_bucket(bucket: impl Into<String>) -> Self {
        Self { bucket: bucket.into(), seen: None, said: Said::default() }
    }

    /// The stream of the ledger.
    pub(crate) fn stream(&self) -> String {
        stream_of(&self.bucket)
    }

    /// Has letters on their way to a store, each with its place, say that they were sent back, or may have been, as the
    /// ledger says, which is looked at again.
    pub(crate) async fn mark(
        &mut self,
        context: &Context,
        letters: impl Iterator<Item = (u64, &mut DeadLetter)>,
    ) -> Result<(), StoreError> {
        let ledger = find(context, &self.stream()).await;
        let ledger = ledger.map_err(|error| error.for_store(READING))?;
        let seen = ledger.as_ref().map(Seen::of);
        if seen != self.seen {
            self.said = match &ledger {
                Some(_) => ledger::read(context, &self.bucket).await?,
                None => Said::default(),
            };
            self.seen = seen;
        }
        for (place, letter) in letters {
            self.say(place, letter);
        }
        Ok(())
    }

    fn say(&self, sequence: u64, letter: &mut DeadLetter) {
        let chunk = sequence / CHUNK;
        // What came after the claim is none that whoever made it had read.
        let may_be_sent = |claimed: &Timestamp| letter.state.created_at <= claimed.after(SKEW);
        if let Some(mark) = self.said.marks.get(&letter.death()) {
            Sent { at: mark.at, times: mark.times }.mark(&mut letter.state);
        } else if self.said.claimed.get(&chunk).is_some_and(may_be_sent) {
            quarantine_unclear(letter, unfinished(&self.bucket, chunk));
        }
    }
}

fn unfinished(bucket: &str, chunk: u64) -> String {
    format!(
        "a replay has begun to send letters of this part of the stream, and has not said which (record `{chunk}` of bucket \
         `{bucket}`): look whether this one has arrived, and mark it as pending if it has not"
    )
}

#[cfg(test)]
mod tests {
    use dlq_core::Status;
    use dlq_testkit::fixtures::letter;

    use super::*;

    #[test]
    fn g6_what_came_before_a_claim_of_its_chunk_may_have_been_sent() {
        let claimed = Timestamp::from_millis(1_790_000_000_000);
        let mut sent = SentBack::in_bucket("DLQ_REPLAYS");
        sent.said.claimed.insert(1, claimed);
        let status = |sequence, at| {
            let mut letter = letter(1);
            letter.state.created_at = at;
            sent.say(sequence, &mut letter);
            letter.state.status
        };
        assert_eq!(status(CHUNK, claimed), Status::Quarantined);
        assert_eq!(status(CHUNK, claimed.after(SKEW)), Status::Quarantined, "by another clock");
        assert_eq!(status(CHUNK, claimed.after(SKEW * 2)), Status::Pending, "it was not there");
        assert_eq!(status(CHUNK - 1, claimed), Status::Pending);
        assert_eq!(status(CHUNK * 2, claimed), Status::Pending);
    }
}

//! Knowledge about letters that were sent back.

use std::collections::{BTreeSet, HashMap};

use dlq_core::log::Entry;
use dlq_core::store::reading::{Sent, quarantine_unclear};
use dlq_core::{DeadLetter, StoreError};

use super::NatsLetters;
use super::entries::{letter_of, sequence};
use super::ledger::{self, CHUNK, Claim, Mark, SKEW, Said};
use super::reading::READING;
use super::replay::{Found, looks, reconcile};
use super::seen::Seen;
use super::watch::Watch;
use crate::client::buckets::stream_of;
use crate::client::permissions;
use crate::client::streams::find;

/// Content of the ledger when it was read last.
#[derive(Debug)]
pub(crate) struct SentBack {
    letters: NatsLetters,
    seen: Option<Seen>,
    said: Said,
    watch: Watch,
    /// Findings about claims that were left, each with its revision.
    settled: HashMap<u64, (u64, Found)>,
}

impl SentBack {
    pub(super) fn of(letters: &NatsLetters) -> Self {
        Self {
            letters: letters.clone(),
            seen: None,
            said: Said::default(),
            watch: Watch::default(),
            settled: HashMap::new(),
        }
    }

    /// Has letters say that they were sent back, as the ledger says, which is looked at again.
    pub(super) async fn mark(&mut self, entries: &mut [Entry]) -> Result<(), StoreError> {
        self.look().await?;
        for (_, letter) in entries.iter_mut().filter_map(letter_of) {
            if let Some(mark) = self.said.marks.get(&letter.death()) {
                say(mark, letter);
            }
        }
        Ok(())
    }

    /// Returns the claim of a replay that may send any of these letters now, and is to be waited for; `None` once all is
    /// known that can be. What those have sent that have died is looked for.
    pub(super) async fn awaited(
        &mut self,
        entries: &[&Entry],
    ) -> Result<Option<Claim>, StoreError> {
        self.look().await?;
        let open = |entry: &&Entry| self.open(sequence(entry.place.position()), entry.letter()?);
        let chunks: BTreeSet<u64> = entries.iter().filter_map(open).collect();
        self.settle(chunks).await
    }

    /// Has letters on their way to a store say what was found out when nothing was [awaited](Self::awaited).
    pub(super) fn say_all<'a>(&self, entries: impl Iterator<Item = &'a mut Entry>) {
        for (sequence, letter) in entries.filter_map(letter_of) {
            self.say(sequence, letter);
        }
    }

    async fn look(&mut self) -> Result<(), StoreError> {
        let NatsLetters { context, ledger: bucket, .. } = &self.letters;
        // The ledger is read again only when its stream has changed, since this runs before each batch of letters.
        let ledger = find(context, &stream_of(bucket)).await;
        let ledger = ledger.map_err(|error| error.for_store(READING))?;
        let seen = ledger.as_ref().map(Seen::of);
        if seen != self.seen {
            self.said = match &ledger {
                Some(_) => ledger::read(context, bucket).await?,
                None => Said::default(),
            };
            self.seen = seen;
        }
        Ok(())
    }

    /// Returns the chunk of a letter that somebody has claimed and not marked.
    fn open(&self, sequence: u64, letter: &DeadLetter) -> Option<u64> {
        let chunk = sequence / CHUNK;
        let claimed = self.said.claimed.get(&chunk)?;
        // What came after the claim is none that whoever made it had read.
        let may_be_sent = letter.state.created_at <= claimed.written.after(SKEW);
        let is_open = may_be_sent && !self.said.marks.contains_key(&letter.death());
        is_open.then_some(chunk)
    }

    /// Settles the claims of these chunks that were left; returns one that was not, if there is one.
    async fn settle(&mut self, chunks: BTreeSet<u64>) -> Result<Option<Claim>, StoreError> {
        for chunk in chunks {
            let Some(entry) = self.said.claimed.get(&chunk) else { continue };
            let Some(claim) = &entry.record.claim else { continue };
            if self.settled.get(&chunk).is_some_and(|(revision, _)| *revision == entry.revision) {
                continue;
            }
            // The replay may live: it marks what it has sent, or its lease ends.
            if !self.watch.is_over(chunk, claim, entry) {
                return Ok(Some(claim.clone()));
            }
            let found = self.found(chunk, claim, entry).await?;
            self.settled.insert(chunk, (entry.revision, found));
        }
        Ok(None)
    }

    async fn found(
        &self,
        chunk: u64,
        claim: &Claim,
        entry: &ledger::Entry,
    ) -> Result<Found, StoreError> {
        let NatsLetters { context, api, stream, .. } = &self.letters;
        let client = context.client();
        for name in claim.streams.keys() {
            let Some(api) = api else { continue };
            // Without the right nobody answers, which looks like an outage that does not end. So the right is looked at
            // before.
            let info = format!("{api}.STREAM.INFO.{name}");
            let mut lacks = permissions::require(&client, [&info]).await.err();
            if lacks.is_none()
                && let Some(info) =
                    find(context, name).await.map_err(|error| error.for_store(READING))?
            {
                lacks = permissions::require(&client, &looks(api, &info)).await.err();
            }
            if let Some(why) = lacks {
                tracing::warn!(%why, "it cannot be looked what a replay that has died has sent");
                return Ok(Found { doubtful: true, ..Found::default() });
            }
        }
        reconcile(context, &stream.name, chunk, claim, entry).await
    }

    fn say(&self, sequence: u64, letter: &mut DeadLetter) {
        if let Some(mark) = self.said.marks.get(&letter.death()) {
            return say(mark, letter);
        }
        let Some(chunk) = self.open(sequence, letter) else { return };
        let found = self.settled.get(&chunk).map(|(_, found)| found);
        match found.map(|found| (found.marks.get(&letter.death()), found.doubtful)) {
            Some((Some(mark), _)) => say(mark, letter),
            Some((None, false)) => {}
            // Whether it was sent back is not known: sent from the store as well it might arrive twice (G6).
            _ => quarantine_unclear(letter, unfinished(&self.letters.ledger, chunk)),
        }
    }
}

fn say(mark: &Mark, letter: &mut DeadLetter) {
    Sent { at: mark.at, times: mark.times }.mark(&mut letter.state);
}

fn unfinished(bucket: &str, chunk: u64) -> String {
    format!(
        "a replay has begun to send letters of this part of the stream, and cannot be found out which (record `{chunk}` of \
         bucket `{bucket}`): look whether this one has arrived, and mark it as pending if it has not"
    )
}

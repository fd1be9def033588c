//! Entries of a stream of dead letters that is read without a trace.

use std::collections::VecDeque;
use std::fmt;

use async_nats::jetstream::Message;
use async_nats::jetstream::consumer::DeliverPolicy;
use dlq_core::log::{Content, Entries, Entry, Range};
use dlq_core::{DeadLetter, Position, StoreError};
use futures_util::{FutureExt as _, StreamExt as _, TryStreamExt as _};

use super::NatsLetters;
use super::scan::Scanned;
use super::sent::SentBack;
use super::stored::{Passed, StoredLetter};
use crate::client::buckets;
use crate::client::message_meta::MessageMeta;

/// Knowledge of the letters of a reading about what was sent back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Says {
    /// Marks of the ledger.
    Sent,
    /// Nothing: whoever reads them asks the ledger.
    Nothing,
}

pub(super) struct ReadEntries {
    letters: NatsLetters,
    messages: Scanned,
    /// The first sequence that is wanted.
    from: u64,
    for_ever: bool,
    headers_only: bool,
    /// Taken, and of which the parts are not read yet.
    taken: VecDeque<(Message, MessageMeta)>,
    read: Vec<Entry>,
    has_ended: bool,
    sent: Option<SentBack>,
    passed: Passed,
}

impl ReadEntries {
    pub(super) async fn open(
        letters: NatsLetters,
        range: Range,
        says: Says,
    ) -> Result<Self, StoreError> {
        let info = letters.info().await?;
        let from = range.from.first().map_or(1, |place| sequence(place.position()));
        let last = range.last.map_or(1, |last| (info.state.last_sequence + 1).saturating_sub(last));
        let from = from.max(last).max(1);
        let policy = match range.since.and_then(buckets::date_time) {
            Some(start_time) => DeliverPolicy::ByStartTime { start_time },
            None => DeliverPolicy::ByStartSequence { start_sequence: from },
        };
        Ok(Self {
            messages: letters.messages_from(policy, None, range.for_ever, range.headers_only),
            from,
            for_ever: range.for_ever,
            headers_only: range.headers_only,
            taken: VecDeque::new(),
            read: Vec::new(),
            has_ended: false,
            sent: (says == Says::Sent).then(|| SentBack::of(&letters)),
            passed: Passed::default(),
            letters,
        })
    }

    /// Takes messages until there are `limit`, or none that has come already. The first is waited for.
    async fn take(&mut self, limit: usize) -> Result<(), StoreError> {
        while !self.has_ended && self.taken.len() + self.read.len() < limit {
            // A reading with an end is told when there is no more; one for ever would wait with what it has.
            let waits = !self.for_ever || (self.taken.is_empty() && self.read.is_empty());
            let next = if waits {
                self.messages.try_next().await?
            } else {
                match self.messages.next().now_or_never() {
                    Some(next) => next.transpose()?,
                    None => break,
                }
            };
            match next {
                // A reading that begins at a time may be handed sequences before those that its range wants.
                Some(next) if next.1.sequence >= self.from => self.taken.push_back(next),
                Some(_) => {}
                None => self.has_ended = true,
            }
        }
        Ok(())
    }

    async fn entry(&mut self) -> Result<Option<Entry>, StoreError> {
        let Some((message, place)) = self.taken.front() else { return Ok(None) };
        let context = &self.letters.context;
        let read = if self.headers_only {
            let outline = StoredLetter::outline(context, message, place).await;
            outline.map(|outline| outline.map(|outline| Content::Outline(Box::new(outline))))
        } else {
            let stored = StoredLetter::read(context, message, place).await;
            stored.map(|stored| stored.map(|stored| Content::Letter(Box::new(stored.letter))))
        };
        let content = match read {
            Ok(Some(content)) => content,
            Ok(None) => {
                self.passed.foreign(place.sequence);
                Content::Foreign
            }
            Err(error) if error.is_transient() => return Err(error),
            Err(error) => {
                let why = error.to_string();
                self.passed.damaged(place.sequence, error);
                Content::Damaged(why)
            }
        };
        let place = self.letters.place(place.sequence);
        self.taken.pop_front();
        Ok(Some(Entry { place, again: false, content }))
    }
}

impl Entries for ReadEntries {
    async fn next(&mut self, limit: usize) -> Result<Vec<Entry>, StoreError> {
        self.take(limit.max(1)).await?;
        // What is being read stays where it is until it was.
        while let Some(entry) = self.entry().await? {
            self.read.push(entry);
        }
        if self.for_ever {
            self.passed.tell_now_and_then();
        } else if self.has_ended {
            self.passed.tell();
        }
        if let Some(sent) = &mut self.sent
            && !self.read.is_empty()
        {
            sent.mark(&mut self.read).await?;
        }
        Ok(std::mem::take(&mut self.read))
    }

    async fn confirm(&mut self) -> Result<(), StoreError> {
        Ok(())
    }
}

/// Returns the letter of an entry, with its sequence.
pub(super) fn letter_of(entry: &mut Entry) -> Option<(u64, &mut DeadLetter)> {
    match &mut entry.content {
        Content::Letter(letter) => Some((sequence(entry.place.position()), &mut **letter)),
        Content::Outline(outline) => Some((sequence(entry.place.position()), &mut outline.letter)),
        Content::Damaged(_) | Content::Foreign => None,
    }
}

/// Returns the sequence that a position names; 0, which no message has, for a position of another kind.
pub(super) fn sequence(position: &Position) -> u64 {
    match position {
        Position::Offset(sequence) | Position::Pair(sequence, _) => *sequence,
        _ => 0,
    }
}

impl fmt::Debug for ReadEntries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadEntries").field("letters", &self.letters).finish_non_exhaustive()
    }
}

//! Dead letters at a broker: a [`Log`] that only grows, which is read or followed.
//!
//! ```text
//!  Log::read ────► Entries ──► an engine, as `list`, `stats` and `export` need it
//!  Log::follow ──► Entries ──► Ingest ──► a store
//! ```
//!
//! [Reading](Log::read) leaves no trace at the broker. [Following](Log::follow) has committed positions, which name the
//! store that the letters go into: what was [confirmed](Entries::confirm) does not come again, to whichever process.
//!
//! # If the process dies
//!
//! | the process dies | the broker has | and then |
//! |---|---|---|
//! | while it reads | nothing of it | nothing |
//! | before `follow` returns | nothing, or the position with the name of the store | the next one begins with the oldest entry |
//! | after entries were yielded | them unconfirmed | they come again, marked [`again`](Entry::again) |
//! | while it confirms | some of them confirmed | the others come again |
//!
//! The name of the store stands with the position before the first entry is yielded, so that a replay at the broker that
//! looks for it afterwards sees it. What the broker's ledger says of a letter is read after that, for each batch before it
//! is yielded: what was sent back is `sent`, and a letter of which that cannot be known is quarantined.

use std::fmt::Debug;
use std::future::Future;

use crate::{Binding, DeadLetter, Origin, StoreError, Timestamp};

/// The dead letters of a broker, in the order in which they were written.
///
/// A value describes where they are: nothing is asked of the broker before a method is called. Settings of one broker
/// (names of consumers, prefetch, whether a reading ends) belong to the type that implements this.
pub trait Log: Debug + Send + Sync + 'static {
    /// The entries of a reading, or of one that follows.
    type Entries: Entries;

    /// Returns the stores into which the letters go, and how much of each was confirmed.
    ///
    /// # Errors
    ///
    /// `NotFound` if there is no such log; `Unavailable` if the broker does not answer.
    fn marks(&self) -> impl Future<Output = Result<Vec<IngestMark>, StoreError>> + Send;

    /// Reads the entries of a range without a trace: nothing is committed, and no mark is made. A letter that was sent back
    /// from the broker says so in its state.
    ///
    /// Copies of a death and earlier deaths are entries too; what they come to is decided by the engine that they are read
    /// into. [Confirming](Entries::confirm) them has no effect.
    ///
    /// # Errors
    ///
    /// As [`marks`](Self::marks).
    fn read(&self, range: Range) -> impl Future<Output = Result<Self::Entries, StoreError>> + Send;

    /// Follows the log into the store of this name, from its oldest entry or from where it was last confirmed. `lease` is
    /// the time for which entries stay with a process that has died. The name must hold no secret.
    ///
    /// # Errors
    ///
    /// As [`marks`](Self::marks); `Conflict` if the letters go into another store; `InvalidConfig` if the user may not read
    /// or confirm.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves at most the position with the name of the store behind. The next call for the same
    /// store goes on from it.
    fn follow(
        &self,
        store: String,
        lease: std::time::Duration,
    ) -> impl Future<Output = Result<Self::Entries, StoreError>> + Send;

    /// Returns the letters at these places whole, in the order of `places`; `None` where there is none any more. They come
    /// together, since some brokers fetch many as fast as one.
    ///
    /// # Errors
    ///
    /// As [`marks`](Self::marks).
    fn at(
        &self,
        places: Vec<Origin>,
    ) -> impl Future<Output = Result<Vec<Option<DeadLetter>>, StoreError>> + Send;

    /// Completes letters of a reading that say only where their message stands, for whoever shows them: each comes with its
    /// message, or with an attribute that says why it has none. Defaults to the letters as they are.
    ///
    /// # Errors
    ///
    /// As [`marks`](Self::marks).
    fn complete(
        &self,
        letters: Vec<DeadLetter>,
    ) -> impl Future<Output = Result<Vec<DeadLetter>, StoreError>> + Send {
        std::future::ready(Ok(letters))
    }
}

/// Entries of a [`Log`], batch by batch.
pub trait Entries: Debug + Send {
    /// Waits for entries and yields at most `limit` of them; none if there are no more and the reading has an end.
    ///
    /// Called again only after [`confirm`](Self::confirm).
    ///
    /// # Errors
    ///
    /// `Unavailable` if the broker cannot be reached just now; any other error lasts.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    fn next(&mut self, limit: usize)
    -> impl Future<Output = Result<Vec<Entry>, StoreError>> + Send;

    /// Confirms what was yielded. What is not confirmed comes again, to this process or another.
    ///
    /// # Errors
    ///
    /// If the broker was not told; what was yielded comes again then.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves it open which entries are confirmed. The others come again.
    fn confirm(&mut self) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// Entry at one place of a [`Log`].
#[derive(Clone, Debug)]
pub struct Entry {
    /// The place among the dead letters.
    pub place: Origin,
    /// True if it may have been yielded before.
    pub again: bool,
    /// The letter, or why there is none.
    pub content: Content,
}

/// The content of an [`Entry`].
#[derive(Clone, Debug)]
pub enum Content {
    /// A letter.
    Letter(Box<DeadLetter>),
    /// A letter without its payload; only of a [range that leaves payloads out](Range::headers_only).
    Outline(Box<Outline>),
    /// A letter of which a part has gone, and why it cannot be read.
    Damaged(String),
    /// Something that nobody wrote as a letter.
    Foreign,
}

/// A letter whose payload was not read. Its identity is what its headers claim: nobody has compared it with the bytes.
#[derive(Clone, Debug)]
pub struct Outline {
    /// The letter. Its message has no payload.
    pub letter: DeadLetter,
    /// Size of the payload, as the broker says it; `None` if the message has none.
    pub payload_size: Option<u64>,
    /// The binding of the letter to its bytes, as its headers say it.
    pub binding: Binding,
}

impl Entry {
    /// Returns the letter, if there is one that was read whole.
    #[must_use]
    pub fn letter(&self) -> Option<&DeadLetter> {
        match &self.content {
            Content::Letter(letter) => Some(letter),
            Content::Outline(_) | Content::Damaged(_) | Content::Foreign => None,
        }
    }
}

/// The part of a [`Log`] that is read. Defaults to all of it, to its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Range {
    /// The first place that is read, for each partition; a partition that is not named is read from its first entry.
    pub from: Vec<Origin>,
    /// The earliest time of an entry that is read, by the broker's clock. Brokers seek for it.
    pub since: Option<Timestamp>,
    /// The most entries that are read, the latest of each partition.
    pub last: Option<u64>,
    /// True if it goes on with what is written later, for ever.
    pub for_ever: bool,
    /// True if payloads are left out where the broker can do so: letters then come as an [`Outline`].
    pub headers_only: bool,
}

impl Range {
    /// Reads everything, to the end.
    #[must_use]
    pub fn all() -> Self {
        Self::default()
    }

    /// Reads a partition from this place on; one call for each partition.
    #[must_use]
    pub fn from(mut self, place: Origin) -> Self {
        self.from.push(place);
        self
    }

    /// Reads what was written at this time or later.
    #[must_use]
    pub fn since(mut self, since: Timestamp) -> Self {
        self.since = Some(since);
        self
    }

    /// Reads at most so many of the latest entries of each partition.
    #[must_use]
    pub fn last(mut self, entries: u64) -> Self {
        self.last = Some(entries);
        self
    }

    /// Goes on with what is written later.
    #[must_use]
    pub fn for_ever(mut self) -> Self {
        self.for_ever = true;
        self
    }

    /// Leaves payloads out, which a listing does not need. Brokers that cannot do so read them.
    ///
    /// Without its payload nobody can say whether a message is the letter that its headers claim, and a message that merely
    /// carries the headers of a letter is read as one.
    #[must_use]
    pub fn headers_only(mut self) -> Self {
        self.headers_only = true;
        self
    }
}

/// A store into which the letters of a [`Log`] go.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IngestMark {
    /// The consumer or group of the broker that says so.
    pub by: String,
    /// The name of the store.
    pub store: String,
    /// Progress of the confirmed entries as the broker counts it: 0 for none, and never less than before.
    pub confirmed: u64,
}

impl IngestMark {
    /// Makes the mark of a store.
    #[must_use]
    pub fn new(by: impl Into<String>, store: impl Into<String>, confirmed: u64) -> Self {
        Self { by: by.into(), store: store.into(), confirmed }
    }
}

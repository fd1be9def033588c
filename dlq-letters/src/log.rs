//! [`Reading`]: the letters of a [`Log`] as an engine has them, listed, filtered, grouped and counted as those of a store.
//!
//! ```
//! use dlq_core::log::{Log, Range};
//! use dlq_core::store::Letters;
//! use dlq_core::{Filter, StoreError};
//! use dlq_letters::log::Reading;
//!
//! async fn count(log: impl Log) -> Result<u64, StoreError> {
//!     Reading::of(log, Range::all()).await?.count(Filter::new()).await
//! }
//! ```
//!
//! Several copies of a death are one letter, of several deaths the latest counts, and the same death with other bytes is a
//! second letter, as in a store that had got the entries in their order. A reading shows the log as it was when it was
//! read.
//!
//! # Cost
//!
//! Every entry of the range is read once. A row keeps the letter with its history, the place where it stands and a digest of
//! its bytes, and the payload if that has at most 1 KiB: one to three KiB a letter. Larger payloads are fetched from the log
//! when a letter is asked for whole. For more letters than fit into memory, [`fill`] reads into any store.
//!
//! A [range of headers only](Range::headers_only) keeps no payload either, and identities are believed as the headers claim
//! them. Where two letters claim one with different bytes, only the payloads say which is whose: [`Reading::of`] then reads
//! everything once more with them, and [`fill`] says that its caller has to.
//!
//! # If the process dies
//!
//! Nothing was written to the broker, so there is nothing to be put right.

use dlq_core::log::{Content, Entries, Log, Outline, Range};
use dlq_core::store::reading::Row;
use dlq_core::store::{Group, Hours, Letters, Stats};
use dlq_core::{
    Binding, DeadLetter, Filter, LetterId, LetterSummary, Message, Order, Origin, Page,
    PageRequest, StoreError, Timestamp,
};
use serde::{Deserialize, Serialize};

use crate::Backend;
use crate::memory::MemoryStore;
use crate::verbs::{Add, Carry, Forget};

/// Name of the attribute that has the [`Note`] of a row. It is taken out of whatever a reading answers.
const NOTE: &str = "~log";
/// Number of entries that are added in one step.
const BATCH: usize = 256;
/// Number of letters that are listed at once.
const PAGE: u32 = 1_000;

/// Facts that a row of a reading keeps beside the letter.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Note {
    place: Origin,
    size: Option<u64>,
    bytes: Binding,
    /// True if the payload was not read, and `bytes` is the binding that the letter claims.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    outline: bool,
    /// The id of the letter if its own is taken.
    #[serde(skip)]
    conflicting: Option<LetterId>,
}

impl Note {
    /// Takes what is kept of a letter apart into the letter and its note.
    fn split(letter: DeadLetter, place: Origin) -> (DeadLetter, Self) {
        let Row { letter, place, size, bytes, conflicting, .. } = Row::new(letter, place);
        (letter, Self { place, size, bytes, outline: false, conflicting: Some(conflicting) })
    }

    /// The same of a letter whose payload was not read.
    fn outlined(outline: Outline, place: Origin) -> (DeadLetter, Self) {
        let Outline { letter, payload_size: size, binding: bytes } = outline;
        // The id of a conflicting letter follows from its payload, which is not here.
        (letter, Self { place, size, bytes, outline: true, conflicting: None })
    }

    /// Reads the note of a row.
    pub(crate) fn of(letter: &DeadLetter) -> Option<Self> {
        letter.attributes.get(NOTE).and_then(|note| serde_json::from_str(note).ok())
    }

    fn take(attributes: &mut std::collections::BTreeMap<String, String>) -> Option<Self> {
        attributes.remove(NOTE).and_then(|note| serde_json::from_str(&note).ok())
    }

    pub(crate) fn write(&self, letter: &mut DeadLetter) {
        letter.attributes.insert(NOTE.to_owned(), crate::verbs::json(self));
    }

    pub(crate) fn has_bytes_of(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }

    /// Returns the id under which another message with the same identity is kept, and one after the other if that is taken.
    pub(crate) fn next_id(&mut self, taken: LetterId) -> LetterId {
        let id = self.conflicting.unwrap_or(taken);
        self.conflicting = Some(id.conflicting(&Message::new("", self.bytes.as_bytes().to_vec())));
        id
    }

    fn row(self, letter: DeadLetter) -> Row<Origin> {
        Row::kept(letter, self.place, self.size, self.bytes)
    }
}

/// Result of a [`fill`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filled {
    /// Number of letters that the store has got.
    pub letters: u64,
    /// True if the entries have come to their end.
    pub is_whole: bool,
    /// True if letters without payloads claim one identity with different bytes. Then the reading has ended, and what it has
    /// filled is worth nothing: read again with payloads.
    pub needs_payloads: bool,
}

/// Reads entries into a store that is to hold nothing else, until they end or the store has got `most` letters or a few
/// more. Entries that are no letters, or cannot be read, are passed over.
///
/// # Errors
///
/// As the entries or the store. What was read stays.
pub async fn fill<E: Entries, B: Backend>(
    entries: &mut E,
    store: &B,
    most: u64,
) -> Result<Filled, StoreError> {
    let mut letters = 0;
    while letters < most {
        let batch = entries.next(BATCH).await?;
        if batch.is_empty() {
            return Ok(Filled { letters, is_whole: true, needs_payloads: false });
        }
        let added = batch.into_iter().filter_map(|entry| match entry.content {
            Content::Letter(letter) => Some(Note::split(*letter, entry.place)),
            Content::Outline(outline) => Some(Note::outlined(*outline, entry.place)),
            Content::Damaged(_) | Content::Foreign => None,
        });
        let added: Vec<_> = added.collect();
        let has_outlines = added.iter().any(|(_, note)| note.outline);
        let added = store.run("read a log", Add(added)).await?.answer;
        letters += added.new;
        // Without payloads it cannot be told which message is the letter and which one carries copied headers.
        if has_outlines && added.conflicts > 0 {
            return Ok(Filled { letters, is_whole: false, needs_payloads: true });
        }
        // The next batch may be asked for only after a confirmation, although a reading leaves no trace.
        entries.confirm().await?;
    }
    Ok(Filled { letters, is_whole: false, needs_payloads: false })
}

/// Forgets the letters of a [filled](fill) store of which `keep` says no. They are told by their rows, with the places where
/// their last deaths stand, so that a death is not taken for the last one because those after it are not kept.
///
/// # Errors
///
/// As the store.
pub async fn retain<B: Backend>(
    store: &B,
    keep: impl Fn(&Row<Origin>) -> bool,
) -> Result<(), StoreError> {
    let mut after = None;
    loop {
        let page = PageRequest::new().limit(PAGE).order(Order::OldestFirst);
        let page = store.list(Filter::new(), page.after(after)).await?;
        let ids: Vec<LetterId> = page.letters.iter().map(|letter| letter.id).collect();
        for ids in ids.chunks(BATCH) {
            let rows = store.get_all(ids.to_vec()).await?.into_iter().filter_map(row);
            // The next page begins behind a place and not behind a number of letters, so that none is passed over
            // because others before it were forgotten.
            let others: Vec<_> = rows.filter(|row| !keep(row)).map(|row| row.letter.id).collect();
            if !others.is_empty() {
                store.run("read a log", Forget(others)).await?;
            }
        }
        after = page.next;
        if after.is_none() {
            return Ok(());
        }
    }
}

/// Copies the letters of a [filled](fill) store into another, which may be filled further.
///
/// # Errors
///
/// As the stores.
pub async fn carry<B: Backend>(from: &MemoryStore, into: &B) -> Result<(), StoreError> {
    let mut after = None;
    loop {
        let page = PageRequest::new().limit(PAGE).order(Order::OldestFirst);
        let page = from.list(Filter::new(), page.after(after)).await?;
        let ids: Vec<LetterId> = page.letters.iter().map(|letter| letter.id).collect();
        for ids in ids.chunks(BATCH) {
            into.run("read a log", Carry(from.get_all(ids.to_vec()).await?)).await?;
        }
        after = page.next;
        if after.is_none() {
            return Ok(());
        }
    }
}

/// The letters of a [`Log`] as they were when it was read; see the [module docs](self).
#[derive(Debug)]
pub struct Reading<L, S = MemoryStore> {
    log: L,
    store: S,
}

impl<L: Log> Reading<L> {
    /// Reads a range of a log into memory.
    ///
    /// # Errors
    ///
    /// As [`Log::read`].
    pub async fn of(log: L, range: Range) -> Result<Self, StoreError> {
        let mut store = MemoryStore::new();
        let mut whole = range.clone();
        whole.headers_only = false;
        if fill(&mut log.read(range).await?, &store, u64::MAX).await?.needs_payloads {
            // What was filled so far is dropped: letters of headers alone may have taken identities that are not
            // theirs.
            store = MemoryStore::new();
            fill(&mut log.read(whole).await?, &store, u64::MAX).await?;
        }
        Ok(Self { log, store })
    }
}

impl<L: Log, S: Letters> Reading<L, S> {
    /// Makes a reading of a store that was [filled](fill) from this log.
    pub const fn new(log: L, store: S) -> Self {
        Self { log, store }
    }

    /// Returns the log.
    pub const fn log(&self) -> &L {
        &self.log
    }

    /// Returns the letters that match, oldest first, without payloads of more than 1 KiB.
    ///
    /// # Errors
    ///
    /// As the store.
    pub async fn rows(&self, filter: &Filter) -> Result<Vec<Row<Origin>>, StoreError> {
        let (mut rows, mut after) = (Vec::new(), None);
        loop {
            let page = PageRequest::new().limit(PAGE).order(Order::OldestFirst);
            let page = self.store.list(filter.clone(), page.after(after)).await?;
            let ids = page.letters.iter().map(|letter| letter.id).collect();
            rows.extend(self.store.get_all(ids).await?.into_iter().filter_map(row));
            after = page.next;
            if after.is_none() {
                return Ok(rows);
            }
        }
    }
}

/// Takes a row apart that has a note, as all rows of a reading.
fn row(letter: DeadLetter) -> Option<Row<Origin>> {
    noted(letter).map(|(_, row)| row)
}

/// The same, with whether its payload was not read.
fn noted(mut letter: DeadLetter) -> Option<(bool, Row<Origin>)> {
    Note::take(&mut letter.attributes).map(|note| (note.outline, note.row(letter)))
}

/// Shows a summary as that of the letter in the log.
fn shown(summary: &mut LetterSummary) {
    if let Some(note) = Note::take(&mut summary.attributes) {
        summary.payload_size = note.size;
    }
}

impl<L: Log, S: Letters> Letters for Reading<L, S> {
    async fn get(&self, id: LetterId) -> Result<Option<DeadLetter>, StoreError> {
        Ok(self.get_all(vec![id]).await?.pop())
    }

    /// Letters whose payloads have gone from the log since it was read are left out.
    async fn get_all(&self, ids: Vec<LetterId>) -> Result<Vec<DeadLetter>, StoreError> {
        let rows = self.store.get_all(ids).await?.into_iter().filter_map(noted);
        let rows: Vec<(bool, Row<Origin>)> = rows.collect();
        let places = rows.iter().filter(|(_, row)| row.whole().is_none());
        // Missing payloads are fetched in one call, and the answers come in the order of these places.
        let places: Vec<Origin> = places.map(|(_, row)| row.place.clone()).collect();
        let found = if places.is_empty() { Vec::new() } else { self.log.at(places).await? };
        let mut found = found.into_iter();
        let whole = rows.into_iter().filter_map(|(is_outline, row)| {
            if row.whole().is_some() {
                return Some(row.letter);
            }
            let found = found.next().flatten()?;
            let payload = found.message.payload().cloned().unwrap_or_default();
            if is_outline {
                // The row was made of headers alone. The binding that they claim is checked here, where the bytes are known.
                let fits = Binding::of(&found.id, &found.message) == row.bytes;
                let mut letter = row.letter;
                letter.message = letter.message.with_payload(Some(payload));
                return fits.then_some(letter);
            }
            row.with_payload(payload)
        });
        self.log.complete(whole.collect()).await
    }

    async fn with_prefix(&self, digits: String, limit: u32) -> Result<Vec<LetterId>, StoreError> {
        self.store.with_prefix(digits, limit).await
    }

    async fn list(&self, filter: Filter, page: PageRequest) -> Result<Page, StoreError> {
        let mut page = self.store.list(filter, page).await?;
        page.letters.iter_mut().for_each(shown);
        Ok(page)
    }

    async fn count(&self, filter: Filter) -> Result<u64, StoreError> {
        self.store.count(filter).await
    }

    async fn groups(&self, filter: Filter, limit: u32) -> Result<Vec<Group>, StoreError> {
        let mut groups = self.store.groups(filter, limit).await?;
        groups.iter_mut().for_each(|group| shown(&mut group.sample));
        Ok(groups)
    }

    async fn stats(&self, filter: Filter) -> Result<Stats, StoreError> {
        self.store.stats(filter).await
    }

    async fn hours(
        &self,
        filter: Filter,
        since: Timestamp,
        hours: u32,
    ) -> Result<Hours, StoreError> {
        self.store.hours(filter, since, hours).await
    }
}

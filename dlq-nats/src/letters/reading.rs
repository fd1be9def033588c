use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::stream::{Info, RawMessageErrorKind};
use dlq_core::store::{Group, Letters, Stats};
use dlq_core::{DeadLetter, Filter, LetterId, Page, PageRequest, StoreError, StoreErrorKind};
use futures_util::{Stream, StreamExt, TryStreamExt, stream};

use super::ledger::Marks;
use super::scan::{Scan, Scanned};
use super::snapshot::{Row, Seen, Snapshot};
use super::stored::{NONE, Passed, payload};
use super::{NatsLetters, StoredLetter, ledger};
use crate::buckets;
use crate::place::Place;
use crate::publish::unwritable;
use crate::streams::find;

pub(super) const READING: &str = "read dead letters";
/// Of how many messages that were removed out of the stream it is asked which they are.
const HOLES: u64 = 10_000;

impl Letters for NatsLetters {
    async fn get(&self, id: LetterId) -> Result<Option<DeadLetter>, StoreError> {
        Ok(self.stored(id).await?.map(|stored| stored.letter))
    }

    async fn get_all(&self, ids: Vec<LetterId>) -> Result<Vec<DeadLetter>, StoreError> {
        let snapshot = self.snapshot().await?;
        let mut rows: Vec<_> = ids.iter().filter_map(|id| snapshot.letters.get(id)).collect();
        rows.sort_unstable_by_key(|row| row.place);
        let found = self.whole(&rows).map_ok(|(_, letter)| letter.into_owned());
        let found: Vec<_> = found.map_ok(|letter| (letter.id, letter)).try_collect().await?;
        let mut found: HashMap<_, _> = found.into_iter().collect();
        Ok(ids.iter().filter_map(|id| found.remove(id)).collect())
    }

    async fn with_prefix(&self, digits: String, limit: u32) -> Result<Vec<LetterId>, StoreError> {
        Ok(self.snapshot().await?.letters.with_prefix(&digits, limit))
    }

    async fn list(&self, filter: Filter, page: PageRequest) -> Result<Page, StoreError> {
        Ok(self.snapshot().await?.letters.page(&filter, page))
    }

    async fn count(&self, filter: Filter) -> Result<u64, StoreError> {
        Ok(self.snapshot().await?.letters.count(&filter))
    }

    async fn groups(&self, filter: Filter, limit: u32) -> Result<Vec<Group>, StoreError> {
        Ok(self.snapshot().await?.letters.groups(&filter, limit))
    }

    async fn stats(&self, filter: Filter) -> Result<Stats, StoreError> {
        Ok(self.snapshot().await?.letters.stats(&filter))
    }
}

impl NatsLetters {
    /// The latest death of a letter, payload and all, and where it stands; `None` when there is none, or no more.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub async fn stored(&self, id: LetterId) -> Result<Option<StoredLetter>, StoreError> {
        let snapshot = self.snapshot().await?;
        let Some(row) = snapshot.letters.get(&id) else { return Ok(None) };
        let sequence = row.place;
        if let Some(letter) = row.whole() {
            return Ok(Some(StoredLetter { letter: letter.clone(), sequence }));
        }
        let name = &self.stream.name;
        let stream = self.context.get_stream_no_info(name).await;
        let stream = stream.map_err(|error| unwritable(READING, error))?;
        let message = match stream.get_raw_message(sequence).await {
            Ok(message) => message,
            Err(error) if error.kind() == RawMessageErrorKind::NoMessageFound => return Ok(None),
            Err(error) => return Err(unwritable(READING, error)),
        };
        let payload = payload(&self.context, name, &message.headers, message.payload).await?;
        let letter = payload.and_then(|payload| row.with_payload(payload));
        Ok(letter.map(|letter| StoredLetter { letter, sequence }))
    }

    /// Every letter that matches with its payload, in the order in which they died; for few, or small ones: all are in
    /// memory at once.
    ///
    /// # Errors
    ///
    /// `NotFound` when there is no such stream, `Unavailable` when the server does not answer.
    pub async fn read(&self, filter: &Filter) -> Result<Vec<StoredLetter>, StoreError> {
        let snapshot = self.snapshot().await?;
        let mut rows: Vec<_> = snapshot.letters.matching(filter).collect();
        rows.sort_unstable_by_key(|row| row.place);
        let letters = self.whole(&rows).map_ok(|(sequence, letter)| {
            let letter = letter.into_owned();
            StoredLetter { letter, sequence }
        });
        let mut letters: Vec<_> = letters.try_collect().await?;
        letters.sort_unstable_by_key(|stored| stored.sequence);
        Ok(letters)
    }

    /// These letters, which come in the order of the stream, with their payloads and sequences: first those whose
    /// payloads are kept, and then those that are read. What has gone of the latter is left out.
    pub(super) fn whole<'a>(
        &self,
        rows: &[&'a Row],
    ) -> impl Stream<Item = Result<(u64, Cow<'a, DeadLetter>), StoreError>> + Send + use<'a> {
        let (kept, rows): (Vec<&Row>, Vec<&Row>) =
            rows.iter().partition(|row| row.whole().is_some());
        let kept = kept
            .into_iter()
            .filter_map(|row| row.whole().map(|letter| Ok((row.place, Cow::Borrowed(letter)))));
        let first = rows.first().map_or(0, |row| row.place);
        let last = rows.last().map_or(0, |row| row.place);
        let scan = self.messages(first, Some(last), false);
        let rows = rows.into_iter().peekable();
        let begin = (self.context.clone(), scan, rows, Passed::default());
        let read = stream::try_unfold(begin, |(context, mut scan, mut rows, mut passed)| async {
            while rows.peek().is_some() {
                let Some((message, place)) = scan.try_next().await? else { break };
                while rows.next_if(|row| row.place < place.sequence).is_some() {}
                let Some(row) = rows.next_if(|row| row.place == place.sequence) else {
                    continue;
                };
                let (headers, inline) = (message.headers.as_ref(), message.payload.clone());
                let headers = headers.unwrap_or(&NONE);
                let payload = payload(&context, &place.stream, headers, inline).await;
                let payload = passed.unless_damaged(payload, place.sequence)?;
                if let Some(letter) = payload.and_then(|payload| row.with_payload(payload)) {
                    let next = (context, scan, rows, passed);
                    return Ok(Some(((row.place, Cow::Owned(letter)), next)));
                }
            }
            Ok(None)
        });
        stream::iter(kept).chain(read)
    }

    /// What was written to the stream from this sequence on until now, copies and earlier deaths too, in the order of
    /// the stream.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub async fn scan_from(&self, sequence: u64) -> Result<LetterScan, StoreError> {
        self.scan(sequence, false).await
    }

    /// The same, and then what is written from now on. It never ends, and goes on after an error where it stood.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub async fn follow(&self, sequence: u64) -> Result<LetterScan, StoreError> {
        self.scan(sequence, true).await
    }

    async fn scan(&self, sequence: u64, follow: bool) -> Result<LetterScan, StoreError> {
        self.info().await?;
        Ok(self.scan_of(sequence, follow))
    }

    fn scan_of(&self, sequence: u64, follow: bool) -> LetterScan {
        let messages = self.messages(sequence, None, follow);
        let passed = Passed::default();
        LetterScan { letters: self.clone(), messages, next: None, passed, follow }
    }

    fn messages(&self, sequence: u64, to: Option<u64>, follow: bool) -> Scanned {
        let start_sequence = sequence.max(1);
        self.messages_from(DeliverPolicy::ByStartSequence { start_sequence }, to, follow)
    }

    fn messages_from(&self, from: DeliverPolicy, to: Option<u64>, follow: bool) -> Scanned {
        let scan = Scan {
            operation: READING,
            stream: self.stream.name.clone(),
            subject: format!("{}.>", self.stream.prefix),
            from,
            headers_only: false,
            to,
            follow,
        };
        scan.run(self.context.clone())
    }

    /// The letter in a message that a consumer of the stream was handed. `None`, and a warning, when it is none.
    ///
    /// # Errors
    ///
    /// `Unavailable` when a part of the letter that stands aside cannot be read.
    pub async fn letter_in(
        &self,
        message: &async_nats::jetstream::Message,
    ) -> Result<Option<StoredLetter>, StoreError> {
        match message.reply.as_ref().and_then(|reply| Place::read(reply)) {
            Some(place) => {
                let read = StoredLetter::read(&self.context, message, &place).await?;
                if read.is_none() {
                    Passed::default().foreign(place.sequence);
                }
                Ok(read)
            }
            None => Ok(None),
        }
    }

    pub(super) async fn info(&self) -> Result<Info, StoreError> {
        let name = &self.stream.name;
        let info = find(&self.context, name).await.map_err(|error| error.for_store(READING))?;
        info.ok_or_else(|| {
            let text = format!("there is no stream `{name}`");
            StoreError::new(StoreErrorKind::NotFound, READING).with_detail(text)
        })
    }

    /// The letters as they stand. What was read is not read again, unless something has gone and it cannot be known what.
    pub(super) async fn snapshot(&self) -> Result<Arc<Snapshot>, StoreError> {
        let mut kept = self.kept.lock().await;
        let info = self.info().await?;
        let seen = Seen::of(&info);
        let ledger = find(&self.context, &buckets::stream_of(&self.ledger)).await;
        let ledger = ledger.map_err(|error| error.for_store(READING))?;
        let marked = ledger.as_ref().map(Seen::of);
        let mut snapshot = match kept.take() {
            Some(kept) if kept.seen == seen => kept,
            Some(mut kept) => {
                if !self.goes_on(Arc::make_mut(&mut kept), &info).await? {
                    kept = Arc::new(self.collapsed(&info).await?);
                }
                kept
            }
            None => Arc::new(self.collapsed(&info).await?),
        };
        if snapshot.marked != marked {
            let marks = match &ledger {
                Some(_) => ledger::read(&self.context, &self.ledger).await?.marks,
                None => Marks::new(),
            };
            Arc::make_mut(&mut snapshot).mark(marked, marks);
        }
        *kept = Some(Arc::clone(&snapshot));
        Ok(snapshot)
    }

    async fn collapsed(&self, info: &Info) -> Result<Snapshot, StoreError> {
        let mut snapshot = Snapshot::new(Seen::of(info));
        let mut scan = self.scan_of(1, false);
        if let Some(start_time) = self.since.and_then(buckets::date_time) {
            let from = DeliverPolicy::ByStartTime { start_time };
            scan.messages = self.messages_from(from, None, false);
        }
        self.read_on(scan, &mut snapshot).await?;
        Ok(snapshot)
    }

    /// Reads what has come since, and forgets what has gone. `false` when that does not go with what was read before:
    /// then all of it is to be read.
    async fn goes_on(&self, snapshot: &mut Snapshot, info: &Info) -> Result<bool, StoreError> {
        let now = Seen::of(info);
        if now.created != snapshot.seen.created || now.last < snapshot.seen.last {
            return Ok(false);
        }
        if snapshot.seen.has_lost(&now) {
            let Some((first, holes)) = self.gone(info).await? else { return Ok(false) };
            if !snapshot.forget(|place| place < first || holes.contains(&place)) {
                return Ok(false);
            }
        }
        let Some(last) = snapshot.last else { return Ok(false) };
        let mut scan = self.scan_of(last.0, false);
        let again = scan.next().await?;
        if again.map(|again| (again.sequence, again.letter.death())) != Some(last) {
            return Ok(false);
        }
        snapshot.seen = now;
        self.read_on(scan, snapshot).await?;
        snapshot.mark_news();
        Ok(true)
    }

    /// What comes while it is read is for the next time.
    async fn read_on(&self, mut scan: LetterScan, into: &mut Snapshot) -> Result<(), StoreError> {
        while let Some(stored) = scan.next().await? {
            if stored.sequence > into.seen.last {
                break;
            }
            into.add(Row::new(stored.letter, stored.sequence));
        }
        Ok(())
    }

    /// What has gone of the stream: all before the first that is there, and these. `None` when they are too many.
    async fn gone(&self, info: &Info) -> Result<Option<(u64, HashSet<u64>)>, StoreError> {
        match info.state.deleted_count.unwrap_or(0) {
            0 => Ok(Some((info.state.first_sequence, HashSet::new()))),
            1..=HOLES => {
                let stream = self.context.get_stream_no_info(&self.stream.name).await;
                let stream = stream.map_err(|error| unwritable(READING, error))?;
                let told = stream.info_builder().with_deleted(true).fetch().await;
                let state = told.map_err(|error| unwritable(READING, error))?.info.state;
                let holes = state.deleted.into_iter().flatten().collect();
                Ok(Some((state.first_sequence, holes)))
            }
            _ => Ok(None),
        }
    }
}

/// Letters in the order of their stream, one for each message that is one. Made by [`NatsLetters::scan_from`] and
/// [`NatsLetters::follow`].
#[must_use = "it reads nothing unless it is asked for the next letter"]
pub struct LetterScan {
    letters: NatsLetters,
    messages: Scanned,
    /// A message that was taken and whose parts are not read yet.
    next: Option<(async_nats::jetstream::Message, Place)>,
    passed: Passed,
    follow: bool,
}

impl LetterScan {
    /// The next letter; `None` at the end of a scan that does not follow.
    ///
    /// # Errors
    ///
    /// When the server does not answer. A scan that follows can be asked again.
    ///
    /// # Cancel safety
    ///
    /// No letter is lost when the future is dropped.
    pub async fn next(&mut self) -> Result<Option<StoredLetter>, StoreError> {
        loop {
            let (message, place) = match &self.next {
                Some(next) => next,
                None => match self.messages.try_next().await? {
                    Some(next) => self.next.insert(next),
                    None => {
                        self.passed.tell();
                        return Ok(None);
                    }
                },
            };
            let read = StoredLetter::read(&self.letters.context, message, place).await;
            let is_foreign = matches!(read, Ok(None));
            let sequence = place.sequence;
            let read = self.passed.unless_damaged(read, sequence)?;
            self.next = None;
            if read.is_some() {
                return Ok(read);
            }
            if is_foreign {
                self.passed.foreign(sequence);
            }
            if self.follow {
                self.passed.tell_now_and_then();
            }
        }
    }

    /// The letters as a stream, which ends where the scan does.
    pub fn into_stream(self) -> impl Stream<Item = Result<StoredLetter, StoreError>> {
        stream::unfold(self, |mut scan| async {
            scan.next().await.transpose().map(|next| (next, scan))
        })
        .boxed()
    }
}

impl std::fmt::Debug for LetterScan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LetterScan").field("letters", &self.letters).finish_non_exhaustive()
    }
}

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use dlq_core::store::{Group, Letters, Stats};
use dlq_core::{DeadLetter, Filter, LetterId, Page, PageRequest, StoreError, StoreErrorKind};
use futures_util::{Stream, StreamExt, TryStreamExt, stream};

use super::lookup::Partitions;
use super::pointed::{Unread, Wanted};
use super::range::Span;
use super::records::Records;
use super::snapshot::{Fresh, Place, Row, Snapshot};
use super::stored::{Pointer, refilled, resolved, says_gone, says_unread};
use super::{KafkaLetters, ScanProgress, ScanRange, StoredLetter};
use crate::dialect;
use crate::error::SetupError;

pub(super) const READING: &str = "read dead letters";

/// A letter with its message, or why that cannot be read.
pub(super) type Whole<'a> = Result<Cow<'a, DeadLetter>, Unread>;

pub(super) fn unread(error: SetupError) -> StoreError {
    error.for_store(READING)
}

impl Letters for KafkaLetters {
    async fn get(&self, id: LetterId) -> Result<Option<DeadLetter>, StoreError> {
        Ok(self.get_all(vec![id]).await?.pop())
    }

    async fn get_all(&self, ids: Vec<LetterId>) -> Result<Vec<DeadLetter>, StoreError> {
        let snapshot = self.snapshot().await?;
        let rows: Vec<_> = ids.iter().filter_map(|id| snapshot.letters.get(id)).collect();
        let mut found: HashMap<_, _> = self.whole(&rows).try_collect().await?;
        let whole = rows.into_iter().filter_map(|row| match found.remove(&row.place) {
            Some(read) => Some(told(row, read)),
            None => Pointer::of(&row.letter).map(|_| says_gone(row.letter.clone())),
        });
        let unclear = |mut letter: DeadLetter| {
            snapshot.sent.says_unclear(&mut letter);
            letter
        };
        Ok(whole.map(unclear).collect())
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

impl KafkaLetters {
    /// The latest death of a letter, payload and all, and where it stands; `None` when there is none, or no more.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read); `NotFound` too when the letter only points to its message, and that has gone,
    /// `InvalidConfig` when that may not or cannot be read.
    pub async fn stored(&self, id: LetterId) -> Result<Option<StoredLetter>, StoreError> {
        let snapshot = self.snapshot().await?;
        let Some(row) = snapshot.letters.get(&id) else { return Ok(None) };
        self.stored_in(row).await
    }

    async fn stored_in(&self, row: &Row) -> Result<Option<StoredLetter>, StoreError> {
        let mut found = std::pin::pin!(self.whole(&[row]));
        if let Some((place, read)) = found.try_next().await? {
            let letter = read.map_err(|why| why.error(READING))?;
            return Ok(Some(StoredLetter::new(letter.into_owned(), place)));
        }
        match Pointer::of(&row.letter) {
            Some(pointer) => Err(gone(&pointer)),
            None => Ok(None),
        }
    }

    /// A letter of a [scan](Self::scan) with its message, where it only points to that.
    ///
    /// # Errors
    ///
    /// `NotFound` when the message has gone, `InvalidConfig` when it may not or cannot be read, `Unavailable` when the
    /// cluster does not answer.
    pub async fn resolved(&self, stored: StoredLetter) -> Result<StoredLetter, StoreError> {
        let Some(pointer) = Pointer::of(&stored.letter) else { return Ok(stored) };
        let wanted = Wanted::from([((pointer.partition, pointer.offset), vec![()])]);
        let mut found = std::pin::pin!(self.pointed(pointer.topic, wanted));
        let ((), read) = found.try_next().await?.ok_or_else(|| gone(&pointer))?;
        let record = read.map_err(|why| why.error(READING))?;
        let letter = resolved(stored.letter.clone(), &record).ok_or_else(|| gone(&pointer))?;
        Ok(StoredLetter { letter, ..stored })
    }

    /// Every letter that matches with its payload, in the order in which they were written; for few, or small ones: all
    /// are in memory at once. What has gone is left out; what cannot be read says so.
    ///
    /// # Errors
    ///
    /// `NotFound` when there is no such topic, `Unavailable` when the cluster does not answer.
    pub async fn read(&self, filter: &Filter) -> Result<Vec<StoredLetter>, StoreError> {
        let snapshot = self.snapshot().await?;
        let rows: Vec<_> = snapshot.letters.matching(filter).collect();
        let mut found: HashMap<_, _> = self.whole(&rows).try_collect().await?;
        let mut letters: Vec<_> = rows
            .into_iter()
            .filter_map(|row| Some((row.place, told(row, found.remove(&row.place)?))))
            .collect();
        letters.sort_unstable_by_key(|(place, _)| *place);
        let stored = |(place, letter)| StoredLetter::new(letter, place);
        Ok(letters.into_iter().map(stored).collect())
    }

    /// These letters with their payloads: first those whose payloads are kept, then those that are read, in the order of
    /// each partition, and last those that only point to their messages, or why these cannot be read. What has gone is
    /// left out.
    pub(super) fn whole<'a>(
        &self,
        rows: &[&'a Row],
    ) -> impl Stream<Item = Result<(Place, Whole<'a>), StoreError>> + Send + use<'a> {
        let mut kept = Vec::new();
        let mut large = HashMap::new();
        let mut pointed: BTreeMap<&str, Wanted<&Row>> = BTreeMap::new();
        for &row in rows {
            if let Some(pointer) = Pointer::of(&row.letter) {
                let rows = pointed.entry(pointer.topic).or_default();
                rows.entry((pointer.partition, pointer.offset)).or_default().push(row);
            } else if let Some(letter) = row.whole() {
                kept.push(Ok((row.place, Ok(Cow::Borrowed(letter)))));
            } else {
                large.insert((row.place.partition, row.place.offset), vec![row]);
            }
        }
        let cluster = Arc::clone(self.lookup.brokers.cluster_shared());
        let large = self.lookup.located(&self.topic, large).try_filter_map(move |(row, record)| {
            let letter = refilled(row, &record, &cluster);
            std::future::ready(Ok(letter.map(|letter| (row.place, Ok(Cow::Owned(letter))))))
        });
        let letters = self.clone();
        let pointed = stream::iter(pointed).flat_map(move |(topic, rows)| {
            letters.pointed(topic, rows).try_filter_map(|(row, read)| {
                let whole = read.map(|record| resolved(row.letter.clone(), &record)).transpose();
                std::future::ready(Ok(whole.map(|read| (row.place, read.map(Cow::Owned)))))
            })
        });
        stream::iter(kept).chain(large).chain(pointed)
    }

    /// The letters of the records in a range as they stand now, copies and earlier deaths too, in the order of each
    /// partition.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read); `NotFound` too when there is no such partition.
    pub async fn scan(&self, range: &ScanRange) -> Result<LetterScan, StoreError> {
        self.scan_of(range, false).await
    }

    /// The same, and then what is written from now on to the partitions that are there now. Unless the range ends, it
    /// never ends, and goes on by itself when brokers come back.
    ///
    /// # Errors
    ///
    /// As [`scan`](Self::scan).
    pub async fn follow(&self, range: &ScanRange) -> Result<LetterScan, StoreError> {
        self.scan_of(range, true).await
    }

    async fn scan_of(&self, range: &ScanRange, follow: bool) -> Result<LetterScan, StoreError> {
        let there = self.lookup.partitions(&self.topic).await.map_err(unread)?;
        let mut spans = self.spans(range, &there).await?;
        let total = spans.iter().map(Span::len).sum();
        if follow {
            spans.iter_mut().for_each(|span| span.to = range.to());
        }
        let records = self.lookup.scan(&self.topic, vec![spans], follow, total).map_err(unread)?;
        let cluster = Arc::clone(self.lookup.brokers.cluster_shared());
        Ok(LetterScan { cluster, range: range.clone(), records })
    }

    async fn spans(&self, range: &ScanRange, there: &Partitions) -> Result<Vec<Span>, StoreError> {
        let begins = match range.since() {
            Some(since) => self.lookup.since(&self.topic, there, since).await.map_err(unread)?,
            None => BTreeMap::new(),
        };
        range.spans(&self.topic, there, &begins).map_err(unread)
    }

    /// The letters as they stand, and what was sent back of them.
    pub(super) async fn snapshot(&self) -> Result<Arc<Snapshot>, StoreError> {
        let mut kept = self.kept.lock().await;
        let before = kept.as_ref().map(Arc::downgrade);
        let mut snapshot = self.read_again(&mut kept).await?;
        let is_same = before.is_some_and(|before| before.as_ptr() == Arc::as_ptr(&snapshot));
        if !is_same {
            // Until it is marked: what comes now may fail.
            *kept = None;
        }
        let sent = snapshot.sent.news(&self.lookup, &self.ledger).await.map_err(unread)?;
        if is_same && sent.is_none() {
            return Ok(snapshot);
        }
        *kept = None;
        let news = Arc::make_mut(&mut snapshot);
        if let Some(sent) = sent {
            news.sent = sent;
        }
        news.mark();
        *kept = Some(Arc::clone(&snapshot));
        Ok(snapshot)
    }

    /// The topic is read again only when something has gone; what has come is read.
    async fn read_again(
        &self,
        kept: &mut Option<Arc<Snapshot>>,
    ) -> Result<Arc<Snapshot>, StoreError> {
        let now = self.lookup.partitions(&self.topic).await.map_err(unread)?;
        if let Some(kept) = kept.as_ref().filter(|kept| kept.seen == now) {
            return Ok(Arc::clone(kept));
        }
        let news = kept.as_ref().filter(|_| self.range.is_all()).and_then(|kept| kept.news(&now));
        if let Some(spans) = news {
            let fresh = self.fresh(spans).await?;
            let before = kept.take().map(Arc::unwrap_or_clone);
            if let Some(snapshot) = before.and_then(|before| before.with(&now, fresh)) {
                return Ok(Arc::clone(kept.insert(Arc::new(snapshot))));
            }
        }
        // What is said of the range is checked here too.
        self.range.spans(&self.topic, &now, &BTreeMap::new()).map_err(unread)?;
        let all = match self.range.since() {
            Some(since) => ScanRange::new().with_since(since),
            None => ScanRange::new(),
        };
        let fresh = self.fresh(self.spans(&all, &now).await?).await?;
        let mut snapshot = Snapshot::of(now, fresh);
        if !self.range.is_all() {
            snapshot
                .letters
                .retain(|row| row.place.is_in(&self.range) && self.range.selects(&row.letter));
        }
        Ok(Arc::clone(kept.insert(Arc::new(snapshot))))
    }

    async fn fresh(&self, spans: Vec<Span>) -> Result<Fresh, StoreError> {
        let total = spans.iter().map(Span::len).sum();
        let mut records =
            self.lookup.scan(&self.topic, vec![spans], false, total).map_err(unread)?;
        let cluster = self.lookup.brokers.cluster_shared();
        let (mut fresh, mut told) = (Fresh::default(), None);
        let mut tell = |progress: ScanProgress| {
            if let Some(tell) = self.progress.as_ref().filter(|_| told != Some(progress)) {
                tell(progress);
            }
            told = Some(progress);
        };
        tell(records.progress());
        while let Some(record) = records.next().await.map_err(unread)? {
            fresh.add(dialect::letter(&record, cluster), Place::of(&record));
            tell(records.progress());
        }
        tell(records.progress());
        Ok(fresh)
    }
}

/// The letter as it is shown.
fn told(row: &Row, read: Whole<'_>) -> DeadLetter {
    match read {
        Ok(letter) => letter.into_owned(),
        Err(why) => says_unread(row.letter.clone(), &why),
    }
}

fn gone(pointer: &Pointer<'_>) -> StoreError {
    let text =
        format!("the letter only says where its message stood, {pointer}, and that has gone");
    StoreError::new(StoreErrorKind::NotFound, READING).with_detail(text)
}

/// Letters in the order of each partition, one for each record. Made by [`KafkaLetters::scan`] and
/// [`KafkaLetters::follow`].
#[derive(Debug)]
#[must_use = "it gives nothing unless it is asked for the next letter"]
pub struct LetterScan {
    cluster: Arc<str>,
    range: ScanRange,
    records: Records,
}

impl LetterScan {
    /// The next letter; `None` at the end. What only [points](KafkaLetters) to its message comes without it; see
    /// [`KafkaLetters::resolved`].
    ///
    /// # Errors
    ///
    /// When the cluster does not answer, or the topic cannot be read. A scan that follows can be asked again, and goes on
    /// when the brokers are back; where it cannot go on it says so.
    ///
    /// # Cancel safety
    ///
    /// No letter is lost when the future is dropped.
    pub async fn next(&mut self) -> Result<Option<StoredLetter>, StoreError> {
        while let Some(record) = self.records.next().await.map_err(unread)? {
            let place = Place::of(&record);
            if place.is_in(&self.range) {
                let letter = dialect::letter(&record, &self.cluster);
                if self.range.selects(&letter) {
                    return Ok(Some(StoredLetter::new(letter, place)));
                }
            }
        }
        Ok(None)
    }

    /// Returns the progress of the reading.
    #[must_use]
    pub fn progress(&self) -> ScanProgress {
        self.records.progress()
    }

    /// The letters as a stream, which ends where the scan does.
    pub fn into_stream(self) -> impl Stream<Item = Result<StoredLetter, StoreError>> + Send {
        stream::unfold(self, |mut scan| async {
            scan.next().await.transpose().map(|next| (next, scan))
        })
    }
}

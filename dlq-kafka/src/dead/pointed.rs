//! Messages that are not with their letters: fetched from where these say that they stand, topic by topic.
//!
//! A topic that may not be read, and a broker that is away, concern the letters that point there, and no others. What
//! concerns the whole cluster is an error: that it is away, or refuses the login.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::pin::pin;
use std::sync::Arc;

use dlq_core::{DeadLetter, StoreError, StoreErrorKind};
use futures_util::{Stream, TryStreamExt as _, stream};

use super::KafkaLetters;
use super::lookup::Lookup;
use super::reading::unread;
use super::records::Records;
use super::stored::{Pointer, resolved};
use crate::client::aside::leave;
use crate::client::error::SetupError;
use crate::client::record::Record;

/// Leader of a partition whose brokers are away.
const NOBODY: i32 = -1;

/// Reason why the message of a letter cannot be read.
#[derive(Clone, Debug)]
pub(crate) struct Unread {
    kind: StoreErrorKind,
    why: String,
    /// True if a transaction that may not have ended holds it back.
    is_held: bool,
}

impl Unread {
    /// Returns true if it may be there later.
    pub(crate) fn is_passing(&self) -> bool {
        self.kind == StoreErrorKind::Unavailable
    }

    pub(crate) fn error(&self, operation: &'static str) -> StoreError {
        let text = format!("the message that a letter points to cannot be read: {}", self.why);
        StoreError::new(self.kind, operation).with_detail(text)
    }
}

impl std::fmt::Display for Unread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.why)
    }
}

/// Requested records of a topic, by partition and offset.
pub(super) type Wanted<T> = BTreeMap<(u32, u64), Vec<T>>;

/// A requested record, or the reason why it cannot be read.
type Fetched<T> = (T, Result<Record, Unread>);

/// Requested records of one topic while it is read.
struct Fetching<T> {
    letters: KafkaLetters,
    topic: Arc<str>,
    parts: Vec<Wanted<T>>,
    open: Option<(Wanted<T>, Records)>,
    found: VecDeque<Fetched<T>>,
}

impl<T> Fetching<T> {
    async fn next(&mut self) -> Result<Option<Fetched<T>>, StoreError> {
        loop {
            if let Some(found) = self.found.pop_front() {
                return Ok(Some(found));
            }
            let (wanted, error) = match self.open.take() {
                Some((mut wanted, mut records)) => match records.next().await {
                    Ok(Some(record)) => {
                        let found = wanted.remove(&(record.partition, record.offset));
                        let found = found.into_iter().flatten();
                        self.found.extend(found.map(|one| (one, Ok(record.clone()))));
                        self.open = Some((wanted, records));
                        continue;
                    }
                    // What is left has gone.
                    Ok(None) => continue,
                    Err(error) => (wanted, error),
                },
                None => {
                    let Some(mut wanted) = self.parts.pop() else { return Ok(None) };
                    let places = wanted.keys().copied().collect();
                    match self.letters.lookup.records(Arc::clone(&self.topic), places).await {
                        Ok((records, later)) => {
                            for (place, why) in later {
                                let kind = StoreErrorKind::Unavailable;
                                let why = Unread { kind, why, is_held: true };
                                let hidden = wanted.remove(&place).into_iter().flatten();
                                self.found.extend(hidden.map(|one| (one, Err(why.clone()))));
                            }
                            self.open = Some((wanted, records));
                            continue;
                        }
                        Err(error) => (wanted, error),
                    }
                }
            };
            self.failed(wanted, error).await?;
        }
    }

    /// None of these could be read, for one reason.
    async fn failed(&mut self, mut wanted: Wanted<T>, error: SetupError) -> Result<(), StoreError> {
        let kind = match &error {
            // The messages are gone with their topic, and what is not found is told as gone.
            SetupError::NotFound(_) => return Ok(()),
            SetupError::Unreadable(_) => {
                // Which of them it is is found by halves.
                let middle = wanted.keys().nth(wanted.len() / 2).copied();
                if let Some(middle) = middle.filter(|_| wanted.len() > 1) {
                    self.parts.extend([wanted.split_off(&middle), wanted]);
                    return Ok(());
                }
                StoreErrorKind::InvalidConfig
            }
            SetupError::Forbidden(_) => StoreErrorKind::InvalidConfig,
            // A wrong setting or a refused login concerns every letter, so it is not told of these alone.
            SetupError::Config(_) => return Err(unread(error)),
            SetupError::Unavailable(..) => {
                // Where the whole cluster is away that is no matter of this topic. A connection that stands does not
                // say whether new ones are let in.
                let anew = Lookup::new(&self.letters.lookup.brokers);
                // Who leads what is asked of any broker: one that is away may have led a part of this topic as well.
                let there = anew.leaders(&self.letters.topic).await;
                // Closing it may block.
                leave(move || drop(anew));
                match there {
                    // Who says that of a topic is there: one that is deleted may be about to be made anew.
                    Ok(_) | Err(SetupError::NotFound(_) | SetupError::Forbidden(_)) => {}
                    Err(error) => return Err(unread(error)),
                }
                let mut parts = self.by_leader(wanted).await;
                wanted = match parts.len() {
                    // What is led by nobody need not be asked for again.
                    2.. => parts.remove(&Some(NOBODY)),
                    _ => parts.pop_first().map(|(_, wanted)| wanted),
                }
                .unwrap_or_default();
                self.parts.extend(parts.into_values());
                if wanted.is_empty() {
                    return Ok(());
                }
                StoreErrorKind::Unavailable
            }
        };
        let why = Unread { kind, why: error.to_string(), is_held: false };
        tracing::warn!(
            topic = &*self.topic,
            letters = wanted.values().map(Vec::len).sum::<usize>(),
            why = why.why,
            "the messages that letters point to cannot be read"
        );
        let wanted = wanted.into_values().flatten();
        self.found.extend(wanted.map(|one| (one, Err(why.clone()))));
        Ok(())
    }

    /// Groups the requested records by broker; those without a leader are under [`NOBODY`].
    async fn by_leader(&mut self, wanted: Wanted<T>) -> BTreeMap<Option<i32>, Wanted<T>> {
        // Where that is not known they stay together.
        let leaders = self.letters.lookup.leaders(&self.topic).await.unwrap_or_default();
        let mut parts: BTreeMap<Option<i32>, Wanted<T>> = BTreeMap::new();
        for (at, letters) in wanted {
            let leader = leaders.get(&at.0).copied();
            parts.entry(leader).or_default().insert(at, letters);
        }
        parts
    }
}

impl KafkaLetters {
    /// Reads the requested records of this topic, as far as they exist. An error concerns all of them: the cluster is
    /// away.
    pub(super) fn pointed<T: Send>(
        &self,
        topic: &str,
        wanted: Wanted<T>,
    ) -> impl Stream<Item = Result<Fetched<T>, StoreError>> + Send + use<T> {
        let fetching = Fetching {
            letters: self.clone(),
            topic: topic.into(),
            parts: vec![wanted],
            open: None,
            found: VecDeque::new(),
        };
        stream::try_unfold(fetching, |mut fetching| async move {
            Ok(fetching.next().await?.map(|found| (found, fetching)))
        })
    }

    /// Gives these letters the messages to which they point, and says of those that have none of which it has gone or
    /// cannot be read: why, by their places. What came of each partition is told once: why some of it is away, if any is. What
    /// cannot be read is an error where that `may_wait`. Letters whose message a transaction holds back, of which
    /// `may_be_open` says that it may not have ended yet, are told apart: they are to be asked for again.
    ///
    /// # Errors
    ///
    /// When the cluster does not answer or refuses the login, or a message has to be waited for.
    pub(crate) async fn complete(
        &self,
        letters: &mut [DeadLetter],
        mut may_wait: impl FnMut((&str, u32), Option<&Unread>) -> bool + Send,
        may_be_open: impl Fn(usize) -> bool + Send,
    ) -> Result<Completed, StoreError> {
        let mut open = BTreeMap::new();
        let mut pointed: BTreeMap<String, Wanted<usize>> = BTreeMap::new();
        let mut missing = BTreeMap::new();
        for (index, letter) in letters.iter().enumerate() {
            let Some(pointer) = Pointer::of(letter) else { continue };
            let wanted = pointed.entry(pointer.topic.to_owned()).or_default();
            wanted.entry((pointer.partition, pointer.offset)).or_default().push(index);
            // All count as gone at first. What is found takes its letter out again, so that none is left without an answer.
            missing.insert(index, format!("its message, {pointer}, has gone"));
        }
        let mut waits = None;
        // All are asked, so that they are waited for at the same time.
        for (topic, wanted) in pointed {
            let partitions: BTreeSet<u32> =
                wanted.keys().map(|(partition, _)| *partition).collect();
            let wanted = wanted.into_iter().map(|((partition, offset), letters)| {
                let letters = letters.into_iter().map(|index| (index, partition)).collect();
                ((partition, offset), letters)
            });
            let found = self.pointed(&topic, wanted.collect());
            let Unfilled { mut away, held } = filled(found, letters, &mut missing).await?;
            for (index, partition, why) in held {
                if may_be_open(index) {
                    missing.remove(&index);
                    open.insert(index, why.error(super::reading::READING));
                } else {
                    away.insert(partition, why);
                }
            }
            for partition in partitions {
                let why = away.remove(&partition);
                if may_wait((topic.as_str(), partition), why.as_ref()) {
                    waits = waits.or(why.map(|why| why.error(super::reading::READING)));
                }
            }
        }
        waits.map_or(Ok(Completed { missing, open }), Err)
    }
}

/// The letters without their messages, by their places.
#[derive(Debug)]
pub(crate) struct Completed {
    /// Letters whose message has gone or cannot be read, and why.
    pub(crate) missing: BTreeMap<usize, String>,
    /// Letters whose message may come once a transaction has ended.
    pub(crate) open: BTreeMap<usize, StoreError>,
}

/// Records that may be there later.
#[derive(Default)]
struct Unfilled {
    /// Partitions of which a record is away, and the reason. Another record of the partition does not prove that it is
    /// back.
    away: BTreeMap<u32, Unread>,
    /// Letters that wait for the end of a transaction, with the partitions of their messages.
    held: Vec<(usize, u32, Unread)>,
}

/// Gives letters what was found, or says why it is missing.
async fn filled(
    found: impl Stream<Item = Result<Fetched<(usize, u32)>, StoreError>>,
    letters: &mut [DeadLetter],
    missing: &mut BTreeMap<usize, String>,
) -> Result<Unfilled, StoreError> {
    let mut unfilled = Unfilled::default();
    let mut found = pin!(found);
    while let Some(((index, partition), read)) = found.try_next().await? {
        match read {
            Ok(record) => {
                // Where another record stands there by now, the letter stays among those whose message has gone.
                if let Some(letter) = resolved(letters[index].clone(), &record) {
                    missing.remove(&index);
                    letters[index] = letter;
                }
            }
            Err(why) => {
                missing.insert(index, format!("its message cannot be read: {why}"));
                if why.is_held {
                    unfilled.held.push((index, partition, why));
                } else if why.is_passing() {
                    unfilled.away.insert(partition, why);
                }
            }
        }
    }
    Ok(unfilled)
}

#[cfg(test)]
#[path = "pointed_tests.rs"]
mod tests;

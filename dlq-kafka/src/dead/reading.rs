use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use dlq_core::{DeadLetter, StoreError};
use futures_util::{Stream, StreamExt, TryStreamExt, stream};

use super::KafkaLetters;
use super::picture::{LetterPosition, Row};
use super::pointed::{Unread, Wanted};
use super::stored::{Pointer, refilled, resolved, says_gone, says_unread};
use crate::client::error::SetupError;

pub(super) const READING: &str = "read dead letters";

/// A letter with its message, or why that cannot be read.
pub(super) type Whole<'a> = Result<Cow<'a, DeadLetter>, Unread>;

pub(super) fn unread(error: SetupError) -> StoreError {
    error.for_store(READING)
}

impl KafkaLetters {
    /// Gives the messages to those of these letters that only point to them. A letter whose message has gone, or cannot be
    /// read, says so.
    pub(super) async fn pointed_to(
        &self,
        letters: Vec<DeadLetter>,
    ) -> Result<Vec<DeadLetter>, StoreError> {
        // Gathered by topic, so that each is read once for all letters that point there.
        let mut pointed: BTreeMap<String, Wanted<usize>> = BTreeMap::new();
        for (index, letter) in letters.iter().enumerate() {
            if let Some(pointer) = Pointer::of(letter) {
                let wanted = pointed.entry(pointer.topic.to_owned()).or_default();
                wanted.entry((pointer.partition, pointer.offset)).or_default().push(index);
            }
        }
        let mut found = HashMap::new();
        for (topic, wanted) in pointed {
            let read: Vec<_> = self.pointed(&topic, wanted).try_collect().await?;
            found.extend(read);
        }
        let whole = letters.into_iter().enumerate().map(|(index, letter)| {
            if Pointer::of(&letter).is_none() {
                return letter;
            }
            match found.remove(&index) {
                Some(Ok(record)) => match resolved(letter.clone(), &record) {
                    Some(letter) => letter,
                    // Another record stands there by now.
                    None => says_gone(letter),
                },
                Some(Err(why)) => says_unread(letter, &why),
                None => says_gone(letter),
            }
        });
        Ok(whole.collect())
    }

    /// These letters with their payloads: first those whose payloads are kept, then those that are read, in the order of
    /// each partition, and last those that only point to their messages, or why these cannot be read. What has gone is
    /// left out.
    pub(super) fn whole<'a>(
        &self,
        rows: &[&'a Row],
    ) -> impl Stream<Item = Result<(LetterPosition, Whole<'a>), StoreError>> + Send + use<'a> {
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
}

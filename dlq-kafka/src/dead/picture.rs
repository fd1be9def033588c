use std::sync::Arc;

use dlq_core::log::Range;
use dlq_core::store::reading;
use dlq_core::{Filter, Origin, StoreError, Timestamp};
use dlq_letters::log::{Reading, fill};
use dlq_letters::memory::MemoryStore;

use super::entries::{ReadEntries, Says, place_of};
use super::lookup::Partitions;
use super::reading::unread;
use super::sent::SentBack;
use super::{KafkaLetters, ScanRange};

/// Position of a letter, and when it was seen first. The order of positions is the order in which letters are sent: the same
/// for everyone who reads, however the partitions came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct LetterPosition {
    at: Timestamp,
    pub(super) partition: u32,
    pub(super) offset: u64,
}

/// A letter and its place.
pub(super) type Row = reading::Row<LetterPosition>;

/// The letters of a range as they stood when the topic was read, and what was sent back.
#[derive(Clone, Debug)]
pub(super) struct Picture {
    /// Ends of the partitions before they were read.
    pub(super) seen: Partitions,
    pub(super) sent: SentBack,
    rows: Vec<Row>,
}

impl Picture {
    /// Returns the letters that match, oldest first.
    pub(super) fn matching<'a>(&'a self, filter: &'a Filter) -> impl Iterator<Item = &'a Row> {
        self.rows.iter().filter(|row| filter.matches(&row.letter))
    }
}

impl KafkaLetters {
    /// Returns the letters as they stand; `before` if nothing was written or removed since.
    pub(super) async fn picture(
        &self,
        before: Option<Arc<Picture>>,
    ) -> Result<Arc<Picture>, StoreError> {
        let KafkaLetters { lookup, topic, ledger, range, .. } = self;
        // The ends are read before the letters: what is written meanwhile lies beyond and belongs to no plan of this picture.
        let seen = lookup.partitions(topic).await.map_err(unread)?;
        range.check(topic, &seen).map_err(unread)?;
        if let Some(before) = before.filter(|before| before.seen == seen)
            && before.sent.news(lookup, ledger).await.map_err(unread)?.is_none()
        {
            return Ok(before);
        }
        let store = MemoryStore::new();
        let mut entries = ReadEntries::open(self.clone(), Range::all(), Says::Nothing).await?;
        // Through a store in memory, so that copies and several deaths become one letter by the same rules as in any store.
        fill(&mut entries, &store, u64::MAX).await?;
        // The ledger is read after the letters, so none is taken for unsent that was sent meanwhile.
        let sent = SentBack::default();
        let sent = sent.news(lookup, ledger).await.map_err(unread)?.unwrap_or(sent);
        // What was sent back is a part of what filters are asked about.
        let all = Reading::new(self.clone(), store).rows(&Filter::new()).await?;
        let rows = all.into_iter().filter(|row| range.includes(row)).filter_map(|row| {
            let reading::Row { mut letter, place, size, bytes, .. } = row;
            let (partition, offset) = place_of(&place)?;
            let place = LetterPosition { at: letter.state.created_at, partition, offset };
            if let Some(sent) = sent.sent(&letter.death()) {
                sent.mark(&mut letter.state);
            }
            Some(Row::kept(letter, place, size, bytes))
        });
        let rows = rows.collect();
        Ok(Arc::new(Picture { seen, sent, rows }))
    }
}

impl ScanRange {
    /// Returns true if a letter of a [reading](dlq_letters::log) is selected, by its last death and its message.
    #[must_use]
    pub fn includes(&self, row: &reading::Row<Origin>) -> bool {
        let at = place_of(&row.place);
        at.is_some_and(|(partition, offset)| self.contains(partition, offset))
            && self.selects(&row.letter)
    }
}

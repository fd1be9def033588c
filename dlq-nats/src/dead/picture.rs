use std::sync::Arc;

use dlq_core::log::Range;
use dlq_core::store::reading::{self, Sent};
use dlq_core::{Filter, StoreError};
use dlq_letters::log::{Reading, fill};
use dlq_letters::memory::MemoryStore;

use super::NatsLetters;
use super::entries::{ReadEntries, Says, sequence};
use super::ledger::{self, Marks};
use super::reading::READING;
use super::seen::Seen;
use crate::client::buckets;
use crate::client::streams::find;

/// A letter and its sequence.
pub(super) type Row = reading::Row<u64>;

/// The letters that match a filter as they stood when the stream was read, and what was sent back of all.
#[derive(Clone, Debug)]
pub(super) struct Picture {
    pub(super) seen: Seen,
    /// The state of the ledger, where there is one.
    marked: Option<Seen>,
    pub(super) marks: Marks,
    pub(super) rows: Vec<Row>,
}

impl NatsLetters {
    /// Returns the letters that match as they stand; `before` if nothing has come or gone since.
    pub(super) async fn picture(
        &self,
        filter: &Filter,
        before: Option<Arc<Picture>>,
    ) -> Result<Arc<Picture>, StoreError> {
        // The state is noted before the letters are read: what comes or goes meanwhile makes the next picture differ.
        let seen = Seen::of(&self.info().await?);
        let ledger = find(&self.context, &buckets::stream_of(&self.ledger)).await;
        let marked = ledger.map_err(|error| error.for_store(READING))?.as_ref().map(Seen::of);
        if let Some(before) = before.filter(|it| it.seen == seen && it.marked == marked) {
            return Ok(before);
        }
        // A store in memory takes the copies of a death for one letter, as every other store does.
        let store = MemoryStore::new();
        let mut entries = ReadEntries::open(self.clone(), Range::all(), Says::Nothing).await?;
        fill(&mut entries, &store, u64::MAX).await?;
        let marks = match &marked {
            Some(_) => ledger::read(&self.context, &self.ledger).await?.marks,
            None => Marks::new(),
        };
        // What was sent back is a part of what the filter is asked about.
        let all = Reading::new(self.clone(), store).rows(&Filter::new()).await?;
        let rows = all.into_iter().map(|row| {
            let reading::Row { mut letter, place, size, bytes, .. } = row;
            if let Some(mark) = marks.get(&letter.death()) {
                Sent { at: mark.at, times: mark.times }.mark(&mut letter.state);
            }
            Row::kept(letter, sequence(place.position()), size, bytes)
        });
        let rows = rows.filter(|row| filter.matches(&row.letter)).collect();
        Ok(Arc::new(Picture { seen, marked, marks, rows }))
    }
}

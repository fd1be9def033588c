//! Letters of the same original message become one.

use dlq_core::store::{Actor, ItemOutcome, rules};
use dlq_core::{LetterId, Status, StoreErrorKind};

use super::batch::Batch;
use super::codec::Fields;
use super::query::Query;
use super::unit::Unit;
use crate::error::{Fault, Result};
use crate::row::{Changed, Row};
use crate::values::{Put as _, Take as _};

/// How many originals are collapsed before what changed is written.
const ORIGINALS: usize = 500;

impl Unit<'_> {
    pub(super) async fn deduplicate(&mut self, force: bool) -> Result<u64> {
        // Nobody writes letters until the call is done.
        self.take_time().await?;
        self.switch_dedup(false).await?;
        let all = Query::new(format!("SELECT count(*) FROM {}", self.names().letters));
        let all = all.first(self.conn(), |row| Fields::of(row).unsigned()).await?.unwrap_or(0);
        let groups = self.repeated().await?;
        let removed: u64 = groups.iter().map(|group| group.len() as u64 - 1).sum();
        if removed * 2 > all && !force {
            return Err(Fault::new(
                StoreErrorKind::Refused,
                format!(
                    "{removed} of {all} letters would be removed, which is more than half; force it if that is meant"
                ),
            ));
        }
        for groups in groups.chunks(ORIGINALS) {
            self.fetch_heads(&groups.concat()).await?;
            let mut merged = Vec::new();
            for group in groups {
                if let Some((kept, older)) = group.split_last() {
                    self.collapse(*kept, older, &mut merged).await?;
                }
            }
            self.flush().await?;
            self.redate(&merged).await?;
            let gone = merged.into_iter().flat_map(|(_, gone)| gone).collect();
            self.remove(gone).await?;
        }
        self.switch_dedup(true).await?;
        let subject = serde_json::json!({ "force": force }).to_string();
        self.note_action(&Actor::new("store"), "deduplicate", subject, removed);
        Ok(removed)
    }

    /// Letters that have an original in common, oldest first; not those that are about to run.
    async fn repeated(&mut self) -> Result<Vec<Vec<LetterId>>> {
        let now = self.now();
        let query = Query::new(format!(
            "SELECT array_agg(letter_id ORDER BY created_at, letter_id) FROM {} \
             WHERE event_id <> '' AND status <> 'retrying' AND (claim_until IS NULL OR claim_until <= ",
            self.names().letters
        ));
        let query = query.bind(now).push(
            ") GROUP BY event_type IS NOT NULL, coalesce(event_type, subject), event_id, consumer HAVING count(*) > 1",
        );
        query.all(self.conn(), |row| Fields::of(row).letters()).await
    }

    async fn collapse(
        &mut self,
        kept: LetterId,
        older: &[LetterId],
        merged: &mut Vec<(Row, Vec<LetterId>)>,
    ) -> Result<()> {
        let Some(mut row) = self.head(kept).await? else { return Ok(()) };
        let mut gone = Vec::with_capacity(older.len());
        for id in older {
            let Some(mut other) = self.head(*id).await? else { continue };
            let why = Some("merged into another letter");
            self.end_item(&mut other, ItemOutcome::Skipped, why).await?;
            self.set_alias(*id, kept, other.letter.generation);
            if other.letter.state.status == Status::Quarantined
                && row.letter.state.status != Status::Quarantined
            {
                let why = Some("merged with a letter that is quarantined");
                self.end_item(&mut row, ItemOutcome::Skipped, why).await?;
                row.void();
                rules::put_back(&mut row.letter, Status::Quarantined, self.now());
            }
            let (state, other) = (&mut row.letter.state, &other.letter.state);
            state.seen = state.seen.saturating_add(other.seen);
            state.retry_count = state.retry_count.saturating_add(other.retry_count);
            state.replays = state.replays.saturating_add(other.replays);
            state.created_at = state.created_at.min(other.created_at);
            state.last_retry_at = state.last_retry_at.max(other.last_retry_at);
            gone.push(*id);
        }
        row.letter.state.updated_at = self.now();
        self.update(row.clone(), Changed::State);
        merged.push((row, gone));
        Ok(())
    }

    /// Writes when letters were first seen, and lets those that were merged into the ones that go point to the one that
    /// stays.
    async fn redate(&mut self, merged: &[(Row, Vec<LetterId>)]) -> Result<()> {
        let (mut dates, mut pointers) = (Batch::default(), Batch::default());
        for (row, gone) in merged {
            let date = dates.row();
            date.bytes(Some(row.letter.id.as_bytes()))?;
            date.time(Some(row.letter.state.created_at))?;
            for id in gone {
                let pointer = pointers.row();
                pointer.bytes(Some(id.as_bytes()))?;
                pointer.bytes(Some(row.letter.id.as_bytes()))?;
            }
        }
        if dates.width() > 0 {
            let sql = format!("UPDATE {} t SET created_at = u.at FROM ", self.names().letters);
            let update = Query::new(sql).batch(dates)?;
            update
                .push(" AS u (letter_id, at) WHERE t.letter_id = u.letter_id")
                .run(self.conn())
                .await?;
        }
        if pointers.width() > 0 {
            let sql = format!("UPDATE {} a SET letter_id = u.kept FROM ", self.names().aliases);
            let update = Query::new(sql).batch(pointers)?;
            update.push(" AS u (gone, kept) WHERE a.letter_id = u.gone").run(self.conn()).await?;
        }
        Ok(())
    }
}

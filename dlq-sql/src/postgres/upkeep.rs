use std::time::Duration;

use dlq_core::store::{
    Actor, AuditEntry, CheckLimits, Cleanup, Due, Edit, ItemOutcome, Mark, Marked, ProcessedEvent,
    Receipt, Selection, Upkeep, rules,
};
use dlq_core::{
    DeadLetter, Filter, Finding, LetterId, OperationId, Resolution, Status, StoreError, Timestamp,
};
use sqlx::postgres::PgRow;

use super::PostgresStore;
use super::batch::Batch;
use super::call::{attempt, transact, transact_once};
use super::codec::Fields;
use super::names::Names;
use super::query::{DURABLE, Query};
use super::sink::{size, too_large};
use super::unit::Unit;
use crate::error::{During, Result};
use crate::row::{Changed, Row};
use crate::values::{self, Put as _, Take as _};

/// Number of letters that are deleted, or taken back from an operation, in one transaction.
pub(super) const BATCH: usize = 1_000;

/// How many batches are looked up at a time.
const AHEAD: u32 = 20;

/// How many letters of one transaction are in memory at a time.
const PORTION: u32 = 5_000;

impl Upkeep for PostgresStore {
    async fn mark(
        &self,
        selection: Selection,
        mark: Mark,
        by: Actor,
    ) -> std::result::Result<Marked, StoreError> {
        let patient = self.patient_with_many();
        transact_once!(&patient, unit => unit.mark(&selection, mark, &by)).during("mark letters")
    }

    async fn delete(
        &self,
        selection: Selection,
        by: Actor,
    ) -> std::result::Result<Marked, StoreError> {
        let deletion = Deletion {
            meant: Meant { filter: selection.filter().clone(), old: None },
            batch: BATCH,
            why: "deleted by an operator",
            action: "delete",
            subject: values::json(selection.filter()),
            by,
        };
        self.delete_in_batches(&deletion).await.during("delete letters")
    }

    async fn cleanup(&self, cleanup: Cleanup, by: Actor) -> std::result::Result<u64, StoreError> {
        let subject = serde_json::json!({
            "older_than_seconds": cleanup.older_than.as_secs_f64(),
            "filter": cleanup.filter,
            "include_unresolved": cleanup.include_unresolved,
        });
        let clean = async {
            let now = transact!(self, unit => async { Ok(unit.now()) })?;
            let old = Old {
                latest: now.before(cleanup.older_than),
                include_unresolved: cleanup.include_unresolved,
            };
            let deletion = Deletion {
                meant: Meant { filter: cleanup.filter, old: Some(old) },
                batch: cleanup.batch.max(1) as usize,
                why: "deleted by a cleanup",
                action: "cleanup",
                subject: subject.to_string(),
                by,
            };
            Ok(self.delete_in_batches(&deletion).await?.changed)
        };
        clean.await.during("clean up")
    }

    async fn edit(
        &self,
        id: LetterId,
        edit: Edit,
        by: Actor,
    ) -> std::result::Result<DeadLetter, StoreError> {
        transact_once!(self, unit => unit.edit(id, &edit, &by, self.inner.largest))
            .during("edit the letter")
    }

    async fn restore(
        &self,
        letters: Vec<DeadLetter>,
        by: Actor,
    ) -> std::result::Result<Vec<Receipt>, StoreError> {
        self.restore_in_batches(letters, &by).await.during("restore letters")
    }

    async fn audit(&self, limit: u32) -> std::result::Result<Vec<AuditEntry>, StoreError> {
        attempt!(self, conn => async {
            Query::new(format!(
                "SELECT at, who, note, action, subject, affected, operation FROM {} ORDER BY seq DESC LIMIT ",
                self.names().audit
            ))
            .bind(limit)
            .all(conn, read_entry)
            .await
        })
        .during("read the audit")
    }

    async fn record_processed(
        &self,
        events: Vec<ProcessedEvent>,
    ) -> std::result::Result<(), StoreError> {
        if events.is_empty() {
            return Ok(());
        }
        attempt!(self, conn => async {
            let sql = format!(
                "INSERT INTO {} (event_id, subject, consumer, status, attempt, duration_ns, at, at_ns, error) SELECT * FROM ",
                self.names().processed
            );
            let insert = Query::new(sql).batch(processed(&events)?)?;
            insert.push(&format!(" WHERE {DURABLE}")).run(conn).await.map(|_| ())
        })
        .during("write the processing audit")
    }

    async fn processed(&self, limit: u32) -> std::result::Result<Vec<ProcessedEvent>, StoreError> {
        attempt!(self, conn => async {
            Query::new(format!(
                "SELECT event_id, subject, consumer, status, attempt, duration_ns, at_ns, error \
                 FROM {} ORDER BY seq DESC LIMIT ",
                self.names().processed
            ))
            .bind(limit)
            .all(conn, read_processed)
            .await
        })
        .during("read the processing audit")
    }

    async fn check(&self, limits: CheckLimits) -> std::result::Result<Vec<Finding>, StoreError> {
        self.examine(limits).await
    }

    async fn due(&self, overdue: Duration) -> std::result::Result<Vec<Due>, StoreError> {
        self.due_by_consumer(overdue).await
    }

    async fn deduplicate(&self, force: bool) -> std::result::Result<u64, StoreError> {
        let patient = self.patient();
        transact_once!(&patient, unit => unit.deduplicate(force)).during("deduplicate")
    }
}

/// What is deleted, in which portions, and what is said of it.
pub(super) struct Deletion {
    meant: Meant,
    batch: usize,
    why: &'static str,
    pub(super) action: &'static str,
    pub(super) subject: String,
    pub(super) by: Actor,
}

/// Where a letter is in the order in which they are deleted.
type Place = (Timestamp, LetterId);

/// Which letters are deleted.
struct Meant {
    filter: Filter,
    old: Option<Old>,
}

struct Old {
    latest: Timestamp,
    include_unresolved: bool,
}

impl Meant {
    fn condition(&self, query: Query) -> Query {
        let query = query.filter(&self.filter);
        match &self.old {
            Some(old) if old.include_unresolved => {
                query.push(" AND t.updated_at <= ").bind(old.latest)
            }
            Some(old) => {
                query.push(" AND t.status = 'resolved' AND t.updated_at <= ").bind(old.latest)
            }
            None => query,
        }
    }

    /// The column in whose order there is an index of them.
    fn order(&self) -> &'static str {
        match &self.old {
            Some(old) if !old.include_unresolved => "t.updated_at",
            _ => "t.created_at",
        }
    }

    fn select(&self, names: &Names) -> Query {
        let (order, letters) = (self.order(), &names.letters);
        self.condition(Query::new(format!("SELECT {order}, t.letter_id FROM {letters} t WHERE ")))
    }

    /// The one that is deleted last.
    fn last(&self, names: &Names) -> impl Fn() -> Query {
        let order = self.order();
        move || {
            self.select(names).push(&format!(" ORDER BY {order} DESC, t.letter_id DESC LIMIT 1"))
        }
    }

    /// Those that are deleted next.
    fn next(
        &self,
        names: &Names,
        after: Option<Place>,
        last: Place,
        limit: u32,
    ) -> impl Fn() -> Query {
        let order = self.order();
        let than = move |query: Query, sign: &str, (at, id): Place| {
            let query = query.push(&format!(" AND ({order}, t.letter_id) {sign} (")).bind(at);
            query.push(", ").bind(id).push(")")
        };
        move || {
            let query = than(self.select(names), "<=", last);
            let query = match after {
                Some(after) => than(query, ">", after),
                None => query,
            };
            query.push(&format!(" ORDER BY {order}, t.letter_id LIMIT ")).bind(limit)
        }
    }
}

impl PostgresStore {
    async fn restore_in_batches(
        &self,
        letters: Vec<DeadLetter>,
        by: &Actor,
    ) -> Result<Vec<Receipt>> {
        // The others are restored first, or one of them would hold them up for ever.
        let (large, letters): (Vec<_>, Vec<_>) =
            letters.into_iter().partition(|letter| size(letter) > self.inner.largest);
        let mut receipts = Vec::with_capacity(letters.len());
        for letters in letters.chunks(BATCH) {
            receipts.extend(transact!(self, unit => unit.restore_all(letters, by))?);
        }
        match large.first() {
            Some(letter) => Err(too_large(letter, self.inner.largest)),
            None if receipts.is_empty() => transact!(self, unit => unit.restore_all(&[], by)),
            None => Ok(receipts),
        }
    }

    /// Deletes in several transactions, so that others can work in between; each adds to one entry of the audit.
    async fn delete_in_batches(&self, deletion: &Deletion) -> Result<Marked> {
        let mut marked = Marked::default();
        let deleted = self.delete_all(deletion, &mut marked).await;
        deleted.map_err(|fault| fault.having_deleted(marked.changed)).map(|()| marked)
    }

    async fn delete_all(&self, deletion: &Deletion, marked: &mut Marked) -> Result<()> {
        let Deletion { meant, batch, .. } = deletion;
        let ahead = u32::try_from(*batch).unwrap_or(u32::MAX).saturating_mul(AHEAD);
        // Those that come meanwhile are not hunted down: they may come faster than they go.
        let last = self.places(meant.last(self.names())).await?.pop();
        let (mut after, mut entry) = (None, None);
        loop {
            let places = match last {
                Some(last) => self.places(meant.next(self.names(), after, last, ahead)).await?,
                None => Vec::new(),
            };
            if places.is_empty() && entry.is_some() {
                return Ok(());
            }
            let ids: Vec<_> = places.iter().map(|(_, id)| *id).collect();
            // Where there is nothing to delete the audit says so.
            for ids in ids.chunks(*batch).chain(ids.is_empty().then_some(&ids[..])) {
                let (step, seq) = transact_once!(self, unit => async {
                    let step = unit.delete(ids, meant, deletion.why).await?;
                    Ok((step, unit.note_part(entry, deletion, step.changed).await?))
                })?;
                marked.changed += step.changed;
                marked.skipped += step.skipped;
                entry = Some(seq);
            }
            let Some(place) = places.last() else { return Ok(()) };
            after = Some(*place);
        }
    }

    /// Where they are.
    async fn places(&self, query: impl Fn() -> Query) -> Result<Vec<Place>> {
        let patient = self.patient_with_many();
        transact!(&patient, unit => async {
            unit.take_time_for_many().await?;
            let place = |row: &PgRow| {
                let mut fields = Fields::of(row);
                Ok((fields.time()?, fields.letter()?))
            };
            query().all(unit.conn(), place).await
        })
    }
}

impl Unit<'_> {
    async fn delete(&mut self, ids: &[LetterId], meant: &Meant, why: &str) -> Result<Marked> {
        // Others may have worked in between.
        let query = Query::new("t.letter_id = ANY(").bind(ids.to_vec()).push(") AND ");
        let rows = self.fetch_where(meant.condition(query)).await?;
        self.fetch_items(&rows.iter().collect::<Vec<_>>()).await?;
        let mut marked = Marked::default();
        let mut gone = Vec::with_capacity(rows.len());
        for mut row in rows {
            if row.is_held(self.now()) {
                marked.skipped += 1;
            } else {
                self.end_item(&mut row, ItemOutcome::Skipped, Some(why)).await?;
                gone.push(row.letter.id);
                marked.changed += 1;
            }
        }
        self.remove(gone).await?;
        Ok(marked)
    }

    async fn mark(&mut self, selection: &Selection, mark: Mark, by: &Actor) -> Result<Marked> {
        let matching = || Query::new("").filter(selection.filter());
        self.lock_where(matching()).await?;
        let (mut marked, mut after) = (Marked::default(), None);
        loop {
            let portion = match after {
                Some(after) => matching().push(" AND t.letter_id > ").bind(after),
                None => matching(),
            };
            let rows = self.fetch_portion(portion, PORTION).await?;
            let Some(last) = rows.last() else { break };
            after = Some(last.letter.id);
            self.fetch_items(&rows.iter().collect::<Vec<_>>()).await?;
            for row in rows {
                if row.is_held(self.now()) {
                    marked.skipped += 1;
                } else if !row.is_so(mark) {
                    marked.changed += 1;
                    self.mark_one(row, mark).await?;
                }
            }
        }
        let action = match mark {
            Mark::Pending => "release",
            Mark::Resolved => "resolve",
            _ => "quarantine",
        };
        self.note_action(by, action, values::json(selection), marked.changed);
        Ok(marked)
    }

    async fn mark_one(&mut self, mut row: Row, mark: Mark) -> Result<()> {
        let why = match mark {
            Mark::Pending => "put back by an operator",
            Mark::Resolved => "resolved by an operator",
            _ => "quarantined by an operator",
        };
        let now = self.now();
        self.end_item(&mut row, ItemOutcome::Skipped, Some(why)).await?;
        row.void();
        let letter = &mut row.letter;
        match mark {
            Mark::Resolved => rules::resolve(letter, Resolution::Dismissed, now),
            Mark::Pending => {
                rules::put_back(letter, Status::Pending, now);
                letter.state.replays = 0;
            }
            _ => rules::put_back(letter, Status::Quarantined, now),
        }
        self.update(row, Changed::State);
        Ok(())
    }
}

fn processed(events: &[ProcessedEvent]) -> Result<Batch<'_>> {
    let mut batch = Batch::default();
    for event in events {
        let nanos = u64::try_from(event.duration.as_nanos()).unwrap_or(u64::MAX);
        let row = batch.row();
        row.word(&event.event_id)?;
        row.word(&event.subject)?;
        row.word(&event.consumer)?;
        row.word(event.status.as_str())?;
        row.count(event.attempt)?;
        row.int(Some(values::signed(nanos)))?;
        row.time(Some(event.at))?;
        row.nanos(Some(event.at))?;
        row.text(event.error.as_deref().map(Into::into))?;
    }
    Ok(batch)
}

fn read_entry(record: &PgRow) -> Result<AuditEntry> {
    let mut fields = Fields::of(record);
    Ok(AuditEntry {
        at: fields.time()?,
        by: Actor { who: fields.text()?, note: fields.text_or_none()? },
        action: fields.text()?,
        subject: fields.text()?,
        affected: fields.unsigned()?,
        operation: fields.id_or_none()?.map(OperationId::from_bytes),
    })
}

fn read_processed(record: &PgRow) -> Result<ProcessedEvent> {
    let mut fields = Fields::of(record);
    Ok(ProcessedEvent {
        event_id: fields.text()?,
        subject: fields.text()?,
        consumer: fields.text()?,
        status: fields.word("processing status")?,
        attempt: fields.count()?,
        duration: std::time::Duration::from_nanos(fields.unsigned()?),
        at: Timestamp::from_nanos(fields.int()?),
        error: fields.text_or_none()?,
    })
}

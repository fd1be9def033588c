use std::sync::Arc;
use std::time::Duration;

use dlq_core::store::{
    Actor, AuditEntry, CheckLimits, Cleanup, Due, Edit, ItemOutcome, Mark, Marked, ProcessedEvent,
    Receipt, Selection, Upkeep, rules,
};
use dlq_core::{
    DeadLetter, Filter, Finding, LetterId, OperationId, Resolution, Status, StoreError, Timestamp,
};
use dlq_letters::{Backend, Changed};
use rusqlite::Connection;

use super::SqliteStore;
use super::binder::Binder;
use super::codec::Fields;
use super::codec::read_head;
use super::names::Names;
use super::query::Query;
use super::unit::{Loaded, Unit};
use crate::error::{During, Result};
use crate::values::{self, Take as _};

/// Number of letters that are changed in one transaction of a call that is about many: meanwhile nobody else writes.
pub(super) const BATCH: usize = 1000;

impl Upkeep for SqliteStore {
    async fn mark(
        &self,
        selection: Selection,
        mark: Mark,
        by: Actor,
    ) -> std::result::Result<Marked, StoreError> {
        let now = self.now();
        self.mark_in_batches(selection, mark, by, now).await.during("mark letters")
    }

    async fn delete(
        &self,
        selection: Selection,
        by: Actor,
    ) -> std::result::Result<Marked, StoreError> {
        let now = self.now();
        let deletion = Deletion {
            meant: Meant { filter: selection.filter().clone(), old: None },
            batch: BATCH,
            why: "deleted by an operator",
            action: "delete",
            subject: values::json(selection.filter()),
            by,
        };
        self.delete_in_batches(deletion, now).await.during("delete letters")
    }

    async fn cleanup(&self, cleanup: Cleanup, by: Actor) -> std::result::Result<u64, StoreError> {
        let now = self.now();
        let subject = serde_json::json!({
            "older_than_seconds": cleanup.older_than.as_secs_f64(),
            "filter": cleanup.filter,
            "include_unresolved": cleanup.include_unresolved,
        });
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
        let deleted = self.delete_in_batches(deletion, now).await.during("clean up")?;
        Ok(deleted.changed)
    }

    async fn edit(
        &self,
        id: LetterId,
        edit: Edit,
        by: Actor,
    ) -> std::result::Result<DeadLetter, StoreError> {
        let now = self.now();
        let work = move |unit: &mut Unit<'_>| unit.edit(id, &edit, &by, now);
        self.write(work).await.during("edit the letter")
    }

    async fn restore(
        &self,
        letters: Vec<DeadLetter>,
        by: Actor,
    ) -> std::result::Result<Vec<Receipt>, StoreError> {
        dlq_letters::engine::restore(self, letters, by).await
    }

    async fn audit(&self, limit: u32) -> std::result::Result<Vec<AuditEntry>, StoreError> {
        Backend::audit(self, limit).await
    }

    async fn record_processed(
        &self,
        events: Vec<ProcessedEvent>,
    ) -> std::result::Result<(), StoreError> {
        Backend::record_processed(self, events).await
    }

    async fn processed(&self, limit: u32) -> std::result::Result<Vec<ProcessedEvent>, StoreError> {
        Backend::processed(self, limit).await
    }

    async fn deduplicate(&self, force: bool) -> std::result::Result<u64, StoreError> {
        let now = self.now();
        self.write(move |unit| unit.deduplicate(force, now)).await.during("deduplicate")
    }

    async fn check(&self, limits: CheckLimits) -> std::result::Result<Vec<Finding>, StoreError> {
        self.examine(limits).await
    }

    async fn due(&self, overdue: Duration) -> std::result::Result<Vec<Due>, StoreError> {
        self.due_by_consumer(overdue).await
    }
}

/// What is deleted, in which portions, and what is said of it.
pub(super) struct Deletion {
    meant: Meant,
    batch: usize,
    why: &'static str,
    action: &'static str,
    subject: String,
    by: Actor,
}

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
}

impl SqliteStore {
    /// Marks in several transactions, so that others can work in between; each adds to one entry of the audit.
    async fn mark_in_batches(
        &self,
        selection: Selection,
        mark: Mark,
        by: Actor,
        now: Timestamp,
    ) -> Result<Marked> {
        let (selection, by) = (Arc::new(selection), Arc::new(by));
        let selecting = Arc::clone(&selection);
        let select = move |conn: &Connection, names: &Names| {
            Query::new(format!("SELECT t.letter_id FROM {} t WHERE ", names.letters))
                .filter(selecting.filter())
                .push(" ORDER BY t.created_at, t.letter_id")
                .all(conn, |row| Ok(LetterId::from_bytes(row.get(0)?)))
        };
        let selected = self.read(select).await?;
        let action = match mark {
            Mark::Pending => "release",
            Mark::Resolved => "resolve",
            _ => "quarantine",
        };
        let (mut marked, mut entry) = (Marked::default(), None);
        // Where there is nothing to mark the audit says so.
        let nothing = selected.is_empty().then_some(&selected[..]);
        for ids in selected.chunks(BATCH).chain(nothing) {
            let (ids, selection, by) = (ids.to_vec(), Arc::clone(&selection), Arc::clone(&by));
            let step = self.write(move |unit| {
                let step = unit.mark(&ids, selection.filter(), mark, now)?;
                let Some(entry) = entry else {
                    let subject = values::json(&*selection);
                    unit.note_action(&by, action, subject, step.changed, now)?;
                    return Ok((step, unit.conn().last_insert_rowid()));
                };
                unit.add_affected(entry, step.changed)?;
                Ok((step, entry))
            });
            let (step, seq) = step.await.map_err(|fault| fault.having_marked(marked.changed))?;
            marked.changed += step.changed;
            marked.skipped += step.skipped;
            entry = Some(seq);
        }
        Ok(marked)
    }

    /// Deletes in several transactions, so that others can work in between; each adds to one entry of the audit.
    async fn delete_in_batches(&self, deletion: Deletion, now: Timestamp) -> Result<Marked> {
        let deletion = Arc::new(deletion);
        let selecting = Arc::clone(&deletion);
        let select = move |conn: &Connection, names: &Names| {
            let query = Query::new(format!("SELECT t.letter_id FROM {} t WHERE ", names.letters));
            let query = selecting.meant.condition(query);
            query
                .push(" ORDER BY t.created_at, t.letter_id")
                .all(conn, |row| Ok(LetterId::from_bytes(row.get(0)?)))
        };
        let selected = self.read(select).await?;
        let (mut marked, mut entry) = (Marked::default(), None);
        // Where there is nothing to delete the audit says so.
        let nothing = selected.is_empty().then_some(&selected[..]);
        for ids in selected.chunks(deletion.batch).chain(nothing) {
            let (ids, deletion) = (ids.to_vec(), Arc::clone(&deletion));
            let step = self.write(move |unit| {
                let step = unit.delete(&ids, &deletion.meant, deletion.why, now)?;
                Ok((step, unit.note_part(entry, &deletion, step.changed, now)?))
            });
            let step = step.await.map_err(|fault| fault.having_deleted(marked.changed));
            let (step, seq) = step?;
            marked.changed += step.changed;
            marked.skipped += step.skipped;
            entry = Some(seq);
        }
        Ok(marked)
    }
}

impl Unit<'_> {
    fn delete(
        &mut self,
        ids: &[LetterId],
        meant: &Meant,
        why: &str,
        now: Timestamp,
    ) -> Result<Marked> {
        let mut marked = Marked::default();
        for id in ids {
            let query =
                Query::new(&self.names().select_head).push(" WHERE t.letter_id = ").bind(*id);
            // Others may have worked in between.
            let row = meant.condition(query.push(" AND ")).first(self.conn(), read_head)?;
            let Some(row) = row else { continue };
            let mut row = Loaded::from(row);
            if row.is_held(now) {
                marked.skipped += 1;
            } else {
                self.end_item(&mut row, ItemOutcome::Skipped, Some(why), now)?;
                self.remove(row)?;
                marked.changed += 1;
            }
        }
        Ok(marked)
    }

    /// Notes what is done in several transactions: adds to the entry of those before; which one that is.
    fn note_part(
        &self,
        entry: Option<i64>,
        deletion: &Deletion,
        affected: u64,
        now: Timestamp,
    ) -> Result<i64> {
        let Some(entry) = entry else {
            let Deletion { by, action, subject, .. } = deletion;
            self.note_action(by, action, subject.clone(), affected, now)?;
            return Ok(self.conn().last_insert_rowid());
        };
        self.add_affected(entry, affected)?;
        Ok(entry)
    }

    /// Adds to what an entry of the audit says was changed.
    pub(super) fn add_affected(&self, entry: i64, affected: u64) -> Result<()> {
        let add =
            format!("UPDATE {} SET affected = affected + ?1 WHERE seq = ?2", self.names().audit);
        self.conn().prepare_cached(&add)?.execute((values::signed(affected), entry))?;
        Ok(())
    }

    /// Marks those of these letters that match.
    fn mark(
        &mut self,
        ids: &[LetterId],
        filter: &Filter,
        mark: Mark,
        now: Timestamp,
    ) -> Result<Marked> {
        let mut marked = Marked::default();
        // Others may have worked in between. Asked for at once: the filter may name many letters itself.
        let mut rows = Query::new(&self.names().select_head).push(" WHERE t.letter_id");
        rows.add_any(ids.iter().copied());
        for row in rows.push(" AND ").filter(filter).all(self.conn(), read_head)? {
            let mut row = Loaded::from(row);
            if row.is_held(now) {
                marked.skipped += 1;
            } else if !row.is_so(mark) {
                marked.changed += 1;
                self.mark_one(&mut row, mark, now)?;
            }
        }
        Ok(marked)
    }

    fn mark_one(&mut self, row: &mut Loaded, mark: Mark, now: Timestamp) -> Result<()> {
        let why = match mark {
            Mark::Pending => "put back by an operator",
            Mark::Resolved => "resolved by an operator",
            _ => "quarantined by an operator",
        };
        self.end_item(row, ItemOutcome::Skipped, Some(why), now)?;
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
        self.update(row, Changed::State)
    }
}

/// The last entries of what operators did.
pub(super) fn audit(conn: &Connection, names: &Names, limit: u32) -> Result<Vec<AuditEntry>> {
    Query::new(format!(
        "SELECT at, who, note, action, subject, affected, operation FROM {} ORDER BY seq DESC LIMIT ",
        names.audit
    ))
    .bind(limit)
    .all(conn, read_entry)
}

/// The last entries of the processing audit.
pub(super) fn processed(
    conn: &Connection,
    names: &Names,
    limit: u32,
) -> Result<Vec<ProcessedEvent>> {
    Query::new(format!(
        "SELECT event_id, subject, consumer, status, attempt, duration_ns, at, error \
         FROM {} ORDER BY seq DESC LIMIT ",
        names.processed
    ))
    .bind(limit)
    .all(conn, read_processed)
}

/// Adds to the processing audit.
pub(super) fn record_processed(
    conn: &Connection,
    names: &Names,
    events: &[ProcessedEvent],
) -> Result<()> {
    let sql = format!(
        "INSERT INTO {} (event_id, subject, consumer, status, attempt, duration_ns, at, error) \
         VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        names.processed
    );
    let mut statement = conn.prepare_cached(&sql)?;
    for event in events {
        let nanos = u64::try_from(event.duration.as_nanos()).unwrap_or(u64::MAX);
        Binder::new(&mut statement)
            .put(&event.event_id)?
            .put(&event.subject)?
            .put(&event.consumer)?
            .put(event.status.as_str())?
            .put(event.attempt)?
            .put(values::signed(nanos))?
            .put(event.at.as_nanos())?
            .put(event.error.as_deref())?;
        statement.raw_execute()?;
    }
    Ok(())
}

fn read_entry(record: &rusqlite::Row<'_>) -> Result<AuditEntry> {
    let mut fields = Fields::after(record, 0);
    Ok(AuditEntry {
        at: fields.time()?,
        by: Actor { who: fields.next()?, note: fields.next()? },
        action: fields.next()?,
        subject: fields.next()?,
        affected: i64::cast_unsigned(fields.next()?),
        operation: fields.next::<Option<[u8; 16]>>()?.map(OperationId::from_bytes),
    })
}

fn read_processed(record: &rusqlite::Row<'_>) -> Result<ProcessedEvent> {
    let mut fields = Fields::after(record, 0);
    Ok(ProcessedEvent {
        event_id: fields.next()?,
        subject: fields.next()?,
        consumer: fields.next()?,
        status: fields.word("processing status")?,
        attempt: fields.next()?,
        duration: std::time::Duration::from_nanos(i64::cast_unsigned(fields.next()?)),
        at: fields.time()?,
        error: fields.next()?,
    })
}

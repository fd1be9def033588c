//! What an operation would send back, and how it is started.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use dlq_core::store::{
    Actor, AuditEntry, ItemOutcome, Operation, OperationSpec, OperationState, Plan, Progress,
};
use dlq_core::{LetterId, OperationId, Order, Status, Timestamp};
use rusqlite::Connection;

use super::SqliteStore;
use super::binder::Binder;
use super::codec::Fields;
use super::codec::read_summary;
use super::names::Names;
use super::operations::unknown;
use super::query::Query;
use super::unit::Unit;
use super::upkeep::BATCH;
use crate::error::Result;
use crate::values::{self, Take as _};

/// `FROM` the letters that an operation would freeze, in order, at most so many.
fn frozen(query: Query, names: &Names, spec: &OperationSpec, limit: Option<u64>) -> Query {
    let query = query
        .push(&format!(
            " FROM {} t WHERE t.status = 'pending' AND t.operation IS NULL AND ",
            names.letters
        ))
        .filter(&spec.filter);
    let query = query.push(match spec.order {
        Order::OldestFirst => " ORDER BY t.created_at, t.letter_id",
        Order::NewestFirst => " ORDER BY t.created_at DESC, t.letter_id DESC",
    });
    match limit {
        Some(limit) => query.push(" LIMIT ").bind(i64::try_from(limit).unwrap_or(i64::MAX)),
        None => query,
    }
}

pub(super) fn plan(conn: &Connection, names: &Names, spec: &OperationSpec) -> Result<Plan> {
    let query = Query::new("SELECT count(*), coalesce(sum(replays >= ")
        .bind(spec.max_replays)
        .push("), 0) FROM (SELECT t.replays");
    let query = frozen(query, names, spec, spec.limit).push(")");
    let (count, at_cap) = query
        .first(conn, |row| {
            let mut fields = Fields::after(row, 0);
            Ok((i64::cast_unsigned(fields.next()?), i64::cast_unsigned(fields.next()?)))
        })?
        .unwrap_or_default();
    let head = names.select_head.split(" FROM ").next().unwrap_or_default();
    let sample = Some(spec.limit.unwrap_or(u64::MAX).min(10));
    let sample = frozen(Query::new(head), names, spec, sample).all(conn, read_summary)?;
    let ineligible = Query::new(format!(
        "SELECT t.status, count(*) FROM {} t WHERE NOT (t.status = 'pending' AND t.operation IS NULL) AND ",
        names.letters
    ));
    let ineligible =
        ineligible.filter(&spec.filter).push(" GROUP BY t.status").all(conn, |row| {
            let mut fields = Fields::after(row, 0);
            Ok((fields.word::<Status>("status")?, i64::cast_unsigned(fields.next()?)))
        })?;
    Ok(Plan {
        count,
        past_cap: if spec.max_replays == 0 { 0 } else { at_cap },
        ineligible: ineligible.into_iter().collect::<BTreeMap<_, _>>(),
        sample,
    })
}

impl SqliteStore {
    /// Freezes the set of letters and starts sending them back. Many are frozen in several transactions, so that others can
    /// work in between; meanwhile the operation is paused and sends nothing. If the process dies it stays so, with the
    /// letters that were frozen until then, and can be resumed or cancelled.
    pub(super) async fn start_in_batches(
        &self,
        spec: OperationSpec,
        by: Actor,
        now: Timestamp,
    ) -> Result<Operation> {
        let spec = Arc::new(spec);
        let selecting = Arc::clone(&spec);
        let chosen = move |conn: &Connection, names: &Names| {
            let spec = &*selecting;
            let query = frozen(Query::new("SELECT t.letter_id"), names, spec, spec.limit);
            query.all(conn, |row| Ok(LetterId::from_bytes(row.get(0)?)))
        };
        let chosen = self.read(chosen).await?;
        let mut batches = chosen.chunks(BATCH);
        let first = batches.next().unwrap_or_default().to_vec();
        let is_whole = chosen.len() <= BATCH;
        let starting = Arc::clone(&spec);
        let start = move |unit: &mut Unit<'_>| unit.start(&starting, &first, is_whole, &by, now);
        let (mut operation, entry) = self.write(start).await?;
        while operation.state == OperationState::Paused
            && let Some(letters) = batches.next()
        {
            let (letters, spec) = (letters.to_vec(), Arc::clone(&spec));
            let (id, is_last) = (operation.id, batches.len() == 0);
            let freeze = move |unit: &mut Unit<'_>| {
                let operation = unit.operation_mut(id)?.ok_or_else(|| unknown(id))?;
                // Somebody has resumed or cancelled it: it goes on with the letters that it has.
                if operation.state != OperationState::Paused {
                    return Ok(operation.clone());
                }
                let mut operation = operation.clone();
                let count = unit.freeze(&mut operation, &letters, &spec, now)?;
                unit.add_affected(entry, count)?;
                if is_last {
                    operation.state = started(&spec);
                    operation.state = operation.advance(now, 0).state;
                }
                unit.operations.insert(id, operation.clone());
                Ok(operation)
            };
            operation = self.write(freeze).await?;
        }
        Ok(operation)
    }
}

/// The state of an operation whose letters are frozen.
fn started(spec: &OperationSpec) -> OperationState {
    if spec.canary.is_some() { OperationState::Canary } else { OperationState::Running }
}

impl Unit<'_> {
    /// Creates an operation with these letters. Returns it and the number of the entry in the audit.
    fn start(
        &mut self,
        spec: &OperationSpec,
        letters: &[LetterId],
        is_whole: bool,
        by: &Actor,
        now: Timestamp,
    ) -> Result<(Operation, i64)> {
        let number: i64 = self.conn().query_row(
            &format!("SELECT coalesce(max(seq), 0) FROM {}", self.names().operations),
            [],
            |row| row.get(0),
        )?;
        let id = OperationId::of(&by.who, now, i64::cast_unsigned(number));
        let mut operation = Operation {
            id,
            spec: spec.clone(),
            state: OperationState::Paused,
            by: by.clone(),
            created_at: now,
            updated_at: now,
            next_release: now,
            progress: Progress::default(),
        };
        self.insert_operation(&operation)?;
        let total = self.freeze(&mut operation, letters, spec, now)?;
        if is_whole {
            operation.state = started(spec);
            operation.state = operation.advance(now, 0).state;
        }
        self.operations.insert(id, operation.clone());
        self.note(&AuditEntry {
            at: now,
            by: by.clone(),
            action: "replay".to_owned(),
            subject: values::json(spec),
            affected: total,
            operation: Some(id),
        })?;
        Ok((operation, self.conn().last_insert_rowid()))
    }

    /// Adds to an operation those of these letters that it may take. Returns how many.
    fn freeze(
        &self,
        operation: &mut Operation,
        letters: &[LetterId],
        spec: &OperationSpec,
        now: Timestamp,
    ) -> Result<u64> {
        let (conn, names, id) = (self.conn(), self.names(), operation.id);
        let hold = format!(
            "UPDATE {} SET retry_after = NULL, available_at = NULL, operation = ?1, item = ?2, \
             updated_at = ?3 WHERE seq = ?4",
            names.letters
        );
        let item = format!(
            "INSERT INTO {} (operation, idx, letter_id, generation, consumer, outcome, at) \
             VALUES (?1, ?2, ?3, ?4, ?5, 'queued', ?6)",
            names.items
        );
        let (mut hold, mut item) = (conn.prepare_cached(&hold)?, conn.prepare_cached(&item)?);
        // Others may have worked in between. Asked for at once: the filter may name many letters itself.
        let mut free = Query::new(format!(
            "SELECT t.letter_id, t.seq, t.generation, t.consumer FROM {} t WHERE t.letter_id",
            names.letters
        ));
        free.add_any(letters.iter().copied());
        let free = free.push(" AND t.status = 'pending' AND t.operation IS NULL AND ");
        let free = free.filter(&spec.filter).all(conn, |row| {
            let mut fields = Fields::after(row, 0);
            let letter = LetterId::from_bytes(fields.next()?);
            Ok((letter, (fields.next::<i64>()?, fields.next::<u32>()?, fields.next::<String>()?)))
        });
        let mut free: HashMap<_, _> = free?.into_iter().collect();
        let mut index = operation.progress.total;
        for letter in letters {
            let found = free.remove(letter);
            let Some((seq, generation, consumer)) = found else { continue };
            let (place, at) = (values::signed(index), now.as_nanos());
            hold.execute((id.as_bytes(), place, at, seq))?;
            item.execute((id.as_bytes(), place, letter.as_bytes(), generation, consumer, at))?;
            index += 1;
        }
        let count = index - operation.progress.total;
        operation.progress.total = index;
        if count > 0 {
            *operation.progress.by_outcome.entry(ItemOutcome::Queued).or_default() += count;
        }
        operation.updated_at = now;
        Ok(count)
    }

    fn insert_operation(&self, operation: &Operation) -> Result<()> {
        let sql = format!(
            "INSERT INTO {} (id, spec, state, who, note, created_at, updated_at, next_release, total, progress) \
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            self.names().operations
        );
        let mut statement = self.conn().prepare_cached(&sql)?;
        Binder::new(&mut statement)
            .put(operation.id.as_bytes())?
            .put(values::json(&operation.spec))?
            .put(operation.state.as_str())?
            .put(&operation.by.who)?
            .put(operation.by.note.as_deref())?
            .put(operation.created_at.as_nanos())?
            .put(operation.updated_at.as_nanos())?
            .put(operation.next_release.as_nanos())?
            .put(values::signed(operation.progress.total))?
            .put(values::json(&operation.progress.by_outcome))?;
        statement.raw_execute()?;
        Ok(())
    }
}

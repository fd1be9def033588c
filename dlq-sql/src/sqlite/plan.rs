//! What an operation would send back, and how it is started.

use std::collections::BTreeMap;

use dlq_core::store::{
    Actor, AuditEntry, ItemOutcome, Operation, OperationSpec, OperationState, Plan, Progress,
};
use dlq_core::{OperationId, Order, Status, Timestamp};
use rusqlite::Connection;

use super::binder::Binder;
use super::codec::Fields;
use super::codec::read_summary;
use super::names::Names;
use super::query::Query;
use super::unit::Unit;
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

impl Unit<'_> {
    pub(super) fn start(
        &mut self,
        spec: &OperationSpec,
        by: &Actor,
        now: Timestamp,
    ) -> Result<Operation> {
        let (conn, names) = (self.conn(), self.names());
        let number: i64 = conn.query_row(
            &format!("SELECT coalesce(max(seq), 0) FROM {}", names.operations),
            [],
            |row| row.get(0),
        )?;
        let id = OperationId::of(&by.who, now, i64::cast_unsigned(number));
        let frozen = frozen(
            Query::new("SELECT t.seq, t.letter_id, t.generation, t.consumer"),
            names,
            spec,
            spec.limit,
        )
        .all(conn, |row| {
            let mut fields = Fields::after(row, 0);
            let (seq, letter): (i64, [u8; 16]) = (fields.next()?, fields.next()?);
            Ok((seq, letter, fields.next::<u32>()?, fields.next::<String>()?))
        })?;
        let total = frozen.len() as u64;
        let state =
            if spec.canary.is_some() { OperationState::Canary } else { OperationState::Running };
        let mut operation = Operation {
            id,
            spec: spec.clone(),
            state,
            by: by.clone(),
            created_at: now,
            updated_at: now,
            next_release: now,
            progress: Progress {
                total,
                by_outcome: (total > 0)
                    .then_some((ItemOutcome::Queued, total))
                    .into_iter()
                    .collect(),
            },
        };
        operation.state = operation.advance(now, 0).state;
        self.insert_operation(&operation)?;
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
        for (index, (seq, letter, generation, consumer)) in frozen.into_iter().enumerate() {
            let index = values::signed(index as u64);
            hold.execute((id.as_bytes(), index, now.as_nanos(), seq))?;
            item.execute((id.as_bytes(), index, letter, generation, consumer, now.as_nanos()))?;
        }
        self.note(&AuditEntry {
            at: now,
            by: by.clone(),
            action: "replay".to_owned(),
            subject: values::json(spec),
            affected: total,
            operation: Some(id),
        })?;
        Ok(operation)
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

//! What an operation would send back, and how it is started.
//!
//! Starting takes the letters by one statement that locks them in the order of the operation. Who starts another over
//! the same letters at this moment waits, finds them taken, and takes the next ones: each letter is in one operation.
//! If the process dies before that is committed, no letter is held and there is no operation.

use std::collections::BTreeMap;

use dlq_core::store::{
    Actor, AuditEntry, ItemOutcome, Operation, OperationSpec, OperationState, Plan, Progress,
};
use dlq_core::{OperationId, Order, Status};
use sqlx::PgConnection;

use super::batch::Batch;
use super::codec::{Fields, read_summary};
use super::names::Names;
use super::query::Query;
use super::unit::Unit;
use crate::error::Result;
use crate::values::{self, Put as _, Take as _};

/// `ORDER BY` in the order of the operation.
fn order(spec: &OperationSpec) -> &'static str {
    match spec.order {
        Order::OldestFirst => " ORDER BY t.created_at, t.letter_id",
        Order::NewestFirst => " ORDER BY t.created_at DESC, t.letter_id DESC",
    }
}

/// Adds `WHERE` for the letters `t` that an operation would freeze, in order, at most so many.
fn frozen(query: Query, spec: &OperationSpec, limit: Option<u64>) -> Query {
    let query = query.push(" WHERE t.status = 'pending' AND t.operation IS NULL AND ");
    let query = query.filter(&spec.filter).push(order(spec));
    match limit {
        Some(limit) => query.push(" LIMIT ").bind(i64::try_from(limit).unwrap_or(i64::MAX)),
        None => query,
    }
}

pub(super) async fn plan(
    conn: &mut PgConnection,
    names: &Names,
    spec: &OperationSpec,
) -> Result<Plan> {
    let letters = &names.letters;
    let query = Query::new("SELECT count(*), count(*) FILTER (WHERE replays >= ")
        .bind(spec.max_replays)
        .push(&format!(") FROM (SELECT t.replays FROM {letters} t"));
    let counts = frozen(query, spec, spec.limit).push(") f").first(conn, |record| {
        let mut fields = Fields::of(record);
        Ok((fields.unsigned()?, fields.unsigned()?))
    });
    let (count, at_cap) = counts.await?.unwrap_or_default();
    let sample = Some(spec.limit.unwrap_or(u64::MAX).min(10));
    let sample = frozen(Query::new(&names.select_head), spec, sample).all(conn, read_summary);
    let sample = sample.await?;
    let ineligible = Query::new(format!(
        "SELECT t.status, count(*) FROM {letters} t WHERE NOT (t.status = 'pending' AND t.operation IS NULL) AND "
    ));
    let ineligible =
        ineligible.filter(&spec.filter).push(" GROUP BY t.status").all(conn, |record| {
            let mut fields = Fields::of(record);
            Ok((fields.word::<Status>("status")?, fields.unsigned()?))
        });
    Ok(Plan {
        count,
        past_cap: if spec.max_replays == 0 { 0 } else { at_cap },
        ineligible: ineligible.await?.into_iter().collect::<BTreeMap<_, _>>(),
        sample,
    })
}

impl Unit<'_> {
    pub(super) async fn start(&mut self, spec: &OperationSpec, by: &Actor) -> Result<Operation> {
        let now = self.now();
        let last = format!("SELECT coalesce(max(seq), 0) FROM {}", self.names().operations);
        let last = Query::new(last).first(self.conn(), |record| Fields::of(record).unsigned());
        let id = OperationId::of(&by.who, now, last.await?.unwrap_or_default());
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
            progress: Progress::default(),
        };
        self.insert_operation(&operation).await?;
        let total = self.freeze(&operation).await?;
        operation.progress.total = total;
        if total > 0 {
            operation.progress.by_outcome.insert(ItemOutcome::Queued, total);
        }
        operation.state = operation.advance(now, 0).state;
        self.operations.insert(id, operation.clone());
        self.wakes.insert(String::new());
        self.note(AuditEntry {
            at: now,
            by: by.clone(),
            action: "replay".to_owned(),
            subject: values::json(spec),
            affected: total,
            operation: Some(id),
        });
        Ok(operation)
    }

    /// Takes the letters; how many there are.
    async fn freeze(&mut self, operation: &Operation) -> Result<u64> {
        let (names, spec, id, now) = (self.names(), &operation.spec, operation.id, self.now());
        let Names { letters, items, .. } = names;
        self.take_time().await?;
        let query = Query::new(format!(
            "WITH chosen AS MATERIALIZED (SELECT t.letter_id, t.generation, t.consumer, t.created_at FROM {letters} t"
        ));
        let query = frozen(query, spec, spec.limit).push(&format!(
            " FOR UPDATE), frozen AS MATERIALIZED (SELECT t.*, row_number() OVER ({}) - 1 AS idx FROM chosen t), \
             held AS (UPDATE {letters} t SET retry_after = NULL, available_at = NULL, item = f.idx, operation = ",
            order(spec)
        ));
        let query = query.bind(id).push(", updated_at = ").bind(now).push(&format!(
            " FROM frozen f WHERE t.letter_id = f.letter_id) \
             INSERT INTO {items} (operation, idx, letter_id, generation, consumer, outcome, at) SELECT "
        ));
        let query = query
            .bind(id)
            .push(", f.idx, f.letter_id, f.generation, f.consumer, 'queued', ")
            .bind(now)
            .push(" FROM frozen f");
        query.run(self.conn()).await
    }

    async fn insert_operation(&mut self, operation: &Operation) -> Result<()> {
        let mut batch = Batch::default();
        let row = batch.row();
        row.bytes(Some(operation.id.as_bytes()))?;
        row.json(values::json(&operation.spec))?;
        row.word(operation.state.as_str())?;
        row.word(&operation.by.who)?;
        row.text(operation.by.note.as_deref().map(Into::into))?;
        row.time(Some(operation.created_at))?;
        row.time(Some(operation.updated_at))?;
        row.time(Some(operation.next_release))?;
        row.int(Some(values::signed(operation.progress.total)))?;
        row.json(values::json(&operation.progress.by_outcome))?;
        let sql = format!(
            "INSERT INTO {} (id, spec, state, who, note, created_at, updated_at, next_release, total, progress) \
             SELECT * FROM ",
            self.names().operations
        );
        Query::new(sql).batch(batch)?.run(self.conn()).await?;
        Ok(())
    }
}

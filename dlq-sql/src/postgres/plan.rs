//! Plan of an operation: the letters that it would send back.

use std::collections::BTreeMap;

use dlq_core::store::{OperationSpec, Plan};
use dlq_core::{Order, Status};
use sqlx::PgConnection;

use super::codec::{Fields, read_summary};
use super::names::Names;
use super::query::Query;
use crate::error::Result;
use crate::values::Take as _;

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
    // The statements may see different moments. A plan is a forecast; what an operation sends is what it freezes.
    let letters = &names.letters;
    // One look at all that match tells what would be frozen and what not.
    let kinds = Query::new(
        "SELECT t.status, t.status = 'pending' AND t.operation IS NULL, count(*), count(*) FILTER (WHERE t.replays >= ",
    );
    let kinds = kinds.bind(spec.max_replays).push(&format!(") FROM {letters} t WHERE "));
    let kinds = kinds.filter(&spec.filter).push(" GROUP BY 1, 2").all(&mut *conn, |record| {
        let mut fields = Fields::of(record);
        let status = fields.word::<Status>("status")?;
        Ok((status, fields.flag()?, fields.unsigned()?, fields.unsigned()?))
    });
    let (mut count, mut at_cap, mut ineligible) = (0, 0, BTreeMap::new());
    for (status, is_eligible, letters, replayed) in kinds.await? {
        if is_eligible {
            (count, at_cap) = (letters, replayed);
        } else {
            *ineligible.entry(status).or_default() += letters;
        }
    }
    if spec.limit.is_some_and(|limit| limit < count) {
        let query = Query::new("SELECT count(*), count(*) FILTER (WHERE replays >= ");
        let query = query.bind(spec.max_replays);
        let query = query.push(&format!(") FROM (SELECT t.replays FROM {letters} t"));
        let first = frozen(query, spec, spec.limit).push(") f").first(&mut *conn, |record| {
            let mut fields = Fields::of(record);
            Ok((fields.unsigned()?, fields.unsigned()?))
        });
        (count, at_cap) = first.await?.unwrap_or_default();
    }
    let sample = Some(spec.limit.unwrap_or(u64::MAX).min(10));
    let sample = frozen(Query::new(&names.select_head), spec, sample).all(conn, read_summary);
    let past_cap = if spec.max_replays == 0 { 0 } else { at_cap };
    Ok(Plan { count, past_cap, ineligible, sample: sample.await? })
}

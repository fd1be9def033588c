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

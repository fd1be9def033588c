//! Plan of an operation: the letters that it would send back.

use std::collections::BTreeMap;

use dlq_core::Status;
use dlq_core::store::{OperationSpec, Plan};
use rusqlite::Connection;

use super::codec::{Fields, read_summary};
use super::names::Names;
use super::query::Query;
use super::select;
use crate::error::Result;
use crate::values::Take as _;

/// `FROM` the letters that an operation would freeze, in order, at most so many.
fn frozen(query: Query, names: &Names, spec: &OperationSpec, limit: Option<u64>) -> Query {
    let query = select::frozen(query, names, spec).push(select::order(spec.order));
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
    // Only the columns are wanted: `frozen` adds the table.
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

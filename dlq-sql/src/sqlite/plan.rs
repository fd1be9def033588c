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
    // One look at all that match tells what would be frozen and what not.
    let kinds = Query::new(
        "SELECT t.status, t.status = 'pending' AND t.operation IS NULL, count(*), sum(t.replays >= ",
    );
    let kinds = kinds.bind(spec.max_replays).push(&format!(") FROM {} t WHERE ", names.letters));
    let kinds = kinds.filter(&spec.filter).push(" GROUP BY 1, 2").all(conn, |row| {
        let mut fields = Fields::after(row, 0);
        let status = fields.word::<Status>("status")?;
        let is_eligible = fields.flag()?;
        Ok((status, is_eligible, count_of(&mut fields)?, count_of(&mut fields)?))
    })?;
    let (mut count, mut at_cap, mut ineligible) = (0, 0, BTreeMap::new());
    for (status, is_eligible, letters, replayed) in kinds {
        if is_eligible {
            (count, at_cap) = (letters, replayed);
        } else {
            *ineligible.entry(status).or_default() += letters;
        }
    }
    if spec.limit.is_some_and(|limit| limit < count) {
        let query = Query::new("SELECT count(*), coalesce(sum(replays >= ")
            .bind(spec.max_replays)
            .push("), 0) FROM (SELECT t.replays");
        let first = frozen(query, names, spec, spec.limit).push(")").first(conn, |row| {
            let mut fields = Fields::after(row, 0);
            Ok((count_of(&mut fields)?, count_of(&mut fields)?))
        })?;
        (count, at_cap) = first.unwrap_or_default();
    }
    // Only the columns are wanted: `frozen` adds the table.
    let head = names.select_head.split(" FROM ").next().unwrap_or_default();
    let sample = Some(spec.limit.unwrap_or(u64::MAX).min(10));
    let sample = frozen(Query::new(head), names, spec, sample).all(conn, read_summary)?;
    let past_cap = if spec.max_replays == 0 { 0 } else { at_cap };
    Ok(Plan { count, past_cap, ineligible, sample })
}

fn count_of(fields: &mut Fields<'_, '_>) -> Result<u64> {
    Ok(i64::cast_unsigned(fields.next()?))
}

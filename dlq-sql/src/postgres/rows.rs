//! The statements that write rows, many at once.

use dlq_letters::{Changed, Row};

use super::batch::Batch;
use super::names::Names;
use super::query::Query;
use crate::columns::{self, BODY, KEPT, RUN, SINCE, STATE};
use crate::error::Result;
use crate::values::Put as _;

/// `INSERT … SELECT …` of whole rows.
pub(super) fn insert<'r>(names: &Names, rows: impl Iterator<Item = &'r Row>) -> Result<Query> {
    let mut batch = Batch::default();
    for row in rows {
        let to = batch.row();
        columns::put_kept(row, to)?;
        columns::put_state(row, to)?;
        columns::put_run(row, to)?;
        columns::put_body(&row.letter, to)?;
        columns::put_since(row, to)?;
    }
    let columns = [KEPT, STATE, RUN, BODY, SINCE].concat().join(", ");
    Query::new(format!("INSERT INTO {} ({columns}) SELECT u.* FROM ", names.letters))
        .batch(batch)
        .map(|query| query.push(" AS u"))
}

pub(super) fn update(names: &Names, rows: &[&Row], changed: Changed) -> Result<Query> {
    let mut batch = Batch::default();
    for &row in rows {
        let to = batch.row();
        to.bytes(Some(row.letter.id.as_bytes()))?;
        columns::put_state(row, to)?;
        if changed != Changed::State {
            columns::put_run(row, to)?;
        }
        if changed == Changed::All {
            columns::put_body(&row.letter, to)?;
            columns::put_since(row, to)?;
        }
    }
    // Only what has changed is sent: payload, headers and history are large, and claims and finishes leave them alone.
    let columns = match changed {
        Changed::State => STATE.to_vec(),
        Changed::Run => [STATE, RUN].concat(),
        Changed::All => [STATE, RUN, BODY, SINCE].concat(),
    };
    let set: Vec<_> = columns.iter().map(|column| format!("{column} = u.{column}")).collect();
    let sql = format!("UPDATE {} t SET {} FROM ", names.letters, set.join(", "));
    let named =
        format!(" AS u (letter_id, {}) WHERE t.letter_id = u.letter_id", columns.join(", "));
    Ok(Query::new(sql).batch(batch)?.push(&named))
}

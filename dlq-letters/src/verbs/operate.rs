//! Operations: they are started, steered and cancelled.

use dlq_core::Status;
use dlq_core::store::{ItemOutcome, rules};

use crate::{Changed, Row, Rows, Stop};

/// Takes a letter out of a cancelled operation. It has been checked that nobody runs it.
pub(super) fn take_back(rows: &mut Rows, mut row: Row) -> Result<(), Stop> {
    rows.end_item(&mut row, ItemOutcome::Skipped, Some("cancelled"))?;
    row.void();
    rules::put_back(&mut row.letter, Status::Pending, rows.now());
    rows.update(row, Changed::State);
    Ok(())
}

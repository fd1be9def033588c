use dlq_core::store::{Actor, Edit, EditError, Hands};
use dlq_core::{DeadLetter, LetterId, Timestamp};
use dlq_letters::Changed;

use super::unit::Unit;
use crate::error::Result;

impl Unit<'_> {
    /// Edits one letter and writes the audit.
    pub(super) fn edit(
        &mut self,
        id: LetterId,
        edit: &Edit,
        by: &Actor,
        now: Timestamp,
    ) -> Result<DeadLetter> {
        let Some(mut row) = self.whole(id)? else { return Err(EditError::Unknown(id).into()) };
        let hands = Hands { is_held: row.is_held(now), is_record: row.is_record() };
        let amended = edit.amend(&mut row.letter, hands, now)?;
        if amended.is_changed {
            row.void();
            self.update(&mut row, Changed::All)?;
        }
        self.note_action(by, "edit", amended.subject, u64::from(amended.is_changed), now)?;
        Ok(row.row.letter)
    }
}

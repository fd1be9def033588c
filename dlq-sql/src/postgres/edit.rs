use dlq_core::store::{Actor, Edit, EditError, Hands};
use dlq_core::{DeadLetter, LetterId};

use super::sink::{size, too_large};
use super::unit::Unit;
use crate::error::Result;
use crate::row::Changed;

impl Unit<'_> {
    /// Edits one letter and writes the audit.
    pub(super) async fn edit(
        &mut self,
        id: LetterId,
        edit: &Edit,
        by: &Actor,
        largest: usize,
    ) -> Result<DeadLetter> {
        let now = self.now();
        let Some(mut row) = self.whole(id).await? else {
            return Err(EditError::Unknown(id).into());
        };
        let hands = Hands { is_held: row.is_held(now), is_record: row.is_record() };
        let amended = edit.amend(&mut row.letter, hands, now)?;
        if size(&row.letter) > largest {
            return Err(too_large(&row.letter, largest));
        }
        self.note_action(by, "edit", amended.subject, u64::from(amended.is_changed));
        if amended.is_changed {
            row.void();
            self.update(row.clone(), Changed::All);
        }
        Ok(row.letter)
    }
}

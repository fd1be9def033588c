//! The record of what operators did, written with what they did.

use dlq_core::store::{Actor, AuditEntry};

use super::batch::Batch;
use super::query::Query;
use super::unit::Unit;
use crate::error::Result;
use crate::values::{self, Put as _};

impl Unit<'_> {
    /// Appends to the record of what operators did.
    pub(super) fn note(&mut self, entry: AuditEntry) {
        self.notes.push(entry);
    }

    /// The same for what is not about an operation.
    pub(super) fn note_action(&mut self, by: &Actor, action: &str, subject: String, affected: u64) {
        let (by, action, at) = (by.clone(), action.to_owned(), self.now());
        self.note(AuditEntry { at, by, action, subject, affected, operation: None });
    }

    pub(super) async fn write_notes(&mut self, notes: &[AuditEntry]) -> Result<()> {
        if notes.is_empty() {
            return Ok(());
        }
        let mut batch = Batch::default();
        for note in notes {
            let row = batch.row();
            row.time(Some(note.at))?;
            row.word(&note.by.who)?;
            row.text(note.by.note.as_deref().map(Into::into))?;
            row.word(&note.action)?;
            row.word(&note.subject)?;
            row.int(Some(values::signed(note.affected)))?;
            row.bytes(note.operation.as_ref().map(|id| &id.as_bytes()[..]))?;
        }
        let sql = format!(
            "INSERT INTO {} (at, who, note, action, subject, affected, operation) SELECT * FROM ",
            self.names().audit
        );
        Query::new(sql).batch(batch)?.run(self.conn()).await?;
        Ok(())
    }
}

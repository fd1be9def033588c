//! The record of what operators did, written with what they did.

use dlq_core::store::{Actor, AuditEntry};

use super::batch::Batch;
use super::codec::Fields;
use super::query::Query;
use super::unit::Unit;
use super::upkeep::Deletion;
use crate::error::Result;
use crate::values::{self, Put as _, Take as _};

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

    /// The same for what is done in several transactions: adds to the entry of those before; which one that is.
    pub(super) async fn note_part(
        &mut self,
        entry: Option<i64>,
        deletion: &Deletion,
        affected: u64,
    ) -> Result<i64> {
        if let Some(entry) = entry {
            self.add_affected(entry, affected).await?;
            return Ok(entry);
        }
        let entry = AuditEntry {
            at: self.now(),
            by: deletion.by.clone(),
            action: deletion.action.to_owned(),
            subject: deletion.subject.clone(),
            affected,
            operation: None,
        };
        self.note_now(&entry).await
    }

    /// Appends an entry to which more may be added. Returns its number.
    pub(super) async fn note_now(&mut self, entry: &AuditEntry) -> Result<i64> {
        let insert = Query::new(format!(
            "INSERT INTO {} (at, who, note, action, subject, affected, operation) VALUES (",
            self.names().audit
        ));
        let insert = insert.bind(entry.at).push(", ").bind(entry.by.who.as_str()).push(", ");
        let insert = insert.bind(entry.by.note.as_deref()).push(", ").bind(entry.action.as_str());
        let insert = insert.push(", ").bind(entry.subject.as_str()).push(", ");
        let insert = insert.bind(values::signed(entry.affected)).push(", ").bind(entry.operation);
        let seq = insert.push(") RETURNING seq").first(self.conn(), |row| Fields::of(row).int());
        Ok(seq.await?.unwrap_or_default())
    }

    /// Adds to what an entry says was changed.
    pub(super) async fn add_affected(&mut self, entry: i64, affected: u64) -> Result<()> {
        let add = format!("UPDATE {} SET affected = affected + ", self.names().audit);
        let add = Query::new(add).bind(values::signed(affected)).push(" WHERE seq = ").bind(entry);
        add.run(self.conn()).await?;
        Ok(())
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

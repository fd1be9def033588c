//! Writing of a verb's changes, in a few statements. Operations come last, so that whoever finishes other letters of
//! them waits for no more than that.

use std::collections::BTreeMap;

use dlq_core::store::Operation;
use dlq_letters::{Changed, DocumentChange, ItemChange, LetterChange, Note, Rows};

use super::batch::Batch;
use super::codec::Fields;
use super::names::Names;
use super::operations::{read_operation, select};
use super::query::Query;
use super::rows;
use super::step::Step;
use crate::error::{Again, Fault, Result};
use crate::values::{self, Put as _, Take as _};

impl Step<'_> {
    /// Writes all changes. Returns the number of the last new entry in the record of what operators did.
    pub(super) async fn write(&mut self, rows: &Rows) -> Result<Option<i64>> {
        // Rows are written before those that refer to them: operations before their items, and letters before their
        // aliases.
        self.write_started(rows).await?;
        self.write_letters(rows).await?;
        self.write_aliases(rows).await?;
        self.write_items(rows).await?;
        self.write_schedules(rows).await?;
        self.write_documents(rows).await?;
        let note = self.write_notes(rows.notes()).await?;
        self.write_operations(rows).await?;
        Ok(note)
    }

    async fn write_letters(&mut self, rows: &Rows) -> Result<()> {
        let names = self.names();
        let changes: Vec<_> = rows.letters().collect();
        let gone = changes.iter().filter(|it| it.after.is_none()).map(|it| it.id);
        let gone: Vec<_> = gone.collect();
        if !gone.is_empty() {
            let delete = format!("DELETE FROM {} WHERE letter_id = ANY(", names.letters);
            Query::new(delete).bind(gone).push(")").run(self.conn()).await?;
        }
        // Keys that are given up come before those that are taken, so that no two rows have one at any moment.
        let (mut given_up, mut taken) = (Vec::new(), Vec::new());
        for LetterChange { id, before, after, .. } in &changes {
            let (former, key) =
                (before.and_then(|row| row.key.as_ref()), after.and_then(|row| row.key.as_ref()));
            if former != key && after.is_some() {
                given_up.extend(former.map(|_| (*id, None)));
                taken.extend(key.map(|key| (*id, Some(key.to_bytes()))));
            }
        }
        self.write_keys(&given_up).await?;
        let new: Vec<_> =
            changes.iter().filter(|it| it.before.is_none()).filter_map(|it| it.after).collect();
        if !new.is_empty() {
            let insert = rows::insert(names, new.iter().copied())?;
            // A letter that was not there could not be locked. Where another has put it since, all is decided anew.
            let insert = insert.push(" ON CONFLICT (letter_id) DO NOTHING");
            if insert.run(self.conn()).await? < new.len() as u64 {
                return Err(collided());
            }
        }
        // One statement for each set of columns, so that only what differs is sent. The rows have been locked since
        // they were loaded, and so are there.
        for changed in [Changed::State, Changed::Run, Changed::All] {
            let changes = changes.iter().filter(|it| it.before.is_some() && it.changed == changed);
            let changes: Vec<_> = changes.filter_map(|it| it.after).collect();
            if !changes.is_empty() {
                rows::update(names, &changes, changed)?.run(self.conn()).await?;
            }
        }
        self.write_keys(&taken).await
    }

    async fn write_aliases(&mut self, rows: &Rows) -> Result<()> {
        let aliases: Vec<_> = rows.aliases().collect();
        if aliases.is_empty() {
            return Ok(());
        }
        let mut batch = Batch::default();
        for (id, alias) in &aliases {
            let row = batch.row();
            row.bytes(Some(id.as_bytes()))?;
            row.bytes(Some(alias.row.as_bytes()))?;
            row.count(alias.generation)?;
        }
        let sql = format!(
            "INSERT INTO {} (alias, letter_id, generation) SELECT * FROM ",
            self.names().aliases
        );
        let insert = Query::new(sql).batch(batch)?.push(
            " AS u ON CONFLICT (alias) DO UPDATE SET letter_id = excluded.letter_id, generation = excluded.generation",
        );
        insert.run(self.conn()).await?;
        Ok(())
    }

    async fn write_items(&mut self, rows: &Rows) -> Result<()> {
        // One statement inserts all that are new and one updates the others, however many there are.
        let (mut new, mut changed) = (Batch::default(), Batch::default());
        let changes: Vec<_> = rows.items().collect();
        for (operation, index, change) in &changes {
            let batch = match change {
                ItemChange::Append { .. } => &mut new,
                ItemChange::Outcome { .. } => &mut changed,
            };
            let row = batch.row();
            row.bytes(Some(operation.as_bytes()))?;
            row.int(Some(values::signed(*index)))?;
            match change {
                ItemChange::Append { item, consumer } => {
                    row.bytes(Some(item.letter.as_bytes()))?;
                    row.count(item.generation)?;
                    row.word(consumer)?;
                    row.word(item.outcome.as_str())?;
                    row.text(item.why.as_deref().map(Into::into))?;
                    row.time(Some(item.at))?;
                }
                ItemChange::Outcome { outcome, why, at } => {
                    row.word(outcome.as_str())?;
                    row.text(why.as_deref().map(Into::into))?;
                    row.time(Some(*at))?;
                }
            }
        }
        let items = &self.names().items;
        if new.width() > 0 {
            let sql = format!(
                "INSERT INTO {items} (operation, idx, letter_id, generation, consumer, outcome, why, at) SELECT * FROM "
            );
            Query::new(sql).batch(new)?.run(self.conn()).await?;
        }
        if changed.width() > 0 {
            let sql =
                format!("UPDATE {items} i SET outcome = u.outcome, why = u.why, at = u.at FROM ");
            let update = Query::new(sql).batch(changed)?.push(
                " AS u (operation, idx, outcome, why, at) WHERE i.operation = u.operation AND i.idx = u.idx",
            );
            update.run(self.conn()).await?;
        }
        Ok(())
    }

    async fn write_schedules(&mut self, rows: &Rows) -> Result<()> {
        for consumer in rows.schedules() {
            // The row is there since it was looked at.
            let run = format!("UPDATE {} SET last_run = ", self.names().schedules);
            let run = Query::new(run).bind(self.now()).push(" WHERE md5(consumer) = md5(");
            run.bind(consumer).push(")").run(self.conn()).await?;
        }
        Ok(())
    }

    async fn write_documents(&mut self, rows: &Rows) -> Result<()> {
        let documents = self.names().documents.clone();
        let changes: Vec<_> = rows.changed_documents().collect();
        let (mut new, mut gone) = (Batch::default(), Batch::default());
        let (mut added, mut taken) = (0, 0);
        for DocumentChange { key, before, after } in changes {
            let (kind, name) = (key.kind.as_str(), key.name.as_str());
            match (before, after) {
                (None, Some(text)) => {
                    let row = new.row();
                    row.word(kind)?;
                    row.word(name)?;
                    row.word(text)?;
                    added += 1;
                }
                (_, Some(text)) => {
                    let update = Query::new(format!("UPDATE {documents} SET value = ")).bind(text);
                    let update = update.push(" WHERE kind = ").bind(kind);
                    let update = update.push(" AND name = ").bind(name);
                    if update.run(self.conn()).await? == 0 {
                        return Err(collided());
                    }
                }
                (_, None) => {
                    let row = gone.row();
                    row.word(kind)?;
                    row.word(name)?;
                    taken += 1;
                }
            }
        }
        let mut written = 0;
        if new.width() > 0 {
            let sql = format!("INSERT INTO {documents} (kind, name, value) SELECT * FROM ");
            let insert = Query::new(sql).batch(new)?;
            let insert = insert.push(" AS u ON CONFLICT (kind, name) DO NOTHING");
            written += insert.run(self.conn()).await?;
        }
        if gone.width() > 0 {
            let sql = format!("DELETE FROM {documents} d USING ");
            let delete = Query::new(sql).batch(gone)?;
            let delete =
                delete.push(" AS u (kind, name) WHERE d.kind = u.kind AND d.name = u.name");
            written += delete.run(self.conn()).await?;
        }
        // What was there is locked. One that was not there may have been made by another since.
        if written == added + taken { Ok(()) } else { Err(collided()) }
    }

    async fn write_notes(&mut self, notes: &[Note]) -> Result<Option<i64>> {
        let names = self.names();
        let mut last = None;
        for note in notes {
            match note {
                Note::New(entry) => {
                    let mut batch = Batch::default();
                    let row = batch.row();
                    row.time(Some(entry.at))?;
                    row.word(&entry.by.who)?;
                    row.text(entry.by.note.as_deref().map(Into::into))?;
                    row.word(&entry.action)?;
                    row.word(&entry.subject)?;
                    row.int(Some(values::signed(entry.affected)))?;
                    row.bytes(entry.operation.as_ref().map(|id| &id.as_bytes()[..]))?;
                    let sql = format!(
                        "INSERT INTO {} (at, who, note, action, subject, affected, operation) SELECT * FROM ",
                        names.audit
                    );
                    let insert = Query::new(sql).batch(batch)?.push(" RETURNING seq");
                    last = insert.first(self.conn(), |record| Fields::of(record).int()).await?;
                }
                Note::Grow { entry, by } => {
                    let add = format!("UPDATE {} SET affected = affected + ", names.audit);
                    let add = Query::new(add).bind(values::signed(*by)).push(" WHERE seq = ");
                    add.bind(*entry).run(self.conn()).await?;
                }
            }
        }
        Ok(last)
    }

    /// Writes operations that were started, as they are after all of the call.
    async fn write_started(&mut self, rows: &Rows) -> Result<()> {
        let mut changes: BTreeMap<_, _> = rows.operations().collect();
        for operation in rows.started() {
            let mut operation = operation.clone();
            if let Some(change) = changes.remove(&operation.id) {
                change.apply(&mut operation, self.now());
            }
            insert_operation(self.names(), &operation)?.run(self.conn()).await?;
        }
        Ok(())
    }

    /// Locks the operations that are changed, and applies the changes to what is stored now.
    async fn write_operations(&mut self, rows: &Rows) -> Result<()> {
        let started = |id| rows.started().iter().any(|operation| operation.id == id);
        let changes: BTreeMap<_, _> = rows.operations().filter(|(id, _)| !started(*id)).collect();
        if changes.is_empty() {
            return Ok(());
        }
        let ids: Vec<_> = changes.keys().map(|id| id.as_bytes().to_vec()).collect();
        let query = select(self.names()).push(" WHERE id = ANY(").bind(ids);
        // All calls lock them in the same order, so that no two wait for each other.
        let query = query.push(") ORDER BY seq FOR UPDATE");
        let mut operations = query.all(self.conn(), read_operation).await?;
        let now = self.now();
        let mut batch = Batch::default();
        for operation in &mut operations {
            if let Some(change) = changes.get(&operation.id) {
                change.apply(operation, now);
            }
        }
        for operation in &operations {
            let row = batch.row();
            row.bytes(Some(operation.id.as_bytes()))?;
            row.word(operation.state.as_str())?;
            row.time(Some(operation.updated_at))?;
            row.time(Some(operation.next_release))?;
            row.int(Some(values::signed(operation.progress.total)))?;
            row.json(values::json(&operation.progress.by_outcome))?;
        }
        if batch.width() > 0 {
            let sql = format!(
                "UPDATE {} o SET state = u.state, updated_at = u.updated_at, next_release = u.next_release, \
                 total = u.total, progress = u.progress FROM ",
                self.names().operations
            );
            let update = Query::new(sql).batch(batch)?.push(
                " AS u (id, state, updated_at, next_release, total, progress) WHERE o.id = u.id",
            );
            update.run(self.conn()).await?;
        }
        // Apart, since a specification can be long and hardly ever changes.
        let mut batch = Batch::default();
        for (id, spec) in changes.iter().filter_map(|(id, it)| Some((id, it.spec.as_ref()?))) {
            let row = batch.row();
            row.bytes(Some(id.as_bytes()))?;
            row.json(values::json(spec))?;
        }
        if batch.width() > 0 {
            let sql = format!("UPDATE {} o SET spec = u.spec FROM ", self.names().operations);
            let update = Query::new(sql).batch(batch)?.push(" AS u (id, spec) WHERE o.id = u.id");
            update.run(self.conn()).await?;
        }
        Ok(())
    }
}

fn insert_operation(names: &Names, operation: &Operation) -> Result<Query> {
    let mut batch = Batch::default();
    let row = batch.row();
    row.bytes(Some(operation.id.as_bytes()))?;
    row.json(values::json(&operation.spec))?;
    row.word(operation.state.as_str())?;
    row.word(&operation.by.who)?;
    row.text(operation.by.note.as_deref().map(Into::into))?;
    row.time(Some(operation.created_at))?;
    row.time(Some(operation.updated_at))?;
    row.time(Some(operation.next_release))?;
    row.int(Some(values::signed(operation.progress.total)))?;
    row.json(values::json(&operation.progress.by_outcome))?;
    let sql = format!(
        "INSERT INTO {} (id, spec, state, who, note, created_at, updated_at, next_release, total, progress) \
         SELECT * FROM ",
        names.operations
    );
    Query::new(sql).batch(batch)
}

/// Another has just written what was not there before.
fn collided() -> Fault {
    Fault::new(dlq_core::StoreErrorKind::Unavailable, "others change the same letters; try again")
        .with_again(Again::Collided)
}

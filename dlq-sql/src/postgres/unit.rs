//! [`Unit`]: one call within a transaction. Rows that it looks at are locked and kept here; what it changes is written
//! all at once at the end.

use std::collections::{BTreeMap, BTreeSet};

use dlq_core::store::{AuditEntry, ItemOutcome, Operation};
use dlq_core::{LetterId, OperationId, Timestamp};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Postgres, Transaction};

use super::Inner;
use super::call::not_begun;
use super::codec::{Fields, read_head, read_whole};
use super::dedup::Originals;
use super::doubt::Doubt;
use super::names::Names;
use super::query::{DURABLE, Query};
use super::rows;
use super::silence::MANY;
use crate::error::{Again, Fault, Result};
use crate::row::{Changed, Row};
use crate::values::Take as _;

/// One call within a transaction.
pub(super) struct Unit<'c> {
    transaction: Transaction<'c, Postgres>,
    names: &'c Names,
    now: Timestamp,
    /// The number of the transaction, by which the server knows later what became of it; where it was taken.
    number: Option<String>,
    rows: BTreeMap<LetterId, Slot>,
    /// Places in operations whose outcome was looked at, and what is to be written of them.
    pub(super) items: BTreeMap<(OperationId, u64), Item>,
    /// The operations it has touched.
    pub(super) operations: BTreeMap<OperationId, Operation>,
    pub(super) originals: Originals,
    pub(super) notes: Vec<AuditEntry>,
    /// Whose letters became due; an empty name is everybody.
    pub(super) wakes: BTreeSet<String>,
    pub(super) is_dedup: Option<bool>,
}

/// What is known of a letter.
enum Slot {
    /// There is none of this id.
    None,
    Row {
        row: Box<Row>,
        is_whole: bool,
        pending: Pending,
    },
}

/// What is to be written of a row.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pending {
    Nothing,
    Insert,
    Update(Changed),
}

/// An item of an operation.
pub(super) struct Item {
    pub(super) outcome: ItemOutcome,
    pub(super) why: Option<String>,
    pub(super) is_changed: bool,
}

impl<'c> Unit<'c> {
    pub(super) async fn begin(
        conn: &'c mut PgConnection,
        store: &'c Inner,
        given: Option<Timestamp>,
    ) -> Result<Self> {
        let begun = conn.begin_with(AssertSqlSafe(&*store.begin.sql)).await;
        let mut transaction = begun.map_err(not_begun)?;
        let now = Query::new("SELECT ").now(given).push(&format!(" WHERE {DURABLE}"));
        let now = now.first(&mut transaction, |row| Fields::of(row).time()).await?;
        let now = now.unwrap_or_default();
        Ok(Self {
            transaction,
            names: &store.names,
            now,
            number: None,
            rows: BTreeMap::new(),
            items: BTreeMap::new(),
            operations: BTreeMap::new(),
            originals: Originals::default(),
            notes: Vec::new(),
            wakes: BTreeSet::new(),
            is_dedup: None,
        })
    }

    /// Writes what was held back and makes it durable; or, where the call failed, takes back what it did. Its locks are
    /// gone then: a letter that is still locked would be passed over by whoever claims. Says whose letters became due.
    /// What was to be said of a COMMIT whose answer was lost is left in `doubt`.
    pub(super) async fn end<T>(
        mut self,
        done: Result<T>,
        doubt: &mut Option<Doubt<T>>,
    ) -> Result<(T, BTreeSet<String>)> {
        let done = match done {
            Ok(done) => self.write().await.map(|()| done),
            Err(fault) => Err(fault),
        };
        match done {
            Ok(done) => {
                let ended = self.transaction.commit().await.map_err(Fault::from);
                if let Err(fault) = ended {
                    let after = |number| Doubt::after(&fault, number, (done, self.wakes));
                    *doubt = self.number.and_then(after);
                    return Err(fault);
                }
                Ok((done, self.wakes))
            }
            Err(fault) => {
                // Where this fails too, the connection is broken, and the database takes it back.
                let _ = self.transaction.rollback().await;
                Err(fault)
            }
        }
    }

    /// From now on the server can say later what became of it.
    pub(super) async fn take_number(&mut self) -> Result<()> {
        let number = Query::new("SELECT pg_current_xact_id()::text");
        self.number = number.first(self.conn(), |row| Fields::of(row).text()).await?;
        Ok(())
    }

    async fn write(&mut self) -> Result<()> {
        self.flush().await?;
        for operation in std::mem::take(&mut self.operations).into_values() {
            self.write_operation(&operation).await?;
        }
        let notes = std::mem::take(&mut self.notes);
        self.write_notes(&notes).await
    }

    pub(super) fn conn(&mut self) -> &mut PgConnection {
        &mut self.transaction
    }

    pub(super) fn names(&self) -> &'c Names {
        self.names
    }

    /// When the call began.
    pub(super) fn now(&self) -> Timestamp {
        self.now
    }

    /// The rest of the call is about more letters than a statement has time for otherwise.
    pub(super) async fn take_time(&mut self) -> Result<()> {
        Query::new("SET LOCAL statement_timeout = 0").run(self.conn()).await?;
        Ok(())
    }

    /// The rest of the call is about all letters that match, and is given [`MANY`] times as long.
    pub(super) async fn take_time_for_many(&mut self) -> Result<()> {
        let longer = format!(
            "SELECT set_config(name, least(setting::bigint * {MANY}, {})::text, true) \
             FROM pg_settings WHERE name = 'statement_timeout'",
            i32::MAX
        );
        Query::new(longer).run(self.conn()).await?;
        Ok(())
    }

    /// Locks letters and reads them whole, all at once. Always in the same order, so that calls wait for each other but
    /// rarely for each other's.
    pub(super) async fn fetch(&mut self, ids: &[LetterId]) -> Result<()> {
        self.load(ids, true).await
    }

    /// The same, without the messages' bytes and the histories.
    pub(super) async fn fetch_heads(&mut self, ids: &[LetterId]) -> Result<()> {
        self.load(ids, false).await
    }

    async fn load(&mut self, ids: &[LetterId], is_whole: bool) -> Result<()> {
        let is_known = |id: &LetterId| match self.rows.get(id) {
            None => false,
            Some(Slot::None) => true,
            Some(Slot::Row { is_whole: known, .. }) => *known || !is_whole,
        };
        let missing: BTreeSet<_> = ids.iter().copied().filter(|id| !is_known(id)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        // What is known without its bytes is read again, with what was changed of it.
        if missing.iter().any(|id| self.rows.contains_key(id)) {
            self.flush().await?;
        }
        let select = if is_whole { &self.names.select_whole } else { &self.names.select_head };
        let read = if is_whole { read_whole } else { read_head };
        let missing: Vec<_> = missing.into_iter().collect();
        let query = Query::new(select).push(" WHERE t.letter_id = ANY(").bind(missing.clone());
        let rows = query.push(") ORDER BY t.letter_id FOR UPDATE").all(self.conn(), read).await?;
        for id in missing {
            self.rows.insert(id, Slot::None);
        }
        for row in rows {
            self.keep(row, is_whole, Pending::Nothing);
        }
        Ok(())
    }

    /// Locks all letters that meet a condition on `t`, however many they are; they are read in portions then, or
    /// operations would be locked before letters.
    pub(super) async fn lock_where(&mut self, condition: Query) -> Result<()> {
        self.take_time_for_many().await?;
        let select = format!("SELECT count(*) FROM (SELECT FROM {} t WHERE ", self.names.letters);
        let query = condition.before_it(&select).push(" ORDER BY t.letter_id FOR UPDATE) l");
        query.run(self.conn()).await?;
        Ok(())
    }

    /// Locks the letters that meet a condition on `t`, and reads them without the messages' bytes and the histories.
    pub(super) async fn fetch_where(&mut self, condition: Query) -> Result<Vec<Row>> {
        self.fetch_heads_of(condition.push(" ORDER BY t.letter_id FOR UPDATE")).await
    }

    /// The same for so many of them, the first by their ids. What was fetched before is written and forgotten.
    pub(super) async fn fetch_portion(&mut self, condition: Query, limit: u32) -> Result<Vec<Row>> {
        self.flush().await?;
        self.rows.clear();
        let query = condition.push(" ORDER BY t.letter_id LIMIT ").bind(limit);
        self.fetch_heads_of(query.push(" FOR UPDATE")).await
    }

    async fn fetch_heads_of(&mut self, query: Query) -> Result<Vec<Row>> {
        self.flush().await?;
        let query = query.before_it(&format!("{} WHERE ", self.names.select_head));
        let rows = query.all(self.conn(), read_head).await?;
        for row in &rows {
            self.keep(row.clone(), false, Pending::Nothing);
        }
        Ok(rows)
    }

    fn keep(&mut self, row: Row, is_whole: bool, pending: Pending) {
        self.rows.insert(row.letter.id, Slot::Row { row: Box::new(row), is_whole, pending });
    }

    /// The row of a letter without the message's bytes and the history, perhaps.
    pub(super) async fn head(&mut self, id: LetterId) -> Result<Option<Row>> {
        self.load(&[id], false).await?;
        Ok(self.known(id))
    }

    /// The row of a letter.
    pub(super) async fn whole(&mut self, id: LetterId) -> Result<Option<Row>> {
        self.load(&[id], true).await?;
        Ok(self.known(id))
    }

    fn known(&self, id: LetterId) -> Option<Row> {
        match self.rows.get(&id) {
            Some(Slot::Row { row, .. }) => Some((**row).clone()),
            _ => None,
        }
    }

    /// A new row. Its id has been looked up.
    pub(super) fn insert(&mut self, row: Row) {
        self.keep(row, true, Pending::Insert);
    }

    /// What has changed of a row.
    pub(super) fn update(&mut self, row: Row, changed: Changed) {
        let (was_whole, before) = match self.rows.get(&row.letter.id) {
            Some(Slot::Row { is_whole, pending, .. }) => (*is_whole, *pending),
            _ => (false, Pending::Nothing),
        };
        let pending = match before {
            Pending::Insert => Pending::Insert,
            Pending::Update(before) => Pending::Update(before.max(changed)),
            Pending::Nothing => Pending::Update(changed),
        };
        self.keep(row, was_whole || changed == Changed::All, pending);
    }

    /// Removes rows and what hangs on them.
    pub(super) async fn remove(&mut self, ids: Vec<LetterId>) -> Result<()> {
        self.flush().await?;
        if ids.is_empty() {
            return Ok(());
        }
        for id in &ids {
            self.rows.insert(*id, Slot::None);
        }
        let delete =
            Query::new(format!("DELETE FROM {} WHERE letter_id = ANY(", self.names.letters));
        delete.bind(ids).push(")").run(self.conn()).await?;
        Ok(())
    }

    /// Writes rows and items that have changed so far.
    pub(super) async fn flush(&mut self) -> Result<()> {
        let mut rows = std::mem::take(&mut self.rows);
        let written = self.write_rows(&rows).await;
        for slot in rows.values_mut() {
            if let Slot::Row { pending, .. } = slot {
                *pending = Pending::Nothing;
            }
        }
        self.rows = rows;
        written?;
        self.write_originals().await?;
        self.write_items().await
    }

    async fn write_rows(&mut self, rows: &BTreeMap<LetterId, Slot>) -> Result<()> {
        let of = |wanted: Pending| {
            rows.values().filter_map(move |slot| match slot {
                Slot::Row { row, pending, .. } if *pending == wanted => Some(&**row),
                _ => None,
            })
        };
        for slot in rows.values() {
            if let Slot::Row { row, pending, .. } = slot
                && *pending != Pending::Nothing
                && row.claim.is_none()
                && row.available_at().is_some()
            {
                self.wakes.insert(row.letter.consumer.clone());
            }
        }
        let new: Vec<_> = of(Pending::Insert).collect();
        if !new.is_empty() {
            let count = new.len() as u64;
            let insert = rows::insert(self.names, new.into_iter())?;
            if insert.push(" ON CONFLICT (letter_id) DO NOTHING").run(self.conn()).await? < count {
                return Err(collided());
            }
        }
        for changed in [Changed::State, Changed::Run, Changed::All] {
            let changes: Vec<_> = of(Pending::Update(changed)).collect();
            if !changes.is_empty() {
                rows::update(self.names, &changes, changed)?.run(self.conn()).await?;
            }
        }
        Ok(())
    }
}

/// Another has just written what was not there before.
fn collided() -> Fault {
    Fault::new(dlq_core::StoreErrorKind::Unavailable, "others change the same letters; try again")
        .with_again(Again::Collided)
}

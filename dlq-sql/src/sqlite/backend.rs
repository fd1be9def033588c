//! The store as a [`Backend`]: a verb runs on the thread that writes, in the savepoint of its call.

use std::time::Duration;

use dlq_core::store::{
    AuditEntry, CheckLimits, Due, ItemPage, Operation, OperationSpec, Plan, ProcessedEvent, rules,
};
use dlq_core::{DeadLetter, Finding, OperationId, StoreError, StoreErrorKind, Timestamp};
use dlq_letters::{Backend, Done, Needs, Row, Rows, Select, Verb};
use rusqlite::Connection;

use super::load::Loader;
use super::names::Names;
use super::select::{self, SelectedRows};
use super::unit::Unit;
use super::{SqliteStore, audit, dedup, due, operations, plan, write};
use crate::error::{During, Fault, Result};

/// The answer of a verb, or its own error, after which nothing was changed.
type Decided<V> = std::result::Result<Done<<V as Verb>::Output>, StoreError>;

dlq_letters::store!(SqliteStore);

impl Backend for SqliteStore {
    async fn run<V: Verb>(
        &self,
        during: &'static str,
        verb: V,
    ) -> std::result::Result<Done<V::Output>, StoreError> {
        let now = self.now();
        let mut known = Known::default();
        verb.needs(&mut known.needs);
        // Long pages are read by a reader, so that the writer does not keep all others waiting.
        known.seen = self.look_ahead(&known.needs, now).await.during(during)?;
        self.write(move |unit| drive(unit, &verb, &known, now)).await.during(during)?
    }

    async fn put_new(&self, letters: &[DeadLetter]) -> std::result::Result<Vec<bool>, StoreError> {
        let now = self.now();
        let put = |letter: &DeadLetter| Row::new(rules::put(letter.clone(), now));
        let rows: Vec<_> = letters.iter().map(put).collect();
        let put = move |unit: &mut Unit<'_>| write::put_new(unit.conn(), unit.names(), &rows);
        self.write(put).await.during("put letters")
    }

    async fn switch_dedup(&self) -> std::result::Result<(), StoreError> {
        self.write(|unit| dedup::switch_on(unit.conn(), unit.names())).await.during("deduplicate")
    }

    async fn next_due(
        &self,
        consumers: Vec<String>,
    ) -> std::result::Result<Option<Timestamp>, StoreError> {
        let now = self.now();
        let next_due =
            move |conn: &Connection, names: &Names| due::next_due(conn, names, &consumers, now);
        self.read(next_due).await.during("find the next due letter")
    }

    fn store_identity(&self) -> Option<String> {
        Some(self.identity())
    }

    async fn plan(&self, spec: OperationSpec) -> std::result::Result<Plan, StoreError> {
        let plan = move |conn: &Connection, names: &Names| plan::plan(conn, names, &spec);
        self.read(plan).await.during("plan the replay")
    }

    async fn operation(
        &self,
        id: OperationId,
    ) -> std::result::Result<Option<Operation>, StoreError> {
        let load = move |conn: &Connection, names: &Names| operations::load(conn, names, id);
        self.read(load).await.during("read the operation")
    }

    async fn operations(&self, limit: u32) -> std::result::Result<Vec<Operation>, StoreError> {
        let list = move |conn: &Connection, names: &Names| operations::list(conn, names, limit);
        self.read(list).await.during("list operations")
    }

    async fn items(
        &self,
        id: OperationId,
        after: u64,
        limit: u32,
    ) -> std::result::Result<ItemPage, StoreError> {
        let items = move |conn: &Connection, names: &Names| {
            operations::items(conn, names, id, after, limit)
        };
        self.read(items).await.during("list the items")
    }

    async fn audit(
        &self,
        before: Option<u64>,
        limit: u32,
    ) -> std::result::Result<Vec<AuditEntry>, StoreError> {
        let audit =
            move |conn: &Connection, names: &Names| audit::audit(conn, names, before, limit);
        self.read(audit).await.during("read the audit")
    }

    async fn record_processed(
        &self,
        events: Vec<ProcessedEvent>,
    ) -> std::result::Result<(), StoreError> {
        let record =
            move |unit: &mut Unit<'_>| audit::record_processed(unit.conn(), unit.names(), &events);
        self.write(record).await.during("write the processing audit")
    }

    async fn processed(&self, limit: u32) -> std::result::Result<Vec<ProcessedEvent>, StoreError> {
        let list = move |conn: &Connection, names: &Names| audit::processed(conn, names, limit);
        self.read(list).await.during("read the processing audit")
    }

    async fn check(&self, limits: CheckLimits) -> std::result::Result<Vec<Finding>, StoreError> {
        self.examine(limits).await
    }

    async fn due(&self, overdue: Duration) -> std::result::Result<Vec<Due>, StoreError> {
        self.due_by_consumer(overdue).await
    }
}

impl SqliteStore {
    /// Reads those pages of a verb that may take long, while others write. What is in them is looked at once more when it is
    /// written, and a letter that comes to match in between has come too late.
    async fn look_ahead(
        &self,
        needs: &Needs,
        now: Timestamp,
    ) -> Result<Vec<(Select, Vec<SelectedRows>)>> {
        let selects = needs.selects.iter().map(|(select, _)| select);
        let long: Vec<_> = selects.filter(|it| select::is_long(it)).cloned().collect();
        // Without readers the writer would read the page twice.
        if long.is_empty() || self.inner.readers.is_none() {
            return Ok(Vec::new());
        }
        let look = move |conn: &Connection, names: &Names| {
            let find = |it: &Select| Ok((it.clone(), select::find(conn, names, it, now)?));
            long.iter().map(find).collect()
        };
        self.read(look).await
    }
}

/// Rows that are known of a verb before its transaction begins.
#[derive(Debug, Default)]
struct Known {
    needs: Needs,
    seen: Vec<(Select, Vec<SelectedRows>)>,
}

/// Lets a verb decide, with what it asks for, and writes what it has changed.
fn drive<V: Verb>(unit: &Unit<'_>, verb: &V, known: &Known, now: Timestamp) -> Result<Decided<V>> {
    let (conn, names) = (unit.conn(), unit.names());
    let mut rows = Rows::new(now);
    let mut loader = Loader::new(conn, names, &known.seen);
    loader.load(&known.needs, &mut rows)?;
    let mut asked = Needs::default();
    loop {
        match rows.attempt(verb) {
            Ok(Some(answer)) => {
                let note = write::write(conn, names, &rows)?;
                return Ok(Ok(Done { answer, note }));
            }
            // Within a transaction an answer does not change, so a verb that asks for the same again would do so for
            // ever.
            Ok(None) if *rows.missing() == asked => {
                let detail = format!("the call asks for the same again: {verb:?}");
                return Err(Fault::new(StoreErrorKind::Unexpected, detail));
            }
            Ok(None) => {
                asked.clone_from(rows.missing());
                loader.load(&asked, &mut rows)?;
            }
            // A refusal is an answer and no fault: nothing was written before it, so that there is nothing to take
            // back.
            Err(error) => return Ok(Err(error)),
        }
    }
}

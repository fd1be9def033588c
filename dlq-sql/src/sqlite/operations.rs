use std::collections::BTreeMap;

use dlq_core::store::{
    Actor, AuditEntry, Control, ItemOutcome, ItemPage, Operation, OperationSpec, OperationState,
    Operations, Plan, Progress, Target,
};
use dlq_core::{LetterId, OperationId, Order, Status, StoreError, StoreErrorKind, Timestamp};
use rusqlite::Connection;

use super::SqliteStore;
use super::codec::{self, Fields};
use super::columns::{Binder, ITEM, read_item, read_summary};
use super::error::{During, Fault, Result};
use super::names::Names;
use super::query::Query;
use super::row::{Changed, Row};
use super::unit::Unit;
use dlq_core::store::rules;

impl Operations for SqliteStore {
    async fn plan(&self, spec: OperationSpec) -> std::result::Result<Plan, StoreError> {
        serve(&spec).during("plan the replay")?;
        let plan = move |conn: &Connection, names: &Names| plan(conn, names, &spec);
        self.read(plan).await.during("plan the replay")
    }

    async fn start(
        &self,
        spec: OperationSpec,
        by: Actor,
    ) -> std::result::Result<Operation, StoreError> {
        serve(&spec).during("start the replay")?;
        let now = self.now();
        self.write(move |unit| unit.start(&spec, &by, now)).await.during("start the replay")
    }

    async fn operation(
        &self,
        id: OperationId,
    ) -> std::result::Result<Option<Operation>, StoreError> {
        let load = move |conn: &Connection, names: &Names| load(conn, names, id);
        self.read(load).await.during("read the operation")
    }

    async fn operations(&self, limit: u32) -> std::result::Result<Vec<Operation>, StoreError> {
        let list = move |conn: &Connection, names: &Names| {
            select(names).push(" ORDER BY seq DESC LIMIT ").bind(limit).all(conn, read_operation)
        };
        self.read(list).await.during("list operations")
    }

    async fn items(
        &self,
        id: OperationId,
        after: u64,
        limit: u32,
    ) -> std::result::Result<ItemPage, StoreError> {
        let items = move |conn: &Connection, names: &Names| items(conn, names, id, after, limit);
        self.read(items).await.during("list the items")
    }

    async fn control(
        &self,
        id: OperationId,
        control: Control,
        by: Actor,
    ) -> std::result::Result<Operation, StoreError> {
        let now = self.now();
        self.write(move |unit| unit.control(id, control, &by, now))
            .await
            .during("steer the operation")
    }
}

fn serve(spec: &OperationSpec) -> Result<()> {
    if spec.target == Target::Handler {
        return Ok(());
    }
    Err(Fault::new(
        StoreErrorKind::Refused,
        "the store sends letters back to their own handler only; use that target",
    ))
}

fn unknown(id: OperationId) -> Fault {
    Fault::new(
        StoreErrorKind::NotFound,
        format!("no operation has the id {id}; list them to see which there are"),
    )
}

fn select(names: &Names) -> Query {
    Query::new(format!(
        "SELECT id, spec, state, who, note, created_at, updated_at, next_release, total, progress FROM {}",
        names.operations
    ))
}

fn read_operation(record: &rusqlite::Row<'_>) -> Result<Operation> {
    let mut fields = Fields::after(record, 0);
    Ok(Operation {
        id: OperationId::from_bytes(fields.next()?),
        spec: fields.json("operation")?,
        state: fields.word("state of an operation")?,
        by: Actor { who: fields.next()?, note: fields.next()? },
        created_at: fields.time()?,
        updated_at: fields.time()?,
        next_release: fields.time()?,
        progress: Progress {
            total: codec::unsigned(fields.next()?),
            by_outcome: fields.json("progress of an operation")?,
        },
    })
}

fn load(conn: &Connection, names: &Names, id: OperationId) -> Result<Option<Operation>> {
    select(names).push(" WHERE id = ").bind(id).first(conn, read_operation)
}

/// Those that may release letters, oldest first.
fn active(conn: &Connection, names: &Names) -> Result<Vec<Operation>> {
    select(names)
        .push(" WHERE state IN ('canary', 'running') ORDER BY seq")
        .all(conn, read_operation)
}

/// When an operation can release a letter of one of these consumers.
pub(super) fn next_release(
    conn: &Connection,
    names: &Names,
    consumers: &[String],
    now: Timestamp,
) -> Result<Option<Timestamp>> {
    let mut earliest = None;
    for operation in active(conn, names)? {
        let can = |at| operation.advance(at, u64::MAX).release > 0;
        let next = operation.next_release;
        let next = if can(now) { Some(now) } else { Some(next).filter(|at| *at > now && can(*at)) };
        if next.is_some() && has_queued(conn, names, operation.id, consumers)? {
            earliest = earliest.into_iter().chain(next).min();
        }
    }
    Ok(earliest)
}

fn has_queued(
    conn: &Connection,
    names: &Names,
    id: OperationId,
    consumers: &[String],
) -> Result<bool> {
    let mut query = Query::new(format!(
        "SELECT 1 FROM {} i WHERE i.outcome = 'queued' AND i.operation = ",
        names.items
    ));
    query.add_bind(id);
    if !consumers.is_empty() {
        query.add(" AND i.consumer");
        query.add_any(consumers.iter().map(String::as_str));
    }
    Ok(query.push(" LIMIT 1").first(conn, |_| Ok(()))?.is_some())
}

fn items(
    conn: &Connection,
    names: &Names,
    id: OperationId,
    after: u64,
    limit: u32,
) -> Result<ItemPage> {
    let operation = load(conn, names, id)?.ok_or_else(|| unknown(id))?;
    let after = i64::try_from(after).unwrap_or(i64::MAX);
    let items = Query::new(format!("SELECT {ITEM} FROM {} i WHERE i.operation = ", names.items))
        .bind(id)
        .push(" AND i.idx >= ")
        .bind(after)
        .push(" ORDER BY i.idx LIMIT ")
        .bind(limit.max(1))
        .all(conn, read_item)?;
    let next = items.last().map(|last| last.index + 1);
    Ok(ItemPage { items, next: next.filter(|next| *next < operation.progress.total) })
}

/// `FROM` the letters that an operation would freeze, in order, at most so many.
fn frozen(query: Query, names: &Names, spec: &OperationSpec, limit: Option<u64>) -> Query {
    let query = query
        .push(&format!(
            " FROM {} t WHERE t.status = 'pending' AND t.operation IS NULL AND ",
            names.letters
        ))
        .filter(&spec.filter);
    let query = query.push(match spec.order {
        Order::OldestFirst => " ORDER BY t.created_at, t.letter_id",
        Order::NewestFirst => " ORDER BY t.created_at DESC, t.letter_id DESC",
    });
    match limit {
        Some(limit) => query.push(" LIMIT ").bind(i64::try_from(limit).unwrap_or(i64::MAX)),
        None => query,
    }
}

fn plan(conn: &Connection, names: &Names, spec: &OperationSpec) -> Result<Plan> {
    let query = Query::new("SELECT count(*), coalesce(sum(replays >= ")
        .bind(spec.max_replays)
        .push("), 0) FROM (SELECT t.replays");
    let query = frozen(query, names, spec, spec.limit).push(")");
    let (count, at_cap) = query
        .first(conn, |row| {
            let mut fields = Fields::after(row, 0);
            Ok((codec::unsigned(fields.next()?), codec::unsigned(fields.next()?)))
        })?
        .unwrap_or_default();
    let head = names.select_head.split(" FROM ").next().unwrap_or_default();
    let sample = Some(spec.limit.unwrap_or(u64::MAX).min(10));
    let sample = frozen(Query::new(head), names, spec, sample).all(conn, read_summary)?;
    let ineligible = Query::new(format!(
        "SELECT t.status, count(*) FROM {} t WHERE NOT (t.status = 'pending' AND t.operation IS NULL) AND ",
        names.letters
    ));
    let ineligible =
        ineligible.filter(&spec.filter).push(" GROUP BY t.status").all(conn, |row| {
            let mut fields = Fields::after(row, 0);
            Ok((fields.word::<Status>("status")?, codec::unsigned(fields.next()?)))
        })?;
    Ok(Plan {
        count,
        past_cap: if spec.max_replays == 0 { 0 } else { at_cap },
        ineligible: ineligible.into_iter().collect::<BTreeMap<_, _>>(),
        sample,
    })
}

impl Unit<'_> {
    fn start(&mut self, spec: &OperationSpec, by: &Actor, now: Timestamp) -> Result<Operation> {
        let (conn, names) = (self.conn(), self.names());
        let number: i64 = conn.query_row(
            &format!("SELECT coalesce(max(seq), 0) FROM {}", names.operations),
            [],
            |row| row.get(0),
        )?;
        let id = OperationId::of(&by.who, now, codec::unsigned(number));
        let frozen = frozen(
            Query::new("SELECT t.seq, t.letter_id, t.generation, t.consumer"),
            names,
            spec,
            spec.limit,
        )
        .all(conn, |row| {
            let mut fields = Fields::after(row, 0);
            let (seq, letter): (i64, [u8; 16]) = (fields.next()?, fields.next()?);
            Ok((seq, letter, fields.next::<u32>()?, fields.next::<String>()?))
        })?;
        let total = frozen.len() as u64;
        let state =
            if spec.canary.is_some() { OperationState::Canary } else { OperationState::Running };
        let mut operation = Operation {
            id,
            spec: spec.clone(),
            state,
            by: by.clone(),
            created_at: now,
            updated_at: now,
            next_release: now,
            progress: Progress {
                total,
                by_outcome: (total > 0)
                    .then_some((ItemOutcome::Queued, total))
                    .into_iter()
                    .collect(),
            },
        };
        operation.state = operation.advance(now, 0).state;
        self.insert_operation(&operation)?;
        let hold = format!(
            "UPDATE {} SET retry_after = NULL, available_at = NULL, operation = ?1, item = ?2, \
             updated_at = ?3 WHERE seq = ?4",
            names.letters
        );
        let item = format!(
            "INSERT INTO {} (operation, idx, letter_id, generation, consumer, outcome, at) \
             VALUES (?1, ?2, ?3, ?4, ?5, 'queued', ?6)",
            names.items
        );
        let (mut hold, mut item) = (conn.prepare_cached(&hold)?, conn.prepare_cached(&item)?);
        for (index, (seq, letter, generation, consumer)) in frozen.into_iter().enumerate() {
            let index = codec::signed(index as u64);
            hold.execute((id.as_bytes(), index, now.as_nanos(), seq))?;
            item.execute((id.as_bytes(), index, letter, generation, consumer, now.as_nanos()))?;
        }
        self.note(&AuditEntry {
            at: now,
            by: by.clone(),
            action: "replay".to_owned(),
            subject: codec::json(spec),
            affected: total,
            operation: Some(id),
        })?;
        Ok(operation)
    }

    fn insert_operation(&self, operation: &Operation) -> Result<()> {
        let sql = format!(
            "INSERT INTO {} (id, spec, state, who, note, created_at, updated_at, next_release, total, progress) \
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            self.names().operations
        );
        let mut statement = self.conn().prepare_cached(&sql)?;
        Binder::new(&mut statement)
            .put(operation.id.as_bytes())?
            .put(codec::json(&operation.spec))?
            .put(operation.state.as_str())?
            .put(&operation.by.who)?
            .put(operation.by.note.as_deref())?
            .put(operation.created_at.as_nanos())?
            .put(operation.updated_at.as_nanos())?
            .put(operation.next_release.as_nanos())?
            .put(codec::signed(operation.progress.total))?
            .put(codec::json(&operation.progress.by_outcome))?;
        statement.raw_execute()?;
        Ok(())
    }

    /// Writes what changes of an operation.
    pub(super) fn write_operation(&self, operation: &Operation) -> Result<()> {
        let sql = format!(
            "UPDATE {} SET state = ?, updated_at = ?, next_release = ?, progress = ? WHERE id = ?",
            self.names().operations
        );
        let mut statement = self.conn().prepare_cached(&sql)?;
        Binder::new(&mut statement)
            .put(operation.state.as_str())?
            .put(operation.updated_at.as_nanos())?
            .put(operation.next_release.as_nanos())?
            .put(codec::json(&operation.progress.by_outcome))?
            .put(operation.id.as_bytes())?;
        statement.raw_execute()?;
        Ok(())
    }

    /// The operation as this call has left it; it is written when the call is done.
    fn operation_mut(&mut self, id: OperationId) -> Result<Option<&mut Operation>> {
        if !self.operations.contains_key(&id) {
            let Some(operation) = load(self.conn(), self.names(), id)? else { return Ok(None) };
            self.operations.insert(id, operation);
        }
        Ok(self.operations.get_mut(&id))
    }

    pub(super) fn item_outcome(&self, id: OperationId, index: u64) -> Result<Option<ItemOutcome>> {
        Query::new(format!("SELECT outcome FROM {} WHERE operation = ", self.names().items))
            .bind(id)
            .push(" AND idx = ")
            .bind(codec::signed(index))
            .first(self.conn(), |row| Fields::after(row, 0).word("outcome"))
    }

    /// Records the outcome of the item that the row is.
    pub(super) fn set_item(
        &mut self,
        row: &Row,
        outcome: ItemOutcome,
        why: Option<&str>,
        now: Timestamp,
    ) -> Result<()> {
        let Some((id, index)) = row.item else { return Ok(()) };
        let Some(before) = self.item_outcome(id, index)? else { return Ok(()) };
        let sql = format!(
            "UPDATE {} SET outcome = ?1, why = ?2, at = ?3 WHERE operation = ?4 AND idx = ?5",
            self.names().items
        );
        let binds = (outcome.as_str(), why, now.as_nanos(), id.as_bytes(), codec::signed(index));
        self.conn().prepare_cached(&sql)?.execute(binds)?;
        let Some(operation) = self.operation_mut(id)? else { return Ok(()) };
        let counts = &mut operation.progress.by_outcome;
        if let Some(count) = counts.get_mut(&before) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                counts.remove(&before);
            }
        }
        *counts.entry(outcome).or_default() += 1;
        operation.state = operation.advance(now, 0).state;
        operation.updated_at = now;
        Ok(())
    }

    /// Lets running operations release letters that match, `room` at most; whether it changed anything.
    pub(super) fn release(
        &mut self,
        filter: &dlq_core::Filter,
        mut room: usize,
        now: Timestamp,
    ) -> Result<bool> {
        let mut has_changed = false;
        for before in active(self.conn(), self.names())? {
            let advance = before.advance(now, room as u64);
            if advance.release == 0 {
                continue;
            }
            let mut released = 0;
            let mut from = 0;
            if let Some(operation) = self.operation_mut(before.id)? {
                operation.state = advance.state;
            }
            while released < advance.release {
                let wanted = advance.release - released;
                let queued = self.queued(before.id, filter, from, wanted)?;
                let Some((last, _)) = queued.last() else { break };
                from = last + 1;
                has_changed = true;
                for (_, letter) in queued {
                    released += u64::from(self.release_one(&before, letter, now)?);
                }
            }
            let next_release = before.advance(now, released).next_release;
            if let Some(operation) = self.operation_mut(before.id)? {
                operation.next_release = next_release;
            }
            room -= usize::try_from(released).unwrap_or(room).min(room);
            if room == 0 {
                break;
            }
        }
        Ok(has_changed)
    }

    /// The first queued items from `from` on whose letters match, in the frozen order.
    fn queued(
        &self,
        id: OperationId,
        filter: &dlq_core::Filter,
        from: u64,
        limit: u64,
    ) -> Result<Vec<(u64, LetterId)>> {
        let Names { items, letters, .. } = self.names();
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let mut found = Vec::new();
        for name in super::claims::each_consumer(filter) {
            let mut query = Query::new(format!(
                "SELECT i.idx, i.letter_id FROM {items} i CROSS JOIN {letters} t ON t.letter_id = i.letter_id \
                 WHERE i.outcome = 'queued' AND i.operation = "
            ))
            .bind(id)
            .push(" AND i.idx >= ")
            .bind(codec::signed(from));
            if let Some(name) = name {
                query = query.push(" AND i.consumer = ").bind(name);
            }
            let query = query.push(" AND ").filter(filter).push(" ORDER BY i.idx LIMIT ");
            let query = query.bind(i64::try_from(limit).unwrap_or(i64::MAX));
            found.extend(query.all(self.conn(), |row| {
                let mut fields = Fields::after(row, 0);
                Ok((codec::unsigned(fields.next()?), LetterId::from_bytes(fields.next()?)))
            })?);
        }
        found.sort_unstable();
        found.truncate(limit);
        Ok(found)
    }

    /// Makes one letter due; `false` when it was set aside instead.
    fn release_one(
        &mut self,
        operation: &Operation,
        letter: LetterId,
        now: Timestamp,
    ) -> Result<bool> {
        let Some(mut row) = self.head(letter)? else { return Ok(false) };
        let replays = row.letter.state.replays;
        if !operation.spec.is_past_cap(replays) {
            self.set_item(&row, ItemOutcome::Released, None, now)?;
            rules::release(&mut row.letter, now);
            self.update(&mut row, Changed::State)?;
            return Ok(true);
        }
        // The reason changes, and with it perhaps the text of the error, for which the history is needed.
        let Some(mut row) = self.whole(letter)? else { return Ok(false) };
        let why = format!("sent back {replays} times, which is the cap");
        self.end_item(&mut row, ItemOutcome::Skipped, Some(&why), now)?;
        row.void();
        rules::set_aside(&mut row.letter, now);
        self.update(&mut row, Changed::Run)?;
        Ok(false)
    }

    fn control(
        &mut self,
        id: OperationId,
        control: Control,
        by: &Actor,
        now: Timestamp,
    ) -> Result<Operation> {
        let operation = self.operation_mut(id)?.ok_or_else(|| unknown(id))?;
        let Some(state) = operation.steer(control) else {
            return Err(Fault::new(
                StoreErrorKind::Conflict,
                format!("it is {} and cannot {control}", operation.state),
            ));
        };
        if state == operation.state {
            return Ok(operation.clone());
        }
        operation.state = state;
        operation.updated_at = now;
        let affected = if control == Control::Cancel { self.withdraw(id, now)? } else { 0 };
        self.note(&AuditEntry {
            at: now,
            by: by.clone(),
            action: control.to_string(),
            subject: serde_json::json!({ "operation": id }).to_string(),
            affected,
            operation: Some(id),
        })?;
        let operation = self.operation_mut(id)?.ok_or_else(|| unknown(id))?;
        operation.state = operation.advance(now, 0).state;
        Ok(operation.clone())
    }

    /// Takes back what nobody runs: queued letters, and released ones that nobody has claimed.
    fn withdraw(&mut self, id: OperationId, now: Timestamp) -> Result<u64> {
        let Names { items, letters, .. } = self.names();
        let open = Query::new(format!(
            "SELECT i.letter_id FROM {items} i JOIN {letters} t ON t.letter_id = i.letter_id \
             WHERE (i.outcome = 'queued' OR (i.outcome = 'released' AND t.status = 'pending')) \
             AND i.operation = "
        ))
        .bind(id)
        .push(" AND t.operation = ")
        .bind(id)
        .push(" ORDER BY i.idx")
        .all(self.conn(), |row| Ok(LetterId::from_bytes(row.get(0)?)))?;
        for letter in &open {
            let Some(mut row) = self.head(*letter)? else { continue };
            self.end_item(&mut row, ItemOutcome::Skipped, Some("cancelled"), now)?;
            rules::put_back(&mut row.letter, Status::Pending, now);
            self.update(&mut row, Changed::State)?;
        }
        Ok(open.len() as u64)
    }
}

//! Letters, and items of operations, that a condition selects.

use std::collections::BTreeSet;

use dlq_core::store::{ItemOutcome, OperationSpec, Schedule};
use dlq_core::{Cursor, ErrorClass, Filter, LetterId, OperationId, Order, Timestamp};
use dlq_letters::{Older, Select, Selected};
use rusqlite::Connection;

use super::codec::Fields;
use super::names::Names;
use super::operations;
use super::query::Query;
use crate::error::Result;
use crate::values::{Take as _, signed};

/// Result of a selection.
#[derive(Clone, Copy, Debug)]
pub(super) struct SelectedRows {
    pub(super) selected: Selected,
    /// The number of the letter's row; `None` if the item has no letter any more.
    pub(super) seq: Option<i64>,
    /// The operation of the item, and its outcome.
    pub(super) item: Option<(OperationId, ItemOutcome)>,
}

impl SelectedRows {
    fn letter(letter: LetterId, seq: i64) -> Self {
        Self { selected: Selected { letter, index: 0 }, seq: Some(seq), item: None }
    }
}

/// Returns the letters that `select` selects at `now`.
pub(super) fn find(
    conn: &Connection,
    names: &Names,
    select: &Select,
    now: Timestamp,
) -> Result<Vec<SelectedRows>> {
    match select {
        Select::Due { filter, limit } => due(conn, names, filter, *limit, now),
        Select::Queued { operation, filter, from, limit } => {
            let consumers = queued_consumers(conn, names, *operation, &filter.consumers)?;
            let condition = |query: Query| query.push(" AND ").filter(filter);
            items(conn, names, *operation, &consumers, *limit, |query| {
                held(condition(query.push(" AND i.idx >= ").bind(signed(*from))))
            })
        }
        Select::Orphans { operation, consumers, limit } => {
            let consumers = queued_consumers(conn, names, *operation, consumers)?;
            orphans(conn, names, *operation, &consumers, *limit)
        }
        Select::Lapsed { operation, limit } => lapsed(conn, names, *operation, *limit, now),
        Select::Open { operation, limit } => open(conn, names, *operation, *limit, now),
        Select::Eligible { consumer, schedule, limit } => {
            let query = eligible(names, consumer, schedule);
            page(query, Order::OldestFirst, [None, None], *limit).all(conn, read_letter)
        }
        Select::Frozen { spec, after, upto, limit } => {
            let query = frozen(Query::new(LETTERS), names, spec);
            page(query, spec.order, [*after, *upto], *limit).all(conn, read_letter)
        }
        Select::Matching { filter, older, order, after, upto, limit } => {
            let query = matching(names, filter, *older);
            page(query, *order, [*after, *upto], *limit).all(conn, read_letter)
        }
    }
}

/// True if a page may have to look at many letters that do not match: no index knows of everything that is asked for.
pub(super) fn is_long(select: &Select) -> bool {
    let filter = match select {
        Select::Frozen { spec, .. } => &spec.filter,
        Select::Matching { filter, .. } => &**filter,
        _ => return false,
    };
    let mut rest = filter.clone();
    // Age and status have indexes, along which a page is read in its order.
    (rest.since, rest.until) = (None, None);
    rest.statuses.clear();
    rest != Filter::default()
}

/// Returns the letters that were `seen` a moment ago of a [long](is_long) page, if they are unchanged.
pub(super) fn find_again(
    conn: &Connection,
    names: &Names,
    select: &Select,
    seen: &[SelectedRows],
) -> Result<Option<Vec<SelectedRows>>> {
    let (query, order) = match select {
        Select::Frozen { spec, .. } => (frozen(Query::new(LETTERS), names, spec), spec.order),
        Select::Matching { filter, older, order, .. } => (matching(names, filter, *older), *order),
        _ => return Ok(None),
    };
    let mut query = query.push(" AND t.seq");
    query.add_any(seen.iter().filter_map(|it| it.seq).collect::<Vec<_>>().into_iter());
    let found = query.push(self::order(order)).all(conn, read_letter)?;
    // A letter that has changed or gone makes the page another: it is found anew then, in the transaction.
    let is_same = found.iter().map(|it| it.selected).eq(seen.iter().map(|it| it.selected));
    Ok(is_same.then_some(found))
}

const LETTERS: &str = "SELECT t.letter_id, t.seq";

/// As a limit that SQLite takes.
fn most(limit: u64) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

/// Names to ask for one by one, so that each is answered in order from an index; `None` for all together.
fn each(consumers: &[String]) -> Vec<Option<&str>> {
    if consumers.is_empty() {
        return vec![None];
    }
    let names: BTreeSet<_> = consumers.iter().map(String::as_str).collect();
    names.into_iter().map(Some).collect()
}

fn due(
    conn: &Connection,
    names: &Names,
    filter: &Filter,
    limit: u64,
    now: Timestamp,
) -> Result<Vec<SelectedRows>> {
    let letters = &names.letters;
    let mut places = Vec::new();
    let mut rest = filter.clone();
    rest.consumers.clear();
    for name in each(&filter.consumers) {
        let query = Query::new(format!(
            "SELECT t.available_at, t.created_at, t.letter_id, t.seq FROM {letters} t INDEXED BY {letters}"
        ));
        // The index is named, so that letters come in the order in which they are claimed and none is sorted.
        let query = match name {
            Some(name) => query.push("_available_to WHERE t.consumer = ").bind(name),
            None => query.push("_available WHERE 1"),
        };
        let query = query.push(" AND t.available_at <= ").bind(now).push(" AND ").filter(&rest);
        let query = query
            .push(" ORDER BY t.available_at, t.created_at, t.letter_id LIMIT ")
            .bind(most(limit));
        places.extend(query.all(conn, |row| {
            let mut fields = Fields::after(row, 0);
            Ok((fields.time()?, fields.time()?, fields.letter()?, fields.int()?))
        })?);
    }
    // The letters of each consumer came in order. Together they are handed out as if they stood in one line.
    places.sort_unstable();
    places.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    Ok(places.into_iter().map(|(_, _, letter, seq)| SelectedRows::letter(letter, seq)).collect())
}

pub(super) fn order(order: Order) -> &'static str {
    match order {
        Order::OldestFirst => " ORDER BY t.created_at, t.letter_id",
        Order::NewestFirst => " ORDER BY t.created_at DESC, t.letter_id DESC",
    }
}

/// The letters of `query` in this order, after one letter and up to another.
fn page(mut query: Query, order: Order, [after, upto]: [Option<Cursor>; 2], limit: u64) -> Query {
    let (beyond, within) = match order {
        Order::OldestFirst => (">", "<="),
        Order::NewestFirst => ("<", ">="),
    };
    for (comparison, cursor) in [(beyond, after), (within, upto)] {
        if let Some(cursor) = cursor {
            query = query
                .push(&format!(" AND (t.created_at, t.letter_id) {comparison} ("))
                .bind(cursor.created_at)
                .push(", ")
                .bind(cursor.id)
                .push(")");
        }
    }
    query.push(self::order(order)).push(" LIMIT ").bind(most(limit))
}

fn read_letter(row: &rusqlite::Row<'_>) -> Result<SelectedRows> {
    let mut fields = Fields::after(row, 0);
    Ok(SelectedRows::letter(fields.letter()?, fields.int()?))
}

/// `FROM` the letters that an operation may freeze.
pub(super) fn frozen(query: Query, names: &Names, spec: &OperationSpec) -> Query {
    query
        .push(&format!(
            " FROM {} t WHERE t.status = 'pending' AND t.operation IS NULL AND ",
            names.letters
        ))
        .filter(&spec.filter)
}

fn matching(names: &Names, filter: &Filter, older: Option<Older>) -> Query {
    let query = Query::new(format!("{LETTERS} FROM {} t WHERE ", names.letters)).filter(filter);
    match older {
        // A cleanup takes nothing that is unresolved unless it was asked to (G9).
        Some(older) if older.include_unresolved => {
            query.push(" AND t.updated_at <= ").bind(older.latest)
        }
        Some(older) => {
            query.push(" AND t.status = 'resolved' AND t.updated_at <= ").bind(older.latest)
        }
        None => query,
    }
}

fn eligible(names: &Names, consumer: &str, schedule: &Schedule) -> Query {
    let query = Query::new(format!("{LETTERS} FROM {} t WHERE t.consumer = ", names.letters))
        .bind(consumer)
        // A death that is only suspected waits for a human, and a letter with a time to retry at is due by itself.
        .push(" AND t.status = 'pending' AND t.confirmed AND t.retry_after IS NULL")
        .push(" AND t.operation IS NULL AND t.retry_count < ")
        .bind(schedule.max_retries);
    if schedule.all_classes {
        return query;
    }
    query.push(" AND t.class = ").bind(ErrorClass::Transient.as_str())
}

/// Adds that the letter is the item.
fn held(query: Query) -> Query {
    query.push(" AND t.operation = i.operation AND t.item = i.idx")
}

/// Queued items with their letters, which `condition` is about, in frozen order.
fn items(
    conn: &Connection,
    names: &Names,
    operation: OperationId,
    consumers: &[String],
    limit: u64,
    condition: impl Fn(Query) -> Query,
) -> Result<Vec<SelectedRows>> {
    let mut found = Vec::new();
    for name in consumers {
        let query = condition(queued(names, operation, name));
        let query = query.push(" ORDER BY i.idx LIMIT ").bind(most(limit));
        found.extend(query.all(conn, |row| read_item(row, operation, ItemOutcome::Queued))?);
    }
    Ok(first(found, limit))
}

/// Queued items of one consumer. The index has to be named: from an index of an item on, SQLite would rather read every
/// item, those that were sent long ago among them.
fn queued(names: &Names, operation: OperationId, consumer: &str) -> Query {
    // `CROSS JOIN` keeps SQLite to this order of the tables, whatever it thinks of their sizes.
    let Names { items, letters, .. } = names;
    Query::new(format!(
        "SELECT i.idx, i.letter_id, t.seq FROM {items} i INDEXED BY {items}_queued \
         CROSS JOIN {letters} t ON t.letter_id = i.letter_id \
         WHERE i.outcome = 'queued' AND i.operation = "
    ))
    .bind(operation)
    .push(" AND i.consumer = ")
    .bind(consumer)
}

fn orphans(
    conn: &Connection,
    names: &Names,
    operation: OperationId,
    consumers: &[String],
    limit: u64,
) -> Result<Vec<SelectedRows>> {
    let Names { items, letters, .. } = names;
    let mut found = Vec::new();
    for name in consumers {
        let query = Query::new(format!(
            "SELECT i.idx, i.letter_id, NULL FROM {items} i INDEXED BY {items}_queued \
             WHERE i.outcome = 'queued' AND NOT EXISTS (SELECT 1 FROM {letters} t \
             WHERE t.letter_id = i.letter_id AND t.operation = i.operation AND t.item = i.idx) AND i.operation = "
        ))
        .bind(operation)
        .push(" AND i.consumer = ")
        .bind(name.as_str())
        .push(" ORDER BY i.idx LIMIT ")
        .bind(most(limit));
        found.extend(query.all(conn, |row| read_item(row, operation, ItemOutcome::Queued))?);
    }
    Ok(first(found, limit))
}

fn lapsed(
    conn: &Connection,
    names: &Names,
    operation: OperationId,
    limit: u64,
    now: Timestamp,
) -> Result<Vec<SelectedRows>> {
    Query::new(format!(
        "SELECT t.item, t.letter_id, t.seq FROM {0} t INDEXED BY {0}_sending WHERE t.claim_sender IS NOT NULL AND t.claim_until <= ",
        names.letters
    ))
    .bind(now)
    .push(" AND t.operation = ")
    .bind(operation)
    .push(" ORDER BY t.item LIMIT ")
    .bind(most(limit))
    .all(conn, |row| read_item(row, operation, ItemOutcome::Sending))
}

fn open(
    conn: &Connection,
    names: &Names,
    operation: OperationId,
    limit: u64,
    now: Timestamp,
) -> Result<Vec<SelectedRows>> {
    let Names { items: table, letters, .. } = names;
    let nobody_runs = |query: Query| {
        held(query)
            .push(" AND (t.status = 'pending' OR (t.claim_former = 'pending' AND t.claim_until <= ")
            .bind(now)
            .push("))")
    };
    // Along the index of what is queued, so that a page costs the same however many letters there are.
    let consumers = queued_consumers(conn, names, operation, &[])?;
    let mut found = items(conn, names, operation, &consumers, limit, nobody_runs)?;
    let room = limit.saturating_sub(found.len() as u64);
    let progress = operations::load(conn, names, operation)?;
    let released = progress.map_or(0, |it| it.progress.with_outcome(ItemOutcome::Released));
    if room > 0 && released > 0 {
        // Those that somebody runs are looked at, too: once, since nothing is queued any more. A claim that comes across one
        // that nobody runs takes it back itself. In frozen order, no further than the last that was released.
        let query = Query::new(format!(
            "SELECT i.idx, i.letter_id, t.seq FROM (SELECT * FROM {table} WHERE outcome = 'released' AND operation = "
        ))
        .bind(operation)
        .push(" ORDER BY idx LIMIT ")
        .bind(most(released))
        .push(&format!(") i CROSS JOIN {letters} t ON t.letter_id = i.letter_id WHERE 1"));
        let query = nobody_runs(query).push(" ORDER BY i.idx LIMIT ").bind(most(room));
        found.extend(query.all(conn, |row| read_item(row, operation, ItemOutcome::Released))?);
    }
    Ok(found)
}

/// These consumers; if none is named, all of which letters are queued, found by steps along the index.
fn queued_consumers(
    conn: &Connection,
    names: &Names,
    operation: OperationId,
    among: &[String],
) -> Result<Vec<String>> {
    if !among.is_empty() {
        let among: BTreeSet<_> = among.iter().cloned().collect();
        return Ok(among.into_iter().collect());
    }
    let mut all: Vec<String> = Vec::new();
    loop {
        let mut query = Query::new(format!(
            "SELECT i.consumer FROM {0} i INDEXED BY {0}_queued WHERE i.outcome = 'queued' AND i.operation = ",
            names.items
        ))
        .bind(operation);
        if let Some(last) = all.last() {
            query = query.push(" AND i.consumer > ").bind(last.as_str());
        }
        let next = query.push(" ORDER BY i.consumer LIMIT 1");
        match next.first(conn, |row| Fields::after(row, 0).text())? {
            Some(name) => all.push(name),
            None => return Ok(all),
        }
    }
}

fn read_item(
    row: &rusqlite::Row<'_>,
    operation: OperationId,
    outcome: ItemOutcome,
) -> Result<SelectedRows> {
    let mut fields = Fields::after(row, 0);
    let (index, letter) = (fields.unsigned()?, fields.letter()?);
    let selected = Selected { letter, index };
    Ok(SelectedRows { selected, seq: fields.int_or_none()?, item: Some((operation, outcome)) })
}

/// The first of these by index.
fn first(mut found: Vec<SelectedRows>, limit: u64) -> Vec<SelectedRows> {
    found.sort_unstable_by_key(|it| it.selected.index);
    found.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    found
}

#[cfg(test)]
mod tests {
    use dlq_core::Status;

    use super::*;
    use crate::sqlite::schema;

    fn plan(query: &Query) -> Vec<String> {
        let names = Names::new("dlq_events").unwrap();
        let mut conn = Connection::open_in_memory().unwrap();
        schema::ensure(&mut conn, &names, |_, _| None).unwrap();
        query.explained().all(&conn, |row| Ok(row.get(3)?)).unwrap()
    }

    /// A page costs the same at any depth.
    #[test]
    fn pages_are_read_along_an_index() {
        let names = Names::new("dlq_events").unwrap();
        let id = LetterId::from_bytes([7; 16]);
        let at = |nanos| Some(Cursor::after(Timestamp::from_nanos(nanos), id));
        let spec = OperationSpec::replay(Filter::new());
        let quarantined = Filter::new().with_status(Status::Quarantined);
        for order in [Order::OldestFirst, Order::NewestFirst] {
            for (query, index) in [
                (frozen(Query::new(LETTERS), &names, &spec), "by_status (status=?"),
                (matching(&names, &quarantined, None), "by_status (status=?"),
                (matching(&names, &Filter::new(), None), "by_age ("),
            ] {
                let plan = plan(&page(query, order, [at(1), at(2)], 1_000));
                let is_range = |step: &String| {
                    step.contains(&format!("INDEX dlq_events_{index}"))
                        && step.contains("(created_at,letter_id)")
                };
                assert!(plan.len() == 1 && plan.iter().all(is_range), "{plan:?}");
            }
        }
    }

    /// Neither items nor letters are sorted, or looked at that were sent before.
    #[test]
    fn queued_items_are_read_along_their_index() {
        let names = Names::new("dlq_events").unwrap();
        let operation = OperationId::from_bytes([7; 16]);
        let query = queued(&names, operation, "a").push(" AND i.idx >= 5 ORDER BY i.idx");
        let plan = plan(&query);
        let by = "SEARCH i USING INDEX dlq_operation_items_queued (operation=? AND consumer=? AND idx>?)";
        assert!(plan.len() == 2 && plan[0] == by, "{plan:?}");
        assert!(plan[1].starts_with("SEARCH t USING ") && plan[1].ends_with("(letter_id=?)"));
    }
}

//! The tables, and the steps by which an older file becomes a present one.

use std::collections::HashSet;

use dlq_core::StoreErrorKind;
use dlq_core::store::{Migration, MigrationStep};
use rusqlite::{Connection, TransactionBehavior};

use super::names::Names;
use crate::error::{Fault, Result};

/// Marks a file as ours in SQLite's header: `dlq1` in ASCII.
const APPLICATION_ID: i64 = 0x646c_7131;

/// Makes the next version out of the one before.
struct Step {
    what: &'static str,
    /// True if programs of the version before go on working.
    is_online: bool,
    sql: fn(&Names) -> String,
}

/// The first step makes version 1 out of nothing. A step that has been released is never edited.
const STEPS: &[Step] = &[
    Step { what: "create the tables", is_online: true, sql: version_1 },
    Step {
        what: "keep what letters were before they were edited",
        is_online: true,
        sql: version_2,
    },
    Step { what: "keep who sends a letter to a broker", is_online: true, sql: version_3 },
    Step {
        what: "keep records of groups of errors, and index what an operation has yet to send",
        is_online: true,
        sql: version_4,
    },
];

/// Part of a schema: a table, an index or a view.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) sql: String,
}

/// Refuses a file that is not ours or of a later version, without changing it.
pub(super) fn recognise(conn: &Connection) -> Result<()> {
    // In one statement, so that all of it is of one moment: another may be creating the tables just now.
    let (application, found, is_empty): (i64, i64, bool) = conn.query_row(
        "SELECT (SELECT application_id FROM pragma_application_id), \
                (SELECT user_version FROM pragma_user_version), \
                count(*) = 0 \
         FROM sqlite_schema",
        [],
        |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
    )?;
    if application != APPLICATION_ID && !(application == 0 && is_empty) {
        return Err(Fault::new(
            StoreErrorKind::Incompatible,
            "the file is a database of another program, not a dlq database; give another path",
        ));
    }
    let known = latest();
    if application == APPLICATION_ID && found > known {
        return Err(Fault::new(
            StoreErrorKind::Incompatible,
            format!(
                "the file has version {found} of the schema and this program knows up to version {known}; \
                 use a newer program"
            ),
        ));
    }
    Ok(())
}

/// Creates what is missing and migrates what is old, unless `refuse` gives a reason not to. Does nothing when there is
/// nothing to do; safe when many do it at once.
pub(super) fn ensure(
    conn: &mut Connection,
    names: &Names,
    refuse: impl Fn(i64, i64) -> Option<Fault>,
) -> Result<()> {
    climb(conn, names, STEPS, refuse)
}

fn climb(
    conn: &mut Connection,
    names: &Names,
    steps: &[Step],
    refuse: impl Fn(i64, i64) -> Option<Fault>,
) -> Result<()> {
    let top = steps.len() as i64;
    // Most files are up to date: these are opened without waiting for the lock to write.
    if version(conn, names)? == top {
        return Ok(());
    }
    let transaction = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Another may have been first, and may have been of a later version.
    recognise(&transaction)?;
    let found = version(&transaction, names)?;
    // Version 0 is left out: where there are no tables nothing is migrated, and new ones are made also where older ones
    // are refused.
    if (1..top).contains(&found)
        && let Some(fault) = refuse(found, top)
    {
        return Err(fault);
    }
    for step in steps.iter().skip(usize::try_from(found).unwrap_or(usize::MAX)) {
        transaction.execute_batch(&(step.sql)(names))?;
    }
    transaction
        .execute(&format!("UPDATE {} SET value = ?1 WHERE name = 'version'", names.meta), [top])?;
    // Both are in the header, which is part of the transaction: a process that dies here leaves the old version.
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.pragma_update(None, "user_version", top)?;
    transaction.commit()?;
    Ok(())
}

/// Returns the migration that [`ensure`] would do.
pub(super) fn migration(conn: &Connection, names: &Names) -> Result<Migration> {
    let found = u32::try_from(version(conn, names)?).ok().filter(|found| *found > 0);
    let steps = STEPS
        .iter()
        .zip(1..)
        .map(|(step, version)| MigrationStep::new(version, step.what, step.is_online));
    let mut migration = Migration::between(found, steps.collect());
    if migration.is_up_to_date() {
        let missing = missing(conn, names)?;
        migration.missing =
            missing.iter().map(|Part { kind, name, .. }| format!("{kind} {name}")).collect();
    }
    Ok(migration)
}

/// Makes again what this database lacks of the present version, and counts letters again where the counts were lost.
pub(super) fn make_again(conn: &Connection, names: &Names) -> Result<()> {
    let missing = missing(conn, names)?;
    let lacks = |table: &str| missing.iter().any(|part| part.kind == "table" && part.name == table);
    if lacks(&names.letters) {
        return Err(Fault::new(
            StoreErrorKind::Corrupt,
            format!("the table {} is not there any more; restore a backup", names.letters),
        ));
    }
    // They come in the order in which the steps make them, a table before its indexes.
    for part in &missing {
        conn.execute_batch(&part.sql)?;
    }
    // A table of counts that is empty would say that there are no letters. The transaction is that of the call, so that
    // nobody writes one while they are counted.
    if lacks(&names.counts) {
        let Names { counts, letters, .. } = names;
        conn.execute_batch(&format!(
            "INSERT INTO {counts} (status, reason, cause, class, consumer, subject, n) \
             SELECT status, reason, coalesce(cause, ''), class, consumer, subject, count(*) FROM {letters} \
             GROUP BY status, reason, cause, class, consumer, subject"
        ))?;
    }
    Ok(())
}

/// Returns the parts of the schema that this database lacks.
pub(super) fn missing(conn: &Connection, names: &Names) -> Result<Vec<Part>> {
    // The steps themselves say what has to be there, so that no second list can differ from them.
    let whole = Connection::open_in_memory()?;
    for step in STEPS {
        whole.execute_batch(&(step.sql)(names))?;
    }
    let there: HashSet<String> = parts(conn)?.into_iter().map(|part| part.name).collect();
    let mut wanted = parts(&whole)?;
    wanted.retain(|part| !there.contains(&part.name));
    Ok(wanted)
}

fn parts(conn: &Connection) -> Result<Vec<Part>> {
    // What has no text of its own belongs to a table.
    let mut all =
        conn.prepare("SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL")?;
    let part = |row: &rusqlite::Row<'_>| {
        Ok(Part { kind: row.get(0)?, name: row.get(1)?, sql: row.get(2)? })
    };
    let parts = all.query_map([], part)?;
    Ok(parts.collect::<rusqlite::Result<_>>()?)
}

fn latest() -> i64 {
    STEPS.len() as i64
}

/// The version of the tables around one name; 0 when there are none.
pub(super) fn version(conn: &Connection, names: &Names) -> Result<i64> {
    let exists: bool = conn.query_row(
        "SELECT count(*) > 0 FROM sqlite_schema WHERE type = 'table' AND name = ?1",
        [&names.meta],
        |row| row.get(0),
    )?;
    if !exists {
        return Ok(0);
    }
    let sql = format!("SELECT value FROM {} WHERE name = 'version'", names.meta);
    Ok(conn.query_row(&sql, [], |row| row.get(0))?)
}

fn version_1(names: &Names) -> String {
    let Names {
        letters,
        aliases,
        counts,
        operations,
        items,
        audit,
        processed,
        idempotency,
        marks,
        schedules,
        meta,
        ..
    } = names;
    // Most indexes are partial: a letter that rests costs no entry in those of claims, operations and keys.
    let view = readable(names);
    format!(
        "
CREATE TABLE {letters} (
    seq INTEGER PRIMARY KEY,
    letter_id BLOB NOT NULL UNIQUE,
    generation INTEGER NOT NULL,
    event_id TEXT,
    subject TEXT NOT NULL,
    event_type TEXT,
    consumer TEXT NOT NULL,
    service TEXT,
    status TEXT NOT NULL,
    resolution TEXT,
    reason TEXT NOT NULL,
    cause TEXT,
    class TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    error TEXT NOT NULL,
    -- The error in lower case; NULL when that is the same text.
    error_search TEXT,
    attempts INTEGER NOT NULL,
    deliveries INTEGER NOT NULL,
    crashes INTEGER NOT NULL,
    escalations INTEGER NOT NULL,
    retry_count INTEGER NOT NULL,
    replays INTEGER NOT NULL,
    seen INTEGER NOT NULL,
    confirmed INTEGER NOT NULL,
    -- Times are nanoseconds since the Unix epoch.
    retry_after INTEGER,
    -- When it can be claimed: when it is due, or when its lease ends.
    available_at INTEGER,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    died_at INTEGER NOT NULL,
    last_retry_at INTEGER,
    published_at INTEGER,
    operation BLOB,
    item INTEGER,
    claim_fence INTEGER NOT NULL,
    claim_until INTEGER,
    claim_former TEXT,
    claim_owner TEXT,
    finished_fence INTEGER,
    lapses INTEGER NOT NULL,
    dedup_key BLOB,
    cluster TEXT NOT NULL,
    transport TEXT NOT NULL,
    stream TEXT NOT NULL,
    partition INTEGER,
    position TEXT NOT NULL,
    attributes TEXT NOT NULL,
    -- What is large comes last, so that reading the rest does not touch it.
    headers TEXT NOT NULL,
    history TEXT NOT NULL,
    key BLOB,
    data BLOB
);
CREATE INDEX {letters}_by_age ON {letters} (created_at, letter_id);
CREATE INDEX {letters}_by_status ON {letters} (status, created_at, letter_id);
CREATE INDEX {letters}_by_consumer ON {letters} (consumer, created_at, letter_id);
CREATE INDEX {letters}_by_fingerprint ON {letters} (fingerprint, created_at, letter_id, consumer);
CREATE INDEX {letters}_by_event ON {letters} (event_id) WHERE event_id IS NOT NULL;
CREATE INDEX {letters}_available ON {letters} (available_at, created_at, letter_id)
    WHERE available_at IS NOT NULL;
CREATE INDEX {letters}_available_to ON {letters} (consumer, available_at, created_at, letter_id)
    WHERE available_at IS NOT NULL;
CREATE INDEX {letters}_resolved ON {letters} (updated_at) WHERE status = 'resolved';
CREATE INDEX {letters}_by_operation ON {letters} (operation) WHERE operation IS NOT NULL;
CREATE UNIQUE INDEX {letters}_by_key ON {letters} (dedup_key) WHERE dedup_key IS NOT NULL;

-- Ids of letters that were merged into another.
CREATE TABLE {aliases} (
    alias BLOB PRIMARY KEY,
    letter_id BLOB NOT NULL REFERENCES {letters} (letter_id) ON DELETE CASCADE,
    generation INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX {aliases}_by_letter ON {aliases} (letter_id);

-- How many letters there are of each kind; kept in the transaction that changes them. A cause of '' is none.
CREATE TABLE {counts} (
    status TEXT NOT NULL,
    reason TEXT NOT NULL,
    cause TEXT NOT NULL,
    class TEXT NOT NULL,
    consumer TEXT NOT NULL,
    subject TEXT NOT NULL,
    n INTEGER NOT NULL,
    PRIMARY KEY (status, consumer, subject, reason, cause, class)
) WITHOUT ROWID;

CREATE TABLE {operations} (
    seq INTEGER PRIMARY KEY,
    id BLOB NOT NULL UNIQUE,
    spec TEXT NOT NULL,
    state TEXT NOT NULL,
    who TEXT NOT NULL,
    note TEXT,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    next_release INTEGER NOT NULL,
    total INTEGER NOT NULL,
    progress TEXT NOT NULL
);
CREATE INDEX {operations}_active ON {operations} (seq) WHERE state IN ('canary', 'running');

CREATE TABLE {items} (
    operation BLOB NOT NULL REFERENCES {operations} (id),
    idx INTEGER NOT NULL,
    letter_id BLOB NOT NULL,
    generation INTEGER NOT NULL,
    consumer TEXT NOT NULL,
    outcome TEXT NOT NULL,
    why TEXT,
    at INTEGER NOT NULL,
    PRIMARY KEY (operation, idx)
) WITHOUT ROWID;
CREATE INDEX {items}_queued ON {items} (operation, consumer, idx) WHERE outcome = 'queued';

-- What operators did.
CREATE TABLE {audit} (
    seq INTEGER PRIMARY KEY,
    at INTEGER NOT NULL,
    who TEXT NOT NULL,
    note TEXT,
    action TEXT NOT NULL,
    subject TEXT NOT NULL,
    affected INTEGER NOT NULL,
    operation BLOB
);

-- One row per event that was handled, failed or dead-lettered, where the processing audit is on.
CREATE TABLE {processed} (
    seq INTEGER PRIMARY KEY,
    event_id TEXT NOT NULL,
    subject TEXT NOT NULL,
    consumer TEXT NOT NULL,
    status TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    duration_ns INTEGER NOT NULL,
    at INTEGER NOT NULL,
    error TEXT
);

CREATE TABLE {idempotency} (
    consumer TEXT NOT NULL,
    key BLOB NOT NULL,
    fence INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    crashes INTEGER NOT NULL,
    phase TEXT NOT NULL,
    -- When the phase began, and when it ends.
    since INTEGER NOT NULL,
    until INTEGER NOT NULL,
    PRIMARY KEY (consumer, key)
) WITHOUT ROWID;
CREATE INDEX {idempotency}_until ON {idempotency} (until);

CREATE TABLE {marks} (letter_id BLOB PRIMARY KEY, begun INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE {schedules} (consumer TEXT PRIMARY KEY, last_run INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE {meta} (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO {meta} (name, value) VALUES ('version', 1), ('dedup', 0), ('fence', 0);
{view}"
    )
}

fn version_2(names: &Names) -> String {
    // The bindings of the bytes before each edit, one after another; NULL when it was not edited.
    format!("ALTER TABLE {} ADD COLUMN edited_from BLOB;", names.letters)
}

fn version_3(names: &Names) -> String {
    // The sender of a letter that is on its way to a broker; NULL otherwise.
    let letters = &names.letters;
    format!(
        "ALTER TABLE {letters} ADD COLUMN claim_sender TEXT;
CREATE INDEX {letters}_sending ON {letters} (operation, item) WHERE claim_sender IS NOT NULL;"
    )
}

fn version_4(names: &Names) -> String {
    // Small texts beside the letters: JSON by kind and name. An operation that is sent through an outbox takes its items in
    // order, whoever their consumers are, and would look at all that were sent before.
    let Names { documents, items, .. } = names;
    format!(
        "CREATE TABLE {documents} (
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (kind, name)
) WITHOUT ROWID;
CREATE INDEX {items}_to_send ON {items} (operation, idx) WHERE outcome = 'queued';"
    )
}

/// The letters for human eyes: times and ids as text, payloads as text and JSON where they are.
fn readable(names: &Names) -> String {
    let time = |column: &str| {
        // A remainder has the sign of its number: without the second step times before 1970 would have a negative
        // fraction.
        let nanos = format!("((t.{column} % 1000000000 + 1000000000) % 1000000000)");
        format!(
            "strftime('%Y-%m-%dT%H:%M:%S', (t.{column} - {nanos}) / 1000000000, 'unixepoch') \
             || printf('.%09dZ', {nanos}) AS {column}"
        )
    };
    let times = [
        "retry_after",
        "created_at",
        "updated_at",
        "died_at",
        "last_retry_at",
        "published_at",
        "claim_until",
    ];
    let times = times.map(time).join(",\n    ");
    // A payload with a NUL is not shown as text, which SQLite's functions would cut off there.
    let Names { readable, letters, .. } = names;
    format!(
        "CREATE VIEW {readable} AS SELECT
    lower(hex(t.letter_id)) AS letter_id,
    t.generation, t.event_id, t.subject, t.event_type, t.consumer, t.service, t.status, t.resolution,
    t.reason, t.cause, t.class, t.fingerprint, t.error, t.attempts, t.deliveries, t.crashes,
    t.escalations, t.retry_count, t.replays, t.seen, t.confirmed,
    {times},
    lower(hex(t.operation)) AS operation, t.claim_owner,
    t.cluster, t.transport, t.stream, t.partition, t.position, t.attributes, t.headers, t.history,
    length(t.data) AS data_size,
    CASE WHEN instr(t.data, x'00') = 0 THEN CAST(t.data AS TEXT) END AS data_text,
    CASE WHEN instr(t.data, x'00') = 0 AND json_valid(CAST(t.data AS TEXT))
        THEN json(CAST(t.data AS TEXT)) END AS data_json
FROM {letters} t;
"
    )
}

#[cfg(test)]
mod tests;

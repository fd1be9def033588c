//! Check that the stored data is consistent.

use dlq_core::StoreError;
use rusqlite::Connection;

use super::SqliteStore;
use super::names::Names;
use crate::error::{During, Result};

impl SqliteStore {
    /// Looks for damage: the integrity of the file, references between tables, counts that do not fit the letters, and
    /// operations whose progress does not fit their items. Returns what is wrong, in words; nothing when all is well.
    ///
    /// Reads the whole file.
    ///
    /// # Errors
    ///
    /// When the file cannot be read.
    pub async fn verify(&self) -> std::result::Result<Vec<String>, StoreError> {
        self.read(check).await.during("look for damage")
    }
}

fn check(conn: &Connection, names: &Names) -> Result<Vec<String>> {
    let Names { letters, counts, operations, items, .. } = names;
    let mut findings: Vec<String> = texts(conn, "PRAGMA integrity_check")?;
    // A single row says so where SQLite has found nothing.
    findings.retain(|finding| finding != "ok");
    let references = "SELECT 'a row of ' || \"table\" || ' refers to a missing row of ' || parent \
                      FROM pragma_foreign_key_check";
    findings.extend(texts(conn, references)?);
    let kind = "status, reason, coalesce(cause, '') AS cause, class, consumer, subject";
    // They are compared both ways: a kind may be missing on either side.
    let counted = format!("SELECT {kind}, n FROM {counts} WHERE n <> 0");
    let found = format!("SELECT {kind}, count(*) AS n FROM {letters} GROUP BY 1, 2, 3, 4, 5, 6");
    findings.extend(texts(
        conn,
        &format!(
            "SELECT 'the count of ' || status || ' letters of ' || consumer || ' does not fit: ' || n \
             FROM (SELECT * FROM ({counted} EXCEPT {found}) \
                   UNION ALL SELECT * FROM ({found} EXCEPT {counted}))"
        ),
    )?);
    findings.extend(texts(
        conn,
        &format!(
            "SELECT 'letter ' || lower(hex(letter_id)) || ' cannot be claimed when it should be' FROM {letters} \
             WHERE available_at IS NOT CASE WHEN claim_sender IS NOT NULL THEN NULL \
                   WHEN claim_until IS NOT NULL THEN claim_until \
                   WHEN status IN ('pending', 'retrying') THEN retry_after END"
        ),
    )?);
    findings.extend(texts(
        conn,
        &format!(
            "SELECT 'letter ' || lower(hex(letter_id)) || ' is ' || status || ' and its claim says otherwise' \
             FROM {letters} WHERE (status = 'replaying') IS NOT (claim_until IS NOT NULL)"
        ),
    )?);
    findings.extend(texts(
        conn,
        &format!(
            "SELECT 'operation ' || lower(hex(o.id)) || ' has ' || i.n || ' ' || i.outcome \
             || ' letters and says otherwise' FROM {operations} o \
             JOIN (SELECT operation, outcome, count(*) AS n FROM {items} GROUP BY 1, 2) i ON i.operation = o.id \
             WHERE coalesce(json_extract(o.progress, '$.' || i.outcome), 0) <> i.n"
        ),
    )?);
    findings.extend(texts(
        conn,
        &format!(
            "SELECT 'letter ' || lower(hex(t.letter_id)) || ' is held by an operation that has let go of it' \
             FROM {letters} t LEFT JOIN {items} i ON i.operation = t.operation AND i.idx = t.item \
             WHERE t.operation IS NOT NULL AND coalesce(i.outcome, '') NOT IN ('queued', 'released', 'sending', 'sent')"
        ),
    )?);
    Ok(findings)
}

fn texts(conn: &Connection, sql: &str) -> Result<Vec<String>> {
    let mut statement = conn.prepare(sql)?;
    let rows = statement.query_map([], |row| row.get(0))?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

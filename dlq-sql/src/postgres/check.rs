//! Check that the stored data is consistent.

use dlq_core::StoreError;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use super::call::on_connection;
use super::codec::Fields;
use super::names::Names;
use super::query::Query;
use super::tables::COUNTED;
use super::{Inner, PostgresStore};
use crate::error::{During, Result};
use crate::values::Take as _;

impl PostgresStore {
    /// Looks for damage: counts that do not fit the letters, claims that contradict themselves, and operations whose
    /// progress does not fit their items. Returns what is wrong, in words; nothing when all is well.
    ///
    /// Reads every letter, for as long as that takes; disturbs nobody.
    ///
    /// # Errors
    ///
    /// When the database cannot be read.
    pub async fn verify(&self) -> std::result::Result<Vec<String>, StoreError> {
        let store = self.for_long_work();
        on_connection!(&store, conn => verify(conn, &self.inner)).during("look for damage")
    }
}

async fn verify(conn: &mut PgConnection, store: &Inner) -> Result<Vec<String>> {
    let Names { letters, counts, operations, items, .. } = &*store.names;
    let begin =
        format!("{}; SET TRANSACTION READ ONLY; SET LOCAL statement_timeout = 0", store.begin.sql);
    let mut transaction = conn.begin_with(AssertSqlSafe(begin)).await?;
    // Each question is one statement and sees one moment. The transaction is only there for its settings.
    let mut findings = Vec::new();
    for sql in [
        format!(
            "SELECT 'the count of ' || status || ' letters of ' || consumer || ' does not fit: ' || sum(counted) \
             || ' instead of ' || sum(found) \
             FROM (SELECT {COUNTED}, n AS counted, 0 AS found FROM {counts} \
                   UNION ALL SELECT {COUNTED}, 0, 1 FROM {letters}) both_of_them \
             GROUP BY {COUNTED} HAVING sum(counted) <> sum(found)"
        ),
        format!(
            "SELECT 'letter ' || encode(letter_id, 'hex') || ' cannot be claimed when it should be' FROM {letters} \
             WHERE available_at IS DISTINCT FROM CASE WHEN claim_sender IS NOT NULL THEN NULL \
                   WHEN claim_until IS NOT NULL THEN claim_until \
                   WHEN status IN ('pending', 'retrying') THEN retry_after END"
        ),
        format!(
            "SELECT 'letter ' || encode(letter_id, 'hex') || ' is ' || status || ' and its claim says otherwise' \
             FROM {letters} WHERE (status = 'replaying') <> (claim_until IS NOT NULL)"
        ),
        format!(
            "SELECT 'operation ' || encode(o.id, 'hex') || ' has ' || i.n || ' ' || i.outcome \
             || ' letters and says otherwise' FROM {operations} o \
             JOIN (SELECT operation, outcome, count(*) AS n FROM {items} GROUP BY 1, 2) i ON i.operation = o.id \
             WHERE coalesce((o.progress::jsonb->>i.outcome)::bigint, 0) <> i.n"
        ),
        format!(
            "SELECT 'letter ' || encode(t.letter_id, 'hex') || ' is held by an operation that has let go of it' \
             FROM {letters} t LEFT JOIN {items} i ON i.operation = t.operation AND i.idx = t.item \
             WHERE t.operation IS NOT NULL AND coalesce(i.outcome, '') NOT IN ('queued', 'released', 'sending', 'sent')"
        ),
    ] {
        findings.extend(Query::new(sql).all(&mut transaction, |row| Fields::of(row).text()).await?);
    }
    transaction.rollback().await?;
    Ok(findings)
}

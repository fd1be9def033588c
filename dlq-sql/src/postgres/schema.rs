//! Creation and migration of the tables.
//!
//! Each step is taken under one lock and is either taken whole or not at all, so that any number of processes may start
//! at once and one that died half-way is followed by the next. Steps that only add indexes build them while consumers
//! write; such an index that was left half-built is dropped and built again.

use std::time::Duration;

use dlq_core::StoreErrorKind;
use dlq_core::store::{Migration, MigrationStep};
use sqlx::postgres::{PgConnection, PgPool};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _};

use super::Begin;
use super::call::{Lent, pin, unpin};
use super::codec::Fields;
use super::names::Names;
use super::parts::{self, Amiss, Part};
use super::query::{DURABLE, Query};
use super::tables;
use crate::error::{Fault, Result};
use crate::values::Take as _;

/// Makes the next version out of the one before. A step that has been released is never edited.
pub(super) struct Step {
    what: &'static str,
    /// True if programs of the version before go on working, during the step and after it.
    is_online: bool,
    pub(super) how: How,
}

pub(super) enum How {
    /// In one transaction.
    Tables(fn(&Names) -> String),
    /// Names of indexes and what follows them, built while others write.
    Indexes(fn(&Names) -> Vec<(String, String)>),
}

/// The first makes version 1 out of nothing.
pub(super) const STEPS: &[Step] = &[
    Step { what: "create the tables", is_online: true, how: How::Tables(tables::version_1) },
    Step {
        what: "index letters by subject and by type of event",
        is_online: true,
        how: How::Indexes(tables::version_2),
    },
    Step {
        what: "recognise claims of keys and crash marks whose answer was lost",
        is_online: true,
        how: How::Tables(tables::version_3),
    },
    Step {
        what: "keep records of groups of errors",
        is_online: true,
        how: How::Tables(tables::version_4),
    },
    Step {
        what: "index what an operation has yet to send",
        is_online: true,
        how: How::Indexes(tables::version_5),
    },
];

/// The lock of whoever migrates, for as long as its process lives.
const MIGRATES: i64 = 0;
/// The lock of whoever builds indexes, for as long as the server does so.
const BUILDS: i64 = 1;

/// Pause between two checks whether the migrating process has finished.
const PAUSE: Duration = Duration::from_millis(50);

pub(super) fn latest() -> i64 {
    STEPS.len() as i64
}

/// The version of the tables; 0 when there are none.
pub(super) async fn version(conn: &mut PgConnection, names: &Names) -> Result<i64> {
    if !exists(conn, &names.meta).await? {
        // Both are made in one step, perhaps just now.
        if exists(conn, &names.letters).await? && !exists(conn, &names.meta).await? {
            return Err(Fault::new(StoreErrorKind::Incompatible, others(names)));
        }
        return Ok(0);
    }
    let version = Query::new(format!("SELECT value FROM {} WHERE name = 'version'", names.meta));
    let version = version.first(conn, |row| Fields::of(row).int()).await?;
    version.ok_or_else(|| {
        Fault::new(
            StoreErrorKind::Incompatible,
            format!("{} has no version: it is not a table of dlq", names.meta),
        )
    })
}

async fn exists(conn: &mut PgConnection, table: &str) -> Result<bool> {
    // A connection that has looked before knows of what others have made since only once it touches a table.
    let exists = Query::new("SELECT to_regclass(").bind(table);
    let exists = exists.push(") IS NOT NULL FROM pg_catalog.pg_namespace LIMIT 1");
    Ok(exists.first(conn, |row| Fields::of(row).flag()).await? == Some(true))
}

/// Error that a table of the name exists already.
fn others(names: &Names) -> String {
    format!(
        "{} is a table that somebody else made: there is no {} beside it; give the store another schema or table (schema=NAME \
         or table=NAME in the query of its URL), and take over what is in this one with dlq import --from-table",
        names.letters, names.meta
    )
}

/// The version of the tables, which is not later than what is known.
pub(super) async fn found(pool: &PgPool, names: &Names, begin: &Begin) -> Result<i64> {
    let mut lent = Lent::from(pool).await?;
    let conn = lent.conn();
    pin(begin.shared(), conn).await?;
    let found = version(conn, names).await;
    let found = unpin(begin.shared(), conn, found).await?;
    lent.give_back();
    recognise(found)?;
    Ok(found)
}

/// Refuses tables of a later version.
fn recognise(found: i64) -> Result<()> {
    let known = latest();
    if found <= known {
        return Ok(());
    }
    Err(Fault::new(
        StoreErrorKind::Incompatible,
        format!(
            "the tables have version {found} of the schema and this program knows up to version {known}; \
             use a newer program"
        ),
    ))
}

/// Returns the migration that [`ensure`] would do to tables of this version.
pub(super) fn migration(found: i64) -> Migration {
    let steps = STEPS
        .iter()
        .zip(1..)
        .map(|(step, version)| MigrationStep::new(version, step.what, step.is_online));
    Migration::between(u32::try_from(found).ok().filter(|found| *found > 0), steps.collect())
}

/// Refuses tables that would have to be migrated first; `place` is where they are, fit to be shown.
pub(super) fn refuse_old(names: &Names, found: i64, place: &str) -> Result<()> {
    match found {
        0 => Err(Fault::new(
            StoreErrorKind::NotFound,
            format!(
                "there is no table {}; create it: dlq migrate --apply --from '{place}'",
                names.letters
            ),
        )),
        found if found < latest() => Err(Fault::new(
            StoreErrorKind::Incompatible,
            format!(
                "the tables have version {found} of the schema and this program works with version {}; \
                 migrate them: dlq migrate --apply --from '{place}'",
                latest()
            ),
        )),
        _ => Ok(()),
    }
}

/// Creates what is missing and migrates what is old, up to version `until`. Does nothing when there is nothing to do.
pub(super) async fn ensure(pool: &PgPool, names: &Names, until: i64) -> Result<()> {
    let mut lent = Lent::from(pool).await?;
    loop {
        let found = version(lent.conn(), names).await?;
        recognise(found)?;
        if found >= until {
            lent.give_back();
            return Ok(());
        }
        if !advance(pool, lent.conn(), names, until).await? {
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Makes again what a database lacks of the present version, and counts letters again where the counts were lost. Nobody
/// writes letters meanwhile; indexes are built afterwards, while others write.
pub(super) async fn make_again(pool: &PgPool, names: &Names) -> Result<()> {
    let mut lent = Lent::from(pool).await?;
    let mut transaction = lent.conn().begin_with("BEGIN ISOLATION LEVEL READ COMMITTED").await?;
    // It is asked before the lock, for which the table has to be there.
    if missing(&mut transaction, names).await?.iter().any(|part| part.is_table(&names.letters)) {
        return Err(Fault::new(
            StoreErrorKind::Corrupt,
            format!("the table {} is not there any more; restore a backup", names.letters),
        ));
    }
    let begin = format!("SET LOCAL statement_timeout = 0; {}", tables::lock_letters(names));
    sqlx::raw_sql(AssertSqlSafe(begin)).execute(&mut *transaction).await?;
    Query::new(format!("SELECT {DURABLE}")).run(&mut transaction).await?;
    // Another may have been first.
    let missing = missing(&mut transaction, names).await?;
    let (indexes, others): (Vec<_>, Vec<_>) =
        missing.into_iter().partition(|part| part.kind == "index");
    let mut sql: String = others.iter().map(|part| format!("{}\n", part.sql)).collect();
    // Tables that are made again are those of the first version, and lack the columns that came later.
    sql.push_str(&tables::version_3(names));
    // A new sequence begins at 1, and would give tokens out again that old claims still have (G6).
    if others.iter().any(|part| part.kind == "sequence") {
        sql.push_str(&tables::fences_go_on(names));
    }
    // What counts is a table, a function and triggers.
    if others.iter().any(|part| part.kind == "trigger" || part.sql.contains(&names.counts)) {
        sql.push_str(&tables::count_again(names));
    }
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *transaction).await?;
    transaction.commit().await?;
    let on = |part: Part| {
        let (_, on) = part.sql.split_once(" ON ")?;
        let unique = if part.sql.starts_with("CREATE UNIQUE ") { "UNIQUE " } else { "" };
        Some((unique, part.name, format!("ON {}", on.trim_end_matches(';'))))
    };
    build_all(pool, names, indexes.into_iter().filter_map(on).collect()).await?;
    lent.give_back();
    Ok(())
}

/// The names of what a database lacks of the present version.
pub(super) async fn lacks(pool: &PgPool, names: &Names, begin: &Begin) -> Result<Vec<String>> {
    let mut lent = Lent::from(pool).await?;
    let conn = lent.conn();
    pin(begin.shared(), conn).await?;
    let missing = missing(conn, names).await;
    let missing = unpin(begin.shared(), conn, missing).await?;
    lent.give_back();
    Ok(missing.iter().map(|Part { kind, name, .. }| format!("{kind} {name}")).collect())
}

/// Parts of the present version that a database lacks.
pub(super) async fn missing(conn: &mut PgConnection, names: &Names) -> Result<Vec<Part>> {
    let amiss = parts::amiss(conn, names).await?.into_iter();
    Ok(amiss.filter(|(_, amiss)| *amiss == Amiss::Missing).map(|(part, _)| part).collect())
}

/// Takes the steps that can be taken at once; `false` when another is about it.
async fn advance(
    pool: &PgPool,
    conn: &mut PgConnection,
    names: &Names,
    until: i64,
) -> Result<bool> {
    let mut transaction = conn.begin_with("BEGIN ISOLATION LEVEL READ COMMITTED").await?;
    // It is idle itself while it waits for an index.
    let no_limits =
        "SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0";
    sqlx::raw_sql(no_limits).execute(&mut *transaction).await?;
    Query::new(format!("SELECT {DURABLE}")).run(&mut transaction).await?;
    // Waiting for the lock would hold a snapshot, for which an index that is being built waits in turn.
    if !lock(&mut transaction, "pg_try_advisory_xact_lock", names, MIGRATES).await? {
        transaction.rollback().await?;
        return Ok(false);
    }
    let found = version(&mut transaction, names).await?;
    recognise(found)?;
    if found == 0 {
        // The statement alone would need the right to create schemas also where there is nothing to create.
        let schema = format!("CREATE SCHEMA IF NOT EXISTS \"{}\"", names.schema);
        let exists =
            Query::new("SELECT to_regnamespace(").bind(format!("\"{}\"", names.schema).as_str());
        let exists = exists.push(") IS NOT NULL");
        if exists.first(&mut transaction, |row| Fields::of(row).flag()).await? != Some(true) {
            transaction.execute(AssertSqlSafe(schema)).await?;
        }
    }
    let mut reached = found;
    for step in STEPS.iter().take(until as usize).skip(found as usize) {
        match step.how {
            How::Tables(sql) => {
                sqlx::raw_sql(AssertSqlSafe(sql(names))).execute(&mut *transaction).await?;
            }
            // Nobody can write to a table that nobody sees yet.
            How::Indexes(indexes) if found == 0 => {
                for (name, on) in indexes(names) {
                    let sql = format!("CREATE INDEX \"{name}\" {on}");
                    transaction.execute(AssertSqlSafe(sql)).await?;
                }
            }
            // The transaction that holds the lock has looked at no letter, so the index does not wait for it.
            How::Indexes(indexes) if reached == found => build(pool, names, indexes(names)).await?,
            // The transaction has changed tables by now, and the index would wait for its end: the next round builds
            // it.
            How::Indexes(_) => break,
        }
        // The version moves with the steps that were taken: whoever comes next goes on from there.
        reached += 1;
    }
    Query::new(format!("UPDATE {} SET value = ", names.meta))
        .bind(reached)
        .push(" WHERE name = 'version'")
        .run(&mut transaction)
        .await?;
    transaction.commit().await?;
    Ok(true)
}

/// Builds indexes while others write.
async fn build(pool: &PgPool, names: &Names, indexes: Vec<(String, String)>) -> Result<()> {
    build_all(pool, names, indexes.into_iter().map(|(name, on)| ("", name, on)).collect()).await
}

/// The same for indexes of which each may be `UNIQUE `.
async fn build_all(
    pool: &PgPool,
    names: &Names,
    indexes: Vec<(&str, String, String)>,
) -> Result<()> {
    if indexes.is_empty() {
        return Ok(());
    }
    // Its own, since all of the pool may be in use.
    let mut conn = PgConnection::connect_with(&pool.connect_options()).await?;
    conn.execute("SET statement_timeout = 0").await?;
    // A process that died may have left the server building; one that waited for that index would be waited for in turn.
    while !lock(&mut conn, "pg_try_advisory_lock", names, BUILDS).await? {
        tokio::time::sleep(PAUSE).await;
    }
    for (unique, name, on) in indexes {
        let full = format!("\"{}\".\"{name}\"", names.schema);
        let is_valid =
            Query::new("SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(")
                .bind(full.as_str())
                .push(")");
        let is_valid = is_valid.first(&mut conn, |row| Fields::of(row).flag()).await?;
        // A process that died has left it half-built: no statement uses it, and `CREATE INDEX` would find its name taken.
        if is_valid == Some(false) {
            conn.execute(AssertSqlSafe(format!("DROP INDEX CONCURRENTLY {full}"))).await?;
        }
        if is_valid != Some(true) {
            let sql = format!("CREATE {unique}INDEX CONCURRENTLY \"{name}\" {on}");
            conn.execute(AssertSqlSafe(sql)).await?;
        }
    }
    // The lock is that of the connection, and ends with it.
    Ok(conn.close().await?)
}

/// Takes a lock of this store, unless another has it.
async fn lock(conn: &mut PgConnection, how: &str, names: &Names, which: i64) -> Result<bool> {
    let lock = Query::new(format!("SELECT {how}(hashtextextended("))
        .bind(names.meta.as_str())
        .push(", ")
        .bind(which)
        .push("))");
    Ok(lock.first(conn, |row| Fields::of(row).flag()).await? == Some(true))
}

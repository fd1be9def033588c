//! Facts that the store finds out about itself.

use dlq_core::policy::duration;
use dlq_core::store::{CheckLimits, Letters as _, Vitals, Waiting};
use dlq_core::{Clock as _, Filter, Finding, Severity, StoreError, SystemClock, Timestamp};
use sqlx::PgConnection;
use sqlx::postgres::PgRow;

use super::PostgresStore;
use super::call::attempt;
use super::codec::Fields;
use super::filter::start;
use super::names::Names;
use super::parts::{self, Amiss, Part};
use super::query::Query;
use super::{operations, tables};
use crate::error::{During, Result};
use crate::values::Take as _;

/// Fewer dead rows are no matter, however few live ones there are: a busy store makes them between two vacuums.
const DEAD: i64 = 100_000;

impl PostgresStore {
    pub(super) async fn examine(
        &self,
        limits: CheckLimits,
    ) -> std::result::Result<Vec<Finding>, StoreError> {
        let amiss = attempt!(self, conn => parts::amiss(conn, self.names()));
        let amiss = amiss.during("check the store")?;
        let mut findings: Vec<_> = amiss.iter().map(|part| lacks(part, self.names())).collect();
        // Without a table there is no more to ask.
        if amiss.iter().any(|(part, _)| part.kind == "table") {
            return Ok(findings);
        }
        // The counts answer this, so that a check costs about the same however many letters there are.
        let stats = self.stats(Filter::new()).await?;
        let vitals = attempt!(self, conn => async {
            let skew = skew(conn, &limits).await?;
            let there = Query::new("SELECT ").now(self.given_time());
            let now = there.first(conn, |row| Fields::of(row).time()).await?.unwrap_or_default();
            let mut vitals = Vitals::new(now);
            vitals.waiting = waiting(conn, self.names(), now).await?;
            vitals.latest = latest(conn, self.names()).await?;
            vitals.operations = operations::under_way(conn, self.names()).await?;
            vitals.processed = rows(conn, &self.names().processed).await?;
            let mut more = dead(conn, self.names()).await?;
            more.extend(skew);
            Ok((vitals, more))
        });
        let (mut vitals, more) = vitals.during("check the store")?;
        vitals.oldest_unresolved = stats.oldest_unresolved;
        vitals.newest = stats.newest;
        findings.extend(vitals.findings(&limits));
        findings.extend(more);
        // Behind a pooler that is known nobody listens.
        if !self.inner.begin.is_pooled {
            match self.is_heard().await {
                Ok(true) => {}
                Ok(false) => findings.push(unheard()),
                Err(fault) => findings.push(untold(&fault.during("listen"))),
            }
        }
        // Only on demand, since it reads every letter.
        if limits.is_deep {
            findings.extend(self.verify().await?.iter().map(|damage| damaged(damage)));
        }
        Ok(findings)
    }
}

/// The letters of each consumer that have waited longest, by the index of what each can claim.
async fn waiting(conn: &mut PgConnection, names: &Names, now: Timestamp) -> Result<Vec<Waiting>> {
    of_each_consumer(names)
        .push("t.available_at <= ")
        .bind(now)
        .push(" ORDER BY t.available_at, t.created_at, t.letter_id LIMIT ")
        .bind(Vitals::MOST)
        .push(") w")
        .all(conn, waits)
        .await
}

/// The letter of each consumer that is due last, by the same index.
async fn latest(conn: &mut PgConnection, names: &Names) -> Result<Vec<Waiting>> {
    of_each_consumer(names)
        .push("t.available_at IS NOT NULL ORDER BY t.available_at DESC LIMIT 1) w")
        .all(conn, waits)
        .await
}

/// Letters of each consumer that can be claimed now or later, for a condition that is still to be said.
fn of_each_consumer(names: &Names) -> Query {
    let (letters, name) = (&names.letters, start("t.consumer"));
    // From one consumer to the next, past all that wait for it.
    let next = format!("(SELECT {name} AS name FROM {letters} t WHERE t.available_at IS NOT NULL");
    Query::new(format!(
        "WITH RECURSIVE c AS ({next} ORDER BY 1 LIMIT 1) UNION ALL \
         SELECT {next} AND {name} > c.name ORDER BY 1 LIMIT 1) FROM c WHERE c.name IS NOT NULL) \
         SELECT w.* FROM c, LATERAL (SELECT t.status, t.consumer, t.available_at FROM {letters} t \
         WHERE {name} = c.name AND "
    ))
}

fn waits(record: &PgRow) -> Result<Waiting> {
    let mut fields = Fields::of(record);
    Ok(Waiting { status: fields.word("status")?, consumer: fields.text()?, since: fields.time()? })
}

/// About how many rows a table has whose rows are numbered one after the other.
async fn rows(conn: &mut PgConnection, table: &str) -> Result<u64> {
    // Counting would read every row. Rows are numbered as they come, so that the distance says about how many there
    // are.
    let sql = format!(
        "SELECT coalesce((SELECT max(seq) FROM {table}) - (SELECT min(seq) FROM {table}) + 1, 0)"
    );
    Ok(Query::new(sql).first(conn, |row| Fields::of(row).unsigned()).await?.unwrap_or(0))
}

/// Checks that this process and the database agree about the time.
async fn skew(conn: &mut PgConnection, limits: &CheckLimits) -> Result<Option<Finding>> {
    let before = SystemClock.now();
    let there = Query::new("SELECT ").now(None).first(conn, |row| Fields::of(row).time()).await?;
    let after = SystemClock.now();
    let Some(there) = there else { return Ok(None) };
    // It was some moment between the two.
    let skew = before.since(there).max(there.since(after));
    Ok((skew > limits.skew).then(|| {
        Finding::new(Severity::Warning, "clock", "time of the database")
            .found(
                format!("{there}, and it is {after} here"),
                format!("at most {} apart", duration::format(limits.skew)),
            )
            .advice(
                "what consumers schedule by their own clock and the database holds by its own is early or late by as much; \
                 synchronise the clocks of both machines",
            )
    }))
}

/// Rows that are dead and not removed, which every look at a table has to pass by, and whether anybody removes them.
async fn dead(conn: &mut PgConnection, names: &Names) -> Result<Vec<Finding>> {
    let all = parts::all(names);
    let tables = all.iter().filter(|part| part.kind == "table").map(|part| part.name.as_str());
    let sql = "SELECT c.relname::text, s.n_live_tup, s.n_dead_tup, c.relpersistence = 'u', coalesce(\
                   (SELECT o.option_value::boolean FROM pg_options_to_table(c.reloptions) o \
                    WHERE o.option_name = 'autovacuum_enabled'), true), current_setting('autovacuum')::boolean \
               FROM pg_class c JOIN pg_stat_all_tables s ON s.relid = c.oid \
               WHERE c.relnamespace = to_regnamespace(";
    let found = Query::new(sql)
        .bind(format!("\"{}\"", names.schema).as_str())
        .push(") AND c.relname = ANY(")
        .bind(tables.collect::<Vec<_>>())
        .push(") ORDER BY c.relname")
        .all(conn, |row| {
            let mut fields = Fields::of(row);
            let (name, live, dead) = (fields.text()?, fields.int()?, fields.int()?);
            Ok((name, live, dead, fields.flag()?, fields.flag()?, fields.flag()?))
        });
    let mut findings = Vec::new();
    for (name, live, dead, is_unlogged, is_vacuumed, is_any_vacuumed) in found.await? {
        let subject = format!("table `{name}`");
        let full = format!("\"{}\".\"{name}\"", names.schema);
        if dead > DEAD && dead > live.saturating_mul(2) {
            findings.push(
                Finding::new(Severity::Warning, &subject, "dead rows")
                    .found(format!("{dead}, beside {live} live ones"), "fewer than twice the live ones")
                    .advice(format!(
                        "claims slow down with every one; run VACUUM {full}, and if they stay look for what keeps them: an old \
                         transaction in pg_stat_activity or pg_prepared_xacts, a replication slot"
                    )),
            );
        }
        if is_unlogged {
            findings.push(
                Finding::new(Severity::Error, &subject, "persistence")
                    .found("unlogged", "permanent")
                    .advice(format!(
                        "a crash of the database empties it; ALTER TABLE {full} SET LOGGED"
                    )),
            );
        }
        if is_any_vacuumed && !is_vacuumed {
            findings.push(
                Finding::new(Severity::Warning, &subject, "autovacuum").found("off", "on").advice(format!(
                    "dead rows stay, and claims slow down; ALTER TABLE {full} RESET (autovacuum_enabled)"
                )),
            );
        }
        // The setting of the server concerns all tables alike, and is told once.
        if !is_any_vacuumed && full == names.letters {
            findings.push(
                Finding::new(Severity::Warning, "server", "autovacuum").found("off", "on").advice(
                    "dead rows stay, and claims slow down; set autovacuum = on in postgresql.conf and reload it",
                ),
            );
        }
    }
    Ok(findings)
}

fn unheard() -> Finding {
    Finding::new(Severity::Warning, "connection", "LISTEN").found("nothing is heard", "what others say is heard").advice(
        "consumers find at their next poll, and not at once, what other processes made due; most often a pooler in transaction \
         mode stands before the database: connect past it, or let it share connections between sessions, or say that it is \
         there (`PostgresBuilder::pooler`, for the command `pooler=true` in the URL)",
    )
}

fn untold(error: &StoreError) -> Finding {
    Finding::new(Severity::Warning, "connection", "LISTEN")
        .found(error.to_string(), "what others say is heard")
        .advice(
            "consumers on this connection would find at their next poll, and not at once, what other processes made due; see that the \
             database takes one connection more; if this is a replica, check the server that takes writes; behind a pooler say \
             `.pooler(true)`, or pooler=true in the URL",
        )
}

fn lacks((part, amiss): &(Part, Amiss), names: &Names) -> Finding {
    let Names { schema, letters, .. } = names;
    let Part { kind, name, sql } = part;
    // On one line, so that it can be typed.
    let again = sql.split_whitespace().collect::<Vec<_>>().join(" ");
    let recount = tables::recount(names);
    let is_missing = *amiss == Amiss::Missing;
    let (severity, state, advice) = match kind.as_str() {
        "index" if is_missing => (
            Severity::Error,
            ("missing", "there"),
            format!("whatever it serves reads every letter; somebody has dropped it, create it again: {again}"),
        ),
        "index" => (
            Severity::Error,
            ("half-built", "valid"),
            format!(
                "whatever it serves reads every letter; build it again: REINDEX INDEX CONCURRENTLY \"{schema}\".\"{name}\";"
            ),
        ),
        "trigger" if is_missing => (
            Severity::Error,
            ("missing", "there"),
            format!(
                "letters are no longer counted; somebody has dropped it, create it again: {again} \
                 Then count anew: {recount}"
            ),
        ),
        "trigger" => (
            Severity::Error,
            ("disabled", "enabled"),
            format!(
                "letters are no longer counted; enable it: ALTER TABLE {letters} ENABLE TRIGGER \"{name}\"; \
                 Then count anew: {recount}"
            ),
        ),
        "view" => (
            Severity::Warning,
            ("missing", "there"),
            format!("what people query is gone; somebody has dropped it, create it again: {again}"),
        ),
        // What it gave out must not be given out again.
        "sequence" => (
            Severity::Error,
            ("missing", "there"),
            format!(
                "nothing can be claimed; somebody has dropped it, create it again: {again} {}",
                tables::fences_go_on(names)
            ),
        ),
        "function" => (
            Severity::Error,
            ("missing", "there"),
            format!("what calls it fails; somebody has dropped it, create it again: {again}"),
        ),
        _ if part.is_table(&names.counts) => (
            Severity::Error,
            ("missing", "there"),
            "no letter is written without it; somebody has dropped it, make it again, which counts all letters: dlq migrate \
             --apply"
                .to_owned(),
        ),
        _ => (
            Severity::Error,
            ("missing", "there"),
            "the store does not work without it; stop what writes to the store and restore a backup".to_owned(),
        ),
    };
    Finding::new(severity, &format!("{kind} `{name}`"), "existence")
        .found(state.0, state.1)
        .advice(advice)
}

fn damaged(damage: &str) -> Finding {
    Finding::new(Severity::Error, "tables", "integrity")
        .found(damage, "whole")
        .advice("somebody has changed rows by hand, or the database is damaged; restore a backup, or take over what can be read: dlq export")
}

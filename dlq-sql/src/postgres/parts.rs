//! Parts of the schema, and those that a database lacks.

use std::collections::HashMap;

use sqlx::PgConnection;

use super::codec::Fields;
use super::names::Names;
use super::query::Query;
use super::schema::{How, STEPS};
use crate::error::Result;
use crate::values::Take as _;

/// A table, an index, a sequence, a view, a function or a trigger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) kind: String,
    pub(super) name: String,
    /// Statement that creates the part.
    pub(super) sql: String,
}

impl Part {
    /// Returns true if it is the table of this full name.
    pub(super) fn is_table(&self, full: &str) -> bool {
        self.kind == "table" && full.ends_with(&format!(".\"{}\"", self.name))
    }
}

/// Problem with a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Amiss {
    Missing,
    /// It is there and does nothing: an index that was not built to its end, a trigger that is switched off.
    Idle,
}

/// Everything that the present version has.
pub(super) fn all(names: &Names) -> Vec<Part> {
    let of = |how: &How| match how {
        How::Tables(sql) => statements(&sql(names)).iter().filter_map(|sql| part(sql)).collect(),
        How::Indexes(indexes) => indexes(names)
            .into_iter()
            .map(|(name, on)| {
                // Others go on writing meanwhile. This takes a statement of its own outside of a transaction.
                let sql = format!("CREATE INDEX CONCURRENTLY \"{name}\" {on};");
                Part { kind: "index".to_owned(), name, sql }
            })
            .collect::<Vec<_>>(),
    };
    STEPS.iter().flat_map(|step| of(&step.how)).collect()
}

/// The parts that are missing or idle.
pub(super) async fn amiss(conn: &mut PgConnection, names: &Names) -> Result<Vec<(Part, Amiss)>> {
    let schema = format!("\"{}\"", names.schema);
    let there = Query::new(
        "SELECT CASE c.relkind WHEN 'r' THEN 'table' WHEN 'p' THEN 'table' WHEN 'v' THEN 'view' \
                WHEN 'S' THEN 'sequence' ELSE 'index' END, c.relname::text, coalesce(i.indisvalid, true) \
         FROM pg_class c LEFT JOIN pg_index i ON i.indexrelid = c.oid WHERE c.relnamespace = to_regnamespace(",
    )
    .bind(schema.as_str())
    .push(
        ") UNION ALL SELECT 'trigger', tgname::text, tgenabled IN ('O', 'A') FROM pg_trigger \
         WHERE NOT tgisinternal AND tgrelid = to_regclass(",
    )
    .bind(names.letters.as_str())
    .push(") UNION ALL SELECT 'function', proname::text, true FROM pg_proc WHERE pronamespace = to_regnamespace(")
    .bind(schema.as_str())
    .push(")");
    let there = there.all(conn, |row| {
        let mut fields = Fields::of(row);
        Ok(((fields.text()?, fields.text()?), fields.flag()?))
    });
    let there: HashMap<_, _> = there.await?.into_iter().collect();
    // Kind and name are compared, and not the definition, which the server writes in words of its own.
    let amiss = |part: Part| match there.get(&(part.kind.clone(), part.name.clone())) {
        None => Some((part, Amiss::Missing)),
        Some(false) => Some((part, Amiss::Idle)),
        Some(true) => None,
    };
    Ok(all(names).into_iter().filter_map(amiss).collect())
}

/// The statements of our own text that create something. Each begins a line, and a line ends it.
fn statements(sql: &str) -> Vec<String> {
    let mut all = Vec::new();
    let mut one = String::new();
    let mut is_in_body = false;
    for line in sql.lines() {
        // Other statements, such as grants, leave nothing that can be found missing.
        if one.is_empty() && !line.starts_with("CREATE ") {
            continue;
        }
        one.push_str(line);
        // A semicolon inside of a function's body ends no statement.
        is_in_body ^= line.matches("$body$").count() % 2 == 1;
        if !is_in_body && line.ends_with(';') {
            all.push(std::mem::take(&mut one));
        } else {
            one.push('\n');
        }
    }
    all
}

fn part(sql: &str) -> Option<Part> {
    let rest = sql.strip_prefix("CREATE ")?;
    let rest = rest.strip_prefix("UNIQUE ").unwrap_or(rest);
    let (kind, rest) = rest.split_once(' ')?;
    let end = rest.find([' ', '(']).unwrap_or(rest.len());
    let name = rest[..end].rsplit('"').nth(1)?;
    Some(Part { kind: kind.to_lowercase(), name: name.to_owned(), sql: sql.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_statement_that_creates_something_is_a_part() {
        let names = Names::new("public", "dlq_events");
        let all = all(&names);
        let of = |kind: &str| all.iter().filter(|part| part.kind == kind).count();
        let found = ["table", "index", "sequence", "view", "function", "trigger"].map(of);
        assert_eq!(found, [12, 20, 1, 1, 3, 4]);
        assert_eq!(found.iter().sum::<usize>(), all.len());
        assert!(all.iter().all(|part| part.sql.ends_with(';')));
        let key = all.iter().find(|part| part.name == "dlq_events_by_key").unwrap();
        assert_eq!(
            key.sql,
            "CREATE UNIQUE INDEX \"dlq_events_by_key\" ON \"public\".\"dlq_events\" (sha256(dedup_key)) \
             WHERE dedup_key IS NOT NULL;"
        );
    }
}

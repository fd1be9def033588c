//! Rights that a statement needs which was refused for want of one.

use sqlx::error::DatabaseError;

/// The code of a right that is missing.
pub(super) const RIGHT: &str = "42501";

/// Returns what was refused, the rights that the statement needs if they are known, and what to grant.
pub(super) fn missing(error: &dyn DatabaseError, sql: Option<&str>) -> String {
    let what = error.message();
    let hint = if what.contains("schema") {
        "grant USAGE on the schema, and CREATE where the tables are to be made or migrated"
    } else if what.contains("sequence") {
        "grant USAGE on the sequence"
    } else if what.contains("owner") {
        "let the owner of the tables migrate them: `dlq migrate --apply` as that user"
    } else {
        "grant SELECT, INSERT, UPDATE and DELETE on the tables of the store; who only looks needs SELECT alone"
    };
    let table = what.rsplit_once(" table ").map(|(_, table)| table);
    let needed = sql.zip(table).map(|(sql, table)| needed(sql, table)).filter(|n| !n.is_empty());
    match needed {
        Some(needed) => {
            format!("a right is missing: {what}; this needs {} on it; {hint}", needed.join(" and "))
        }
        None => format!("a right is missing: {what}; {hint}"),
    }
}

/// The rights that a statement of ours needs on a table; none where it does not name it, as when a trigger writes there.
fn needed(sql: &str, table: &str) -> Vec<&'static str> {
    let words: Vec<&str> = sql.split_whitespace().collect();
    let is_it = |word: &str| {
        let word = word.trim_matches(['(', ')', ',', ';']);
        word.rsplit('.').next().is_some_and(|name| name.trim_matches('"') == table)
    };
    let mut rights = Vec::new();
    let mut add = |right| {
        if !rights.contains(&right) {
            rights.push(right);
        }
    };
    for (at, _) in words.iter().enumerate().filter(|(_, word)| is_it(word)) {
        match words.get(at.saturating_sub(2)..at) {
            Some([.., "INTO"]) => {
                add("INSERT");
                // PostgreSQL reads the columns by which a conflict is found.
                if sql.contains("ON CONFLICT") {
                    add("SELECT");
                }
                if sql.contains("DO UPDATE") {
                    add("UPDATE");
                }
            }
            Some([.., "UPDATE" | "(UPDATE"]) => {
                add("UPDATE");
                add("SELECT");
            }
            Some(["DELETE" | "(DELETE", "FROM"]) => {
                add("DELETE");
                add("SELECT");
            }
            _ => {
                add("SELECT");
                // To lock a row takes the right to change it.
                if sql.contains("FOR UPDATE") {
                    add("UPDATE");
                }
            }
        }
    }
    rights
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_needs_what_it_does() {
        for (sql, rights) in [
            ("SELECT value FROM \"s\".\"t\" WHERE name = $1", &["SELECT"] as &[&str]),
            ("SELECT * FROM s.other JOIN s.t x ON true FOR UPDATE OF x", &["SELECT", "UPDATE"]),
            ("WITH a AS (UPDATE s.t SET x = 1 RETURNING x) SELECT 1", &["UPDATE", "SELECT"]),
            (
                "WITH a AS (DELETE FROM \"t\" WHERE x) INSERT INTO s.u SELECT 1",
                &["DELETE", "SELECT"],
            ),
            ("INSERT INTO s.t (a) SELECT $1", &["INSERT"]),
            (
                "INSERT INTO s.t AS m (a) VALUES (1) ON CONFLICT (a) DO UPDATE SET a = 2",
                &["INSERT", "SELECT", "UPDATE"],
            ),
            ("UPDATE s.u SET x = 1", &[]),
        ] {
            assert_eq!(needed(sql, "t"), rights, "{sql}");
        }
    }
}

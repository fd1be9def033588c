//! [`Names`]: what the tables of one store are called, and the statements that run once per letter.

use crate::columns::{BODY, HEAD, KEPT, RUN, SINCE, STATE};

/// The tables of one store. Built once; everything in it is a validated identifier or text made of them.
#[derive(Debug)]
pub(super) struct Names {
    pub(super) letters: String,
    pub(super) aliases: String,
    pub(super) counts: String,
    pub(super) operations: String,
    pub(super) items: String,
    pub(super) audit: String,
    pub(super) processed: String,
    pub(super) idempotency: String,
    pub(super) marks: String,
    pub(super) schedules: String,
    pub(super) documents: String,
    pub(super) meta: String,
    pub(super) readable: String,
    pub(super) insert: String,
    pub(super) update_state: String,
    pub(super) update_run: String,
    pub(super) update_all: String,
    pub(super) select_head: String,
    pub(super) select_whole: String,
    /// The row of one letter by its id, and by its number: without the message's bytes and the history, and whole.
    pub(super) head_by: [String; 2],
    pub(super) whole_by: [String; 2],
    pub(super) count: String,
}

/// The longest table name that is taken.
const LONGEST: usize = 48;

/// The name of the table unless another is asked for.
pub(super) const DEFAULT_TABLE: &str = "dlq_events";

impl Names {
    /// The names around `table`; `None` when that is not a plain identifier.
    pub(super) fn new(table: &str) -> Option<Self> {
        // The name becomes part of the text of statements, where nothing can be bound, so that only plain ones pass.
        let is_plain = table.len() <= LONGEST
            && table
                .bytes()
                .next()
                .is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
            && table.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
            // SQLite keeps such names for itself.
            && !table.to_ascii_lowercase().starts_with("sqlite_");
        if !is_plain {
            return None;
        }
        // The default table has companions with short names; others are kept apart by theirs.
        let is_default = table == DEFAULT_TABLE;
        let companion = |name: &str| {
            if is_default { format!("dlq_{name}") } else { format!("{table}_{name}") }
        };
        let processed = if is_default { "audit_log".to_owned() } else { companion("audit_log") };
        let counts = companion("counts");
        let inserted: Vec<_> = [KEPT, STATE, RUN, BODY, SINCE].concat();
        let head = list("t.", HEAD);
        let select_head = format!("SELECT {head}, t.seq FROM {table} t");
        let select_whole = format!(
            "SELECT {head}, t.published_at, t.headers, t.key, t.data, t.history, t.seq FROM {table} t"
        );
        let by = |select: &str| ["letter_id", "seq"].map(|it| format!("{select} WHERE t.{it} = ?"));
        Some(Self {
            aliases: companion("aliases"),
            operations: companion("operations"),
            items: companion("operation_items"),
            audit: companion("audit"),
            processed,
            idempotency: companion("idempotency"),
            marks: companion("crash_marks"),
            schedules: companion("schedules"),
            documents: companion("documents"),
            meta: companion("meta"),
            readable: format!("{table}_readable"),
            insert: format!(
                "INSERT INTO {table} ({}) VALUES ({}) ON CONFLICT (letter_id) DO NOTHING",
                inserted.join(", "),
                vec!["?"; inserted.len()].join(", "),
            ),
            update_state: update(table, &[STATE]),
            update_run: update(table, &[STATE, RUN]),
            update_all: update(table, &[STATE, RUN, BODY, SINCE]),
            head_by: by(&select_head),
            whole_by: by(&select_whole),
            select_head,
            select_whole,
            count: format!(
                "INSERT INTO {counts} AS c (status, reason, cause, class, consumer, subject, n) \
                 VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET n = c.n + excluded.n"
            ),
            counts,
            letters: table.to_owned(),
        })
    }
}

fn list(prefix: &str, columns: &[&str]) -> String {
    let columns = columns.iter().map(|column| {
        // An expression names its column itself.
        if column.contains('(') { (*column).to_owned() } else { format!("{prefix}{column}") }
    });
    columns.collect::<Vec<_>>().join(", ")
}

fn update(table: &str, groups: &[&[&str]]) -> String {
    let columns: Vec<_> = groups.concat().iter().map(|column| format!("{column} = ?")).collect();
    format!("UPDATE {table} SET {} WHERE seq = ?", columns.join(", "))
}

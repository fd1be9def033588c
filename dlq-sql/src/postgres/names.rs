//! [`Names`]: what the tables of one store are called, and the statements that are the same for every call.

use crate::columns::HEAD;

/// The tables of one store, each with its schema and quoted. Built once; everything in it is a validated identifier or
/// text made of them.
#[derive(Debug)]
pub(super) struct Names {
    pub(super) schema: String,
    /// The name of the table of letters, without schema and quotes.
    pub(super) table: String,
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
    pub(super) fences: String,
    /// Channel on which due letters are announced.
    pub(super) channel: String,
    pub(super) readable: String,
    pub(super) select_head: String,
    pub(super) select_whole: String,
    /// Columns of `select_whole`.
    pub(super) whole: String,
}

/// The longest name that is taken; with what is added to it, Postgres' longest is 63.
const LONGEST: usize = 44;

/// The name of the table unless another is asked for.
pub(super) const DEFAULT_TABLE: &str = "dlq_events";

/// Returns true if the name is a plain identifier.
pub(super) fn is_plain(name: &str) -> bool {
    let is_start = |first: u8| first.is_ascii_alphabetic() || first == b'_';
    name.len() <= LONGEST
        && name.bytes().next().is_some_and(is_start)
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

impl Names {
    /// The names around `table`; both are plain identifiers.
    pub(super) fn new(schema: &str, table: &str) -> Self {
        let qualified = |name: &str| format!("\"{schema}\".\"{name}\"");
        // The default table has companions with short names; others are kept apart by theirs.
        let is_default = table == DEFAULT_TABLE;
        let companion = |name: &str| {
            qualified(&if is_default { format!("dlq_{name}") } else { format!("{table}_{name}") })
        };
        let processed = if is_default { qualified("audit_log") } else { companion("audit_log") };
        let head = HEAD.iter().map(|column| {
            // An expression names its column itself, and counts in a smaller type than ours.
            if column.contains('(') { format!("{column}::bigint") } else { format!("t.{column}") }
        });
        let head = head.collect::<Vec<_>>().join(", ");
        let whole = format!("{head}, t.published_at, t.headers, t.key, t.data, t.history");
        let letters = qualified(table);
        Self {
            schema: schema.to_owned(),
            table: table.to_owned(),
            aliases: companion("aliases"),
            counts: companion("counts"),
            operations: companion("operations"),
            items: companion("operation_items"),
            audit: companion("audit"),
            processed,
            idempotency: companion("idempotency"),
            marks: companion("crash_marks"),
            schedules: companion("schedules"),
            documents: companion("documents"),
            meta: companion("meta"),
            fences: companion("fences"),
            channel: channel(schema, table),
            readable: qualified(&format!("{table}_readable")),
            select_head: format!("SELECT {head} FROM {letters} t"),
            select_whole: format!("SELECT {whole} FROM {letters} t"),
            whole,
            letters,
        }
    }

    /// Something named after the table of letters, with its schema: an index, a function.
    pub(super) fn own(&self, suffix: &str) -> String {
        format!("\"{}\".\"{}_{suffix}\"", self.schema, self.table)
    }
}

/// `SCHEMA.TABLE`, cut to the 63 bytes that a name may have; who shares it is woken for nothing now and then.
fn channel(schema: &str, table: &str) -> String {
    let mut name = format!("{schema}.{table}");
    while name.len() > 63 {
        name.pop();
    }
    name
}

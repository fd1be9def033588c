//! The statement that reads the rows: `bytea` as its bytes, everything else as the text that the database shows.

use super::letter::{Column, Kind};

pub(super) const CURSOR: &str = "dlq_foreign_rows";

/// The transaction: one view of the table, no writing, and everything shown in one way whatever the user's settings say.
/// Rows that row-level security would hide are an error.
pub(super) const BEGIN: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; \
     SET LOCAL TimeZone = 'UTC'; SET LOCAL DateStyle = 'ISO, YMD'; SET LOCAL IntervalStyle = 'postgres'; \
     SET LOCAL bytea_output = 'hex'; SET LOCAL extra_float_digits = 1; SET LOCAL lc_monetary = 'C'; \
     SET LOCAL row_security = off; SET LOCAL idle_in_transaction_session_timeout = 0";

/// An identifier in quotes.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Declares the cursor over `from`. Without a key a last column holds what tells the row apart.
pub(super) fn declare(columns: &[Column], key: &[usize], from: &str, zone: &str) -> String {
    let mut selected: Vec<_> = columns.iter().map(|column| expression(column, zone)).collect();
    let order = if key.is_empty() {
        // Rows that are alike are counted: which of them is which makes no difference.
        let digest = "encode(sha256(convert_to(dlq_row::text, 'UTF8')), 'hex')";
        selected.push(format!("{digest} || '.' || row_number() OVER (PARTITION BY {digest})"));
        String::new()
    } else {
        let key = key.iter().map(|&index| column_of(&columns[index]));
        format!(" ORDER BY {}", key.collect::<Vec<_>>().join(", "))
    };
    format!(
        "DECLARE {CURSOR} NO SCROLL CURSOR FOR SELECT {} FROM {from} AS dlq_row{order}",
        selected.join(", ")
    )
}

fn column_of(column: &Column) -> String {
    format!("dlq_row.{}", quoted(&column.shown.name))
}

fn expression(column: &Column, zone: &str) -> String {
    let name = column_of(column);
    match column.kind {
        Kind::Bytes => format!("{name}::bytea"),
        Kind::Text => format!("{name}::text"),
        // Times far from ours could not be moved to another zone, and the whole statement would fail; as they are they
        // fail alone.
        Kind::LocalTime => format!(
            "CASE WHEN {name} BETWEEN '1600-01-01' AND '2300-01-01' \
             THEN ({name}::timestamp AT TIME ZONE '{zone}')::text ELSE {name}::text END"
        ),
    }
}

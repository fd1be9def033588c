//! Tables that others made, each in a schema of its own.

use std::collections::BTreeMap;

use dlq_core::{DeadLetter, Timestamp};
use dlq_sql::postgres::foreign::{BadRow, ForeignBuilder, ForeignTable};
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Row as _};

use crate::fixture::{available, url};

/// A schema, and a connection whose path it is.
pub(crate) struct Schema {
    pub(crate) name: String,
    pub(crate) url: String,
    pub(crate) conn: PgConnection,
}

impl Schema {
    /// Of this name; `None` when there is no server to be had, which is said.
    pub(crate) async fn create(name: &str) -> Option<Self> {
        let url = available().then(url)?.to_owned();
        let mut conn = PgConnection::connect(&url).await.unwrap();
        let sql = format!(
            "DROP SCHEMA IF EXISTS {name} CASCADE; CREATE SCHEMA {name}; SET search_path = {name}"
        );
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut conn).await.unwrap();
        Some(Self { name: name.to_owned(), url, conn })
    }

    pub(crate) async fn run(&mut self, sql: &str) {
        let done = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut self.conn).await;
        done.unwrap_or_else(|error| panic!("{error}: {sql}"));
    }

    pub(crate) fn table(&self, table: &str) -> ForeignBuilder {
        ForeignTable::builder(&*self.url, format!("{}.{table}", self.name))
    }

    /// What is in a table, read another way: every column as a text, times in the form that ours have.
    pub(crate) async fn rows(&mut self, table: &str, columns: &[(&str, Shown)]) -> Vec<Shape> {
        let selected = columns.iter().map(|(name, shown)| match shown {
            Shown::Text => format!("{name}::text"),
            Shown::Bytes => format!("encode({name}, 'hex')"),
            Shown::Time => format!(
                "to_char({name} AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"000Z\"')"
            ),
            Shown::Local => {
                format!("to_char({name}, 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"000Z\"')")
            }
        });
        let selected = selected.collect::<Vec<_>>().join(", ");
        let sql = format!("SELECT {selected} FROM {table}");
        let rows = sqlx::query(AssertSqlSafe(sql)).fetch_all(&mut self.conn).await.unwrap();
        let read = |row: &PgRow| {
            let values = columns.iter().enumerate();
            values.map(|(index, (name, _))| ((*name).to_owned(), row.get(index))).collect()
        };
        rows.iter().map(read).collect()
    }
}

/// A row: what each column holds, as a text.
pub(crate) type Shape = BTreeMap<String, Option<String>>;

/// How a column is shown.
#[derive(Clone, Copy)]
pub(crate) enum Shown {
    Text,
    Bytes,
    Time,
    Local,
}

pub(crate) fn shown(time: Timestamp) -> Option<String> {
    Some(time.to_string())
}

pub(crate) fn hex(bytes: &[u8]) -> Option<String> {
    Some(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Everything that a table gives.
pub(crate) async fn read(builder: ForeignBuilder) -> (Vec<DeadLetter>, Vec<BadRow>) {
    read_rest(&mut builder.open().await.unwrap()).await
}

pub(crate) async fn read_rest(table: &mut ForeignTable) -> (Vec<DeadLetter>, Vec<BadRow>) {
    let (mut letters, mut bad) = (Vec::new(), Vec::new());
    while let Some(page) = table.next_page().await.unwrap() {
        assert!(!page.is_empty());
        for row in page {
            match row {
                Ok(letter) => letters.push(letter),
                Err(row) => bad.push(row),
            }
        }
    }
    (letters, bad)
}

/// What a table gives that has no bad rows.
pub(crate) async fn letters(builder: ForeignBuilder) -> Vec<DeadLetter> {
    let (letters, bad) = read(builder).await;
    assert_eq!(bad, []);
    letters
}

/// Texts that have hurt others, without NUL, which no text of the database can hold.
pub(crate) fn hostile(seed: usize) -> String {
    const PARTS: &[&str] = &[
        "",
        "plain",
        "o'clock\"; DROP TABLE dlq_events; --",
        "$1 %s %00 \\x41 \\' {}",
        "line\nbreak\r\ntab\tbell\u{7}",
        "\u{202e}gnp\u{feff}",
        "naïve 🙈 漢字 e\u{301}",
        "\u{fdd0}\u{fdd1}",
        "\u{1b}[31mred\u{7f}\u{80}",
        "NULL",
        " spaces ",
        "{\"a\": [1, 2]}",
    ];
    let two = [PARTS[seed % PARTS.len()], PARTS[seed / PARTS.len() % PARTS.len()]];
    two.concat()
}

/// Bytes of every kind.
pub(crate) fn hostile_bytes(seed: usize) -> Vec<u8> {
    match seed % 4 {
        0 => Vec::new(),
        1 => (0..=255).collect(),
        2 => vec![0xff, 0, 0xc3, (seed % 256) as u8],
        _ => hostile(seed).into_bytes(),
    }
}

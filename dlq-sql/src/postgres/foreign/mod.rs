//! [`ForeignTable`]: letters out of tables that others made.
//!
//! ```no_run
//! use dlq_sql::postgres::foreign::ForeignTable;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut table = ForeignTable::open("postgres://ana@localhost/orders", "event_dlq").await?;
//! while let Some(page) = table.next_page().await? {
//!     for row in page {
//!         match row {
//!             Ok(letter) => println!("{} {}", letter.id, letter.error()),
//!             Err(bad) => eprintln!("{bad}"),
//!         }
//!     }
//! }
//! # Ok(()) }
//! ```
//!
//! # What it reads
//!
//! One letter per row. Which column says what is known for some tables by their columns ([`ForeignTable::shape`] says
//! which was found) and can be said for any other ([`ForeignBuilder::map`]):
//!
//! | shape | told by the columns |
//! |---|---|
//! | `event_type` | `event_type`, `payload`, `error_reason`, `status` |
//! | `messagetype` | `messagetype`, `retries`, `replay_status` (its payload in `payload` or `message`) |
//! | `event_dlq` | `event_name`, `original_id`, `payload`, `error` |
//! | `subject_data` | `event_id`, `subject`, `data`, `error` |
//!
//! Nothing of a row is lost. Payloads are taken byte for byte: `bytea` as its bytes, everything else as the text that the
//! database shows for it, with the attribute `import.payload-type` (`jsonb` keeps neither spaces nor the order of keys, so
//! its text may not be what the producer sent). What a letter has no place for is in attributes called `column.NAME`:
//! columns that are not known, the words of `status`, times to retry at, texts too long for a history. A row without any time
//! has died when the table was opened, and the attribute `import.created-at` says so. Bytes stand there as
//! `\x` and hexadecimal digits, NULL is no attribute.
//!
//! | what the row says | the letter |
//! |---|---|
//! | status `PENDING`, NULL, or a word that is not known | `pending`; nothing is arranged, whatever time to retry at the row has |
//! | status `SUCCEEDED`, `COMPLETED` or the like, or a time `retried-at` | `resolved`, as succeeded |
//! | a time `quarantined-at` | `quarantined`, also when it was retried |
//! | an error | one attempt in the history, with the stack trace as its backtrace |
//! | headers: an object of JSON | a header for each, in order; what is not a text as its JSON |
//!
//! Rows that cannot be read are told apart ([`BadRow`]), with their key and why; the others are read on.
//!
//! # Identity
//!
//! The id of a letter is made of the database (its name and the system identifier of its server, or what
//! [`ForeignBuilder::cluster`] says), the table and the row's key: the primary key, or else the smallest unique index
//! whose columns are never NULL. A table read twice makes the same letters, so that reading it again after anything went
//! wrong loses nothing and doubles nothing. Without such a key the whole row is the key; rows that are alike are counted,
//! so that each is a letter. A row that is changed between two readings is another letter then.
//!
//! # On failure
//!
//! The table is read in one transaction that can only read (`REPEATABLE READ`, so that what others change meanwhile is
//! not half seen), a page at a time: about 8 MiB, 1000 rows at most. Nothing is written to the database, also when the
//! process dies at any point; there is no position to be kept.
//!
//! | what happens | what to do |
//! |---|---|
//! | the connection breaks, the database restarts, nothing comes for too long | open the table and read it again from its beginning |
//! | the call is dropped while it waits | the same: the handle is of no use any more and says so |
//! | the process dies after some pages were written to a store | the same: what was written is known there |
//!
//! # Rights
//!
//! `USAGE` on the schema and `SELECT` on the table; where row-level security would hide rows, reading is refused instead.

mod builder;
mod catalogue;
mod field;
mod letter;
mod select;
mod value;

pub use builder::ForeignBuilder;
pub use field::{Field, UnknownField};

use dlq_core::{DeadLetter, StoreError, StoreErrorKind};
use sqlx::{AssertSqlSafe, PgConnection};

use self::letter::Reader;
use super::codec::Fields;
use super::query::Query;
use super::silence::AnswerTimeout;
use crate::error::{During as _, Fault, Result};
use crate::values::Take as _;

/// A table that others made, open for reading. See the [module docs](self).
#[derive(Debug)]
pub struct ForeignTable {
    conn: PgConnection,
    answer_timeout: AnswerTimeout,
    reader: Reader,
    from: String,
    shape: Option<&'static str>,
    paging: Paging,
    /// A page is being read, or its reading was cut off: rows would be missing.
    is_reading: bool,
}

/// A column and what it is taken for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ForeignColumn {
    /// Its name.
    pub name: String,
    /// Its type, as the database calls it.
    pub type_name: String,
    /// Meaning of the column for a letter.
    pub meaning: Meaning,
}

/// Meaning of a column for a letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Meaning {
    /// This.
    Field(Field),
    /// Nothing that is known: it becomes the attribute `column.NAME`.
    Attribute,
    /// It is left out, as was asked for.
    Skipped,
}

/// A row that is not a letter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("row {key}: {why}")]
#[non_exhaustive]
pub struct BadRow {
    /// The key of the row: `id=42`.
    pub key: String,
    /// Column, its content, and the expected content.
    pub why: String,
}

impl ForeignTable {
    /// Opens `table` (`dlq_events`, `public.dlq_events`, `"Odd Name"`) of the database at `url`, whose columns have to be
    /// known.
    ///
    /// # Errors
    ///
    /// As for [`ForeignBuilder::open`].
    pub async fn open(
        url: impl Into<String>,
        table: impl Into<String>,
    ) -> std::result::Result<Self, StoreError> {
        Self::builder(url, table).open().await
    }

    /// Settings to open `table` of the database at `url` with.
    pub fn builder(url: impl Into<String>, table: impl Into<String>) -> ForeignBuilder {
        ForeignBuilder::new(url.into(), table.into())
    }

    /// The table, with its schema. The letters' origin has it as stream.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.reader.stream
    }

    /// Returns the name of the known table shape; `None` if only the mapping gives its columns a meaning.
    #[must_use]
    pub fn shape(&self) -> Option<&'static str> {
        self.shape
    }

    /// Every column and what it is taken for.
    #[must_use]
    pub fn columns(&self) -> Vec<ForeignColumn> {
        self.reader.columns.iter().map(|column| column.shown.clone()).collect()
    }

    /// The columns by which rows are told apart; none when the whole row is its key.
    #[must_use]
    pub fn key(&self) -> Vec<&str> {
        self.reader.key.iter().map(|&index| &*self.reader.columns[index].shown.name).collect()
    }

    /// Returns the number of rows. Reads all of them.
    ///
    /// # Errors
    ///
    /// `Unavailable` when the database does not answer.
    pub async fn count(&mut self) -> std::result::Result<u64, StoreError> {
        // It is counted in the transaction of the cursor, and so are the rows that are read.
        let count = Query::new(format!("SELECT count(*) FROM {}", self.from));
        let count = count.first(&mut self.conn, |row| Fields::of(row).int());
        let count = self.answer_timeout.on(count).await;
        count.map(|count| count.unwrap_or(0).unsigned_abs()).during("count the rows of the table")
    }

    /// The next rows, in the order of the key; `None` after the last.
    ///
    /// # Errors
    ///
    /// `Unavailable` when the database does not answer or an earlier call was dropped: open the table again.
    ///
    /// # Cancel safety
    ///
    /// Rows would be missing after a call that was dropped before it returned, so that every later one fails.
    pub async fn next_page(
        &mut self,
    ) -> std::result::Result<Option<Vec<std::result::Result<DeadLetter, BadRow>>>, StoreError> {
        self.fetch().await.during("read the table")
    }

    async fn fetch(&mut self) -> Result<Option<Vec<std::result::Result<DeadLetter, BadRow>>>> {
        if self.is_reading {
            return Err(Fault::new(
                StoreErrorKind::Unavailable,
                "an earlier call was cut off and its rows would be missing; open the table and read it again",
            ));
        }
        // It stays true where the call is dropped or fails: the cursor has then passed rows that nobody has got.
        self.is_reading = true;
        let fetch = format!("FETCH FORWARD {} FROM {}", self.paging.rows, select::CURSOR);
        // The number of rows is part of the text, and each text would stay prepared on the connection.
        let fetch = sqlx::query(AssertSqlSafe(fetch)).persistent(false);
        let fetch = async { fetch.fetch_all(&mut self.conn).await.map_err(builder::refused) };
        let rows = self.answer_timeout.on(fetch).await?;
        self.is_reading = false;
        self.paging.adapt(rows.len(), rows.iter().map(letter::size).sum());
        let letters = rows.iter().map(|row| self.reader.read(row));
        Ok((!rows.is_empty()).then(|| letters.collect()))
    }
}

/// Number of rows that are read at once: as many as are about 8 MiB.
#[derive(Debug)]
struct Paging {
    rows: usize,
}

impl Paging {
    const BYTES: usize = 8 << 20;
    const MOST: usize = 1000;

    /// Begins with few rows: nobody knows how large they are.
    fn new() -> Self {
        Self { rows: 16 }
    }

    fn adapt(&mut self, rows: usize, bytes: usize) {
        if let Some(size) = bytes.checked_div(rows) {
            // The next rows may be larger than those that were measured, so that a page grows by no more than four
            // times.
            let fitting = Self::BYTES / size.max(1);
            self.rows = fitting.clamp(1, (self.rows * 4).min(Self::MOST));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Paging;

    #[test]
    fn large_rows_are_read_few_at_a_time() {
        let mut paging = Paging::new();
        for _ in 0..5 {
            paging.adapt(paging.rows, paging.rows * 100);
        }
        assert_eq!(paging.rows, Paging::MOST);
        paging.adapt(1000, 1000 << 20);
        assert_eq!(paging.rows, 8);
        paging.adapt(8, 8 << 30);
        assert_eq!(paging.rows, 1);
    }
}

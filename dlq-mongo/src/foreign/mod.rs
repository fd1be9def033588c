//! [`ForeignCollection`]: letters out of a collection of event-dlq.
//!
//! ```no_run
//! use dlq_mongo::foreign::ForeignCollection;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut collection = ForeignCollection::open("mongodb://localhost/orders", "event_dlq").await?;
//! while let Some(page) = collection.next_page().await? {
//!     for document in page {
//!         match document {
//!             Ok(letter) => println!("{} {}", letter.id, letter.error()),
//!             Err(bad) => eprintln!("{bad}"),
//!         }
//!     }
//! }
//! # Ok(()) }
//! ```
//!
//! # Contents of a letter
//!
//! Each document is one letter. A collection is told by the fields `event_name`, `original_id`, `payload` and `error`.
//!
//! | field | the letter |
//! |---|---|
//! | `event_name` | event and subject |
//! | `original_id` | id of the message |
//! | `payload` | the message's bytes; null is a tombstone |
//! | `metadata` | a header for each entry, in order; a value that is not a text as its JSON |
//! | `error` | one attempt in the history |
//! | `retry_count` | times it was sent back |
//! | `source` | service |
//! | `created_at` | time of death |
//! | `retried_at` | `resolved`, as succeeded |
//! | `quarantined_at` | `quarantined`, also when it was retried |
//! | any other | an attribute `column.NAME` |
//!
//! Nothing of a document is lost. A value that a letter cannot hold exactly is in the attribute `column.NAME` as well:
//! metadata that are not texts, an error too long for a history, a text that is not UTF-8 (whose letter has replacement
//! characters instead). Attributes have texts as they are, bytes as `\x` and hexadecimal digits, and other values as JSON;
//! null is no attribute. A payload that is not plain binary has the attribute `import.payload-type`. A document without any
//! time has died when the collection was opened, and the attribute `import.created-at` says so.
//!
//! A document that cannot be read is told apart ([`BadDocument`]), with its key and why; the others are read on.
//!
//! # Identity
//!
//! The id of a letter is made of the database's name (or what [`ForeignBuilder::cluster`] says), the collection's name and
//! the document's `_id`. A collection that is read twice makes the same letters, so that reading it again after anything
//! went wrong loses nothing and doubles nothing.
//!
//! # On failure
//!
//! Nothing is written to the database, and no position is kept. Documents come in the order of `_id`, which never changes:
//! each that is there from beginning to end is read once, whatever others change meanwhile.
//!
//! | event | remedy |
//! |---|---|
//! | the connection breaks, the server restarts, nothing comes for too long | open the collection and read it again from its beginning |
//! | the call is dropped while it waits | the same: later calls on this handle fail |
//! | the process dies after some pages were written to a store | the same: the store knows what was written |

mod builder;
mod field;
mod letter;
#[cfg(test)]
mod tests;
mod value;

pub use builder::ForeignBuilder;
pub use field::{ForeignField, Meaning};

use std::time::Duration;

use dlq_core::{DeadLetter, StoreError};
use mongodb::bson::{Document, RawDocumentBuf, doc};
use mongodb::{Collection, Cursor};
use tokio::time::timeout;

use self::letter::Reader;
use crate::error::{During as _, Fault, Result};

/// Most bytes and documents of a page.
const BYTES: usize = 8 << 20;
const DOCUMENTS: usize = 1_000;

/// A document that is not a letter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("document {key}: {why}")]
#[non_exhaustive]
pub struct BadDocument {
    /// The key of the document: `_id=42`.
    pub key: String,
    /// The field, its value, and what was expected.
    pub why: String,
}

/// A collection of another program, open for reading. See the [module docs](self).
#[derive(Debug)]
pub struct ForeignCollection {
    collection: Collection<Document>,
    cursor: Cursor<RawDocumentBuf>,
    reader: Reader,
    fields: Vec<ForeignField>,
    answer_timeout: Duration,
    /// True while a page is being read. If it stays true, the call was dropped and documents would be missing.
    is_reading: bool,
}

impl ForeignCollection {
    /// Opens the collection `name` of the database that the URL names.
    ///
    /// # Errors
    ///
    /// As for [`ForeignBuilder::open`].
    pub async fn open(
        url: impl Into<String>,
        name: impl Into<String>,
    ) -> std::result::Result<Self, StoreError> {
        Self::builder(url, name).open().await
    }

    /// Settings to open the collection `name` with.
    pub fn builder(url: impl Into<String>, name: impl Into<String>) -> ForeignBuilder {
        ForeignBuilder::new(url.into(), name.into())
    }

    /// The collection, with its database. The letters' origin has it as stream.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.reader.stream
    }

    /// The fields of the first hundred documents and what they are taken for. Later documents may have more.
    #[must_use]
    pub fn fields(&self) -> &[ForeignField] {
        &self.fields
    }

    /// Number of documents. Looks at all of them.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the server does not answer.
    pub async fn count(&self) -> std::result::Result<u64, StoreError> {
        let count = async { Ok(self.collection.count_documents(doc! {}).await?) };
        answered_within(self.answer_timeout, count)
            .await
            .during("count the documents of the collection")
    }

    /// The next documents, in the order of `_id`; `None` after the last.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the server does not answer or an earlier call was dropped: open the collection again.
    ///
    /// # Cancel safety
    ///
    /// Documents would be missing after a call that was dropped before it returned, so that every later one fails.
    pub async fn next_page(
        &mut self,
    ) -> std::result::Result<Option<Vec<std::result::Result<DeadLetter, BadDocument>>>, StoreError>
    {
        self.fetch().await.during("read the collection")
    }

    async fn fetch(&mut self) -> Result<Option<Vec<std::result::Result<DeadLetter, BadDocument>>>> {
        if self.is_reading {
            return Err(Fault::unavailable(
                "an earlier call was cut off and its documents would be missing; open the collection and read it again",
            ));
        }
        // It stays true where the call is dropped or fails: the cursor has then passed documents that nobody has got.
        self.is_reading = true;
        let (mut page, mut bytes) = (Vec::new(), 0);
        while page.len() < DOCUMENTS && bytes < BYTES {
            let advance = async { Ok(self.cursor.advance().await?) };
            if !answered_within(self.answer_timeout, advance).await? {
                break;
            }
            let document = self.cursor.current();
            bytes += document.as_bytes().len();
            page.push(self.reader.read(document));
        }
        self.is_reading = false;
        Ok((!page.is_empty()).then_some(page))
    }
}

async fn answered_within<T>(limit: Duration, call: impl Future<Output = Result<T>>) -> Result<T> {
    timeout(limit, call).await.unwrap_or_else(|_| {
        let silent = limit.as_secs();
        Err(Fault::unavailable(format!(
            "no response from server for {silent} s; see that it can be reached"
        )))
    })
}

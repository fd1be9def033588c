//! Bytes that are too many for one document: cut into pieces that are written first, under a name that nobody else has.
//!
//! A document holds 16 MiB at most, and no letter is refused for its size. Message and history of a letter stay in its
//! document up to [`INLINE`] bytes each; what is longer is here. Pieces never change: a letter that is written anew gets new
//! ones, and the old ones are deleted once nothing refers to them.
//!
//! | the process dies | what is left | then |
//! |---|---|---|
//! | after the pieces, before the letter | pieces that no letter names | [swept](crate::MongoStore::sweep) after a day |
//! | after the letter, before old pieces are deleted | old pieces | the same |

use std::collections::{HashMap, HashSet};

use dlq_core::{LetterId, Timestamp};
use dlq_letters::Row;
use mongodb::bson::oid::ObjectId;
use mongodb::bson::{Bson, Document, doc};
use mongodb::options::FindOptions;

use crate::codec::{self, Change, number};
use crate::db::{Coll, Db};
use crate::error::{Fault, Result};
use crate::keys;

/// Bytes that stay in a document.
pub(crate) const INLINE: usize = 64 * 1024;

/// Bytes of a piece.
const PIECE: usize = 8 * 1024 * 1024;

/// Number of old pieces that are looked at in one step.
const SWEPT: i64 = 1_000;

/// Fields of a letter's document that may refer to pieces.
const REFERENCES: [&str; 2] = ["message_parts", "history_parts"];

fn piece(name: ObjectId, index: usize) -> Bson {
    let mut bytes = name.bytes().to_vec();
    bytes.extend_from_slice(&u32::try_from(index).unwrap_or(u32::MAX).to_be_bytes());
    keys::binary(bytes)
}

/// A reference to pieces: their name and number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Reference {
    name: ObjectId,
    count: usize,
}

impl Reference {
    pub(crate) fn read(document: &Document, field: &str) -> Option<Self> {
        let reference = document.get_document(field).ok()?;
        let count = usize::try_from(number(reference, "n")?).ok()?;
        Some(Self { name: reference.get_object_id("id").ok()?, count })
    }

    pub(crate) fn all(document: &Document) -> Vec<Self> {
        REFERENCES.iter().filter_map(|field| Self::read(document, field)).collect()
    }

    pub(crate) fn written(self) -> Document {
        doc! { "id": self.name, "n": i64::try_from(self.count).unwrap_or(i64::MAX) }
    }

    fn pieces(self) -> impl Iterator<Item = Bson> {
        (0..self.count).map(move |index| piece(self.name, index))
    }
}

impl Db {
    /// Writes pieces, and returns the reference to them.
    pub(crate) async fn write_parts(
        &self,
        of: &Bson,
        bytes: &[u8],
        at: Timestamp,
    ) -> Result<Reference> {
        // Nobody has had this name, so that pieces of another version are never mixed in.
        let name = ObjectId::new();
        let pieces: Vec<_> = bytes.chunks(PIECE).enumerate().collect();
        let count = pieces.len();
        for (index, bytes) in pieces {
            let document = doc! {
                "_id": piece(name, index),
                "of": of.clone(),
                "at": at.as_nanos(),
                "data": keys::binary(bytes),
            };
            // One that is there already is this one, whose answer was lost.
            self.insert(Coll::Parts, vec![document]).await?;
        }
        Ok(Reference { name, count })
    }

    /// Reads pieces. What a reference lacks is absent: the letter was written anew meanwhile.
    pub(crate) async fn read_parts(
        &self,
        references: &[Reference],
    ) -> Result<HashMap<Reference, Vec<u8>>> {
        let mut found = HashMap::new();
        for reference in references {
            let ids: Vec<_> = reference.pieces().collect();
            let options = FindOptions::builder().sort(doc! { "_id": 1_i32 }).build();
            let pieces = self.find(Coll::Parts, doc! { "_id": { "$in": ids } }, options).await?;
            // Pieces never change, so that what is there is right; some that are missing mean that the letter has others
            // by now.
            if pieces.len() != reference.count {
                continue;
            }
            let mut bytes = Vec::new();
            for piece in &pieces {
                bytes.extend_from_slice(keys::bytes(piece.get("data")).unwrap_or_default());
            }
            found.insert(*reference, bytes);
        }
        Ok(found)
    }

    pub(crate) async fn delete_parts(&self, references: &[Reference]) -> Result<()> {
        let ids: Vec<_> = references.iter().flat_map(|reference| reference.pieces()).collect();
        if ids.is_empty() {
            return Ok(());
        }
        let delete = doc! { "q": { "_id": { "$in": ids } }, "limit": 0_i32 };
        self.delete(Coll::Parts, vec![delete]).await.map(drop)
    }

    /// Adds the message's bytes to what is written of a letter.
    pub(crate) async fn put_message(
        &self,
        row: &Row,
        at: Timestamp,
        to: &mut Change,
    ) -> Result<()> {
        let bytes = codec::bytes_of(&row.letter.message);
        let whole = bytes.to_vec().map_err(|error| Fault::corrupt("message", &error))?;
        if whole.len() <= INLINE {
            to.unset.insert("message_parts", "");
            for name in ["payload", "message_key"] {
                // What an earlier version of the letter had must not stay.
                if !bytes.contains_key(name) {
                    to.unset.insert(name, "");
                }
            }
            to.set.extend(bytes);
            return Ok(());
        }
        let parts = self.write_parts(&keys::letter(row.letter.id), &whole, at).await?;
        to.set.insert("message_parts", parts.written());
        // These are among the pieces now.
        for name in ["payload", "message_key", "headers"] {
            to.unset.insert(name, "");
        }
        Ok(())
    }

    /// Adds the history to what is written of a letter.
    pub(crate) async fn put_history(
        &self,
        row: &Row,
        at: Timestamp,
        to: &mut Change,
    ) -> Result<()> {
        let text = codec::history_text(&row.letter.history)?;
        if text.len() <= INLINE {
            to.set.insert("history", text);
            to.unset.insert("history_parts", "");
            return Ok(());
        }
        let parts = self.write_parts(&keys::letter(row.letter.id), text.as_bytes(), at).await?;
        to.set.insert("history_parts", parts.written());
        to.unset.insert("history", "");
        Ok(())
    }

    /// Reads whole rows. The ids of those whose pieces were replaced meanwhile are returned beside them.
    pub(crate) async fn whole(
        &self,
        documents: Vec<Document>,
    ) -> Result<(Vec<Row>, Vec<LetterId>)> {
        let references: Vec<_> = documents.iter().flat_map(Reference::all).collect();
        let parts = self.read_parts(&references).await?;
        let (mut rows, mut torn) = (Vec::with_capacity(documents.len()), Vec::new());
        for mut document in documents {
            let mut row = codec::read_row(&document)?;
            let letter = &mut row.letter;
            let message = std::mem::replace(&mut letter.message, dlq_core::Message::tombstone(""));
            let (of_message, of_history) = (
                Reference::read(&document, "message_parts"),
                Reference::read(&document, "history_parts"),
            );
            // A row that lacks pieces is told apart and not refused: its letter was written anew between the two reads.
            let is_torn = |reference: Option<Reference>| {
                reference.is_some_and(|reference| !parts.contains_key(&reference))
            };
            if is_torn(of_message) || is_torn(of_history) {
                torn.push(letter.id);
                continue;
            }
            letter.message = match of_message.and_then(|reference| parts.get(&reference)) {
                Some(bytes) => {
                    let read = Document::from_reader(&bytes[..]);
                    let mut read = read.map_err(|error| Fault::corrupt("message", &error))?;
                    codec::read_bytes(&mut read, message)
                }
                None => codec::read_bytes(&mut document, message),
            };
            letter.history = match of_history.and_then(|reference| parts.get(&reference)) {
                Some(bytes) => codec::read_history(&String::from_utf8_lossy(bytes))?,
                None => codec::read_history(codec::text(&document, "history").unwrap_or("[]"))?,
            };
            rows.push(row);
        }
        Ok((rows, torn))
    }

    /// Deletes pieces that are older than `before` and that no letter or commit names. Returns how many.
    pub(crate) async fn sweep_parts(&self, before: Timestamp) -> Result<u64> {
        let (mut swept, mut after) = (0, None);
        loop {
            let mut filter = doc! { "at": { "$lt": before.as_nanos() } };
            // Pieces in use are old as well, so the walk goes on behind them: one page alone might hold nothing else for ever.
            if let Some(after) = after {
                filter.insert("_id", doc! { "$gt": after });
            }
            let options = FindOptions::builder().projection(doc! { "of": 1_i32 });
            let options = options.sort(doc! { "_id": 1_i32 }).limit(SWEPT).build();
            let old = self.find(Coll::Parts, filter, options).await?;
            swept += self.sweep_unused(&old).await?;
            after = old.last().and_then(|piece| piece.get("_id").cloned());
            if after.is_none() || i64::try_from(old.len()).is_ok_and(|count| count < SWEPT) {
                return Ok(swept);
            }
        }
    }

    /// Deletes those of these pieces that no letter or commit names. Returns how many.
    async fn sweep_unused(&self, old: &[Document]) -> Result<u64> {
        let commits: Vec<_> =
            old.iter().filter_map(|piece| piece.get_object_id("of").ok()).collect();
        let of: HashSet<Vec<u8>> = old
            .iter()
            .filter_map(|piece| keys::bytes(piece.get("of")).map(<[u8]>::to_vec))
            .collect();
        let of: Vec<_> = of.into_iter().map(keys::binary).collect();
        let fields = doc! { "message_parts": 1_i32, "history_parts": 1_i32 };
        let options = FindOptions::builder().projection(fields).build();
        let letters =
            self.find(Coll::Letters, doc! { "_id": { "$in": of.clone() } }, options).await?;
        let mut used: HashSet<_> =
            letters.iter().flat_map(Reference::all).flat_map(Reference::pieces_of).collect();
        // Whoever ends a commit that was left behind needs its steps, however old they are.
        let options = FindOptions::builder().projection(doc! { "steps_parts": 1_i32 }).build();
        let commits = doc! { "_id": { "$in": commits } };
        for commit in self.find(Coll::Commits, commits, options).await? {
            let steps = Reference::read(&commit, "steps_parts");
            used.extend(steps.into_iter().flat_map(Reference::pieces_of));
        }
        let unused = old.iter().filter_map(|piece| keys::bytes(piece.get("_id")));
        let unused: Vec<_> = unused.filter(|id| !used.contains(*id)).map(keys::binary).collect();
        if unused.is_empty() {
            return Ok(0);
        }
        let delete = doc! { "q": { "_id": { "$in": unused } }, "limit": 0_i32 };
        Ok(self.delete(Coll::Parts, vec![delete]).await?.n)
    }
}

impl Reference {
    fn pieces_of(self) -> Vec<Vec<u8>> {
        self.pieces().filter_map(|id| keys::bytes(Some(&id)).map(<[u8]>::to_vec)).collect()
    }
}

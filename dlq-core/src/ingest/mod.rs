//! From the dead letters of a broker into a store.
//!
//! A [`Feed`] yields the letters of a broker in the order in which they were written; an [`Ingest`] puts them into a
//! sink. For each batch: put, write the audit where there is one, tell the [incidents](Incident), confirm to the feed. What dies in between comes again:
//!
//! | the process dies | the store has | the feed | and then |
//! |---|---|---|---|
//! | before the put is confirmed | all, some or none of the batch | has it unconfirmed | the batch comes again; what the store has stays as it is (G2) |
//! | after the put, before the audit and the incidents | the batch | has it unconfirmed | it comes again, marked as such, so that its incidents are told although no letter is new |
//! | after the incidents, before the confirmation | the batch | has it unconfirmed | it comes again: its incidents are told twice |
//! | after the confirmation | the batch | is past it | nothing |
//!
//! So every letter is in the store once, and every incident is told at least once; `letter` and `generation` of an
//! incident tell copies apart.
//!
//! # On failure
//!
//! A store or a feed that is not there is waited for, and nothing is confirmed meanwhile. A letter that the store
//! refuses ([`Refused`](crate::StoreErrorKind::Refused)) is tried again alone, then set aside: it is told and counted,
//! confirmed so that it blocks nobody, and stays with the broker for as long as that keeps it. So it goes only where the
//! store has taken another letter of the batch, or can be read; a store that refuses ten letters in a row and takes none
//! ends the run. Any other error of the store is no word about a letter, and ends the run too.

mod incident;
mod report;
mod run;

pub use incident::{Incident, IncidentLetter, Outcome};
pub use report::{DLQ_INGESTED_LETTERS_TOTAL, IngestReport};
pub use run::Ingest;

use std::fmt::Debug;
use std::future::Future;

use crate::{DeadLetter, Origin, StoreError};

/// The dead letters of a broker, as they come.
pub trait Feed: Debug + Send {
    /// Waits for letters, and yields some, at most `limit`; none when the feed has ended.
    ///
    /// Called again only after [`confirm`](Self::confirm). Dropping the future loses nothing.
    ///
    /// # Errors
    ///
    /// `Unavailable` when the broker cannot be reached just now; anything else for good.
    fn next(&mut self, limit: usize) -> impl Future<Output = Result<Vec<Fed>, StoreError>> + Send;

    /// What was yielded is done with. What is not confirmed comes again, to this process or another.
    ///
    /// # Errors
    ///
    /// When the broker was not told; then what was yielded comes again.
    fn confirm(&mut self) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// What a feed yields.
#[derive(Clone, Debug)]
pub struct Fed {
    /// Where it stands among the dead letters.
    pub place: Origin,
    /// Whether it may have been yielded before.
    pub again: bool,
    /// What it is.
    pub content: Content,
}

/// What stands among the dead letters.
#[derive(Clone, Debug)]
pub enum Content {
    /// A letter.
    Letter(Box<DeadLetter>),
    /// A letter of which a part has gone, and why it cannot be read.
    Damaged(String),
    /// Something that nobody wrote as a letter.
    Foreign,
}

#[cfg(test)]
mod tests;

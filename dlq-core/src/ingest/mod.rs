//! From the dead letters of a broker into a store.
//!
//! A [`Log`](crate::log::Log) that is followed yields the letters of a broker in the order in which they were written; an
//! [`Ingest`] puts them into a sink. For each batch: put, write the audit where there is one, tell the
//! [incidents](Incident), [confirm](crate::log::Entries::confirm). What dies in between comes again:
//!
//! | the process dies | the store has | the broker | and then |
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
//! A store or a broker that is not there is waited for, and nothing is confirmed meanwhile. A letter that the store
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

#[cfg(test)]
mod tests;

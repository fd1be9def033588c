//! The engine for dead letters: what happens to a letter after it was written, decided once for every store.
//!
//! A store is a [`Backend`]: it keeps rows and answers questions about them. A [`Verb`] is a call (put, claim, finish, mark
//! and so on) as a value. It says which rows it needs, and decides over [`Rows`] in plain memory what changes. The backend
//! loads, lets the verb decide, and writes the changes in one atomic step:
//!
//! ```text
//!  verb.needs ──► Needs ──► the backend loads ──► Rows ──► verb.decide ──► changes ──► the backend commits
//!                   ▲                                          │
//!                   └────────── what was missing ◄─────────────┘
//! ```
//!
//! A verb has no side effects of its own, so that a backend may run it again: after a conflict (compare-and-set), after a
//! deadlock, or because it asked for rows that were not known beforehand.
//!
//! # Locks
//!
//! A backend with locks takes them in one order: letters by id, then documents by key, then operations by id. Counts of an
//! operation are increments ([`OperationChange`]), applied when the changes are written, so that whoever only finishes a letter locks its
//! operation last and briefly.

mod archive;
mod backend;
mod changes;
#[doc(hidden)]
pub mod dispatching;
mod document;
#[doc(hidden)]
pub mod engine;
mod groups;
pub mod log;
pub mod memory;
mod needs;
mod row;
mod rows;
mod store;
mod verb;
mod verbs;

pub use backend::{Backend, Done, Limits};
pub use changes::{DocumentChange, ItemChange, LetterChange, Note, OperationChange};
pub use document::{DocumentKey, DocumentKind, DocumentRange};
pub use needs::{Depth, Needs, Older, Select, Selected};
pub use row::{Alias, Changed, Held, Lease, Row};
pub use rows::Rows;
pub use verb::{Stop, Verb};

#[doc(hidden)]
pub mod __private {
    pub use dlq_core as core;
}

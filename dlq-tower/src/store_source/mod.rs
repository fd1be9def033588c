//! The store source: letters and retry records that are due come back from a store, to the consumer that failed.
//!
//! # What it does
//!
//! [`StoreSource`] is a [`Source`](dlq_core::Source) over [`Claims`](dlq_core::store::Claims). It claims what is due for
//! the names of one consumer, in batches, and yields it as deliveries of [`DeliveredFrom::Store`](dlq_core::DeliveredFrom::Store). Ending
//! such a delivery records on the claimed row what became of it, in one conditional step:
//!
//! | the stack says | the row |
//! |---|---|
//! | succeeded, duplicate | is resolved |
//! | delayed retry | waits for its next attempt, with its attempts so far |
//! | dead | is pending again, with this death |
//! | deferred | is what it was before, due after the delay; nothing is counted |
//!
//! A row that waited for a retry goes on with its count of attempts; a letter that was sent back starts at the first.
//!
//! # Example
//!
//! ```
//! use dlq_letters::memory::MemoryStore;
//! use dlq_core::{Ordering, Source};
//! use dlq_tower::store_source::StoreSource;
//!
//! let source = StoreSource::new(MemoryStore::new(), ["payments.charge"]);
//! assert_eq!(source.capabilities().ordering, Ordering::None);
//! ```
//!
//! A [`Consumer`](crate::consumer::Consumer) that is given a store makes its own.
//!
//! # On failure
//!
//! A claim is a lease. A process that dies leaves it to end, and the row is claimed again, which counts one crash. A
//! store that fails is asked again until the lease would have ended: an outcome is not given up for one failed write.
//! A claim whose outcome the store refuses for good is given back, so that no crash is counted; the letter runs again
//! after a delay that grows. An outcome that comes too late, because somebody else claimed the row meanwhile or an
//! operator decided otherwise, changes nothing and is logged.
//!
//! # Cost
//!
//! One call of the store per batch of claims, and one per batch of outcomes: those that come while a call is under way
//! go together in the next one. When nothing is due the source asks once per [poll interval](StoreSource::poll), sooner
//! when the store knows of something due sooner, and at once when [woken](StoreSource::waker)
//! or when the store hears that another process made something due.

mod claims;
mod finish;
mod settle;
mod source;
mod waking;

pub use settle::StoreSettle;
pub use source::StoreSource;
pub(crate) use waking::WakingRetryQueue;

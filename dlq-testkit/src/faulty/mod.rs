//! Stores that break one promise on purpose.
//!
//! A check that no broken store fails proves nothing. [`FaultyStore`] wraps a sound store and breaks exactly one
//! promise, so that one can see which checks notice.

mod store;

pub use store::{Fault, FaultyStore};

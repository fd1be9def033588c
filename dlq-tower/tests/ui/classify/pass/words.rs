//! Every word, on variants, structs and types with parameters.

#![deny(warnings, missing_docs)]

use std::time::Duration;

use dlq_tower::Classify;
use dlq_tower::core::Classify as _;

/// Documented.
#[derive(Debug, Classify)]
#[classify(permanent, crate = ::dlq_tower)]
pub enum Error<E> {
    /// Documented.
    Unmarked,
    /// Documented.
    #[classify(retry_after = wait)]
    Busy {
        /// Documented.
        wait: Duration,
    },
    /// Documented.
    #[classify(transparent)]
    Inner(E),
}

/// Documented.
#[derive(Debug, Classify)]
#[classify(transient, group = "one")]
pub struct One;

fn main() {
    let errors = [Error::Unmarked, Error::Busy { wait: Duration::ZERO }, Error::Inner(One)];
    assert_eq!(errors.iter().filter(|error| error.classify().retry_after.is_some()).count(), 1);
}

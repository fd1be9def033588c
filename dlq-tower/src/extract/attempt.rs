use dlq_core::Delivery;

use super::{FromDelivery, Rejection};

/// Number of the run of the handler.
///
/// ```
/// use dlq_tower::extract::Attempt;
///
/// let attempt = Attempt::new(3, Some(3));
/// assert!(attempt.is_last() && !attempt.is_first());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    number: u32,
    max: Option<u32>,
}

impl Attempt {
    /// Run `number`, counted from 1, of at most `max`; for tests that call a handler's function.
    #[must_use]
    pub const fn new(number: u32, max: Option<u32>) -> Self {
        Self { number, max }
    }

    /// Returns the number of the run, counted from 1. Earlier ones may have been made by another process.
    #[must_use]
    pub const fn number(&self) -> u32 {
        self.number
    }

    /// Returns the number of runs that the policy grants. `None` in a stack that was composed by hand.
    #[must_use]
    pub const fn max(&self) -> Option<u32> {
        self.max
    }

    /// Returns true if it is the first run.
    #[must_use]
    pub const fn is_first(&self) -> bool {
        self.number <= 1
    }

    /// Returns true if the message dies if this run fails, whatever the class of the error.
    #[must_use]
    pub fn is_last(&self) -> bool {
        self.max.is_some_and(|max| self.number >= max)
    }
}

impl<S> FromDelivery<S> for Attempt {
    fn from_delivery(delivery: &Delivery, _: &S) -> Result<Self, Rejection> {
        Ok(Self::new(delivery.attempt(), delivery.max_attempts()))
    }
}

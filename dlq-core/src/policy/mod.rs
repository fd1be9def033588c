//! Retry policies: how often, how long to wait in between, and where. Decisions only; nothing here waits.
//!
//! ```
//! use dlq_core::policy::{Backoff, Next, RetryPolicy};
//! use std::time::Duration;
//!
//! let policy = RetryPolicy::new()
//!     .with_max_attempts(3)
//!     .with_backoff(Backoff::constant(Duration::from_secs(1)));
//! assert_eq!(policy.next(1, None, 7), Next::After(Duration::from_secs(1)));
//! assert_eq!(policy.next(3, None, 7), Next::Exhausted);
//! ```

#[cfg(feature = "backoff")]
pub mod adaptor;
mod backoff;
pub mod duration;
mod jitter;
mod overrides;
mod schedule;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use backoff::{Backoff, Delays};
pub use duration::InvalidDuration;
pub use jitter::Jitter;
pub use overrides::RetryPolicyOverrides;
pub use schedule::{Schedule, Step, WaitsIn};

use crate::failure::words;

/// A policy that contradicts itself, or a text that is not one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct InvalidPolicy {
    message: String,
}

impl InvalidPolicy {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into() }
    }
}

words! {
    /// Meaning of a panic of the handler.
    PanicPolicy("panic policy") {
        /// It will panic again: dead-letter now.
        Permanent = "permanent",
        /// It may have been bad luck: retry.
        Retry = "retry",
    }
}

/// Decision after a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Another attempt, after this delay.
    After(Duration),
    /// None: every attempt was made.
    Exhausted,
}

/// Retry policy: the number of attempts, the delays between them, and where a message waits.
///
/// Read from configuration, it has the fields of [`RetryPolicyOverrides`]; one that contradicts itself is refused.
///
/// The setters take whatever they are given. A handler [checks](Self::check) its policy when it is built.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "RetryPolicyOverrides")]
#[must_use]
pub struct RetryPolicy {
    /// `None`: by the ladder, else 3.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_attempts: Option<u32>,
    max_crashes: u32,
    backoff: Backoff,
    #[serde(with = "duration")]
    max_in_process_delay: Duration,
    #[serde(with = "duration")]
    max_retry_after: Duration,
    panic: PanicPolicy,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self::new()
    }
}

impl TryFrom<RetryPolicyOverrides> for RetryPolicy {
    type Error = InvalidPolicy;

    /// The default policy with these changes.
    fn try_from(overrides: RetryPolicyOverrides) -> Result<Self, Self::Error> {
        overrides.apply(&Self::new())
    }
}

impl RetryPolicy {
    /// Three attempts, exponential backoff from 200 ms to 30 s with full jitter. A message waits in the process for
    /// up to 5 s; an error may ask for a day at most; five crashes give a message up, and a panic is permanent.
    pub const fn new() -> Self {
        Self {
            max_attempts: None,
            max_crashes: 5,
            backoff: Backoff::exponential(Duration::from_millis(200)),
            max_in_process_delay: Duration::from_secs(5),
            max_retry_after: Duration::from_secs(24 * 60 * 60),
            panic: PanicPolicy::Permanent,
        }
    }

    /// Allows a single attempt: every failure is final.
    pub const fn never() -> Self {
        let mut policy = Self::new();
        policy.max_attempts = Some(1);
        policy
    }

    /// Sets how often the handler runs at most, the first run included. Defaults to 3; on a ladder, to one more than
    /// it has stages.
    pub const fn with_max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = Some(attempts);
        self
    }

    /// Sets how many runs may end with the process before the message is given up; 0 means that it never is. Defaults
    /// to 5.
    pub const fn with_max_crashes(mut self, crashes: u32) -> Self {
        self.max_crashes = crashes;
        self
    }

    /// Sets how long to wait after each attempt. Defaults to exponential, 200 ms to 30 s, full jitter.
    pub fn with_backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// Sets up to which delay a message waits in the process; longer delays are spent in the transport's retry
    /// queue or a due row in a store. Defaults to 5 s.
    pub const fn with_max_in_process_delay(mut self, limit: Duration) -> Self {
        self.max_in_process_delay = limit;
        self
    }

    /// Sets the longest delay that an error may ask for; a longer one is cut to it. Defaults to one day.
    ///
    /// An error may take the delay from an answer of whatever failed, which can be wrong by years.
    pub const fn with_max_retry_after(mut self, limit: Duration) -> Self {
        self.max_retry_after = limit;
        self
    }

    /// Sets what a panic means. Defaults to permanent.
    pub const fn with_panic(mut self, panic: PanicPolicy) -> Self {
        self.panic = panic;
        self
    }

    /// Returns the maximum number of runs of the handler.
    #[must_use]
    pub fn max_attempts(&self) -> u32 {
        self.max_attempts.unwrap_or(match &self.backoff {
            Backoff::Ladder { stages } => {
                u32::try_from(stages.len()).unwrap_or(u32::MAX).saturating_add(1)
            }
            _ => 3,
        })
    }

    /// Returns the maximum number of runs that may end with the process; 0 means any number.
    #[must_use]
    pub const fn max_crashes(&self) -> u32 {
        self.max_crashes
    }

    /// Returns the delays after each attempt.
    pub const fn backoff(&self) -> &Backoff {
        &self.backoff
    }

    /// Returns the longest delay for which a message waits in the process.
    #[must_use]
    pub const fn max_in_process_delay(&self) -> Duration {
        self.max_in_process_delay
    }

    /// The longest delay that an error may ask for.
    #[must_use]
    pub const fn max_retry_after(&self) -> Duration {
        self.max_retry_after
    }

    /// Returns the meaning of a panic.
    #[must_use]
    pub const fn panic(&self) -> PanicPolicy {
        self.panic
    }

    /// Decides, once, what comes after `attempts` runs of the handler have failed.
    ///
    /// `retry_after`, what the failing side asked for, wins over the backoff, also above its cap and without jitter: it
    /// is the provider's word, up to [`max_retry_after`](Self::max_retry_after). It grants no further attempt, neither past `max_attempts` nor when a custom backoff has
    /// given up. `seed` decides the jitter: the same arguments always give the same answer, so that the delay that is
    /// logged is the delay that is waited.
    #[must_use]
    pub fn next(&self, attempts: u32, retry_after: Option<Duration>, seed: u64) -> Next {
        // The number of attempts is looked at first: an error that asks for a delay gets no further attempt by it.
        if attempts >= self.max_attempts() {
            return Next::Exhausted;
        }
        // The delay of an error is cut and not refused: the error is real, even if its delay is absurd.
        let retry_after = retry_after.map(|delay| delay.min(self.max_retry_after));
        match (retry_after, self.backoff.delay(attempts, seed)) {
            (Some(delay), Some(_)) | (None, Some(delay)) => Next::After(delay),
            (_, None) => Next::Exhausted,
        }
    }

    /// Refuses what contradicts itself.
    ///
    /// # Errors
    ///
    /// `max_attempts = 0`, a cap below the first delay, a first delay of zero that cannot grow, a factor below 1, a
    /// ladder that is empty, goes down, or has a stage that is never reached.
    pub fn check(&self) -> Result<(), InvalidPolicy> {
        if self.max_attempts() == 0 {
            return Err(InvalidPolicy::new(
                "`max_attempts = 0` would never run the handler; write at least 1",
            ));
        }
        self.backoff.check()?;
        if let Backoff::Ladder { stages } = &self.backoff {
            let reached = usize::try_from(self.max_attempts() - 1).unwrap_or(usize::MAX);
            // A stage that is never reached is refused, because whoever wrote it expects that messages wait that long.
            if reached < stages.len() {
                return Err(InvalidPolicy::new(format!(
                    "`max_attempts = {}` never reaches stage {} of the ladder ({}); allow {} attempts or drop the stage",
                    self.max_attempts(),
                    reached + 1,
                    duration::format(stages[reached]),
                    stages.len() + 1
                )));
            }
        }
        Ok(())
    }

    /// Returns the schedule of the policy: each delay with its bounds, and where it is spent.
    pub fn schedule(&self) -> Schedule {
        Schedule::of(self)
    }
}

//! [`Backoff`]: how long to wait after each attempt.

mod check;
mod table;
mod text;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Serialize, Serializer};

use super::jitter::{Jitter, between, mix, nanos};

/// Maximum number of steps of a decorrelated walk, which bounds the cost of one delay. A later attempt walks the last
/// steps only: by then the walk has forgotten where it started, and 3^64 ns is beyond any duration.
const WALKED: u32 = 64;

/// Delays of the user's own making.
pub trait Delays: fmt::Debug + Send + Sync {
    /// The delay after attempt `attempt` (counted from 1) failed; `None` to give up. The same arguments must always
    /// give the same answer: the delay that is slept is the delay that is logged. A panic gives up, too.
    fn delay(&self, attempt: u32, seed: u64) -> Option<Duration>;
}

/// Delays after each attempt: a pure function of policy, attempt and seed.
///
/// The text form is that of the attribute: `exponential(200ms, factor = 2, max = 30s, jitter = full)`,
/// `constant(1s)`, `linear(1s, increment = 1s, max = 10s)`, `decorrelated(100ms, max = 10s)`, `ladder(30s, 5m, 1h)`.
/// Serde writes that text, and reads it or a table such as `{ kind = "exponential", initial = "200ms", max = "30s" }`.
#[derive(Clone, Debug)]
#[non_exhaustive]
#[must_use]
pub enum Backoff {
    /// The same delay each time.
    Constant {
        /// The delay.
        delay: Duration,
        /// Spread of the delays.
        jitter: Jitter,
    },
    /// A delay that grows by the same amount each time.
    Linear {
        /// After the first attempt.
        initial: Duration,
        /// Amount that is added each time.
        increment: Duration,
        /// Never more than this.
        max: Duration,
        /// Spread of the delays.
        jitter: Jitter,
    },
    /// A delay that is multiplied each time.
    Exponential {
        /// After the first attempt.
        initial: Duration,
        /// Factor by which the delay grows each time; at least 1.
        factor: f64,
        /// Never more than this.
        max: Duration,
        /// Spread of the delays.
        jitter: Jitter,
    },
    /// A random delay between `initial` and three times the one before ("decorrelated jitter", from the same source
    /// as [`Jitter`]).
    Decorrelated {
        /// Never less than this.
        initial: Duration,
        /// Never more than this.
        max: Duration,
    },
    /// A list of delays, as the stages of retry topics have them.
    Ladder {
        /// The delay after each attempt; the last one stays.
        stages: Vec<Duration>,
    },
    /// Delays of the user's own making. Has no text form.
    Custom(Arc<dyn Delays>),
}

impl Backoff {
    /// The same delay each time, without jitter.
    pub const fn constant(delay: Duration) -> Self {
        Self::Constant { delay, jitter: Jitter::None }
    }

    /// A delay that grows by `increment` each time, at most to an hour, without jitter.
    pub const fn linear(initial: Duration, increment: Duration) -> Self {
        Self::Linear { initial, increment, max: Duration::from_secs(3600), jitter: Jitter::None }
    }

    /// A delay that doubles each time, at most to 30 seconds, with full jitter.
    pub const fn exponential(initial: Duration) -> Self {
        Self::Exponential {
            initial,
            factor: 2.0,
            max: Duration::from_secs(30),
            jitter: Jitter::Full,
        }
    }

    /// A random delay between `initial` and three times the one before, at most 30 seconds.
    pub const fn decorrelated(initial: Duration) -> Self {
        Self::Decorrelated { initial, max: Duration::from_secs(30) }
    }

    /// Uses these delays one after another.
    pub fn ladder(stages: impl IntoIterator<Item = Duration>) -> Self {
        Self::Ladder { stages: stages.into_iter().collect() }
    }

    /// Delays of the user's own making.
    pub fn custom(delays: impl Delays + 'static) -> Self {
        Self::Custom(Arc::new(delays))
    }

    /// Sets the longest delay. Changes nothing for constant delays, ladders and custom ones.
    pub fn max(mut self, cap: Duration) -> Self {
        if let Self::Linear { max, .. }
        | Self::Exponential { max, .. }
        | Self::Decorrelated { max, .. } = &mut self
        {
            *max = cap;
        }
        self
    }

    /// Sets how delays are spread. Changes nothing for decorrelated delays, ladders and custom ones.
    pub fn jitter(mut self, spread: Jitter) -> Self {
        if let Self::Constant { jitter, .. }
        | Self::Linear { jitter, .. }
        | Self::Exponential { jitter, .. } = &mut self
        {
            *jitter = spread;
        }
        self
    }

    /// Sets what an exponential delay is multiplied by. Changes nothing for others.
    pub fn factor(mut self, by: f64) -> Self {
        if let Self::Exponential { factor, .. } = &mut self {
            *factor = by;
        }
        self
    }

    /// The delay after attempt `attempt` (counted from 1) failed; `None` when a custom policy gives up.
    #[must_use]
    pub fn delay(&self, attempt: u32, seed: u64) -> Option<Duration> {
        let attempt = attempt.max(1);
        Some(match self {
            Self::Constant { jitter, .. }
            | Self::Linear { jitter, .. }
            | Self::Exponential { jitter, .. } => {
                // The seed is mixed with the attempt, or all delays of a message would be equally long parts of their
                // maximum.
                jitter.apply(self.longest(attempt)?, mix(seed, attempt))
            }
            Self::Decorrelated { initial, max } => {
                let mut delay = *initial;
                let first = attempt.saturating_sub(WALKED).max(1);
                // The walk is done anew each time, since a policy keeps no state: the same arguments give the same
                // delay in any process.
                for step in first..=attempt {
                    let high = delay.saturating_mul(3).max(*initial);
                    delay = between(*initial, high, mix(seed, step)).min(*max);
                }
                delay
            }
            // Stages of retry topics are fixed, so a ladder has no jitter.
            Self::Ladder { .. } => self.longest(attempt)?,
            Self::Custom(delays) => return delays.delay(attempt, seed),
        })
    }

    /// The longest delay that can follow attempt `attempt`; `None` where that cannot be told.
    #[must_use]
    pub fn longest(&self, attempt: u32) -> Option<Duration> {
        // Attempts are counted from 1; a caller that says 0 means the first.
        let steps = attempt.max(1) - 1;
        Some(match self {
            Self::Constant { delay, .. } => *delay,
            Self::Linear { initial, increment, max, .. } => {
                initial.saturating_add(increment.saturating_mul(steps)).min(*max)
            }
            Self::Exponential { initial, factor, max, .. } => {
                let grown = nanos(*initial) as f64 * factor.max(1.0).powf(f64::from(steps));
                // A float beyond the cap, infinity and NaN included, is the cap.
                if grown < nanos(*max) as f64 {
                    Duration::from_nanos(grown as u64).min(*max)
                } else {
                    *max
                }
            }
            Self::Decorrelated { initial, max } => {
                let mut high = *initial;
                for _ in 0..attempt.clamp(1, WALKED) {
                    high = high.saturating_mul(3);
                }
                high.min(*max)
            }
            Self::Ladder { stages } => {
                let last = stages.len().checked_sub(1)?;
                *stages.get(usize::try_from(steps).unwrap_or(usize::MAX).min(last))?
            }
            Self::Custom(_) => return None,
        })
    }

    /// The shortest delay that can follow attempt `attempt`; `None` where that cannot be told.
    #[must_use]
    pub fn shortest(&self, attempt: u32) -> Option<Duration> {
        match self {
            Self::Constant { jitter, .. }
            | Self::Linear { jitter, .. }
            | Self::Exponential { jitter, .. } => {
                self.longest(attempt).map(|delay| jitter.apply(delay, 0))
            }
            Self::Decorrelated { initial, max } => Some((*initial).min(*max)),
            Self::Ladder { .. } => self.longest(attempt),
            Self::Custom(_) => None,
        }
    }
}

impl PartialEq for Backoff {
    /// Custom ones are equal when they are the same object.
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Custom(left), Self::Custom(right)) => Arc::ptr_eq(left, right),
            (Self::Custom(_), _) | (_, Self::Custom(_)) => false,
            // The text form of the others has every setting.
            _ => self.to_string() == other.to_string(),
        }
    }
}

impl Serialize for Backoff {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if matches!(self, Self::Custom(_)) {
            return Err(serde::ser::Error::custom("a custom backoff has no text form"));
        }
        serializer.collect_str(self)
    }
}

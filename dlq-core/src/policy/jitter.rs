use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::failure::words;

words! {
    /// Spread of delays, so that messages that failed together do not come back together.
    ///
    /// Jitter is applied to the capped delay and only ever shortens it: no delay is above the cap. *Full* and *equal*
    /// are those of Marc Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
    Jitter("jitter") {
        /// The delay as computed.
        None = "none",
        /// Anything between nothing and the delay.
        Full = "full",
        /// Anything between half the delay and the delay.
        Equal = "equal",
    }
}

impl Jitter {
    /// Spreads `delay`; the same `random` always gives the same answer.
    #[must_use]
    pub fn apply(self, delay: Duration, random: u64) -> Duration {
        match self {
            Self::None => delay,
            Self::Full => between(Duration::ZERO, delay, random),
            Self::Equal => between(delay / 2, delay, random),
        }
    }
}

/// A duration between `low` and `high`, both included, chosen by `random`.
pub(super) fn between(low: Duration, high: Duration, random: u64) -> Duration {
    let span = nanos(high.saturating_sub(low));
    // The high half of the product lies evenly between 0 and the span, and no product is wider than 128 bits.
    let offset = (u128::from(random) * (u128::from(span) + 1)) >> 64;
    low.saturating_add(Duration::from_nanos(offset as u64))
}

/// Nanoseconds, at most what 64 bits hold (584 years).
pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A well-mixed number from a seed and an attempt: the output function of SplitMix64 (Steele, Lea, Flood: "Fast
/// splittable pseudorandom number generators", OOPSLA 2014).
pub(super) fn mix(seed: u64, attempt: u32) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(u64::from(attempt) + 1));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

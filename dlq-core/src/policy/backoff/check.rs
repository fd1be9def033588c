//! Checks of the settings of a backoff.

use std::time::Duration;

use super::Backoff;
use crate::policy::InvalidPolicy;
use crate::policy::duration::format;

impl Backoff {
    /// Refuses what contradicts itself.
    pub(in crate::policy) fn check(&self) -> Result<(), InvalidPolicy> {
        match self {
            Self::Linear { initial, max, .. } => cap(*initial, *max),
            Self::Decorrelated { initial, max } => {
                grows("decorrelated", *initial)?;
                cap(*initial, *max)
            }
            Self::Exponential { initial, factor, max, .. } => {
                grows("exponential", *initial)?;
                cap(*initial, *max)?;
                if factor.is_finite() && *factor >= 1.0 {
                    return Ok(());
                }
                Err(InvalidPolicy::new(format!(
                    "`factor = {factor}` must be a number of at least 1"
                )))
            }
            Self::Ladder { stages } => ladder(stages),
            // A constant delay of zero is a choice: retry at once. What a custom one does cannot be known.
            Self::Constant { .. } | Self::Custom(_) => Ok(()),
        }
    }
}

fn cap(initial: Duration, max: Duration) -> Result<(), InvalidPolicy> {
    if initial <= max {
        return Ok(());
    }
    Err(InvalidPolicy::new(format!(
        "the cap `max = {}` is below the first delay `initial = {}`; raise the cap or shorten the delay",
        format(max),
        format(initial)
    )))
}

fn grows(kind: &str, initial: Duration) -> Result<(), InvalidPolicy> {
    if !initial.is_zero() {
        return Ok(());
    }
    Err(InvalidPolicy::new(format!(
        "`{kind}` with `initial = 0s` would stay at 0s for ever; write a first delay, or `constant(0s)` to retry at once"
    )))
}

fn ladder(stages: &[Duration]) -> Result<(), InvalidPolicy> {
    if stages.is_empty() {
        return Err(InvalidPolicy::new(
            "a ladder needs at least one stage, e.g. `ladder(30s, 5m, 1h)`",
        ));
    }
    match stages.windows(2).find(|pair| pair[1] < pair[0]) {
        None => Ok(()),
        Some(pair) => Err(InvalidPolicy::new(format!(
            "the ladder goes down from {} to {}; order its stages from short to long",
            format(pair[0]),
            format(pair[1])
        ))),
    }
}

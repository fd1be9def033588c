use std::fmt;
use std::time::Duration;

use super::RetryPolicy;
use super::duration::format;

/// How many attempts a schedule spells out.
const SHOWN: u32 = 50;

/// One delay of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The attempt after whose failure it is waited.
    pub after_attempt: u32,
    /// The shortest and the longest it can be; `None` for a custom backoff.
    pub bounds: Option<(Duration, Duration)>,
    /// Whether the longest is short enough to be waited in the process.
    pub held: bool,
}

/// What a policy comes to. Its `Display` is meant to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Schedule {
    /// How often the handler runs at most.
    pub max_attempts: u32,
    /// The delays in order; past 50 attempts the rest is left out.
    pub steps: Vec<Step>,
}

impl Schedule {
    pub(super) fn of(policy: &RetryPolicy) -> Self {
        let max_attempts = policy.max_attempts();
        let steps = (1..max_attempts.min(SHOWN + 1))
            .map(|attempt| {
                let bounds =
                    policy.backoff().shortest(attempt).zip(policy.backoff().longest(attempt));
                let held = bounds.is_some_and(|(_, longest)| longest <= policy.hold_limit());
                Step { after_attempt: attempt, bounds, held }
            })
            .collect();
        Self { max_attempts, steps }
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.max_attempts == 1 { "" } else { "s" };
        write!(f, "{} attempt{plural}", self.max_attempts)?;
        let mut total = (Duration::ZERO, Duration::ZERO);
        for step in &self.steps {
            let place = if step.held { "in the process" } else { "escalated" };
            write!(f, "\n  after attempt {}: ", step.after_attempt)?;
            match step.bounds {
                Some((low, high)) if low == high => write!(f, "{}, {place}", format(high))?,
                Some((low, high)) => write!(f, "{} to {}, {place}", format(low), format(high))?,
                None => write!(f, "as the custom backoff says")?,
            }
            let (low, high) = step.bounds.unwrap_or_default();
            total = (total.0.saturating_add(low), total.1.saturating_add(high));
        }
        if self.steps.len() as u64 + 1 < u64::from(self.max_attempts) {
            write!(f, "\n  and so on")?;
        } else if !self.steps.is_empty() {
            write!(f, "\n  waits {} to {} in all", format(total.0), format(total.1))?;
        }
        Ok(())
    }
}

use std::fmt;
use std::time::Duration;

use super::RetryPolicy;
use super::duration::format;

/// Number of attempts that a schedule lists.
// A policy may grant any number of attempts, and the list is for people.
const SHOWN: u32 = 50;

/// Place where a delay is spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitsIn {
    /// In the process: even the longest one is within the limit of in-process delays.
    Process,
    /// In the transport's retry queue or a store: even the shortest one is beyond the limit of in-process delays.
    RetryQueue,
    /// Either: the jitter, or a custom backoff, decides on which side of the limit of in-process delays it falls.
    ByLength,
}

/// A delay of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The attempt after whose failure it is waited.
    pub after_attempt: u32,
    /// The shortest and the longest it can be; `None` for a custom backoff.
    pub bounds: Option<(Duration, Duration)>,
    /// Place where the delay is spent.
    pub place: WaitsIn,
}

/// Schedule of a policy, as long as no error asks for another delay. Its `Display` is for people.
///
/// ```
/// use dlq_core::policy::{Backoff, RetryPolicy};
/// use std::time::Duration;
///
/// let policy = RetryPolicy::new().with_backoff(Backoff::ladder([1, 30].map(Duration::from_secs)));
/// assert_eq!(
///     policy.schedule().to_string(),
///     "3 attempts\n  after attempt 1: 1s, in the process\n  after attempt 2: 30s, in the retry queue\n  waits 31s in all"
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Schedule {
    /// Maximum number of runs of the handler.
    pub max_attempts: u32,
    /// Longest delay for which a message waits in the process.
    pub max_in_process_delay: Duration,
    /// The delays in order; past 50 of them the rest is left out.
    pub steps: Vec<Step>,
}

impl Schedule {
    pub(super) fn of(policy: &RetryPolicy) -> Self {
        let max_attempts = policy.max_attempts();
        let max_in_process_delay = policy.max_in_process_delay();
        let steps = (1..max_attempts.min(SHOWN + 1))
            .map(|attempt| {
                let bounds =
                    policy.backoff().shortest(attempt).zip(policy.backoff().longest(attempt));
                let place = match bounds {
                    Some((_, longest)) if longest <= max_in_process_delay => WaitsIn::Process,
                    Some((shortest, _)) if shortest > max_in_process_delay => WaitsIn::RetryQueue,
                    _ => WaitsIn::ByLength,
                };
                Step { after_attempt: attempt, bounds, place }
            })
            .collect();
        Self { max_attempts, max_in_process_delay, steps }
    }

    /// The shortest and the longest time that all delays take together, without the runs of the handler; `None` where
    /// that cannot be told: with a custom backoff, or past 50 delays.
    #[must_use]
    pub fn total(&self) -> Option<(Duration, Duration)> {
        let complete = self.steps.len() as u64 + 1 >= u64::from(self.max_attempts);
        self.steps
            .iter()
            .try_fold((Duration::ZERO, Duration::ZERO), |(low, high), step| {
                let (shortest, longest) = step.bounds?;
                Some((low.saturating_add(shortest), high.saturating_add(longest)))
            })
            .filter(|_| complete)
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.max_attempts == 1 { "" } else { "s" };
        write!(f, "{} attempt{plural}", self.max_attempts)?;
        for step in &self.steps {
            write!(f, "\n  after attempt {}: ", step.after_attempt)?;
            match step.bounds {
                Some(bounds) => f.write_str(&range(bounds))?,
                None => f.write_str("as the custom backoff says")?,
            }
            match step.place {
                WaitsIn::Process => f.write_str(", in the process")?,
                WaitsIn::RetryQueue => f.write_str(", in the retry queue")?,
                WaitsIn::ByLength => {
                    write!(
                        f,
                        ", in the process up to {}, else in the retry queue",
                        format(self.max_in_process_delay)
                    )?;
                }
            }
        }
        let left_out =
            u64::from(self.max_attempts).saturating_sub(1).saturating_sub(self.steps.len() as u64);
        if left_out > 0 {
            write!(f, "\n  and {left_out} more")?;
        } else if let Some(total) = self.total().filter(|_| !self.steps.is_empty()) {
            write!(f, "\n  waits {} in all", range(total))?;
        }
        Ok(())
    }
}

fn range((low, high): (Duration, Duration)) -> String {
    if low == high { format(high) } else { format!("{} to {}", format(low), format(high)) }
}

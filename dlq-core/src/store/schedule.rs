use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{DeadLetter, ErrorClass, Status};

/// The automatic schedule: letters come back by themselves, a few at a time.
///
/// A run makes letters due, and their consumers claim them as they claim retries. There is one run in each interval for
/// each consumer's name, whichever process asks first; see [`Claims::run_schedule`](super::Claims::run_schedule).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
#[must_use]
pub struct Schedule {
    /// True if the schedule runs.
    pub enabled: bool,
    /// Time between two runs.
    #[serde(with = "crate::policy::duration")]
    pub every: Duration,
    /// Number of letters that a run sends back.
    pub batch: u32,
    /// Letters that were sent back this often stay visible and are skipped.
    pub max_retries: u32,
    /// Also letters whose last error was permanent.
    pub all_classes: bool,
    /// Texts of errors that are never retried, upper and lower case alike: letters whose latest error contains one are
    /// quarantined instead.
    pub terminal: Vec<String>,
}

impl Default for Schedule {
    /// Off; when switched on: every six hours, 50 letters, at most 240 times, transient ones only.
    fn default() -> Self {
        Self {
            enabled: false,
            every: Duration::from_secs(6 * 3600),
            batch: 50,
            max_retries: 240,
            all_classes: false,
            terminal: Vec::new(),
        }
    }
}

impl Schedule {
    /// A schedule that runs every six hours.
    pub fn enabled() -> Self {
        Self { enabled: true, ..Self::default() }
    }

    /// Sets the time between two runs. Defaults to six hours.
    pub const fn every(mut self, every: Duration) -> Self {
        self.every = every;
        self
    }

    /// Sets how many letters a run sends back. Defaults to 50.
    pub const fn batch(mut self, batch: u32) -> Self {
        self.batch = batch;
        self
    }

    /// Sets how often a letter is sent back at most. Defaults to 240.
    pub const fn max_retries(mut self, max_retries: u32) -> Self {
        self.max_retries = max_retries;
        self
    }

    /// Also sends back letters whose last error was permanent. Defaults to no.
    pub const fn all_classes(mut self) -> Self {
        self.all_classes = true;
        self
    }

    /// Quarantines letters whose latest error contains `text`, instead of sending them back. Defaults to none.
    pub fn terminal(mut self, text: impl Into<String>) -> Self {
        self.terminal.push(text.into());
        self
    }

    /// Returns true if a run quarantines this whole letter, which it [takes](Self::takes), instead of sending it back.
    #[must_use]
    pub fn is_terminal(&self, letter: &DeadLetter) -> bool {
        super::operation::terminal(&self.terminal, letter).is_some()
    }

    /// Returns true if a run may send `letter` back: pending, confirmed, nothing arranged, below the cap, of the right
    /// class. This is the reference that every store agrees with.
    #[must_use]
    pub fn takes(&self, letter: &DeadLetter) -> bool {
        letter.state.status == Status::Pending
            // A death that was only reported may be none. An operator decides about such letters.
            && letter.confirmed
            && letter.state.due.is_none()
            && letter.state.operation.is_none()
            && letter.state.retry_count < self.max_retries
            && (self.all_classes || letter.class == ErrorClass::Transient)
    }
}

/// A run of the schedule, on behalf of a consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct ScheduleRun {
    /// The consumer; a run per interval and name.
    pub consumer: String,
    /// Its settings.
    pub schedule: Schedule,
}

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::fingerprint::Fingerprint;
use crate::{Cause, ErrorClass, LetterSummary, Reason, Status, Timestamp};

/// Counts over the letters that match a filter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// All of them.
    pub total: u64,
    /// Number of letters by status, over all letters. The other counts leave resolved letters out.
    pub by_status: BTreeMap<Status, u64>,
    /// Unresolved ones by subject.
    pub by_subject: BTreeMap<String, u64>,
    /// Unresolved ones by reason.
    pub by_reason: BTreeMap<Reason, u64>,
    /// Unresolved ones by cause; those without an attempt are missing here.
    pub by_cause: BTreeMap<Cause, u64>,
    /// Unresolved ones by class.
    pub by_class: BTreeMap<ErrorClass, u64>,
    /// Unresolved ones by consumer.
    pub by_consumer: BTreeMap<String, u64>,
    /// When the earliest was stored.
    pub oldest: Option<Timestamp>,
    /// When the latest was stored.
    pub newest: Option<Timestamp>,
    /// When the earliest unresolved one was stored.
    pub oldest_unresolved: Option<Timestamp>,
}

impl Stats {
    /// Letters with this status.
    #[must_use]
    pub fn with_status(&self, status: Status) -> u64 {
        self.by_status.get(&status).copied().unwrap_or(0)
    }

    /// Letters that wait for somebody: pending, held or quarantined.
    #[must_use]
    pub fn backlog(&self) -> u64 {
        [Status::Pending, Status::Held, Status::Quarantined]
            .map(|status| self.with_status(status))
            .iter()
            .sum()
    }

    /// Counts one letter. The reference that every store agrees with.
    pub fn add(&mut self, letter: &LetterSummary) {
        // Ages are by the time of storing, which is the store's clock for all letters.
        let at = letter.state.created_at;
        self.total += 1;
        *self.by_status.entry(letter.state.status).or_default() += 1;
        self.oldest = Some(self.oldest.map_or(at, |oldest| oldest.min(at)));
        self.newest = Some(self.newest.map_or(at, |newest| newest.max(at)));
        if letter.state.status.is_unresolved() {
            *self.by_subject.entry(letter.subject.clone()).or_default() += 1;
            *self.by_reason.entry(letter.reason).or_default() += 1;
            *self.by_class.entry(letter.class).or_default() += 1;
            *self.by_consumer.entry(letter.consumer.clone()).or_default() += 1;
            if let Some(cause) = letter.cause {
                *self.by_cause.entry(cause).or_default() += 1;
            }
            self.oldest_unresolved =
                Some(self.oldest_unresolved.map_or(at, |oldest| oldest.min(at)));
        }
    }
}

/// Letters that failed for the same reason in the same place.
///
/// A group has the letters of one [fingerprint](crate::Fingerprint) and one consumer. Its key is
/// [`GroupKey`](super::GroupKey), by which decisions about it are kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// The identity of the group.
    pub fingerprint: Fingerprint,
    /// Consumer that gave the messages up.
    pub consumer: String,
    /// Number of letters.
    pub count: u64,
    /// When the earliest was stored.
    pub first_seen: Timestamp,
    /// When the latest was stored.
    pub last_seen: Timestamp,
    /// The latest letter of the group, as a sample (by time of storing, then id).
    pub sample: LetterSummary,
}

/// Health of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HealthState {
    /// It answers, and nothing waits too long.
    Healthy,
    /// It answers, but letters pile up or grow old.
    Degraded,
    /// It does not answer.
    Unhealthy,
}

/// From where on a backlog is unhealthy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct HealthThresholds {
    /// Degraded from this many waiting letters on.
    pub backlog: u64,
    /// Degraded once the oldest unresolved letter is this old.
    pub age: Duration,
}

impl Default for HealthThresholds {
    /// 100 letters, seven days.
    fn default() -> Self {
        Self { backlog: 100, age: Duration::from_secs(7 * 24 * 3600) }
    }
}

impl HealthThresholds {
    /// Sets the number of waiting letters. Defaults to 100.
    pub const fn backlog(mut self, backlog: u64) -> Self {
        self.backlog = backlog;
        self
    }

    /// Sets the age of the oldest unresolved letter. Defaults to seven days.
    pub const fn age(mut self, age: Duration) -> Self {
        self.age = age;
        self
    }
}

/// Health of a store, with the reasons.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// The judgement.
    pub state: HealthState,
    /// Each finding that led to it, in words.
    pub findings: Vec<String>,
    /// Letters pending, held or quarantined; 0 when the store does not answer.
    pub backlog: u64,
}

impl Health {
    /// Judges a store that answered.
    #[must_use]
    pub fn of(stats: &Stats, thresholds: HealthThresholds, now: Timestamp) -> Self {
        let mut findings = Vec::new();
        let backlog = stats.backlog();
        if backlog >= thresholds.backlog {
            findings
                .push(format!("{backlog} letters wait; the threshold is {}", thresholds.backlog));
        }
        if let Some(oldest) = stats.oldest_unresolved
            && now.since(oldest) >= thresholds.age
        {
            findings.push(format!(
                "the oldest unresolved letter has waited since {oldest}; the threshold is {}",
                crate::policy::duration::format(thresholds.age)
            ));
        }
        let state = if findings.is_empty() { HealthState::Healthy } else { HealthState::Degraded };
        Self { state, findings, backlog }
    }

    /// A store that did not answer.
    #[must_use]
    pub fn unreachable(error: &dyn std::error::Error) -> Self {
        Self { state: HealthState::Unhealthy, findings: vec![error.to_string()], backlog: 0 }
    }
}

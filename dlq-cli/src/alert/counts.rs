//! Counts of alerts, by the format in which they are sent.

use std::sync::atomic::{AtomicU64, Ordering};

use metrics::Label;

/// Formats of alerts about groups.
pub(crate) const FORMATS: [&str; 3] = ["webhook", "slack", "pagerduty"];

pub(crate) const SENT: &str = "dlq_alerts_sent_total";
pub(crate) const FAILED: &str = "dlq_alerts_failed_total";
pub(crate) const DROPPED: &str = "dlq_alerts_dropped_total";

/// Counts of one process since its start.
#[derive(Debug, Default)]
pub(crate) struct Counts([[AtomicU64; FORMATS.len()]; 3]);

impl Counts {
    /// Counts alerts that a receiver has accepted.
    pub(super) fn sent(&self, format: &'static str, alerts: usize) {
        self.add(0, format, alerts);
    }

    /// Counts alerts that a receiver has not accepted, and that are tried again later.
    pub(super) fn failed(&self, format: &'static str, alerts: usize) {
        self.add(1, format, alerts);
    }

    /// Counts alerts that are never sent.
    pub(super) fn dropped(&self, format: &'static str, alerts: usize) {
        self.add(2, format, alerts);
    }

    fn add(&self, what: usize, format: &'static str, alerts: usize) {
        let place = FORMATS.iter().position(|it| *it == format).unwrap_or_default();
        self.0[what][place].fetch_add(alerts as u64, Ordering::Relaxed);
        // Both are counted: `dlq serve` makes a recorder for each look and reads its own totals, an ingest has a global
        // recorder.
        count([SENT, FAILED, DROPPED][what], format, alerts);
    }

    /// Returns what was counted: the name of each metric, its format and its value.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        let rows = [SENT, FAILED, DROPPED].into_iter().zip(&self.0);
        rows.flat_map(|(name, row)| {
            let values = FORMATS.into_iter().zip(row);
            values.map(move |(format, value)| (name, format, value.load(Ordering::Relaxed)))
        })
    }
}

/// Counts for whoever exports the counters of this process.
pub(super) fn count(name: &'static str, format: &'static str, alerts: usize) {
    metrics::counter!(name, vec![Label::new("format", format)]).increment(alerts as u64);
}

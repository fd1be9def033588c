use std::collections::BTreeMap;
use std::time::Duration;

/// A topic as the brokers describe it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) partitions: i32,
    /// On how many brokers a partition is, at least.
    pub(crate) replication: usize,
    pub(crate) leaderless: Vec<i32>,
    /// `None` when the user may not read them.
    pub(crate) settings: Option<BTreeMap<String, String>>,
}

impl Seen {
    pub(super) fn text(&self, setting: &str) -> Option<&str> {
        Some(self.settings.as_ref()?.get(setting)?.as_str())
    }

    pub(super) fn number(&self, setting: &str) -> Option<i64> {
        self.text(setting)?.parse().ok()
    }

    /// The partitions that have leaders.
    pub(crate) fn readable(&self) -> impl Iterator<Item = i32> {
        (0..self.partitions).filter(|partition| !self.leaderless.contains(partition))
    }

    /// `None` for what is kept for ever, or when that is unknown.
    pub(crate) fn retention(&self) -> Option<Duration> {
        let millis = self.number("retention.ms")?;
        u64::try_from(millis).ok().map(Duration::from_millis)
    }

    pub(super) fn max_message(&self) -> Option<u64> {
        u64::try_from(self.number("max.message.bytes")?).ok()
    }
}

/// State of a topic's name.
#[derive(Clone, Debug)]
pub(crate) enum Look {
    There(Seen),
    Missing,
    /// The user may not know.
    Refused(String),
}

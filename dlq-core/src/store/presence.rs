//! Consumers that are there: each process says so now and then.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::identity::Fields;

/// Sign of life of a consumer in a process.
///
/// ```
/// use dlq_core::store::Heartbeat;
///
/// let heartbeat = Heartbeat::new("billing", "7f3a").host("web-1").build("1.4.2").reads(["orders.>"]);
/// assert_eq!(heartbeat.reads, ["orders.>"]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
#[must_use]
pub struct Heartbeat {
    /// Name of the consumer, as its letters have it.
    pub consumer: String,
    /// Text that no other process has, and this one has as long as it lives.
    pub process: String,
    /// Name of the machine.
    #[serde(default)]
    pub host: Option<String>,
    /// Version of the program.
    #[serde(default)]
    pub build: Option<String>,
    /// Names of what it reads: subjects, topics, streams.
    #[serde(default)]
    pub reads: Vec<String>,
}

impl Heartbeat {
    /// Most bytes of a name; longer ones are cut.
    // Heartbeats are written every few seconds and kept for a week, so each has to stay small.
    const LONGEST: usize = 512;
    /// Most names of what is read that are kept.
    const MOST: usize = 100;

    /// A heartbeat of `consumer` in `process`.
    pub fn new(consumer: impl Into<String>, process: impl Into<String>) -> Self {
        Self {
            consumer: consumer.into(),
            process: process.into(),
            host: None,
            build: None,
            reads: Vec::new(),
        }
    }

    /// Sets the name of the machine. Defaults to none.
    pub fn host(mut self, host: impl Into<String>) -> Self {
        self.host = Some(host.into());
        self
    }

    /// Sets the version of the program. Defaults to none.
    pub fn build(mut self, build: impl Into<String>) -> Self {
        self.build = Some(build.into());
        self
    }

    /// Sets the names of what it reads. Defaults to none.
    pub fn reads(mut self, reads: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.reads = reads.into_iter().map(Into::into).collect();
        self
    }

    /// Returns a short text that stands for the consumer in its process: 32 hexadecimal digits.
    #[must_use]
    pub fn digest(&self) -> String {
        let mut fields = Fields::new();
        fields.bytes(b"dlq presence v1");
        fields.add(self.consumer.as_bytes());
        fields.add(self.process.as_bytes());
        format!("{:032x}", u128::from_be_bytes(fields.finish()))
    }

    /// Cuts what is too long to be kept. The consumer's name stays whole, since letters are found by it.
    pub fn cut(mut self) -> Self {
        fn cut(text: &mut String) {
            let mut end = Heartbeat::LONGEST.min(text.len());
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            text.truncate(end);
        }
        self.reads.truncate(Self::MOST);
        [&mut self.host, &mut self.build].into_iter().flatten().for_each(cut);
        self.reads.iter_mut().for_each(cut);
        self
    }
}

/// Consumer in a process, as its store knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Presence {
    /// The latest heartbeat.
    #[serde(flatten)]
    pub heartbeat: Heartbeat,
    /// When it was first heard of, by the store's clock.
    pub since: Timestamp,
    /// When it was last heard of, by the store's clock.
    pub last_seen: Timestamp,
}

impl Presence {
    /// Time between two heartbeats.
    pub const INTERVAL: Duration = Duration::from_secs(15);
    /// Time without a heartbeat after which a consumer counts as gone: four heartbeats, so that one lost on the way
    /// to a slow store is no alarm.
    pub const SILENCE: Duration = Duration::from_secs(60);
    /// Time without a heartbeat after which a consumer is forgotten.
    pub const KEPT: Duration = Duration::from_secs(7 * 24 * 3600);

    /// The presence that `heartbeat` begins.
    #[must_use]
    pub const fn new(heartbeat: Heartbeat, now: Timestamp) -> Self {
        Self { heartbeat, since: now, last_seen: now }
    }

    /// Returns true if it was heard of lately enough to be alive at `now`, by the store's clock.
    #[must_use]
    pub fn is_alive(&self, now: Timestamp) -> bool {
        self.last_seen.after(Self::SILENCE) > now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_between_characters() {
        let long = "ä".repeat(400);
        let reads = std::iter::repeat_n(long.clone(), 200);
        let heartbeat = Heartbeat::new("c", "p").host(long).reads(reads).cut();
        assert_eq!(heartbeat.host.unwrap().chars().count(), 256);
        assert_eq!((heartbeat.reads.len(), heartbeat.reads[0].len()), (100, 512));
    }

    #[test]
    fn a_consumer_is_alive_until_it_has_been_silent() {
        let at = |seconds: i64| Timestamp::from_nanos(seconds * 1_000_000_000);
        let presence = Presence::new(Heartbeat::new("c", "p"), at(0));
        assert!(presence.is_alive(at(59)) && !presence.is_alive(at(60)));
    }

    #[test]
    fn a_presence_is_one_object() {
        let presence = Presence::new(Heartbeat::new("c", "p"), Timestamp::EPOCH);
        let text = serde_json::to_value(&presence).unwrap();
        assert_eq!(text["consumer"], "c");
        assert_eq!(serde_json::from_value::<Presence>(text).unwrap(), presence);
    }
}

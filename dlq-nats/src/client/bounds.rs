//! The bounds of a stream, and what happens at them.

use async_nats::jetstream::stream::{Config, DiscardPolicy};

const EACH: &str = "max_msgs_per_subject";

/// The bounds that a stream has.
pub(crate) fn all(config: &Config) -> impl Iterator<Item = (&'static str, i64)> {
    [
        ("max_msgs", config.max_messages),
        ("max_bytes", config.max_bytes),
        (EACH, config.max_messages_per_subject),
    ]
    .into_iter()
    .filter(|(_, bound)| *bound > 0)
}

/// The bounds of a bucket at which it removes keys. That of each key is its history.
pub(crate) fn forgetting(bucket: &Config) -> impl Iterator<Item = (&'static str, i64)> {
    evicting(bucket).filter(|(setting, _)| *setting != EACH)
}

/// Returns the bounds at which the stream removes the oldest messages instead of refusing new ones. A bound for each
/// subject refuses only if that is configured.
pub(crate) fn evicting(config: &Config) -> impl Iterator<Item = (&'static str, i64)> {
    let old = config.discard == DiscardPolicy::Old;
    let each = old || !config.discard_new_per_subject;
    all(config).filter(move |(setting, _)| if *setting == EACH { each } else { old })
}

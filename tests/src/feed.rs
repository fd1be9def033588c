use dlq_tower::core::{Message, Timestamp};

/// Number of messages.
pub const MESSAGES: u64 = 300;
/// The message that kills the process whenever it is handled.
pub const KILLER: u64 = 150;

/// Fate of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It succeeds.
    Good,
    /// It fails once, then it succeeds.
    Flaky,
    /// It fails for good.
    Permanent,
    /// It fails until the other side is repaired.
    Down,
    /// It panics.
    Panics,
    /// It kills the process.
    Kills,
}

/// Returns the fate of message `n`.
#[must_use]
pub const fn kind(n: u64) -> Kind {
    match (n, n % 10) {
        (KILLER, _) => Kind::Kills,
        (_, 1) => Kind::Flaky,
        (_, 3) => Kind::Permanent,
        (_, 5) => Kind::Down,
        (77, _) => Kind::Panics,
        _ => Kind::Good,
    }
}

/// Message `n`; the same in every process.
pub fn message(n: u64) -> Message {
    Message::new("work", n.to_string()).with_id(format!("evt-{n}")).with_published_at(
        Timestamp::from_millis(1_763_683_200_000 + i64::try_from(n).unwrap_or(0)),
    )
}

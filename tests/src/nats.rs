//! What the consumer on NATS is given to do.

/// The stream that it reads.
pub const STREAM: &str = "WORK";
/// The consumer's name.
pub const CONSUMER: &str = "tests.work";

/// What happens to a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It succeeds.
    Good,
    /// It fails once, then it succeeds.
    Flaky,
    /// It fails for good.
    Poison,
    /// It kills the process.
    Kills,
}

/// What happens to message `n`. Every twentieth is poison.
#[must_use]
pub const fn kind(n: u64) -> Kind {
    match (n, n % 20, n % 50) {
        (1234, _, _) => Kind::Kills,
        (_, 3, _) => Kind::Poison,
        (_, _, 1) => Kind::Flaky,
        _ => Kind::Good,
    }
}

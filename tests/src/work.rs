//! Work for the consumers on servers.

use dlq_tower::extract::{Attempt, Json, State};
use dlq_tower::{Classify, dlq_handler};

use crate::Journal;

/// The consumer's name.
pub const CONSUMER: &str = "tests.work";

/// Fate of a message.
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

/// Returns the fate of message `n`. Every twentieth is poison.
#[must_use]
pub const fn kind(n: u64) -> Kind {
    match (n, n % 20, n % 50) {
        (1234, _, _) => Kind::Kills,
        (_, 3, _) => Kind::Poison,
        (_, _, 1) => Kind::Flaky,
        _ => Kind::Good,
    }
}

/// Error of a message.
#[derive(Debug, thiserror::Error, Classify)]
pub enum WorkError {
    /// It may do better later.
    #[error("the other side is down")]
    #[classify(transient)]
    Down,
    /// It will not.
    #[error("this will never work")]
    #[classify(permanent)]
    Never,
}

/// Does what [`kind`] says, and notes its begin and its success. Every retry takes the way through the retry queue.
#[dlq_handler(
    name = "tests.work",
    max_attempts = 3,
    backoff = constant("50ms"),
    max_in_process_delay = "1ms",
    max_crashes = 3
)]
pub async fn work(
    Json(n): Json<u64>,
    attempt: Attempt,
    State(journal): State<Journal>,
) -> Result<(), WorkError> {
    journal.note("run", n).map_err(|_| WorkError::Down)?;
    tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    match kind(n) {
        Kind::Flaky if attempt.number() == 1 => return Err(WorkError::Down),
        Kind::Poison => return Err(WorkError::Never),
        Kind::Kills => std::process::abort(),
        _ => {}
    }
    journal.note("ok", n).map_err(|_| WorkError::Down)
}

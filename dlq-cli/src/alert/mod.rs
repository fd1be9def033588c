//! Alerts: about groups of errors in a store, and about each new letter that an ingest takes from a broker.
//!
//! Groups are told once each by [`GroupAlerts`], which keeps in the store what was told. Letters are told by
//! `LetterAlerts`, which keeps nothing.

mod counts;
mod groups;
mod http;
#[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
mod letters;
mod message;
mod receiver;

use std::future::Future;
use std::time::Duration;

use tokio::time::{sleep, timeout};

pub(crate) use counts::{Counts, FORMATS};
pub(crate) use groups::{GroupAlerts, StoreSource};
#[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
pub(crate) use letters::LetterAlerts;

/// Time limit of an attempt.
const PATIENCE: Duration = Duration::from_secs(5);
/// Number of attempts for an alert, and the delay after the first.
// With the pauses that is some 25 s at worst for one message. What is told of groups stays due in the store after that.
const TRIES: u32 = 4;
const PAUSE: Duration = Duration::from_millis(250);

/// Reason why an alert was not accepted.
#[derive(Debug)]
struct Refusal {
    why: String,
    /// True if trying again may help.
    is_transient: bool,
}

/// Sends until the alert is accepted, or refused for good, or was tried often enough.
async fn send<F>(attempt: impl Fn() -> F) -> Result<(), Refusal>
where
    F: Future<Output = Result<(), Refusal>>,
{
    let (mut tries, mut pause) = (1, PAUSE);
    loop {
        // A program that takes too long is killed, since its future is dropped here.
        let refusal = match timeout(PATIENCE, attempt()).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(refusal)) => refusal,
            Err(_) => Refusal {
                why: format!("it took more than {} s", PATIENCE.as_secs()),
                is_transient: true,
            },
        };
        if !refusal.is_transient || tries == TRIES {
            return Err(refusal);
        }
        sleep(pause).await;
        tries += 1;
        pause *= 4;
    }
}

//! [`Written`]: records of this process that a message is acknowledged for.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dlq_core::Origin;
use tokio::time::Instant;

/// Time for which a record is expected to be asked for. Acknowledging follows writing at once, and is tried for 20 s.
const KEPT: Duration = Duration::from_secs(300);
/// Number of records from which those that nobody asked for are looked for.
const MANY: usize = 1_024;

/// The message that a record was written for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum WrittenFor {
    /// The death whose mark has this key.
    Letter(String),
    /// An attempt of this consumer group that waits in the retry queue.
    Retry(Arc<str>, Origin),
}

/// Keys that hold the dead letters and retry records that this process has written, until their messages are acknowledged.
///
/// A fail-over can forget a record that was confirmed. Its message is then still pending at the new master, and acknowledging
/// it there would lose it. The acknowledgement therefore takes the key from here, and is made only where the key exists.
#[derive(Debug, Default)]
pub(crate) struct Written {
    keys: Mutex<HashMap<WrittenFor, (String, Instant)>>,
}

impl Written {
    /// Notes that a key has been written, which the server keeps for this time at least.
    pub(crate) fn note(&self, written_for: WrittenFor, key: String, kept: Duration) {
        let now = Instant::now();
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        // This runs only when the map would have to grow, so that not every record pays for the walk.
        if keys.len() >= MANY && keys.len() == keys.capacity() {
            keys.retain(|_, (_, ends)| *ends > now);
        }
        // Half of the time: what the server has forgotten because its time was over is no reason to hold a message back.
        keys.insert(written_for, (key, now + (kept / 2).min(KEPT)));
    }

    /// Takes the key that must exist where the message is acknowledged. `None` if the record is somewhere else.
    pub(crate) fn take(&self, written_for: &WrittenFor) -> Option<String> {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        keys.remove(written_for).filter(|(_, ends)| *ends > Instant::now()).map(|(key, _)| key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn letter(number: usize) -> WrittenFor {
        WrittenFor::Letter(number.to_string())
    }

    #[tokio::test(start_paused = true)]
    async fn what_nobody_asks_for_is_forgotten() {
        let written = Written::default();
        for number in 0..MANY * 4 {
            written.note(letter(number), "key".to_owned(), Duration::MAX);
            if number % MANY == 0 {
                tokio::time::advance(KEPT).await;
            }
        }
        assert!(written.keys.lock().unwrap().len() <= MANY * 3);
        assert_eq!(written.take(&letter(1)), None);
        assert_eq!(written.take(&letter(MANY * 4 - 1)).as_deref(), Some("key"));
        assert_eq!(written.take(&letter(MANY * 4 - 1)), None);

        written.note(letter(1), "key".to_owned(), Duration::from_secs(2));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(written.take(&letter(1)), None, "the server may have forgotten it in time");
    }
}

//! Order: messages of one key run one after another, in the order in which they entered (G5).

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use metrics::Gauge;
use tokio::sync::oneshot;

/// The keys that are in flight, each with its last message. Bounded by what is in flight.
#[derive(Clone, Debug)]
pub(super) struct Keys(Arc<Lines>);

struct Lines {
    tails: Mutex<Tails>,
    /// Shows how many wait in line.
    shown: Gauge,
    /// Number of waiting messages that are worth a warning.
    many: usize,
}

#[derive(Debug, Default)]
struct Tails {
    number: u64,
    last: HashMap<Bytes, (u64, oneshot::Receiver<()>)>,
    /// Number of messages that wait for one before them.
    waiting: usize,
    has_warned: bool,
}

/// A place in the line of one key. Dropping it lets the next one go.
#[derive(Debug)]
pub(super) struct KeyTurn {
    keys: Keys,
    key: Bytes,
    number: u64,
    // While it waits.
    before: Option<oneshot::Receiver<()>>,
    // Never sent on: its end is the message.
    _done: oneshot::Sender<()>,
}

impl Keys {
    /// No keys yet. Says so when `many` messages wait in line.
    pub(super) fn new(shown: Gauge, many: usize) -> Self {
        Self(Arc::new(Lines { tails: Mutex::default(), shown, many }))
    }

    fn tails(&self) -> MutexGuard<'_, Tails> {
        self.0.tails.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the last place in the line of `key`.
    pub(super) fn enter(&self, key: Bytes) -> KeyTurn {
        let (done, after) = oneshot::channel();
        let mut tails = self.tails();
        tails.number += 1;
        let number = tails.number;
        // The last one is enough to wait for: but for a stop, a message leaves only after those before it (G5).
        let before = tails.last.insert(key.clone(), (number, after)).map(|(_, before)| before);
        if before.is_some() {
            tails.waiting += 1;
            self.0.shown.set(tails.waiting as f64);
            if tails.waiting >= self.0.many && !tails.has_warned {
                tails.has_warned = true;
                tracing::warn!(
                    waiting = tails.waiting,
                    keys = tails.last.len(),
                    "many messages in flight wait for an earlier one of their key; when there is no more room, nothing is fetched until it has ended"
                );
            }
        }
        drop(tails);
        KeyTurn { keys: self.clone(), key, number, before, _done: done }
    }
}

impl Tails {
    fn one_less(&mut self, lines: &Lines) {
        self.waiting = self.waiting.saturating_sub(1);
        lines.shown.set(self.waiting as f64);
        // Not at once when there are fewer, or a number about the limit would warn again and again.
        if self.waiting <= lines.many / 2 {
            self.has_warned = false;
        }
    }
}

impl KeyTurn {
    /// Returns true if every message of the key that entered before has left.
    pub(super) fn is_first(&mut self) -> bool {
        use oneshot::error::TryRecvError::Empty;
        let waits = self.before.as_mut().is_some_and(|b| matches!(b.try_recv(), Err(Empty)));
        if !waits {
            self.waits_no_more();
        }
        !waits
    }

    /// Waits until every message of the key that entered before has left. Dropping the future loses nothing.
    pub(super) async fn first(&mut self) {
        if let Some(before) = &mut self.before {
            // Nothing is ever sent: an error is the end of the one before.
            let _ = before.await;
            self.waits_no_more();
        }
    }

    fn waits_no_more(&mut self) {
        if self.before.take().is_some() {
            self.keys.tails().one_less(&self.keys.0);
        }
    }
}

impl Drop for KeyTurn {
    fn drop(&mut self) {
        let mut tails = self.keys.tails();
        if self.before.is_some() {
            tails.one_less(&self.keys.0);
        }
        // Nobody has entered behind it: the line is empty, and its key is forgotten, or keys would grow without end.
        if tails.last.get(&self.key).is_some_and(|(number, _)| *number == self.number) {
            tails.last.remove(&self.key);
        }
    }
}

impl fmt::Debug for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lines").field("tails", &self.tails).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use futures_util::{FutureExt, poll};

    use super::*;

    #[tokio::test]
    async fn a_key_is_one_line_and_lines_are_apart() {
        let shown = Arc::new(AtomicU64::new(0));
        let keys = Keys::new(Gauge::from_arc(Arc::clone(&shown)), 2);
        let shown = || f64::from_bits(shown.load(Ordering::Acquire));
        let key = Bytes::from_static(b"a");
        let mut first = keys.enter(key.clone());
        let mut second = keys.enter(key.clone());
        let mut third = keys.enter(key.clone());
        let mut other = keys.enter(Bytes::from_static(b"b"));
        assert!(first.first().now_or_never().is_some());
        assert!(other.first().now_or_never().is_some());
        assert!(poll!(Box::pin(second.first())).is_pending());
        assert!(poll!(Box::pin(third.first())).is_pending());
        assert_eq!(shown(), 2.0, "of the two lines");
        assert!(keys.tails().has_warned);
        drop(first);
        assert!(second.first().now_or_never().is_some());
        assert!(poll!(Box::pin(third.first())).is_pending());
        drop(second);
        assert!(third.first().now_or_never().is_some());
        assert_eq!(shown(), 0.0);
        let behind = keys.enter(key.clone());
        assert_eq!(shown(), 1.0);
        drop((third, other, behind));
        assert_eq!(shown(), 0.0, "what was given back waits no more");
        assert!(!keys.tails().has_warned);
        assert!(keys.tails().last.is_empty(), "nothing is kept of keys that are gone");
    }
}

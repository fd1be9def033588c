//! Order: messages of one key run one after another, in the order in which they entered (G5).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use tokio::sync::oneshot;

/// The keys that are in hand, each with its last message. Bounded by what is in hand.
#[derive(Clone, Debug, Default)]
pub(super) struct Keys(Arc<Mutex<Tails>>);

#[derive(Debug, Default)]
struct Tails {
    number: u64,
    last: HashMap<Bytes, (u64, oneshot::Receiver<()>)>,
}

/// A place in the line of one key. Dropping it lets the next one go.
#[derive(Debug)]
pub(super) struct KeyTurn {
    keys: Keys,
    key: Bytes,
    number: u64,
    before: Option<oneshot::Receiver<()>>,
    // Never sent on: its end is the message.
    _done: oneshot::Sender<()>,
}

impl Keys {
    /// Takes the last place in the line of `key`.
    pub(super) fn enter(&self, key: Bytes) -> KeyTurn {
        let (done, after) = oneshot::channel();
        let mut tails = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tails.number += 1;
        let number = tails.number;
        let before = tails.last.insert(key.clone(), (number, after)).map(|(_, before)| before);
        KeyTurn { keys: self.clone(), key, number, before, _done: done }
    }
}

impl KeyTurn {
    /// Whether every message of the key that entered before has left.
    pub(super) fn is_first(&mut self) -> bool {
        use oneshot::error::TryRecvError::Empty;
        self.before.as_mut().is_none_or(|before| !matches!(before.try_recv(), Err(Empty)))
    }

    /// Waits until every message of the key that entered before has left. Dropping the future loses nothing.
    pub(super) async fn first(&mut self) {
        if let Some(before) = &mut self.before {
            let _ = before.await;
            self.before = None;
        }
    }
}

impl Drop for KeyTurn {
    fn drop(&mut self) {
        let mut tails = self.keys.0.lock().unwrap_or_else(PoisonError::into_inner);
        if tails.last.get(&self.key).is_some_and(|(number, _)| *number == self.number) {
            tails.last.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt, poll};

    use super::*;

    #[tokio::test]
    async fn a_key_is_one_line_and_lines_are_apart() {
        let keys = Keys::default();
        let key = Bytes::from_static(b"a");
        let mut first = keys.enter(key.clone());
        let mut second = keys.enter(key.clone());
        let mut third = keys.enter(key.clone());
        let mut other = keys.enter(Bytes::from_static(b"b"));
        assert!(first.first().now_or_never().is_some());
        assert!(other.first().now_or_never().is_some());
        assert!(poll!(Box::pin(second.first())).is_pending());
        assert!(poll!(Box::pin(third.first())).is_pending());
        drop(first);
        assert!(second.first().now_or_never().is_some());
        assert!(poll!(Box::pin(third.first())).is_pending());
        drop(second);
        assert!(third.first().now_or_never().is_some());
        drop((third, other));
        assert!(keys.0.lock().unwrap().last.is_empty(), "nothing is kept of keys that are gone");
    }
}

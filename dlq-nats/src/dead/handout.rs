//! Messages that a server hands out to the requests of one consumer, in the order in which it does.

use std::collections::BTreeMap;
use std::time::Duration;

use dlq_core::StoreError;
use futures_util::stream::{BoxStream, SelectAll};
use futures_util::{Stream, StreamExt, stream};
use tokio::time::timeout;

use crate::client::publish::unwritable;

/// Time for which an earlier message may still arrive. It is on its way on the same connection.
const MOMENT: Duration = Duration::from_secs(1);

/// Sequence of handed-out messages, each with its number among all of its consumer, which counts from 1.
///
/// A server gives of what it has to each request in turn: while two of them stand, every other message comes to the one,
/// and those between them to the other.
pub(super) struct Handout<T> {
    operation: &'static str,
    requests: SelectAll<BoxStream<'static, Result<Came<T>, StoreError>>>,
    /// Messages that have arrived before their turn.
    early: BTreeMap<u64, T>,
    /// The number of the last that was the next.
    pub(super) last: u64,
    /// Number of messages that may still come in answer to requests.
    pub(super) due: usize,
}

/// Event in answer to a request.
enum Came<T> {
    /// A message and its number.
    One(u64, T),
    /// Its end: so many of those that were asked for do not come.
    End(usize),
}

/// Next event of the sequence.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next<T> {
    This(T),
    /// Nothing; something is to be asked for.
    Nothing,
    /// Something that was handed out and does not come, as the connection was lost to which it was.
    Lost,
}

impl<T: 'static> Handout<T> {
    pub(super) fn new(operation: &'static str) -> Self {
        Self { operation, requests: SelectAll::new(), early: BTreeMap::new(), last: 0, due: 0 }
    }

    /// Awaits at most `most` of this request, too.
    pub(super) fn add(
        &mut self,
        most: usize,
        request: impl Stream<Item = Result<(u64, T), StoreError>> + Send + 'static,
    ) {
        self.due += most;
        let came = stream::unfold(Some((Box::pin(request), most)), async |request| {
            let (mut request, left) = request?;
            Some(match request.next().await {
                Some(Ok((number, one))) => {
                    (Ok(Came::One(number, one)), Some((request, left.saturating_sub(1))))
                }
                Some(Err(error)) => (Err(error), Some((request, left))),
                None => (Ok(Came::End(left)), None),
            })
        });
        self.requests.push(came.boxed());
    }

    /// Returns true if the end of every request has been seen.
    pub(super) fn is_over(&self) -> bool {
        self.requests.is_empty() && self.early.is_empty()
    }

    /// The next.
    ///
    /// # Errors
    ///
    /// That of a request, and `Unavailable` when nothing comes within `patience`.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub(super) async fn next(&mut self, patience: Duration) -> Result<Next<T>, StoreError> {
        loop {
            if let Some(next) = self.early.remove(&(self.last + 1)) {
                self.last += 1;
                return Ok(Next::This(next));
            }
            let came = if self.early.is_empty() {
                let came = timeout(patience, self.requests.next()).await;
                came.map_err(|error| unwritable(self.operation, error))?
            } else {
                match timeout(MOMENT, self.requests.next()).await {
                    Ok(Some(came)) => Some(came),
                    // Later messages are here and an earlier one is not: it was handed out to a connection that is gone.
                    Ok(None) | Err(_) => return Ok(Next::Lost),
                }
            };
            let Some(came) = came else {
                self.due = 0;
                return Ok(Next::Nothing);
            };
            match came? {
                Came::One(number, message) => {
                    self.due = self.due.saturating_sub(1);
                    // A server that makes its consumer anew counts from 1 again.
                    if number <= self.last || self.early.insert(number, message).is_some() {
                        return Ok(Next::Lost);
                    }
                }
                Came::End(left) => self.due = self.due.saturating_sub(left),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use dlq_core::StoreErrorKind;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    fn handed(numbers: &[u64]) -> impl Stream<Item = Result<(u64, u64), StoreError>> + use<> {
        stream::iter(numbers.to_vec()).map(|number| Ok((number, number * 10)))
    }

    async fn next(handout: &mut Handout<u64>) -> Next<u64> {
        handout.next(PATIENCE).await.unwrap()
    }

    #[tokio::test]
    async fn what_comes_to_two_requests_in_turn_is_in_order() {
        let mut handout = Handout::new("read");
        assert!(handout.is_over());
        handout.add(5, handed(&[1, 2, 3, 5, 7]));
        handout.add(3, handed(&[4, 6, 8]));
        for number in 1..=8 {
            assert_eq!(next(&mut handout).await, Next::This(number * 10));
        }
        assert_eq!(handout.due, 0);
        assert_eq!((next(&mut handout).await, handout.is_over()), (Next::Nothing, true));
        // A request that nothing comes to, as there is nothing more, ends nothing else.
        handout.add(5, handed(&[]));
        handout.add(2, handed(&[9, 10]));
        for number in 9..=10 {
            assert_eq!(next(&mut handout).await, Next::This(number * 10));
        }
        assert_eq!((next(&mut handout).await, handout.due), (Next::Nothing, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn what_does_not_come_is_missed() {
        let mut handout = Handout::new("read");
        handout.add(3, handed(&[1, 3]));
        assert_eq!(next(&mut handout).await, Next::This(10));
        assert_eq!(next(&mut handout).await, Next::Lost, "the request has ended");

        let mut handout = Handout::new("read");
        handout.add(3, handed(&[2]).chain(stream::pending()));
        assert_eq!(next(&mut handout).await, Next::Lost, "the other does not come");

        let mut handout = Handout::<u64>::new("read");
        handout.add(3, stream::pending());
        let error = handout.next(PATIENCE).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "the server is silent");
    }

    #[tokio::test]
    async fn a_consumer_that_counts_anew_is_noticed() {
        let mut handout = Handout::new("read");
        handout.add(2, handed(&[1, 2]));
        for number in 1..=2 {
            assert_eq!(next(&mut handout).await, Next::This(number * 10));
        }
        // 3 is another message than it was before.
        handout.add(3, handed(&[1, 2, 3]));
        assert_eq!(next(&mut handout).await, Next::Lost);
    }

    #[tokio::test(start_paused = true)]
    async fn what_does_not_come_of_a_request_that_has_ended_is_not_due() {
        let mut handout = Handout::new("read");
        handout.add(100, handed(&[1, 2]));
        handout.add(100, handed(&[3]).chain(stream::pending()));
        for number in 1..=3 {
            assert_eq!(next(&mut handout).await, Next::This(number * 10));
        }
        assert!(timeout(Duration::from_millis(10), handout.next(PATIENCE)).await.is_err());
        assert_eq!(handout.due, 99);
    }

    #[tokio::test]
    async fn a_request_that_fails_is_an_error() {
        let mut handout = Handout::<u64>::new("read");
        handout.add(3, stream::iter([Err(StoreError::new(StoreErrorKind::Corrupt, "read"))]));
        assert_eq!(handout.next(PATIENCE).await.unwrap_err().kind(), StoreErrorKind::Corrupt);
    }
}

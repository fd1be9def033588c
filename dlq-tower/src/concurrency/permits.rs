//! Permits: while nobody waits, one atomic step takes one and one gives it back.
//!
//! Who finds none stands in line. A permit that is given back while there is a line goes to the first in it, so that
//! nobody overtakes. A place in line that is given up is taken out; one that had been granted a permit hands it on.

use std::collections::VecDeque;
use std::mem::take;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// In the state: somebody stands in line. No permit is free then.
const LINE: usize = 1;
/// In the state: a permit that is free.
const FREE: usize = 2;

#[derive(Debug)]
pub(crate) struct Permits {
    state: AtomicUsize,
    line: Mutex<Line>,
}

/// `LINE` is set exactly while `waiting` is not empty, as seen by whoever has the lock.
#[derive(Debug, Default)]
struct Line {
    next: u64,
    /// In the order of their tickets.
    waiting: VecDeque<(u64, Waker)>,
    /// Tickets that were given a permit and have not fetched it yet.
    granted: Vec<u64>,
}

impl Permits {
    pub(crate) fn new(limit: usize) -> Self {
        // With no permit at all nothing would ever run. The upper bound leaves room for the bit of the line.
        let limit = limit.clamp(1, usize::MAX / FREE);
        Self { state: AtomicUsize::new(limit * FREE), line: Mutex::default() }
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    fn try_take(&self) -> bool {
        let less = |state: usize| state.checked_sub(FREE);
        // Acquire here and release in `give`: what the attempt before wrote is seen by the next one.
        self.state.fetch_update(Acquire, Relaxed, less).is_ok()
    }

    /// Takes a permit, or a place in line.
    #[cold]
    fn stand(&self, cx: &Context<'_>) -> Option<u64> {
        let mut line = self.line();
        // Until one of the two has worked: what is given back in between is free, and nobody has been told of it.
        while self.state.compare_exchange(0, LINE, Relaxed, Relaxed).unwrap_or_else(|now| now)
            > LINE
        {
            if self.try_take() {
                return None;
            }
        }
        let ticket = line.next;
        line.next += 1;
        line.waiting.push_back((ticket, cx.waker().clone()));
        Some(ticket)
    }

    /// Returns true if `ticket` has been given a permit, which is fetched with this.
    #[cold]
    fn fetch(&self, ticket: u64, cx: &Context<'_>) -> bool {
        let mut line = self.line();
        if line.was_granted(ticket) {
            return true;
        }
        if let Some(place) = line.place(ticket) {
            line.waiting[place].1.clone_from(cx.waker());
        }
        false
    }

    /// Gives up the place in line.
    #[cold]
    fn leave(&self, ticket: u64) {
        let mut line = self.line();
        if line.was_granted(ticket) {
            // The permit was granted and not fetched. `give` hands it to the next in line, for which it takes the lock.
            drop(line);
            return self.give();
        }
        if let Some(place) = line.place(ticket) {
            line.waiting.remove(place);
            self.close(&line);
        }
    }

    #[inline]
    fn give(&self) {
        let more = |state: usize| (state & LINE == 0).then_some(state + FREE);
        if self.state.fetch_update(Release, Relaxed, more).is_err() {
            self.give_to_line();
        }
    }

    #[cold]
    fn give_to_line(&self) {
        let mut line = self.line();
        // It goes to the first in line directly, so that nobody who comes later takes it before.
        let Some((ticket, waker)) = line.waiting.pop_front() else {
            // The line has gone meanwhile.
            self.state.fetch_add(FREE, Release);
            return;
        };
        // The permit never becomes free in between, so `try_take` cannot get ahead of the line.
        line.granted.push(ticket);
        self.close(&line);
        drop(line);
        waker.wake();
    }

    /// Says that nobody stands in line any more, if so.
    fn close(&self, line: &Line) {
        if line.waiting.is_empty() {
            // While a line stands no permit is free, so that the whole state is 0 without it.
            self.state.store(0, Relaxed);
        }
    }
}

impl Line {
    fn was_granted(&mut self, ticket: u64) -> bool {
        // These are few: whoever was granted a permit is woken at once and fetches it.
        let granted = self.granted.iter().position(|&granted| granted == ticket);
        granted.map(|index| self.granted.swap_remove(index)).is_some()
    }

    fn place(&self, ticket: u64) -> Option<usize> {
        self.waiting.binary_search_by_key(&ticket, |(ticket, _)| *ticket).ok()
    }
}

/// Access of a service to its permits, one at a time. A clone starts without one.
#[derive(Debug)]
pub(crate) struct Taker {
    permits: Arc<Permits>,
    turn: Turn,
}

#[derive(Debug)]
enum Turn {
    /// It has not asked.
    None,
    /// It stands in line.
    Ticket(u64),
    /// It holds a permit.
    Permit,
}

impl Taker {
    pub(crate) fn new(permits: Arc<Permits>) -> Self {
        Self { permits, turn: Turn::None }
    }

    /// Waits until it holds a permit.
    #[inline]
    pub(crate) fn poll(&mut self, cx: &Context<'_>) -> Poll<()> {
        let turn = match self.turn {
            Turn::Permit => return Poll::Ready(()),
            Turn::None if self.permits.try_take() => Turn::Permit,
            Turn::None => self.permits.stand(cx).map_or(Turn::Permit, Turn::Ticket),
            Turn::Ticket(ticket) if self.permits.fetch(ticket, cx) => Turn::Permit,
            Turn::Ticket(_) => return Poll::Pending,
        };
        self.turn = turn;
        if matches!(self.turn, Turn::Permit) { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Hands its permit over.
    #[inline]
    pub(crate) fn hand_over(&mut self) -> Permit {
        let mut permit = Permit { permits: Arc::clone(&self.permits), is_held: false };
        self.hand_to(&mut permit);
        permit
    }

    /// Hands its permit to where an earlier one was released.
    #[inline]
    pub(super) fn hand_to(&mut self, permit: &mut Permit) {
        assert!(matches!(self.turn, Turn::Permit), "a service is polled ready before it is called");
        self.turn = Turn::None;
        permit.is_held = true;
    }
}

impl Clone for Taker {
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.permits))
    }
}

impl Drop for Taker {
    fn drop(&mut self) {
        match self.turn {
            Turn::None => {}
            Turn::Ticket(ticket) => self.permits.leave(ticket),
            // A service that was polled ready and never called holds a permit, too.
            Turn::Permit => self.permits.give(),
        }
    }
}

/// The permit of an attempt, until it is released.
#[derive(Debug)]
pub(crate) struct Permit {
    permits: Arc<Permits>,
    is_held: bool,
}

impl Permit {
    #[inline]
    pub(crate) fn release(&mut self) {
        if take(&mut self.is_held) {
            self.permits.give();
        }
    }
}

impl Drop for Permit {
    #[inline]
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::Ordering::SeqCst;
    use std::time::Duration;

    use futures_util::FutureExt as _;
    use tokio::task::JoinSet;

    use super::*;

    fn takers<const N: usize>(limit: usize) -> ([Taker; N], Arc<Permits>) {
        let permits = Arc::new(Permits::new(limit));
        (std::array::from_fn(|_| Taker::new(Arc::clone(&permits))), permits)
    }

    fn has(taker: &mut Taker) -> bool {
        poll_fn(|cx| taker.poll(cx)).now_or_never().is_some()
    }

    #[test]
    fn nobody_overtakes_and_who_leaves_is_passed_over() {
        let ([mut a, mut b, mut c, mut d], permits) = takers(1);
        assert!(has(&mut a));
        assert!(![&mut b, &mut c, &mut d].into_iter().any(has));
        let mut permit = a.hand_over();
        drop(c);
        permit.release();
        assert!(!has(&mut a) && !has(&mut d), "it is granted to the first in line");
        assert!(has(&mut b));
        drop(b);
        assert!(!has(&mut a) && has(&mut d));
        drop(d);
        assert!(has(&mut a));
        drop((a, permit));
        assert_eq!(permits.state.load(SeqCst), FREE);
    }

    #[test]
    fn a_permit_that_was_granted_and_not_fetched_is_handed_on() {
        let ([mut a, mut b, mut c], permits) = takers(1);
        assert!(has(&mut a) && !has(&mut b) && !has(&mut c));
        drop(a);
        drop(b);
        assert!(has(&mut c));
        drop(c);
        assert_eq!(permits.state.load(SeqCst), FREE);
        assert!(permits.line().granted.is_empty() && permits.line().waiting.is_empty());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn under_contention_no_permit_is_lost_or_made() {
        const LIMIT: usize = 3;
        let permits = Arc::new(Permits::new(LIMIT));
        let running = Arc::new(AtomicUsize::new(0));
        let mut tasks = JoinSet::new();
        for task in 0..16_u32 {
            let mut taker = Taker::new(Arc::clone(&permits));
            let running = Arc::clone(&running);
            tasks.spawn(async move {
                for round in 0..2_000_u32 {
                    if (round + task).is_multiple_of(7) {
                        // Leaves the line, or gives back what it was granted.
                        let _ = poll_fn(|cx| taker.poll(cx)).now_or_never();
                        taker = taker.clone();
                        continue;
                    }
                    poll_fn(|cx| taker.poll(cx)).await;
                    assert!(running.fetch_add(1, SeqCst) < LIMIT);
                    if round.is_multiple_of(3) {
                        tokio::task::yield_now().await;
                    }
                    running.fetch_sub(1, SeqCst);
                    taker.hand_over().release();
                }
            });
        }
        let all = async {
            while let Some(done) = tasks.join_next().await {
                done.unwrap()
            }
        };
        tokio::time::timeout(Duration::from_secs(60), all).await.expect("somebody waits for ever");
        assert_eq!(permits.state.load(SeqCst), LIMIT * FREE);
        assert!(permits.line().granted.is_empty() && permits.line().waiting.is_empty());
    }
}

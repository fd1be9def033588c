//! Time limits of calls for a silent database.
//!
//! A server that is frozen, or a network that swallows packets, leaves connections open over which nothing comes. TCP
//! finds that out after many minutes, or never. So every wait for the server is bounded: not the whole call, which may be
//! long for good reasons, but the time in which not a byte moves. The server ends a statement that takes too long by
//! itself, earlier than that, so whoever is silent for longer is gone.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use dlq_core::StoreErrorKind;
use dlq_core::policy::duration;
use tokio::time::{Instant, sleep};

use crate::error::{Again, Fault, Result};

/// Time for which the server may be silent during long work: migrating, giving keys to all letters, looking for damage.
const LONG: Duration = Duration::from_secs(6 * 3600);

/// Factor by which a statement may take longer, and the server be silent longer, if a call is about all letters that
/// match.
pub(super) const MANY: u32 = 10;

/// Time for which the server may be silent; `None` means for ever.
#[derive(Clone, Copy, Debug)]
pub(super) struct AnswerTimeout(pub(super) Option<Duration>);

impl AnswerTimeout {
    /// For what the server is given time for.
    pub(super) fn long(self) -> Self {
        Self(self.0.map(|limit| limit.max(LONG)))
    }

    /// For calls about all letters that match.
    pub(super) fn for_many(self) -> Self {
        Self(self.0.map(|limit| limit.saturating_mul(MANY)))
    }

    /// Runs what waits for nothing but the server; gives up when that has been silent for too long. Then `work` is
    /// dropped where it stands: nobody knows what became of it, and its connection is of no more use.
    pub(super) async fn on<T>(self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let Some(limit) = self.0 else { return work.await };
        let news = Arc::new(News::default());
        // The work has a waker of its own, by which news of the server is told from other reasons to be polled.
        let waker = Waker::from(Arc::clone(&news));
        let (mut work, mut alarm) = (pin!(work), pin!(sleep(limit)));
        let mut heard = Instant::now();
        poll_fn(|context| {
            news.told_to(context.waker());
            // Whoever polls us for another reason has not heard of the server.
            if news.take() {
                heard = Instant::now();
                if let Poll::Ready(done) = work.as_mut().poll(&mut Context::from_waker(&waker)) {
                    return Poll::Ready(done);
                }
            }
            // The alarm is put off when it rings, and not at every word of the server, which spares a timer each time.
            while alarm.as_mut().poll(context).is_ready() {
                if heard.elapsed() >= limit {
                    return Poll::Ready(Err(silent(limit)));
                }
                alarm.as_mut().reset(heard + limit);
            }
            Poll::Pending
        })
        .await
    }
}

fn silent(limit: Duration) -> Fault {
    Fault::new(
        StoreErrorKind::Unavailable,
        format!(
            "the database has been silent for {}; whether it carried the call out is not known, and the call may be made \
             again; see that the server runs and that the network lets its answers through",
            duration::format(limit)
        ),
    )
    .with_again(Again::Silent)
}

/// Record that something has come from the server, and the task to wake.
#[derive(Debug)]
struct News {
    is_there: AtomicBool,
    task: Mutex<Waker>,
}

impl Default for News {
    fn default() -> Self {
        // The first poll counts as news, since it is what sends anything at all.
        Self { is_there: AtomicBool::new(true), task: Mutex::new(Waker::noop().clone()) }
    }
}

impl News {
    fn told_to(&self, waker: &Waker) {
        self.task.lock().unwrap_or_else(PoisonError::into_inner).clone_from(waker);
    }

    fn take(&self) -> bool {
        self.is_there.swap(false, Ordering::AcqRel)
    }
}

impl Wake for News {
    fn wake(self: Arc<Self>) {
        // The news is there before the task is woken, or the poll that follows would not see it.
        self.is_there.store(true, Ordering::Release);
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).clone();
        task.wake();
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::interval;

    use super::*;

    const LIMIT: AnswerTimeout = AnswerTimeout(Some(Duration::from_secs(10)));

    #[tokio::test(start_paused = true)]
    async fn a_server_that_says_a_word_now_and_then_is_waited_for() {
        let began = Instant::now();
        let slow = async {
            for _ in 0..5 {
                sleep(Duration::from_secs(9)).await;
            }
            Ok(began.elapsed().as_secs())
        };
        assert_eq!(LIMIT.on(slow).await.unwrap(), 45);
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_one_is_given_up_whoever_else_wakes_the_task() {
        let began = Instant::now();
        let mut others = interval(Duration::from_secs(1));
        let mut silent = pin!(LIMIT.on(std::future::pending::<Result<()>>()));
        let fault = loop {
            tokio::select! {
                _ = others.tick() => assert!(began.elapsed().as_secs() <= 10, "it is waited for"),
                done = &mut silent => break done.unwrap_err(),
            }
        };
        assert_eq!((fault.again(), began.elapsed().as_secs()), (Again::Silent, 10));
    }
}

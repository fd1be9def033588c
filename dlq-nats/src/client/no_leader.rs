//! Questions to a stream without a leader, as one that another process is creating: nobody answers, and the next leader does
//! not know that it was asked.

use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::time::timeout;

/// After how long, and how often, it is asked again, beside what was asked before: an answer that is slow counts too.
const AGAIN: Duration = Duration::from_secs(1);
const TIMES: u32 = 4;

/// The first answer to what may be asked as often as one likes. Nobody waits longer than the client's own patience with
/// the first question.
pub(crate) async fn asked<A: Future>(ask: impl Fn() -> A) -> A::Output {
    let mut asking = FuturesUnordered::from_iter([ask()]);
    for _ in 0..TIMES {
        if let Ok(Some(answer)) = timeout(AGAIN, asking.next()).await {
            return answer;
        }
        // The question before is kept, since a leader that is slow may still answer it.
        asking.push(ask());
    }
    match asking.next().await {
        Some(answer) => answer,
        // This cannot happen: no answer was taken out, so that at least the first question is left.
        None => ask().await,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::pending;

    use tokio::time::{Instant, sleep};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_nobody_answers_is_asked_again() {
        let times = Cell::new(0);
        let ask = || async {
            times.set(times.get() + 1);
            if times.get() < 3 { pending().await } else { times.get() }
        };
        assert_eq!(asked(ask).await, 3);
        let never = timeout(AGAIN * 60, asked(pending::<()>));
        assert!(never.await.is_err(), "in the end it is the client who gives up");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_slow_is_not_thrown_away() {
        let (times, begun) = (Cell::new(0), Instant::now());
        let ask = || async {
            times.set(times.get() + 1);
            sleep(AGAIN * 5 / 4).await;
        };
        asked(ask).await;
        assert_eq!((begun.elapsed(), times.get()), (AGAIN * 5 / 4, 2));
    }
}

//! Questions to a stream without a leader, as one that another process is creating: nobody answers, and the next leader does
//! not know that it was asked.

use std::time::Duration;

use tokio::time::timeout;

/// After how long, and how often, it is asked again, before the client's own patience begins.
const AGAIN: Duration = Duration::from_secs(1);
const TIMES: u32 = 4;

/// The answer to what may be asked as often as one likes.
pub(crate) async fn asked<A: Future>(ask: impl Fn() -> A) -> A::Output {
    for _ in 0..TIMES {
        if let Ok(answer) = timeout(AGAIN, ask()).await {
            return answer;
        }
    }
    ask().await
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::pending;

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
}

//! Lateness of retries that the server keeps until they are due.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use dlq_core::{
    Attempt, Cause, Clock as _, DelayedRetry, DeliveredFrom, Delivery, Disposition, ErrorClass,
    Failure, RetryQueue as _, Settle as _, Source as _, SystemClock, Timestamp,
};
use dlq_nats::NatsTransport;

use super::{Failed, STREAM, SUBJECT, run_with};
use crate::measure::{Size, rate};

/// Time from a failure to the next attempt.
const WAIT: Duration = Duration::from_secs(5);

pub(crate) fn run(size: Size) -> Result<(), Failed> {
    run_with(size.pick(200, 1_000), async |bench, count| {
        let orders = NatsTransport::new(STREAM).name("bench.work").subject(SUBJECT).prefetch(256);
        let queue = orders.retry_queue(bench.client(false)).await?;
        let mut source = orders.source(bench.client(false)).await?;
        let (mut due, mut late) = (BTreeMap::new(), Vec::new());
        let (began, mut failing) = (Instant::now(), Duration::ZERO);
        while late.len() < count {
            let Some((delivery, settle)) = source.next().await? else { break };
            let now = SystemClock.now();
            let letter = delivery.death("bench.work").letter;
            match due.get(&letter) {
                None if due.len() < count => {
                    let at = now.after(WAIT);
                    due.insert(letter, at);
                    queue.enqueue(failed(delivery, at)).await?;
                    failing = began.elapsed();
                }
                Some(due) if delivery.delivered_from() == DeliveredFrom::Retry => {
                    late.push(now.since(*due));
                }
                _ => {}
            }
            settle.settle(Disposition::Succeeded).await?;
        }
        late.sort();
        let at = |share: usize| late[(late.len() - 1) * share / 100].as_secs_f64() * 1e3;
        println!(
            "{count} retries after 5 s, {:.0} in a second, later than due:",
            rate(failing, count as u64)
        );
        println!(
            "  half of them {:.1} ms, 99 % {:.1} ms, the last {:.1} ms",
            at(50),
            at(99),
            at(100)
        );
        Ok(())
    })
}

fn failed(delivery: Delivery, due: Timestamp) -> DelayedRetry {
    let failure = Failure::new(ErrorClass::Transient, Cause::Error, "bench::Busy", "not yet");
    let mut history = delivery.history().clone();
    history.push(Attempt { number: 1, generation: delivery.generation(), failure });
    DelayedRetry { delivery, consumer: "bench.work".into(), due, history, attempts: 1 }
}

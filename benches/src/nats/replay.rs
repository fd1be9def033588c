//! Dead letters are sent back to where they were born. Beside the client alone, publishing messages with the same
//! headers and payload, each with an id and a confirmation.

use std::time::{Duration, Instant};

use async_nats::jetstream;
use dlq_core::{Clock as _, Filter, OperationId, SystemClock};
use dlq_nats::{DlqStream, NatsLetters, NatsReplay, NatsTarget};

use super::ours::{self, Fate};
use super::{Bench, Failed, STREAM, Shape, raw, run_on, show};
use crate::measure::Size;

pub(crate) fn run(size: Size) -> Result<(), Failed> {
    run_on(size, async |bench, count| {
        let name = bench.next_name();
        ours::consume(bench.client(false), &name, Shape::MOST, count, Fate::Death).await?;
        println!("\n{count} letters, to their origin");
        let (mut reading, mut replay, mut published) =
            (Duration::MAX, Duration::MAX, Duration::MAX);
        for round in 0..size.pick(1, 5) {
            let start = Instant::now();
            // Another reader each time: this one has read nothing yet.
            let letters = NatsLetters::new(&bench.client, DlqStream::new());
            dlq_core::store::Letters::count(&letters, Filter::new()).await?;
            reading = reading.min(start.elapsed());
            let operation = OperationId::of("bench", SystemClock.now(), round as u64);
            let again = NatsReplay::new(&letters, Filter::new(), NatsTarget::Origin, operation);
            let report = again.again().run(std::future::pending(), |_| {}).await?;
            replay = replay.min(start.elapsed());
            if usize::try_from(report.sent)? != count {
                return Err(format!("not every letter was sent: {report}").into());
            }
            published = published.min(publish(bench, count, round).await?);
        }
        show("raw, published with confirmation", published, count);
        show("replay", replay, count);
        show("  of which: reading what there is", reading, count);
        println!("ratio: {:.2}", published.as_secs_f64() / replay.as_secs_f64());
        Ok(())
    })
}

/// How long it takes to publish as many messages as the latest one.
async fn publish(bench: &Bench, count: usize, round: usize) -> Result<Duration, Failed> {
    let context = jetstream::new(bench.client.clone());
    let mut stream = context.get_stream(STREAM).await?;
    let last = stream.info().await?.state.last_sequence;
    let latest = stream.get_raw_message(last).await?;
    let start = Instant::now();
    raw::publish_like(&context, &latest, (0..count).map(|n| format!("raw.{round}.{n}"))).await?;
    Ok(start.elapsed())
}

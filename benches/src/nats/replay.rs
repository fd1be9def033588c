//! Sending letters back to their origin, beside the client alone, which publishes the same messages and awaits the
//! confirmation of each, many at once.

use std::time::{Duration, Instant};

use async_nats::jetstream;
use dlq_core::log::Range;
use dlq_core::store::Letters as _;
use dlq_core::{Filter, OperationId, Timestamp};
use dlq_nats::{DlqStream, NatsLetters, NatsReplay, NatsTarget, Reading};

use super::ours::{self, Fate, WRITERS};
use super::{Bench, Failed, STREAM, Shape, create, raw, run_on, show};
use crate::measure::Size;

pub(crate) fn run(size: Size) -> Result<(), Failed> {
    run_on(size, async |bench, count| {
        let name = bench.next_name();
        let client = bench.client(false);
        ours::consume(client, &name, Shape::MORE, count, Fate::Death, WRITERS, false).await?;
        println!("{count} letters");
        let mut read = Duration::MAX;
        let mut sent = Duration::MAX;
        let mut raw_read = Duration::MAX;
        let mut published = Duration::MAX;
        for _ in 0..size.pick(1, 3) {
            let (reading, sending) = once(bench, count).await?;
            read = reading.min(read);
            sent = sending.min(sent);
            raw_read = raw::read_letters(bench.client(false), count).await?.min(raw_read);
            published = raw_once(bench, count).await?.min(published);
        }
        show("reading the stream of letters", read, count);
        show("sending them to their origin", sent, count);
        show("raw: the stream read, and nothing made of it", raw_read, count);
        show("raw: the same messages published", published, count);
        let ratio = |raw: Duration, ours: Duration| raw.as_secs_f64() / ours.as_secs_f64();
        println!("ratio of sending: {:.2}", ratio(published, sent));
        println!("ratio of reading: {:.2}", ratio(raw_read, read));
        println!("ratio of both: {:.2}", ratio(raw_read + published, read + sent));
        println!("ratio of both to publishing alone: {:.2}", ratio(published, read + sent));
        Ok(())
    })
}

/// Measures reading the letters, and then sending them. The origin is empty, and there is no ledger.
async fn once(bench: &mut Bench, count: usize) -> Result<(Duration, Duration), Failed> {
    bench.empty().await?;
    let client = bench.client(false).clone();
    let letters = NatsLetters::new(&client, DlqStream::new()).ledger(bench.next_name());
    let start = Instant::now();
    let reading = Reading::of(letters.clone(), Range::all()).await?;
    let found = reading.count(Filter::new()).await?;
    let read = start.elapsed();
    if usize::try_from(found)? != count {
        return Err(format!("{found} letters were found, {count} were written").into());
    }
    let operation = OperationId::of("bench", Timestamp::EPOCH, bench.rounds.into());
    let replay = NatsReplay::new(&letters, Filter::new(), NatsTarget::Origin, operation);
    // It is read once more here, and not again below.
    drop(reading);
    let _ = replay.plan().await?;
    let start = Instant::now();
    let report = replay.run(std::future::pending(), |_| {}).await?;
    let sent = start.elapsed();
    if usize::try_from(report.sent)? != count {
        return Err(format!("not every letter was sent: {report}").into());
    }
    Ok((read, sent))
}

/// Measures publishing messages with headers as those that were sent last.
async fn raw_once(bench: &mut Bench, count: usize) -> Result<Duration, Failed> {
    let context = jetstream::new(bench.client(false).clone());
    let stream = context.get_stream(STREAM).await?;
    let last = stream.get_last_raw_message_by_subject(">").await?;
    bench.empty().await?;
    let name = bench.next_name();
    let start = Instant::now();
    let messages = (0..count).map(|number| {
        let mut headers = last.headers.clone();
        headers.insert("Nats-Msg-Id", format!("{name}.{number}"));
        (headers, last.payload.clone())
    });
    raw::publish(&context, messages).await?;
    Ok(start.elapsed())
}

impl Bench {
    /// Makes the stream anew, which then knows no message and no id.
    async fn empty(&self) -> Result<(), Failed> {
        let context = jetstream::new(self.client.clone());
        context.delete_stream(STREAM).await?;
        create(&context).await
    }
}

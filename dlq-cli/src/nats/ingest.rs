use std::future::pending;
use std::process::ExitCode;

use dlq_core::log::Log as _;
use dlq_nats::NatsLetters;

use super::Broker;
use crate::broker::{self, IngestRun, Telling};
use crate::cli::IngestArgs;
use crate::error::CliError;
use crate::output::Output;

/// The durable consumer, unless another is named.
const DURABLE: &str = "dlq-ingest";

/// Drains the stream of dead letters into a store.
pub(super) async fn run(
    at: &Broker,
    out: &mut Output,
    args: IngestArgs,
) -> Result<ExitCode, CliError> {
    // A file or receiver that cannot be used ends the command before anything is taken from the stream.
    let telling = Telling::open(&args)?;
    let durable = args.durable.as_deref().unwrap_or(DURABLE);
    let stream = at.permitted(at.letters()).await?;
    // They are asked for before the store is opened, which creates it: see `broker::store`.
    let marks = at.permitted(at.marks(&stream)).await?;
    let into = broker::store(&args, &marks, &at.shown, durable).await?;
    let letters = NatsLetters::new(&at.context, stream).consumer(durable);
    // While one batch is written to the store the next one arrives.
    let letters = letters.prefetch(args.batch.saturating_mul(2));
    let letters = if args.once { letters.until_end() } else { letters };
    let opening = async { Ok(letters.follow(into.name.clone(), args.lease).await?) };
    let feed = at.permitted(opening).await?;
    if feed.missed() > 0 {
        say!(
            "warning: up to {} letters were removed from stream `{}` before `{durable}` had read them; they are not in the store. \
             Keep letters for longer (`max_age` of the stream), or let this run all the time",
            feed.missed(),
            at.stream
        );
    }
    // Who stays waits until the right is there again; each refusal is told.
    let refused = async { if args.once { at.refused().await } else { pending().await } };
    let ingest = IngestRun { args: &args, shown: &at.shown, into, telling };
    ingest.run(feed, refused, out).await
}

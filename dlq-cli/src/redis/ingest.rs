use std::future::pending;
use std::process::ExitCode;

use dlq_core::log::Log as _;

use super::Broker;
use crate::broker::{self, IngestRun, Telling};
use crate::cli::IngestArgs;
use crate::error::CliError;
use crate::output::Output;

/// The follower, unless another is named.
const FOLLOWER: &str = "dlq-ingest";

/// Drains the stream of dead letters into a store.
pub(super) async fn run(
    at: &Broker,
    out: &mut Output,
    args: IngestArgs,
) -> Result<ExitCode, CliError> {
    let telling = Telling::open(&args)?;
    let follower = args.durable.as_deref().unwrap_or(FOLLOWER);
    let marks = at.marks().await?;
    let into = broker::store(&args, &marks, &at.shown, follower).await?;
    let letters = at.letters.clone().follower(follower);
    let letters = if args.once { letters.until_end() } else { letters };
    let feed = letters.follow(into.name.clone(), args.lease).await;
    let feed = feed.map_err(|error| at.failed(error))?;
    let ingest = IngestRun { args: &args, shown: &at.shown, into, telling };
    ingest.run(feed, pending(), out).await
}

use std::process::ExitCode;
use std::time::Duration;

use dlq_core::log::Log as _;
use dlq_kafka::KafkaLetters;

use super::Broker;
use crate::broker::{self, Telling};
use crate::cli::IngestArgs;
use crate::error::CliError;
use crate::output::Output;

/// For how long `--once` waits for a message whose partition alone is away. The ingest gives the topic up after three times
/// as long, and must not before the letter is set aside.
const AWAY: Duration = Duration::from_secs(10);

/// Drains the topic of dead letters into a store.
pub(super) async fn run(
    at: &Broker,
    out: &mut Output,
    args: IngestArgs,
) -> Result<ExitCode, CliError> {
    let telling = Telling::open(&args)?;
    let group = args.durable.clone().unwrap_or_else(|| KafkaLetters::group_of(&at.topic));
    let log = at.log().group(&*group);
    let mark = at.mark_of(&log).await?;
    let into = broker::store(&args, mark.as_slice(), &at.shown, &group).await?;
    let log = if args.once { log.until_end().patience(AWAY) } else { log };
    let entries = log.follow(into.name.clone(), args.lease).await;
    let entries = entries.map_err(|error| at.failed(error))?;
    broker::drain(entries, into, telling, &at.shown, out, &args, std::future::pending()).await
}

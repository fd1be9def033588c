use std::process::ExitCode;
use std::time::Duration;

use dlq_kafka::KafkaFeed;

use super::Broker;
use crate::broker::{self, Telling};
use crate::cli::IngestArgs;
use crate::error::CliError;
use crate::output::Output;

/// For how long `--once` waits for a message whose partition alone is away. The ingest gives up the feed after
/// three times as long, and must not before the letter is set aside.
const AWAY: Duration = Duration::from_secs(10);

/// Drains the topic of dead letters into a store.
pub(super) async fn run(
    at: &Broker,
    out: &mut Output,
    args: IngestArgs,
) -> Result<ExitCode, CliError> {
    let telling = Telling::open(&args)?;
    let group = args.durable.clone().unwrap_or_else(|| KafkaFeed::group_of(&at.topic));
    let mark = at.mark_of(&group).await?;
    let into = broker::store(&args, mark.as_slice(), &at.shown, &group).await?;
    let feed = KafkaFeed::open(&at.brokers, &at.topic, &group, &into.name, args.lease).await;
    let feed = feed.map_err(|error| at.failed(error))?;
    let feed = if args.once { feed.until_end().with_patience(AWAY) } else { feed };
    broker::drain(feed, into, telling, &at.shown, out, &args, std::future::pending()).await
}

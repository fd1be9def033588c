use std::process::ExitCode;
use std::time::Duration;

use dlq_core::log::Log as _;
use dlq_kafka::KafkaLetters;

use super::Broker;
use crate::broker::{self, IngestRun, Telling};
use crate::cli::IngestArgs;
use crate::error::CliError;
use crate::output::Output;

/// Time that `--once` waits for the message of a letter that only points to it, while the partition of that message
/// does not respond. Then the letter is set aside. Has to be well below the 30 s after which an ingest gives up on
/// the topic: otherwise one unreachable message would end the ingest instead of setting one letter aside.
const POINTED_MESSAGE_WAIT: Duration = Duration::from_secs(10);

/// Copies the dead letters of a topic into a store, until the process is asked to stop or, with `--once`, the topic is
/// read.
pub(super) async fn run(
    at: &Broker,
    out: &mut Output,
    args: IngestArgs,
) -> Result<ExitCode, CliError> {
    let telling = Telling::open(&args)?;
    let group = args.durable.clone().unwrap_or_else(|| KafkaLetters::group_of(&at.topic));
    let log = at.log().group(&*group);
    // The mark of this group alone is read: those of others cost a look at all groups of the cluster.
    let mark = at.mark_of(&log).await?;
    let into = broker::store(&args, mark.as_slice(), &at.shown, &group).await?;
    // An ingest that runs on waits for the partition: setting a letter aside is for one that has to come to its end.
    let log = if args.once { log.until_end().message_timeout(POINTED_MESSAGE_WAIT) } else { log };
    let entries = log.follow(into.name.clone(), args.lease).await;
    let entries = entries.map_err(|error| at.failed(error))?;
    let ingest = IngestRun { args: &args, shown: &at.shown, into, telling };
    ingest.run(entries, std::future::pending(), out).await
}

//! Verbs at Kafka.

mod check;
mod connect;
mod ingest;
mod replay;
mod serve;
mod settings;
mod url;

pub(crate) use connect::Broker;
pub(crate) use serve::Measured;

use std::process::ExitCode;

use dlq_admin::PlannedReplay;
use dlq_core::log::Range;
use dlq_kafka::Ladder;

use crate::broker::{self, Asked, Mark, Read};
use crate::cli::{Command, LadderArgs};
use crate::error::CliError;
use crate::output::Output;

/// Runs a verb there.
pub(crate) async fn run(
    at: &Broker,
    mut out: Output,
    mut command: Command,
) -> Result<ExitCode, CliError> {
    broker::refuse_held(&mut command)?;
    // Elsewhere the filter refuses these options, so they are taken out of it here.
    let at_kafka = command.filter().map(|filter| filter.take_at_kafka());
    let at_kafka = at_kafka.unwrap_or_default();
    let exit = match command {
        Command::Ingest(args) => ingest::run(at, &mut out, args).await?,
        Command::Check(args) => check::run(at, &mut out, args.at_broker).await?,
        Command::Replay(args) => replay::run(at, &mut out, &at_kafka, *args).await?,
        #[cfg(feature = "nats")]
        Command::Route(_) => {
            return Err(CliError::refused(format!(
                "`dlq route` is for consumers of NATS JetStream, and {} is Kafka, which gives no message up itself",
                at.shown
            )));
        }
        command if broker::changes(&command) => {
            let marks = at.marks().await?;
            return Err(Mark::no_changes(&marks, &at.shown, command.name()));
        }
        mut command => {
            at.find().await?;
            let log = at.log();
            let offsets = log.offsets().await.map_err(|error| at.failed(error))?;
            let kept = connect::range(&at_kafka);
            if let Some(unknown) = at_kafka.partition.iter().find(|of| !offsets.contains_key(of)) {
                return Err(CliError::refused(format!(
                    "{} has no partition {unknown}; it has {}, from 0",
                    at.shown,
                    offsets.len()
                )));
            }
            let messages: Vec<u64> = offsets.into_values().collect();
            let range = broker::range(&mut command, &messages);
            if range == Range::all() {
                broker::say_cost(&at.shown, messages.iter().sum(), None);
            }
            // Letters are sifted after the reading: a later death may stand outside of the offsets.
            let read = broker::read_kept(log, range, |row| kept.includes(row)).await?;
            return broker::look(read.letters.clone(), out, &at.shown, command).await;
        }
    };
    out.end(exit)
}

/// Reads every letter of the topic.
pub(crate) async fn read_all(at: &Broker) -> Result<Read, CliError> {
    at.find().await?;
    broker::read(at.log(), Range::all()).await.map_err(|error| error.about(&at.shown))
}

/// Plans a replay that somebody asks for in the console.
pub(crate) async fn plan(at: Broker, asked: Asked) -> Result<PlannedReplay, CliError> {
    replay::in_console(at, asked).await
}

/// The ledger by which brokers know what senders of a store have sent, unless the URL names another.
const OUTBOX: &str = "dlq.outbox";

/// The outbox of a cluster: `kafka://HOST[:PORT][/LEDGER]`.
pub(crate) async fn outbox(
    rest: &str,
    args: &crate::cli::BrokerArgs,
) -> Result<dlq_kafka::KafkaOutbox, CliError> {
    let has_topic = rest.split_once('/').is_some_and(|(_, topic)| !topic.is_empty());
    let rest = if has_topic {
        rest.to_owned()
    } else {
        format!("{}/{OUTBOX}", rest.trim_end_matches('/'))
    };
    let url = url::KafkaUrl::parse(&rest)?;
    let brokers = settings::brokers(&url, args)?;
    Ok(dlq_kafka::KafkaOutbox::open(&brokers, &*url.topic).await?)
}

/// The retry topics that consumers have.
fn ladder(args: &LadderArgs) -> Ladder {
    Ladder::of(args.ladder.iter().copied()).names(&args.ladder_names)
}

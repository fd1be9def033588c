//! Verbs at NATS JetStream.

mod check;
mod connect;
mod ingest;
mod replay;
mod route;
mod serve;
mod url;

pub(crate) use connect::Broker;
pub(crate) use serve::Measured;

use std::process::ExitCode;

use dlq_admin::PlannedReplay;
use dlq_core::log::Range;
use dlq_nats::NatsLetters;

use crate::broker::{self, Asked, Mark, Read};
use crate::cli::Command;
use crate::error::CliError;
use crate::output::Output;

/// Runs a verb there.
pub(crate) async fn run(
    at: &Broker,
    mut out: Output,
    mut command: Command,
) -> Result<ExitCode, CliError> {
    broker::refuse_held(&mut command)?;
    let exit = match command {
        Command::Ingest(args) => ingest::run(at, &mut out, args).await?,
        Command::Check(args) => check::run(at, &mut out, args.at_broker).await?,
        Command::Replay(args) => replay::run(at, &mut out, *args).await?,
        Command::Route(args) => route::run(at, &mut out, args).await?,
        mut command => {
            let looking = async {
                let stream = at.letters().await?;
                // The error names the store that the letters go into, so the marks are read even though nothing is done.
                if broker::changes(&command) {
                    let marks = at.marks(&stream).await?;
                    return Err(Mark::no_changes(&marks, &at.shown, command.name()));
                }
                let (messages, bytes) = at.queue_depth().await?;
                let mut range = broker::range(&mut command, &[messages]);
                let has_payloads = !broker::needs_headers_only(&command);
                if range == Range::all() {
                    broker::say_cost(&at.shown, messages, has_payloads.then_some(bytes));
                }
                // The server does not send payloads that the verb does not show.
                if !has_payloads {
                    range = range.headers_only();
                }
                let read = broker::read(NatsLetters::new(&at.context, stream), range).await?;
                broker::look(read.letters.clone(), out, &at.shown, command).await
            };
            // A right may be lacking at any step, so all of them are watched together.
            return at.permitted(looking).await;
        }
    };
    out.end(exit)
}

/// Reads every letter of the stream, with payloads.
pub(crate) async fn read_all(at: &Broker) -> Result<Read, CliError> {
    let reading = async {
        let letters = NatsLetters::new(&at.context, at.letters().await?);
        broker::read(letters, Range::all()).await
    };
    at.permitted(reading).await
}

/// Plans a replay that somebody asks for in the console.
pub(crate) async fn plan(at: Broker, asked: Asked) -> Result<PlannedReplay, CliError> {
    replay::in_console(at, asked).await
}

/// Refuses a URL that names no stream.
pub(crate) fn check_url(scheme: &str, rest: &str) -> Result<(), CliError> {
    url::NatsUrl::parse(scheme, rest).map(drop)
}

/// The outbox of a cluster.
pub(crate) async fn outbox(
    scheme: &str,
    rest: &str,
    shown: String,
    args: &crate::cli::BrokerArgs,
    alias: &str,
) -> Result<dlq_nats::NatsOutbox, CliError> {
    let at = Broker::connect(scheme, rest, shown, args).await?;
    let outbox = dlq_nats::NatsOutbox::new(&at.context).cluster(alias);
    Ok(match at.key {
        Some(key) => outbox.binding_key(key),
        None => outbox,
    })
}

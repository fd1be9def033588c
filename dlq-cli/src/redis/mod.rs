//! Redis and Valkey: a store, and the dead letters in a stream.

mod broker;
mod foreign;
mod import;
mod ingest;
mod replay;
mod serve;
mod store;
mod url;

pub(crate) use broker::{Broker, outbox};
pub(crate) use import::run as import;
pub(crate) use serve::Measured;
pub(crate) use store::{builder, is_store, not_opened};

use std::process::ExitCode;

use dlq_admin::PlannedReplay;
use dlq_core::log::Range;

use crate::broker::{self as at_broker, Asked, Mark, Read};
use crate::broker::{range, read, refuse_held, say_cost};
use crate::cli::Command;
use crate::commands::show_findings;
use crate::error::CliError;
use crate::output::Output;

/// Reads every letter of the stream, or of the other library that writes there.
pub(crate) async fn read_all(at: &Broker) -> Result<Read, CliError> {
    let read = match &at.foreign {
        Some(letters) => read(letters.clone(), Range::all()).await,
        None => read(at.letters.clone(), Range::all()).await,
    };
    read.map_err(|error| error.about(&at.shown))
}

/// Plans a replay that somebody asks for in the console.
pub(crate) async fn plan(at: Broker, asked: Asked) -> Result<PlannedReplay, CliError> {
    match &at.foreign {
        Some(letters) => foreign::in_console(letters, &at.shown, asked).await,
        None => replay::in_console(at, asked).await,
    }
}

/// Refuses a URL that names no stream.
pub(crate) fn check_url(scheme: &str, rest: &str) -> Result<(), CliError> {
    let url = url::RedisUrl::parse(scheme, rest)?;
    if url.key.is_empty() {
        Err(broker::no_stream(
            scheme,
            &crate::secret::without_password(&format!("{scheme}://{rest}")),
        ))
    } else {
        Ok(())
    }
}

/// Runs a verb at a stream of dead letters.
pub(crate) async fn run(
    at: &Broker,
    mut out: Output,
    mut command: Command,
) -> Result<ExitCode, CliError> {
    refuse_held(&mut command)?;
    if let Command::Check(args) = &command
        && args.at_broker.is_given()
    {
        return Err(CliError::refused(format!(
            "--stream, --consumer and --deployment are of NATS and Kafka, and {} is Redis; leave them out",
            at.shown
        )));
    }
    #[cfg(feature = "nats")]
    if matches!(command, Command::Route(_)) {
        return Err(CliError::refused(format!(
            "`dlq route` is for consumers of NATS JetStream, and {} is Redis, which gives no message up itself",
            at.shown
        )));
    }
    // Letters of other libraries have verbs of their own, behind the refusals that hold for both.
    if let Some(letters) = &at.foreign {
        return foreign::run(letters, &at.shown, out, command).await;
    }
    let exit = match command {
        Command::Ingest(args) => ingest::run(at, &mut out, args).await?,
        Command::Replay(args) => replay::run(at, &mut out, *args).await?,
        Command::Check(_) => {
            let entries = at.letters.entries().await.map_err(|error| at.failed(error))?;
            say_cost(&at.shown, entries, None);
            let findings = at.letters.check().await.map_err(|error| at.failed(error))?;
            show_findings(&mut out, &at.shown, &findings)?
        }
        mut command => {
            if at_broker::changes(&command) {
                return Err(Mark::no_changes(&at.marks().await?, &at.shown, command.name()));
            }
            let entries = at.letters.entries().await.map_err(|error| at.failed(error))?;
            let range = range(&mut command, &[entries]);
            if range == Range::all() {
                say_cost(&at.shown, entries, None);
            }
            let read = read(at.letters.clone(), range).await;
            let read = read.map_err(|error| error.about(&at.shown))?;
            return at_broker::look(read.letters.clone(), out, &at.shown, command).await;
        }
    };
    out.end(exit)
}

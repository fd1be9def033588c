//! Redis and Valkey: a store, and the dead letters in a stream.

mod broker;
mod ingest;
mod replay;
mod store;
mod url;

pub(crate) use broker::{Broker, outbox};
pub(crate) use store::{builder, is_store};

use std::process::ExitCode;

use dlq_core::log::Range;

use crate::broker::{self as at_broker, Mark};
use crate::broker::{range, read, refuse_held, say_cost};
use crate::cli::Command;
use crate::error::CliError;
use crate::output::Output;

/// Runs a verb at a stream of dead letters.
pub(crate) async fn run(
    at: &Broker,
    mut out: Output,
    mut command: Command,
) -> Result<ExitCode, CliError> {
    refuse_held(&mut command)?;
    let exit = match command {
        Command::Ingest(args) => ingest::run(at, &mut out, args).await?,
        Command::Replay(args) => replay::run(at, &mut out, *args).await?,
        Command::Check(_) => {
            return Err(CliError::refused(format!(
                "`dlq check` has nothing to look for at {}: whatever connects refuses a server that evicts keys; check the \
                 store that the letters go into: dlq check --from redis-store://HOST",
                at.shown
            )));
        }
        #[cfg(feature = "nats")]
        Command::Route(_) => {
            return Err(CliError::refused(format!(
                "`dlq route` is for consumers of NATS JetStream, and {} is Redis, which gives no message up itself",
                at.shown
            )));
        }
        mut command => {
            if at_broker::changes(&command) {
                return Err(Mark::no_changes(&at.marks().await?, &at.shown, command.name()));
            }
            let entries = at.letters.entries().await.map_err(|error| at.failed(error))?;
            let range = range(&mut command, entries);
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

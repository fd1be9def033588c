//! What the verbs do at NATS JetStream.

mod check;
mod connect;
mod ingest;
mod replay;
mod route;
mod url;

pub(crate) use connect::Broker;

use std::process::ExitCode;

use dlq_core::store::BoxLetters;
use dlq_nats::NatsLetters;

use crate::cli::Command;
use crate::commands::{self, Context};
use crate::error::CliError;
use crate::output::Output;

/// Runs a verb there.
pub(crate) async fn run(
    broker: &Broker,
    mut out: Output,
    command: Command,
) -> Result<ExitCode, CliError> {
    let exit = match command {
        Command::Ingest(args) => ingest::run(broker, &mut out, args).await?,
        Command::Check(args) => check::run(broker, &mut out, args).await?,
        Command::Replay(args) => replay::run(broker, &mut out, args).await?,
        Command::Route(args) => route::run(broker, &mut out, args).await?,
        command => {
            let looking = async {
                let stream = broker.letters().await?;
                if matches!(command, Command::Op { .. } | Command::Mark(_) | Command::Delete(_)) {
                    return Err(broker.no_changes(command.name(), &stream).await);
                }
                let letters = BoxLetters::new(NatsLetters::new(&broker.context, stream));
                let mut context = Context { letters, out, target: broker.shown.clone() };
                let exit = commands::look(&mut context, command).await?;
                context.out.flush()?;
                Ok(exit)
            };
            return broker.permitted(looking).await;
        }
    };
    out.flush()?;
    Ok(exit)
}

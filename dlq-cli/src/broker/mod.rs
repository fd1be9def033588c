//! What the verbs do at any broker; what differs stands in a folder for each.

mod alert;
mod deployment;
mod incidents;
mod ingest;
mod login;
mod mark;
mod replay;

pub(crate) use deployment::read_deployment;
pub(crate) use ingest::{Telling, drain, store};
pub(crate) use login::percent_decode;
pub(crate) use mark::Mark;
pub(crate) use replay::{Replaying, operation, per_second, refuse_held, refuse_what_stores_take};

use std::process::ExitCode;

use dlq_core::store::BoxLetters;

use crate::cli::Command;
use crate::commands::{self, Context};
use crate::error::CliError;
use crate::output::Output;

/// Whether a verb changes letters in ways that only a store can.
pub(crate) fn changes(command: &Command) -> bool {
    matches!(
        command,
        Command::Op { .. }
            | Command::Mark(_)
            | Command::Delete(_)
            | Command::Edit(_)
            | Command::Cleanup(_)
            | Command::Import(_)
    )
}

/// The verbs that only look.
pub(crate) async fn look(
    letters: BoxLetters,
    out: Output,
    shown: &str,
    command: Command,
) -> Result<ExitCode, CliError> {
    let mut context = Context { letters, out, target: shown.to_owned() };
    let exit = commands::look(&mut context, command).await?;
    context.out.flush()?;
    Ok(exit)
}

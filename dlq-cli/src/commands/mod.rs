//! One file per verb.

mod delete;
mod export;
mod groups;
mod list;
mod mark;
mod op;
mod peek;
mod replay;
mod show;
mod stats;

use std::process::ExitCode;

use dlq_core::DeadLetters;

use crate::cli::{Cli, Command};
use crate::error::CliError;
use crate::output::Output;

/// What every verb works with.
pub(crate) struct Context {
    pub(crate) letters: DeadLetters,
    pub(crate) out: Output,
    /// The URL, fit to be shown.
    pub(crate) target: String,
}

/// Exit code 3: some items failed or were skipped.
const PARTIAL: u8 = 3;

/// Opens what is asked for and runs the verb.
pub(crate) async fn run(cli: Cli) -> Result<ExitCode, CliError> {
    let letters = crate::open::open(cli.from.as_deref()).await?;
    let target = crate::open::without_password(cli.from.as_deref().unwrap_or_default());
    let mut context = Context { letters, out: Output::new(cli.output), target };
    let exit = match cli.command {
        Command::List(args) => list::run(&mut context, args).await,
        Command::Show(args) => show::run(&mut context, args).await,
        Command::Groups(args) => groups::run(&mut context, args).await,
        Command::Stats(args) => stats::run(&mut context, args).await,
        Command::Peek(args) => peek::run(&mut context, args).await,
        Command::Replay(args) => replay::run(&mut context, args).await,
        Command::Op { command } => op::run(&mut context, command).await,
        Command::Mark(args) => mark::run(&mut context, args).await,
        Command::Delete(args) => delete::run(&mut context, args).await,
        Command::Export(args) => export::run(&mut context, args).await,
    }?;
    context.out.flush()?;
    Ok(exit)
}

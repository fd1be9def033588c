use std::process::ExitCode;

use super::Broker;
use crate::broker::Mark;
use crate::cli::ReplayArgs;
use crate::error::CliError;
use crate::output::Output;

/// Refuses to send letters of a stream back, and says how they are sent from a store.
pub(super) async fn run(
    at: &Broker,
    _: &mut Output,
    args: ReplayArgs,
) -> Result<ExitCode, CliError> {
    Mark::refuse_kept(&at.marks().await?, &at.shown)?;
    Err(CliError::refused(format!(
        "letters of {} cannot be sent from the stream; ingest first: dlq ingest --once --from '{}' --into sqlite://dlq.db, then: \
         dlq replay --from sqlite://dlq.db --to {} --via redis://HOST:PORT",
        at.shown, at.shown, args.to
    )))
}

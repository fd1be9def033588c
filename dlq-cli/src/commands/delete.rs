use std::process::ExitCode;

use dlq_core::DeadLetters;

use super::{Context, mark};
use crate::ask;
use crate::cli::DeleteArgs;
use crate::error::CliError;

pub(super) async fn run(
    context: &mut Context,
    store: &DeadLetters,
    args: DeleteArgs,
) -> Result<ExitCode, CliError> {
    let Some(selection) = mark::select(context, args.filter, &args.change, "delete").await? else {
        return Ok(ExitCode::SUCCESS);
    };
    let deleted = store.delete(selection, ask::actor(args.change.note.as_deref())).await?;
    mark::finish(context, "deleted", deleted)
}

use std::process::ExitCode;

use super::{Context, mark};
use crate::ask;
use crate::cli::DeleteArgs;
use crate::error::CliError;

pub(super) async fn run(context: &mut Context, args: DeleteArgs) -> Result<ExitCode, CliError> {
    let Some(selection) = mark::select(context, args.filter, &args.change, "delete").await? else {
        return Ok(ExitCode::SUCCESS);
    };
    let deleted =
        context.letters.delete(selection, ask::actor(args.change.note.as_deref())).await?;
    mark::finish(context, "deleted", deleted)
}

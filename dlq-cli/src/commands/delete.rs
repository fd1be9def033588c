use std::process::ExitCode;

use dlq_core::DeadLetters;
use dlq_core::store::Letters as _;

use super::{Context, mark};
use crate::ask;
use crate::cli::DeleteArgs;
use crate::error::CliError;
use crate::output::Progress;

pub(super) async fn run(
    context: &mut Context,
    store: &DeadLetters,
    args: DeleteArgs,
) -> Result<ExitCode, CliError> {
    let Some(selection) = mark::select(context, args.filter, &args.change, "delete").await? else {
        return Ok(ExitCode::SUCCESS);
    };
    let (letters, filter) = (context.letters.clone(), selection.filter().clone());
    let total = letters.count(filter.clone()).await?;
    let delete = store.delete(selection, ask::actor(args.change.note.as_deref()));
    let left = async || letters.count(filter.clone()).await.ok();
    let deleted = Progress::of(total, "letters").during(delete, left).await?;
    mark::finish(context, "deleted", deleted)
}

use std::process::ExitCode;

use dlq_core::store::{Letters as _, OperationSpec};
use dlq_core::{DeadLetters, Filter, Status};

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
    let held = async |filter: &Filter| tell_held(store, filter).await;
    let Some(selection) = mark::select(context, args.filter, &args.change, "delete", held).await?
    else {
        return Ok(ExitCode::SUCCESS);
    };
    let (letters, filter) = (context.letters.clone(), selection.filter().clone());
    let total = letters.count(filter.clone()).await?;
    let delete = store.delete(selection, ask::actor(args.change.note.as_deref()));
    let left = async || letters.count(filter.clone()).await.ok();
    let deleted = Progress::of(total, "letters").during(delete, left).await?;
    mark::finish(context, "deleted", deleted)
}

/// Says how many of the letters an operation holds, such as one that is paused: those it does not send any more.
async fn tell_held(store: &DeadLetters, filter: &Filter) -> Result<(), CliError> {
    let held = store.plan(OperationSpec::replay(filter.clone())).await?.ineligible;
    if let Some(held) = held.get(&Status::Pending) {
        say!("{held} of them are held by an operation, which will skip them: dlq op list");
    }
    Ok(())
}

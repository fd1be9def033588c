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
    let is_refused = !args.change.dry_run;
    let look = async |filter: &Filter, count| {
        // A dry run says how many there would be; that they are too many is no reason not to say so.
        if is_refused {
            within(args.max, count)?;
        }
        tell_held(store, filter).await
    };
    let verb = if args.for_good { "delete for good" } else { "delete" };
    let selected = mark::select(context, args.filter, &args.change, verb, look);
    let Some(selection) = selected.await? else { return Ok(ExitCode::SUCCESS) };
    let (letters, filter) = (context.letters.clone(), selection.filter().clone());
    // It is counted once more after the question, for which somebody may have thought for long.
    let total = letters.count(filter.clone()).await?;
    let by = ask::actor(args.change.note.as_deref());
    let delete = async {
        if args.for_good {
            store.delete_for_good(selection, by).await
        } else {
            store.delete(selection, by).await
        }
    };
    let left = async || letters.count(filter.clone()).await.ok();
    let deleted = Progress::of(total, "letters").during(delete, left).await?;
    let exit = mark::finish(context, "deleted", deleted)?;
    if deleted.changed > 0 && !args.for_good {
        context.out.flush()?;
        say!("they can be restored until a cleanup empties the archive: dlq restore --list");
    }
    Ok(exit)
}

/// Refuses to delete more letters than were allowed: a filter that means more than was thought is noticed before they are gone.
pub(super) fn within(max: u64, count: u64) -> Result<(), CliError> {
    if max == 0 || count <= max {
        return Ok(());
    }
    Err(CliError::refused(format!(
        "{count} letters would be deleted, and {max} at most are deleted at once; narrow the filter, or say --max {count}"
    )))
}

/// Says how many of the letters an operation holds, such as one that is paused: those it does not send any more.
pub(super) async fn tell_held(store: &DeadLetters, filter: &Filter) -> Result<(), CliError> {
    // A plan changes nothing, and is the one question to which a store answers with what an operation holds.
    let held = store.plan(OperationSpec::replay(filter.clone())).await?.ineligible;
    if let Some(held) = held.get(&Status::Pending) {
        say!("{held} of them are held by an operation, which will skip them: dlq op list");
    }
    Ok(())
}

use std::process::ExitCode;

use dlq_core::store::{Letters as _, Maintenance as _, Marked};
use dlq_core::{DeadLetters, Filter};

use super::{Context, PARTIAL, list};
use crate::ask;
use crate::cli::{ChangeArgs, MarkArgs};
use crate::error::CliError;
use crate::filter::{FilterArgs, must_exist, until_now};
use crate::output::Progress;
use dlq_core::PageRequest;
use dlq_core::store::Selection;

pub(super) async fn run(
    context: &mut Context,
    store: &DeadLetters,
    args: MarkArgs,
) -> Result<ExitCode, CliError> {
    let verb = format!("mark as {}", args.mark);
    let nothing_else = async |_: &Filter, _| Ok(());
    let selected = select(context, args.filter, &args.change, &verb, nothing_else);
    let Some(selection) = selected.await? else { return Ok(ExitCode::SUCCESS) };
    let by = ask::actor(args.change.note.as_deref());
    let mark = store.store().mark(selection, args.mark, by);
    let marked = Progress::busy("marking letters").during(mark, async || None).await?;
    finish(context, &format!("marked {}", args.mark), marked)
}

/// Returns what a destructive verb is about, after the dry run or the question; `None` when there is nothing to do. `say_more`
/// has the word once it is said how many letters match, and may refuse.
pub(super) async fn select(
    context: &mut Context,
    filter: FilterArgs,
    change: &ChangeArgs,
    verb: &str,
    say_more: impl AsyncFn(&Filter, u64) -> Result<(), CliError>,
) -> Result<Option<Selection>, CliError> {
    let filter = filter.resolve(&context.letters).await?;
    let selection = if change.all && filter.is_empty() {
        Selection::all()
    } else {
        Selection::matching(filter.clone())?
    };
    must_exist(&context.letters, &context.target, &filter).await?;
    // What comes while the operator looks and thinks is not what they agree to.
    // With an end in time the filter of --all is not empty any more, so that it passes here as well.
    let selection = Selection::matching(until_now(context, selection.filter().clone()).await?)?;
    let count = context.letters.count(filter.clone()).await?;
    say!("{count} letters match in {}", context.target);
    if count > 0 {
        say_more(&filter, count).await?;
    }
    if change.dry_run {
        let sample = context.letters.list(filter, PageRequest::new().limit(10)).await?.letters;
        if context.out.is_table() {
            if !sample.is_empty() {
                context.out.table(&list::table(&sample))?;
            }
        } else {
            context.out.document(&serde_json::json!({ "count": count, "sample": sample }))?;
        }
        say!("dry run: nothing was changed");
        return Ok(None);
    }
    if count == 0 {
        say!("nothing to do");
        if !context.out.is_table() {
            context.out.document(&Marked::default())?;
        }
        return Ok(None);
    }
    ask::confirm(change, verb, count)?;
    Ok(Some(selection))
}

/// Says what was done; exit code 3 when letters were skipped.
pub(super) fn finish(
    context: &mut Context,
    done: &str,
    marked: Marked,
) -> Result<ExitCode, CliError> {
    if context.out.is_table() {
        context.out.line(format_args!("{done}: {}", marked.changed))?;
    } else {
        context.out.document(&marked)?;
    }
    if marked.skipped > 0 {
        say!("skipped {}: consumers are running them now; try again later", marked.skipped);
        return Ok(ExitCode::from(PARTIAL));
    }
    Ok(ExitCode::SUCCESS)
}

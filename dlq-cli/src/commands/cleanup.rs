use std::process::ExitCode;
use std::time::Duration;

use dlq_core::store::{ArchiveFilter, Cleaned, Cleanup, Letters as _};
use dlq_core::{
    Clock as _, DeadLetters, Filter, LetterSummary, Order, PageRequest, Status, SystemClock,
    Timestamp,
};

use super::{Context, delete, list, restore};
use crate::ask;
use crate::cli::CleanupArgs;
use crate::error::CliError;
use crate::output::Progress;

/// Number of letters that are examined in one step.
const PAGE: u32 = 1000;
/// Number of letters that are shown.
const SAMPLE: usize = 10;

pub(super) async fn run(
    context: &mut Context,
    store: &DeadLetters,
    args: CleanupArgs,
) -> Result<ExitCode, CliError> {
    let CleanupArgs { older_than, filter, include_unresolved, max, batch, archived_for, confirm } =
        args;
    let filter = filter.resolve(&context.letters).await?;
    let wanted = |status: &Status| include_unresolved || *status == Status::Resolved;
    // Such a cleanup would delete nothing, and look like a success.
    if !filter.statuses.is_empty() && !filter.statuses.iter().any(wanted) {
        return Err(CliError::refused(
            "a cleanup deletes letters that are resolved, and the filter asks for others; say --include-unresolved if \
             they are meant",
        ));
    }
    let old = old_enough(&filter, SystemClock.now().before(older_than), include_unresolved);
    let letters = context.letters.clone();
    // Resolved letters need no such bound: a cleanup of millions of them is what the verb is for.
    if include_unresolved && !confirm.dry_run {
        // Those that were changed since they became old enough are among these: most often there is no need to look at each.
        let mut count = letters.count(old.clone()).await?;
        if delete::within(max, count).is_err() {
            // The quick count is too high at most, so it can allow a deletion but not refuse one.
            (count, _) = look(context, &filter, older_than, include_unresolved).await?;
        }
        delete::within(max, count)?;
        if count > 0 {
            delete::tell_held(store, &old).await?;
        }
    }
    // With --yes nobody reads the count, and to make it means to list every letter.
    if confirm.dry_run || !confirm.yes {
        let (count, sample) = look(context, &filter, older_than, include_unresolved).await?;
        let what = if include_unresolved { "letters" } else { "resolved letters" };
        say!("{count} {what} in {} are old enough to be deleted", context.target);
        let archived = forgotten(store, archived_for).await?;
        if archived > 0 {
            say!("{archived} letters that were deleted before leave the archive");
        }
        if confirm.dry_run {
            if !context.out.is_table() {
                let found =
                    serde_json::json!({ "count": count, "archived": archived, "sample": sample });
                context.out.document(&found)?;
            } else if !sample.is_empty() {
                context.out.table(&list::table(&sample))?;
            }
            say!("dry run: nothing was changed");
            return Ok(ExitCode::SUCCESS);
        }
        // Letters may be old enough in the archive alone, which is reason enough to go on.
        if count == 0 && archived == 0 {
            say!("nothing to do");
            return done(context, Cleaned::default());
        }
        ask::agree(false, "delete", count + archived)?;
    }
    // The store deletes in batches and says nothing in between, so that the bar asks how many are left.
    let left = async || letters.count(old.clone()).await.ok();
    let bar = Progress::of(left().await.unwrap_or(0), "letters");
    let mut cleanup = Cleanup::older_than(older_than).filter(filter).batch(batch);
    cleanup = cleanup.archived_for(archived_for);
    if include_unresolved {
        cleanup = cleanup.unresolved();
    }
    let delete = store.cleanup(cleanup, ask::actor(confirm.note.as_deref()));
    let deleted = bar.during(delete, left).await?;
    done(context, deleted)
}

fn done(context: &mut Context, cleaned: Cleaned) -> Result<ExitCode, CliError> {
    if context.out.is_table() {
        context.out.line(format_args!("deleted: {}", cleaned.deleted))?;
        if cleaned.archived > 0 {
            context.out.line(format_args!("emptied from the archive: {}", cleaned.archived))?;
        }
    } else {
        context.out.document(&cleaned)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the number of deleted letters that leave the archive.
async fn forgotten(store: &DeadLetters, archived_for: Duration) -> Result<u64, CliError> {
    // An age is inclusive.
    let until = SystemClock.now().before(archived_for).after(Duration::from_nanos(1));
    let filter = ArchiveFilter::new().deleted_until(until);
    Ok(restore::look(store, &filter).await?.0)
}

/// Returns the number of letters that a cleanup would delete, and the oldest of them.
async fn look(
    context: &Context,
    filter: &Filter,
    older_than: Duration,
    include_unresolved: bool,
) -> Result<(u64, Vec<LetterSummary>), CliError> {
    let latest = SystemClock.now().before(older_than);
    let filter = old_enough(filter, latest, include_unresolved);
    let (mut count, mut sample, mut after) = (0, Vec::new(), None);
    loop {
        let page = PageRequest::new().limit(PAGE).order(Order::OldestFirst);
        let page = context.letters.list(filter.clone(), page.after(after)).await?;
        // Filters know no time of the latest change, so that is looked at letter by letter.
        let old = page.letters.into_iter().filter(|letter| letter.state.updated_at <= latest);
        for letter in old {
            count += 1;
            if sample.len() < SAMPLE {
                sample.push(letter);
            }
        }
        after = page.next;
        if after.is_none() {
            return Ok((count, sample));
        }
    }
}

/// The letters among which a cleanup finds what was changed last by then.
fn old_enough(filter: &Filter, latest: Timestamp, include_unresolved: bool) -> Filter {
    let mut filter = filter.clone();
    // What was changed last so long ago was stored no later.
    let stored_before = latest.after(Duration::from_micros(1));
    filter.until = Some(filter.until.map_or(stored_before, |until| until.min(stored_before)));
    if !include_unresolved {
        filter.statuses = vec![Status::Resolved];
    }
    filter
}

use std::process::ExitCode;
use std::time::Duration;

use dlq_core::store::{ArchiveFilter, ArchiveRequest, Archived, Marked};
use dlq_core::{Cursor, DeadLetters, Filter, LetterId};

use super::{Context, PARTIAL, list};
use crate::ask;
use crate::cli::{Format, RestoreArgs};
use crate::error::CliError;
use crate::output::{Column, Progress, Table, age};

/// Number of letters that are fetched at a time.
const PAGE: u64 = 500;
/// Number of letters that are shown before they are restored.
const SAMPLE: usize = 10;

pub(super) async fn run(
    context: &mut Context,
    store: &DeadLetters,
    args: RestoreArgs,
) -> Result<ExitCode, CliError> {
    let mut filter = filter(context, store, &args).await?;
    if args.list {
        return show(context, store, filter, &args).await;
    }
    if filter.is_empty() && !args.all {
        return Err(CliError::refused(
            "say which letters to restore: ids, --since, --by or --consumer, or --all; `dlq restore --list` shows which there are",
        ));
    }
    // Stores keep no count of the archive, so it is read through.
    let (count, sample) = look(store, &filter).await?;
    say!("{count} deleted letters match in {}", context.target);
    if args.confirm.dry_run {
        if !context.out.is_table() {
            context.out.document(&serde_json::json!({ "count": count, "sample": sample }))?;
        } else if !sample.is_empty() {
            context.out.table(&table(&sample))?;
        }
        say!("dry run: nothing was changed");
        return Ok(ExitCode::SUCCESS);
    }
    let Some(latest) = sample.first() else {
        say!("nothing to do");
        return finish(context, Marked::default());
    };
    ask::agree(args.confirm.yes, "restore", count)?;
    // What is deleted while the operator looks and thinks is not what they agree to.
    let next = latest.deleted_at.after(Duration::from_nanos(1));
    filter.deleted_until = Some(filter.deleted_until.map_or(next, |until| until.min(next)));
    let restore = store.undelete(filter, ask::actor(args.confirm.note.as_deref()));
    let restored = Progress::busy("restoring letters").during(restore, async || None).await?;
    finish(context, restored)
}

/// Says what was done; exit code 3 when letters were skipped.
fn finish(context: &mut Context, restored: Marked) -> Result<ExitCode, CliError> {
    if context.out.is_table() {
        context.out.line(format_args!("restored: {}", restored.changed))?;
    } else {
        context.out.document(&restored)?;
    }
    if restored.skipped > 0 {
        say!(
            "skipped {}: the store has a letter of the same message again; they stay in the archive",
            restored.skipped
        );
        return Ok(ExitCode::from(PARTIAL));
    }
    Ok(ExitCode::SUCCESS)
}

async fn filter(
    context: &Context,
    store: &DeadLetters,
    args: &RestoreArgs,
) -> Result<ArchiveFilter, CliError> {
    let mut letters = Filter::new();
    letters.consumers.clone_from(&args.consumer);
    for digits in &args.ids {
        letters.ids.push(letter_id(context, store, digits).await?);
    }
    let mut filter = ArchiveFilter::new().letters(letters);
    filter.deleted_by.clone_from(&args.by);
    filter.deleted_since = args.since.as_ref().map(|when| when.0);
    filter.deleted_until = args.until.as_ref().map(|when| when.0);
    Ok(filter)
}

/// The deleted letter whose id begins with these digits.
async fn letter_id(
    context: &Context,
    store: &DeadLetters,
    digits: &str,
) -> Result<LetterId, CliError> {
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(CliError::refused(format!(
            "`{digits}` is not a letter id; expected hexadecimal digits, as `dlq restore --list` shows them"
        )));
    }
    let filter = match digits.parse() {
        Ok(id) => ArchiveFilter::id(id),
        Err(_) => ArchiveFilter::new(),
    };
    let digits = digits.to_ascii_lowercase();
    let mut found = Vec::new();
    // Stores look up digits among their letters alone, so the archive is read through for them.
    pages(store, &filter, None, u64::MAX, |archived| {
        let id = archived.letter.id;
        // A letter that was deleted several times is there several times.
        if id.to_string().starts_with(&digits) && !found.contains(&id) {
            found.push(id);
        }
        Ok(())
    })
    .await?;
    match found.as_slice() {
        [id] => Ok(*id),
        [] => Err(CliError::failed(format!(
            "no deleted letter in {} has an id that begins with `{digits}`; `dlq restore --list` shows which there are",
            context.target
        ))),
        _ => Err(CliError::refused(format!(
            "more than one deleted letter has an id that begins with `{digits}`; give more digits"
        ))),
    }
}

/// Visits letters in the archive, at most `most`. Returns where there are more.
async fn pages(
    store: &DeadLetters,
    filter: &ArchiveFilter,
    mut after: Option<Cursor>,
    most: u64,
    mut visit: impl FnMut(Archived) -> Result<(), CliError>,
) -> Result<Option<Cursor>, CliError> {
    let mut visited = 0;
    loop {
        let limit = u32::try_from((most - visited).min(PAGE)).unwrap_or(u32::MAX);
        let request = ArchiveRequest::latest(limit).filter(filter.clone()).after(after);
        let page = store.archived(request).await?;
        visited += page.letters.len() as u64;
        page.letters.into_iter().try_for_each(&mut visit)?;
        after = page.next;
        if after.is_none() || visited >= most {
            return Ok(after);
        }
    }
}

/// Returns the number of letters in the archive that match, and those deleted last.
pub(super) async fn look(
    store: &DeadLetters,
    filter: &ArchiveFilter,
) -> Result<(u64, Vec<Archived>), CliError> {
    let (mut count, mut sample) = (0, Vec::new());
    pages(store, filter, None, u64::MAX, |archived| {
        count += 1;
        if sample.len() < SAMPLE {
            sample.push(archived);
        }
        Ok(())
    })
    .await?;
    Ok((count, sample))
}

async fn show(
    context: &mut Context,
    store: &DeadLetters,
    filter: ArchiveFilter,
    args: &RestoreArgs,
) -> Result<ExitCode, CliError> {
    let most = if args.limit == 0 { u64::MAX } else { args.limit };
    let mut kept = Vec::new();
    let out = &mut context.out;
    let next = pages(store, &filter, args.cursor, most, |archived| {
        // Lines stand for themselves, and are written before the next page is read.
        if out.format == Format::Jsonl {
            return out.json_line(&archived);
        }
        kept.push(archived);
        Ok(())
    })
    .await?;
    match out.format {
        Format::Table if kept.is_empty() => say!("no deleted letters match"),
        Format::Table => out.table(&table(&kept))?,
        Format::Json => out.document(&serde_json::json!({ "letters": kept, "next": next }))?,
        Format::Jsonl => {}
    }
    if let Some(cursor) = next.filter(|_| out.format != Format::Json) {
        out.flush()?;
        say!("the next page: --cursor {cursor}");
    }
    Ok(ExitCode::SUCCESS)
}

fn table(archived: &[Archived]) -> Table {
    let mut table = Table::new(&[
        Column::whole("ID", 0),
        Column::whole("DELETED", 1),
        Column::text("BY", 2, 8),
        Column::whole("STATUS", 5),
        Column::text("SUBJECT", 4, 12),
        Column::text("CONSUMER", 6, 12),
        Column::text("NOTE", 3, 10),
        Column::text("ERROR", 0, 20),
    ]);
    for Archived { letter, deleted_at, deleted_by, .. } in archived {
        table.row([
            list::short(&letter.id),
            age(*deleted_at),
            deleted_by.who.clone(),
            letter.state.status.to_string(),
            letter.subject.clone(),
            letter.consumer.clone(),
            deleted_by.note.clone().unwrap_or_default(),
            letter.error.clone(),
        ]);
    }
    table
}

use std::process::ExitCode;

use dlq_core::store::Letters as _;
use dlq_core::{LetterSummary, Order, PageRequest};

use super::{Context, count};
use crate::cli::{Format, ListArgs};
use crate::error::CliError;
use crate::output::{Column, Table, age};

/// Number of letters that are fetched at a time.
const PAGE: u64 = 500;

pub(super) async fn run(context: &mut Context, args: ListArgs) -> Result<ExitCode, CliError> {
    if args.count {
        return count::run(context, args.filter).await;
    }
    let filter = args.filter.resolve(&context.letters).await?;
    let order = if args.oldest_first { Order::OldestFirst } else { Order::NewestFirst };
    let limit = if args.limit == 0 { u64::MAX } else { args.limit };
    let mut after = args.cursor;
    let mut kept = Vec::new();
    let mut shown: u64 = 0;
    loop {
        let want = u32::try_from((limit - shown).min(PAGE)).unwrap_or(u32::MAX);
        let request = PageRequest::new().limit(want).order(order).after(after);
        let page = context.letters.list(filter.clone(), request).await?;
        shown += page.letters.len() as u64;
        after = page.next;
        // Lines of JSON stand for themselves. A table needs all of its rows before it knows its widths.
        if context.out.format == Format::Jsonl {
            page.letters.iter().try_for_each(|letter| context.out.json_line(letter))?;
        } else {
            kept.extend(page.letters);
        }
        if after.is_none() || shown >= limit {
            break;
        }
    }
    match context.out.format {
        Format::Table if kept.is_empty() => say!("no letters match"),
        Format::Table => context.out.table(&table(&kept))?,
        Format::Json => context.out.document(&serde_json::json!({
            "letters": kept, "next": after,
        }))?,
        Format::Jsonl => {}
    }
    if let Some(cursor) = after.filter(|_| context.out.format != Format::Json) {
        // At a terminal the hint about the next page stands below the letters.
        context.out.flush()?;
        let total = context.letters.count(filter).await?;
        say!("{shown} of {total} letters; the next page: --cursor {cursor}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Says how many letters there are beside those that a table has.
pub(crate) fn more(count: u64, shown: &[LetterSummary]) {
    let more = count.saturating_sub(shown.len() as u64);
    if more > 0 {
        say!("and {more} more");
    }
}

/// The table of letters that `list` and `peek` show.
pub(crate) fn table(letters: &[LetterSummary]) -> Table {
    let mut table = Table::new(&[
        Column::whole("ID", 0),
        Column::whole("STATUS", 2),
        Column::text("SUBJECT", 3, 12),
        Column::text("CONSUMER", 5, 12),
        Column::whole("REASON", 4),
        Column::whole("CAUSE", 6),
        Column::whole("ATTEMPTS", 7),
        Column::whole("AGE", 1),
        Column::text("ERROR", 0, 20),
    ]);
    for letter in letters {
        table.row([
            short(&letter.id),
            letter.state.status.to_string(),
            letter.subject.clone(),
            letter.consumer.clone(),
            letter.reason.to_string(),
            letter.cause.map_or_else(|| "-".to_owned(), |cause| cause.to_string()),
            letter.attempts.to_string(),
            age(letter.died_at),
            letter.error.clone(),
        ]);
    }
    table
}

/// The first digits of an id: enough to type, and to be unique among millions.
pub(crate) fn short(id: &impl ToString) -> String {
    id.to_string().chars().take(12).collect()
}

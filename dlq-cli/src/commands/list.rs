use std::process::ExitCode;

use dlq_core::search::{Search, SearchRequest};
use dlq_core::store::{BoxLetters, Letters as _};
use dlq_core::{Filter, LetterSummary, Order, Page, PageRequest};

use super::{Context, count};
use crate::cli::{Format, ListArgs};
use crate::error::CliError;
use crate::filter::READ_AT_ONCE;
use crate::output::{Column, Progress, Table, age};

/// Number of letters that are fetched at a time.
const PAGE: u64 = 500;

pub(super) async fn run(context: &mut Context, args: ListArgs) -> Result<ExitCode, CliError> {
    if args.count {
        return count::run(context, args.filter).await;
    }
    let (filter, search) = args.filter.resolve_apart(&context.letters).await?;
    let order = if args.oldest_first { Order::OldestFirst } else { Order::NewestFirst };
    let limit = if args.limit == 0 { u64::MAX } else { args.limit };
    let mut after = args.cursor;
    let mut kept = Vec::new();
    let mut shown: u64 = 0;
    let bar = if search.is_empty() {
        None
    } else {
        let total = context.letters.count(filter.clone()).await?;
        let is_mixed = context.out.format == Format::Jsonl && context.out.is_terminal();
        Some(Progress::of(total, "letters searched").hidden_if(is_mixed))
    };
    loop {
        let want = u32::try_from((limit - shown).min(PAGE)).unwrap_or(u32::MAX);
        let request = PageRequest::new().limit(want).order(order).after(after);
        let page = match &bar {
            None if filter.error.is_some() => {
                // No index serves a text, so a store of millions of letters is busy for seconds.
                let list = context.letters.list(filter.clone(), request);
                Progress::busy("looking through errors").during(list, async || None).await?
            }
            None => context.letters.list(filter.clone(), request).await?,
            Some(bar) => searched(&context.letters, &search, &filter, request, bar).await?,
        };
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
    if let Some(bar) = &bar {
        bar.end();
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
        if search.is_empty() {
            let total = context.letters.count(filter).await?;
            say!("{shown} of {total} letters; the next page: --cursor {cursor}");
        } else {
            say!("{shown} letters; the search goes on with --cursor {cursor}");
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the next part of a search that found letters, as a page.
async fn searched(
    letters: &BoxLetters,
    search: &Search,
    filter: &Filter,
    request: PageRequest,
    bar: &Progress,
) -> Result<Page, CliError> {
    let mut part = SearchRequest::new().limit(request.limit).order(request.order);
    (part.read_at_most, part.after) = (READ_AT_ONCE, request.after);
    loop {
        let found = search.page(letters, filter.clone(), part).await?;
        bar.advance(found.read);
        part.after = found.next;
        if !found.letters.is_empty() || found.next.is_none() {
            return Ok(Page { letters: found.letters, next: found.next });
        }
    }
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

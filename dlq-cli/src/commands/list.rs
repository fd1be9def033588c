use std::process::ExitCode;

use dlq_core::search::{Search, SearchRequest};
use dlq_core::store::{BoxLetters, Letters as _};
use dlq_core::{Filter, LetterSummary, Order, Page, PageRequest};

use super::{Context, count};
use crate::cli::{Format, ListArgs};
use crate::error::CliError;
use crate::filter::READ_AT_ONCE;
use crate::output::{Cell, Column, Progress, Table};

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
        // The filter alone is counted: each letter that it leaves is read by the search.
        let total = context.letters.count(filter.clone()).await?;
        // Other formats are written when the search has ended, and do not mix with its bar.
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
        if context.out.format == Format::Jsonl && args.view.sort.is_none() {
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
    let view = args.view.apply(&mut kept, context.out.format, table)?;
    match context.out.format {
        Format::Table if kept.is_empty() => say!("no letters match"),
        Format::Table => context.out.table(&view)?,
        Format::Json => context.out.document(&serde_json::json!({
            "letters": kept, "next": after,
        }))?,
        Format::Jsonl => kept.iter().try_for_each(|letter| context.out.json_line(letter))?,
    }
    let Some(cursor) = after else { return Ok(ExitCode::SUCCESS) };
    let hint = match (&args.view.sort, context.out.format) {
        (Some(_), _) => format!(
            "they alone are sorted, the {}; --limit 0 sorts all",
            if args.oldest_first { "oldest" } else { "newest" }
        ),
        (None, Format::Json) => return Ok(ExitCode::SUCCESS),
        (None, _) => format!("the next page: --cursor {cursor}"),
    };
    // They are counted before a pager shows them, after which the server may be gone.
    let of = match search.is_empty() {
        true => format!(" of {}", context.letters.count(filter).await?),
        false => String::new(),
    };
    // At a terminal the hint about the next page stands below the letters.
    context.out.flush()?;
    say!("{shown}{of} letters; {hint}");
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
        // A part of a search may find nothing and still not be the last; the bar shows meanwhile that it goes on.
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
        Column::state("STATUS", 2),
        Column::text("SUBJECT", 3, 12),
        Column::text("CONSUMER", 5, 12),
        Column::whole("REASON", 4),
        Column::whole("CAUSE", 6),
        Column::whole("ATTEMPTS", 7),
        Column::whole("AGE", 1),
        Column::main("ERROR", 20),
        Column::extra("GROUP"),
        Column::extra("CLASS"),
        Column::extra("SERVICE"),
        Column::extra("EVENT"),
        Column::extra("MESSAGE"),
        Column::extra("ORIGIN"),
        Column::extra("SIZE"),
        Column::extra("REPLAYS"),
        Column::extra("DIED"),
        Column::extra("STORED"),
    ]);
    let or_none = |text: &Option<String>| Cell::from(text.as_deref().unwrap_or("-"));
    // A tombstone has no size, and is sorted before an empty payload.
    let number = |n: Option<u64>| n.map_or_else(|| Cell::number(-1).shown("-"), Cell::number);
    for letter in letters {
        let (died, stored) = (letter.died_at, letter.state.created_at);
        table.row([
            short(&letter.id).into(),
            letter.state.status.as_str().into(),
            letter.subject.as_str().into(),
            letter.consumer.as_str().into(),
            letter.reason.to_string().into(),
            letter.cause.map_or_else(|| "-".to_owned(), |cause| cause.to_string()).into(),
            Cell::number(letter.attempts),
            Cell::age(died),
            letter.error.as_str().into(),
            letter.fingerprint.to_string().into(),
            letter.class.to_string().into(),
            or_none(&letter.service),
            or_none(&letter.event),
            or_none(&letter.message_id),
            letter.origin.to_string().into(),
            number(letter.payload_size),
            Cell::number(letter.state.replays),
            died.to_string().into(),
            stored.to_string().into(),
        ]);
    }
    table
}

/// The first digits of an id: enough to type, and to be unique among millions.
pub(crate) fn short(id: &impl ToString) -> String {
    id.to_string().chars().take(12).collect()
}

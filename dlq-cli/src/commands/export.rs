use std::borrow::Cow;
use std::process::ExitCode;

use dlq_admin::mask::MASKED;
use dlq_core::store::Letters as _;
use dlq_core::{Cursor, DeadLetter, Filter, LetterId, LetterSummary, Order, PageRequest};

use super::{Context, PARTIAL};
use crate::cli::ExportArgs;
use crate::error::CliError;
use crate::filter::must_exist;
use crate::lines::{LinesFile, no_message};
use crate::output::Progress;
use crate::signals;

/// Number of letters that are listed at once.
const PAGE: u32 = 500;
/// Number of bytes of payloads that are read at once, as far as that is up to us.
// A letter larger than this is read alone; its size is not up to us.
const BYTES: u64 = 16 * 1024 * 1024;

pub(super) async fn run(context: &mut Context, args: ExportArgs) -> Result<ExitCode, CliError> {
    let filter = args.filter.resolve(&context.letters).await?;
    must_exist(&context.letters, &context.target, &filter).await?;
    let Some(path) = &args.to else {
        let total = context.letters.count(filter.clone()).await?;
        // Letters and a bar at the same terminal would overwrite each other.
        let bar = Progress::of(total, "letters").hidden_if(context.out.is_terminal());
        let out = |context: &mut Context, letter: &DeadLetter| {
            bar.advance(1);
            context.out.json_line(letter)
        };
        // No signal is listened for: an export to standard output cannot be resumed, so a signal ends it at once.
        let never = std::future::pending();
        let exported = export(context, &filter, None, &mut Box::pin(never), out).await;
        bar.end();
        return Ok(ExitCode::from(exported?.say()));
    };
    let (mut file, after, written) =
        if args.resume { LinesFile::resume(path)? } else { (LinesFile::create(path)?, None, 0) };
    let mut rest = filter.clone();
    let mut has_gaps = false;
    if let Some(after) = after {
        say!("going on after letter {}", after.id);
        has_gaps = lacks_letters(context, &filter, after, written).await?;
        if has_gaps {
            say!(
                "{} does not have every letter up to there that matches this filter: it was begun with another one, or letters \
                 have changed since; to have them all, give another path without --resume",
                path.display()
            );
        }
        // The bar alone is measured by this filter. The letters themselves begin after the cursor.
        rest.since = Some(rest.since.map_or(after.created_at, |since| since.max(after.created_at)));
    }
    let bar = Progress::of(context.letters.count(rest).await?, "letters");
    let ended = signals::until_asked(async |mut stop| {
        let write = |_: &mut Context, letter: &DeadLetter| {
            bar.advance(1);
            file.write(letter)
        };
        let ended = export(context, &filter, after, &mut stop, write).await;
        bar.end();
        // Whole lines stay, whatever happened.
        file.finish()?;
        ended
    });
    let exported = ended.await.map_err(|error| {
        error.hinting("what is written stays; the same command with --resume goes on from there")
    })?;
    let code = exported.say();
    Ok(ExitCode::from(if has_gaps { PARTIAL } else { code }))
}

/// True if a file of `written` letters, whose last one stands at `last`, was not written by this filter, as far as that can
/// be seen: it does not match its last letter, or more letters before that one than the file has.
async fn lacks_letters(
    context: &Context,
    filter: &Filter,
    last: Cursor,
    written: u64,
) -> Result<bool, CliError> {
    let mut earlier = filter.clone();
    // Letters of the same time as the last one are not counted, so that no gap is reported that is none.
    earlier.until = Some(earlier.until.map_or(last.created_at, |until| until.min(last.created_at)));
    if context.letters.count(earlier).await? > written {
        return Ok(true);
    }
    // A letter that was deleted since says nothing of the filter.
    let Some(letter) = context.letters.get(last.id).await? else { return Ok(false) };
    Ok(!filter.matches(&letter))
}

#[derive(Default)]
struct Exported {
    letters: u64,
    /// Number of exported letters without their messages.
    unread: u64,
    /// Number of exported letters with parts masked.
    masked: u64,
    is_cut_short: bool,
}

impl Exported {
    /// Says what was done, and returns the exit code.
    fn say(&self) -> u8 {
        match self.letters {
            0 => say!("exported 0 letters: none match"),
            letters => say!("exported {letters} letters"),
        }
        if self.unread > 0 {
            say!(
                "{} of them without their messages, which cannot be read or have gone: their attribute `kafka.pointer.unread` \
                 or `kafka.pointer.gone` says why; they are not imported",
                self.unread
            );
        }
        if self.masked > 0 {
            say!(
                "parts of {} of them are masked by rules of the configuration file, as their attribute `{MASKED}` says; they are not \
                 imported; a backup needs --unmasked",
                self.masked
            );
        }
        if self.is_cut_short {
            say!("ended before the last letter; the same command with --resume goes on from there");
        }
        if self.is_cut_short || self.unread > 0 { PARTIAL } else { 0 }
    }
}

/// Writes the letters that match after a place, oldest first, until told to stop.
async fn export(
    context: &mut Context,
    filter: &Filter,
    mut after: Option<Cursor>,
    stop: &mut (impl Future<Output = ()> + Unpin),
    mut write: impl FnMut(&mut Context, &DeadLetter) -> Result<(), CliError>,
) -> Result<Exported, CliError> {
    let mut exported = Exported::default();
    loop {
        // Oldest first, so that letters which come during the export are at its end, and a resumed one finds them.
        let request = PageRequest::new().limit(PAGE).order(Order::OldestFirst).after(after);
        let page = context.letters.list(filter.clone(), request).await?;
        for ids in portions(&page.letters) {
            let letters = tokio::select! {
                // Asked first: a store that answers at once would not let it have its turn.
                biased;
                () = &mut *stop => {
                    exported.is_cut_short = true;
                    return Ok(exported);
                }
                // Without those that were deleted since they were listed.
                letters = context.letters.get_all(ids) => letters?,
            };
            for letter in &letters {
                // Masked unless --unmasked is said, since nobody knows who will read the file. The mark in the letter keeps
                // it from being imported.
                let shown = context.out.masked(letter);
                exported.masked += u64::from(matches!(shown, Cow::Owned(_)));
                write(context, &shown)?;
                exported.letters += 1;
                exported.unread += u64::from(no_message(letter).is_some());
            }
        }
        after = page.next;
        if after.is_none() {
            return Ok(exported);
        }
    }
}

/// Letters in portions whose payloads fit into memory together.
fn portions(letters: &[LetterSummary]) -> Vec<Vec<LetterId>> {
    let mut portions: Vec<Vec<LetterId>> = Vec::new();
    let mut room = 0;
    for letter in letters {
        let size = letter.payload_size.unwrap_or(0);
        match portions.last_mut() {
            Some(portion) if size <= room => portion.push(letter.id),
            _ => {
                room = BYTES;
                portions.push(vec![letter.id]);
            }
        }
        room = room.saturating_sub(size);
    }
    portions
}

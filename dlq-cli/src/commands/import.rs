use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader};
use std::path::Path;
use std::process::ExitCode;

use dlq_core::DeadLetters;
use dlq_core::store::Receipt;
use tokio::sync::mpsc;

use super::{Context, PARTIAL};
use crate::ask;
use crate::cli::ImportArgs;
use crate::error::CliError;
use crate::lines::{Batch, read_batches};
use crate::output::{Progress, escape};
use crate::signals;

/// Maximum number of bad lines that are reported in words; all are counted.
const SAID: u64 = 20;

pub(super) async fn run(
    context: &mut Context,
    store: &DeadLetters,
    #[cfg_attr(not(any(feature = "mongo", feature = "postgres")), expect(unused_variables))]
    from: Option<&str>,
    args: ImportArgs,
) -> Result<ExitCode, CliError> {
    let Some(path) = args.file else {
        #[cfg(feature = "redis")]
        if let Some(url) = args.foreign.from_redis.clone() {
            return crate::redis::import(context, store, &url, args.foreign).await;
        }
        #[cfg(any(feature = "mongo", feature = "postgres"))]
        return super::import_table::run(context, store, from, args.table, args.foreign).await;
        #[cfg(not(any(feature = "mongo", feature = "postgres")))]
        return Err(CliError::refused("no file was given"));
    };
    let (mut batches, length) = open(&path, args.batch as usize)?;
    let bar = Progress::of_bytes(length);
    // The audit says where the letters come from, for which nobody has to give a note.
    let by = ask::actor(Some(&format!("import of {}", path.display())));
    let mut imported = Imported::default();
    let is_cut_short = signals::until_asked(async |mut stop| {
        loop {
            // The signal is heeded between two batches only: a restore that has begun is waited for.
            let batch = tokio::select! {
                biased;
                () = &mut stop => return Ok(true),
                batch = batches.recv() => batch,
            };
            let Some(batch) = batch else { return Ok(false) };
            let batch = batch.map_err(|error| {
                let (path, line) = (path.display(), imported.lines);
                CliError::failed(format!("cannot read {path} after line {line}: {error}"))
            })?;
            bar.aside(|| imported.say_bad(&batch));
            // A restore that is repeated changes nothing, so that the same file can be given again after any end.
            let receipts = store.restore(batch.letters, by.clone()).await.map_err(|error| {
                let line = imported.lines;
                CliError::from(error).hinting(&format!(
                    "the letters up to line {line} are in the store; the same command goes on from there"
                ))
            })?;
            // Lines are counted after the restore: what is said of them at the end is in the store.
            imported.count(&receipts, batch.bad.len() as u64, batch.line);
            bar.advance(batch.bytes);
            bar.say(format!("{} letters", imported.letters()));
        }
    });
    let is_cut_short = is_cut_short.await?;
    bar.end();
    imported.show(context)?;
    if is_cut_short {
        say!("ended after line {}; the same command goes on from there", imported.lines);
    }
    let is_partial = is_cut_short || imported.bad > 0;
    Ok(if is_partial { ExitCode::from(PARTIAL) } else { ExitCode::SUCCESS })
}

/// Reads a file in the background, a little ahead of the writing. Returns its batches, and its size if it is known.
fn open(path: &Path, size: usize) -> Result<(mpsc::Receiver<io::Result<Batch>>, u64), CliError> {
    // One batch waits while another is restored, so that a slow store does not fill the memory.
    let (sender, receiver) = mpsc::channel(1);
    // The reader stops when the import has ended and nobody receives any more.
    let take = move |batch| sender.blocking_send(batch).is_ok();
    // A thread of its own, which ends with the process: nothing can wake one that waits for standard input.
    if path.as_os_str() == "-" {
        std::thread::spawn(move || read_batches(io::stdin().lock(), size, take));
        return Ok((receiver, 0));
    }
    let cannot =
        |error: io::Error| CliError::failed(format!("cannot read {}: {error}", path.display()));
    let file = File::open(path).map_err(cannot)?;
    let length = file.metadata().map_err(cannot)?.len();
    std::thread::spawn(move || read_batches(BufReader::new(file), size, take));
    Ok((receiver, length))
}

#[derive(Default)]
struct Imported {
    by_receipt: BTreeMap<&'static str, u64>,
    bad: u64,
    lines: u64,
}

impl Imported {
    fn say_bad(&self, batch: &Batch) {
        for (n, (line, why)) in (self.bad..).zip(&batch.bad) {
            match n {
                ..SAID => say!("line {line} is not a letter: {}", escape(why)),
                SAID => say!("more lines are not letters; they are counted"),
                _ => return,
            }
        }
    }

    fn count(&mut self, receipts: &[Receipt], bad: u64, line: u64) {
        for receipt in receipts {
            let name = match receipt {
                Receipt::Stored => "stored",
                Receipt::Unchanged => "unchanged",
                Receipt::Reopened => "reopened",
                Receipt::Superseded => "superseded",
                Receipt::Conflicting(_) => "conflicting",
                Receipt::Merged(_) => "merged",
                _ => "other",
            };
            *self.by_receipt.entry(name).or_default() += 1;
        }
        self.bad += bad;
        self.lines = line;
    }

    fn letters(&self) -> u64 {
        self.by_receipt.values().sum()
    }

    fn show(&self, context: &mut Context) -> Result<(), CliError> {
        if self.lines == 0 {
            say!("there is no line; nothing was imported");
        }
        if let Some(count) = self.by_receipt.get("conflicting") {
            say!(
                "{count} letters have the identity of one that is there and other bytes; both are kept"
            );
        }
        if !context.out.is_table() {
            return context.out.document(&serde_json::json!({
                "lines": self.lines,
                "letters": self.letters(),
                "receipts": self.by_receipt,
                "bad_lines": self.bad,
            }));
        }
        let mut text = format!("imported: {} letters", self.letters());
        for (receipt, count) in &self.by_receipt {
            text.push_str(&format!(", {count} {receipt}"));
        }
        if self.bad > 0 {
            text.push_str(&format!(", {} bad lines", self.bad));
        }
        context.out.line(text)
    }
}

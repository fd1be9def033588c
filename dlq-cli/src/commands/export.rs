use std::fs::File;
use std::io::{BufWriter, Write};
use std::process::ExitCode;

use dlq_core::store::Letters as _;
use dlq_core::{Order, PageRequest};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use super::Context;
use crate::cli::ExportArgs;
use crate::error::CliError;
use crate::output::Progress;

/// How many letters are asked for at once.
const AT_ONCE: usize = 32;

pub(super) async fn run(context: &mut Context, args: ExportArgs) -> Result<ExitCode, CliError> {
    let filter = args.filter.resolve(&context.letters).await?;
    let total = context.letters.count(filter.clone()).await?;
    let mut file = match &args.file {
        Some(path) => {
            let file = File::create_new(path).map_err(|error| {
                CliError::failed(format!("cannot write to a new file {}: {error}", path.display()))
            })?;
            Some(BufWriter::new(file))
        }
        None => None,
    };
    let is_at_terminal = file.is_none() && context.out.is_terminal();
    let bar = Progress::of(total, "letters").hidden_if(is_at_terminal);
    let mut exported: u64 = 0;
    let mut after = None;
    loop {
        let request =
            PageRequest::new().with_limit(500).with_order(Order::OldestFirst).with_after(after);
        let page = context.letters.list(filter.clone(), request).await?;
        let source = context.letters.clone();
        let letters = stream::iter(page.letters).map(|summary| source.get(summary.id));
        let mut letters = letters.buffered(AT_ONCE);
        while let Some(letter) = letters.try_next().await? {
            // It may have been deleted since it was listed.
            let Some(letter) = letter else { continue };
            match &mut file {
                Some(file) => {
                    serde_json::to_writer(&mut *file, &letter)?;
                    file.write_all(b"\n")?;
                }
                None => context.out.json_line(&letter)?,
            }
            exported += 1;
            bar.advance(1);
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    if let Some(file) = file {
        let file = file.into_inner().map_err(|error| CliError::from(error.into_error()))?;
        file.sync_all()?;
    }
    bar.end();
    eprintln!("exported {exported} letters");
    Ok(ExitCode::SUCCESS)
}

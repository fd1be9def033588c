use std::process::ExitCode;

use dlq_core::PageRequest;
use dlq_core::store::{Letters as _, Stats};

use super::{Context, list};
use crate::cli::PeekArgs;
use crate::error::CliError;
use crate::output::Output;

/// The length of the longest bar.
const WIDTH: u64 = 40;

pub(super) async fn run(context: &mut Context, args: PeekArgs) -> Result<ExitCode, CliError> {
    let filter = args.filter.resolve(&context.letters).await?;
    let stats = context.letters.stats(filter.clone()).await?;
    let latest = context.letters.list(filter, PageRequest::new().limit(args.limit)).await?.letters;
    if !context.out.is_table() {
        context.out.document(&serde_json::json!({
            "by_reason": stats.by_reason, "latest": latest,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    if latest.is_empty() {
        say!("no letters match");
        return Ok(ExitCode::SUCCESS);
    }
    histogram(&mut context.out, &stats)?;
    context.out.table(&list::table(&latest))?;
    Ok(ExitCode::SUCCESS)
}

fn histogram(out: &mut Output, stats: &Stats) -> Result<(), CliError> {
    let most = stats.by_reason.values().copied().max().unwrap_or(0).max(1);
    for (reason, count) in &stats.by_reason {
        let bar = "█".repeat(usize::try_from((count * WIDTH).div_ceil(most)).unwrap_or(0));
        out.cut_line(&format!("{reason:>14} {count:>8} {bar}"))?;
    }
    out.line("")
}

use std::collections::BTreeMap;
use std::process::ExitCode;

use dlq_core::Timestamp;
use dlq_core::store::Letters as _;

use super::Context;
use crate::cli::StatsArgs;
use crate::error::CliError;
use crate::output::{Output, age, escape};

pub(super) async fn run(context: &mut Context, args: StatsArgs) -> Result<ExitCode, CliError> {
    let filter = args.filter.resolve(&context.letters).await?;
    let stats = context.letters.stats(filter).await?;
    let out = &mut context.out;
    if !out.is_table() {
        out.document(&stats)?;
        return Ok(ExitCode::SUCCESS);
    }
    out.line(format_args!("{} letters", stats.total))?;
    section(out, "status", &stats.by_status)?;
    out.line("unresolved, by")?;
    section(out, "reason", &stats.by_reason)?;
    section(out, "cause", &stats.by_cause)?;
    section(out, "class", &stats.by_class)?;
    section(out, "consumer", &stats.by_consumer)?;
    section(out, "subject", &stats.by_subject)?;
    time(out, "oldest", stats.oldest)?;
    time(out, "oldest unresolved", stats.oldest_unresolved)?;
    time(out, "newest", stats.newest)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints a line for each value, the most frequent first.
fn section<K: ToString + Ord>(
    out: &mut Output,
    name: &str,
    counts: &BTreeMap<K, u64>,
) -> Result<(), CliError> {
    let mut rows: Vec<_> = counts.iter().filter(|(_, count)| **count > 0).collect();
    rows.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    for (index, (value, count)) in rows.into_iter().enumerate() {
        let label = if index == 0 { name } else { "" };
        out.cut_line(&format!("  {label:<10} {count:>8}  {}", escape(&value.to_string())))?;
    }
    Ok(())
}

fn time(out: &mut Output, name: &str, at: Option<Timestamp>) -> Result<(), CliError> {
    match at {
        Some(at) => out.line(format_args!("{name}: {at} ({} ago)", age(at))),
        None => Ok(()),
    }
}

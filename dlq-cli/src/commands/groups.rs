use std::process::ExitCode;

use dlq_core::store::Letters as _;

use super::Context;
use crate::cli::GroupsArgs;
use crate::error::CliError;
use crate::output::{Table, age, cut};

pub(super) async fn run(context: &mut Context, args: GroupsArgs) -> Result<ExitCode, CliError> {
    let filter = args.filter.resolve(&context.letters).await?;
    let groups = context.letters.groups(filter, args.limit).await?;
    if !context.out.is_table() {
        context.out.documents("groups", &groups)?;
        return Ok(ExitCode::SUCCESS);
    }
    if groups.is_empty() {
        eprintln!("no letters match");
        return Ok(ExitCode::SUCCESS);
    }
    let mut table =
        Table::new(&["COUNT", "GROUP", "CONSUMER", "CLASS", "CAUSE", "FIRST", "LAST", "ERROR"]);
    for group in groups {
        let sample = &group.sample;
        table.row([
            group.count.to_string(),
            group.fingerprint.to_string(),
            cut(&group.consumer, 40),
            sample.class.to_string(),
            sample.cause.map_or_else(|| "-".to_owned(), |cause| cause.to_string()),
            age(group.first_seen),
            age(group.last_seen),
            cut(&sample.error, 120),
        ]);
    }
    context.out.line(table)?;
    Ok(ExitCode::SUCCESS)
}

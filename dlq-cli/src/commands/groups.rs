use std::process::ExitCode;

use dlq_core::store::Letters as _;

use super::{Context, at_most};
use crate::cli::GroupsArgs;
use crate::error::CliError;
use crate::output::{Column, Table, age};

pub(super) async fn run(context: &mut Context, args: GroupsArgs) -> Result<ExitCode, CliError> {
    let filter = args.filter.resolve(&context.letters).await?;
    let groups = context.letters.groups(filter, at_most(args.limit)).await?;
    if !context.out.is_table() {
        context.out.documents("groups", &groups)?;
        return Ok(ExitCode::SUCCESS);
    }
    if groups.is_empty() {
        say!("no letters match");
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&[
        Column::whole("COUNT", 0),
        Column::whole("GROUP", 0),
        Column::text("CONSUMER", 2, 12),
        Column::whole("CLASS", 4),
        Column::whole("CAUSE", 3),
        Column::whole("FIRST", 5),
        Column::whole("LAST", 1),
        Column::text("ERROR", 0, 20),
    ]);
    for group in groups {
        let sample = &group.sample;
        table.row([
            group.count.to_string(),
            group.fingerprint.to_string(),
            group.consumer.clone(),
            sample.class.to_string(),
            sample.cause.map_or_else(|| "-".to_owned(), |cause| cause.to_string()),
            age(group.first_seen),
            age(group.last_seen),
            sample.error.clone(),
        ]);
    }
    context.out.table(&table)?;
    Ok(ExitCode::SUCCESS)
}

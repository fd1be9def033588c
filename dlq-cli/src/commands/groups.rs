use std::process::ExitCode;

use dlq_core::DeadLetters;
use dlq_core::store::{Group, GroupState, Letters as _, TriagedGroup};

use super::{Context, at_most};
use crate::cli::GroupsArgs;
use crate::error::CliError;
use crate::output::{Column, Table, age};

/// Groups of the letters of a broker, of which nothing is known but the letters.
pub(super) async fn run(context: &mut Context, args: GroupsArgs) -> Result<ExitCode, CliError> {
    let of_a_store = [("--state", !args.state.is_empty()), ("--began", args.began.is_some())];
    if let Some((option, _)) = of_a_store.into_iter().find(|(_, is_given)| *is_given) {
        return Err(CliError::refused(format!(
            "{option} is of a store, and a broker keeps nothing of groups; `dlq ingest` drains {} into a store",
            context.target
        )));
    }
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
            cause(&group),
            age(group.first_seen),
            age(group.last_seen),
            sample.error.clone(),
        ]);
    }
    context.out.table(&table)?;
    Ok(ExitCode::SUCCESS)
}

/// Groups of a store, with what is known of them.
pub(super) async fn triaged(
    context: &mut Context,
    store: &DeadLetters,
    args: GroupsArgs,
) -> Result<ExitCode, CliError> {
    let mut filter = args.filter.resolve(&context.letters).await?;
    let limit = at_most(args.limit);
    let began = args.began.map(|when| when.0);
    // A group that began then has no letter from before.
    filter.since = filter.since.max(began);
    // Closed groups are left out here, and must not take the places of open ones before.
    let mut all = store.triaged_groups(filter, limit.max(1_000)).await?;
    all.retain(|it| began.is_none_or(|began| it.group.first_seen >= began));
    let is_meant = |state: GroupState| {
        if args.state.is_empty() { state.is_open() } else { args.state.contains(&state) }
    };
    let (mut groups, rest): (Vec<_>, Vec<_>) = all.into_iter().partition(|it| is_meant(it.state));
    let letters: u64 = groups.iter().chain(&rest).map(|it| it.group.count).sum();
    let more = groups.len().saturating_sub(limit as usize);
    groups.truncate(limit as usize);
    if !context.out.is_table() {
        context.out.documents("groups", &groups)?;
        return Ok(ExitCode::SUCCESS);
    }
    if !groups.is_empty() {
        context.out.table(&table(&groups, letters))?;
    } else if rest.is_empty() {
        say!("no letters match");
    }
    if more > 0 {
        say!("{more} more; --limit 0 shows all");
    }
    if !rest.is_empty() {
        let closed = rest.iter().filter(|it| !it.state.is_open()).count();
        let (word, hint) = match args.state.is_empty() {
            true => ("snoozed or resolved", "--state snoozed,resolved shows them"),
            false => ("in other states", "leave --state out for those that are open"),
        };
        let hidden = if args.state.is_empty() { closed } else { rest.len() };
        say!("{hidden} {word}; {hint}");
    }
    Ok(ExitCode::SUCCESS)
}

fn table(groups: &[TriagedGroup], letters: u64) -> Table {
    let mut table = Table::new(&[
        Column::whole("COUNT", 0),
        Column::whole("GROUP", 0),
        Column::whole("STATE", 1),
        Column::text("CONSUMER", 4, 12),
        Column::whole("CAUSE", 7),
        Column::whole("HOUR", 3),
        Column::whole("SHARE", 8),
        Column::whole("FIRST", 6),
        Column::whole("LAST", 2),
        Column::text("OWNER", 5, 6),
        Column::text("ERROR", 0, 20),
    ]);
    for it in groups {
        let group = &it.group;
        let trend = if it.is_growing { "↑" } else { "" };
        table.row([
            group.count.to_string(),
            group.fingerprint.to_string(),
            it.state.to_string(),
            group.consumer.clone(),
            cause(group),
            format!("{}{trend}", it.last_hour),
            format!("{}%", (group.count * 100).checked_div(letters).unwrap_or_default()),
            age(group.first_seen),
            age(group.last_seen),
            it.record.owner.clone().unwrap_or_else(|| "-".to_owned()),
            group.sample.error.clone(),
        ]);
    }
    table
}

fn cause(group: &Group) -> String {
    group.sample.cause.map_or_else(|| "-".to_owned(), |cause| cause.to_string())
}

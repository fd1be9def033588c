use std::process::ExitCode;

use dlq_core::DeadLetters;
use dlq_core::store::{Group, GroupState, Letters as _, TriagedGroup};

use super::{Context, at_most};
use crate::cli::GroupsArgs;
use crate::error::CliError;
use crate::output::{Cell, Column, Table};

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
    // Those that are sorted first may be counted last.
    let most = if args.view.sort.is_some() { at_most(0) } else { at_most(args.limit) };
    let mut groups = context.letters.groups(filter, most).await?;
    let view = |groups: &mut Vec<Group>| args.view.apply(groups, context.out.format, plain_table);
    // It sorts all of them; the table is made once more after the cut, with the widths of those that are left.
    view(&mut groups)?;
    groups.truncate(at_most(args.limit) as usize);
    let view = view(&mut groups)?;
    if !context.out.is_table() {
        context.out.documents("groups", &groups)?;
        return Ok(ExitCode::SUCCESS);
    }
    if groups.is_empty() {
        say!("no letters match");
        return Ok(ExitCode::SUCCESS);
    }
    context.out.table(&view)?;
    Ok(ExitCode::SUCCESS)
}

fn plain_table(groups: &[Group]) -> Table {
    let mut table = Table::new(&[
        Column::whole("COUNT", 0),
        Column::whole("GROUP", 0),
        Column::text("CONSUMER", 2, 12),
        Column::whole("CLASS", 4),
        Column::whole("CAUSE", 3),
        Column::whole("FIRST", 5),
        Column::whole("LAST", 1),
        Column::main("ERROR", 20),
    ]);
    for group in groups {
        let sample = &group.sample;
        table.row([
            Cell::number(group.count),
            group.fingerprint.to_string().into(),
            group.consumer.as_str().into(),
            sample.class.to_string().into(),
            cause(group).into(),
            Cell::age(group.first_seen),
            Cell::age(group.last_seen),
            sample.error.as_str().into(),
        ]);
    }
    table
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
    let most = if args.view.sort.is_some() { at_most(0) } else { limit.max(1_000) };
    let mut all = store.triaged_groups(filter, most).await?;
    all.retain(|it| began.is_none_or(|began| it.group.first_seen >= began));
    let is_meant = |state: GroupState| {
        if args.state.is_empty() { state.is_open() } else { args.state.contains(&state) }
    };
    let (mut groups, rest): (Vec<_>, Vec<_>) = all.into_iter().partition(|it| is_meant(it.state));
    let letters: u64 = groups.iter().chain(&rest).map(|it| it.group.count).sum();
    let more = groups.len().saturating_sub(limit as usize);
    let view = |groups: &mut Vec<TriagedGroup>| {
        args.view.apply(groups, context.out.format, |groups| table(groups, letters))
    };
    // It sorts all of them; the table is made once more after the cut, with the widths of those that are left.
    view(&mut groups)?;
    groups.truncate(limit as usize);
    let view = view(&mut groups)?;
    if !context.out.is_table() {
        context.out.documents("groups", &groups)?;
        return Ok(ExitCode::SUCCESS);
    }
    if !groups.is_empty() {
        context.out.table(&view)?;
        // What is said stands below.
        context.out.flush()?;
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
        Column::state("STATE", 1),
        Column::text("CONSUMER", 4, 12),
        Column::whole("CAUSE", 7),
        Column::whole("HOUR", 3),
        Column::whole("SHARE", 8),
        Column::whole("FIRST", 6),
        Column::whole("LAST", 2),
        Column::text("OWNER", 5, 6),
        Column::main("ERROR", 20),
        Column::extra("CLASS"),
        Column::extra("DAY"),
        Column::extra("NOTE"),
    ]);
    for it in groups {
        let group = &it.group;
        let trend = if it.is_growing { "↑" } else { "" };
        let share = (group.count * 100).checked_div(letters).unwrap_or_default();
        let or_none = |text: &Option<String>| Cell::from(text.as_deref().unwrap_or("-"));
        table.row([
            Cell::number(group.count),
            group.fingerprint.to_string().into(),
            it.state.to_string().into(),
            group.consumer.as_str().into(),
            cause(group).into(),
            Cell::number(it.last_hour).shown(format!("{}{trend}", it.last_hour)),
            Cell::number(share).shown(format!("{share}%")),
            Cell::age(group.first_seen),
            Cell::age(group.last_seen),
            or_none(&it.record.owner),
            group.sample.error.as_str().into(),
            group.sample.class.to_string().into(),
            Cell::number(it.last_day),
            or_none(&it.record.note),
        ]);
    }
    table
}

fn cause(group: &Group) -> String {
    group.sample.cause.map_or_else(|| "-".to_owned(), |cause| cause.to_string())
}

use std::process::ExitCode;

use dlq_core::store::{GroupKey, GroupUpdate, Letters as _, Triage, TriagedGroup};
use dlq_core::{Clock as _, DeadLetters, Filter, SystemClock};

use super::Context;
use crate::ask;
use crate::cli::{GroupArgs, GroupCommand};
use crate::error::CliError;
use crate::output::{age, escape};

pub(super) async fn run(
    context: &mut Context,
    store: &DeadLetters,
    command: GroupCommand,
) -> Result<ExitCode, CliError> {
    let update = GroupUpdate::new();
    let (group, update) = match command {
        GroupCommand::Show(group) => (group, update),
        GroupCommand::Acknowledge(group) => (group, update.triage(Triage::Acknowledged)),
        GroupCommand::Snooze { group, time } => {
            (group, update.triage(Triage::Snoozed(SystemClock.now().after(time))))
        }
        GroupCommand::Resolve(group) => (group, update.triage(Triage::Resolved)),
        GroupCommand::Reopen(group) => (group, update.triage(Triage::New)),
        GroupCommand::Assign { group, owner } => (group, update.owner(owner)),
        GroupCommand::Note { group, text } => (group, update.note(text)),
    };
    let key = key(context, &group).await?;
    if !update.is_empty() {
        let by = ask::actor(group.reason.as_deref());
        store.update_group(key.clone(), update, by).await?;
    }
    // The group is shown after each change, read anew: another may have decided at the same time.
    show(context, store, &key).await
}

/// Finds out which consumer's group is meant.
async fn key(context: &Context, args: &GroupArgs) -> Result<GroupKey, CliError> {
    if let Some(consumer) = &args.consumer {
        // A group needs no letters: it may be known from before.
        return Ok(GroupKey::new(consumer.clone(), args.group));
    }
    let filter = Filter::new().with_fingerprint(args.group);
    let groups = context.letters.groups(filter, 100).await?;
    match groups.as_slice() {
        [one] => Ok(one.key()),
        [] => Err(CliError::failed(format!(
            "no letter is in the group {}; `dlq groups` shows which there are, and --consumer names one without letters",
            args.group
        ))),
        many => {
            let names: Vec<_> = many.iter().map(|group| escape(&group.consumer)).collect();
            Err(CliError::refused(format!(
                "several consumers have letters in the group {}; say --consumer with one of: {}",
                args.group,
                names.join(", ")
            )))
        }
    }
}

async fn show(
    context: &mut Context,
    store: &DeadLetters,
    key: &GroupKey,
) -> Result<ExitCode, CliError> {
    let groups = store.triaged_groups(key.filter(), 1).await?;
    let record = store.group_record(key.clone()).await?;
    if !context.out.is_table() {
        let document = match groups.first() {
            Some(group) => serde_json::to_value(group)?,
            // Of a group without letters there is the record alone.
            None => serde_json::json!({
                "consumer": key.consumer,
                "fingerprint": key.fingerprint,
                "count": 0,
                "record": record,
            }),
        };
        context.out.document(&document)?;
        return Ok(ExitCode::SUCCESS);
    }
    for (name, value) in lines(key, groups.first(), &record) {
        context.out.line(format_args!("{name:<13}{}", escape(&value)))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn lines(
    key: &GroupKey,
    group: Option<&TriagedGroup>,
    record: &dlq_core::store::GroupRecord,
) -> Vec<(&'static str, String)> {
    let mut lines = vec![
        ("group", key.fingerprint.to_string()),
        ("consumer", key.consumer.clone()),
        ("letters", group.map_or(0, |it| it.group.count).to_string()),
    ];
    if let Some(it) = group {
        let trend = if it.is_growing { ", growing" } else { "" };
        lines.push(("state", it.state.to_string()));
        lines.push((
            "of late",
            format!("{} in an hour, {} in a day{trend}", it.last_hour, it.last_day),
        ));
        lines.push((
            "first seen",
            format!("{} ({})", it.group.first_seen, age(it.group.first_seen)),
        ));
        lines.push(("last seen", format!("{} ({})", it.group.last_seen, age(it.group.last_seen))));
        lines.push(("error", it.group.sample.error.clone()));
    }
    if let Triage::Snoozed(until) = record.triage {
        lines.push(("snoozed", format!("until {until}")));
    }
    if let Some(at) = record.decided_at {
        let who = record.decided_by.as_deref().unwrap_or("unknown");
        lines.push(("decided", format!("by {who}, {} ago", age(at))));
    }
    lines.extend(record.owner.clone().map(|owner| ("owner", owner)));
    lines.extend(record.note.clone().map(|note| ("note", note)));
    lines
}

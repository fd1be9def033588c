use std::process::ExitCode;

use dlq_admin::shown::{audit_diff, audit_entry, audit_subject};
use dlq_core::DeadLetters;
use dlq_core::store::{AuditEntry, AuditRequest, Letters as _, Maintenance as _};

use super::{Context, at_most, op};
use crate::cli::AuditArgs;
use crate::error::CliError;
use crate::filter::letter_id;
use crate::output::{Column, Table, age, escape};

pub(super) async fn run(
    context: &mut Context,
    store: &DeadLetters,
    args: AuditArgs,
) -> Result<ExitCode, CliError> {
    let mut request = AuditRequest::latest(at_most(args.limit));
    if let Some(digits) = &args.letter {
        let id = letter_id(&context.letters, digits).await?;
        request = request.letter(id);
        // What was done to all letters of the operation was done to it.
        request.operation = match context.letters.get(id).await? {
            Some(letter) => letter.state.operation,
            None => None,
        };
    }
    if let Some(digits) = &args.op {
        request = request.operation(op::named(store, digits).await?);
    }
    request.by = args.by;
    request.action = args.action;
    request.since = args.since.map(|when| when.0);
    request.until = args.until.map(|when| when.0);
    let mut entries = store.store().audit(request).await?;
    for entry in &mut entries {
        // Masked before the format is chosen, so that JSON has no more than the table.
        *entry = context.out.rules().entry(entry);
    }
    if !context.out.is_table() {
        let shown: Vec<_> = entries.iter().map(audit_entry).collect();
        context.out.documents("entries", &shown)?;
        return Ok(ExitCode::SUCCESS);
    }
    if entries.is_empty() {
        say!("nothing was done that matches");
        return Ok(ExitCode::SUCCESS);
    }
    if args.diff {
        return with_edits(context, &entries);
    }
    let mut table = Table::new(&[
        Column::whole("AGE", 0),
        Column::text("BY", 1, 8),
        Column::whole("ACTION", 0),
        Column::whole("LETTERS", 2),
        Column::text("WHAT", 0, 20),
        Column::text("NOTE", 3, 10),
    ]);
    for entry in &entries {
        table.row([
            age(entry.at),
            entry.by.who.clone(),
            entry.action.clone(),
            entry.affected.to_string(),
            audit_subject(entry),
            entry.by.note.clone().unwrap_or_default(),
        ]);
    }
    context.out.table(&table)?;
    Ok(ExitCode::SUCCESS)
}

/// Every entry on a line of its own, those of edits with what was before and after.
fn with_edits(context: &mut Context, entries: &[AuditEntry]) -> Result<ExitCode, CliError> {
    for entry in entries {
        let note = entry.by.note.as_ref().map_or_else(String::new, |note| format!(": {note}"));
        let line = format!(
            "{} {} {} {}{note}",
            entry.at,
            entry.by.who,
            entry.action,
            audit_subject(entry)
        );
        context.out.line(escape(&line))?;
        audit_diff(entry).iter().try_for_each(|line| context.out.line(format!("  {line}")))?;
    }
    Ok(ExitCode::SUCCESS)
}

use std::io::Read as _;
use std::process::ExitCode;

use dlq_admin::mask::MASK;
use dlq_core::store::{AuditEntry, AuditRequest, Edit, Maintenance as _};
use dlq_core::{DeadLetter, DeadLetters, StoreError};

use super::Context;
use crate::ask;
use crate::cli::EditArgs;
use crate::editor::Draft;
use crate::error::CliError;
use crate::filter::{Attribute, letter_id};
use crate::output::diff;

pub(super) async fn run(
    context: &mut Context,
    store: &DeadLetters,
    args: EditArgs,
) -> Result<ExitCode, CliError> {
    let is_payload = args.payload.is_some() || args.payload_text.is_some() || args.no_payload;
    if !(is_payload || args.editor || args.undo)
        && args.header.is_empty()
        && args.remove_header.is_empty()
    {
        return Err(CliError::refused(
            "nothing to change was given; say --payload FILE, --payload-text TEXT, --no-payload, --editor, --header \
             NAME=VALUE, --remove-header NAME or --undo",
        ));
    }
    // The real letter and not a masked one: what an editor gives back becomes the payload.
    let letter = store.get(letter_id(&context.letters, &args.id).await?).await?;
    if args.undo {
        let edit = undoing(store, &letter).await?;
        return change(context, store, &args, &letter, edit).await;
    }
    if !args.editor {
        return change(context, store, &args, &letter, payload(&args)?).await;
    }
    let before = letter.message.payload();
    let draft = Draft::edit(before).await?;
    let edit = match draft.written(before)? {
        Some(payload) => Edit::new().payload(payload),
        None => Edit::new(),
    };
    let changed = change(context, store, &args, &letter, edit).await;
    // What was typed is not lost when the edit is refused, or was only tried.
    if changed.is_err() || args.confirm.dry_run {
        say!("what you wrote is kept in {}", draft.keep()?.display());
    }
    changed
}

/// The edit that undoes the latest one.
async fn undoing(store: &DeadLetters, letter: &DeadLetter) -> Result<Edit, CliError> {
    // Edits of others may hold its id in their payloads.
    let of_letter = |entry: &AuditEntry| {
        let subject = serde_json::from_str::<serde_json::Value>(&entry.subject).ok()?;
        let is_changed = subject.get("payload").is_some() || subject.get("headers").is_some();
        (is_changed && *subject.get("letter")? == letter.id.to_string()).then_some(())
    };
    // Letters that were revealed in a console have entries that changed nothing, behind which the edit stands.
    let mut request = AuditRequest::latest(100).letter(letter.id).action("edit");
    loop {
        let entries = store.store().audit(request.clone()).await?;
        if let Some(entry) = entries.iter().find(|entry| of_letter(entry).is_some()) {
            return Edit::undoing(&entry.subject, letter).map_err(|error| {
                let detail = error.to_string();
                StoreError::new(error.kind(), "undo the edit").with_detail(detail).into()
            });
        }
        let Some(last) = entries.last() else { break };
        request.before = Some(last.number);
    }
    Err(CliError::refused(format!("letter {} was not edited; there is nothing to undo", letter.id)))
}

/// The payload that was given.
fn payload(args: &EditArgs) -> Result<Edit, CliError> {
    let edit = Edit::new();
    if args.no_payload {
        return Ok(edit.no_payload());
    }
    if let Some(text) = &args.payload_text {
        return Ok(edit.payload(text.clone()));
    }
    let Some(path) = &args.payload else { return Ok(edit) };
    let mut payload = Vec::new();
    let read = if path.as_os_str() == "-" {
        // A payload is bytes: unlike that of an editor, the end of its last line is left as it came.
        std::io::stdin().lock().read_to_end(&mut payload).map(|_| ())
    } else {
        std::fs::read(path).map(|bytes| payload = bytes)
    };
    read.map_err(|error| {
        CliError::failed(format!("cannot read the payload from {}: {error}", path.display()))
    })?;
    Ok(edit.payload(payload))
}

async fn change(
    context: &mut Context,
    store: &DeadLetters,
    args: &EditArgs,
    letter: &DeadLetter,
    mut edit: Edit,
) -> Result<ExitCode, CliError> {
    for name in &args.remove_header {
        edit = edit.remove_header(name.clone());
    }
    for Attribute(name, value) in &args.header {
        edit = edit.set_header(name.clone(), value.clone());
    }
    if args.allow_invalid {
        edit = edit.allow_invalid();
    }
    let after = edit.apply(&letter.message).map_err(|error| {
        let error = StoreError::new(error.kind(), "edit the letter").with_detail(error.to_string());
        CliError::from(error).hinting("--allow-invalid takes it as it is")
    })?;
    if context.out.rules().is_written(&letter.message, &after) {
        return Err(CliError::refused(format!(
            "cannot edit the letter: `{MASK}` would stand where a rule of the configuration file masks a value; take what is there \
             from dlq show --payload --unmasked"
        )));
    }
    // An edit that changes nothing would stand in the audit as one, or as a letter that was revealed.
    if after == letter.message {
        say!("nothing to change: the letter is like that already");
        return show(context, letter, false);
    }
    if context.out.is_table() {
        let rules = context.out.rules();
        let [before, after] = [&letter.message, &after]
            .map(|message| rules.message(message).unwrap_or_else(|| message.clone()));
        diff(&before, &after).iter().try_for_each(|line| context.out.line(line))?;
        if before == after {
            say!("what changes is masked by rules of the configuration file");
        }
        // The operator sees the difference before the question.
        context.out.flush()?;
    }
    if args.confirm.dry_run {
        say!("dry run: nothing was changed");
        return show(context, &letter.clone().with_message(after), false);
    }
    ask::agree(args.confirm.yes, "edit", 1)?;
    let by = ask::actor(args.confirm.note.as_deref());
    // The store refuses the edit if payload or key are no longer those that were shown.
    let edited = store.edit(letter.id, edit.expecting(letter), by).await?;
    say!("edited {}; a replay sends what it is now", letter.id);
    show(context, &edited, true)
}

/// The letter, for programs.
fn show(context: &mut Context, letter: &DeadLetter, is_edited: bool) -> Result<ExitCode, CliError> {
    if !context.out.is_table() {
        context.out.document(&serde_json::json!({
            "edited": is_edited, "letter": context.out.masked(letter),
        }))?;
    }
    Ok(ExitCode::SUCCESS)
}

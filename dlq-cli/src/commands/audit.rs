use std::process::ExitCode;

use bytes::Bytes;
use dlq_core::store::{AuditEntry, AuditRequest, Letters as _, Maintenance as _};
use dlq_core::{DeadLetters, Headers, Message};
use serde_json::Value;

use super::{Context, at_most, op};
use crate::cli::AuditArgs;
use crate::error::CliError;
use crate::filter::letter_id;
use crate::output::{Column, Table, age, diff, escape};

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
    let entries = store.store().audit(request).await?;
    if !context.out.is_table() {
        let shown = entries.iter().map(shown).collect::<Result<Vec<_>, _>>()?;
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
            what(entry),
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
        let line = format!("{} {} {} {}{note}", entry.at, entry.by.who, entry.action, what(entry));
        context.out.line(escape(&line))?;
        let subject: Value = serde_json::from_str(&entry.subject).unwrap_or_default();
        if entry.action == "edit" {
            let (before, after) = (message(&subject, "before"), message(&subject, "after"));
            diff(&before, &after)
                .iter()
                .try_for_each(|line| context.out.line(format!("  {line}")))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// An entry as programs get it: its subject is a document, too, where it is one.
fn shown(entry: &AuditEntry) -> Result<Value, CliError> {
    let mut shown = serde_json::to_value(entry)?;
    if let Ok(subject) = serde_json::from_str(&entry.subject) {
        shown["subject"] = subject;
    }
    Ok(shown)
}

/// The parts of a message that an edit changed, as they were on this side of it.
fn message(subject: &Value, side: &str) -> Message {
    let mut headers = Headers::new();
    for header in subject["headers"].as_array().into_iter().flatten() {
        let name = text(&header["name"]).unwrap_or_default();
        for value in header[side].as_array().into_iter().flatten() {
            headers.append(name.clone(), text(value).unwrap_or_default());
        }
    }
    let message = match subject.get("payload").map(|payload| text(&payload[side])) {
        None => Message::new("", ""),
        Some(None) => Message::tombstone(""),
        Some(Some(payload)) => Message::new("", payload),
    };
    message.with_headers(headers)
}

/// Bytes as the audit keeps them; of many, the first.
fn text(value: &Value) -> Option<Bytes> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(Bytes::from(text.clone())),
        cut if cut.get("start").is_some() => {
            let start = text(&cut["start"]).unwrap_or_default();
            let more = format!("… of {} bytes, BLAKE3 {}", cut["length"], cut["blake3"]);
            Some([&start[..], more.as_bytes()].concat().into())
        }
        other => Some(Bytes::from(other.to_string())),
    }
}

/// The subject of an action in a few words: the parts of a filter that say something.
fn what(entry: &AuditEntry) -> String {
    let Ok(Value::Object(subject)) = serde_json::from_str(&entry.subject) else {
        return entry.subject.clone();
    };
    if entry.action == "edit" {
        let letter = subject.get("letter").and_then(Value::as_str).unwrap_or_default();
        let names = subject.get("headers").and_then(Value::as_array).into_iter().flatten();
        let names = names.map(|header| format!("header {}", word(&header["name"])));
        let payload = subject.contains_key("payload").then(|| "payload".to_owned());
        let changed: Vec<_> = payload.into_iter().chain(names).collect();
        return format!("{} of {letter}", changed.join(", "));
    }
    let said = words(&subject);
    if said.is_empty() { "all letters".to_owned() } else { said.join(" ") }
}

fn words(object: &serde_json::Map<String, Value>) -> Vec<String> {
    let mut said = Vec::new();
    for (name, value) in object {
        match value {
            // Parts that are absent, false or empty narrow nothing, and would only hide those that do.
            Value::Null | Value::Bool(false) => {}
            Value::Array(values) if values.is_empty() => {}
            Value::Object(inner) if name == "filter" => said.extend(words(inner)),
            Value::Object(inner) if inner.is_empty() => {}
            Value::Array(values) => {
                let values: Vec<_> = values.iter().map(word).collect();
                said.push(format!("{name}={}", values.join(",")));
            }
            value => said.push(format!("{name}={}", word(value))),
        }
    }
    said
}

/// A string without its quotes, and everything else as JSON.
fn word(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

//! Entries of the audit.

use bytes::Bytes;
use dlq_core::store::AuditEntry;
use dlq_core::{Headers, Message};
use serde_json::{Value, json};

use super::diff;

/// Returns an entry as programs get it: its subject is a document, too, where it is one.
#[must_use]
pub fn audit_entry(entry: &AuditEntry) -> Value {
    let subject = serde_json::from_str(&entry.subject);
    json!({
        "number": entry.number,
        "at": entry.at,
        "by": entry.by,
        "action": entry.action,
        "subject": subject.unwrap_or_else(|_| Value::String(entry.subject.clone())),
        "affected": entry.affected,
        "operation": entry.operation,
    })
}

/// Returns the lines that an edit changed; none for other actions.
#[must_use]
pub fn audit_diff(entry: &AuditEntry) -> Vec<String> {
    if entry.action != "edit" {
        return Vec::new();
    }
    let subject: Value = serde_json::from_str(&entry.subject).unwrap_or_default();
    diff(&message(&subject, "before"), &message(&subject, "after"))
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
        // The audit keeps the first bytes of a long payload with its length and hash, and these are what can be
        // compared.
        cut if cut.get("start").is_some() => {
            let start = text(&cut["start"]).unwrap_or_default();
            let more = format!("… of {} bytes, BLAKE3 {}", cut["length"], cut["blake3"]);
            Some([&start[..], more.as_bytes()].concat().into())
        }
        other => Some(Bytes::from(other.to_string())),
    }
}

/// Returns the subject of an action in a few words: the parts of a filter that say something.
#[must_use]
pub fn audit_subject(entry: &AuditEntry) -> String {
    let Ok(Value::Object(subject)) = serde_json::from_str(&entry.subject) else {
        return entry.subject.clone();
    };
    if entry.action == "edit" {
        let letter = subject.get("letter").and_then(Value::as_str).unwrap_or_default();
        // Names alone: this line is shown to the role `read`, too.
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
            Value::Object(inner)
                if matches!(&**name, "filter" | "group" | "letters" | "update") =>
            {
                said.extend(words(inner));
            }
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

//! Parts that are hidden from the role `read`: payloads, keys and values of headers, also where the audit quotes them.

use dlq_core::store::AuditEntry;
use dlq_core::{DeadLetter, Header, Message};
use serde_json::{Value, json};

use crate::shown::audit_entry;

/// Names of the fields of a letter that are hidden.
pub(crate) const FIELDS: [&str; 3] = ["message.key", "message.payload", "message.headers[].value"];

/// Returns the letter without payload, key and values of headers.
pub(crate) fn letter(letter: &DeadLetter) -> DeadLetter {
    let full = &letter.message;
    let names =
        full.headers().iter().map(|header| Header { name: header.name.clone(), value: None });
    let mut message =
        // The message is built anew from what may be seen, so that a part which messages get one day is hidden until
        // somebody decides.
        Message::tombstone(full.subject_shared().clone()).with_headers(names.collect());
    if let Some(id) = full.id() {
        message = message.with_id(id);
    }
    if let Some(event) = full.event() {
        message = message.with_event(event);
    }
    if let Some(at) = full.published_at() {
        message = message.with_published_at(at);
    }
    letter.clone().with_message(message)
}

/// Returns an entry of the audit without what an edit changed.
pub(crate) fn entry(entry: &AuditEntry) -> Value {
    let mut shown = audit_entry(entry);
    // Only edits quote messages; the subjects of other actions are filters and ids.
    if entry.action != "edit" {
        return shown;
    }
    // A subject that cannot be read may quote anything, so nothing of it is shown.
    let Some(subject) = shown["subject"].as_object_mut() else {
        shown["subject"] = Value::Null;
        return shown;
    };
    if let Some(payload) = subject.get_mut("payload") {
        *payload = json!("hidden");
    }
    for header in subject.get_mut("headers").and_then(Value::as_array_mut).into_iter().flatten() {
        // The entry of the header is replaced whole, which drops what was before and after under any name.
        *header = json!({ "name": header["name"] });
    }
    shown
}

#[cfg(test)]
mod tests {
    use dlq_core::Timestamp;
    use dlq_core::store::{Actor, Edit, Hands};
    use dlq_testkit::fixtures;

    use super::*;

    #[test]
    fn nothing_that_is_secret_is_left() {
        let mut full = fixtures::letter(7);
        full.message = Message::new("s", "s3cret-payload")
            .with_key("s3cret-key")
            .with_header("h", "s3cret-value");
        let shown = serde_json::to_string(&letter(&full)).unwrap();
        assert!(!shown.contains("s3cret") && shown.contains("\"h\""), "{shown}");
        let edit = Edit::new().payload("s3cret-too").set_header("h", "s3cret-also");
        let hands = Hands { is_held: false, is_record: false };
        let amended = edit.amend(&mut full, hands, Timestamp::EPOCH).unwrap();
        let entry = entry(&AuditEntry {
            number: 1,
            at: Timestamp::EPOCH,
            by: Actor::new("ana"),
            action: "edit".to_owned(),
            subject: amended.subject,
            affected: 1,
            operation: None,
        });
        let text = entry.to_string();
        assert!(!text.contains("s3cret") && text.contains("\"h\""), "{text}");
    }
}

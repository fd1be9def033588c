//! Documents that a server's own drivers would not write.

use dlq_core::{ErrorClass, Status, Timestamp};
use mongodb::bson::oid::ObjectId;
use mongodb::bson::{Bson, Document, RawDocument, doc};

use super::letter::Reader;

fn reader() -> Reader {
    Reader {
        cluster: "shop".to_owned(),
        stream: "shop.event_dlq".to_owned(),
        consumer: "event_dlq".to_owned(),
        service: None,
        class: ErrorClass::Transient,
        opened_at: Timestamp::from_millis(1_790_000_000_000),
        skipped: Vec::new(),
    }
}

fn read(bytes: &[u8]) -> Result<dlq_core::DeadLetter, super::BadDocument> {
    reader().read(RawDocument::from_bytes(bytes).unwrap())
}

/// The bytes of a document in which each `?` stands for a byte that no text of UTF-8 has.
fn torn(document: &Document) -> Vec<u8> {
    let bytes = document.to_vec().unwrap();
    bytes.into_iter().map(|byte| if byte == b'?' { 0xff } else { byte }).collect()
}

fn document() -> Document {
    doc! { "_id": "k", "event_name": "e", "original_id": "o", "payload": Bson::Null, "error": "x" }
}

#[test]
fn texts_that_are_not_utf8_are_kept_as_their_bytes() {
    let mut document = document();
    document.insert("error", "caf?");
    document.insert("metadata", doc! { "h": "a?b", "i": "é" });
    document.insert("note", "?");
    let letter = read(&torn(&document)).unwrap();
    assert_eq!(letter.error(), "caf\u{fffd}");
    assert_eq!(letter.attributes["column.error"], "\\x636166ff");
    assert_eq!(letter.attributes["column.note"], "\\xff");
    assert_eq!(letter.message.headers().get("h"), Some(&b"a\xffb"[..]));
    assert_eq!(letter.message.headers().get("i"), Some("é".as_bytes()));
    assert_eq!(letter.state.status, Status::Pending);
}

#[test]
fn what_cannot_be_read_is_told_with_its_key() {
    let mut document = document();
    document.insert("nested", doc! { "a": "?" });
    let bad = read(&torn(&document)).unwrap_err();
    assert_eq!(bad.key, "_id=k");
    assert!(bad.why.starts_with("field `nested`: it cannot be read"), "{bad}");
    let bad = read(&doc! { "event_name": "e" }.to_vec().unwrap()).unwrap_err();
    assert_eq!(bad.why, "it has no `_id`");
}

#[test]
fn each_key_is_a_letter_of_its_own() {
    let id = ObjectId::new();
    let keys: Vec<Bson> = vec![
        "5".into(),
        5_i32.into(),
        5_i64.into(),
        5.0.into(),
        id.into(),
        id.to_hex().into(),
        "".into(),
        doc! { "a": 5_i32 }.into(),
        true.into(),
    ];
    let letter = |key: &Bson| {
        let mut document = document();
        document.insert("_id", key.clone());
        read(&document.to_vec().unwrap()).unwrap()
    };
    let ids: std::collections::BTreeSet<_> = keys.iter().map(|key| letter(key).id).collect();
    assert_eq!(ids.len(), keys.len());
    assert!(keys.iter().all(|key| ids.contains(&letter(key).id)), "they are the same each time");
}

//! Fields of event-dlq's documents.

use std::collections::BTreeSet;

use mongodb::bson::RawDocumentBuf;

use super::value;

/// A field and what it is taken for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ForeignField {
    /// Its name.
    pub name: String,
    /// The types of its values, as the database calls them.
    pub types: BTreeSet<&'static str>,
    /// The part of a letter that it holds.
    pub meaning: Meaning,
}

/// The part of a letter that a field holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Meaning {
    /// A part that is known, in a word: `payload`, `created-at`.
    Field(&'static str),
    /// The attribute `column.NAME`.
    Attribute,
    /// None: it is left out, as was asked for.
    Skipped,
}

/// The fields that event-dlq writes, in words of our letters.
const KNOWN: &[(&str, &str)] = &[
    ("event_name", "event"),
    ("original_id", "id"),
    ("payload", "payload"),
    ("metadata", "headers"),
    ("error", "error"),
    ("retry_count", "retry-count"),
    ("source", "service"),
    ("created_at", "created-at"),
    ("retried_at", "retried-at"),
    ("quarantined_at", "quarantined-at"),
];

/// The fields by which a collection is told.
pub(super) const TOLD_BY: [&str; 4] = ["event_name", "original_id", "payload", "error"];

pub(super) fn meaning(name: &str, skipped: &[String]) -> Meaning {
    if skipped.iter().any(|skipped| skipped == name) {
        return Meaning::Skipped;
    }
    let known = KNOWN.iter().find(|(known, _)| *known == name);
    known.map_or(Meaning::Attribute, |(_, field)| Meaning::Field(field))
}

/// The fields of some documents, in the order in which they are met.
pub(super) fn listed(documents: &[RawDocumentBuf], skipped: &[String]) -> Vec<ForeignField> {
    let mut fields: Vec<ForeignField> = Vec::new();
    for document in documents {
        // A document that is not whole is told when it is read.
        for (name, value) in value::elements(document).map_while(Result::ok) {
            let types = match fields.iter_mut().find(|field| field.name == name) {
                Some(field) => &mut field.types,
                None => {
                    let meaning = meaning(name, skipped);
                    let types = BTreeSet::new();
                    fields.push(ForeignField { name: name.to_owned(), types, meaning });
                    match fields.last_mut() {
                        Some(field) => &mut field.types,
                        None => continue,
                    }
                }
            };
            types.insert(value.type_name());
        }
    }
    fields
}

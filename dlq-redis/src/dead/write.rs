//! Format of a letter as an entry.

use dlq_core::protocol::{self, Facts, of_death};
use dlq_core::{DeadLetter, Death, Headers, Message, Origin};
use serde::{Deserialize, Serialize};

use crate::consumer::wire::{self, Fields};

/// The field with the facts that no other field has.
pub(super) const REST: &str = "rest";
/// Number of headers beyond which they travel in one field: a script takes some 7,900 arguments.
const MANY: usize = 3000;

/// Facts of a letter that no header has.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Rest {
    /// The message without its payload, and without its headers unless they are here.
    pub(super) message: Message,
    /// True if the headers are here.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) exact: bool,
    pub(super) origin: Origin,
    pub(super) death: Death,
    pub(super) facts: Facts,
}

/// Writes a letter: pairs of name and value.
pub(super) fn letter(letter: &DeadLetter) -> Result<Vec<Vec<u8>>, serde_json::Error> {
    let mut flat = Vec::new();
    let mut to = |name: &[u8], value: &[u8]| flat.extend([name.to_vec(), value.to_vec()]);
    let message = &letter.message;
    wire::body(message, &Fields::default(), "", &mut to);
    let exact = message.headers().len() > MANY;
    if !exact {
        for header in protocol::producers(message.headers()) {
            wire::header(&header, &Fields::default(), &mut to);
        }
    }
    for (name, value) in of_death(letter).iter() {
        to(format!("h:{name}").as_bytes(), value.as_bytes());
    }
    let mut bare = message.clone().with_payload(None);
    if !exact {
        // They stand as fields of the entry, and need not be written twice.
        bare = bare.with_headers(Headers::new());
    }
    let rest = Rest {
        message: bare,
        exact,
        origin: letter.origin.clone(),
        death: letter.death(),
        facts: Facts::of(letter),
    };
    // Last, so that it is found although a producer may have a field of the same name.
    to(REST.as_bytes(), &serde_json::to_vec(&rest)?);
    Ok(flat)
}

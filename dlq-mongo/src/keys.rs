//! Keys and ids as the database has them.

use dlq_core::store::rules::DedupKey;
use dlq_core::{LetterId, OperationId};
use mongodb::bson::{Binary, Bson, spec::BinarySubtype};

use crate::error::{Fault, Result};

pub(crate) fn binary(bytes: impl Into<Vec<u8>>) -> Bson {
    Bson::Binary(Binary { subtype: BinarySubtype::Generic, bytes: bytes.into() })
}

pub(crate) fn letter(id: LetterId) -> Bson {
    binary(*id.as_bytes())
}

pub(crate) fn operation(id: OperationId) -> Bson {
    binary(*id.as_bytes())
}

/// The id of an item: that of its operation, then the index, so that items are in frozen order.
pub(crate) fn item(operation: OperationId, index: u64) -> Bson {
    let mut bytes = operation.as_bytes().to_vec();
    bytes.extend_from_slice(&index.to_be_bytes());
    binary(bytes)
}

pub(crate) fn bytes(value: Option<&Bson>) -> Option<&[u8]> {
    match value {
        Some(Bson::Binary(binary)) => Some(&binary.bytes),
        _ => None,
    }
}

pub(crate) fn id(value: Option<&Bson>) -> Option<[u8; 16]> {
    bytes(value)?.try_into().ok()
}

/// The key of an original message: what the name is, then each text with its length in front.
pub(crate) fn encoded(key: &DedupKey) -> Vec<u8> {
    let mut bytes = vec![u8::from(key.is_event)];
    for text in [&key.name, &key.message_id, &key.consumer] {
        bytes.extend_from_slice(&(text.len() as u64).to_le_bytes());
        bytes.extend_from_slice(text.as_bytes());
    }
    bytes
}

/// Reads what [`encoded`] wrote.
pub(crate) fn decoded(bytes: &[u8]) -> Result<DedupKey> {
    let read = || {
        let (is_event, mut rest) = bytes.split_first()?;
        let mut text = || {
            let (length, after) = rest.split_first_chunk()?;
            let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
            let (text, after) = after.split_at_checked(length)?;
            rest = after;
            String::from_utf8(text.to_vec()).ok()
        };
        let (name, message_id, consumer) = (text()?, text()?, text()?);
        Some(DedupKey { is_event: *is_event != 0, name, message_id, consumer })
    };
    read().ok_or_else(|| Fault::corrupt("key of an original", &"it is cut off"))
}

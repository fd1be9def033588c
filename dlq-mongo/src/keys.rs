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

/// Reads the key of an original message.
pub(crate) fn dedup(bytes: &[u8]) -> Result<DedupKey> {
    DedupKey::from_bytes(bytes)
        .ok_or_else(|| Fault::corrupt("key of an original", &"it is cut off"))
}

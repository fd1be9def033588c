//! The key of an original message as bytes.

use dlq_core::store::rules::DedupKey;

use crate::error::{Fault, Result};

/// The key as it is stored: what the name is, then each text with its length in front.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_as_it_was_written() {
        let key = DedupKey {
            is_event: true,
            name: "orders.créé".to_owned(),
            message_id: "evt-1".to_owned(),
            consumer: String::new(),
        };
        let bytes = encoded(&key);
        assert_eq!(decoded(&bytes).unwrap(), key);
        for length in 0..bytes.len() {
            assert!(decoded(&bytes[..length]).is_err(), "cut off at {length}");
        }
    }
}

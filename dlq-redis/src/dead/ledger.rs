//! The ledger of a stream of dead letters: which deaths were sent back, by which operation, when and how often.
//!
//! It is a hash beside the stream. A field is the name of a death, its value `OPERATION MILLISECONDS TIMES`.

use dlq_core::log::{Content, Entry};
use dlq_core::store::reading::Sent;
use dlq_core::{DeadLetter, Death, OperationId, Timestamp};
use redis::Value;

use crate::client::{RedisClient, RedisError, as_array, as_text};
use crate::consumer::Keys;

/// A death that was sent back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Marked {
    pub(super) operation: OperationId,
    pub(super) sent: Sent,
}

impl Marked {
    pub(super) fn read(text: &str) -> Option<Self> {
        let mut parts = text.split(' ');
        let operation = parts.next()?.parse().ok()?;
        let at = Timestamp::from_millis(parts.next()?.parse().ok()?);
        let times = parts.next()?.parse().ok()?;
        Some(Self { operation, sent: Sent { at, times } })
    }
}

/// The name of a death in the ledger.
pub(super) fn field(death: &Death) -> String {
    format!("{}.{}", death.letter, death.generation)
}

/// Reads what the ledger says of these deaths, in their order.
pub(super) async fn read(
    client: &RedisClient,
    keys: &Keys,
    deaths: &[Death],
) -> Result<Vec<Option<Marked>>, RedisError> {
    if deaths.is_empty() {
        return Ok(Vec::new());
    }
    let mut get = redis::cmd("HMGET");
    get.arg(keys.ledger());
    for death in deaths {
        get.arg(field(death));
    }
    let answer = client.command(&get).await?;
    let marked = |value: &Value| Marked::read(&as_text(value)?);
    let mut found: Vec<_> = as_array(&answer).iter().map(marked).collect();
    // Callers pair marks with deaths, so that a short answer must not shift them.
    found.resize(deaths.len(), None);
    Ok(found)
}

fn letter(entry: &mut Entry) -> Option<&mut DeadLetter> {
    match &mut entry.content {
        Content::Letter(letter) => Some(letter),
        Content::Outline(_) | Content::Damaged(_) | Content::Foreign => None,
    }
}

/// Has the letters of entries, of which nothing is said yet, say which of them were sent back.
pub(super) async fn mark(
    client: &RedisClient,
    keys: &Keys,
    entries: &mut [Entry],
) -> Result<(), RedisError> {
    let deaths: Vec<Death> =
        entries.iter_mut().filter_map(letter).map(|letter| letter.death()).collect();
    let found = read(client, keys, &deaths).await?;
    for (letter, marked) in entries.iter_mut().filter_map(letter).zip(found) {
        if let Some(marked) = marked {
            marked.sent.mark(&mut letter.state);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_read_and_anything_else_is_none() {
        let operation = OperationId::from_bytes([7; 16]);
        let found = Marked::read(&format!("{operation} 1790000000000 2")).unwrap();
        let at = Timestamp::from_millis(1_790_000_000_000);
        assert_eq!(found, Marked { operation, sent: Sent { at, times: 2 } });
        for text in ["", "x 1 2", &operation.to_string(), &format!("{operation} 1 -1")] {
            assert_eq!(Marked::read(text), None, "{text}");
        }
    }
}

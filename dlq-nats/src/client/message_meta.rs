//! Position of a message, according to the subject by which it is acknowledged.

use dlq_core::Timestamp;

/// Metadata of a message that the server hands out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MessageMeta {
    pub(crate) stream: String,
    /// Number of times that it was handed out, including this one.
    pub(crate) delivered: u32,
    pub(crate) sequence: u64,
    pub(crate) published: Timestamp,
}

impl MessageMeta {
    /// Reads `$JS.ACK.STREAM.CONSUMER.DELIVERED.SEQUENCE.CONSUMER_SEQUENCE.NANOS.PENDING`, before which newer servers
    /// write domain and account.
    pub(crate) fn read(reply: &str) -> Option<Self> {
        let rest = tokens(reply)?;
        Some(Self {
            stream: rest[0].to_owned(),
            delivered: u32::try_from(rest[2].parse::<u64>().ok()?).unwrap_or(u32::MAX),
            sequence: rest[3].parse().ok()?,
            published: Timestamp::from_nanos(rest[5].parse().ok()?),
        })
    }
}

/// The number of a delivery among all of its consumer.
pub(crate) fn handed(reply: &str) -> Option<u64> {
    tokens(reply)?[4].parse().ok()
}

/// Returns the tokens from the name of the stream on.
fn tokens(reply: &str) -> Option<Vec<&str>> {
    let mut tokens: Vec<&str> = reply.strip_prefix("$JS.ACK.")?.split('.').collect();
    match tokens.len() {
        7 => {}
        9.. => drop(tokens.drain(..2)),
        _ => return None,
    }
    Some(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_are_read() {
        let place = MessageMeta {
            stream: "ORDERS".to_owned(),
            delivered: 3,
            sequence: 42,
            published: Timestamp::from_nanos(1_790_000_000_000_000_001),
        };
        let rest = "ORDERS.billing.3.42.17.1790000000000000001.5";
        assert_eq!(handed(&format!("$JS.ACK.{rest}")), Some(17));
        assert_eq!(handed(&format!("$JS.ACK.hub.ACC.{rest}.token")), Some(17));
        assert_eq!(MessageMeta::read(&format!("$JS.ACK.{rest}")), Some(place.clone()));
        assert_eq!(MessageMeta::read(&format!("$JS.ACK.hub.ACC.{rest}.token")), Some(place));
        for odd in ["", "_INBOX.x", "$JS.ACK.a.b", "$JS.ACK.ORDERS.c.x.y.z.t.p"] {
            assert_eq!(MessageMeta::read(odd), None, "{odd}");
        }
    }
}

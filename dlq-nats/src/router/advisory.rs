//! Advisories of a server about messages that it has given up.

use dlq_core::{ErrorClass, Reason, Timestamp};
use serde::Deserialize;

use crate::client::names;

/// An advisory. It names the message and carries nothing of it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Advisory {
    #[serde(rename = "type")]
    kind: String,
    pub(super) timestamp: Timestamp,
    pub(super) stream: String,
    pub(super) consumer: String,
    #[serde(rename = "stream_seq")]
    pub(super) sequence: u64,
    #[serde(default)]
    pub(super) deliveries: u64,
    #[serde(default)]
    pub(super) reason: Option<String>,
    /// The JetStream domain that it comes from. What leaf nodes of one account say is heard at its hub, too.
    #[serde(default)]
    pub(super) domain: Option<String>,
    /// True if nobody reported it: the message was found in a stream that keeps only unhandled messages.
    #[serde(skip)]
    pub(super) is_left: bool,
}

/// Kind of end of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It was handed out as often as the consumer allows.
    Exhausted,
    /// The consumer refused it for good.
    Terminated,
    /// It left the stream before the consumer had acknowledged it.
    Removed,
}

impl Advisory {
    /// Reads one; `None` for what is no advisory of these kinds.
    pub(super) fn read(payload: &[u8]) -> Option<Self> {
        let advisory: Self = serde_json::from_slice(payload).ok()?;
        advisory.known().map(|_| advisory)
    }

    /// Returns the advisory of a message that was found in a stream that keeps only unhandled messages.
    pub(super) fn left(
        stream: &str,
        consumer: &str,
        sequence: u64,
        deliveries: u64,
        timestamp: Timestamp,
    ) -> Self {
        let (stream, consumer) = (stream.to_owned(), consumer.to_owned());
        // In a stream that drops what is settled, only what reached its limit of deliveries is left.
        let kind = "max_deliver".to_owned();
        let (reason, domain, is_left) = (None, None, true);
        Self { kind, timestamp, stream, consumer, sequence, deliveries, reason, domain, is_left }
    }

    fn known(&self) -> Option<Kind> {
        match self.kind.rsplit('.').next()? {
            "max_deliver" => Some(Kind::Exhausted),
            "terminated" => Some(match self.reason.as_deref() {
                // The server's words are all that tells a removal from a refusal. nats-server 2.9 has none, and it counts
                // as a refusal.
                Some("Unacknowledged message was deleted" | "Message deleted by stream limits") => {
                    Kind::Removed
                }
                _ => Kind::Terminated,
            }),
            _ => None,
        }
    }

    pub(super) fn kind(&self) -> Kind {
        // Others are not read.
        self.known().unwrap_or(Kind::Exhausted)
    }

    /// Returns true if it is known that the consumer did not handle the message, because it was found rather than
    /// reported. An advisory does not say who has sent it, and in a consumer's info a terminated message looks like an
    /// acknowledged one. Nor is it proven by a number of deliveries or by its absence from the stream: a worker may
    /// still be at it, whose acknowledgement will remove it from a work queue.
    pub(super) fn is_confirmed(&self) -> bool {
        self.is_left
    }

    /// The consumer as it calls itself. Those of ours write their name as the server takes it, unless they were given
    /// another for it.
    pub(super) fn calls_itself(&self) -> String {
        names::text(&self.consumer).unwrap_or_else(|| self.consumer.clone())
    }

    /// The message and the consumer that it is about.
    pub(super) fn about(&self) -> (String, String, u64) {
        (self.stream.clone(), self.consumer.clone(), self.sequence)
    }
}

impl Kind {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Exhausted => "max_deliveries",
            Self::Terminated => "terminated",
            Self::Removed => "removed",
        }
    }

    pub(super) fn reason(self) -> Reason {
        match self {
            Self::Exhausted => Reason::MaxDeliveries,
            Self::Terminated => Reason::Permanent,
            Self::Removed => Reason::Expired,
        }
    }

    pub(super) fn class(self) -> ErrorClass {
        match self {
            // Nothing says that the message is at fault itself: its worker may have died, or it may never have run.
            Self::Exhausted | Self::Removed => ErrorClass::Transient,
            Self::Terminated => ErrorClass::Permanent,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advisory(kind: &str, rest: &str) -> Option<Advisory> {
        let text = format!(
            r#"{{"type":"io.nats.jetstream.advisory.v1.{kind}","id":"X","timestamp":"2026-11-20T22:13:27.012158975Z",
            "stream":"S","consumer":"C","stream_seq":7,"deliveries":3{rest}}}"#
        );
        Advisory::read(text.as_bytes())
    }

    #[test]
    fn what_servers_say_is_read() {
        let exhausted = advisory("max_deliver", "").unwrap();
        assert_eq!(exhausted.about(), ("S".to_owned(), "C".to_owned(), 7));
        assert_eq!((exhausted.deliveries, exhausted.kind()), (3, Kind::Exhausted));
        assert_eq!(exhausted.timestamp.as_millis(), 1_795_212_807_012);
        let refused =
            advisory("terminated", r#","consumer_seq":2,"reason":"no `user_id`""#).unwrap();
        assert_eq!(
            (refused.kind(), refused.reason.as_deref()),
            (Kind::Terminated, Some("no `user_id`"))
        );
        assert_eq!(advisory("terminated", "").unwrap().kind(), Kind::Terminated);
        let deleted = advisory("terminated", r#","reason":"Unacknowledged message was deleted""#);
        assert_eq!(deleted.unwrap().kind(), Kind::Removed);
        assert_eq!(exhausted.domain, None);
        let edge = advisory("max_deliver", r#","domain":"edge-7""#).unwrap();
        assert_eq!(edge.domain.as_deref(), Some("edge-7"));
    }

    #[test]
    fn what_is_something_else_is_not() {
        assert_eq!(advisory("nak", ""), None);
        assert_eq!(advisory("max_deliver", "x"), None);
        assert_eq!(Advisory::read(b""), None);
        assert_eq!(Advisory::read(b"{}"), None);
    }

    #[test]
    fn g9_only_what_was_found_is_confirmed() {
        let is_confirmed = |kind, rest| advisory(kind, rest).unwrap().is_confirmed();
        assert!(!is_confirmed("max_deliver", ""));
        assert!(!is_confirmed("max_deliver", r#","is_left":true"#), "a server cannot say it");
        assert!(!is_confirmed("terminated", r#","reason":"no `user_id`""#), "anybody can say it");
        assert!(!is_confirmed("terminated", r#","reason":"Message deleted by stream limits""#));
        assert!(Advisory::left("S", "C", 7, 3, Timestamp::EPOCH).is_confirmed());
    }
}

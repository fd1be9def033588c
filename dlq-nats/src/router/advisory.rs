//! What a server says of a message that it has given up.

use async_nats::jetstream::stream::RetentionPolicy;
use dlq_core::{ErrorClass, Reason, Timestamp};
use serde::Deserialize;

/// Advisories of messages that were handed out as often as the consumer allows.
pub(crate) const MAX_DELIVERIES: &str = "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.>";
/// Advisories of messages that a consumer refused for good, or that were deleted before it acknowledged them.
pub(crate) const TERMINATED: &str = "$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.>";

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
}

/// What became of a message.
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

    /// What would have been said of a message that was handed out as often as the consumer allows.
    pub(super) fn exhausted(
        stream: &str,
        consumer: &str,
        sequence: u64,
        deliveries: u64,
        timestamp: Timestamp,
    ) -> Self {
        let (stream, consumer) = (stream.to_owned(), consumer.to_owned());
        let kind = "max_deliver".to_owned();
        Self { kind, timestamp, stream, consumer, sequence, deliveries, reason: None }
    }

    fn known(&self) -> Option<Kind> {
        match self.kind.rsplit('.').next()? {
            "max_deliver" => Some(Kind::Exhausted),
            "terminated" => Some(match self.reason.as_deref() {
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
            Self::Exhausted | Self::Removed => ErrorClass::Transient,
            Self::Terminated => ErrorClass::Permanent,
        }
    }

    /// Whether the consumer really did not handle the message. That it was handed out often does not say so: an
    /// acknowledgement may be on its way. One that is still in a stream which drops what is acknowledged was not.
    pub(super) fn is_confirmed(self, retention: Option<RetentionPolicy>) -> bool {
        match self {
            Self::Exhausted => retention.is_some_and(|kept| kept != RetentionPolicy::Limits),
            Self::Terminated | Self::Removed => true,
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
    }

    #[test]
    fn what_is_something_else_is_not() {
        assert_eq!(advisory("nak", ""), None);
        assert_eq!(advisory("max_deliver", "x"), None);
        assert_eq!(Advisory::read(b""), None);
        assert_eq!(Advisory::read(b"{}"), None);
    }

    #[test]
    fn only_a_stream_that_drops_what_is_acknowledged_confirms() {
        assert!(!Kind::Exhausted.is_confirmed(Some(RetentionPolicy::Limits)));
        assert!(!Kind::Exhausted.is_confirmed(None));
        assert!(Kind::Exhausted.is_confirmed(Some(RetentionPolicy::WorkQueue)));
        assert!(Kind::Terminated.is_confirmed(Some(RetentionPolicy::Limits)));
    }
}

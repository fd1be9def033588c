use dlq_core::{DeadLetter, Origin, Position};

use super::picture::Row;
use super::pointed::Unread;
use crate::client::ladder::is_topic;
use crate::client::record::Record;
use crate::client::wire::{VERSION, split_ours};
use crate::dialect;

/// The attribute of a letter that says where its message stands, `TOPIC/PARTITION/OFFSET`, when the record of the letter
/// does not have it.
pub(crate) const POINTER: &str = "kafka.pointer";

/// The attribute of a letter that names the group that wrote it, whose handler failed.
pub(crate) const GROUP: &str = "kafka.group";

/// The attribute of a letter whose message is not there any more.
const GONE: &str = "kafka.pointer.gone";

/// The attribute of a letter whose message cannot be read, with the reason.
const UNREAD: &str = "kafka.pointer.unread";

/// Position of a message that is not stored with its letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pointer<'a> {
    pub(super) topic: &'a str,
    pub(super) partition: u32,
    pub(super) offset: u64,
}

impl<'a> Pointer<'a> {
    /// Returns the pointer of a letter, if it has one.
    pub(super) fn of(letter: &'a DeadLetter) -> Option<Self> {
        let mut parts = letter.attributes.get(POINTER)?.rsplitn(3, '/');
        // Offsets of Kafka are signed: beyond this there is none, and the client would read another meaning into it.
        let offset = parts.next()?.parse().ok().filter(|offset| *offset < i64::MAX as u64)?;
        let partition = parts.next()?.parse().ok()?;
        let topic = parts.next().filter(|topic| is_topic(topic))?;
        Some(Self { topic, partition, offset })
    }

    /// Returns true if the pointer leads to the position where the message was born.
    fn is_to(&self, origin: &Origin) -> bool {
        (origin.stream(), origin.partition()) == (self.topic, Some(self.partition))
            && *origin.position() == Position::Offset(self.offset)
    }
}

impl std::fmt::Display for Pointer<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "offset {} of partition {} of `{}`", self.offset, self.partition, self.topic)
    }
}

/// A letter whose message has gone says so. One that points to none stays as it is.
pub(super) fn says_gone(mut letter: DeadLetter) -> DeadLetter {
    if let Some(pointer) = Pointer::of(&letter) {
        let gone = format!("{pointer} has gone");
        letter.attributes.insert(GONE.to_owned(), gone);
    }
    letter
}

/// A letter whose message cannot be read says why.
pub(super) fn says_unread(mut letter: DeadLetter, why: &Unread) -> DeadLetter {
    letter.attributes.insert(UNREAD.to_owned(), why.to_string());
    letter
}

/// The letter of this row with the payload of its own record; `None` when that is another by now.
pub(super) fn refilled(
    row: &Row,
    record: &Record,
    cluster: &std::sync::Arc<str>,
) -> Option<DeadLetter> {
    let read = dialect::letter(record, cluster);
    row.with_payload(read.message.payload()?.clone())
}

/// The letter with the message of the record to which it points; `None` when another stands there by now, since its topic was
/// made anew or lost its end.
pub(super) fn resolved(mut letter: DeadLetter, record: &Record) -> Option<DeadLetter> {
    // Only the record of the birth has the time of the message itself. Any other place may rightly have another time.
    if let (Some(published), Some(found)) = (letter.message.published_at(), record.timestamp)
        && published != found
        && Pointer::of(&letter).is_some_and(|pointer| pointer.is_to(&letter.origin))
    {
        return None;
    }
    let mut message = letter.message.with_payload(record.value.clone());
    if let Some(key) = &record.key {
        message = message.with_key(key.clone());
    }
    if message.headers().is_empty() {
        // Names like ours are the producer's own, unless the record says that it is one of ours.
        let is_ours = record.headers.iter().any(|header| header.name == VERSION);
        let headers = if is_ours { split_ours(&record.headers).0 } else { record.headers.clone() };
        message = message.with_headers(headers);
    }
    if let Some(at) = record.timestamp {
        message = message.with_published_at(at);
    }
    letter.message = message;
    Some(letter)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use dlq_core::{Headers, Timestamp};
    use dlq_testkit::fixtures::letter;

    use super::*;

    #[test]
    fn a_pointer_is_read_or_is_none() {
        let pointer = |text: &str| {
            let mut letter = letter(1);
            letter.attributes.insert(POINTER.to_owned(), text.to_owned());
            Pointer::of(&letter).map(|pointer| pointer.to_string())
        };
        let wanted = "offset 9 of partition 3 of `orders.eu`".to_owned();
        assert_eq!(pointer("orders.eu/3/9"), Some(wanted));
        for odd in ["", "//", "orders/3", "orders/-1/3", "orders/3/-1", "a/b/1/2", "or\0ders/1/2"] {
            assert_eq!(pointer(odd), None, "{odd:?}");
        }
        assert_eq!(pointer(&format!("orders/0/{}", u64::MAX)), None);
        assert_eq!(Pointer::of(&letter(1)), None);
    }

    #[test]
    fn g8_another_message_in_its_place_is_not_taken_for_it() {
        let published = Timestamp::from_millis(1_790_000_000_000);
        let found = |at| {
            let mut letter = letter(1);
            letter.message = letter.message.with_published_at(published).with_payload(None);
            letter.origin = Origin::new("kafka", "orders", Position::Offset(9)).with_partition(3);
            letter.attributes.insert(POINTER.to_owned(), "orders/3/9".to_owned());
            let record = Record {
                topic: "orders".into(),
                partition: 3,
                offset: 9,
                timestamp: Some(at),
                key: None,
                value: Some("large".into()),
                headers: Headers::new(),
                unreadable_headers: 0,
            };
            let found = resolved(letter, &record)?;
            found.message.payload().cloned()
        };
        assert_eq!(found(published), Some("large".into()));
        assert_eq!(found(published.after(Duration::from_millis(1))), None);
    }

    #[test]
    fn g8_a_producers_names_like_ours_stay_with_the_message_that_is_pointed_to() {
        let headers: Headers = [("retry.count", "7"), ("error.message", "mine")]
            .into_iter()
            .map(|(name, value)| dlq_core::Header { name: name.into(), value: Some(value.into()) })
            .collect();
        let record = Record {
            topic: "orders".into(),
            partition: 3,
            offset: 9,
            timestamp: None,
            key: None,
            value: Some("large".into()),
            headers: headers.clone(),
            unreadable_headers: 0,
        };
        let mut letter = letter(1);
        letter.message = letter.message.with_headers(Headers::new());
        let found = resolved(letter, &record).unwrap();
        assert_eq!(found.message.headers(), &headers);
    }
}

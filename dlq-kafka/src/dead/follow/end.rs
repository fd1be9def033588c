//! End of a topic: whether there is more to read.

use std::sync::Arc;
use std::time::Instant;

use rdkafka::consumer::Consumer as _;
use rdkafka::error::KafkaError;
use rdkafka::{Message as _, Offset};

use super::member::Member;
use super::{mark, marks};
use crate::client::brokers::Brokers;
use crate::client::error::SetupError;
use crate::client::reach::{self, SURE, Yields};
use crate::consumer::side_reader::{Seen, looker, read_at};

/// Number of bytes that are read at once: there may be many aborted records.
const BYTES: &str = "1048576";

/// A part of a partition, without its last offset.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Span {
    topic: Arc<str>,
    partition: i32,
    from: i64,
    to: i64,
}

/// Parts of partitions, and whether each is without a record.
type Spans = Vec<(Span, bool)>;

impl Member {
    /// Returns true if the group has confirmed every letter of the topic. If the remaining letters cannot be read,
    /// nobody ever will, and that is an error.
    pub(super) fn is_at_end(&self) -> Result<bool, SetupError> {
        let aside = match self.aside.get() {
            Some(aside) => aside,
            None => {
                let made = marks::client(&self.brokers, &self.group)?;
                self.aside.get_or_init(|| made)
            }
        };
        let failed = |error| self.failed("look for the end", error);
        let heard = &self.consumer.context().heard;
        // The partitions are asked for anew: some may have been added since the group was joined.
        let partitions =
            reach::partitions(&self.consumer, heard, &self.brokers, &self.topic, Yields::Records)?;
        let list = mark::all(&self.topic, &partitions);
        let what = format!("look how far group `{}` is", self.group);
        let ask = |patience| aside.committed_offsets(list.clone(), patience);
        let committed = reach::of_group(aside, aside.context(), &what, ask)?;
        let mut spans = Vec::new();
        for element in committed.elements() {
            element.error().map_err(failed)?;
            let partition = element.partition();
            let ends = reach::watermarks(&self.consumer, &self.topic, partition);
            let (low, high) = ends.map_err(failed)?;
            // Retention may have removed what the group has not read, and nothing is left to wait for then.
            let next = mark::offset(&element).unwrap_or(low).max(low);
            if next < high {
                spans.push(Span {
                    topic: Arc::clone(&self.topic),
                    partition,
                    from: next,
                    to: high,
                });
            }
        }
        if spans.is_empty() {
            return Ok(true);
        }
        // A look costs a client of its own, so it comes only where offsets are left that nobody has confirmed.
        let found = find(&self.brokers, &spans)?;
        // The marks of transactions, and what was taken back, are no letters.
        if found.iter().any(|(_, is_empty)| !is_empty) {
            return Ok(false);
        }
        // What is left gave an error to the look. It is the end only if all of it is known to stay unreadable.
        spans.retain(|span| found.iter().all(|(found, _)| found != span));
        if spans.is_empty() {
            return Ok(true);
        }
        let why = self.why_blocked(spans.iter().map(|span| (span.partition, span.from)))?;
        if why.len() < spans.len() {
            Ok(false)
        } else {
            Err(SetupError::Unreadable(why.join("; ")))
        }
    }
}

/// Looks for records in these parts. What cannot be read is left out.
fn find(brokers: &Brokers, spans: &[Span]) -> Result<Spans, SetupError> {
    let consumer = looker(brokers, BYTES)?;
    let mut found = Vec::new();
    let place = |span: &Span| (Arc::clone(&span.topic), span.partition, Offset::Offset(span.from));
    let places = spans.iter().map(|span| (place(span), (span, None::<Instant>))).collect();
    let read = read_at(&consumer, places, |(span, ended), polled, come| {
        let is_empty = match polled {
            Some(Ok(message)) => message.offset() >= span.to,
            Some(Err(KafkaError::PartitionEOF(_))) => {
                // The replica may be behind its leader, so its end counts only when nothing follows for `SURE`.
                ended.get_or_insert_with(Instant::now);
                return Seen::Nothing;
            }
            Some(Err(_)) => return Seen::Enough,
            None => {
                let is_past = come.is_some_and(|come| come >= span.to);
                if !is_past && !ended.is_some_and(|ended| ended.elapsed() >= SURE) {
                    return Seen::Nothing;
                }
                true
            }
        };
        found.push(((*span).clone(), is_empty));
        Seen::Enough
    });
    read.map_err(|error| SetupError::answered("look at the ends of partitions", error))?;
    Ok(found)
}

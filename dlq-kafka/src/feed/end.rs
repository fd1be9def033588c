//! Whether there is more.

use std::sync::Arc;

use rdkafka::consumer::Consumer as _;

use super::member::Member;
use super::{mark, marks};
use crate::error::SetupError;
use crate::reach::{self, Yields};
use crate::tail::{Span, find};

impl Member {
    /// Whether the group has confirmed every letter of the topic. Where none of the others can be read, nobody will, and that
    /// is an error.
    pub(super) fn is_at_end(&self) -> Result<bool, SetupError> {
        // That of a topic that is gone says nothing.
        if self.consumer.context().ids.behind(&self.topic).0 {
            return Ok(false);
        }
        let aside = match self.aside.get() {
            Some(aside) => aside,
            None => {
                let made = marks::client(&self.brokers, &self.group)?;
                self.aside.get_or_init(|| made)
            }
        };
        let failed = |error| self.failed("look for the end", error);
        let heard = &self.consumer.context().heard;
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
        let found = find(&self.brokers, &spans)?;
        // The marks of transactions, and what was taken back, are no letters.
        if found.iter().any(|(_, is_empty)| !is_empty) {
            return Ok(false);
        }
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

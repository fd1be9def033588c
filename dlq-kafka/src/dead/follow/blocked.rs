//! Partitions of a topic that the client cannot read, while it reads the rest.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::Offset;
use rdkafka::consumer::Consumer as _;

use super::member::Member;
use crate::client::error::SetupError;
use crate::consumer::blocked::{find, is_of_records};

/// Interval of reports while letters go on coming.
const TOLD: Duration = Duration::from_secs(20);

/// State of a partly unreadable topic. The client only says that it cannot read some of it, again and again.
#[derive(Debug, Default)]
pub(super) struct Blocked {
    is_heard: Cell<bool>,
    told: Option<Instant>,
}

impl Blocked {
    pub(super) fn heard(&self) {
        self.is_heard.set(true);
    }
}

impl Member {
    /// An error where partitions of ours stand still while others do not: it passes when somebody has seen to it.
    pub(super) fn tell_blocked(&mut self) -> Result<(), SetupError> {
        let is_told = self.blocked.told.is_some_and(|at| at.elapsed() < TOLD);
        if is_told || !self.blocked.is_heard.take() {
            return Ok(());
        }
        let places: Vec<_> = {
            let ours = self.consumer.context().lock();
            let place = |(number, ours): (&i32, &super::assigned::Partition)| {
                Some((*number, ours.place.as_ref()?.yielded))
            };
            ours.ours.iter().filter_map(place).collect()
        };
        // The client does not name the partition, so a second one looks at where each of ours stands.
        let why = self.why_blocked(places.into_iter())?;
        if why.is_empty() {
            return Ok(());
        }
        self.blocked.told = Some(Instant::now());
        Err(SetupError::Unavailable(why.join("; "), None))
    }

    /// Returns those of these partitions whose records from these offsets on cannot be read, with advice for each.
    pub(super) fn why_blocked(
        &self,
        places: impl Iterator<Item = (i32, i64)>,
    ) -> Result<Vec<String>, SetupError> {
        let place = |(number, from)| (Arc::clone(&self.topic), number, Offset::Offset(from));
        let found = find(&self.brokers, &[], &places.map(place).collect::<Vec<_>>())?;
        // A topic that is gone is heard of elsewhere.
        let why = found.into_iter().filter(|(code, _)| is_of_records(*code)).map(|(_, why)| why);
        Ok(why.collect())
    }
}

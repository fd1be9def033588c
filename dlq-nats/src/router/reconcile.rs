//! Finds what no ear has heard of, in streams that drop what is settled.
//!
//! When a consumer of a work queue has nothing to do and nothing in flight, what is left in its part of the stream was
//! given up. (So for an interest stream with a single consumer; with several, nobody can say whose it is.) A settled
//! message may still be on its way out when the consumer is looked at, and who had it last may be at it still, so that
//! only what is there one `ack_wait` later counts, and no less than one sweep. That is why its letter is confirmed. What
//! the consumer does in the meantime is about later messages, and does not put it off, nor does a look that fails.
//!
//! How far a consumer was looked at is kept in the bucket `DLQ_ROUTER`, so that a router that starts does not write
//! letters again whose duplicate window is over.
//!
//! | state | the process dies | next |
//! |---|---|---|
//! | messages are found | nothing is written | they are found again |
//! | some letters are confirmed | the mark is not written | they are found again, and their copies refused or collapsed |
//! | the mark is written | | the next look begins there |

use std::collections::HashMap;
use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, Info};
use async_nats::jetstream::kv::Store;
use async_nats::jetstream::stream::{self, RetentionPolicy};
use dlq_core::{Clock as _, SystemClock};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::OPERATION;
use super::advisory::Advisory;
use super::bucket;
use super::report::Event;
use super::route::{Routed, RouterState};
use crate::client::leader::{self, Which};
use crate::client::names::token;

/// Number of messages of one consumer that are routed in one sweep.
const MOST: usize = 1000;
const PATIENCE: Duration = Duration::from_secs(10);

/// Position up to which a consumer was examined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Mark {
    /// When the consumer was created: another one of that name begins anew.
    created: String,
    upto: u64,
}

impl Mark {
    /// Returns the position up to which an idle consumer has left what it gave up. The end of the stream comes from
    /// another server than the consumer, which may not have seen all messages yet: a message that it has not handed out
    /// is not given up.
    fn of(end: u64, consumer: &Info) -> Self {
        let upto = consumer.delivered.stream_sequence.min(end);
        Self { created: consumer.created.to_string(), upto }
    }
}

/// A stream, and a consumer of it.
pub(super) type About = (String, String);

#[derive(Debug)]
pub(super) struct Reconciler {
    bucket: Option<Store>,
    marks: HashMap<About, Mark>,
    /// Position of a consumer when it was first seen with nothing to do since the last look, and the time of that.
    quiet: HashMap<About, (Mark, Instant)>,
}

impl Reconciler {
    pub(super) fn new() -> Self {
        Self { bucket: None, marks: HashMap::new(), quiet: HashMap::new() }
    }

    /// Forgets consumers that have gone. The bucket still knows them, since one of the same name may come.
    pub(super) fn forget(&mut self, has_gone: impl Fn(&About) -> bool) {
        self.marks.retain(|about, _| !has_gone(about));
        self.quiet.retain(|about, _| !has_gone(about));
    }

    /// Looks at the consumers of a stream; `stream` was seen before they were.
    pub(super) async fn look(
        &mut self,
        shared: &RouterState,
        stream: &stream::Info,
        consumers: &[Info],
    ) -> Result<(), async_nats::Error> {
        let leaves_no_doubt = match stream.config.retention {
            RetentionPolicy::Limits => false,
            RetentionPolicy::WorkQueue => true,
            RetentionPolicy::Interest => consumers.len() == 1,
        };
        let mut looked = Ok(());
        for consumer in consumers {
            if leaves_no_doubt && shared.watch.includes(&stream.config.name, &consumer.name) {
                // The next ones are not to wait for what this one lacks.
                looked = looked.and(self.look_at(shared, stream, consumer).await);
            }
        }
        looked
    }

    async fn look_at(
        &mut self,
        shared: &RouterState,
        stream: &stream::Info,
        consumer: &Info,
    ) -> Result<(), async_nats::Error> {
        let about = (stream.config.name.clone(), consumer.name.clone());
        if !gives_up(consumer) {
            self.quiet.remove(&about);
            return Ok(());
        }
        let now = Mark::of(stream.state.last_sequence, consumer);
        if let Some((before, since)) = self.quiet.get(&about).cloned()
            && before.created == now.created
        {
            // What it does meanwhile is about later messages.
            if since.elapsed() < longest_run(consumer) {
                return Ok(());
            }
            // Until all of it is done, what was seen before stays: it may not be seen again for long.
            let from = self.mark(shared, &about, &before.created).await?;
            if stream.state.messages > 0 && from < before.upto {
                let upto = route(shared, consumer, from, before.upto).await?;
                let has_rest = upto < before.upto;
                // The mark follows the confirmed letters: a router that dies before this finds the messages again.
                self.keep(&about, Mark { upto, ..before }).await?;
                if has_rest {
                    return Ok(());
                }
            }
        }
        if is_idle(consumer) {
            self.quiet.insert(about, (now, Instant::now()));
        } else {
            self.quiet.remove(&about);
        }
        Ok(())
    }

    /// Returns the sequence up to which this consumer was examined.
    async fn mark(
        &mut self,
        shared: &RouterState,
        about: &About,
        created: &str,
    ) -> Result<u64, async_nats::Error> {
        // The bucket is asked once for each consumer. A later mark of another router would only spare copies, which
        // are refused.
        if !self.marks.contains_key(about) {
            let kept = self.open(shared).await?.get(key(about)).await?;
            let kept = kept.and_then(|kept| serde_json::from_slice::<Mark>(&kept).ok());
            let none = Mark { created: created.to_owned(), upto: 0 };
            self.marks.insert(about.clone(), kept.unwrap_or(none));
        }
        // A consumer that was made anew under its name begins anew.
        let mark = self.marks.get(about).filter(|mark| mark.created == created);
        Ok(mark.map_or(0, |mark| mark.upto))
    }

    async fn keep(&mut self, about: &About, mark: Mark) -> Result<(), async_nats::Error> {
        if let Some(bucket) = &self.bucket {
            bucket.put(key(about), serde_json::to_vec(&mark)?.into()).await?;
        }
        self.marks.insert(about.clone(), mark);
        Ok(())
    }

    async fn open(&mut self, shared: &RouterState) -> Result<&Store, async_nats::Error> {
        let bucket = match self.bucket.take() {
            Some(bucket) => bucket,
            None => {
                let opened = bucket::open(&shared.context, shared.sink.stream().replicas).await;
                opened.map_err(|error| error.to_string())?
            }
        };
        Ok(self.bucket.insert(bucket))
    }
}

/// Writes letters of what is left after `from` until `upto`, and returns up to where it came.
async fn route(
    shared: &RouterState,
    consumer: &Info,
    from: u64,
    upto: u64,
) -> Result<u64, async_nats::Error> {
    let mut left = Vec::new();
    let stream = &consumer.stream_name;
    for filter in filters(consumer) {
        let mut next = from + 1;
        // One message more than is routed is read, so that it is known whether something is left.
        for _ in 0..=MOST {
            let first = Which::From(&filter, next);
            let first = leader::get(&shared.context, OPERATION, stream, first).await?;
            let Some(message) = first.filter(|message| message.sequence <= upto) else { break };
            left.push(message.sequence);
            next = message.sequence + 1;
        }
    }
    left.sort_unstable();
    left.dedup();
    // Of a filter that has more than was read, what follows is left for the next sweep.
    let rest = left.get(MOST).map(|first| first - 1);
    left.truncate(MOST);
    for sequence in left {
        let deliveries = u64::try_from(consumer.config.max_deliver).unwrap_or(0);
        let now = SystemClock.now();
        let advisory =
            Advisory::left(&consumer.stream_name, &consumer.name, sequence, deliveries, now);
        if shared.route(&advisory, true, PATIENCE).await? == Routed::New {
            shared.counts.count(Event::Found);
        }
    }
    Ok(rest.unwrap_or(upto))
}

fn gives_up(info: &Info) -> bool {
    info.config.max_deliver > 0 && info.config.ack_policy != AckPolicy::None
}

/// Returns true if it has nothing to do, and nothing in flight.
fn is_idle(info: &Info) -> bool {
    info.num_pending == 0 && info.num_ack_pending == 0
}

/// Returns the time for which the server waits for an acknowledgement before it hands a message out again, or gives it
/// up.
fn longest_run(info: &Info) -> Duration {
    info.config.backoff.iter().copied().fold(info.config.ack_wait, Duration::max)
}

fn filters(consumer: &Info) -> Vec<String> {
    let mut filters = consumer.config.filter_subjects.clone();
    filters.extend(Some(consumer.config.filter_subject.clone()).filter(|one| !one.is_empty()));
    if filters.is_empty() {
        filters.push(">".to_owned());
    }
    filters
}

fn key((stream, consumer): &About) -> String {
    format!("{}.{}", token(stream), token(consumer))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A consumer with nothing to do and nothing in flight, that has handed out messages up to this one.
    fn idle(delivered: u64) -> Info {
        let text = serde_json::json!({
            "stream_name": "JOBS", "name": "worker", "created": "2026-11-20T22:13:27Z",
            "config": { "deliver_policy": "all", "ack_policy": "explicit", "replay_policy": "instant" },
            "delivered": { "consumer_seq": delivered, "stream_seq": delivered },
            "ack_floor": { "consumer_seq": 0, "stream_seq": 0 },
            "num_ack_pending": 0, "num_redelivered": 0, "num_waiting": 0, "num_pending": 0,
        });
        serde_json::from_value(text).unwrap()
    }

    #[test]
    fn what_was_not_handed_out_was_not_given_up() {
        let consumer = idle(99);
        assert!(is_idle(&consumer), "its server has not heard of message 100");
        assert_eq!(Mark::of(100, &consumer).upto, 99);
        assert_eq!(Mark::of(98, &consumer).upto, 98, "the stream was asked before");
    }
}

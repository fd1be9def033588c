//! Finds what no ear has heard of, in streams that drop what is settled.
//!
//! When a consumer of a work queue has nothing to do and nothing in hand, what is left in its part of the stream was
//! given up. (So for an interest stream with a single consumer; with several, nobody can say whose it is.) A settled
//! message may still be on its way out when the consumer is looked at, so that only what is there one sweep later counts.
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
use async_nats::jetstream::kv::{Config, Store};
use async_nats::jetstream::stream::{
    self, LastRawMessageErrorKind, RawMessageError, RetentionPolicy, Stream,
};
use dlq_core::{Clock as _, SystemClock};
use serde::{Deserialize, Serialize};

use super::advisory::Advisory;
use super::report::Event;
use super::route::Shared;
use crate::names::token;

const BUCKET: &str = "DLQ_ROUTER";
/// How many messages of one consumer are routed in one sweep.
const MOST: usize = 1000;
const PATIENCE: Duration = Duration::from_secs(10);

/// Up to where a consumer was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Mark {
    /// When the consumer was created: another one of that name begins anew.
    created: String,
    upto: u64,
}

#[derive(Debug)]
pub(super) struct Reconciler {
    replicas: usize,
    bucket: Option<Store>,
    marks: HashMap<(String, String), Mark>,
    /// Where the stream ended when its consumer was last seen with nothing to do.
    quiet: HashMap<(String, String), Mark>,
}

impl Reconciler {
    pub(super) fn new(shared: &Shared) -> Self {
        let replicas = shared.sink.replicas();
        Self { replicas, bucket: None, marks: HashMap::new(), quiet: HashMap::new() }
    }

    /// Looks at the consumers of a stream; `stream` was seen before they were.
    pub(super) async fn look(
        &mut self,
        shared: &Shared,
        stream: &stream::Info,
        handle: &Stream<()>,
        consumers: &[Info],
    ) -> Result<(), async_nats::Error> {
        let leaves_no_doubt = match stream.config.retention {
            RetentionPolicy::Limits => false,
            RetentionPolicy::WorkQueue => true,
            RetentionPolicy::Interest => consumers.len() == 1,
        };
        for consumer in consumers {
            let name = &stream.config.name;
            if !leaves_no_doubt || !shared.watch.includes(name, &consumer.name) {
                continue;
            }
            let about = (name.clone(), consumer.name.clone());
            let now =
                Mark { created: consumer.created.to_string(), upto: stream.state.last_sequence };
            if !is_idle(consumer) {
                self.quiet.remove(&about);
                continue;
            }
            let before = self.quiet.insert(about.clone(), now.clone());
            let Some(before) = before.filter(|before| before.created == now.created) else {
                continue;
            };
            let from = self.mark(shared, &about, &before.created).await?;
            if stream.state.messages > 0 && from < before.upto {
                let upto = route(shared, consumer, handle, from, before.upto).await?;
                self.keep(&about, Mark { upto, ..before }).await?;
            }
        }
        Ok(())
    }

    /// Up to which sequence this consumer was looked at.
    async fn mark(
        &mut self,
        shared: &Shared,
        about: &(String, String),
        created: &str,
    ) -> Result<u64, async_nats::Error> {
        if !self.marks.contains_key(about) {
            let kept = self.open(shared).await?.get(key(about)).await?;
            let kept = kept.and_then(|kept| serde_json::from_slice::<Mark>(&kept).ok());
            let none = Mark { created: created.to_owned(), upto: 0 };
            self.marks.insert(about.clone(), kept.unwrap_or(none));
        }
        let mark = self.marks.get(about).filter(|mark| mark.created == created);
        Ok(mark.map_or(0, |mark| mark.upto))
    }

    async fn keep(
        &mut self,
        about: &(String, String),
        mark: Mark,
    ) -> Result<(), async_nats::Error> {
        if let Some(bucket) = &self.bucket {
            bucket.put(key(about), serde_json::to_vec(&mark)?.into()).await?;
        }
        self.marks.insert(about.clone(), mark);
        Ok(())
    }

    async fn open(&mut self, shared: &Shared) -> Result<&Store, async_nats::Error> {
        let bucket = match self.bucket.take() {
            Some(bucket) => bucket,
            None => match shared.context.get_key_value(BUCKET).await {
                Ok(bucket) => bucket,
                Err(_) => {
                    let config = Config {
                        bucket: BUCKET.to_owned(),
                        description: "Up to where event routers have looked".to_owned(),
                        history: 1,
                        num_replicas: self.replicas,
                        ..Config::default()
                    };
                    shared.context.create_key_value(config).await?
                }
            },
        };
        Ok(self.bucket.insert(bucket))
    }
}

/// Writes letters of what is left after `from` until `upto`, and returns up to where it came.
async fn route(
    shared: &Shared,
    consumer: &Info,
    stream: &Stream<()>,
    from: u64,
    upto: u64,
) -> Result<u64, async_nats::Error> {
    let mut left = Vec::new();
    for filter in filters(consumer) {
        let mut next = from + 1;
        for _ in 0..=MOST {
            match stream.get_first_raw_message_by_subject(&filter, next).await {
                Ok(message) if message.sequence <= upto => {
                    left.push(message.sequence);
                    next = message.sequence + 1;
                }
                Ok(_) => break,
                Err(error) if is_none(&error) => break,
                Err(error) => return Err(error.into()),
            }
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
            Advisory::exhausted(&consumer.stream_name, &consumer.name, sequence, deliveries, now);
        if shared.route(&advisory, PATIENCE).await? {
            shared.counts.count(Event::Found);
        }
    }
    Ok(rest.unwrap_or(upto))
}

/// Whether it gives messages up, has nothing to do, and nothing in hand.
fn is_idle(info: &Info) -> bool {
    info.config.max_deliver > 0
        && info.config.ack_policy != AckPolicy::None
        && info.num_pending == 0
        && info.num_ack_pending == 0
}

fn filters(consumer: &Info) -> Vec<String> {
    let mut filters = consumer.config.filter_subjects.clone();
    filters.extend(Some(consumer.config.filter_subject.clone()).filter(|one| !one.is_empty()));
    if filters.is_empty() {
        filters.push(">".to_owned());
    }
    filters
}

fn is_none(error: &RawMessageError) -> bool {
    match error.kind() {
        LastRawMessageErrorKind::NoMessageFound => true,
        LastRawMessageErrorKind::JetStream(answer) => answer.code() == 404,
        _ => false,
    }
}

fn key((stream, consumer): &(String, String)) -> String {
    format!("{}.{}", token(stream), token(consumer))
}

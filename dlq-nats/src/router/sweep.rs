//! The third ear: consumers are made to say what they have given up.
//!
//! A server notices that a message is exhausted when somebody pulls. When all workers of a consumer have died nobody
//! does, and it would keep silent for ever. A request that it cannot fill, for a message of at most one byte, makes it
//! notice, and hands nothing out.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use async_nats::Request;
use async_nats::jetstream::consumer::Info;
use async_nats::jetstream::stream;
use futures_util::TryStreamExt as _;
use tokio::time::{MissedTickBehavior, interval};

use super::reconcile::{About, Reconciler};
use super::report::Event;
use super::route::RouterState;

const REQUEST: &str = r#"{"batch":1,"max_bytes":1,"no_wait":true}"#;

pub(super) async fn sweep(shared: Arc<RouterState>, every: Duration) {
    let stop = shared.stop.clone();
    let mut tick = interval(every);
    // A sweep that takes long is not made up for by several at once.
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut sweep = Sweep { reconciler: Reconciler::new(), limits: HashMap::new(), shared };
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            _ = tick.tick() => {}
        }
        let swept = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            swept = sweep.once() => swept,
        };
        if let Err(error) = swept {
            sweep.shared.counts.count(Event::Failed);
            tracing::warn!(%error, "streams could not be looked at");
        }
    }
}

struct Sweep {
    shared: Arc<RouterState>,
    reconciler: Reconciler,
    /// The `max_deliver` of consumers that have another one than expected.
    limits: HashMap<About, i64>,
}

impl Sweep {
    async fn once(&mut self) -> Result<(), async_nats::Error> {
        let shared = Arc::clone(&self.shared);
        let streams: Vec<stream::Info> = shared.context.streams().try_collect().await?;
        for stream in &streams {
            let name = &stream.config.name;
            if !shared.watch.includes_stream(name) {
                continue;
            }
            // The next streams are not to wait for what this one lacks.
            if let Err(error) = self.look_at(stream).await {
                shared.counts.count(Event::Failed);
                tracing::warn!(stream = name, %error, "consumers could not be looked at");
            }
        }
        // Consumers come and go, and the maps must not grow with all that there ever were.
        self.forget(|(of, _)| !streams.iter().any(|stream| stream.config.name == *of));
        Ok(())
    }

    async fn look_at(&mut self, stream: &stream::Info) -> Result<(), async_nats::Error> {
        let shared = Arc::clone(&self.shared);
        let name = &stream.config.name;
        let handle = shared.context.get_stream_no_info(name).await?;
        let consumers: Vec<Info> = handle.consumers().try_collect().await?;
        let names: HashSet<&str> =
            consumers.iter().map(|consumer| consumer.name.as_str()).collect();
        self.forget(|(of, consumer)| of == name && !names.contains(consumer.as_str()));
        for consumer in &consumers {
            if !shared.watch.includes(name, &consumer.name) {
                continue;
            }
            self.expect(consumer);
            if is_silent(consumer) {
                let subject = format!("CONSUMER.MSG.NEXT.{name}.{}", consumer.name);
                let request = Request::new().payload(REQUEST.into());
                // Its answer goes to an inbox that nobody reads: what counts are the advisories that the request
                // provokes.
                shared.context.send_request(subject, request).await?;
                shared.counts.count(Event::Poked);
            }
        }
        self.reconciler.look(&shared, stream, &consumers).await
    }

    /// Forgets consumers that have gone.
    fn forget(&mut self, has_gone: impl Fn(&About) -> bool) {
        self.limits.retain(|about, _| !has_gone(about));
        self.reconciler.forget(has_gone);
    }

    /// Tells once of each consumer that has another limit than it should. None is expected of those that do not stay, nor,
    /// unless somebody has named them, of those that give nothing up.
    fn expect(&mut self, consumer: &Info) {
        let Some(expected) = self.shared.expected else { return };
        let limit = consumer.config.max_deliver;
        let gives_up = limit > 0 || self.shared.watch.names(&consumer.stream_name, &consumer.name);
        if consumer.config.durable_name.is_none() || !gives_up {
            return;
        }
        let about = (consumer.stream_name.clone(), consumer.name.clone());
        if limit == i64::from(expected) {
            self.limits.remove(&about);
        } else if self.limits.insert(about, limit) != Some(limit) {
            self.shared.counts.count(Event::Unexpected);
            tracing::warn!(
                stream = consumer.stream_name,
                consumer = consumer.name,
                max_deliver = limit,
                expected,
                "a consumer has another `max_deliver` than the router expects; change it, or `max_retries`"
            );
        }
    }
}

/// Returns true if the consumer may hide deaths: messages are out, nobody is pulling, and it gives messages up.
fn is_silent(info: &Info) -> bool {
    // Where somebody pulls the server notices by itself, and each poke moves its redelivery queue on by one. A consumer
    // with priority groups refuses a request that names none.
    info.config.deliver_subject.is_none()
        && info.config.max_deliver > 0
        && info.config.priority_groups.is_empty()
        && info.num_ack_pending > 0
        && info.num_waiting == 0
}

//! The third ear: consumers are made to say what they have given up.
//!
//! A server notices that a message is exhausted when somebody pulls. When all workers of a consumer have died nobody
//! does, and it would keep silent for ever. A request that it cannot fill, for a message of at most one byte, makes it
//! notice, and hands nothing out.

use std::sync::Arc;
use std::time::Duration;

use async_nats::Request;
use async_nats::jetstream::consumer::Info;
use futures_util::TryStreamExt as _;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::report::count;
use super::route::Shared;

const REQUEST: &str = r#"{"batch":1,"max_bytes":1,"no_wait":true}"#;

pub(super) async fn sweep(shared: Arc<Shared>, every: Duration, stop: CancellationToken) {
    let mut tick = interval(every);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            _ = tick.tick() => {}
        }
        if let Err(error) = once(&shared).await {
            tracing::warn!(%error, "consumers could not be looked at");
        }
    }
}

async fn once(shared: &Shared) -> Result<(), async_nats::Error> {
    let names: Vec<String> = shared.context.stream_names().try_collect().await?;
    for name in names.iter().filter(|name| shared.watch.includes_stream(name)) {
        let stream = shared.context.get_stream_no_info(name).await?;
        let consumers: Vec<Info> = stream.consumers().try_collect().await?;
        for consumer in consumers.iter().filter(|info| is_silent(info)) {
            if !shared.watch.includes(name, &consumer.name) {
                continue;
            }
            let subject = format!("CONSUMER.MSG.NEXT.{name}.{}", consumer.name);
            shared.context.send_request(subject, Request::new().payload(REQUEST.into())).await?;
            count(&shared.counts.pokes);
        }
    }
    Ok(())
}

/// Whether it may keep something to itself: messages are out, nobody is pulling, and it gives messages up.
fn is_silent(info: &Info) -> bool {
    info.config.deliver_subject.is_none()
        && info.config.max_deliver > 0
        && info.config.priority_groups.is_empty()
        && info.num_ack_pending > 0
        && info.num_waiting == 0
}

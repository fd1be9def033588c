//! The same by the client alone, as a careful program would do it.

use std::hint::black_box;
use std::time::{Duration, Instant};

use async_nats::jetstream::consumer::{AckPolicy, pull};
use async_nats::jetstream::message::{PublishMessage, StreamMessage};
use async_nats::jetstream::{self, Context};
use async_nats::{Client, Request};
use bytes::Bytes;
use futures_util::future::ready;
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};

use super::{Failed, STREAM, SUBJECT, Shape};

/// How messages are acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ack {
    /// By a word that may be lost.
    Unconfirmed,
    /// By the client's `double_ack`.
    Confirmed,
    /// The same by the client's `request`, which needs no subscription for each.
    Requested,
}

/// How long it takes to consume so many messages.
pub(super) async fn consume(
    client: &Client,
    name: &str,
    shape: Shape,
    count: usize,
    ack: Ack,
) -> Result<Duration, Failed> {
    let stream = jetstream::new(client.clone()).get_stream(STREAM).await?;
    let consumer = stream
        .create_consumer(pull::Config {
            durable_name: Some(name.to_owned()),
            ack_policy: AckPolicy::Explicit,
            ack_wait: Duration::from_secs(60),
            max_ack_pending: i64::from(shape.unsettled()),
            filter_subject: SUBJECT.to_owned(),
            ..pull::Config::default()
        })
        .await?;
    let start = Instant::now();
    let messages = consumer.stream().max_messages_per_batch(shape.prefetch).messages().await?;
    let mut messages = messages.take(count);
    match ack {
        Ack::Unconfirmed => {
            while let Some(message) = messages.try_next().await? {
                black_box(message.payload.len());
                message.ack().await.map_err(|error| error.to_string())?;
            }
            client.flush().await?;
        }
        Ack::Confirmed => {
            let done = messages.map(|message| async move {
                let message = message.map_err(|error| error.to_string())?;
                black_box(message.payload.len());
                message.double_ack().await.map_err(|error| error.to_string())
            });
            done.buffer_unordered(shape.in_hand).try_for_each(|()| ready(Ok(()))).await?;
        }
        Ack::Requested => {
            let done = messages.map(|message| async move {
                let message = message.map_err(|error| error.to_string())?;
                black_box(message.payload.len());
                let reply = message.reply.clone().ok_or("a message without a reply subject")?;
                let request = Request::new().payload(Bytes::from_static(b"+ACK"));
                client.send_request(reply, request).await.map_err(|error| error.to_string())
            });
            done.buffer_unordered(shape.in_hand).try_for_each(|_| ready(Ok(()))).await?;
        }
    }
    Ok(start.elapsed())
}

/// Publishes messages and awaits the confirmation of each, many at once.
pub(super) async fn publish(
    context: &Context,
    messages: impl Iterator<Item = (&'static str, Bytes)>,
) -> Result<(), Failed> {
    let confirmed = stream::iter(messages).map(|(subject, payload)| async move {
        let sent = context.publish(subject, payload).await.map_err(|error| error.to_string())?;
        sent.await.map_err(|error| error.to_string())
    });
    confirmed.buffer_unordered(256).try_for_each(|_| ready(Ok(()))).await.map_err(Failed::from)
}

/// Publishes the message once for each id, and awaits the confirmation of each, many at once.
pub(super) async fn publish_like(
    context: &Context,
    message: &StreamMessage,
    ids: impl Iterator<Item = String>,
) -> Result<(), Failed> {
    let confirmed = stream::iter(ids).map(|id| async move {
        let again = PublishMessage::build()
            .headers(message.headers.clone())
            .payload(message.payload.clone())
            .message_id(id);
        let sent = context.send_publish(message.subject.clone(), again).await;
        sent.map_err(|error| error.to_string())?.await.map_err(|error| error.to_string())
    });
    confirmed.buffer_unordered(256).try_for_each(|_| ready(Ok(()))).await.map_err(Failed::from)
}

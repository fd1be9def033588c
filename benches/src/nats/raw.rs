//! The same by the client alone, as a careful program would do it.

use std::hint::black_box;
use std::time::{Duration, Instant};

use async_nats::jetstream::consumer::{AckPolicy, Consumer, pull};
use async_nats::jetstream::{self, Context};
use async_nats::{Client, HeaderMap, Message, Request};
use bytes::Bytes;
use futures_util::future::ready;
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};

use super::{Failed, STREAM, SUBJECT, Shape};

/// Way of acknowledging messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ack {
    /// A message that may be lost acknowledges.
    Unconfirmed,
    /// The client's `double_ack` acknowledges.
    Confirmed,
    /// The same by the client's `request`, which needs no subscription for each.
    Requested,
}

/// Measures consuming so many messages.
pub(super) async fn consume(
    client: &Client,
    name: &str,
    shape: Shape,
    count: usize,
    ack: Ack,
) -> Result<Duration, Failed> {
    let consumer = consumer(&jetstream::new(client.clone()), name, shape).await?;
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
            done.buffer_unordered(shape.in_flight).try_for_each(|()| ready(Ok(()))).await?;
        }
        Ack::Requested => {
            let done = messages.map(|message| async move {
                let message = message.map_err(|error| error.to_string())?;
                black_box(message.payload.len());
                request_ack(client, &message).await
            });
            done.buffer_unordered(shape.in_flight).try_for_each(|()| ready(Ok(()))).await?;
        }
    }
    Ok(start.elapsed())
}

/// Measures writing each message to the stream of letters, with headers as ours are, awaiting the confirmation, then
/// acknowledging the message and awaiting that, too.
pub(super) async fn bury(
    client: &Client,
    name: &str,
    shape: Shape,
    count: usize,
) -> Result<Duration, Failed> {
    let context = &jetstream::new(client.clone());
    let letters = context.get_stream("DLQ").await?;
    let headers = &letters.get_last_raw_message_by_subject("dlq.>").await?.headers;
    let consumer = consumer(context, name, shape).await?;
    let start = Instant::now();
    let messages = consumer.stream().max_messages_per_batch(shape.prefetch).messages().await?;
    let done = messages.take(count).enumerate().map(|(number, message)| async move {
        let message = message.map_err(|error| error.to_string())?;
        let mut headers = headers.clone();
        headers.insert("Nats-Msg-Id", format!("{name}.{number}"));
        let letter = context
            .publish_with_headers("dlq.work.requested", headers, message.payload.clone())
            .await
            .map_err(|error| error.to_string())?;
        letter.await.map_err(|error| error.to_string())?;
        request_ack(client, &message).await
    });
    done.buffer_unordered(shape.in_flight).try_for_each(|()| ready(Ok(()))).await?;
    Ok(start.elapsed())
}

/// Measures reading the stream of letters from its beginning, as many at once as we ask for.
pub(super) async fn read_letters(client: &Client, count: usize) -> Result<Duration, Failed> {
    let start = Instant::now();
    let config = pull::Config {
        ack_policy: AckPolicy::None,
        memory_storage: true,
        num_replicas: 1,
        ..pull::Config::default()
    };
    let context = jetstream::new(client.clone());
    let consumer = context.create_consumer_on_stream(config, "DLQ").await?;
    let messages = consumer.stream().max_messages_per_batch(1_000).messages().await?;
    let mut messages = messages.take(count);
    while let Some(message) = messages.try_next().await? {
        black_box(message.payload.len());
    }
    Ok(start.elapsed())
}

async fn consumer(
    context: &Context,
    name: &str,
    shape: Shape,
) -> Result<Consumer<pull::Config>, Failed> {
    let config = pull::Config {
        durable_name: Some(name.to_owned()),
        ack_policy: AckPolicy::Explicit,
        ack_wait: Duration::from_secs(60),
        max_ack_pending: i64::from(shape.unsettled()),
        filter_subject: SUBJECT.to_owned(),
        ..pull::Config::default()
    };
    Ok(context.create_consumer_on_stream(config, STREAM).await?)
}

async fn request_ack(client: &Client, message: &Message) -> Result<(), String> {
    let reply = message.reply.clone().ok_or("a message without a reply subject")?;
    let request = Request::new().payload(Bytes::from_static(b"+ACK"));
    client.send_request(reply, request).await.map(drop).map_err(|error| error.to_string())
}

/// Publishes messages and awaits the confirmation of each, many at once.
pub(super) async fn publish(
    context: &Context,
    messages: impl Iterator<Item = (HeaderMap, Bytes)>,
) -> Result<(), Failed> {
    let confirmed = stream::iter(messages).map(|(headers, payload)| async move {
        let sent = if headers.is_empty() {
            context.publish(SUBJECT, payload).await
        } else {
            context.publish_with_headers(SUBJECT, headers, payload).await
        };
        sent.map_err(|error| error.to_string())?.await.map_err(|error| error.to_string())
    });
    confirmed.buffer_unordered(256).try_for_each(|_| ready(Ok(()))).await.map_err(Failed::from)
}

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use async_nats::header::HeaderMap;
use async_nats::jetstream::Context;
use bytes::Bytes;
use dlq_core::{
    Capabilities, Death, Delivery, Headers, Lane, Message, Ordering, Origin, Position, SharedClock,
    Source, StoreError, Timestamp, TransportError,
};

use crate::place::Place;
use crate::publish::{Whole, receive};
use crate::pull::{Fetched, Puller};
use crate::settle::{NatsSettle, Server, nak};
use crate::wire;

/// How much before its time a record may come: less than clocks differ.
const EARLY: Duration = Duration::from_millis(20);

/// For how long a record is given back that cannot be read now.
const UNREADABLE: Duration = Duration::from_secs(10);

/// How many messages that are at hand may come before a record that waits is looked for.
const STREAK: u32 = 32;

/// A delivery, when it is due, and which messages of the retry stream are parts of it.
type Record = (Delivery, Option<Timestamp>, Vec<u64>);

/// How messages of one consumer are read.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    pub(crate) consumer: Arc<str>,
    pub(crate) cluster: Arc<str>,
    pub(crate) key_header: Option<Arc<str>>,
    pub(crate) event_header: Option<Arc<str>>,
    pub(crate) clock: SharedClock,
}

/// The messages of a stream for one consumer, and its retry records when they are due. Made by
/// [`NatsConsumer::source`](crate::NatsConsumer::source).
///
/// # Reading goes on
///
/// After a lost connection, a restart of the server or a change of leader it asks again. A consumer that was deleted is
/// created again where it stood when this process last looked at it, which is when it was opened or in trouble: messages
/// may then come again, and none is skipped. [`next`](Source::next) fails with `Unavailable` while that is not possible.
///
/// # Headers
///
/// They come in the order of their names, since the client does not keep the order on the wire. `Nats-Msg-Id` is the id
/// of the message. A header that is not UTF-8 breaks the connection in the client, before this source sees it.
#[derive(Debug)]
pub struct NatsSource {
    server: Arc<Server>,
    reading: Reading,
    main: Option<Puller>,
    retries: Option<Puller>,
    /// How many messages of the stream came one after another, while records may have waited.
    streak: u32,
}

impl NatsSource {
    pub(crate) fn new(
        server: Server,
        reading: Reading,
        main: Option<Puller>,
        retries: Option<Puller>,
    ) -> Self {
        Self { server: Arc::new(server), reading, main, retries, streak: 0 }
    }

    /// The next message of either; the one that has some at hand first, but not for ever.
    async fn fetch(&mut self) -> Result<(Lane, Option<Fetched>), TransportError> {
        let Self { main, retries, streak, .. } = self;
        if *streak < STREAK && main.as_ref().is_some_and(Puller::has_some) {
            *streak += 1;
            return tokio::select! {
                biased;
                next = next_of(main) => Ok((Lane::Main, next?)),
                next = next_of(retries) => Ok((Lane::Retry, next?)),
            };
        }
        *streak = 0;
        tokio::select! {
            biased;
            next = next_of(retries) => Ok((Lane::Retry, next?)),
            next = next_of(main) => Ok((Lane::Main, next?)),
        }
    }
}

impl Source for NatsSource {
    type Settle = NatsSettle;

    /// No order: what comes again after a crash comes after what was published meanwhile.
    fn capabilities(&self) -> Capabilities {
        Capabilities::none()
            .with_ordering(Ordering::None)
            .with_counts_deliveries(true)
            .with_delayed_release(true)
    }

    async fn next(&mut self) -> Result<Option<(Delivery, NatsSettle)>, TransportError> {
        loop {
            let (lane, next) = self.fetch().await?;
            let Some(fetched) = next else { return Ok(None) };
            let reply = fetched.reply.clone();
            let (delivery, due, aside) = match lane {
                Lane::Main => (self.reading.main(fetched), None, Vec::new()),
                // While what stands aside is fetched the record is in nobody's hands: it comes again if this is dropped.
                _ => match self.reading.record(&self.server.context, fetched).await {
                    Ok(record) => record,
                    Err(error) => {
                        tracing::error!(%error, "a retry record cannot be read; it is tried again");
                        let _ = self.server.client.publish(reply, nak(UNREADABLE)).await;
                        continue;
                    }
                },
            };
            let now = self.reading.clock.now();
            let early = due.map_or(Duration::ZERO, |due| due.since(now));
            if early > EARLY {
                // If this is not heard it comes again when its lease ends, and is looked at again.
                let _ = self.server.client.publish(reply, nak(early)).await;
                continue;
            }
            let settle = NatsSettle::new(Arc::clone(&self.server), reply, aside);
            return Ok(Some((delivery, settle)));
        }
    }

    async fn close(&mut self) {
        for puller in [&mut self.main, &mut self.retries].into_iter().flatten() {
            puller.close().await;
        }
    }
}

async fn next_of(puller: &mut Option<Puller>) -> Result<Option<Fetched>, TransportError> {
    match puller {
        Some(puller) => puller.next().await,
        None => pending().await,
    }
}

impl Reading {
    /// A message of the user's stream.
    fn main(&self, fetched: Fetched) -> Delivery {
        let Fetched { message, place, .. } = fetched;
        let headers = message.headers.unwrap_or_default();
        self.message(&message.subject, &headers, message.payload, place)
    }

    /// A message that stands at `place`.
    pub(crate) fn message(
        &self,
        subject: &str,
        headers: &HeaderMap,
        payload: Bytes,
        place: Place,
    ) -> Delivery {
        let mut headers = wire::read(headers);
        let mut key = None;
        if let Some(name) = &self.key_header {
            key = headers.get(name).map(Bytes::copy_from_slice);
            headers.remove(name);
        }
        let event = self.event_header.as_ref().and_then(|name| headers.get_str(name));
        let event = event.map(Arc::<str>::from);
        let sent = |headers: Headers, at: Timestamp| {
            let mut sent = Message::new(subject, payload.clone()).with_published_at(at);
            if let Some(id) = headers.get_str("Nats-Msg-Id") {
                sent = sent.with_id(id);
            }
            if let Some(key) = &key {
                sent = sent.with_key(key.clone());
            }
            if let Some(event) = &event {
                sent = sent.with_event(Arc::clone(event));
            }
            sent.with_headers(headers)
        };
        let origin = |stream: &str, position: Position| {
            Origin::new("nats", stream, position).with_cluster(Arc::clone(&self.cluster))
        };
        // Headers that claim an identity are believed where they fit the message (G2). The id on such a message is
        // that of the replay; the producer's was kept.
        let (producers, decoded) = wire::split_ours(&headers);
        let here = Position::Offset(place.sequence);
        let read = sent(headers, place.published);
        let delivery = match decoded.death(&read, &self.consumer, false) {
            None => Delivery::new(read, origin(&place.stream, here)),
            Some(Death { letter, generation }) => {
                let born = decoded.original;
                let at = born.timestamp.unwrap_or(place.published);
                let origin = match (&born.topic, born.offset) {
                    (Some(stream), Some(position)) => origin(stream, position),
                    _ => origin(&place.stream, here),
                };
                Delivery::new(sent(producers, at), origin)
                    .with_death(Death { letter, generation: generation.saturating_add(1) })
                    .with_replays(decoded.replays.unwrap_or(0))
            }
        };
        delivery.with_consumer(Arc::clone(&self.consumer)).with_deliveries(place.delivered)
    }

    /// A record of the retry lane.
    async fn record(&self, context: &Context, fetched: Fetched) -> Result<Record, StoreError> {
        let headers = fetched.message.headers.clone().unwrap_or_default();
        let payload = fetched.message.payload.clone();
        let read = receive(context, &fetched.place.stream, &headers, payload).await?;
        let Some(Whole { read, aside }) = read else {
            tracing::error!(
                subject = %fetched.message.subject,
                "something else than a retry record is in the retry stream; it is handled as a message"
            );
            return Ok((self.main(fetched), None, Vec::new()));
        };
        let wire::Unpacked { message, decoded, rest } = read;
        let delivery = Delivery::new(message, rest.origin)
            .with_consumer(Arc::clone(&self.consumer))
            .with_lane(Lane::Retry)
            .with_death(rest.death)
            .with_history(decoded.history.unwrap_or_default())
            .with_attempt(decoded.attempts.unwrap_or(0).saturating_add(1))
            .with_escalations(decoded.escalations.unwrap_or(1))
            .with_replays(decoded.replays.unwrap_or(0))
            .with_deliveries(fetched.place.delivered);
        Ok((delivery, decoded.due, aside))
    }
}

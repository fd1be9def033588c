use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use async_nats::header::NATS_MESSAGE_ID;
use bytes::Bytes;
use dlq_core::protocol::Incoming;
use dlq_core::{
    Addressee, BindingKey, Capabilities, Cause, Delivery, ErrorClass, Failure, Headers, Message,
    Ordering, Origin, Position, Recipients, SharedClock, Source, TransportError,
};

use crate::client::message_meta::MessageMeta;
use crate::client::wire;
use crate::consumer::pull::Puller;
use crate::consumer::ready::Fetched;
use crate::consumer::records::Records;
use crate::consumer::settle::{NatsSettle, Server};

/// Number of ready messages that may come before a waiting record is looked for.
const STREAK: u32 = 32;

/// Rules for reading the messages of one consumer.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    pub(crate) incoming: Incoming,
    pub(crate) cluster: Arc<str>,
    pub(crate) key_header: Option<Arc<str>>,
    pub(crate) clock: SharedClock,
}

/// The messages of a stream for one consumer, and its retry records when they are due. Made by
/// [`NatsTransport::source`](crate::NatsTransport::source).
///
/// # Reading goes on
///
/// After a lost connection, a restart of the server or a change of leader it asks again. A consumer that was deleted is
/// created again where it stood when this process last looked, which it does four times in a lease: messages may then come
/// again, and none is skipped. Of a work queue it reads what is left. Its settings are looked at in trouble, and when a
/// message has come again: another `ack_wait` that an operator has set counts from there on, and a consumer that would
/// lose messages is not read until it is as it was. [`next`](Source::next) fails with `Unavailable` while it cannot go on.
/// While there are retry records that cannot be read it fails once a minute: they keep nobody from the rest. One that never
/// can be, since parts of it have gone or a header names some that never were, is [refused](Delivery::with_refusal).
///
/// A server that has no room when a record is due does not try it again. Once in a lease some of the records that wait
/// are looked at, in turn, and those that were due a minute ago are written anew, so that they come, each once. `next`
/// fails with `Unavailable` while there is no room for that either.
///
/// # Headers
///
/// They come in the order of their names, since the client does not keep the order on the wire. `Nats-Msg-Id` is the id
/// of the message.
///
/// Servers keep whatever a producer writes, and the client cannot read all of it. At bytes that are not UTF-8, a line
/// without a colon or a name with a space it gives its connection up. At a carriage return within a value its task breaks
/// down: [`next`](Source::next) then fails with `Closed`, the consumer ends, and whoever supervises it starts it anew with
/// another client (with `panic = "abort"` the process dies). Such a message is looked for among those that are out, before a
/// process asks for its first message and while it runs. It is yielded as it stands in the stream, all bytes of its headers
/// included, and [refused](Delivery::with_refusal): no handler runs, and its letter has the cause `malformed`. To be looked
/// for it takes the right to `$JS.API.STREAM.MSG.GET` of the stream, and to be settled that to publish to `$JS.ACK` of the
/// consumer, not in answer only; without these, such a message ends one process per lease.
#[derive(Debug)]
pub struct NatsSource {
    server: Arc<Server>,
    reading: Reading,
    main: Option<Puller>,
    retries: Option<Records>,
    /// Number of messages of the stream that came one after another, while records may have waited.
    streak: u32,
}

impl NatsSource {
    pub(crate) fn new(
        server: Server,
        reading: Reading,
        main: Option<Puller>,
        retries: Option<Puller>,
    ) -> Self {
        let server = Arc::new(server);
        let records = |puller| Records::new(Arc::clone(&server), reading.clone(), puller);
        let retries = retries.map(records);
        Self { server, reading, main, retries, streak: 0 }
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

    fn bind(&mut self, recipients: Arc<dyn Recipients>) {
        let addressee = &mut self.reading.incoming.addressee;
        *addressee = addressee.clone().with_recipients(recipients);
        if let Some(retries) = &mut self.retries {
            retries.bind(addressee.clone());
        }
    }

    async fn next(&mut self) -> Result<Option<(Delivery, NatsSettle)>, TransportError> {
        // Of the stream first while it has some at hand, but not for ever. A record that is being read is always asked.
        let Self { server, reading, main, retries, streak } = self;
        // An opening record is asked first: its parts are read only while its future is polled.
        let has_main = main.as_ref().is_some_and(Puller::has_some);
        let is_opening = retries.as_ref().is_some_and(Records::is_opening);
        let main_first = has_main && !is_opening && *streak < STREAK;
        // The count begins again with each record, so that a busy stream cannot keep due records waiting (G4).
        *streak = if main_first { *streak + 1 } else { 0 };
        let message = async {
            let Some(main) = main else { return pending().await };
            let Some(fetched) = main.next().await? else { return Ok(None) };
            let (server, reply) = (Arc::clone(server), fetched.reply.clone());
            // The settlement has to know a message that no client can read: given back, the server would hand it to a
            // client.
            let held = fetched.unreadable.as_ref().map(|unreadable| unreadable.held.clone());
            let settle = NatsSettle::new(server, reply, Vec::new()).with_lease(main.lease());
            // Only messages of this consumer are posted: `Acks::flush` relies on the order in which the server takes the
            // acknowledgements of one consumer, and no letter or retry record depends on one that was only posted.
            let settle = settle.with_held(held).posting();
            Ok(Some((reading.main(fetched), settle)))
        };
        let record = async {
            match retries {
                Some(retries) => retries.next().await,
                None => pending().await,
            }
        };
        // Whichever future is dropped loses nothing: what was fetched stays with its puller until it is yielded.
        if main_first {
            tokio::select! { biased; next = message => next, next = record => next }
        } else {
            tokio::select! { biased; next = record => next, next = message => next }
        }
    }

    fn keep_alive_interval(&self) -> Option<Duration> {
        // The shorter lease decides, since one call keeps the leases of both.
        let main = self.main.as_ref().map(Puller::keep_alive_interval);
        main.into_iter().chain(self.retries.as_ref().map(Records::keep_alive_interval)).min()
    }

    async fn keep_alive(&mut self) {
        if let Some(main) = &mut self.main {
            main.keep_alive().await;
        }
        if let Some(retries) = &mut self.retries {
            retries.keep_alive().await;
        }
    }

    /// Gives back what was fetched, and waits until the server has worked through the acknowledgements that nobody awaited,
    /// for 5 seconds at most.
    async fn close(&mut self) {
        // This comes first, so that whatever is settled later is confirmed: nobody flushes a second time.
        self.server.close().await;
        if let Some(main) = &mut self.main {
            main.close().await;
        }
        if let Some(retries) = &mut self.retries {
            retries.close().await;
        }
    }
}

/// Makes deliveries to these handlers. The id of a message is the one by which the server knows it.
pub(crate) fn incoming(
    addressee: Addressee,
    key: Option<BindingKey>,
    event_header: Option<Arc<str>>,
) -> Incoming {
    let id_header = Some(Arc::from(NATS_MESSAGE_ID.as_ref()));
    Incoming { addressee, key, id_header, event_header }
}

impl Reading {
    /// A message of the user's stream.
    pub(crate) fn main(&self, fetched: Fetched) -> Delivery {
        let Fetched { message, place, unreadable, .. } = fetched;
        let Some(unreadable) = unreadable else {
            let headers = message.headers.unwrap_or_default();
            return self.message(&message.subject, wire::read(&headers), message.payload, place);
        };
        let text = wire::unreadable(&unreadable.headers);
        // The failure is permanent, since a stored message never changes: no other delivery could be read either.
        let failure =
            Failure::new(ErrorClass::Permanent, Cause::Malformed, "unreadable header", &text);
        let read = self.message(&message.subject, unreadable.headers, message.payload, place);
        read.with_refusal(failure)
    }

    /// Returns where a message stands.
    pub(crate) fn stands(&self, place: &MessageMeta) -> Origin {
        Origin::new("nats", &*place.stream, Position::Offset(place.sequence))
            .with_cluster(Arc::clone(&self.cluster))
    }

    /// A message that stands at `place`, with its headers in the order of their names.
    pub(crate) fn message(
        &self,
        subject: &str,
        mut headers: Headers,
        payload: Bytes,
        place: MessageMeta,
    ) -> Delivery {
        let mut key = None;
        if let Some(name) = &self.key_header {
            key = headers.get(name).map(Bytes::copy_from_slice);
            // A replay to the origin writes this header from the key: the message would have it twice otherwise.
            headers.remove(name);
        }
        let mut message = Message::new(subject, payload).with_published_at(place.published);
        if let Some(key) = key {
            message = message.with_key(key);
        }
        // The id on a message that was sent back is that of the replay; the producer's was kept.
        let message = message.with_headers(headers);
        let delivery = self.incoming.message(message, self.stands(&place), wire::split_ours);
        delivery.with_deliveries(place.delivered)
    }
}

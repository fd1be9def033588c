//! [`Inboxes`]: many messages that are published together, and the server's word on each heard in one place.
//!
//! The client's way of publishing makes a request of each message, with timers, a place in a table and a task to wake. For
//! letters, which come in hundreds when all fail, that costs as much as all else that is done for them.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::header::HeaderMap;
use async_nats::jetstream::context::traits::TimeoutProvider as _;
use async_nats::{Client, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt;
use tokio::time::timeout;

use crate::client::domain::{StreamDomain, Word};

/// A message that a stream is to keep.
#[derive(Debug)]
pub(crate) struct Publication {
    pub(crate) subject: String,
    /// The stream that is to keep it, as its headers say.
    pub(crate) stream: String,
    pub(crate) headers: HeaderMap,
    pub(crate) payload: Bytes,
}

/// Answer of the server about a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// Nothing, in time.
    Nothing,
    /// Something by others, as a stream of another domain, and of its own nothing.
    Elsewhere,
    /// Its stream does not keep it; or the client could not send it.
    Refused,
    /// It was not to be sent any more.
    Unsent,
    /// Its stream keeps it.
    Kept {
        /// True if the stream had it before.
        duplicate: bool,
    },
}

/// Pool of inboxes for confirmations. Each call takes one and returns it when everything it waits for has come, so that
/// a late answer is not taken for another's.
#[derive(Debug)]
pub(crate) struct Inboxes {
    client: Client,
    home: StreamDomain,
    /// Time for which the server may be silent. Many messages, or a distant server, take longer than that, and are
    /// confirmed bit by bit.
    patience: Duration,
    idle: Mutex<Vec<Inbox>>,
}

#[derive(Debug)]
struct Inbox {
    name: String,
    answers: Subscriber,
    /// The number of the next message.
    next: u64,
}

impl Inboxes {
    pub(crate) fn new(home: StreamDomain) -> Self {
        let (client, patience) = (home.context.client(), home.context.timeout());
        Self { client, home, patience, idle: Mutex::default() }
    }

    /// Publishes all of them, each while it may be: what the server says of each.
    ///
    /// Cancel safe: each of them is then published or not, as where nothing is heard.
    pub(crate) async fn publish(
        &self,
        all: Vec<Publication>,
        may: impl Fn() -> bool,
    ) -> Vec<Heard> {
        let mut heard = vec![Heard::Nothing; all.len()];
        let Ok(Some(mut inbox)) = timeout(self.patience, self.inbox()).await else { return heard };
        let first = inbox.next;
        // Each number is used once: a stream of another domain may answer to this call when the next one has the inbox.
        inbox.next += all.len() as u64;
        let (mut unheard, mut streams) = (0, Vec::with_capacity(all.len()));
        for ((number, message), place) in (first..).zip(all).zip(&mut heard) {
            let Publication { subject, stream, headers, payload } = message;
            streams.push(stream);
            if !may() {
                *place = Heard::Unsent;
                continue;
            }
            let reply = format!("{}.{number}", inbox.name);
            let sent = self.client.publish_with_reply_and_headers(subject, reply, headers, payload);
            // It waits for a connection as well.
            match timeout(self.patience, sent).await {
                Ok(Ok(())) => unheard += 1,
                Ok(Err(_)) => *place = Heard::Refused,
                // The inbox is dropped and not put back, since answers may still come to it.
                Err(_) => return heard,
            }
        }
        while unheard > 0 {
            let Ok(Some(answer)) = timeout(self.patience, inbox.answers.next()).await else {
                return heard;
            };
            let number = answer.subject.rsplit('.').next().and_then(|n| n.parse::<u64>().ok());
            let place = number.and_then(|number| usize::try_from(number.checked_sub(first)?).ok());
            let Some((place, stream)) =
                place.and_then(|place| Some((heard.get_mut(place)?, streams.get(place)?)))
            else {
                continue;
            };
            // The word of its own stream is final.
            if !matches!(place, Heard::Nothing | Heard::Elsewhere) {
                continue;
            }
            *place = match self.home.hears(&answer, Some(stream)).await {
                Word::Elsewhere => Heard::Elsewhere,
                Word::Refused(_) => Heard::Refused,
                Word::Kept { duplicate } => Heard::Kept { duplicate },
            };
            // What another stream says does not end the wait: the word of its own may come yet.
            unheard -= usize::from(*place != Heard::Elsewhere);
        }
        self.idle().push(inbox);
        heard
    }

    /// The same, where some cannot be published: they count as refused.
    pub(crate) async fn publish_some(
        &self,
        all: Vec<Option<Publication>>,
        may: impl Fn() -> bool,
    ) -> Vec<Heard> {
        let can: Vec<bool> = all.iter().map(Option::is_some).collect();
        let heard = self.publish(all.into_iter().flatten().collect(), may).await;
        let mut heard = heard.into_iter();
        let of = |can| if can { heard.next().unwrap_or(Heard::Nothing) } else { Heard::Refused };
        can.into_iter().map(of).collect()
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Inbox>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an unused inbox; `None` if the client has ended.
    async fn inbox(&self) -> Option<Inbox> {
        // The variable ends the lock, which must not be held across the subscription below.
        let idle = self.idle().pop();
        if idle.is_some() {
            return idle;
        }
        let name = self.client.new_inbox();
        let answers = self.client.subscribe(format!("{name}.*")).await.ok()?;
        Some(Inbox { name, answers, next: 0 })
    }
}

//! [`Ready`]: what was fetched and waits here, under leases that are kept.

use std::collections::VecDeque;
use std::time::Duration;

use async_nats::connection::State;
use async_nats::{Client, Message, Subject};
use dlq_core::protocol::names;
use dlq_core::{Headers, Timestamp, TransportError};
use tokio::time::Instant;

use crate::client::error::unavailable;
use crate::client::leader::Kept;
use crate::client::message_meta::MessageMeta;
use crate::consumer::settle::{PROGRESS, nak};
use crate::consumer::unreadable::Held;

/// When it is said again that a lease is to begin anew, at most.
const AGAIN: Duration = Duration::from_secs(1);

/// A message that was fetched.
#[derive(Clone, Debug)]
pub(crate) struct Fetched {
    pub(crate) message: Message,
    pub(crate) reply: Subject,
    pub(crate) place: MessageMeta,
    /// No later than this its lease has begun.
    received: Instant,
    renewal: Option<Renewal>,
    /// When it is due, where that counts.
    due: Option<Timestamp>,
    /// Present for a message that no client can read, and that was read otherwise.
    pub(crate) unreadable: Option<Unreadable>,
}

/// The part of a message that a client cannot read.
#[derive(Clone, Debug)]
pub(crate) struct Unreadable {
    /// All headers.
    pub(crate) headers: Headers,
    pub(crate) held: Held,
}

/// When a retry record is due.
fn due(message: &Message) -> Option<Timestamp> {
    message.headers.as_ref()?.get(names::RETRY_DUE)?.as_str().parse().ok()
}

/// The server was told that a lease is to begin anew, and has not confirmed it.
#[derive(Clone, Copy, Debug)]
struct Renewal {
    number: u64,
    /// When it was told first, and last.
    begun: Instant,
    told: Instant,
}

/// Fetched messages that wait here, in the order in which they came or are due.
///
/// After a quarter of a lease the server is told that it is to begin anew. Where it has not confirmed that within half of
/// the lease, the message is not handed out: a consumer between two leaders hears nothing, and then somebody else gets it.
#[derive(Debug)]
pub(crate) struct Ready {
    fetched: VecDeque<Fetched>,
    /// Prefix of the subjects at which answers arrive.
    inbox: String,
    /// The number of the next renewal. Requests for messages have 0.
    number: u64,
    /// Before then there is nothing to say.
    renew: Instant,
    is_by_due: bool,
}

impl Ready {
    pub(crate) fn new(inbox: String) -> Self {
        let (fetched, renew) = (VecDeque::new(), Instant::now());
        Self { fetched, inbox, number: 1, renew, is_by_due: false }
    }

    /// From here on what is due first comes first, and what does not say when it is due before that.
    pub(crate) fn sort_by_due(&mut self) {
        self.is_by_due = true;
    }

    /// Returns the subject of all answers.
    pub(crate) fn answers(&self) -> String {
        format!("{}.*", self.inbox)
    }

    /// Returns the subject of answers to requests for messages.
    pub(crate) fn asked(&self) -> String {
        format!("{}.0", self.inbox)
    }

    pub(crate) fn len(&self) -> usize {
        self.fetched.len()
    }

    /// The next message, if it can be handed out.
    pub(crate) fn front(&self, lease: Duration) -> Option<&Fetched> {
        // Up to half of the lease an unconfirmed renewal leaves the handler the other half.
        let is_ours = |f: &&Fetched| f.renewal.is_none() || f.received.elapsed() <= lease / 2;
        self.fetched.front().filter(is_ours)
    }

    pub(crate) fn pop(&mut self) -> Option<Fetched> {
        self.fetched.pop_front()
    }

    pub(crate) fn push(
        &mut self,
        message: Message,
        reply: Subject,
        place: MessageMeta,
        at: Instant,
    ) {
        let (renewal, unreadable) = (None, None);
        let due = if self.is_by_due { due(&message) } else { None };
        // The search begins at the back, so that equal ones keep their order; without due times all are equal.
        let before = self.fetched.iter().rposition(|other| other.due <= due);
        let fetched = Fetched { message, reply, place, received: at, renewal, due, unreadable };
        self.fetched.insert(before.map_or(0, |before| before + 1), fetched);
    }

    /// Takes up a message that no client can read, whose lease has just begun anew.
    pub(crate) fn push_unreadable(&mut self, kept: Kept, reply: Subject, stream: &str, held: Held) {
        let message = Message {
            subject: kept.subject.as_str().into(),
            reply: Some(reply.clone()),
            length: kept.payload.len(),
            headers: Some(kept.map()),
            payload: kept.payload,
            status: None,
            description: None,
        };
        let (stream, published) = (stream.to_owned(), kept.time);
        // The number of deliveries stands in the reply, which no client could read. The message was handed out at least
        // once.
        let place = MessageMeta { stream, delivered: 1, sequence: kept.sequence, published };
        let unreadable = Some(Unreadable { headers: kept.headers, held });
        let (received, renewal, due) = (Instant::now(), None, None);
        let fetched = Fetched { message, reply, place, received, renewal, due, unreadable };
        self.fetched.push_back(fetched);
    }

    pub(crate) fn clear(&mut self) {
        self.fetched.clear();
    }

    /// Leases may have become shorter: what waits is looked at now.
    pub(crate) fn hurry(&mut self) {
        self.renew = Instant::now();
    }

    /// Returns true if the message answers a renewal, which is noted.
    pub(crate) fn heard(&mut self, message: &Message, lease: Duration) -> bool {
        let number = message.subject.strip_prefix(&*self.inbox).and_then(|rest| {
            rest.strip_prefix('.')?.parse::<u64>().ok().filter(|number| *number > 0)
        });
        let Some(number) = number else { return false };
        // With a status it says that nobody listens.
        if message.status.is_none() {
            // Servers say so of what somebody else has by now, too: what is heard too late is no renewal.
            self.fetched.retain_mut(|fetched| {
                let Some(renewal) = fetched.renewal.filter(|one| one.number == number) else {
                    return true;
                };
                let is_ours = fetched.received.elapsed() < lease;
                // The lease is counted from the first word: it begins no earlier at the server, so that it is not taken
                // for longer.
                (fetched.renewal, fetched.received) = (None, renewal.begun);
                is_ours
            });
        }
        true
    }

    /// Has the leases of what has waited for a quarter of them begin anew. What may have lost its own, because nobody
    /// came here or nobody listened for long, is dropped: it comes again.
    pub(crate) async fn refresh(
        &mut self,
        client: &Client,
        lease: Duration,
    ) -> Result<(), TransportError> {
        let now = Instant::now();
        if now < self.renew {
            return Ok(());
        }
        // A renewal is said more than once between a quarter of the lease and the half, at which it comes to be doubted.
        let pause = AGAIN.min(lease / 8);
        self.fetched.retain(|fetched| {
            let is_kept = now.duration_since(fetched.received) <= lease * 3 / 4;
            // It was told in time, and may have heard it.
            let is_told = |renewal: Renewal| now.duration_since(renewal.told) <= lease / 4;
            is_kept || fetched.renewal.is_some_and(is_told)
        });
        // What is said to nobody renews nothing.
        let is_connected = client.connection_state() == State::Connected;
        for fetched in &mut self.fetched {
            let age = now.duration_since(fetched.received);
            // After three quarters the word may reach the server when the message is somebody else's.
            if age <= lease / 4 || age > lease * 3 / 4 {
                continue;
            }
            if fetched.renewal.is_none() {
                // The last word is dated one pause back, so that the first one is said below at once.
                let told = now.checked_sub(pause).unwrap_or(now);
                fetched.renewal = Some(Renewal { number: self.number, begun: now, told });
                // Numbers tell renewals apart, since the answer of an earlier one may come late.
                self.number += 1;
            }
            let Some(renewal) = &mut fetched.renewal else { continue };
            if is_connected && now.duration_since(renewal.told) >= pause {
                renewal.told = now;
                let answer = format!("{}.{}", self.inbox, renewal.number);
                let said = client.publish_with_reply(fetched.reply.clone(), answer, PROGRESS);
                said.await.map_err(|error| unavailable("extend a lease", error))?;
            }
        }
        // What comes later is younger than any of these.
        let next = |fetched: &Fetched| match fetched.renewal {
            Some(_) => now + pause,
            None => fetched.received + lease / 4,
        };
        self.renew = self.fetched.iter().map(next).min().unwrap_or(now + lease / 4);
        Ok(())
    }

    /// Gives everything back, in its order.
    pub(crate) async fn give_back(&mut self, client: &Client, lease: Duration) {
        if self.fetched.is_empty() {
            return;
        }
        for fetched in self.fetched.drain(..) {
            // The server takes the word of a former owner, too: past its lease a message may be another's and is left
            // alone.
            // What no client can read would be handed out to one.
            if fetched.received.elapsed() < lease && fetched.unreadable.is_none() {
                // One that cannot be said comes again when its lease ends.
                let _ = client.publish(fetched.reply, nak(Duration::ZERO)).await;
            }
        }
        // Publishing only queues the words. They are flushed, since the process may end next.
        let _ = client.flush().await;
    }
}

#[cfg(test)]
mod tests {
    use async_nats::HeaderMap;

    use super::*;

    fn due_at(ready: &mut Ready, sequence: u64, due: Option<i64>) {
        let mut headers = HeaderMap::new();
        if let Some(due) = due {
            headers.insert(names::RETRY_DUE, Timestamp::from_millis(due).to_string());
        }
        let message = Message {
            subject: "retry.billing.orders".into(),
            reply: None,
            payload: "".into(),
            headers: Some(headers),
            status: None,
            description: None,
            length: 0,
        };
        let stream = "DLQ_RETRY".to_owned();
        let published = Timestamp::EPOCH;
        let place = MessageMeta { stream, delivered: 1, sequence, published };
        ready.push(message, format!("reply.{sequence}").into(), place, Instant::now());
    }

    fn order(is_by_due: bool) -> Vec<u64> {
        let mut ready = Ready::new("inbox".to_owned());
        if is_by_due {
            ready.sort_by_due();
        }
        let dues = [Some(300), Some(100), None, Some(200), Some(100), None];
        for (sequence, due) in (1..).zip(dues) {
            due_at(&mut ready, sequence, due);
        }
        std::iter::from_fn(|| ready.pop()).map(|fetched| fetched.place.sequence).collect()
    }

    #[tokio::test]
    async fn records_come_as_they_are_due_and_messages_as_they_came() {
        assert_eq!(order(true), [3, 6, 2, 5, 4, 1]);
        assert_eq!(order(false), [1, 2, 3, 4, 5, 6], "a header of a producer says nothing");
    }
}

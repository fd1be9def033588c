//! [`Inboxes`]: many messages that are published together, and the server's word on each heard in one place.
//!
//! The client's way of publishing makes a request of each message, with timers, a place in a table and a task to wake. For
//! letters, which come in hundreds when all fail, that costs as much as all else that is done for them.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::header::HeaderMap;
use async_nats::jetstream::context::traits::TimeoutProvider as _;
use async_nats::{Client, Message, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt;
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::time::timeout;

use crate::home::Home;

/// A message that a stream is to keep.
#[derive(Debug)]
pub(crate) struct Publication {
    pub(crate) subject: String,
    pub(crate) headers: HeaderMap,
    pub(crate) payload: Bytes,
}

/// What the server said of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// Nothing, in time.
    Nothing,
    /// That a stream of another domain keeps it, and of its own nothing.
    Elsewhere,
    /// That its stream does not keep it; or the client did not even send it.
    Refused,
    /// That its stream keeps it.
    Kept {
        /// Whether it did so before.
        duplicate: bool,
    },
}

/// Where confirmations are heard. One is taken for each call and comes back when all that it waits for has come, so that
/// what comes late is not taken for another's.
#[derive(Debug)]
pub(crate) struct Inboxes {
    client: Client,
    home: Home,
    /// How long the server may be silent. Much, and from far away, takes longer than that, and is confirmed bit by bit.
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
    pub(crate) fn new(home: Home) -> Self {
        let (client, patience) = (home.context.client(), home.context.timeout());
        Self { client, home, patience, idle: Mutex::default() }
    }

    /// Publishes all of them: what the server says of each.
    ///
    /// Cancel safe: each of them is then published or not, as where nothing is heard.
    pub(crate) async fn publish(&self, all: Vec<Publication>) -> Vec<Heard> {
        let mut heard = vec![Heard::Nothing; all.len()];
        let Ok(Some(mut inbox)) = timeout(self.patience, self.inbox()).await else { return heard };
        let first = inbox.next;
        inbox.next += all.len() as u64;
        let mut unheard = 0;
        for ((number, message), place) in (first..).zip(all).zip(&mut heard) {
            let Publication { subject, headers, payload } = message;
            let reply = format!("{}.{number}", inbox.name);
            let sent = self.client.publish_with_reply_and_headers(subject, reply, headers, payload);
            // It waits for a connection as well.
            match timeout(self.patience, sent).await {
                Ok(Ok(())) => unheard += 1,
                Ok(Err(_)) => *place = Heard::Refused,
                Err(_) => return heard,
            }
        }
        while unheard > 0 {
            let Ok(Some(answer)) = timeout(self.patience, inbox.answers.next()).await else {
                return heard;
            };
            let number = answer.subject.rsplit('.').next().and_then(|n| n.parse::<u64>().ok());
            let place = number.and_then(|number| usize::try_from(number.checked_sub(first)?).ok());
            if let Some(place) = place.and_then(|place| heard.get_mut(place))
                && matches!(place, Heard::Nothing | Heard::Elsewhere)
            {
                *place = match read(&answer) {
                    // Its own may come yet.
                    Some((_, domain)) if !self.home.is(&domain).await => Heard::Elsewhere,
                    said => {
                        unheard -= 1;
                        said.map_or(Heard::Refused, |(duplicate, _)| Heard::Kept { duplicate })
                    }
                };
            }
        }
        self.idle().push(inbox);
        heard
    }

    /// The same, where some cannot be published: they count as refused.
    pub(crate) async fn publish_some(&self, all: Vec<Option<Publication>>) -> Vec<Heard> {
        let can: Vec<bool> = all.iter().map(Option::is_some).collect();
        let mut heard = self.publish(all.into_iter().flatten().collect()).await.into_iter();
        let of = |can| if can { heard.next().unwrap_or(Heard::Nothing) } else { Heard::Refused };
        can.into_iter().map(of).collect()
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Inbox>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One that nobody uses; `None` when the client has ended.
    async fn inbox(&self) -> Option<Inbox> {
        let idle = self.idle().pop();
        if idle.is_some() {
            return idle;
        }
        let name = self.client.new_inbox();
        let answers = self.client.subscribe(format!("{name}.*")).await.ok()?;
        Some(Inbox { name, answers, next: 0 })
    }
}

#[derive(Deserialize)]
struct Confirmation {
    error: Option<IgnoredAny>,
    seq: u64,
    #[serde(default)]
    duplicate: bool,
    #[serde(default)]
    domain: String,
}

/// Whether its stream kept it before, and in which domain that is; `None` when it does not.
fn read(answer: &Message) -> Option<(bool, String)> {
    match serde_json::from_slice::<Confirmation>(&answer.payload) {
        Ok(Confirmation { error: None, seq: 1.., duplicate, domain })
            if answer.status.is_none() =>
        {
            Some((duplicate, domain))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use async_nats::{StatusCode, Subject};

    use super::*;

    fn answer(payload: &'static str, status: Option<StatusCode>) -> Message {
        Message {
            subject: Subject::from_static("_INBOX.x.0"),
            reply: None,
            payload: payload.into(),
            headers: None,
            status,
            description: None,
            length: 0,
        }
    }

    #[test]
    fn only_a_sequence_without_an_error_is_a_confirmation() {
        let kept = |duplicate, domain: &str| Some((duplicate, domain.to_owned()));
        let read = |payload| read(&answer(payload, None));
        assert_eq!(read(r#"{"stream":"DLQ","domain":"hub","seq":7}"#), kept(false, "hub"));
        assert_eq!(read(r#"{"stream":"DLQ","seq":7,"duplicate": true}"#), kept(true, ""));
        let full = r#"{"error":{"code":503,"err_code":10077},"stream":"DLQ","seq":0}"#;
        let with_both = r#"{"error":{},"seq":7}"#;
        for none in [full, with_both, r#"{"stream":"DLQ","seq":0}"#, "{}", "", "+OK"] {
            assert_eq!(read(none), None, "{none}");
        }
        let nobody = answer(r#"{"seq":7}"#, Some(StatusCode::NO_RESPONDERS));
        assert_eq!(super::read(&nobody), None);
    }
}

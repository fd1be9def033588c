//! [`Acks`]: acknowledgements of many messages on one way.
//!
//! Each is a request of its own that the server confirms. What is together is the work: one task sends all that were
//! given to it since it last ran, which the client then writes at once, and hears the answers of all.
//!
//! # Acknowledgements without an answer
//!
//! | the process dies | the server has | and then |
//! |---|---|---|
//! | before one is written to the connection | a message that is out | it comes again when its lease ends: a duplicate where the key is done |
//! | after it is written | either | the same, or nothing |
//! | later | the acknowledgement, unless the connection was lost or the consumer had no leader | nothing, or the same |
//!
//! None of them stands for a letter or a retry record: those are confirmed.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::{Client, Message, StatusCode, Subject, Subscriber};
use bytes::Bytes;
use dlq_core::{TransportError, TransportErrorKind};
use futures_util::{FutureExt, StreamExt};
use tokio::sync::{mpsc, oneshot};
use tokio::task::coop::unconstrained;
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, sleep_until, timeout};

use crate::client::error::unavailable;
use crate::client::permissions::unanswered;

const OPERATION: &str = "acknowledge a message";
const ACK: Bytes = Bytes::from_static(b"+ACK");
/// Time limit for an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Precision with which the limit is kept.
const LOOK: Duration = Duration::from_millis(500);
/// Number of requests that are sent before answers are read again.
const BATCH: usize = 256;

type AckResult = Result<(), TransportError>;

/// An acknowledgement that was asked for.
#[derive(Debug)]
struct Asked {
    reply: Subject,
    answer: oneshot::Sender<AckResult>,
}

/// Sender of acknowledgements that await an answer. The task behind it lives as long as this.
#[derive(Debug)]
pub(crate) struct Acks {
    client: Client,
    asked: mpsc::UnboundedSender<Asked>,
    /// Acknowledgement without an answer that was sent last.
    posted: Mutex<Option<Subject>>,
    _task: JoinSet<()>,
}

impl Acks {
    pub(crate) fn new(client: Client) -> Self {
        // The channel needs no bound: a delivery in flight has at most one acknowledgement here, and deliveries are
        // bounded.
        let (asked, receiver) = mpsc::unbounded_channel();
        let mut task = JoinSet::new();
        task.spawn(Sending::new(client.clone()).run(receiver));
        Self { client, asked, posted: Mutex::default(), _task: task }
    }

    /// Acknowledges the message that is answered at `reply`; returns once the server has confirmed.
    pub(crate) async fn acknowledge(&self, reply: &Subject) -> AckResult {
        let (answer, answered) = oneshot::channel();
        if self.asked.send(Asked { reply: reply.clone(), answer }).is_err() {
            return Err(failed("the runtime of the source has ended"));
        }
        // The sender is dropped without an answer when the request was forgotten, or the task has ended.
        answered.await.unwrap_or_else(|_| Err(failed(&unanswered(&self.client, reply))))
    }

    /// Acknowledges the message that is answered at `reply`, and wants no answer. False where the client cannot take it now,
    /// since too much waits to be written. All of them are messages of one consumer.
    pub(crate) fn post(&self, reply: &Subject) -> bool {
        // Without `unconstrained`, a task that has used up its budget would look like a client without room.
        let published = unconstrained(self.client.publish(reply.clone(), ACK)).now_or_never();
        let is_posted = matches!(published, Some(Ok(())));
        // One is enough for `flush`, which says it again behind all the others.
        if is_posted {
            *self.posted() = Some(reply.clone());
        }
        is_posted
    }

    /// Waits until the server has worked through all that was [posted](Self::post), or the time limit of an answer has
    /// passed. A server takes the acknowledgements of a consumer in their order, so that the answer to the last one is for all.
    pub(crate) async fn flush(&self) {
        // The last one is said once more, now for an answer: to acknowledge twice does no harm.
        let Some(last) = self.posted().take() else { return };
        let silent = |_| failed("the server does not answer");
        // The limit here covers the channel and the task as well; the one in `Waiting` begins when the request is
        // sent.
        let flushed = timeout(PATIENCE, self.acknowledge(&last)).await;
        if let Err(error) = flushed.map_err(silent).flatten() {
            tracing::warn!(
                %error,
                "acknowledgements of messages that were handled may not have arrived: they may come again"
            );
        }
    }

    fn posted(&self) -> MutexGuard<'_, Option<Subject>> {
        self.posted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn failed(text: &str) -> TransportError {
    TransportError::new(TransportErrorKind::Unavailable, OPERATION).with_detail(text.to_owned())
}

struct Waiting {
    until: Instant,
    /// None when it was answered.
    answer: Option<oneshot::Sender<AckResult>>,
}

struct Sending {
    client: Client,
    inbox: String,
    subscriber: Option<Subscriber>,
    /// Requests that were sent, in order, and the number of the first.
    waiting: VecDeque<Waiting>,
    first: u64,
}

impl Sending {
    fn new(client: Client) -> Self {
        let inbox = client.new_inbox();
        Self { client, inbox, subscriber: None, waiting: VecDeque::new(), first: 0 }
    }

    /// Runs until nobody can ask any more.
    async fn run(mut self, mut asked: mpsc::UnboundedReceiver<Asked>) {
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            let look = Instant::now() + LOOK;
            tokio::select! {
                biased;
                answer = next(&mut self.subscriber) => match answer {
                    Some(answer) => self.hear(&answer),
                    // The next batch subscribes anew. Whoever waits for an answer on this one hears of the time limit,
                    // and tries again.
                    None => self.subscriber = None,
                },
                count = asked.recv_many(&mut batch, BATCH) => {
                    if count == 0 {
                        return;
                    }
                    // One turn is left to others, so that the client writes what they have to say in the same go.
                    yield_now().await;
                    while batch.len() < BATCH && let Ok(more) = asked.try_recv() {
                        batch.push(more);
                    }
                    self.send(&mut batch).await;
                }
                // This wakes the task to forget what nobody has answered in time: with nothing open it sleeps.
                () = sleep_until(look), if !self.waiting.is_empty() => {}
            }
            // Answers are read before any is forgotten, so that a task that came back late does not fail what was
            // answered in time.
            while let Some(Some(answer)) = next(&mut self.subscriber).now_or_never() {
                self.hear(&answer);
            }
            self.forget(Instant::now());
        }
    }

    async fn send(&mut self, batch: &mut Vec<Asked>) {
        if self.subscriber.is_none() {
            match self.client.subscribe(format!("{}.*", self.inbox)).await {
                Ok(subscriber) => self.subscriber = Some(subscriber),
                Err(error) => {
                    let text = error.to_string();
                    for asked in batch.drain(..) {
                        // An error is dropped where the caller has gone: nobody waits for the answer any more.
                        let _ = asked.answer.send(Err(failed(&text)));
                    }
                    return;
                }
            }
        }
        let until = Instant::now() + PATIENCE;
        for Asked { reply, answer } in batch.drain(..) {
            let number = self.first + self.waiting.len() as u64;
            let inbox = format!("{}.{number}", self.inbox);
            match self.client.publish_with_reply(reply, inbox, ACK).await {
                Ok(()) => self.waiting.push_back(Waiting { until, answer: Some(answer) }),
                Err(error) => {
                    let _ = answer.send(Err(unavailable(OPERATION, error)));
                }
            }
        }
    }

    fn hear(&mut self, message: &Message) {
        let number = message.subject.rsplit('.').next().and_then(|n| n.parse::<u64>().ok());
        // An answer to a request that was forgotten is older than the first, and concerns nobody.
        let place = number.and_then(|number| number.checked_sub(self.first));
        let place = place.and_then(|place| usize::try_from(place).ok());
        let Some(waiting) = place.and_then(|place| self.waiting.get_mut(place)) else { return };
        let Some(answer) = waiting.answer.take() else { return };
        let _ = answer.send(if message.status == Some(StatusCode::NO_RESPONDERS) {
            let text = "the server does not know the consumer, or not yet";
            Err(TransportError::new(TransportErrorKind::Lost, OPERATION).with_detail(text))
        } else {
            // The server answers an acknowledgement with an empty message, whoever has the message by now.
            Ok(())
        });
    }

    /// Forgets those that were answered, and those that nobody answers any more.
    fn forget(&mut self, now: Instant) {
        // Requests go from the front only, since an answer finds its own by the distance from the first. One that is
        // dropped open fails its caller, who may say it again.
        while self.waiting.front().is_some_and(|first| first.answer.is_none() || first.until <= now)
        {
            self.waiting.pop_front();
            self.first += 1;
        }
    }
}

async fn next(subscriber: &mut Option<Subscriber>) -> Option<Message> {
    match subscriber {
        Some(subscriber) => subscriber.next().await,
        None => std::future::pending().await,
    }
}

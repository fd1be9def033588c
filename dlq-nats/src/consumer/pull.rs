//! [`Puller`]: asks the server for the messages of one durable consumer, whatever happens to connection, server and
//! consumer.

use std::sync::atomic::Ordering;
use std::time::Duration;

use async_nats::jetstream::Context;
use async_nats::{Client, Message, Request, Subscriber};
use dlq_core::{TransportError, TransportErrorKind};
use futures_util::{FutureExt, StreamExt};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use crate::client::error::{SetupError, unavailable};
use crate::client::message_meta::MessageMeta;
use crate::client::permissions::{ENDED, has_ended};
use crate::consumer::durable::Durable;
use crate::consumer::empty_requests::EmptyRequests;
use crate::consumer::overdue::Overdue;
use crate::consumer::ready::{Fetched, Ready};
use crate::consumer::unreadable::{self, UnreadableSearch};

/// Time for which the server keeps a request that it cannot fill.
pub(crate) const EXPIRES: Duration = Duration::from_secs(30);
/// Interval at which the server confirms that it still knows a request.
const HEARTBEAT: Duration = Duration::from_secs(3);
/// Time of silence after which a request counts as lost.
const SILENCE: Duration = Duration::from_secs(7);
/// Interval at which a waiting source checks whether the connection is another one.
const WATCH: Duration = Duration::from_secs(1);
/// Pause between two requests of which the first was refused.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Time limit for giving messages back.
const CLOSING: Duration = Duration::from_secs(5);

/// The messages of one durable consumer.
///
/// Requests are made ahead: what is in flight here, and what is asked for, is `prefetch` together. Every future of it
/// can be dropped at any time.
#[derive(Debug)]
pub(crate) struct Puller {
    client: Client,
    context: Context,
    durable: Durable,
    prefetch: usize,
    subscriber: Option<Subscriber>,
    ready: Ready,
    /// Number of messages that the server was asked for and has not sent.
    asked: usize,
    /// When the server last said something, while it is asked.
    heard: Instant,
    /// When it was last looked what the server has sent.
    polled: Instant,
    /// Number of connections that the client had made when the server was last asked.
    connects: u64,
    cuts: UnreadableSearch,
    /// True if stream and consumer have to be checked before the server is asked again.
    doubtful: bool,
    vain: EmptyRequests,
    /// True if a message has come again, so that a check is worthwhile.
    again: bool,
    looked: Instant,
    /// Looks at them, whether or not somebody waits.
    looking: JoinSet<Result<Durable, SetupError>>,
    overdue: Option<Overdue>,
    not_before: Instant,
    pause: Duration,
    closed: bool,
}

impl Puller {
    pub(crate) fn new(context: Context, durable: Durable, prefetch: usize) -> Self {
        let client = context.client();
        let now = Instant::now();
        Self {
            ready: Ready::new(client.new_inbox()),
            client,
            context,
            durable,
            prefetch: prefetch.max(1),
            subscriber: None,
            asked: 0,
            heard: now,
            polled: now,
            connects: 0,
            cuts: UnreadableSearch::default(),
            doubtful: false,
            vain: EmptyRequests::default(),
            again: false,
            looked: now,
            looking: JoinSet::new(),
            overdue: None,
            not_before: now,
            pause: FIRST_PAUSE,
            closed: false,
        }
    }

    pub(crate) fn with_prefetch(self, messages: usize) -> Self {
        Self { prefetch: messages.max(1), ..self }
    }

    /// Yields first what is due first, of messages that say when they are.
    pub(crate) fn by_due(mut self) -> Self {
        self.ready.sort_by_due();
        self
    }

    /// Sees to these as well.
    pub(crate) fn with_overdue(self, overdue: Overdue) -> Self {
        Self { overdue: Some(overdue), ..self }
    }

    /// For how long a message stays here without a word.
    pub(crate) fn lease(&self) -> Duration {
        self.durable.lease
    }

    /// Returns the time for which ready messages may go without [`keep_alive`](Self::keep_alive) or being asked for.
    pub(crate) fn keep_alive_interval(&self) -> Duration {
        self.durable.lease / 4
    }

    /// Keeps the leases of what is ready while nobody has room for it.
    pub(crate) async fn keep_alive(&mut self) {
        self.sweep();
        // The time is bounded, since the run loop waits for this. What cannot be said now is said the next time, or
        // the message comes again.
        let _ = timeout(WATCH, self.ready.refresh(&self.client, self.durable.lease)).await;
    }

    /// Returns true if messages are ready.
    pub(crate) fn has_some(&self) -> bool {
        self.ready.front(self.lease()).is_some()
    }

    /// The next message; `None` once closed.
    pub(crate) async fn next(&mut self) -> Result<Option<Fetched>, TransportError> {
        // Once this is through nothing is awaited: what is taken is yielded.
        Ok(if self.fill().await? { self.pop() } else { None })
    }

    /// The next message, which stays here until it is taken by [`pop`](Self::pop), or its lease is lost because nobody
    /// asked for long; `None` once closed.
    pub(crate) async fn front(&mut self) -> Result<Option<&Fetched>, TransportError> {
        Ok(if self.fill().await? { self.ready.front(self.lease()) } else { None })
    }

    /// Takes the message in front.
    pub(crate) fn pop(&mut self) -> Option<Fetched> {
        self.ready.pop()
    }

    /// Waits until there is a message at hand; `false` once closed.
    async fn fill(&mut self) -> Result<bool, TransportError> {
        loop {
            if self.closed {
                return Ok(false);
            }
            // The caller may drop this future at each await: all that was learned is in `self`, and the next call goes on
            // with it.
            self.prepare().await?;
            // This comes before leases are renewed, so that what has come unseen gets its renewal in time.
            self.sweep();
            self.ready.refresh(&self.client, self.durable.lease).await?;
            // This comes before a message is yielded: the server fills the request while the caller works, and a full
            // caller comes back late.
            self.ask().await?;
            if self.has_some() {
                return Ok(true);
            }
            let Some(subscriber) = &mut self.subscriber else { continue };
            // The loop wakes when a pause between requests ends, though not without a break, and each second to look at
            // the connection.
            let wake =
                (Instant::now() + WATCH).min(self.not_before.max(Instant::now() + FIRST_PAUSE));
            tokio::select! {
                biased;
                message = subscriber.next() => {
                    let now = Instant::now();
                    self.polled = now;
                    match message {
                        Some(message) => self.take(message, now),
                        None => {
                            self.subscriber = None;
                            // A client whose task has ended never comes back, and so ends the source. Any other is
                            // subscribed anew by `prepare`.
                            let has_ended = has_ended(&self.client);
                            return Err(if has_ended { closed() } else { ended("the connection was closed") });
                        }
                    }
                }
                () = sleep_until(wake) => {
                    self.polled = Instant::now();
                    self.watch();
                }
            }
        }
    }

    /// Sees that there is somebody to ask, and a place where the answers go.
    async fn prepare(&mut self) -> Result<(), TransportError> {
        for (kept, held) in self.cuts.found(&mut self.durable) {
            tracing::error!(
                stream = self.durable.of.name(),
                consumer = self.durable.name,
                sequence = kept.sequence,
                subject = kept.subject,
                "a message has a header that the client cannot read, and breaks the connection each time that it is handed \
                 out: it is given up; mend its producer"
            );
            let reply = unreadable::reply(&self.durable, kept.sequence).into();
            self.ready.push_unreadable(kept, reply, self.durable.of.name(), held);
        }
        // `watch` starts the look of the beginning with the first connection that it sees; before that nothing is asked
        // for.
        if self.connects > 0 {
            self.cuts.again(&self.context, &self.durable);
        }
        if let Some(overdue) = &mut self.overdue {
            overdue.note(&self.context, self.durable.lease)?;
        }
        // The check runs in a task of its own: a caller that never waits would drop it each time before it is through.
        let is_due = self.doubtful && Instant::now() >= self.not_before;
        if (is_due || self.again) && self.looking.is_empty() {
            let (mut durable, context) = (self.durable.clone(), self.context.clone());
            self.looking.spawn(async move {
                durable.ensure(&context).await?;
                Ok(durable)
            });
            (self.again, self.looked) = (false, Instant::now());
        }
        // In doubt no request is worth making before the check is through. Otherwise reading goes on beside it.
        let looked =
            if is_due { self.looking.join_next().await } else { self.looking.try_join_next() };
        match looked {
            None => {}
            Some(Ok(Ok(durable))) => {
                (self.durable, self.doubtful) = (durable, false);
                self.cuts.anew(&self.context, &self.durable);
                // Under a shorter lease what is ready is renewed earlier.
                self.ready.hurry();
                if is_due {
                    self.vain.told(&self.client, &self.durable)?;
                }
            }
            // The check of a healthy reader found a silent server. Reading goes on: what still works is not given up
            // for that.
            Some(Ok(Err(SetupError::Unavailable(..)))) if !self.doubtful => {}
            Some(Ok(Err(error))) => {
                // The failed check says what is wrong, so that requests which came to nothing are no further evidence.
                (self.doubtful, self.vain) = (true, EmptyRequests::default());
                if has_ended(&self.client) {
                    return Err(closed());
                }
                self.slow();
                // The settings were right when the source was opened: an operator may put them back, so that the error is
                // transient.
                return Err(error.passing().for_transport("fetch"));
            }
            Some(Err(_)) => return Err(ended("the runtime has ended")),
        }
        if self.subscriber.is_none() {
            let subscribed = self.client.subscribe(self.ready.answers()).await;
            self.subscriber = Some(subscribed.map_err(|error| match has_ended(&self.client) {
                true => closed(),
                false => unavailable("fetch", error),
            })?);
            // What was asked for on the former subscription has nowhere to go.
            self.asked = 0;
        }
        Ok(())
    }

    /// Takes what has come since it was last looked. How long ago it came nobody knows: no longer than that.
    fn sweep(&mut self) {
        let since = self.polled;
        let now = Instant::now();
        self.polled = now;
        if now.duration_since(since) > HEARTBEAT {
            // Its silence while nobody listened says nothing.
            self.heard = now;
        }
        while let Some(subscriber) = &mut self.subscriber {
            match subscriber.next().now_or_never() {
                Some(Some(message)) => self.take(message, since),
                // `prepare` subscribes anew; what the lost subscription was to bring comes again when its lease ends.
                Some(None) => self.subscriber = None,
                None => return,
            }
        }
    }

    fn take(&mut self, message: Message, received: Instant) {
        // The answer to a renewal says nothing of requests, so that it does not count as a word about them.
        if self.ready.heard(&message, self.lease()) {
            return;
        }
        self.heard = Instant::now();
        let Some(status) = message.status.map(|status| status.as_u16()) else {
            // The number saturates, since messages may still come to a request that was given up.
            self.asked = self.asked.saturating_sub(1);
            (self.pause, self.vain) = (FIRST_PAUSE, EmptyRequests::default());
            let read = message.reply.clone().and_then(|to| Some((MessageMeta::read(&to)?, to)));
            match read {
                Some((place, reply)) => {
                    // Its lease may have become another one meanwhile, or a limit was set.
                    self.again |= place.delivered > 1 && self.looked.elapsed() >= self.lease();
                    self.ready.push(message, reply, place, received);
                }
                None => tracing::error!(
                    subject = %message.subject,
                    reply = ?message.reply,
                    "a message came that cannot be acknowledged; it is left with the server"
                ),
            }
            return;
        };
        let description = message.description.as_deref().unwrap_or_default();
        match status {
            // This is an idle heartbeat: the server knows the request, which may still be filled.
            100 => self.vain = EmptyRequests::default(),
            404 | 408 => {
                // The server says how many messages of an ended request do not come. Without a number, none is expected
                // any more.
                let left = message.headers.as_ref().and_then(|headers| {
                    headers.get("Nats-Pending-Messages")?.as_str().parse::<usize>().ok()
                });
                self.asked = left.map_or(0, |left| self.asked.saturating_sub(left));
                (self.pause, self.vain) = (FIRST_PAUSE, EmptyRequests::default());
            }
            _ => {
                let refused = format!("{status} {description}");
                tracing::debug!(refused, consumer = self.durable.name, "a request ended");
                if self.doubt(Some(refused)) {
                    self.slow();
                }
            }
        }
    }

    /// Notes that requests come to nothing. Returns true if that is news: of several waiting requests, each is told.
    fn doubt(&mut self, refused: Option<String>) -> bool {
        self.asked = 0;
        let is_news = !std::mem::replace(&mut self.doubtful, true);
        if is_news {
            self.vain.count(refused);
        }
        is_news
    }

    /// Asks for as many messages as there is room for, when that is worth asking.
    async fn ask(&mut self) -> Result<(), TransportError> {
        self.watch();
        // The next one is about to be yielded, after which nobody may come back for long.
        let kept = self.ready.len().saturating_sub(1);
        // The server refuses a request for more than the `max_batch` of its consumer.
        let prefetch = self.prefetch.min(self.durable.most);
        let wanted = prefetch.saturating_sub(self.asked + kept);
        // Requests for single messages are many times slower, so that half of the prefetch has to be free.
        let worth = (prefetch / 2).max(1);
        let waits = self.doubtful || wanted < worth || Instant::now() < self.not_before;
        // A message that the client cannot read would end its connection: those that are out are looked at before.
        if waits || !self.cuts.is_clear(self.durable.lease) {
            return Ok(());
        }
        let request = serde_json::json!({
            "batch": wanted,
            "expires": EXPIRES.as_nanos(),
            "idle_heartbeat": HEARTBEAT.as_nanos(),
        });
        let (stream, consumer) = (self.durable.of.name(), &self.durable.name);
        let to = format!("CONSUMER.MSG.NEXT.{stream}.{consumer}");
        // Requests and renewals share one inbox, so that one subscription hears all answers of this consumer.
        let request = Request::new().payload(request.to_string().into()).inbox(self.ready.asked());
        let sent = self.context.send_request(to, request).await;
        sent.map_err(|error| unavailable("fetch", error))?;
        // While nothing was asked for, the server's silence said nothing: it counts from here.
        if self.asked == 0 {
            self.heard = Instant::now();
        }
        // Messages are counted and not requests: the server ends a request with the number that it has not sent.
        self.asked += wanted;
        Ok(())
    }

    /// Finds out that nobody is going to answer what was asked.
    fn watch(&mut self) {
        let connects = self.client.statistics().connects.load(Ordering::Relaxed);
        // Requests may be lost with their connection, so that they are made anew on the next one.
        if connects != self.connects {
            if self.connects == 0 {
                self.cuts.begin(&self.context, &self.durable);
            } else if self.asked > 0 {
                // Only a loss with messages on their way may come of a message that the client could not read.
                self.cuts.note(&self.context, &self.durable);
            }
            self.connects = connects;
            self.asked = 0;
        }
        if self.asked > 0 && self.heard.elapsed() > SILENCE {
            tracing::warn!(consumer = self.durable.name, "the server is silent; it is asked again");
            self.doubt(None);
        }
    }

    fn slow(&mut self) {
        self.not_before = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }

    /// Stops asking, and gives back what was fetched and not yielded, in its order.
    pub(crate) async fn close(&mut self) {
        self.closed = true;
        // A check that would create the consumer again must not outlive the source.
        self.looking.abort_all();
        // The time is bounded, since a server that is gone would keep the process from ending.
        if timeout(CLOSING, self.give_back()).await.is_err() {
            tracing::warn!(
                consumer = self.durable.name,
                "what was fetched could not be given back in time: it comes again when its lease ends"
            );
        }
        self.subscriber = None;
        self.ready.clear();
    }

    async fn give_back(&mut self) {
        self.sweep();
        if let Some(mut subscriber) = self.subscriber.take()
            && subscriber.drain().await.is_ok()
        {
            // What is on its way still comes; then it ends.
            while let Some(message) = subscriber.next().await {
                self.take(message, Instant::now());
            }
        }
        self.ready.give_back(&self.client, self.durable.lease).await;
    }
}

/// Nothing brings the client back: its source ends, so that whoever supervises it starts it anew.
fn closed() -> TransportError {
    TransportError::new(TransportErrorKind::Closed, "fetch").with_detail(ENDED)
}

fn ended(why: &str) -> TransportError {
    SetupError::Unavailable(why.to_owned(), None).for_transport("fetch")
}

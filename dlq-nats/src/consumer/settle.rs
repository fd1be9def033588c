use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_nats::client::RequestErrorKind;
use async_nats::jetstream::Context;
use async_nats::{Client, Request, Subject};
use bytes::Bytes;
use dlq_core::{Disposition, Settle, TransportError, TransportErrorKind};
use tokio::time::{Instant, sleep};

use crate::client::error::unavailable;
use crate::consumer::acks::Acks;
use crate::consumer::unreadable::Held;

/// Time limit of one request to the server.
const WORD: Duration = Duration::from_secs(5);
/// Pause between two tries of a settlement that the server did not confirm.
const PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// For how long an acknowledgement is tried, however long the lease.
const PATIENCE: Duration = Duration::from_secs(20);

/// State that the deliveries of one source share.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) client: Client,
    pub(crate) context: Context,
    pub(crate) acks: Acks,
    /// The lease that was asked for.
    pub(crate) lease: Duration,
    /// The name of the retry stream.
    pub(crate) retries: Option<Arc<str>>,
    /// True if every acknowledgement is confirmed, as it is once the source is closed.
    confirms: AtomicBool,
    trust: Trust,
}

/// Evidence that acknowledgements arrive which nobody confirms. One in a second is confirmed, and all of them until one was:
/// a user who may not acknowledge would handle the same messages for ever otherwise.
#[derive(Debug)]
struct Trust {
    since: Instant,
    /// True if the last one that was to be confirmed was.
    holds: AtomicBool,
    /// Milliseconds until the next one is to be confirmed, counted from `since`.
    until: AtomicU64,
}

impl Trust {
    const MILLIS: u64 = 1_000;

    fn new() -> Self {
        let (holds, until) = (AtomicBool::new(false), AtomicU64::new(0));
        Self { since: Instant::now(), holds, until }
    }

    /// Returns true if the next acknowledgement need not be confirmed.
    fn suffices(&self) -> bool {
        let now = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        let until = self.until.load(Ordering::Acquire);
        if now < until {
            return self.holds.load(Ordering::Acquire);
        }
        // One of those who ask now is confirmed.
        let next = now.saturating_add(Self::MILLIS);
        self.until.compare_exchange(until, next, Ordering::AcqRel, Ordering::Acquire).is_err()
            && self.holds.load(Ordering::Acquire)
    }

    fn confirmed(&self, is_confirmed: bool) {
        self.holds.store(is_confirmed, Ordering::Release);
    }
}

impl Server {
    pub(crate) fn new(context: Context, lease: Duration, retries: Option<Arc<str>>) -> Self {
        let client = context.client();
        // Until the source is told otherwise everything is confirmed.
        let (confirms, trust) = (AtomicBool::new(true), Trust::new());
        Self { acks: Acks::new(client.clone()), client, context, lease, retries, confirms, trust }
    }

    /// Sets whether the acknowledgement of a message that succeeded is confirmed. Defaults to true.
    pub(crate) fn confirming(self, confirms: bool) -> Self {
        Self { confirms: AtomicBool::new(confirms), ..self }
    }

    /// From here on every acknowledgement is confirmed. Waits for those that are not.
    pub(crate) async fn close(&self) {
        if !self.confirms.swap(true, Ordering::AcqRel) {
            self.acks.flush().await;
        }
    }
}

/// Ends a delivery of a [`NatsSource`](crate::NatsSource).
///
/// Every word of [`settle`](Settle::settle) is a request that the server answers, so that what is settled is settled. What is
/// not confirmed, be it an acknowledgement or that the lease is to begin anew, is said again until the lease has ended, since to
/// say it twice does no harm, and since a consumer between two leaders hears nothing. For the same reason a lease is never `Lost`
/// while it is extended: that nobody hears may pass. The server takes the word of whoever had the message last or before: a late
/// acknowledgement ends it, too.
///
/// [`settle_now`](Settle::settle_now) sends the acknowledgement of a message that succeeded and does not wait for an answer:
/// if it is lost with the connection, the message comes again. It leaves to `settle` what is to be confirmed: everything if the source was
/// told to [confirm](crate::NatsTransport::confirm_acks) or is closed, one acknowledgement in a second, all after one that was
/// not confirmed, and those for which the client has no room.
#[derive(Debug)]
pub struct NatsSettle {
    server: Arc<Server>,
    reply: Subject,
    lease: Duration,
    ends: Instant,
    /// Under which sequences parts of the message stand in the retry stream, which go with it.
    aside: Vec<u64>,
    /// Present for a message that no client can read.
    held: Option<Held>,
    /// True if its success may be acknowledged without an answer.
    posts: bool,
}

impl NatsSettle {
    pub(crate) fn new(server: Arc<Server>, reply: Subject, aside: Vec<u64>) -> Self {
        let lease = server.lease;
        Self { server, reply, lease, ends: Instant::now() + lease, aside, held: None, posts: false }
    }

    /// With the lease that the consumer has.
    pub(crate) fn with_lease(self, lease: Duration) -> Self {
        Self { lease, ends: Instant::now() + lease, ..self }
    }

    /// Marks a message of the user's stream, whose success may be acknowledged without an answer.
    pub(crate) fn posting(self) -> Self {
        Self { posts: true, ..self }
    }

    /// Marks a message that no client can read: given back, it would be handed out to one.
    pub(crate) fn with_held(self, held: Option<Held>) -> Self {
        Self { held, ..self }
    }

    async fn say(
        &self,
        operation: &'static str,
        word: Bytes,
        patience: Duration,
    ) -> Result<(), TransportError> {
        let request = Request::new().payload(word).timeout(Some(patience));
        match self.server.client.send_request(self.reply.clone(), request).await {
            Ok(_) => Ok(()),
            // Between two leaders nobody responds either, so that it is not known whether the delivery is lost.
            Err(error) if error.kind() == RequestErrorKind::NoResponders => {
                let text = "the server does not know the consumer, or not yet";
                let error = TransportError::new(TransportErrorKind::Unavailable, operation);
                Err(error.with_detail(text))
            }
            Err(error) => Err(unavailable(operation, error)),
        }
    }

    async fn acknowledge(&self) -> Result<(), TransportError> {
        // It is tried within the lease only: past it the message may be with somebody else, whose work it would end.
        let until = self.ends.min(Instant::now() + PATIENCE);
        let outcome = insist(until, || self.server.acks.acknowledge(&self.reply)).await;
        // The acknowledgement of a retry record says nothing of the right to those of the user's stream.
        if self.posts {
            self.server.trust.confirmed(outcome.is_ok());
        }
        outcome
    }

    /// Removes what stands aside. What stays when this fails, or the process dies before, is unused and does no harm.
    async fn remove_aside(&self) {
        let Some(stream) = self.server.retries.as_deref().filter(|_| !self.aside.is_empty()) else {
            return;
        };
        let Ok(stream) = self.server.context.get_stream_no_info(stream).await else { return };
        for sequence in &self.aside {
            if let Err(error) = stream.delete_message(*sequence).await {
                tracing::warn!(%error, sequence, "a part of a settled retry record was not removed");
            }
        }
    }
}

/// Tries it until it succeeds, and not again when it is later than `until`.
async fn insist<T, F>(until: Instant, say: impl Fn() -> F) -> Result<T, TransportError>
where
    F: Future<Output = Result<T, TransportError>>,
{
    let mut pause = PAUSE;
    loop {
        let outcome = say().await;
        let left = until.saturating_duration_since(Instant::now());
        // A try needs time within the limit: what is said later may end somebody else's delivery.
        if outcome.is_ok() || left <= PAUSE {
            return outcome;
        }
        // Many may have something to say.
        sleep(pause.min(left - PAUSE)).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// The word by which a message is given back for so long.
pub(crate) fn nak(after: Duration) -> Bytes {
    if after.is_zero() {
        return Bytes::from_static(b"-NAK");
    }
    // What does not fit is longer than 290 years.
    let nanos = i64::try_from(after.as_nanos()).unwrap_or(i64::MAX);
    format!("-NAK {{\"delay\":{nanos}}}").into()
}

/// The word by which a lease begins anew.
pub(crate) const PROGRESS: Bytes = Bytes::from_static(b"+WPI");

impl Settle for NatsSettle {
    async fn settle(self, disposition: Disposition) -> Result<(), TransportError> {
        match disposition {
            Disposition::Deferred { after } => match &self.held {
                // It stays here, and is found again before its lease ends.
                Some(held) => {
                    held.deferred(after);
                    // The lease begins anew instead of a negative acknowledgement, which would hand the message to a
                    // client that it breaks.
                    self.say("keep a message", PROGRESS, WORD).await
                }
                None => self.say("give a message back", nak(after), WORD).await,
            },
            Disposition::Succeeded
            | Disposition::Duplicate
            | Disposition::Dead(_)
            | Disposition::DelayedRetry { .. } => {
                // The record goes before its parts: a process that dies in between leaves parts that nobody names, and
                // not a record that can never be read whole.
                self.acknowledge().await?;
                // This follows the confirmation: what is not settled and held by nobody is found again, and comes once
                // more (G1).
                if let Some(held) = &self.held {
                    held.settled();
                }
                self.remove_aside().await;
                Ok(())
            }
            // It is refused rather than acknowledged on a guess: the message comes again.
            unknown => Err(unknown.unsupported()),
        }
    }

    fn settle_now(&mut self, disposition: &Disposition) -> Option<Result<(), TransportError>> {
        let is_success = matches!(disposition, Disposition::Succeeded | Disposition::Duplicate);
        let is_plain = self.posts && self.held.is_none();
        let confirms = self.server.confirms.load(Ordering::Acquire);
        // What ends with a letter or a retry record is always confirmed.
        let may = is_success && is_plain && !confirms && self.server.trust.suffices();
        (may && self.server.acks.post(&self.reply)).then_some(Ok(()))
    }

    async fn extend(&mut self) -> Result<(), TransportError> {
        let progress = || async {
            // The lease is counted from before the word is said: it begins no earlier at the server.
            let begun = Instant::now();
            self.say("extend a lease", PROGRESS, WORD.min(self.lease)).await?;
            Ok(begun)
        };
        self.ends = insist(self.ends, progress).await? + self.lease;
        Ok(())
    }

    fn lease(&self) -> Option<Duration> {
        Some(self.lease)
    }
}

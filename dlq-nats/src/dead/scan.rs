use std::future::ready;
use std::pin::Pin;
use std::time::Duration;

use async_nats::jetstream::consumer::pull::{Batch, Config};
use async_nats::jetstream::consumer::{AckPolicy, Consumer, DeliverPolicy};
use async_nats::jetstream::{Context, Message};
use dlq_core::{StoreError, StoreErrorKind};
use futures_util::{Stream, StreamExt, stream};
use tokio::time::{Instant, sleep};

use super::handout::{Handout, Next};
use crate::client::buckets::timestamp;
use crate::client::leader::{self, Kept, Which};
use crate::client::message_meta::{MessageMeta, handed};
use crate::client::publish::unwritable;

/// At most so many messages and bytes are asked for at once, of several scans so many bytes each; twice as many may be on
/// their way. A server gives a client up for which 64 MiB wait, and what it says of anything else comes after them.
const MESSAGES: usize = 1_000;
const BYTES: usize = 8 * 1024 * 1024;
const OF_SEVERAL: usize = 1024 * 1024;
/// Bytes that the server counts of a message besides its largest size: subjects.
const SUBJECTS: usize = 16 * 1024;
/// Time limit of the server for the next message.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time that a reader at the end waits before it checks that its consumer still exists.
const WATCH: Duration = Duration::from_secs(5);
/// Pause between two looks at a server that lags.
const PAUSE: Duration = Duration::from_millis(500);
/// Description by which a consumer that only reads is recognised.
pub(crate) const SCANS: &str = "dlq reads what is there";
/// Time after which the server removes a consumer that nobody reads from.
const IDLE: Duration = Duration::from_secs(20);

/// Scan of a stream, in its order.
#[derive(Clone, Debug)]
pub(crate) struct Scan {
    pub(crate) operation: &'static str,
    pub(crate) stream: String,
    pub(crate) subject: String,
    pub(crate) from: DeliverPolicy,
    pub(crate) headers_only: bool,
    /// The last sequence that is wanted, of one of several that run at once.
    pub(crate) to: Option<u64>,
    /// True if the scan goes on with messages that come later.
    pub(crate) follow: bool,
}

/// Messages of a stream. The next of them may be awaited in pieces: what is dropped is the waiting, not the message.
pub(crate) type Scanned =
    Pin<Box<dyn Stream<Item = Result<(Message, MessageMeta), StoreError>> + Send>>;

impl Scan {
    /// Reads by a consumer that is gone soon after the last message was read. A scan that follows goes on after an
    /// error, where it stood; any other ends, and has then read all that the leader of the stream has: the consumer is on
    /// whichever server keeps the stream, which may be behind.
    pub(crate) fn run(self, context: Context) -> Scanned {
        let (operation, follow) = (self.operation, self.follow);
        let reader = Reader {
            context,
            scan: self,
            read: 0,
            handout: Handout::new(operation),
            consumer: None,
            left: 0,
            asked: Instant::now(),
            behind: None,
            end: None,
        };
        stream::unfold(Some(reader), move |reader| async move {
            let mut reader = reader?;
            let next = reader.next().await.transpose()?;
            if next.is_err() {
                reader.forget();
            }
            // A reading that ends must not look complete after an error: nothing follows that.
            let goes_on = follow || next.is_ok();
            Some((next, goes_on.then_some(reader)))
        })
        .boxed()
    }
}

/// Returns true if the server ended the request because the next message exceeds its bytes. The client reveals that
/// only by its text.
fn is_full(error: &async_nats::Error) -> bool {
    error.to_string().contains("Exceeds MaxBytes")
}

struct Reader {
    context: Context,
    scan: Scan,
    /// The last sequence that was read.
    read: u64,
    consumer: Option<Consumer<Config>>,
    /// Messages of the consumer. Messages for a lost connection do not arrive.
    handout: Handout<(Message, MessageMeta)>,
    /// Number of messages beyond those read, when the server was last asked.
    left: u64,
    /// When the server was last asked for messages.
    asked: Instant,
    /// Time since when the leader has messages that the consumer does not know.
    behind: Option<Instant>,
    /// The last sequence that the leader had when the consumer first had no more.
    end: Option<u64>,
}

impl Reader {
    async fn next(&mut self) -> Result<Option<(Message, MessageMeta)>, StoreError> {
        let operation = self.scan.operation;
        loop {
            if !self.handout.is_over() {
                match self.handout.next(PATIENCE).await? {
                    // A server that has forgotten its consumer makes it anew.
                    Next::This((_, place)) if place.sequence <= self.read => {
                        self.lost();
                        continue;
                    }
                    Next::This((message, place)) => {
                        self.left = self.left.saturating_sub(1);
                        self.read = place.sequence;
                        self.behind = None;
                        self.ask_ahead().await;
                        return Ok(Some((message, place)));
                    }
                    Next::Lost => {
                        self.lost();
                        continue;
                    }
                    Next::Nothing => {}
                }
                // Messages may have been removed meanwhile, and a server that is asked for a consumer that it has
                // forgotten is silent.
                if (self.left > 0 || self.scan.follow) && self.asked.elapsed() <= IDLE / 2 {
                    self.look().await?;
                }
            }
            // A consumer that the server may have removed as idle is not asked, since nobody would answer for it.
            if self.consumer.is_none() || self.asked.elapsed() > IDLE / 2 {
                self.open().await?;
            }
            self.asked = Instant::now();
            let (most, bytes) = self.most();
            if most == 0 {
                return Ok(None);
            }
            let Some(consumer) = &self.consumer else { continue };
            // A fetch ends at once where there is no more. Whoever follows waits for what comes.
            let batch = if self.left > 0 {
                consumer.fetch().max_messages(most).max_bytes(bytes).messages().await
            } else if self.scan.follow {
                let batch = consumer.batch().max_messages(most).max_bytes(bytes);
                batch.expires(WATCH).messages().await
            } else if self.is_behind().await? {
                // The consumer is made anew, since it may then be on a server that has the rest.
                self.consumer = None;
                continue;
            } else {
                return Ok(None);
            };
            self.awaits(most, batch.map_err(|error| unwritable(operation, error))?);
        }
    }

    /// Returns the number of messages and bytes of the next request: room for at least one message.
    fn most(&self) -> (usize, usize) {
        let begun = match (self.read, self.scan.from) {
            (0, DeliverPolicy::ByStartSequence { start_sequence }) => {
                start_sequence.saturating_sub(1)
            }
            (read, _) => read,
        };
        let left = self.scan.to.map_or(u64::MAX, |to| to.saturating_sub(begun));
        let left = usize::try_from(left).unwrap_or(usize::MAX).saturating_sub(self.handout.due);
        // Each request has room for the largest message, or the server would end it without one.
        let one = self.context.client().max_payload().saturating_add(SUBJECTS);
        let bytes = if self.scan.to.is_some() { OF_SEVERAL } else { BYTES };
        (left.min(MESSAGES), bytes.max(one))
    }

    async fn open(&mut self) -> Result<(), StoreError> {
        let from = match self.read {
            0 => self.scan.from,
            read => DeliverPolicy::ByStartSequence { start_sequence: read + 1 },
        };
        let config = Config {
            deliver_policy: from,
            ack_policy: AckPolicy::None,
            filter_subject: self.scan.subject.clone(),
            headers_only: self.scan.headers_only,
            inactive_threshold: IDLE,
            description: Some(SCANS.to_owned()),
            // One server and memory are enough: a consumer that is lost is made again, from where the reading stands.
            memory_storage: true,
            num_replicas: 1,
            ..Config::default()
        };
        let consumer = self.context.create_consumer_on_stream(config, &self.scan.stream).await;
        let consumer = consumer.map_err(|error| unwritable(self.scan.operation, error))?;
        self.forget();
        self.left = consumer.cached_info().num_pending;
        self.consumer = Some(consumer);
        Ok(())
    }

    /// A batch that was asked for, of at most so many.
    fn awaits(&mut self, most: usize, batch: Batch) {
        let operation = self.scan.operation;
        let is_within = |message: &Result<_, _>| ready(!message.as_ref().is_err_and(is_full));
        let each = batch.take_while(is_within).map(move |message| {
            let message = message.map_err(|error| unwritable(operation, error))?;
            let reply = message.reply.as_ref();
            let place = reply.and_then(|at| Some((handed(at)?, MessageMeta::read(at)?)));
            let (handed, place) = place.ok_or_else(|| {
                let text = "the server hands out messages and does not say which";
                StoreError::new(StoreErrorKind::Unexpected, operation).with_detail(text)
            })?;
            Ok((handed, (message, place)))
        });
        self.handout.add(most, each);
    }

    /// Asks for the next batch when the first of this one has come, if there is more than that. If that fails, or the
    /// server may have forgotten the consumer, it is asked for when this one ends.
    async fn ask_ahead(&mut self) {
        if self.handout.due < MESSAGES
            && self.left > self.handout.due as u64
            && self.asked.elapsed() <= IDLE / 2
            && let (most @ 1.., bytes) = self.most()
            && let Some(consumer) = &self.consumer
        {
            self.asked = Instant::now();
            let batch = consumer.fetch().max_messages(most).max_bytes(bytes);
            if let Ok(batch) = batch.messages().await {
                self.awaits(most, batch);
            }
        }
    }

    fn forget(&mut self) {
        self.consumer = None;
        self.handout = Handout::new(self.scan.operation);
    }

    /// Something that was handed out has not come: it is read again, from where this one stands.
    fn lost(&mut self) {
        tracing::debug!(stream = self.scan.stream, read = self.read, "what was handed out is lost");
        self.forget();
    }

    /// Returns true if the leader has more although the consumer says that there is no more. Messages that come from
    /// now on are not waited for.
    async fn is_behind(&mut self) -> Result<bool, StoreError> {
        let Scan { operation, stream, subject, .. } = &self.scan;
        let subject = if subject.is_empty() { ">" } else { subject };
        let last = leader::get(&self.context, operation, stream, Which::Last(subject)).await?;
        let Some(last) = last.filter(|last| self.wants(last)) else { return Ok(false) };
        // The end is fixed when it is first looked for: a stream that grows would have none otherwise.
        if self.read >= *self.end.get_or_insert(last.sequence) {
            return Ok(false);
        }
        match self.behind {
            // It may have come a moment ago.
            None => self.behind = Some(Instant::now()),
            Some(since) if since.elapsed() <= PATIENCE => sleep(PAUSE).await,
            Some(_) => return Err(self.left_behind(last.sequence)),
        }
        Ok(true)
    }

    fn left_behind(&self, last: u64) -> StoreError {
        let Scan { operation, stream, .. } = &self.scan;
        let text = format!(
            "the server that was asked has stream `{stream}` up to sequence {} only, and its leader has {last}: it may \
             be catching up, so try again; look at the cluster if that does not help",
            self.read
        );
        StoreError::new(StoreErrorKind::Unavailable, operation).with_detail(text)
    }

    fn wants(&self, message: &Kept) -> bool {
        let is_within = match self.scan.from {
            DeliverPolicy::ByStartSequence { start_sequence } => message.sequence >= start_sequence,
            DeliverPolicy::ByStartTime { start_time } => message.time >= timestamp(start_time),
            _ => true,
        };
        is_within && message.sequence > self.read
    }

    /// Checks whether there is more.
    async fn look(&mut self) -> Result<(), StoreError> {
        let Some(consumer) = &mut self.consumer else { return Ok(()) };
        let info = consumer.info().await;
        let info = info.map_err(|error| unwritable(self.scan.operation, error))?;
        self.left = info.num_pending;
        // The server has handed out more than has come, or has made the consumer anew.
        if info.delivered.consumer_sequence != self.handout.last {
            self.lost();
        }
        Ok(())
    }
}

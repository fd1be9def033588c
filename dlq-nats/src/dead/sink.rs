use std::sync::Arc;

use async_nats::header;
use async_nats::jetstream::stream::Config;
use dlq_core::protocol::{Facts, Ours, of_death};
use dlq_core::store::Receipt;
use dlq_core::{Binding, DeadLetter, Sink, StoreError, StoreErrorKind};

use crate::client::domain::StreamDomain;
use crate::client::inboxes::{Heard, Inboxes, Publication};
use crate::client::jetstream::JetStream;
use crate::client::names::tail;
use crate::client::permissions;
use crate::client::publish::{Outgoing, WRITE, most, send, unheard, unwritable};
use crate::client::streams::{self, DlqStream};
use crate::client::wire::{self, Rest};
use crate::dead::dispatch::CONSUMER;

/// The stream of dead letters: a letter for `orders.created` is published to `dlq.orders.created`.
///
/// # What is on the stream
///
/// The payload, byte for byte; the producer's headers; and those of the [header protocol](dlq_core::protocol). Headers
/// that a server acts upon (`Nats-*`) are carried as `dlq.kept.Nats-*`. What does not fit in one message, since a letter
/// has more headers than its message had, is written to `dlq-aside.ID` first, and the letter says where it stands.
///
/// # One letter per death
///
/// `Nats-Msg-Id` is the death and the binding of its bytes: within the stream's duplicate window the server keeps one
/// copy, and the same death with other bytes is another message. Beyond the window a second copy can be stored; readers
/// take both for one letter. A stream cannot say whether a letter is reopened or out of date, so the receipt is
/// `Stored`, or `Unchanged` for a copy that the server refused.
///
/// # On failure
///
/// [`put`](Sink::put) returns once the server has confirmed every letter. When it does not, nothing may be
/// acknowledged; the letters can be put again. A stream of another JetStream domain, as that of a leaf node, may keep the
/// same subjects: its word does not count. [`put_each`](Sink::put_each) says of which it has. A letter that is too large, or
/// whose subject is full where the stream discards what is new by subject, is refused; others are not concerned. A stream
/// that was deleted is created again, and the log says at level `ERROR` that what it kept is lost.
#[derive(Clone, Debug)]
pub struct NatsSink {
    home: StreamDomain,
    stream: DlqStream,
    config: Arc<Config>,
    inboxes: Arc<Inboxes>,
    consumer: Option<Arc<str>>,
}

impl NatsSink {
    /// Makes sure of the stream.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` when it exists with other settings, its subjects belong to another stream, or the server says that
    /// the user may not publish to them; `Unavailable` when the server does not answer.
    pub async fn open(client: &impl JetStream, stream: DlqStream) -> Result<Self, StoreError> {
        let context = client.context();
        let config = stream.config();
        let opened = async {
            streams::ensure(&context, &config).await?;
            // A user may be allowed to write the letters of some subjects only, and is not refused for the others.
            permissions::require_some(&context.client(), &config.subjects).await
        };
        opened.await.map_err(|error| error.for_store("open the stream of dead letters"))?;
        let home = StreamDomain::find(context, &config.name).await;
        let inboxes = Arc::new(Inboxes::new(home.clone()));
        Ok(Self { home, stream, config: Arc::new(config), inboxes, consumer: None })
    }

    /// Sets the name of the [`NatsTransport`](crate::NatsTransport) whose letters it keeps, which stands with each in the
    /// attribute `nats.consumer` unless it is that of the handler: letters that are sent back to their handler go to that
    /// consumer. Needed where a consumer has several handlers. Defaults to none: they go to the consumer that is called like
    /// the handler.
    #[must_use]
    pub fn consumer(mut self, name: impl Into<Arc<str>>) -> Self {
        self.consumer = Some(name.into());
        self
    }

    #[cfg(feature = "router")]
    pub(crate) fn stream(&self) -> &DlqStream {
        &self.stream
    }

    fn describe(&self, letter: &DeadLetter) -> Described {
        let mut rest = Rest::of(&letter.message, &letter.origin, letter.death());
        let mut facts = Facts::of(letter);
        // Not where it has the name of the handler, unless an earlier death wrote another.
        let own = self
            .consumer
            .as_ref()
            .filter(|name| ***name != *letter.consumer || facts.attributes.contains_key(CONSUMER));
        if let Some(name) = own {
            facts.attributes.insert(CONSUMER.to_owned(), name.to_string());
        }
        rest.facts = Some(facts);
        let binding = Binding::of(&letter.id, &letter.message);
        Described {
            subject: format!("{}.{}", self.stream.prefix, tail(letter.message.subject())),
            id: format!("{}.{}.{binding}", letter.id, letter.generation),
            ours: of_death(letter),
            rest,
        }
    }

    /// As one message, if it is not too large for that.
    fn whole(&self, letter: &DeadLetter) -> Result<Option<Publication>, StoreError> {
        let Described { subject, id, ours, rest } = self.describe(letter);
        let lines = wire::pack(letter.message.headers(), &ours, &rest);
        let mut lines = lines.map_err(|error| unwritable(WRITE, error))?;
        lines.push(header::NATS_MESSAGE_ID.as_ref(), &id);
        lines.push(header::NATS_EXPECTED_STREAM.as_ref(), &self.config.name);
        let payload = letter.message.payload().cloned().unwrap_or_default();
        let fits = lines.len() + payload.len() <= most(&self.home.context.client());
        Ok(fits.then(|| Publication {
            subject,
            stream: self.config.name.clone(),
            headers: lines.into_map(),
            payload,
        }))
    }

    /// Writes a letter by itself: in parts if it has to be, to a stream that is created again if it has gone.
    async fn bury(&self, letter: &DeadLetter) -> Result<bool, StoreError> {
        let Described { subject, id, ours, rest } = self.describe(letter);
        let prefix = &self.stream.prefix;
        let outgoing = Outgoing {
            operation: WRITE,
            subject,
            aside: &|| format!("{prefix}-aside.{}", letter.id),
            id,
            message: &letter.message,
            ours,
            rest,
            orders: Vec::new(),
        };
        send(&self.home, &self.config, outgoing).await
    }
}

/// Content and destination of a letter.
struct Described {
    subject: String,
    id: String,
    ours: Ours,
    rest: Rest,
}

impl Sink for NatsSink {
    async fn put(&self, letters: Vec<DeadLetter>) -> Result<Vec<Receipt>, StoreError> {
        self.put_each(letters).await?.into_iter().collect()
    }

    /// All at once first; by itself, then, what is too large or the server has refused, as long as it takes anything.
    async fn put_each(
        &self,
        letters: Vec<DeadLetter>,
    ) -> Result<Vec<Result<Receipt, StoreError>>, StoreError> {
        let whole = letters.iter().map(|letter| self.whole(letter));
        let whole = whole.collect::<Result<Vec<_>, _>>()?;
        let heard = self.inboxes.publish_some(whole, || true).await;
        let mut written = Vec::with_capacity(letters.len());
        // Why it takes nothing now.
        let mut why: Option<String> = None;
        for (letter, heard) in letters.iter().zip(heard) {
            let duplicate = match (heard, &why) {
                (Heard::Kept { duplicate }, _) => Ok(duplicate),
                // A single letter can be written in parts, to a stream that is made again, and the server says why it
                // refuses.
                (Heard::Refused, None) => self.bury(letter).await,
                // The server takes nothing now: each of the rest would wait for its own time limit to hear the same.
                (Heard::Refused, Some(why)) => {
                    Err(StoreError::new(StoreErrorKind::Unavailable, WRITE).with_detail(&**why))
                }
                // It may have arrived. Nothing is acknowledged, and a second write under the same id is the same letter
                // (G1, G2).
                (Heard::Nothing | Heard::Elsewhere | Heard::Unsent, _) => {
                    let subject = self.describe(letter).subject;
                    Err(unheard(&self.home, &self.config, WRITE, &subject))
                }
            };
            // A refusal concerns its own letter; only a transient error says that the server takes nothing now.
            if let Err(error) = &duplicate
                && error.is_transient()
            {
                why.get_or_insert_with(|| error.to_string());
            }
            let receipt = |duplicate| if duplicate { Receipt::Unchanged } else { Receipt::Stored };
            written.push(duplicate.map(receipt));
        }
        Ok(written)
    }

    /// 8: a letter waits for its own answer and not for those of a batch, which counts where the broker is far away. More of them
    /// would make batches so small that they cost more than they save.
    fn writers(&self) -> usize {
        8
    }
}

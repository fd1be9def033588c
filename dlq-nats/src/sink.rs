use std::sync::Arc;

use async_nats::jetstream::Context;
use async_nats::jetstream::stream::Config;
use dlq_core::protocol::{Facts, of_death};
use dlq_core::store::Receipt;
use dlq_core::{Binding, DeadLetter, Sink, StoreError};
use futures_util::future::join_all;

use crate::jetstream::JetStream;
use crate::names::tail;
use crate::permissions;
use crate::publish::{Outgoing, send};
use crate::streams::{self, DlqStream};
use crate::wire::Rest;

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
/// acknowledged; the letters can be put again. A stream that was deleted is created again.
#[derive(Clone, Debug)]
pub struct NatsSink {
    context: Context,
    stream: DlqStream,
    config: Arc<Config>,
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
            permissions::require(&context.client(), &config.subjects).await
        };
        opened.await.map_err(|error| error.for_store("open the stream of dead letters"))?;
        Ok(Self { context, stream, config: Arc::new(config) })
    }

    pub(crate) fn replicas(&self) -> usize {
        self.stream.replicas
    }

    async fn bury(&self, letter: &DeadLetter) -> Result<Receipt, StoreError> {
        let mut rest = Rest::of(&letter.message, &letter.origin, letter.death());
        rest.facts = Some(Facts::of(letter));
        let binding = Binding::of(&letter.id, &letter.message);
        let prefix = &self.stream.prefix;
        let outgoing = Outgoing {
            operation: "write a dead letter",
            subject: format!("{prefix}.{}", tail(letter.message.subject())),
            aside: &|| format!("{prefix}-aside.{}", letter.id),
            id: format!("{}.{}.{binding}", letter.id, letter.generation),
            message: &letter.message,
            ours: of_death(letter),
            rest,
            orders: Vec::new(),
        };
        let duplicate = send(&self.context, &self.config, outgoing).await?;
        Ok(if duplicate { Receipt::Unchanged } else { Receipt::Stored })
    }
}

impl Sink for NatsSink {
    async fn put(&self, letters: Vec<DeadLetter>) -> Result<Vec<Receipt>, StoreError> {
        join_all(letters.iter().map(|letter| self.bury(letter))).await.into_iter().collect()
    }
}

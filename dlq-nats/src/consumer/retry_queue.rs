use std::sync::Arc;

use async_nats::jetstream::stream::Config;
use dlq_core::protocol::{Ours, of_delayed_retry};
use dlq_core::{Binding, DeadLetter, DelayedRetry, RetryQueue, SharedClock, StoreError};

use crate::client::domain::StreamDomain;
use crate::client::names::{tail, token};
use crate::client::publish::{Outgoing, send};
use crate::client::streams::RetryStream;
use crate::client::wire::Rest;
use crate::consumer::records::LEAD;

const OPERATION: &str = "write a retry record";

/// Retry queue of a consumer. [`NatsTransport::retry_queue`](crate::NatsTransport::retry_queue) makes it.
///
/// A record is published to `retry.CONSUMER.SUBJECT` in the [retry stream](RetryStream) 300 ms before it is due, by the server's
/// own schedule where it has them, and only the sources of this consumer hear it, which wait for the rest of the time: the server
/// looks at its schedules every 250 ms. It keeps message, origin and identity
/// of the delivery that failed; attempts and history travel in its headers.
///
/// A record is one hop of one death, replay and payload: within the stream's duplicate window writing the hop again changes nothing. What a
/// later writer knows of more attempts is then forgotten.
#[derive(Clone, Debug)]
pub struct NatsRetryQueue {
    home: StreamDomain,
    stream: RetryStream,
    config: Arc<Config>,
    consumer: String,
    schedules: bool,
    clock: SharedClock,
}

impl NatsRetryQueue {
    pub(crate) fn new(
        home: StreamDomain,
        stream: RetryStream,
        consumer: &str,
        schedules: bool,
        clock: SharedClock,
    ) -> Self {
        let config = Arc::new(stream.config());
        Self { home, stream, config, consumer: token(consumer), schedules, clock }
    }

    /// Gives a letter back to this consumer, at once, as a message that has died once more often than before. `id` is what
    /// makes it the same when it is given back twice.
    pub(crate) async fn give_back(
        &self,
        letter: &DeadLetter,
        id: String,
        ours: Ours,
    ) -> Result<(), StoreError> {
        let (prefix, consumer) = (&self.stream.prefix, &self.consumer);
        let outgoing = Outgoing {
            operation: "write a letter that is sent back",
            subject: format!("{prefix}.{consumer}.{}", tail(letter.message.subject())),
            aside: &|| format!("{prefix}-aside.{consumer}.{id}"),
            id: id.clone(),
            message: &letter.message,
            ours,
            // Dying again, the message reopens its letter under the next generation (G7).
            rest: Rest::of(&letter.message, &letter.origin, letter.death().next()),
            orders: Vec::new(),
        };
        send(&self.home, &self.config, outgoing).await.map(drop)
    }

    /// Returns true if the server keeps records until they are due. Otherwise they are fetched at once and given back
    /// until then.
    #[must_use]
    pub fn has_schedules(&self) -> bool {
        self.schedules
    }
}

impl RetryQueue for NatsRetryQueue {
    async fn enqueue(&self, delayed_retry: DelayedRetry) -> Result<(), StoreError> {
        let DelayedRetry { delivery, consumer, due, .. } = &delayed_retry;
        let message = delivery.message();
        let death = delivery.death(consumer);
        // The number of the hop is part of the identity: the next delayed retry of the same death is another record.
        let hop = delivery.delayed_retries().saturating_add(1);
        // A letter that was sent back twice, or edited in between, is another message each time.
        let (replays, binding) = (delivery.replays(), Binding::of(&death.letter, message));
        // Nothing in it changes when a process dies before it acknowledges: the server refuses the hop that is written
        // again.
        let place = format!("{}.{}.{hop}.{replays}.{binding}", death.letter, death.generation);
        let (prefix, consumer) = (&self.stream.prefix, &self.consumer);
        let mut subject = format!("{prefix}.{consumer}.{}", tail(message.subject()));
        let mut orders = Vec::new();
        // A record that is due within `LEAD` goes to its consumer at once, which waits for the rest.
        let fires = due.before(LEAD);
        if self.schedules && fires > self.clock.now() {
            orders.push(("Nats-Schedule", format!("@at {fires}")));
            // The target is this consumer's part of the same stream: on the original subject every consumer would hear
            // it.
            orders.push(("Nats-Schedule-Target", subject));
            // A subject has one schedule, so each record has a subject of its own.
            subject = format!("{prefix}-at.{consumer}.{place}");
        }
        let outgoing = Outgoing {
            operation: OPERATION,
            subject,
            aside: &|| format!("{prefix}-aside.{consumer}.{place}"),
            id: place.clone(),
            message,
            ours: of_delayed_retry(&delayed_retry),
            rest: Rest::of(message, delivery.origin(), death),
            orders,
        };
        send(&self.home, &self.config, outgoing).await.map(drop)
    }
}

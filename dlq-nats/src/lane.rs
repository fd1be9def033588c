use async_nats::header::{NATS_SCHEDULE, NATS_SCHEDULE_TARGET};
use async_nats::jetstream::Context;
use async_nats::jetstream::context::PublishErrorKind;
use async_nats::jetstream::message::PublishMessage;
use dlq_core::protocol::on_escalation;
use dlq_core::{Escalation, Fingerprint, Reason, RetryLane, SharedClock, StoreError};

use crate::names::{tail, token};
use crate::publish::{confirmed, oversize, unwritable};
use crate::streams::{self, RetryStream};
use crate::wire::{self, Rest};

const OPERATION: &str = "write a retry record";

/// Where messages of a consumer wait for an attempt that is far away. Made by
/// [`NatsConsumer::retry_lane`](crate::NatsConsumer::retry_lane).
///
/// A record is published to `retry.CONSUMER.SUBJECT` in the [retry stream](RetryStream) when it is due, by the server's
/// own schedule where it has them, and only the sources of this consumer hear it. It keeps message, origin and identity
/// of the delivery that failed; attempts and history travel in its headers.
///
/// A record is one hop of one death: within the stream's duplicate window writing the hop again changes nothing. What a
/// later writer knows of more attempts is then forgotten.
#[derive(Clone, Debug)]
pub struct NatsRetryLane {
    context: Context,
    stream: RetryStream,
    consumer: String,
    schedules: bool,
    clock: SharedClock,
}

impl NatsRetryLane {
    pub(crate) fn new(
        context: Context,
        stream: RetryStream,
        consumer: &str,
        schedules: bool,
        clock: SharedClock,
    ) -> Self {
        Self { context, stream, consumer: token(consumer), schedules, clock }
    }

    /// Whether the server keeps records until they are due. Otherwise they are fetched at once and given back until
    /// then.
    #[must_use]
    pub fn has_schedules(&self) -> bool {
        self.schedules
    }
}

impl RetryLane for NatsRetryLane {
    async fn escalate(&self, escalation: Escalation) -> Result<(), StoreError> {
        let Escalation { delivery, consumer, due, history, .. } = &escalation;
        let message = delivery.message();
        let death = delivery.death(consumer);
        let hop = delivery.escalations().saturating_add(1);
        let fingerprint = Fingerprint::of(consumer, Reason::Exhausted, history.last());
        let rest = Rest::of(message, delivery.origin(), death);
        let headers = wire::pack(&on_escalation(&escalation, &fingerprint), &rest)
            .map_err(|error| unwritable(OPERATION, error))?;
        let payload = message.payload().cloned().unwrap_or_default();
        let mut record = PublishMessage::build()
            .headers(headers)
            .payload(payload)
            .message_id(format!("{death}.{hop}"))
            .expected_stream(&self.stream.name);
        let (prefix, consumer) = (&self.stream.prefix, &self.consumer);
        let mut subject = format!("{prefix}.{consumer}.{}", tail(message.subject()));
        if self.schedules && *due > self.clock.now() {
            let target = subject;
            // A subject has one schedule, so each record has a subject of its own.
            subject = format!("{prefix}-at.{consumer}.{}.{}.{hop}", death.letter, death.generation);
            record = record
                .header(NATS_SCHEDULE, format!("@at {due}"))
                .header(NATS_SCHEDULE_TARGET, target);
        }
        match confirmed(&self.context, &subject, &record).await {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == PublishErrorKind::MaxPayloadExceeded => {
                Err(oversize(OPERATION, message, error))
            }
            Err(error) if error.kind() == PublishErrorKind::StreamNotFound => {
                // Somebody has deleted it.
                streams::ensure(&self.context, &self.stream.config())
                    .await
                    .map_err(|error| error.for_store(OPERATION))?;
                let written = confirmed(&self.context, &subject, &record).await;
                written.map(drop).map_err(|error| unwritable(OPERATION, error))
            }
            Err(error) => Err(unwritable(OPERATION, error)),
        }
    }
}

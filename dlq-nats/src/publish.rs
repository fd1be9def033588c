//! Publishing that is over when the server has confirmed it.

use async_nats::jetstream::Context;
use async_nats::jetstream::context::PublishError;
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::publish::PublishAck;
use dlq_core::{BoxError, Message, StoreError, StoreErrorKind};

/// Publishes, and returns once the server has confirmed.
pub(crate) async fn confirmed(
    context: &Context,
    subject: &str,
    message: &PublishMessage,
) -> Result<PublishAck, PublishError> {
    context.send_publish(subject.to_owned(), message.clone()).await?.await
}

/// The server did not take it, or did not say so.
pub(crate) fn unwritable(operation: &'static str, error: impl Into<BoxError>) -> StoreError {
    let error = error.into();
    StoreError::new(StoreErrorKind::Unavailable, operation)
        .with_detail(error.to_string())
        .with_source(error)
}

/// The message and what is known of it are more than the server takes in one message.
pub(crate) fn oversize(operation: &'static str, message: &Message, error: PublishError) -> StoreError {
    let payload = message.payload().map_or(0, bytes::Bytes::len);
    let text = format!(
        "the message on `{}` ({payload} bytes) and its headers are more than the server's `max_payload`; nothing is \
         acknowledged; raise `max_payload`, or use a store",
        message.subject()
    );
    StoreError::new(StoreErrorKind::Refused, operation).with_detail(text).with_source(error)
}

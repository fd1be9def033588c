//! What the leader of a stream has. Other servers that keep it may have less for a while, and so do the consumers that
//! they keep.

use async_nats::jetstream::Context;
use async_nats::jetstream::message::StreamMessage;
use async_nats::jetstream::stream::{RawMessageErrorKind, Stream};
use dlq_core::{StoreError, StoreErrorKind};

use crate::patience::asked;
use crate::permissions::unanswered;

/// A message of a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Which<'a> {
    /// That with this sequence.
    At(u64),
    /// The first with such a subject, from this sequence on.
    From(&'a str, u64),
    /// The last with such a subject.
    Last(&'a str),
}

/// That message as the leader has it; `None` when it has none, or the stream is not there.
pub(crate) async fn get(
    context: &Context,
    operation: &'static str,
    name: &str,
    which: Which<'_>,
) -> Result<Option<StreamMessage>, StoreError> {
    let unavailable = |why: String| {
        let text = format!("stream `{name}` could not be read: {why}");
        StoreError::new(StoreErrorKind::Unavailable, operation).with_detail(text)
    };
    let stream = context.get_stream_no_info(name).await;
    let stream: Stream<()> =
        stream.map_err(|error| unavailable(error.to_string()).with_source(error))?;
    let got = asked(|| async {
        match which {
            Which::At(sequence) => stream.get_raw_message(sequence).await,
            Which::From(subject, sequence) => {
                stream.get_first_raw_message_by_subject(subject, sequence).await
            }
            Which::Last(subject) => stream.get_last_raw_message_by_subject(subject).await,
        }
    });
    let error = match got.await {
        Ok(message) => return Ok(Some(message)),
        Err(error) => error,
    };
    match error.kind() {
        RawMessageErrorKind::NoMessageFound => Ok(None),
        // So says a server of a stream that is there no more, too.
        RawMessageErrorKind::JetStream(answer) if answer.code() == 404 => Ok(None),
        RawMessageErrorKind::Other => {
            let why = unanswered(&context.client(), &format!("$JS.API.STREAM.MSG.GET.{name}"));
            Err(unavailable(format!("{error}; {why}")).with_source(error))
        }
        _ => Err(unavailable(error.to_string()).with_source(error)),
    }
}

use std::collections::BTreeMap;
use std::time::Duration;

use async_nats::jetstream::consumer::Info as ConsumerInfo;
use dlq_core::{StoreError, StoreErrorKind, Timestamp};
use futures_util::{StreamExt, TryStreamExt};

use super::NatsLetters;
use crate::client::publish::unwritable;

/// Subjects are told apart in streams that have no more of them.
const SUBJECTS: u64 = 10_000;
/// Number of consumers of the stream that are examined.
const CONSUMERS: usize = 256;
const OPERATION: &str = "measure the stream of dead letters";

/// Size of the stream of dead letters, as the server says it. Copies count, and so do earlier deaths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueDepth {
    /// Letters by original subject; empty in a stream of more than 10,000 subjects, which are not told apart.
    pub by_subject: BTreeMap<String, u64>,
    /// All messages of the stream; parts of large letters, which are messages of their own, count too.
    pub messages: u64,
    /// The last sequence that was given.
    pub last_sequence: u64,
    /// When the earliest message was written.
    pub oldest: Option<Timestamp>,
    /// For how long the stream keeps its messages; `None` for ever.
    pub max_age: Option<Duration>,
    /// The durable consumers of the stream, by name, such as one by which the letters are [followed](NatsLetters#following); at most 256.
    pub consumers: BTreeMap<String, Progress>,
}

/// Progress of a consumer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Messages that it has yet to be handed for the first time.
    pub pending: u64,
    /// Messages that it was handed and has not acknowledged.
    pub ack_pending: u64,
}

impl Progress {
    fn of(info: &ConsumerInfo) -> Self {
        Self { pending: info.num_pending, ack_pending: info.num_ack_pending as u64 }
    }
}

impl NatsLetters {
    /// Returns the size of the stream and the progress of its readers. It reads no letter: three requests, however many
    /// letters there are.
    ///
    /// # Errors
    ///
    /// `NotFound` when there is no such stream, `Unavailable` when the server does not answer.
    ///
    /// # Cancel safety
    ///
    /// Can be dropped at any time.
    pub async fn queue_depth(&self) -> Result<QueueDepth, StoreError> {
        let info = self.info().await?;
        let stream = self.context.get_stream_no_info(&self.stream.name).await;
        let stream = stream.map_err(|error| unwritable(OPERATION, error))?;
        let mut queue_depth = QueueDepth {
            messages: info.state.messages,
            last_sequence: info.state.last_sequence,
            max_age: (!info.config.max_age.is_zero()).then_some(info.config.max_age),
            ..QueueDepth::default()
        };
        if info.state.messages > 0 {
            let nanos = info.state.first_timestamp.unix_timestamp_nanos();
            queue_depth.oldest = i64::try_from(nanos).ok().map(Timestamp::from_nanos);
        }
        if info.state.subjects_count <= SUBJECTS {
            let prefix = format!("{}.", self.stream.prefix);
            let subjects = stream.info_with_subjects(format!("{prefix}>")).await;
            let mut subjects = subjects.map_err(|error| unwritable(OPERATION, error))?;
            while let Some(subject) = subjects.next().await {
                let (subject, count) = subject.map_err(|error| unwritable(OPERATION, error))?;
                let subject = subject.strip_prefix(&prefix).unwrap_or(&subject);
                queue_depth.by_subject.insert(subject.to_owned(), count as u64);
            }
        }
        let mut consumers = stream.consumers().take(CONSUMERS);
        while let Some(info) =
            consumers.try_next().await.map_err(|error| unwritable(OPERATION, error))?
        {
            // One that is not durable is of a reader, which leaves no trace.
            if let Some(name) = &info.config.durable_name {
                queue_depth.consumers.insert(name.clone(), Progress::of(&info));
            }
        }
        Ok(queue_depth)
    }

    /// Returns the progress of a consumer of any stream of the same account, such as the consumer of these letters.
    ///
    /// # Errors
    ///
    /// `NotFound` when it is not there, `Unavailable` when the server does not answer.
    pub async fn progress(&self, stream: &str, consumer: &str) -> Result<Progress, StoreError> {
        let found = async {
            let stream = self.context.get_stream_no_info(stream).await.ok()?;
            stream.consumer_info(consumer).await.ok()
        };
        found.await.map(|info| Progress::of(&info)).ok_or_else(|| {
            let text = format!("stream `{stream}` has no consumer `{consumer}`, or does not say");
            StoreError::new(StoreErrorKind::NotFound, OPERATION).with_detail(text)
        })
    }
}

//! A second client that reads a little of partitions, beside the one that consumes them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaResult;
use rdkafka::message::BorrowedMessage;
use rdkafka::{Offset, TopicPartitionList};

use crate::client::brokers::Brokers;
use crate::client::error::SetupError;
use crate::consumer::blocked::Reason;

/// Time limit for reading, and for waiting for one partition.
const LOOK: Duration = Duration::from_secs(8);
const TURN: Duration = Duration::from_millis(10);

/// Topic and partition, and the offset from which on it is read.
type StartPosition = (Arc<str>, i32, Offset);

/// Tells if a partition is read on.
pub(crate) enum Seen {
    Nothing,
    Enough,
}

/// Reads at each of these places until `look` has seen enough of it, for at most [`LOOK`]. It is told what has come of it,
/// and how far the client is, which steps over what it gives to nobody.
pub(crate) fn read_at<T>(
    consumer: &Arc<BaseConsumer<Reason>>,
    places: Vec<(StartPosition, T)>,
    mut look: impl FnMut(&mut T, Option<KafkaResult<BorrowedMessage<'_>>>, Option<i64>) -> Seen,
) -> KafkaResult<()> {
    let mut list = TopicPartitionList::new();
    let mut open = Vec::new();
    for ((topic, number, offset), of) in places {
        list.add_partition_offset(&topic, number, offset)?;
        // An error about records names no partition, which its own queue does.
        if let Some(queue) = consumer.split_partition_queue(&topic, number) {
            open.push((topic, number, queue, of));
        }
    }
    // Assigned by hand and not subscribed: a member of the group would take partitions from those that consume them.
    consumer.assign(&list)?;
    let until = Instant::now() + LOOK;
    while !open.is_empty() && Instant::now() < until {
        // Events that belong to no partition are taken off, or they would fill the queue of the client.
        let _ = consumer.poll(Duration::ZERO);
        let come = consumer.position()?;
        open.retain_mut(|(topic, number, queue, of)| {
            let come = come.find_partition(topic, *number);
            let come = come.and_then(|come| match come.offset() {
                Offset::Offset(come) => Some(come),
                _ => None,
            });
            matches!(look(of, queue.poll(TURN), come), Seen::Nothing)
        });
    }
    Ok(())
}

/// A client that reads a little of partitions that are assigned to it, so many bytes at a time.
pub(crate) fn looker(
    brokers: &Brokers,
    bytes: &str,
) -> Result<Arc<BaseConsumer<Reason>>, SetupError> {
    let fixed = [
        // It joins no group and commits nothing; the client wants a name.
        ("group.id", "dlq-look"),
        ("enable.auto.commit", "false"),
        ("enable.auto.offset.store", "false"),
        ("enable.partition.eof", "true"),
        ("allow.auto.create.topics", "false"),
        ("auto.offset.reset", "earliest"),
        ("fetch.message.max.bytes", bytes),
        ("queued.min.messages", "1"),
        ("fetch.wait.max.ms", "10"),
    ];
    let config = brokers.client(&[], &fixed)?;
    let made: Result<BaseConsumer<Reason>, _> = config.create_with_context(Reason::default());
    made.map(Arc::new).map_err(|error| SetupError::answered("make a client that looks", error))
}

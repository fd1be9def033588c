//! Whether there is more.

use std::time::Instant;

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::topic_partition_list::TopicPartitionList;
use rdkafka::{Message as _, Offset};

use super::mark;
use super::member::{Member, POLL};
use super::reach::{self, PATIENCE};
use super::{DEFAULTS, FIXED};
use crate::error::SetupError;

impl Member {
    /// Whether the group has confirmed every letter of the topic.
    pub(super) fn is_at_end(&self) -> Result<bool, SetupError> {
        let failed = |error| self.failed("look for the end", error);
        let heard = &self.consumer.context().heard;
        let bootstrap = self.brokers.bootstrap();
        let partitions = reach::partitions(&self.consumer, heard, bootstrap, &self.topic)?;
        let list = mark::all(&self.topic, &partitions);
        let committed = self.consumer.committed_offsets(list, PATIENCE).map_err(failed)?;
        for element in committed.elements() {
            element.error().map_err(failed)?;
            let partition = element.partition();
            let ends = self.consumer.fetch_watermarks(&self.topic, partition, PATIENCE);
            let (low, high) = ends.map_err(failed)?;
            let next = mark::offset(&element).unwrap_or(low).max(low);
            if next < high && self.has_record(partition, next, high).map_err(failed)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether a record stands there: the marks of transactions, and what was aborted, are none.
    fn has_record(&self, partition: i32, from: i64, to: i64) -> Result<bool, KafkaError> {
        let fixed = [("enable.partition.eof", "true"), ("group.id", "dlq-look")];
        let config = self.brokers.client(&DEFAULTS, &[&FIXED[..], &fixed].concat());
        let config = config.map_err(|error| KafkaError::ClientCreation(error.to_string()))?;
        let consumer: BaseConsumer = config.create()?;
        let mut list = TopicPartitionList::new();
        let from = Offset::Offset(from);
        list.add_partition_offset(&self.topic, partition, from)?;
        consumer.assign(&list)?;
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            match consumer.poll(POLL) {
                Some(Ok(message)) => return Ok(message.offset() < to),
                Some(Err(KafkaError::PartitionEOF(_))) => return Ok(false),
                Some(Err(error)) => return Err(error),
                None => {}
            }
        }
        Ok(true)
    }
}

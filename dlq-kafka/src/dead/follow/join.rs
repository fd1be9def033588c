//! The way into the group.

use std::cell::OnceCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dlq_core::{StoreError, StoreErrorKind};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::topic_partition_list::TopicPartitionList;

use super::assigned::Assigned;
use super::blocked::Blocked;
use super::mark::Mark;
use super::member::Member;
use super::{DEFAULTS, FIXED, OPENING, marks};
use crate::client::brokers::Brokers;
use crate::client::error::SetupError;
use crate::client::reach::{self, Yields};

/// A consumer that has joined the group, or is about to; blocks.
pub(super) fn join(
    brokers: Brokers,
    topic: Arc<str>,
    group: &str,
    store: String,
    lease: Duration,
) -> Result<Member, StoreError> {
    let for_store = |error: SetupError| error.for_store(OPENING);
    let session = lease.as_millis().to_string();
    // A lease has room for several beats, so one that is late does not end it.
    let beat = (lease.as_millis() / 4).clamp(1, 3000).to_string();
    let own: [(&str, &str); 3] =
        [("group.id", group), ("session.timeout.ms", &session), ("heartbeat.interval.ms", &beat)];
    let config = brokers.client(&DEFAULTS, &[&FIXED[..], &own].concat());
    let config = config.map_err(for_store)?;
    let asked = |what: &str, error| {
        let what = format!("{what} of topic `{topic}` by group `{group}`");
        for_store(SetupError::answered(&what, error))
    };
    let consumer: BaseConsumer<Assigned> = config
        .create_with_context(Assigned::new())
        .map_err(|error| asked("make a consumer", error))?;
    let heard = &consumer.context().heard;
    let partitions = reach::partitions(&consumer, heard, &brokers, &topic, Yields::Nothing);
    let partitions = partitions.map_err(for_store)?;
    let conflict =
        |text: String| Err(StoreError::new(StoreErrorKind::Conflict, OPENING).with_detail(text));
    let reading = format!("read the offsets of topic `{topic}` by group `{group}`");
    let read = |patience| marks::read(&consumer, &topic, &partitions, patience);
    // The mark is read, written where there is none, and read again: of two that begin at once both see the later one as a
    // rule. What slips through is found by `prepare`.
    let mut written = false;
    loop {
        match reach::of_group(&consumer, heard, &reading, read).map_err(for_store)? {
            marks::GroupOffsets::Mark(mark) if mark.store == store => break,
            marks::GroupOffsets::Mark(Mark { store: other, .. }) => {
                return conflict(format!(
                    "the letters of `{topic}` that group `{group}` reads go into {other}, asked was {store}; use that store, \
                     give another group, or delete the group: what the topic holds is then read again from its start"
                ));
            }
            marks::GroupOffsets::Foreign => {
                return conflict(format!(
                    "group `{group}` has offsets in `{topic}` that name no store: it is somebody else's, or its offsets \
                     were set by hand; give another group, or delete this one"
                ));
            }
            marks::GroupOffsets::Nothing if written => {
                return conflict(format!(
                    "group `{group}` is somebody else's: it has members, and no offsets in `{topic}` that name a store; \
                     give another group"
                ));
            }
            marks::GroupOffsets::Nothing => {
                written = true;
                let mut first = TopicPartitionList::new();
                for partition in &partitions {
                    // The group names its store before the first entry, so a replay finds it there.
                    let (low, _) = reach::watermarks(&consumer, &topic, *partition)
                        .map_err(|error| asked("look for the start", error))?;
                    let mark = Mark { store: store.clone(), confirmed: 0, clean: true };
                    mark.write(&mut first, &topic, *partition, low)
                        .map_err(|error| asked("commit the start", error))?;
                }
                match reach::patiently(|| consumer.commit(&first, CommitMode::Sync)) {
                    Ok(()) => {}
                    // Somebody joined meanwhile, who has said into which store the letters go.
                    Err(error) if is_joined(error.rdkafka_error_code()) => {}
                    Err(error) => return Err(asked("commit the start", error)),
                }
            }
        }
    }
    // Last of all: nobody may be assigned partitions by a group that does not say which store it has.
    consumer.subscribe(&[&*topic]).map_err(|error| asked("subscribe", error))?;
    let look = (Instant::now(), Duration::ZERO);
    Ok(Member {
        consumer,
        aside: OnceCell::new(),
        group: group.to_owned(),
        brokers,
        topic,
        store,
        held: VecDeque::new(),
        look,
        missing: None,
        blocked: Blocked::default(),
        lease,
    })
}

/// Returns true if a commit from outside failed because the group has members.
fn is_joined(code: Option<RDKafkaErrorCode>) -> bool {
    use RDKafkaErrorCode::{IllegalGeneration, RebalanceInProgress, UnknownMemberId};
    matches!(code, Some(IllegalGeneration | RebalanceInProgress | UnknownMemberId))
}

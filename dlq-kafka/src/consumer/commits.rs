//! Commits, one at a time. If two were on their way, the older one could arrive last, as when the client sends it again
//! or when the thread that looked first is slower. The group would then keep the older position, for good if nothing
//! follows.
//!
//! Each is waited for, on a thread of its own: of one that is not, the client says nothing when it fails. A broker may refuse
//! the partitions of one topic and take those of others, and the client says of none which: each topic is committed alone then.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::TopicPartitionList;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

use crate::client::aside::leave;
use crate::client::lock;
use crate::consumer::partition::{Opening, Partition};
use crate::consumer::rebalance::{Hooks, add};
use crate::consumer::shared::SourceState;

/// After how long what was refused is committed again.
const AGAIN: Duration = Duration::from_secs(1);
/// Interval of reports about refused commits.
const TOLD: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(crate) struct Commits {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    is_taken: bool,
    /// When one was refused, and when that was told.
    refused: Option<Instant>,
    told: Option<Instant>,
}

/// Turn to commit. The position is read after the turn begins and committed before it ends.
#[derive(Debug)]
#[must_use]
pub(crate) struct Turn(Arc<Commits>);

impl Drop for Turn {
    fn drop(&mut self) {
        lock(&self.0.state).is_taken = false;
        self.0.ended.notify_one();
    }
}

impl Commits {
    /// Waits until no commit is on its way; `None` if that takes longer.
    pub(crate) fn turn(self: &Arc<Self>, within: Duration) -> Option<Turn> {
        let state = lock(&self.state);
        let waited = self.ended.wait_timeout_while(state, within, |state| state.is_taken);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        (!std::mem::replace(&mut state.is_taken, true)).then(|| Turn(Arc::clone(self)))
    }

    /// Returns true if a commit was refused a moment ago.
    fn rests(&self) -> bool {
        lock(&self.state).refused.is_some_and(|at| at.elapsed() < AGAIN)
    }

    fn refused(&self, error: &KafkaError) {
        let mut state = lock(&self.state);
        state.refused = Some(Instant::now());
        if state.told.is_none_or(|at| at.elapsed() >= TOLD) {
            state.told = state.refused;
            tracing::warn!(%error, "offsets were not committed; they are committed again");
        }
    }
}

/// Commits what is news, unless a commit is on its way.
pub(crate) fn commit_news(shared: &Arc<SourceState>, consumer: &Arc<BaseConsumer<Hooks>>) {
    let has_news = |p: &Arc<Partition>| p.opening() == Opening::Open && p.has_news();
    // Looked at before the turn is taken, so that a thread is begun only where there is something to commit.
    if shared.commits.rests() || !shared.all().iter().any(has_news) {
        return;
    }
    let Some(turn) = shared.commits.turn(Duration::ZERO) else { return };
    // The flag is cleared before the points are taken: a record that asks for a commit after this gets another one.
    shared.is_awaited.store(false, Ordering::Release);
    let (shared, consumer) = (Arc::clone(shared), Arc::clone(consumer));
    // A commit waits for the brokers, and the thread that polls has to go on.
    leave(move || {
        let mut news = Vec::new();
        for partition in shared.all() {
            if partition.opening() == Opening::Open
                && let Some(point) = partition.news()
            {
                news.push((partition, point));
            }
        }
        let Committed { done, refused } = commit(&consumer, news);
        for (partition, error) in refused {
            partition.not_committed();
            shared.commits.refused(&error);
        }
        // This happens within the turn, since the next `news` clears what this commit grants.
        done.iter().for_each(|partition| partition.committed());
        drop(turn);
        // Whoever waits for more than was committed now asks for it again.
        let is_awaited = shared.all().iter().any(|partition| partition.awaits());
        shared.is_awaited.store(is_awaited, Ordering::Release);
        shared.arrived.notify_one();
    });
}

/// Result of a commit.
#[derive(Debug, Default)]
pub(crate) struct Committed {
    pub(crate) done: Vec<Arc<Partition>>,
    pub(crate) refused: Vec<(Arc<Partition>, KafkaError)>,
}

/// Commits these points.
pub(crate) fn commit(
    consumer: &BaseConsumer<Hooks>,
    points: Vec<(Arc<Partition>, (u64, String))>,
) -> Committed {
    let mut topics: BTreeMap<Arc<str>, Vec<_>> = BTreeMap::new();
    let mut all = TopicPartitionList::new();
    for (partition, point) in points {
        add(&mut all, &partition, point.clone());
        topics.entry(Arc::clone(&partition.topic)).or_default().push((partition, point));
    }
    let mut committed = Committed::default();
    let mut note = |topic: Vec<(Arc<Partition>, _)>, result: Result<(), KafkaError>| {
        let partitions = topic.into_iter().map(|(partition, _)| partition);
        match result {
            Ok(()) => committed.done.extend(partitions),
            Err(error) => {
                // The error does not say which partition wrote too much, so each of the topic writes less.
                let is_long = error.rdkafka_error_code() == Some(Code::OffsetMetadataTooLarge);
                let shorten = |of: &Arc<Partition>| {
                    if is_long {
                        of.shortens()
                    }
                };
                let refused = partitions.inspect(shorten).map(|of| (of, error.clone()));
                committed.refused.extend(refused);
            }
        }
    };
    if all.count() == 0 {
        return committed;
    }
    // One request for all is the rule. Apart they would cost a round trip for each topic.
    let result = consumer.commit(&all, CommitMode::Sync);
    let is_of_one = result.as_ref().is_err_and(is_of_topic) && topics.len() > 1;
    for topic in topics.into_values() {
        if !is_of_one {
            note(topic, result.clone());
            continue;
        }
        // The request for all may have been taken in part. To commit the same position again changes nothing.
        let mut list = TopicPartitionList::new();
        topic.iter().for_each(|(partition, point)| add(&mut list, partition, point.clone()));
        note(topic, consumer.commit(&list, CommitMode::Sync));
    }
    committed
}

/// Returns true if a broker refuses only some topics.
pub(crate) fn is_of_topic(error: &KafkaError) -> bool {
    let code = error.rdkafka_error_code();
    matches!(
        code,
        Some(
            Code::TopicAuthorizationFailed
                | Code::UnknownTopicOrPartition
                | Code::OffsetMetadataTooLarge
                | Code::InvalidCommitOffsetSize
        )
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_on_its_way_at_a_time() {
        let commits = Arc::new(Commits::default());
        let one = commits.turn(Duration::ZERO);
        assert!(one.is_some());
        assert!(commits.turn(Duration::from_millis(1)).is_none());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| commits.turn(Duration::from_secs(60)));
            drop(one);
            let two = waiting.join().unwrap();
            assert!(two.is_some() && commits.turn(Duration::ZERO).is_none());
        });
        assert!(commits.turn(Duration::ZERO).is_some());
    }
}

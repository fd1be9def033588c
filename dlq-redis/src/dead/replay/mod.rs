//! Sending letters of a stream back, each of them once.
//!
//! # The script
//!
//! A script looks whether the ledger has the death and whether the letters are kept in a store, adds the letter to its
//! stream, and notes the death. Nothing can come between, so that letters are not claimed.
//!
//! A replay that has begun goes on when a store is marked: the follower yields nothing before it has ended, or its lease
//! has. Then the ledger has all that was sent. A replay that stood still for longer than its lease finds the mark.
//!
//! | the process dies | the server has | and then |
//! |---|---|---|
//! | before a script has run | nothing of this letter | the next replay sends it |
//! | after a script has run | letter and note | the next one skips it; it reads as `sent` |
//! | after an answer was lost | letter and note | the script is run again, and finds the note |
//! | while a follower waits | what was sent in the ledger, and its lease | after the lease the store gets all, of which those are `sent` |
//!
//! A fail-over forgets letter and note together, since they are in one slot; in a cluster letters whose stream is in another
//! slot are not sent. A script that fails has written nothing: types and memory are looked at before its first write.

mod plan;
mod run;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlq_core::replay::{ReplayOutcome, ReplayRules};
use dlq_core::store::reading;
use dlq_core::{Filter, LetterId, OperationId};

use super::RedisLetters;
use super::ledger::Marked;
use super::scan::{EntryId, Stands};
use crate::consumer::wire::Fields;

/// Time for which a replay that has died is waited for.
const LEASE: Duration = Duration::from_secs(30);
const REPLAYING: &str = "send dead letters back";

/// A letter and its place.
type Row = reading::Row<EntryId>;

/// The place that letters are sent to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RedisTarget {
    /// The streams where they were born, where every group of consumers hears them.
    Origin,
    /// The stream with this key.
    Stream(String),
}

/// Sends letters of a stream back: those that match a filter, each death once, whoever sends it and however often (G6).
///
/// The ledger is a hash beside the stream. A letter whose death it has reads as `sent`. Running it twice, at once or one after
/// the other, sends nothing twice; running it again after it was killed or cancelled goes on. A letter that died again is a
/// new death, and can be sent again. A letter at the [cap](Self::cap) is not sent (G7).
///
/// Once it was [planned](Self::plan), it sends nothing but what the last plan has come to. Clones share the plan.
///
/// Letters keep payload, key and the producer's headers. Attempts start over; the headers `replay.*` say when, by what and
/// from where it was sent.
///
/// ```no_run
/// use dlq_core::{BoxError, Filter, OperationId};
/// use dlq_redis::{RedisLetters, RedisReplay, RedisTarget};
///
/// async fn send_back(letters: &RedisLetters, id: OperationId) -> Result<(), BoxError> {
///     let filter = Filter::new().error("connection refused");
///     let replay = RedisReplay::new(letters, filter, RedisTarget::Origin, id).rate(100);
///     for subscriber in &replay.plan().await?.subscribers {
///         println!("{subscriber} will hear them too");
///     }
///     let report = replay.run(std::future::pending(), |_| {}).await?;
///     println!("{report}");
///     Ok(())
/// }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is sent until it runs"]
pub struct RedisReplay {
    letters: RedisLetters,
    filter: Filter,
    target: RedisTarget,
    rules: ReplayRules,
    fields: Fields,
    lease: Duration,
    agreed: Arc<Mutex<Option<Agreed>>>,
}

/// The letters that match, as they stood when the stream was read.
#[derive(Debug)]
struct Picture {
    stands: Stands,
    rows: Vec<Row>,
    /// Notes of the ledger about these letters, in their order.
    marks: Vec<Option<Marked>>,
}

/// A plan that was made.
#[derive(Clone, Debug)]
struct Agreed {
    /// The last place of a letter that was looked at.
    last: EntryId,
    picture: Arc<Picture>,
}

/// A letter and what became of it.
#[derive(Debug)]
pub struct Replayed {
    /// The letter.
    pub id: LetterId,
    /// The id of its entry in the stream of dead letters.
    pub entry: String,
    /// Result for this letter.
    pub outcome: ReplayOutcome,
}

impl RedisReplay {
    /// Sends the letters that match to this target, as this operation.
    pub fn new(
        letters: &RedisLetters,
        filter: Filter,
        target: RedisTarget,
        operation: OperationId,
    ) -> Self {
        let (letters, rules) = (letters.clone(), ReplayRules::new(operation));
        let (fields, agreed) = (Fields::default(), Arc::default());
        Self { letters, filter, target, rules, fields, lease: LEASE, agreed }
    }

    /// Sets how many letters are sent at most, oldest first. Defaults to all.
    pub fn limit(mut self, letters: u64) -> Self {
        self.rules.limit = letters;
        self
    }

    /// Sets how many letters are sent in a second; 0 is read as 1. Defaults to as many as the server takes.
    pub fn rate(mut self, per_second: u32) -> Self {
        self.rules.rate = Some(per_second.max(1));
        self
    }

    /// Sets how often a letter may be sent back; 0 for any number. Defaults to 10.
    pub fn cap(mut self, times: u32) -> Self {
        self.rules.cap = times;
        self
    }

    /// Sends letters that were sent before too; each once for this operation. Defaults to not.
    pub fn again(mut self) -> Self {
        self.rules.again = true;
        self
    }

    /// Sets the time for which those who [follow](RedisLetters) the letters wait for a replay that has died. Each letter that is
    /// sent begins it anew. Defaults to 30 seconds.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Sets the field of an entry that has the payload; the same as the consumer's. Defaults to `d`.
    pub fn payload_field(mut self, name: impl Into<String>) -> Self {
        self.fields.payload = name.into();
        self
    }

    /// Sets the field of an entry that has the key; the same as the consumer's. Defaults to `k`.
    pub fn key_field(mut self, name: impl Into<String>) -> Self {
        self.fields.key = name.into();
        self
    }
}

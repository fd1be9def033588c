//! Sending letters back, each of them once.
//!
//! # The protocol
//!
//! Letters are sent in chunks, those of 256 sequences of their stream, of which each has a record in the ledger. For
//! each chunk:
//!
//! 1. *Claim.* By compare-and-set the record names us, for how long, and where the streams stand that letters will be
//!    sent to.
//! 2. *Send* what is wanted and not marked, many at once. The id of a message is that of the death, not of the one who
//!    sends it. Nothing is sent in the second half of the lease.
//! 3. *Confirm.* Every message was confirmed by the server, or refused.
//! 4. *Mark.* By compare-and-set the record says which deaths were sent, and names nobody, or us for longer.
//!
//! # What happens if the process dies
//!
//! - Before 1, and after 4: nothing is open. What is marked is not sent again.
//! - After 1, 2 or 3: the claim is left. Whoever comes next waits until its lease has ended. Then the streams that it
//!   names are read from where they stood until the lease had ended: what has arrived is marked, in the same write that
//!   claims the chunk anew, and only the rest is sent. That does not depend on how long ago it was. Messages that were
//!   on their way all the same are refused by the server, within its duplicate window.
//! - A process that is stopped and goes on later, alone or with its machine, finds that its lease has ended, and sends
//!   nothing; its marks are refused.
//!
//! # What is not promised
//!
//! A stream that does not keep what was consumed (work queue, interest, or small bounds) cannot be asked what has
//! arrived. Letters of a claim that was left are then sent again, at most 256 for each chunk that was being sent, and
//! the report counts them as [doubtful](ReplayReport::doubtful); within the duplicate window the server refuses those
//! that had arrived. The same goes for publishes that a client holds back while its connection is gone, if that is longer
//! than lease and duplicate window.
//!
//! Leases are measured by the one who waits: from when it first saw the claim, or, where the claim is older than the
//! lease by more than a minute by its own clock, not at all.

mod chunk;
mod hearing;
mod plan;
mod reconcile;
mod run;
mod term;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlq_core::replay::ReplayRules;
use dlq_core::{Filter, LetterId, OperationId};

pub use dlq_core::replay::{ReplayOutcome, ReplayPlan, ReplayReport, Skipped, Subscriber};
pub(crate) use hearing::{Hears, consumers, copies, is_choosy, streams, unread, unwanted};
pub(crate) use plan::notes;
pub(crate) use reconcile::looks;
pub(super) use reconcile::{Found, reconcile};

use super::NatsLetters;
use super::picture::Picture;
use super::send::NatsTarget;

/// Sends letters back: those that match a filter, each death once, whoever sends it and however often (G6).
///
/// What was sent is [marked](NatsLetters::ledger), and read with the status `sent` from then on. Running it twice,
/// at once or one after the other, sends nothing twice; running it again after it was killed or cancelled goes on. A
/// letter that died again is a new death, and can be sent again. How often a letter was sent back goes with it, and a
/// letter at the [cap](Self::cap) is not sent (G7).
///
/// Once it was [planned](Self::plan), it sends nothing but what the last plan has come to: what dies while somebody thinks
/// about the plan is for the next one. Clones share the plan.
///
/// Letters keep payload, key and the producer's headers. Attempts start over; the headers `replay.*` say when, by what
/// and from where it was sent.
///
/// ```no_run
/// use dlq_core::{BoxError, Filter, OperationId};
/// use dlq_nats::{NatsLetters, NatsReplay, NatsTarget};
///
/// async fn send_back(letters: &NatsLetters, id: OperationId) -> Result<(), BoxError> {
///     let filter = Filter::new().error("connection refused");
///     let replay = NatsReplay::new(letters, filter, NatsTarget::Origin, id).rate(100);
///     for subscriber in &replay.plan().await?.subscribers {
///         println!("{subscriber} will hear them too");
///     }
///     let report = replay.run(std::future::pending(), |_| {}).await?;
///     println!("{report}");
///     Ok(())
/// }
/// ```
///
/// # What happens if the process dies
///
/// Whoever sends these letters next waits until the lease of the dead has ended, looks what of theirs has arrived, and
/// sends the rest. A stream that does not keep what was consumed cannot be asked; what may have been sent twice is then
/// counted as [doubtful](ReplayReport::doubtful), unless it was within the duplicate window of that stream.
#[derive(Clone, Debug)]
#[must_use = "nothing is sent until it runs"]
pub struct NatsReplay {
    letters: NatsLetters,
    filter: Filter,
    target: NatsTarget,
    rules: ReplayRules,
    lease: Duration,
    consumer: Option<Arc<str>>,
    agreed: Arc<Mutex<Option<Agreed>>>,
}

/// Result of a plan.
#[derive(Clone, Debug)]
struct Agreed {
    /// When the stream of dead letters was created.
    created: String,
    /// The last sequence.
    last: u64,
    /// The letters as they stood.
    picture: Arc<Picture>,
}

/// A letter and what became of it.
#[derive(Debug)]
pub struct Replayed {
    /// The letter.
    pub id: LetterId,
    /// Its sequence in the stream of dead letters.
    pub sequence: u64,
    /// Outcome for the letter.
    pub outcome: ReplayOutcome,
}

impl NatsReplay {
    /// Sends the letters that match to this target, as this operation.
    pub fn new(
        letters: &NatsLetters,
        filter: Filter,
        target: NatsTarget,
        operation: OperationId,
    ) -> Self {
        Self {
            letters: letters.clone(),
            filter,
            target,
            rules: ReplayRules::new(operation),
            lease: Duration::from_secs(30),
            consumer: None,
            agreed: Arc::default(),
        }
    }

    /// Sets the [consumer](crate::NatsTransport) whose handlers get the letters, with [`NatsTarget::Handler`]. Defaults to
    /// the one that the sink of each letter [was told](crate::NatsSink::consumer), and for a letter that does not say it to
    /// the one called like its handler.
    pub fn consumer(mut self, name: impl Into<Arc<str>>) -> Self {
        self.consumer = Some(name.into());
        self
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
    pub fn cap(mut self, cap: u32) -> Self {
        self.rules.cap = cap;
        self
    }

    /// Sends letters that were sent before too; each once for this operation. Defaults to not.
    pub fn again(mut self) -> Self {
        self.rules.again = true;
        self
    }

    /// Sets for how long others wait for a replay that has died. Defaults to 30 seconds. It should be well below the
    /// duplicate window of the streams that letters are sent to: the plan says where it is not.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease.max(Duration::from_millis(100));
        self
    }
}

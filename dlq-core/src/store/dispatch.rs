//! [`Dispatch`]: letters of operations that somebody sends through an outbox.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::time::Duration;

use super::{ClaimToken, Cluster, Finished, Operation};
use crate::{DeadLetter, Death, OperationId, Origin, StoreError, Timestamp};

/// Hands letters of an operation to whoever sends them through an [`Outbox`](crate::outbox::Outbox), and records what
/// became of them.
///
/// An item of such an operation is `queued`, `sending`, `sent`, and then `succeeded` or `failed_again`; or `skipped`. The
/// letter of an item that is `sending` is `replaying`, with lease, fencing token and sender, and **never due**: no handler is
/// given it when the lease ends, since nobody knows whether it was sent. It stays held until whoever takes it next has
/// settled what the former sender did.
///
/// | the sender dies | item | letter | whoever comes next |
/// |---|---|---|---|
/// | before `take` is committed | `queued` | pending | takes it |
/// | after `take`, before or in the send | `sending` | replaying | is given it as lapsed once the lease is over; asks its outbox; sends it or records it |
/// | after the send, before `record` | `sending` | replaying | the same; records it without sending |
/// | after `record`, its answer lost | `sent` | sent | the same record is applied once more and changes nothing |
pub trait Dispatch: fmt::Debug + Send + Sync + 'static {
    /// Takes letters of one operation to be sent: those whose sender is gone first (`sending` with a lease that has ended,
    /// whatever the state of the operation), then queued ones, as far as rate, canary and cap allow. In one step.
    ///
    /// No count moves. A lease that ends is no crash of the letter.
    ///
    /// # Errors
    ///
    /// `NotFound` if there is no such operation; `Refused` if its letters go to their handlers, which claim them.
    fn take(&self, request: TakeRequest) -> impl Future<Output = Result<Takes, StoreError>> + Send;

    /// Records what became of letters that were taken, each conditional on its token. What nobody knows is not recorded:
    /// it is settled once the lease has ended.
    fn record(
        &self,
        dispatched: Vec<(ClaimToken, Dispatched)>,
    ) -> impl Future<Output = Result<Vec<Finished>, StoreError>> + Send;

    /// Records that messages which were sent back as these deaths have been handled: the letter is resolved, its item
    /// `succeeded`. Deaths that are unknown, or of letters that were not sent, are passed over. Returns how many were
    /// resolved.
    fn succeeded(&self, deaths: Vec<Death>)
    -> impl Future<Output = Result<u64, StoreError>> + Send;
}

/// Request for letters to be sent.
#[derive(Clone, Debug)]
#[non_exhaustive]
#[must_use]
pub struct TakeRequest {
    /// The operation.
    pub operation: OperationId,
    /// The most letters.
    pub limit: u32,
    /// The time after which the letters are given to another sender.
    pub lease: Duration,
    /// The senders of the caller's outboxes, by cluster. A later caller asks by them what was sent.
    pub senders: BTreeMap<Cluster, String>,
}

impl TakeRequest {
    /// Takes up to `limit` letters for these senders.
    pub fn new(
        operation: OperationId,
        limit: u32,
        lease: Duration,
        senders: BTreeMap<Cluster, String>,
    ) -> Self {
        Self { operation, limit, lease, senders }
    }

    /// Returns the sender of a letter from `origin`: that of its cluster, or the first where its cluster has none.
    #[must_use]
    pub fn sender(&self, origin: &Origin) -> &str {
        let sender = self.senders.get(&Cluster::of(origin));
        // A letter of another cluster goes by the only outbox that there is, as `Outboxes::route` decides.
        sender.or_else(|| self.senders.values().next()).map_or("", String::as_str)
    }
}

/// Letters that were taken for sending.
#[derive(Clone, Debug)]
pub struct Takes {
    /// The operation after this step.
    pub operation: Operation,
    /// The letters.
    pub letters: Vec<Taken>,
    /// Time until more may be taken; `None` if that does not depend on time alone.
    pub wait: Option<Duration>,
}

/// A letter that was taken for sending.
#[derive(Clone, Debug)]
pub struct Taken {
    /// Proof that it was taken.
    pub token: ClaimToken,
    /// The letter, payload and history included.
    pub letter: DeadLetter,
    /// The index of its item.
    pub index: u64,
    /// The former sender, if one took it before and is gone.
    pub former: Option<FormerSender>,
    /// The end of the lease, by the store's clock.
    pub lease_until: Timestamp,
}

/// A sender that took a letter and did not say what became of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FormerSender {
    /// The sender as its outboxes know it.
    pub sender: String,
    /// The time at which it took the letter.
    pub since: Timestamp,
}

/// The outcome of sending a letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dispatched {
    /// The broker has confirmed it: the letter is `sent`, and its counts of replays go up.
    Confirmed {
        /// True if a former sender may have sent it too.
        is_doubtful: bool,
    },
    /// It is not sent by this operation, for this reason: its item is skipped, the letter pending again.
    Refused(String),
    /// It is not sent by this operation, and a former sender may have sent it: its item is skipped for this reason, and the letter
    /// quarantined, since to send it again may be to send it twice.
    Unclear(String),
    /// It was not taken this time: its item is queued again.
    Later,
}

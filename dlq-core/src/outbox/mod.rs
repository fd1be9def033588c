//! [`Outbox`]: sends letters back to a broker, each of them once.
//!
//! An outbox belongs to one cluster. It knows nothing of stores: whoever has claimed letters hands them over, records the
//! answers, and asks the outbox what became of letters whose sender died. [`Outboxes`] holds the outboxes of a program and
//! finds the one for a letter.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use dlq_core::memory::{MemoryBroker, MemoryOutbox};
//! use dlq_core::outbox::{Once, Outbox as _, Outboxes, Outgoing, Sent};
//! use dlq_core::protocol::Replay;
//! use dlq_core::store::Target;
//! use dlq_core::{BoxError, DeadLetter, OperationId};
//!
//! # async fn send_back(broker: MemoryBroker, letter: DeadLetter, operation: OperationId) -> Result<(), BoxError> {
//! let mut outboxes = Outboxes::new();
//! outboxes.add(MemoryOutbox::new(&broker))?;
//!
//! let (outbox, to) = outboxes.route(&letter, &Target::Origin)?;
//! let survey = outbox.survey([to.clone()].into()).await?;
//! for subscriber in &survey.subscribers {
//!     println!("{subscriber} will receive it");
//! }
//!
//! let once = Once::in_operation(letter.death(), operation);
//! let replay = Replay { operation, count: 1, from: format!("letter {}", letter.id), at: letter.died_at };
//! let outgoing = Outgoing { letter: Arc::new(letter), to, replay, once };
//! let until = tokio::time::Instant::now() + Duration::from_secs(15);
//! match &outbox.send(vec![outgoing], until).await?[..] {
//!     [Sent::Confirmed] => println!("the broker has it"),
//!     others => println!("{others:?}"),
//! }
//! # Ok(()) }
//! ```
//!
//! # How a letter is sent once
//!
//! 1. *Take.* The letter is claimed in the store, with a lease, the [sender](Outbox::sender) and the time.
//! 2. *Settle.* If the claim replaces one whose lease ended, [`settle`](Outbox::settle) says whether the letter arrived.
//! 3. *Send.* Otherwise [`send`](Outbox::send) sends it, for half of the lease at most. Its id and its count of replays come
//!    from the row, so that whoever repeats it sends the same.
//! 4. *Record.* What was confirmed, refused or not taken is recorded under the claim. What is unknown is left to the lease.
//!
//! | what happens | the store has | the broker has | and then |
//! |---|---|---|---|
//! | the process dies before 3 | the claim | nothing | after the lease, settle says [`Not`](Settled::Not) |
//! | the process dies in 3, or the broker goes away | the claim | perhaps the letter | settle says [`Arrived`](Settled::Arrived) or `Not`; if it is [`Unclear`](Settled::Unclear), the letter is sent again under its id and counted as doubtful |
//! | the process dies before 4 | the claim | the letter | settle says `Arrived` |
//! | the process is stopped beyond its lease, and goes on in 3 | the claim of somebody else | perhaps both | Kafka has fenced it off; elsewhere what comes late has the same id |
//!
//! # What "once" means
//!
//! | broker | repeats are known by | a dead sender | settle looks at | so "once" is |
//! |---|---|---|---|---|
//! | Kafka | the [`Once`] in a ledger, in the letter's transaction | settle takes its transactional id; nothing more of it comes | that ledger, from `since` to a record of its own | exact, for consumers with `read_committed` |
//! | NATS | `Nats-Msg-Id` | its lease | the stream, from a minute before `since`; unclear unless its retention is `limits` and nothing was deleted | exact within the duplicate window and where settle can look; elsewhere what was in flight at a kill may repeat |
//! | memory | the [`Once`], for ever | its lease | what was published | exact |

mod address;
mod dispatcher;
mod erased;
mod once;
mod outboxes;
mod survey;

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;

use tokio::time::Instant;

pub use address::Address;
pub use dispatcher::{Dispatcher, Dispatches, Step};
pub use erased::BoxOutbox;
pub use once::{InvalidOnce, Once};
pub use outboxes::{Outboxes, Unroutable};
pub use survey::Survey;

use crate::protocol::Replay;
use crate::replay::Skipped;
use crate::store::Target;
use crate::{DeadLetter, StoreError, Timestamp};

/// A letter on its way to a broker.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// The letter, whole.
    pub letter: Arc<DeadLetter>,
    /// The address to which it goes, as [`Outbox::route`] gave it.
    pub to: Address,
    /// The circumstances of the replay, for its headers. All of it comes from the claimed row: whoever repeats the letter
    /// sends the same.
    pub replay: Replay,
    /// The identity under which the broker is to take it once.
    pub once: Once,
}

/// Result of sending one letter.
#[derive(Debug)]
pub enum Sent {
    /// The broker has it, now or since an earlier call with the same [`Once`].
    Confirmed,
    /// The broker will never take this letter as it is. It has nothing of it, and other letters are not concerned.
    Refused(StoreError),
    /// The broker did not take it now, and has nothing of it. The same call may succeed later.
    Later(StoreError),
    /// It is not known whether the broker has it. [`Outbox::settle`] finds out after the lease.
    Unknown(StoreError),
}

impl Sent {
    /// Returns true if the broker has confirmed the letter.
    #[must_use]
    pub const fn is_confirmed(&self) -> bool {
        matches!(self, Self::Confirmed)
    }

    /// The error, unless the letter was confirmed.
    #[must_use]
    pub const fn error(&self) -> Option<&StoreError> {
        match self {
            Self::Confirmed => None,
            Self::Refused(error) | Self::Later(error) | Self::Unknown(error) => Some(error),
        }
    }
}

/// Finding about a letter that a sender whose lease ended may have sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// The broker has it, since this time by the broker's clock.
    Arrived(Timestamp),
    /// The broker does not have it.
    Not,
    /// It cannot be found out, for this reason.
    Unclear(String),
}

/// Sends letters back to one cluster of brokers. See the [module docs](self) for the protocol that it is part of.
///
/// All methods may be called at the same time, by any number of tasks.
pub trait Outbox: Debug + Send + Sync + 'static {
    /// The kind of broker, as origins of letters name it: `nats`, `kafka`, `memory`.
    fn transport(&self) -> &str;

    /// The alias of the cluster, as origins of letters name it.
    fn cluster(&self) -> &str;

    /// The identity of this sender, which is kept with each claim and later given to [`settle`](Self::settle). No other
    /// outbox has it at the same time. On Kafka it is the transactional id.
    fn sender(&self) -> &str;

    /// Decides where a letter goes. Asks nobody: the same letter and target give the same address.
    ///
    /// # Errors
    ///
    /// [`Skipped::NoOrigin`] when the letter's origin is not known, is at another cluster, or is no place that can be sent
    /// to; or when the target is a handler that this outbox cannot reach.
    fn route(&self, letter: &DeadLetter, to: &Target) -> Result<Address, Skipped>;

    /// Looks at addresses before anything is sent: who else receives what is sent there, what will be refused, and for how
    /// long repeats are known. Changes nothing.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` when the user lacks a right without which nothing may be sent, and names each; `Unavailable` when the
    /// broker does not answer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    fn survey(
        &self,
        to: BTreeSet<Address>,
    ) -> impl Future<Output = Result<Survey, StoreError>> + Send;

    /// Sends letters, and returns the result of each, in their order.
    ///
    /// Hands nothing to the broker after `until`: what has not begun by then is [`Sent::Later`]. May return a little after
    /// `until`, when the answers to what was sent have come or were waited for long enough, so `until` should lie well before
    /// the end of the lease.
    ///
    /// A letter that the broker refuses concerns no other letter of the batch.
    ///
    /// # Errors
    ///
    /// An error means that nothing of the batch was sent, as if each letter were `Later`.
    ///
    /// # Sending again
    ///
    /// A letter may be sent again under its [`Once`] after `Later`, and after `settle` answered [`Settled::Not`] or
    /// [`Settled::Unclear`]. Where the broker still knows the `Once`, it answers `Confirmed` and keeps one copy.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future is what killing the process is: each letter was sent or was not, and `settle` finds out.
    fn send(
        &self,
        batch: Vec<Outgoing>,
        until: Instant,
    ) -> impl Future<Output = Result<Vec<Sent>, StoreError>> + Send;

    /// Finds out which letters have arrived that `sender` may have sent at `since` or later, in their order.
    ///
    /// To be called once the leases of these letters have ended. On Kafka it takes the identity of `sender`, which can
    /// finish nothing more that it began before; elsewhere what comes late from it has the id under which the letter is sent
    /// again. `since` is when the letters were claimed, by the clock of the store; an outbox allows for a clock of the broker
    /// that differs by a minute.
    ///
    /// May be called again, and by several at a time, with the same answers unless the letters were sent meanwhile. A letter
    /// whose lease has not ended may arrive after `Not` was answered.
    ///
    /// # Errors
    ///
    /// `Unavailable` when the broker does not answer, `InvalidConfig` when a right is missing. Nothing was found out about
    /// any letter then.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing, except that `sender` may be fenced off already.
    fn settle(
        &self,
        sender: String,
        since: Timestamp,
        batch: Vec<Outgoing>,
    ) -> impl Future<Output = Result<Vec<Settled>, StoreError>> + Send;
}

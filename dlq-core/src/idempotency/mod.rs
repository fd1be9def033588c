//! Idempotency: a message is handled once per (consumer, key), also when it is delivered again.
//!
//! A key is *new*, *in flight* under a lease, or *done*. It becomes done only when the handler succeeded, and is
//! released when it failed, so that a retry or a replay is never taken for a duplicate.
//!
//! What each answer does to the message:
//!
//! | claim says | the message |
//! |---|---|
//! | [`New`](IdempotencyClaim::New) | is handled |
//! | [`InFlight`](IdempotencyClaim::InFlight) | is deferred for the rest of the lease: not counted, not routed |
//! | [`Done`](IdempotencyClaim::Done) | is acknowledged as a duplicate; the handler does not run |
//!
//! The store counts: attempts that ended in failure, and claims whose lease ended without a word (crashes). The counts
//! start over when a message of the key is dead for good ([`Release::Dead`]), and once a key was done and has been kept long
//! enough; attempts that an outage has failed are taken back ([`Release::Forgiven`]).

mod key;
mod keys;
pub mod memory;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::{StoreError, Timestamp};

/// Time for which a key that is not done is kept, with its counts, after it was last touched.
pub const KEEP_FREE: Duration = Duration::from_secs(7 * 24 * 3600);

/// Lease of a key that is claimed only to look at it.
const LOOK: Duration = Duration::from_secs(1);

/// Proof of an idempotency claim. Worth something until the claim is ended, or its lease has ended and another has
/// claimed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct IdempotencyToken {
    /// The consumer.
    pub consumer: Arc<str>,
    /// The key.
    pub key: Bytes,
    /// Grows with every claim of the key, also when the key was forgotten in between.
    pub fence: u64,
}

/// Result of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum IdempotencyClaim {
    /// It is ours.
    New {
        /// Proof, to be given back with the outcome.
        token: IdempotencyToken,
        /// Earlier runs that ended in failure.
        attempts: u32,
        /// Earlier claims whose lease ended without a word.
        crashes: u32,
    },
    /// Somebody is at it.
    InFlight {
        /// Length of their lease.
        remaining: Duration,
    },
    /// It was handled before.
    Done {
        /// When.
        at: Timestamp,
    },
}

/// The state of a key that was looked up without a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum KeyState {
    /// It would be ours.
    Free,
    /// Somebody is at it.
    InFlight {
        /// Length of their lease.
        remaining: Duration,
    },
    /// It was handled before.
    Done {
        /// When.
        at: Timestamp,
    },
}

/// End of a run that did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// The handler failed: counts one attempt.
    Failed,
    /// The message is dead: the counts of its key start over, for its letter counts from here on, and the next message with
    /// the key is another one. Said once the letter is durable, or of a failure that no further run can change.
    Dead,
    /// The handler did not run, or was interrupted: counts nothing.
    Unused,
    /// The handler did not run under this claim, and so many attempts before it were no fault of the message's: what it
    /// depends on was down. They are taken back (G10).
    Forgiven(u32),
}

impl Release {
    /// Changes the counts of a key that is released so. For stores.
    pub fn count(self, attempts: &mut u32, crashes: &mut u32) {
        match self {
            Self::Failed => *attempts = attempts.saturating_add(1),
            Self::Dead => (*attempts, *crashes) = (0, 0),
            Self::Unused => {}
            // Counts that started over in between are fewer than what is taken back.
            Self::Forgiven(times) => *attempts = attempts.saturating_sub(times),
        }
    }
}

/// Keeps track of which keys are handled. Every answer is by the store's time.
pub trait Idempotency: fmt::Debug + Send + Sync + 'static {
    /// Claims a key for `lease`.
    ///
    /// # Errors
    ///
    /// When the store does not answer; the message is then deferred, not handled.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may leave a claim behind that ends with its lease.
    fn claim(
        &self,
        consumer: Arc<str>,
        key: Bytes,
        lease: Duration,
    ) -> impl Future<Output = Result<IdempotencyClaim, StoreError>> + Send;

    /// Extends a claim to `lease` from now; `false` when it is no longer ours.
    ///
    /// # Errors
    ///
    /// When the store does not answer. It is open then whether the claim was extended.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves it open whether the claim was extended; extending again is safe.
    fn extend(
        &self,
        token: IdempotencyToken,
        lease: Duration,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Makes the key done for `keep`; `false` when the claim is no longer ours (then nothing changed). Saying it again
    /// with the same token changes nothing and is `true` again.
    ///
    /// # Errors
    ///
    /// When the store does not answer. It is open then whether the key is done, and saying it again is safe.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves it open whether the key is done. If it is not, the claim ends with its lease, and
    /// that counts as a crash.
    fn complete(
        &self,
        token: IdempotencyToken,
        keep: Duration,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Gives the key free; `false` when the claim is no longer ours (then nothing changed). Saying it again with the
    /// same token counts nothing and is `true` again.
    ///
    /// # Errors
    ///
    /// When the store does not answer. It is open then whether the key is free, and saying it again is safe.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves it open whether the key is free. If it is not, the claim ends with its lease, and
    /// that counts as a crash.
    fn release(
        &self,
        token: IdempotencyToken,
        release: Release,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Returns the state of a key and leaves it as it is. A handler that was renamed asks for its former names: what was
    /// done under one of them is done. Defaults to a claim that is released unused, which writes twice and counts a crash
    /// where a lease had ended; a store that can read without a claim does that.
    ///
    /// # Errors
    ///
    /// When the store does not answer; the message is then deferred, not handled.
    fn look_up(
        &self,
        consumer: Arc<str>,
        key: Bytes,
    ) -> impl Future<Output = Result<KeyState, StoreError>> + Send {
        async {
            // The lease is short: if the process dies before the release, the key is held up for no longer.
            Ok(match self.claim(consumer, key, LOOK).await? {
                IdempotencyClaim::New { token, .. } => {
                    self.release(token, Release::Unused).await?;
                    KeyState::Free
                }
                IdempotencyClaim::InFlight { remaining } => KeyState::InFlight { remaining },
                IdempotencyClaim::Done { at } => KeyState::Done { at },
            })
        }
    }

    /// Forgets keys that were done and kept long enough, and keys that are not done and untouched for [`KEEP_FREE`]
    /// (counted from the release, or from the end of the lease); at most `limit`. Returns how many. A consumer asks for it
    /// in the background, a batch at a time; whoever has none has to, or the keys grow without end.
    ///
    /// # Errors
    ///
    /// When the store does not answer. The next call goes on.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future keeps no key from being forgotten: the next call finds it.
    fn purge(&self, limit: u32) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Returns true if the store forgets keys by itself, so that nobody needs to call [`purge`](Self::purge). Defaults
    /// to `false`.
    fn purges_itself(&self) -> bool {
        false
    }

    /// Text that two handles have in common if what one writes is read through the other, as far as this process can
    /// tell: clones, and handles that were opened for one file or one table. By it two handlers are told apart that would
    /// share keys from two of one name that share nothing. Defaults to `None`, for a store that cannot tell.
    fn store_identity(&self) -> Option<String> {
        None
    }

    /// The store as one that needs not be waited for, if it is one. Such a store is asked in place, where any other needs
    /// an allocation. Defaults to `None`.
    fn immediate(&self) -> Option<&dyn Immediate> {
        None
    }
}

/// The same questions to a store that answers at once, such as one in memory.
pub trait Immediate {
    /// See [`Idempotency::claim`].
    fn claim_now(&self, consumer: &Arc<str>, key: &[u8], lease: Duration) -> ImmediateClaim;

    /// See [`Idempotency::complete`]. `proof` is that of the claim.
    fn complete_now(&self, consumer: &Arc<str>, key: &[u8], proof: Proof, keep: Duration) -> bool;

    /// See [`Idempotency::release`]. `proof` is that of the claim.
    fn release_now(&self, consumer: &Arc<str>, key: &[u8], proof: Proof, release: Release) -> bool;
}

/// Proof of a claim that was answered at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof {
    /// See [`IdempotencyToken::fence`].
    pub fence: u64,
    /// Place of the key in the store, by the store's own count, which saves a second look-up. A hint that may be wrong.
    pub place: u64,
}

/// Result of a claim that was answered at once: an [`IdempotencyClaim`] without consumer and key, which the claimer
/// has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum ImmediateClaim {
    /// It is ours.
    New {
        /// To be given back with the outcome.
        proof: Proof,
        /// Earlier runs that ended in failure.
        attempts: u32,
        /// Earlier claims whose lease ended without a word.
        crashes: u32,
    },
    /// Somebody is at it.
    InFlight {
        /// Length of their lease.
        remaining: Duration,
    },
    /// It was handled before.
    Done {
        /// When.
        at: Timestamp,
    },
}

type Erased<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

trait DynIdempotency: fmt::Debug + Send + Sync {
    fn claim(
        &self,
        consumer: Arc<str>,
        key: Bytes,
        lease: Duration,
    ) -> Erased<'_, IdempotencyClaim>;
    fn extend(&self, token: IdempotencyToken, lease: Duration) -> Erased<'_, bool>;
    fn complete(&self, token: IdempotencyToken, keep: Duration) -> Erased<'_, bool>;
    fn release(&self, token: IdempotencyToken, release: Release) -> Erased<'_, bool>;
    fn look_up(&self, consumer: Arc<str>, key: Bytes) -> Erased<'_, KeyState>;
    fn purge(&self, limit: u32) -> Erased<'_, u64>;
    fn purges_itself(&self) -> bool;
    fn store_identity(&self) -> Option<String>;
    fn immediate(&self) -> Option<&dyn Immediate>;
}

impl<I: Idempotency> DynIdempotency for I {
    fn claim(
        &self,
        consumer: Arc<str>,
        key: Bytes,
        lease: Duration,
    ) -> Erased<'_, IdempotencyClaim> {
        Box::pin(Idempotency::claim(self, consumer, key, lease))
    }

    fn extend(&self, token: IdempotencyToken, lease: Duration) -> Erased<'_, bool> {
        Box::pin(Idempotency::extend(self, token, lease))
    }

    fn complete(&self, token: IdempotencyToken, keep: Duration) -> Erased<'_, bool> {
        Box::pin(Idempotency::complete(self, token, keep))
    }

    fn release(&self, token: IdempotencyToken, release: Release) -> Erased<'_, bool> {
        Box::pin(Idempotency::release(self, token, release))
    }

    fn look_up(&self, consumer: Arc<str>, key: Bytes) -> Erased<'_, KeyState> {
        Box::pin(Idempotency::look_up(self, consumer, key))
    }

    fn purge(&self, limit: u32) -> Erased<'_, u64> {
        Box::pin(Idempotency::purge(self, limit))
    }

    fn purges_itself(&self) -> bool {
        Idempotency::purges_itself(self)
    }

    fn store_identity(&self) -> Option<String> {
        Idempotency::store_identity(self)
    }

    fn immediate(&self) -> Option<&dyn Immediate> {
        Idempotency::immediate(self)
    }
}

/// Any idempotency store, erased. Cheap to clone.
#[derive(Clone, Debug)]
pub struct BoxIdempotency(Arc<dyn DynIdempotency>);

impl BoxIdempotency {
    /// Erases `store`.
    #[must_use]
    pub fn new(store: impl Idempotency) -> Self {
        Self(Arc::new(store))
    }
}

impl Idempotency for BoxIdempotency {
    async fn claim(
        &self,
        consumer: Arc<str>,
        key: Bytes,
        lease: Duration,
    ) -> Result<IdempotencyClaim, StoreError> {
        DynIdempotency::claim(&*self.0, consumer, key, lease).await
    }

    async fn extend(&self, token: IdempotencyToken, lease: Duration) -> Result<bool, StoreError> {
        DynIdempotency::extend(&*self.0, token, lease).await
    }

    async fn complete(&self, token: IdempotencyToken, keep: Duration) -> Result<bool, StoreError> {
        DynIdempotency::complete(&*self.0, token, keep).await
    }

    async fn release(&self, token: IdempotencyToken, release: Release) -> Result<bool, StoreError> {
        DynIdempotency::release(&*self.0, token, release).await
    }

    async fn look_up(&self, consumer: Arc<str>, key: Bytes) -> Result<KeyState, StoreError> {
        DynIdempotency::look_up(&*self.0, consumer, key).await
    }

    async fn purge(&self, limit: u32) -> Result<u64, StoreError> {
        DynIdempotency::purge(&*self.0, limit).await
    }

    fn purges_itself(&self) -> bool {
        DynIdempotency::purges_itself(&*self.0)
    }

    fn store_identity(&self) -> Option<String> {
        DynIdempotency::store_identity(&*self.0)
    }

    fn immediate(&self) -> Option<&dyn Immediate> {
        DynIdempotency::immediate(&*self.0)
    }
}

use std::fmt;
use std::future::Future;
use std::time::Duration;

use dlq_core::store::{
    AuditEntry, CheckLimits, Claim, ClaimRequest, ClaimToken, Due, Finish, Finished, ItemPage,
    Letters, Operation, OperationSpec, Plan, ProcessedEvent,
};
use dlq_core::{CrashMarks, DeadLetter, Finding, OperationId, StoreError, Timestamp};

use crate::Verb;

/// Bounds of one atomic step of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// The most letters that one step changes. Verbs on many letters work in pages of at most this, and of at most 1,000.
    pub letters: u32,
    /// The most bytes of letters that one step writes. A letter that is larger is written in a step of its own.
    pub bytes: u64,
    /// The most bytes of one letter, as [`size`](Self::size) counts them. Larger ones are refused.
    pub largest: u64,
}

impl Limits {
    /// Steps of at most `letters` letters.
    #[must_use]
    pub const fn new(letters: u32) -> Self {
        Self { letters, bytes: u64::MAX, largest: u64::MAX }
    }

    /// Returns about how many bytes a letter takes.
    #[must_use]
    pub fn size(letter: &DeadLetter) -> u64 {
        let message = &letter.message;
        let length = |bytes: Option<&[u8]>| bytes.map_or(0, <[u8]>::len);
        let headers = message.headers().iter();
        let headers = headers.map(|header| header.name.len() + length(header.value.as_deref()));
        let payload = length(message.payload().map(|payload| &payload[..]));
        let key = length(message.key().map(|key| &key[..]));
        // The rest of a letter, about.
        (headers.sum::<usize>() + payload + key + letter.error().len() + 1_000) as u64
    }

    /// Returns the most letters that a verb changes in one step.
    pub(crate) fn page(&self) -> u64 {
        // A page of no letters would make a walk that never ends. More than 1,000 would hold their locks, and the
        // memory for them, for longer than others should wait.
        u64::from(self.letters).clamp(1, 1_000)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::new(1_000)
    }
}

/// The answer of a verb whose changes are durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done<T> {
    /// The answer.
    pub answer: T,
    /// The number of the last new [`Note`](crate::Note), if there was one.
    pub note: Option<i64>,
}

/// Keeps rows, runs verbs over them, and answers questions that change nothing.
///
/// [`store!`](crate::store) makes a store of it.
///
/// # Cancel safety
///
/// As for the traits of a store: dropping the future of a call leaves it open whether the call happened.
pub trait Backend: Letters + CrashMarks + fmt::Debug + Send + Sync + 'static {
    /// Bounds of one step.
    fn limits(&self) -> Limits {
        Limits::default()
    }

    /// Runs a verb in one atomic step, and returns once its changes are durable. The error names the call as `during`.
    ///
    /// # Errors
    ///
    /// The error of the verb, after which nothing is changed; or the backend's own.
    fn run<V: Verb>(
        &self,
        during: &'static str,
        verb: V,
    ) -> impl Future<Output = Result<Done<V::Output>, StoreError>> + Send;

    /// Writes those of these letters that are plainly new, in one statement, and returns for each whether it was. The others
    /// are put by the verb. The letters come as they were given to [`Sink::put`](dlq_core::store::Sink::put), at most
    /// [`limits`](Self::limits) of them; no two of them have one id. Their state is that of
    /// [`rules::put`](dlq_core::store::rules::put).
    ///
    /// Defaults to none, which is right wherever a verb costs no more, and required while the store deduplicates.
    fn put_new(
        &self,
        letters: &[DeadLetter],
    ) -> impl Future<Output = Result<Vec<bool>, StoreError>> + Send {
        let none = vec![false; letters.len()];
        async { Ok(none) }
    }

    /// Claims plain due letters in one statement. `None` if the verb must do it, because an operation may have letters to
    /// release or to take back. Defaults to `None`.
    fn claim_due(
        &self,
        request: &ClaimRequest,
    ) -> impl Future<Output = Result<Option<Vec<Claim>>, StoreError>> + Send {
        let _ = request;
        async { Ok(None) }
    }

    /// Extends claims in one statement. `None` if the verb must do it. Defaults to `None`.
    fn extend_held(
        &self,
        tokens: &[ClaimToken],
        lease: Duration,
    ) -> impl Future<Output = Result<Option<Vec<bool>>, StoreError>> + Send {
        let _ = (tokens, lease);
        async { Ok(None) }
    }

    /// Ends those of these claims that are plain, in one statement: of letters in no operation, that are not dead. Returns an
    /// outcome for each that it has ended; the verb does the rest. Defaults to none.
    fn finish_plain(
        &self,
        finishes: &[(ClaimToken, Finish)],
    ) -> impl Future<Output = Result<Vec<Option<Finished>>, StoreError>> + Send {
        let none = vec![None; finishes.len()];
        async { Ok(none) }
    }

    /// Switches deduplication on, without collapsing what is there: keys are taken by the oldest letter of each original. Nobody
    /// else writes meanwhile.
    fn switch_dedup(&self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// See [`Claims::next_due`](dlq_core::store::Claims::next_due).
    fn next_due(
        &self,
        consumers: Vec<String>,
    ) -> impl Future<Output = Result<Option<Timestamp>, StoreError>> + Send;

    /// See [`Claims::due_elsewhere`](dlq_core::store::Claims::due_elsewhere).
    fn due_elsewhere(
        &self,
        consumers: Vec<String>,
        heard: u64,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send {
        let _ = (consumers, heard);
        std::future::pending()
    }

    /// See [`Claims::store_identity`](dlq_core::store::Claims::store_identity).
    fn store_identity(&self) -> Option<String> {
        None
    }

    /// See [`Operations::plan`](dlq_core::store::Operations::plan). The target has been looked at.
    fn plan(&self, spec: OperationSpec) -> impl Future<Output = Result<Plan, StoreError>> + Send;

    /// See [`Operations::operation`](dlq_core::store::Operations::operation).
    fn operation(
        &self,
        id: OperationId,
    ) -> impl Future<Output = Result<Option<Operation>, StoreError>> + Send;

    /// See [`Operations::operations`](dlq_core::store::Operations::operations).
    fn operations(
        &self,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<Operation>, StoreError>> + Send;

    /// See [`Operations::items`](dlq_core::store::Operations::items).
    fn items(
        &self,
        id: OperationId,
        after: u64,
        limit: u32,
    ) -> impl Future<Output = Result<ItemPage, StoreError>> + Send;

    /// Returns the entries of the audit that stand before the one of this number, or the newest, newest first; at most `limit`.
    /// See [`Maintenance::audit`](dlq_core::store::Maintenance::audit).
    fn audit(
        &self,
        before: Option<u64>,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<AuditEntry>, StoreError>> + Send;

    /// See [`Maintenance::record_processed`](dlq_core::store::Maintenance::record_processed).
    fn record_processed(
        &self,
        events: Vec<ProcessedEvent>,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// See [`Maintenance::processed`](dlq_core::store::Maintenance::processed).
    fn processed(
        &self,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<ProcessedEvent>, StoreError>> + Send;

    /// See [`Maintenance::check`](dlq_core::store::Maintenance::check).
    fn check(
        &self,
        limits: CheckLimits,
    ) -> impl Future<Output = Result<Vec<Finding>, StoreError>> + Send;

    /// See [`Maintenance::due`](dlq_core::store::Maintenance::due).
    fn due(&self, overdue: Duration) -> impl Future<Output = Result<Vec<Due>, StoreError>> + Send;
}

use std::future::Future;
use std::time::Duration;

use dlq_core::store::{
    Actor, Claim, ClaimRequest, ClaimToken, Finish, Finished, ItemOutcome, Mark, Marked, Operation,
    OperationItem, OperationSpec, Receipt, Selection,
};
use dlq_core::{
    Clock, DeadLetter, DelayedRetry, Filter, LetterId, LetterState, LetterSummary, Order,
    PageRequest, Resolution, Status, Store, SystemClock, Timestamp,
};

use self::powers::*;
use super::StoreFixture;
use crate::account::Entry;
use crate::fixtures::{CONSUMER, letter};

/// Context of a check: a store of its own, and shorthands that panic when the store does not answer.
#[derive(Debug)]
pub struct Check<F: StoreFixture> {
    pub(super) fixture: F,
    /// The store.
    pub store: F::Store,
}

/// Runs one check against a fresh store.
///
/// # Panics
///
/// When the store breaks the promise that the check is about.
pub fn run<F: StoreFixture, R: Future<Output = ()>>(
    name: &'static str,
    check: impl FnOnce(Check<F>) -> R,
) {
    if Entry::new::<F>("store", name).begin(F::is_available()) {
        crate::run(name, async { check(Check::new(name).await).await });
    }
}

impl<F: StoreFixture> Check<F> {
    /// A fresh store for the check of this name.
    pub async fn new(name: &'static str) -> Self {
        let fixture = F::fresh(name).await;
        let store = fixture.open(false).await;
        Self { fixture, store }
    }

    /// The same place, opened as by another process.
    pub(super) async fn reopened(&self) -> F::Store {
        self.fixture.open(false).await
    }

    pub(super) async fn with_dedup(mut self) -> Self {
        self.store = self.fixture.open(true).await;
        self
    }

    pub(super) fn controls_time(&self) -> bool {
        self.fixture.clock().is_some()
    }

    pub(super) fn now(&self) -> Timestamp {
        match self.fixture.clock() {
            Some(clock) => clock.now(),
            // Every store keeps whole milliseconds exactly.
            None => Timestamp::from_millis(SystemClock.now().as_millis()),
        }
    }

    /// A lease long enough to do something in.
    pub(super) fn lease(&self) -> Duration {
        // Where real time passes the end of a lease is waited for.
        if self.controls_time() { Duration::from_secs(30) } else { Duration::from_millis(400) }
    }

    pub(super) async fn pass(&self, time: Duration) {
        match self.fixture.clock() {
            Some(clock) => clock.advance(time),
            None => tokio::time::sleep(time).await,
        }
    }

    /// Lets so much time pass that every lease has ended.
    pub(super) async fn outlast_leases(&self) {
        self.pass(self.lease() + Duration::from_millis(50)).await;
    }

    /// Lets the store's time move on, so that what comes later is later.
    pub(super) async fn tick(&self) {
        // A store may keep whole milliseconds, of which two are a later time.
        self.pass(Duration::from_millis(2)).await;
    }

    pub(super) async fn put(&self, letters: Vec<DeadLetter>) -> Vec<Receipt> {
        self.store.put(letters).await.expect("put answers")
    }

    pub(super) async fn put_one(&self, letter: &DeadLetter) -> Receipt {
        let receipts = self.put(vec![letter.clone()]).await;
        assert_eq!(receipts.len(), 1, "one receipt for one letter");
        receipts[0]
    }

    /// Puts letters 0 to `count`, each later than the one before.
    pub(super) async fn bury(&self, count: u64) -> Vec<DeadLetter> {
        let letters: Vec<_> = (0..count).map(letter).collect();
        for letter in &letters {
            assert_eq!(self.put_one(letter).await, Receipt::Stored);
            self.tick().await;
        }
        letters
    }

    /// Puts letters 0 to `count` at once.
    pub(super) async fn bury_at_once(&self, count: u64) -> Vec<DeadLetter> {
        let letters: Vec<_> = (0..count).map(letter).collect();
        let receipts = self.put(letters.clone()).await;
        assert!(receipts.iter().all(|receipt| *receipt == Receipt::Stored), "{receipts:?}");
        letters
    }

    pub(super) async fn get(&self, id: LetterId) -> DeadLetter {
        self.store.get(id).await.expect("get answers").expect("the letter is there")
    }

    pub(super) async fn state(&self, id: LetterId) -> LetterState {
        self.get(id).await.state
    }

    pub(super) async fn status(&self, id: LetterId) -> Status {
        self.state(id).await.status
    }

    pub(super) async fn count(&self, filter: Filter) -> u64 {
        self.store.count(filter).await.expect("count answers")
    }

    /// Every letter that matches, page by page.
    pub(super) async fn list(
        &self,
        filter: &Filter,
        order: Order,
        limit: u32,
    ) -> Vec<LetterSummary> {
        let mut letters = Vec::new();
        let mut request = PageRequest::new().limit(limit).order(order);
        loop {
            let page = self.store.list(filter.clone(), request).await.expect("list answers");
            assert!(page.letters.len() <= limit as usize, "a page is no longer than asked for");
            assert!(page.next.is_none() || page.letters.len() == limit as usize, "a page is full");
            letters.extend(page.letters);
            match page.next {
                Some(next) => request = request.after(Some(next)),
                None => return letters,
            }
        }
    }

    pub(super) async fn ids(&self, filter: &Filter, order: Order) -> Vec<LetterId> {
        self.list(filter, order, 100).await.into_iter().map(|letter| letter.id).collect()
    }

    pub(super) async fn enqueue(&self, delayed_retry: DelayedRetry) {
        self.store.enqueue(delayed_retry).await.expect("enqueue answers");
    }

    pub(super) async fn claim(&self, limit: u32) -> Vec<Claim> {
        self.claim_by(ClaimRequest::due([CONSUMER], limit, self.lease())).await
    }

    pub(super) async fn claim_by(&self, request: ClaimRequest) -> Vec<Claim> {
        self.store.claim(request).await.expect("claim answers")
    }

    pub(super) async fn claim_one(&self) -> Claim {
        let mut claims = self.claim(1).await;
        assert_eq!(claims.len(), 1, "a letter can be claimed");
        claims.remove(0)
    }

    pub(super) async fn finish(&self, token: ClaimToken, finish: Finish) -> Finished {
        let finished = self.store.finish(vec![(token, finish)]).await.expect("finish answers");
        assert_eq!(finished.len(), 1, "one answer for one claim");
        finished[0]
    }

    pub(super) async fn succeed(&self, claim: &Claim) {
        let finish = Finish::Resolved(Resolution::Succeeded);
        assert_eq!(self.finish(claim.token, finish).await, Finished::Applied);
    }

    /// Ends the claim with the next death of its message.
    pub(super) async fn die(&self, claim: &Claim) {
        let _ = self.die_of(claim).await;
    }

    /// Ends the claim with the next death of its message, and returns that.
    pub(super) async fn die_of(&self, claim: &Claim) -> DeadLetter {
        let mut death = claim.letter.clone();
        // A retry has the generation of its next death already, to which `died_again` would add one.
        if claim.continues {
            death.generation -= 1;
        }
        let death = crate::fixtures::died_again(&death);
        assert_eq!(death.death(), claim.next_death());
        let finish = Finish::Dead(Box::new(death.clone()));
        assert_eq!(self.finish(claim.token, finish).await, Finished::Applied);
        death
    }

    pub(super) async fn extend(&self, token: ClaimToken) -> bool {
        let valid = self.store.extend(vec![token], self.lease()).await.expect("extend answers");
        assert_eq!(valid.len(), 1, "one answer for one token");
        valid[0]
    }

    pub(super) async fn start(&self, spec: OperationSpec) -> Operation {
        self.store.start(spec, by()).await.expect("start answers")
    }

    /// Starts to replay every letter.
    pub(super) async fn replay(&self) -> Operation {
        self.start(OperationSpec::replay(Filter::new())).await
    }

    pub(super) async fn operation(&self, operation: &Operation) -> Operation {
        let found = self.store.operation(operation.id).await.expect("operation answers");
        found.expect("the operation is there")
    }

    pub(super) async fn items(&self, operation: &Operation) -> Vec<OperationItem> {
        let page = self.store.items(operation.id, 0, 10_000).await.expect("items answers");
        assert_eq!(page.next, None);
        page.items
    }

    pub(super) async fn outcomes(&self, operation: &Operation) -> Vec<ItemOutcome> {
        self.items(operation).await.iter().map(|item| item.outcome).collect()
    }

    pub(super) async fn mark(&self, id: LetterId, mark: Mark) -> Marked {
        let selection = Selection::matching(Filter::new().with_id(id)).expect("it names a letter");
        self.store.mark(selection, mark, by()).await.expect("mark answers")
    }

    pub(super) async fn delete(&self, id: LetterId) -> Marked {
        let selection = Selection::matching(Filter::new().with_id(id)).expect("it names a letter");
        self.store.delete(selection, by()).await.expect("delete answers")
    }
}

pub(super) fn by() -> Actor {
    Actor::new("ana").with_note("test")
}

/// A letter as its writer knows it: without what the store decides.
pub(super) fn written(letter: &DeadLetter) -> DeadLetter {
    letter.clone().with_state(LetterState::default())
}

/// The time that a due letter may run at: now, to the precision of milliseconds.
pub(super) fn in_ms(now: Timestamp, millis: u64) -> Timestamp {
    Timestamp::from_millis(now.as_millis()).after(Duration::from_millis(millis))
}

const _: () = {
    const fn store<S: Store>() {}
    store::<<super::MemoryFixture as StoreFixture>::Store>();
};

/// The traits whose methods checks call, by no name.
pub(super) mod powers {
    pub(in super::super) use dlq_core::RetryQueue as _;
    pub(in super::super) use dlq_core::store::{
        Claims as _, Dispatch as _, Letters as _, Maintenance as _, Operations as _, Sink as _,
    };
}

//! Calls about many letters go in pages, and others work in between.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use dlq_core::store::{
    Actor, AuditRequest, CheckLimits, ClaimRequest, Claims as _, Control, ItemOutcome,
    Letters as _, Maintenance as _, Mark, OperationSpec, OperationState, Operations as _,
    Selection,
};
use dlq_core::{
    DeadLetter, ErrorClass, Filter, Message, Origin, Position, Reason, Sink as _, Status, Timestamp,
};
use dlq_letters::memory::MemoryStore;

const MANY: u64 = 2_500;

fn letter(n: u64) -> DeadLetter {
    let origin = Origin::new("memory", "orders", Position::Offset(n));
    let message = Message::new("orders", format!("{n}"));
    let mut letter = DeadLetter::new(message, origin, "orders", Reason::Exhausted);
    letter.class = ErrorClass::Transient;
    letter.attempts = 1;
    letter.deliveries = 1;
    letter
}

fn ana() -> Actor {
    Actor::new("ana")
}

fn request(limit: u32) -> ClaimRequest {
    ClaimRequest::due(["orders"], limit, Duration::from_secs(60))
}

/// A store with many letters. What is called through the second handle lets others run in between.
async fn many() -> (MemoryStore, MemoryStore) {
    let store = MemoryStore::new();
    store.put((0..MANY).map(letter).collect()).await.unwrap();
    (store.clone(), store.conflicts(1))
}

/// Lets a call run until `is_there`.
async fn run_until<F: Future>(call: &mut Pin<&mut F>, is_there: impl AsyncFn() -> bool) {
    while !is_there().await {
        let mut context = Context::from_waker(Waker::noop());
        assert!(matches!(call.as_mut().poll(&mut context), Poll::Pending), "it came too far");
    }
}

async fn operation(store: &MemoryStore) -> Option<dlq_core::store::Operation> {
    store.operations(1).await.unwrap().pop()
}

#[tokio::test]
async fn g6_a_start_that_was_cut_off_stays_preparing_and_sends_nothing() {
    let (store, slow) = many().await;
    {
        let mut start = pin!(slow.start(OperationSpec::replay(Filter::new()), ana()));
        run_until(&mut start, async || operation(&store).await.is_some()).await;
    }
    let begun = operation(&store).await.unwrap();
    assert_eq!((begun.state, begun.progress.total), (OperationState::Preparing, 1_000));
    assert!(store.claim(request(10)).await.unwrap().is_empty());
    assert_eq!(store.next_due(vec![]).await.unwrap(), None, "there is nothing to wait for");

    let limits = CheckLimits::default().idle(Duration::ZERO);
    let findings = store.check(limits).await.unwrap();
    assert!(findings.iter().any(|it| it.subject.contains(&begun.id.to_string())), "{findings:?}");

    let resumed = store.control(begun.id, Control::Resume, ana()).await.unwrap();
    assert_eq!((resumed.state, resumed.progress.total), (OperationState::Running, 1_000));
    assert_eq!(store.claim(request(3_000)).await.unwrap().len(), 1_000);
}

#[tokio::test]
async fn g6_a_start_that_was_cut_off_can_be_cancelled() {
    let (store, slow) = many().await;
    {
        let mut start = pin!(slow.start(OperationSpec::replay(Filter::new()), ana()));
        run_until(&mut start, async || operation(&store).await.is_some()).await;
    }
    let id = operation(&store).await.unwrap().id;
    let cancelled = store.control(id, Control::Cancel, ana()).await.unwrap();
    assert_eq!(cancelled.state, OperationState::Cancelled);
    assert_eq!(cancelled.progress.with_outcome(ItemOutcome::Skipped), 1_000);
    let again = store.start(OperationSpec::replay(Filter::new()), ana()).await.unwrap();
    assert_eq!((again.state, again.progress.total), (OperationState::Running, MANY));
}

#[tokio::test]
async fn g6_a_start_that_is_cancelled_meanwhile_freezes_no_more() {
    let (store, slow) = many().await;
    let mut start = pin!(slow.start(OperationSpec::replay(Filter::new()), ana()));
    run_until(&mut start, async || operation(&store).await.is_some()).await;
    let id = operation(&store).await.unwrap().id;
    store.control(id, Control::Cancel, ana()).await.unwrap();
    let started = start.await.unwrap();
    assert_eq!((started.state, started.progress.total), (OperationState::Cancelled, 1_000));
    let held = |letter: &dlq_core::LetterSummary| letter.state.operation.is_some();
    let page = dlq_core::PageRequest::new().limit(3_000);
    assert!(!store.list(Filter::new(), page).await.unwrap().letters.iter().any(held));
}

#[tokio::test]
async fn letters_that_arrive_while_others_are_frozen_are_not_part_of_it() {
    let (store, slow) = many().await;
    let mut start = pin!(slow.start(OperationSpec::replay(Filter::new()), ana()));
    run_until(&mut start, async || operation(&store).await.is_some()).await;
    store.put((MANY..MANY + 600).map(letter).collect()).await.unwrap();
    let started = start.await.unwrap();
    assert_eq!((started.state, started.progress.total), (OperationState::Running, MANY));
    let replays = store.audit(AuditRequest::latest(10)).await.unwrap();
    assert_eq!((replays.len(), replays[0].affected), (1, MANY), "{replays:?}");
}

#[tokio::test]
async fn an_operation_that_is_paused_while_it_is_prepared_is_whole_and_waits() {
    let (store, slow) = many().await;
    let mut start = pin!(slow.start(OperationSpec::replay(Filter::new()), ana()));
    run_until(&mut start, async || operation(&store).await.is_some()).await;
    let id = operation(&store).await.unwrap().id;
    store.control(id, Control::Pause, ana()).await.unwrap();
    let started = start.await.unwrap();
    assert_eq!((started.state, started.progress.total), (OperationState::Paused, MANY));
    assert!(store.claim(request(10)).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_limit_is_kept_over_pages() {
    let (store, _) = many().await;
    for (limit, state) in [
        (0, OperationState::Completed),
        (1_000, OperationState::Running),
        (1_200, OperationState::Running),
    ] {
        let spec = OperationSpec::replay(Filter::new()).limit(limit);
        let started = store.start(spec, ana()).await.unwrap();
        assert_eq!((started.state, started.progress.total), (state, limit));
    }
}

#[tokio::test]
async fn g6_a_cancel_stops_at_once_and_takes_the_rest_back_in_pages() {
    let (store, slow) = many().await;
    let id = store.start(OperationSpec::replay(Filter::new()), ana()).await.unwrap().id;
    let mut cancel = pin!(slow.control(id, Control::Cancel, ana()));
    let is_cancelled = async || operation(&store).await.unwrap().state == OperationState::Cancelled;
    run_until(&mut cancel, is_cancelled).await;
    assert_eq!(operation(&store).await.unwrap().progress.with_outcome(ItemOutcome::Queued), MANY);
    assert!(store.claim(request(10)).await.unwrap().is_empty());
    let cancelled = cancel.await.unwrap();
    assert_eq!(cancelled.progress.with_outcome(ItemOutcome::Skipped), MANY);
    let audit = store.audit(AuditRequest::latest(10)).await.unwrap();
    assert_eq!((audit.len(), audit[0].affected), (2, MANY), "{audit:?}");
}

#[tokio::test]
async fn a_mark_of_many_is_one_entry_and_leaves_what_arrives_alone() {
    let (store, slow) = many().await;
    let mut mark = pin!(slow.mark(Selection::all(), Mark::Quarantined, ana()));
    let quarantined = Filter::new().with_status(Status::Quarantined);
    run_until(&mut mark, async || store.count(quarantined.clone()).await.unwrap() > 0).await;
    assert_eq!(store.count(quarantined.clone()).await.unwrap(), 1_000);
    store.put((MANY..MANY + 600).map(letter).collect()).await.unwrap();
    assert_eq!(mark.await.unwrap().changed, MANY);
    assert_eq!(store.count(quarantined).await.unwrap(), MANY);
    let audit = store.audit(AuditRequest::latest(10)).await.unwrap();
    assert_eq!((audit.len(), audit[0].affected), (1, MANY), "{audit:?}");
}

#[tokio::test]
async fn an_idle_claim_writes_nothing() {
    let store = MemoryStore::new();
    store.put(vec![letter(1), letter(2).with_consumer("others")]).await.unwrap();
    let spec = OperationSpec::replay(Filter::new().with_consumer("others".to_owned())).canary(1);
    let before = store.start(spec, ana()).await.unwrap();
    for _ in 0..50 {
        assert!(store.claim(request(10)).await.unwrap().is_empty());
    }
    assert_eq!(store.operation(before.id).await.unwrap(), Some(before));
    store.start(OperationSpec::replay(Filter::new()), ana()).await.unwrap();
    let claims = store.claim(request(10)).await.unwrap();
    assert_eq!((claims.len(), claims[0].token.fence), (1, 1), "no token was used up");
}

/// What a claim has read may be out of date when it writes.
#[tokio::test]
async fn g6_a_pause_between_reading_and_writing_is_heeded() {
    let (store, slow) = many().await;
    let id = store.start(OperationSpec::replay(Filter::new()), ana()).await.unwrap().id;
    for polls in 1..6 {
        let mut claim = pin!(slow.claim(request(10)));
        let mut context = Context::from_waker(Waker::noop());
        let mut is_over = false;
        for _ in 0..polls {
            is_over = is_over || claim.as_mut().poll(&mut context).is_ready();
        }
        if is_over {
            break;
        }
        store.control(id, Control::Pause, ana()).await.unwrap();
        assert!(claim.await.unwrap().is_empty(), "after {polls} polls");
        store.control(id, Control::Resume, ana()).await.unwrap();
    }
    let released = store.operation(id).await.unwrap().unwrap().progress;
    assert_eq!(released.with_outcome(ItemOutcome::Queued) % 10, 0, "{released:?}");
}

/// A claim comes past a heap of letters whose operation was cancelled while they were run.
#[tokio::test]
async fn g6_a_claim_takes_back_what_was_cancelled_a_bounded_heap_at_a_time() {
    let clock = std::sync::Arc::new(Hand::default());
    let store = MemoryStore::new().clock(clock.clone());
    store.put((0..700).map(letter).collect()).await.unwrap();
    let id = store.start(OperationSpec::replay(Filter::new()), ana()).await.unwrap().id;
    assert_eq!(store.claim(request(700)).await.unwrap().len(), 700);
    store.control(id, Control::Cancel, ana()).await.unwrap();
    // Their process dies.
    clock.0.store(3_600_000, std::sync::atomic::Ordering::Relaxed);
    let skipped = async || {
        store.operation(id).await.unwrap().unwrap().progress.with_outcome(ItemOutcome::Skipped)
    };
    assert!(store.claim(request(10)).await.unwrap().is_empty());
    assert_eq!(skipped().await, 510, "what one claim takes back is bounded");
    assert!(store.claim(request(10)).await.unwrap().is_empty());
    assert_eq!(skipped().await, 700);
    let pending = Filter::new().with_status(Status::Pending);
    assert_eq!(store.count(pending).await.unwrap(), 700, "each is as it was before");
}

/// A clock that is moved by hand.
#[derive(Debug, Default)]
struct Hand(std::sync::atomic::AtomicI64);

impl dlq_core::Clock for Hand {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.0.load(std::sync::atomic::Ordering::Relaxed))
    }
}

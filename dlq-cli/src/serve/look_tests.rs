use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use dlq_core::store::HealthThresholds;
use dlq_core::{DeadLetters, SystemClock};
use dlq_letters::memory::MemoryStore;
use dlq_sql::sqlite::SqliteStore;
use dlq_testkit::fixtures::letter;

use super::super::store::{Limits, StoreOpener, Stored};
use super::*;

/// A place at which there is a store, or none, or one that does not answer.
#[derive(Clone)]
struct Scripted(Rc<Script>);

struct Script {
    store: DeadLetters,
    state: Cell<State>,
    identity: Cell<u32>,
    opened: Cell<u32>,
}

#[derive(Clone, Copy)]
enum State {
    There,
    Gone,
    Silent,
    Wrong,
}

impl Scripted {
    async fn with(letters: u64) -> Self {
        Self::of(DeadLetters::new(MemoryStore::new()), letters).await
    }

    async fn of(store: DeadLetters, letters: u64) -> Self {
        store.put((0..letters).map(letter).collect()).await.unwrap();
        let (state, identity, opened) = (Cell::new(State::There), Cell::new(0), Cell::new(0));
        Self(Rc::new(Script { store, state, identity, opened }))
    }

    fn looker(&self) -> Looker<Stored<Self>> {
        let health = HealthThresholds::default();
        let limits = Limits { health, overdue: Duration::ZERO, groups: 20 };
        Looker::new(Stored::new(self.clone(), limits, Arc::default()), SystemClock::shared())
    }
}

impl StoreOpener for Scripted {
    type Identity = u32;

    async fn open(&self) -> Result<DeadLetters, CliError> {
        self.0.opened.set(self.0.opened.get() + 1);
        match self.0.state.get() {
            State::There => Ok(self.0.store.clone()),
            State::Gone => Err(CliError::failed("no route to it")),
            State::Silent => std::future::pending().await,
            State::Wrong => Err(CliError::refused("it is not a store")),
        }
    }

    fn identity(&self) -> u32 {
        self.0.identity.get()
    }
}

fn value(page: &Page, series: &str) -> Option<f64> {
    let line = page.metrics.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.map(|value| value.parse().unwrap())
}

#[tokio::test]
async fn a_store_that_was_not_there_is_found() {
    let place = Scripted::with(3).await;
    place.0.state.set(State::Gone);
    let mut looker = place.looker();
    assert!(looker.begin().await.is_ok(), "it may come");
    let page = looker.look().await;
    assert_eq!(value(&page, "dlq_store_up"), Some(0.0));
    assert_eq!(value(&page, "dlq_store_looks_total{outcome=\"failed\"}"), Some(1.0));
    assert!(!page.metrics.contains("dlq_letters"), "{}", page.metrics);
    assert_eq!(
        (page.health.state, &*page.health.findings[0]),
        (HealthState::Unhealthy, "no route to it")
    );
    place.0.state.set(State::There);
    let page = looker.look().await;
    assert_eq!(value(&page, "dlq_store_up"), Some(1.0));
    assert_eq!(value(&page, "dlq_letters{status=\"pending\"}"), Some(3.0));
    assert_eq!(value(&page, "dlq_events_count{consumer=\"orders.handle\"}"), Some(3.0));
    assert_eq!(value(&page, "dlq_messages_quarantined{consumer=\"orders.handle\"}"), Some(0.0));
    assert_eq!((page.health.state, page.health.backlog), (HealthState::Healthy, 3));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_does_not_answer_in_time_is_down() {
    let place = Scripted::with(1).await;
    place.0.state.set(State::Silent);
    let mut looker = place.looker();
    let page = looker.look().await;
    assert_eq!(value(&page, "dlq_store_up"), Some(0.0));
    assert_eq!(value(&page, "dlq_store_look_seconds"), Some(PATIENCE.as_secs_f64()));
    place.0.state.set(State::There);
    assert_eq!(value(&looker.look().await, "dlq_store_up"), Some(1.0));
}

#[tokio::test]
async fn a_store_is_opened_once_unless_another_is_in_its_place() {
    let place = Scripted::with(1).await;
    let mut looker = place.looker();
    looker.begin().await.unwrap();
    for _ in 0..3 {
        looker.look().await;
    }
    assert_eq!(place.0.opened.get(), 1);
    place.0.identity.set(1);
    place.0.state.set(State::Gone);
    assert_eq!(value(&looker.look().await, "dlq_store_up"), Some(0.0));
    place.0.state.set(State::There);
    assert_eq!(value(&looker.look().await, "dlq_store_up"), Some(1.0));
    assert_eq!(place.0.opened.get(), 3);
}

#[tokio::test]
async fn what_is_no_store_is_refused_at_the_start() {
    let place = Scripted::with(1).await;
    place.0.state.set(State::Wrong);
    assert!(matches!(place.looker().begin().await, Err(CliError::Refused(_))));
}

#[tokio::test]
async fn a_store_that_fails_is_opened_anew() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("dlq.db");
    let store = DeadLetters::new(SqliteStore::open(&path).await.unwrap());
    let place = Scripted::of(store, 1).await;
    let mut looker = place.looker();
    assert_eq!(value(&looker.look().await, "dlq_store_up"), Some(1.0));
    let rename = |from: &str, to: &str| {
        let other = rusqlite::Connection::open(&path).unwrap();
        other.execute_batch(&format!("ALTER TABLE {from} RENAME TO {to}")).unwrap();
    };
    rename("dlq_operations", "gone");
    let page = looker.look().await;
    assert_eq!(value(&page, "dlq_store_up"), Some(0.0));
    assert!(page.health.findings[0].contains("no such table"), "{:?}", page.health);
    assert!(!page.metrics.contains("dlq_letters"), "half of it is not shown: {}", page.metrics);
    rename("gone", "dlq_operations");
    assert_eq!(value(&looker.look().await, "dlq_store_up"), Some(1.0));
    assert_eq!(place.0.opened.get(), 2);
}

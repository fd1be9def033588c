//! Consumers tell their store that they are there.

use dlq_core::StoreErrorKind;
use dlq_core::memory::{MemoryBroker, MemoryTransport};
use dlq_core::store::{Maintenance as _, Presence};
use dlq_letters::memory::MemoryStore;
use dlq_tower::consumer::Consumer;
use dlq_tower::handler::handler;
use dlq_tower::router::Router;
use tokio::time::sleep;

use crate::broker::Broker;
use crate::faulty::Store;
use crate::support::{Running, SECOND, clock, soon};

async fn present(store: &MemoryStore) -> Vec<Presence> {
    store.consumers().await.unwrap().0
}

async fn until(store: &MemoryStore, condition: impl Fn(&[Presence]) -> bool) {
    soon(async {
        while !condition(&present(store).await) {
            sleep(SECOND / 10).await;
        }
    })
    .await;
}

async fn two_handlers(broker: &MemoryBroker, store: &MemoryStore) -> Consumer {
    let work = |name: &'static str| handler(name, || async {}).build().unwrap();
    let router = Router::new()
        .name("shop")
        .route("orders.created", work("billing"))
        .route("orders.shipped", work("mail"));
    Consumer::on(MemoryTransport::new("orders").name("shop"), broker)
        .handler(router.build().unwrap())
        .dead_letters(store.clone())
        .build_version("1.4.2")
        .open()
        .await
        .unwrap()
}

/// Each handler is shown with its build, again and again while it runs, and not after an orderly stop.
#[tokio::test(start_paused = true)]
async fn each_handler_is_there_until_it_stops() {
    let (broker, store) = (MemoryBroker::new(), MemoryStore::new().clock(clock()));
    let running = Running::start(two_handlers(&broker, &store).await);
    until(&store, |present| present.len() == 3).await;
    let first = present(&store).await;
    let names: Vec<_> = first.iter().map(|it| it.heartbeat.consumer.as_str()).collect();
    // The router is there itself, too: what no handler takes dies under its name.
    assert_eq!(names, ["billing", "mail", "shop"]);
    assert_eq!(first[0].heartbeat.build.as_deref(), Some("1.4.2"));
    assert_eq!(first[0].heartbeat.process, first[1].heartbeat.process);
    sleep(10 * Presence::SILENCE).await;
    let (later, now) = store.consumers().await.unwrap();
    assert!(later.iter().all(|it| it.is_alive(now)));
    assert_eq!(later[0].since, first[0].since, "it is the same run");
    running.finish().await;
    assert_eq!(present(&store).await, []);
}

/// A process that dies is shown as gone, and the next one beside it.
#[tokio::test(start_paused = true)]
async fn a_process_that_died_is_shown_as_gone() {
    let (broker, store) = (MemoryBroker::new(), MemoryStore::new().clock(clock()));
    let running = Running::start(two_handlers(&broker, &store).await);
    until(&store, |present| present.len() == 3).await;
    running.kill().await;
    sleep(Presence::SILENCE).await;
    let running = Running::start(two_handlers(&broker, &store).await);
    until(&store, |present| present.len() == 6).await;
    let (all, now) = store.consumers().await.unwrap();
    assert_eq!(all.iter().filter(|it| it.is_alive(now)).count(), 3);
    running.finish().await;
    assert_eq!(present(&store).await.len(), 3, "the dead ones are known still");
}

/// The transport says what is read.
#[tokio::test(start_paused = true)]
async fn what_is_read_is_shown() {
    let (broker, store) = (MemoryBroker::new(), MemoryStore::new().clock(clock()));
    let consumer = Consumer::on(MemoryTransport::new("orders"), &broker)
        .handler(handler("billing", || async {}).build().unwrap())
        .dead_letters(store.clone());
    let running = Running::start(consumer.open().await.unwrap());
    until(&store, |present| present.len() == 1).await;
    let reads = &present(&store).await[0].heartbeat.reads;
    assert!(reads.len() == 1 && reads[0].contains("orders"), "{reads:?}");
    running.finish().await;
}

/// A store that is away neither ends nor holds up a consumer.
#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_holds_nothing_up() {
    let (broker, store) = (Broker::with(1), Store::new());
    store.fail("heartbeat", 3, StoreErrorKind::Unavailable);
    let consumer = Consumer::builder(broker.source())
        .handler(handler("billing", || async {}).build().unwrap())
        .dead_letters(store.clone())
        .clock(store.clock.clone());
    let running = Running::start(consumer.build().unwrap());
    soon(async {
        while broker.settled().is_empty() {
            sleep(SECOND / 10).await;
        }
    })
    .await;
    soon(async {
        while store.inner.consumers().await.unwrap().0.is_empty() {
            sleep(SECOND).await;
        }
    })
    .await;
    // It would answer after a minute.
    store.slow(60 * SECOND);
    let begun = tokio::time::Instant::now();
    running.finish().await;
    assert!(begun.elapsed() < 3 * SECOND, "{:?}", begun.elapsed());
}

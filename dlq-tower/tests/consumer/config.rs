//! What cannot be built.

use dlq_core::store::Schedule;
use dlq_core::{Delivery, Ordering};
use dlq_letters::memory::MemoryStore;
use dlq_tower::consumer::{Consumer, ConsumerBuilder, ConsumerHealth, OutagePolicy, RunState};
use dlq_tower::extract::Key;
use dlq_tower::handler::{HandlerStack, handler};
use dlq_tower::router::Router;

use crate::broker::Broker;
use crate::faulty::Store;
use crate::support::{Running, SECOND, soon};

fn work() -> HandlerStack {
    handler("orders.handle", |_: Delivery| async {}).build().unwrap()
}

fn refused(builder: ConsumerBuilder) -> String {
    builder.build().expect_err("it contradicts itself").to_string()
}

#[tokio::test]
async fn a_consumer_needs_a_handler_and_a_place_for_letters() {
    let source = || Consumer::builder(Broker::new().source());
    assert!(refused(source()).contains("`handler(…)`"));
    assert!(refused(source().handler(work())).contains("`dead_letters(store)`"));
    let schedule = source().handler(work()).sink(Store::new()).schedule(Schedule::enabled());
    assert!(refused(schedule).contains("the schedule is enabled"));
}

/// What waits for a retry in the store would die there, and everything else in the sink.
#[tokio::test]
async fn letters_in_two_places_are_refused() {
    let consumer = || Consumer::builder(Broker::new().source()).handler(work());
    let error = refused(consumer().dead_letters(Store::new()).sink(Store::new()));
    assert!(error.contains("`dead_letters` and `sink` are both set"), "{error}");
    assert!(error.contains("routing.feed(name, sink)"), "{error}");
    let with_copies = consumer().dead_letters(Store::new());
    let with_copies = with_copies.routing(|routing| routing.feed("copies", Store::new()));
    assert!(with_copies.build().is_ok());
}

#[tokio::test]
async fn numbers_that_make_no_sense_are_refused() {
    let source =
        || Consumer::builder(Broker::new().source()).handler(work()).dead_letters(Store::new());
    assert!(refused(source().max_in_flight(0)).contains("max_in_flight is 0"));
    assert!(refused(source().suspect_after(1)).contains("suspect_after is 1"));
    let outage = |policy| refused(source().outage(policy));
    assert!(outage(OutagePolicy::new().ratio(0.0)).contains("outage.ratio is 0"));
    assert!(outage(OutagePolicy::new().ratio(f64::NAN)).contains("outage.ratio is NaN"));
    assert!(outage(OutagePolicy::new().probes(0)).contains("outage.probes is 0"));
    let pause = OutagePolicy::new().pause(2 * SECOND, SECOND);
    assert!(outage(pause).contains("outage.max_pause (1s) is below outage.pause (2s)"));
}

/// G5: refused at start, with both names.
#[tokio::test]
async fn g5_an_order_that_the_source_cannot_keep_is_refused() {
    let ordered = || {
        let work = handler("orders.handle", |_: Delivery| async {});
        work.order_by(|delivery| delivery.message().key().cloned()).build().unwrap()
    };
    let broker = Broker::new();
    broker.set(|world| world.ordering = Some(Ordering::None));
    let consumer = || Consumer::builder(broker.source()).dead_letters(Store::new());
    let error = refused(consumer().handler(ordered()));
    assert!(error.contains("`orders.handle` is ordered"), "{error}");
    assert!(error.contains("ordering = none"), "{error}");
    let unordered = consumer().handler(work()).build();
    assert!(unordered.is_ok(), "without an order any source will do");
    broker.set(|world| world.ordering = Some(Ordering::Partition));
    assert!(consumer().handler(ordered()).build().is_ok(), "this source keeps it");
}

/// Each would be given the other's letters, and run them.
#[tokio::test]
async fn g1_two_functions_of_one_name_do_not_share_a_store_of_letters() {
    let consumer = |store: &MemoryStore, work: HandlerStack| {
        let builder = Consumer::builder(Broker::new().source()).handler(work);
        builder.dead_letters(store.clone())
    };
    let other = || handler("orders.handle", |_: Delivery, _: Key| async {}).build().unwrap();
    let store = MemoryStore::new();
    let first = consumer(&store, work()).build().unwrap();
    let again = consumer(&store, work()).build().expect("one function, for another consumer");
    let error = refused(consumer(&store, other()));
    assert!(error.contains("cannot build the handler `orders.handle`"), "{error}");
    assert_eq!(error.matches("config::").count(), 2, "both functions are named: {error}");
    let former = handler("billing", |_: Delivery| async {}).alias("orders.handle");
    assert!(refused(consumer(&store, former.build().unwrap())).contains("`orders.handle`"));
    let routed = || Router::new().route("orders", other()).build().unwrap();
    let of_router = Consumer::builder(Broker::new().source()).dead_letters(store.clone());
    assert!(refused(of_router.handler(routed())).contains("`orders.handle`"));

    assert!(consumer(&MemoryStore::new(), other()).build().is_ok(), "nothing is shared");
    drop(first);
    assert!(consumer(&store, other()).build().is_err(), "one is left");
    drop(again);
    assert!(consumer(&store, other()).build().is_ok(), "it is another program's version by now");
}

#[tokio::test]
async fn g1_a_running_consumer_keeps_its_names() {
    let store = MemoryStore::new();
    let consumer = |work: HandlerStack| {
        let builder = Consumer::builder(Broker::new().source()).handler(work);
        builder.dead_letters(store.clone()).build()
    };
    let running = Running::start(consumer(work()).unwrap());
    let runs = |health: &ConsumerHealth| health.state == RunState::Running;
    soon(running.handle.health().wait_for(runs)).await.expect("it runs");
    let other = || handler("orders.handle", |_: Delivery, _: Key| async {}).build().unwrap();
    assert!(consumer(other()).is_err());
    running.finish().await;
    assert!(consumer(other()).is_ok());
}

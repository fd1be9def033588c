//! A dispatcher that serves all operations of a store.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::time::Duration;

use dlq_core::Filter;
use dlq_core::memory::{MemoryBroker, MemoryOutbox};
use dlq_core::outbox::{Dispatcher, Outboxes};
use dlq_core::store::{
    Actor, BoxStore, Cluster, OperationSpec, Operations as _, Sink as _, Target, Unfinished,
};
use dlq_letters::memory::MemoryStore;
use dlq_testkit::fixtures::letter;
use tokio::time::{sleep, timeout};

fn by() -> Actor {
    Actor::new("ana")
}

/// Starts operations over nothing, which end at once.
async fn idle(store: &BoxStore, count: u32) {
    for _ in 0..count {
        let none = Filter::new().with_consumer("nobody".to_owned());
        store.start(OperationSpec::replay(none), by()).await.unwrap();
    }
}

/// However many operations were started after it, one that runs is served.
#[tokio::test(start_paused = true)]
async fn an_operation_is_served_however_many_came_after_it() {
    let store = BoxStore::new(MemoryStore::new());
    store.put(vec![letter(1)]).await.unwrap();
    let clusters = || [Cluster::new("memory", "default")];
    let all = OperationSpec::replay(Filter::new()).target(Target::Origin, clusters());
    store.start(all, by()).await.unwrap();
    idle(&store, 300).await;
    let broker = MemoryBroker::new().stream("orders");
    let mut outboxes = Outboxes::new();
    outboxes.add(MemoryOutbox::new(&broker)).unwrap();
    let arrived = async {
        while broker.messages().is_empty() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    let arrived = timeout(Duration::from_secs(3600), arrived);
    let mut is_sent = false;
    let stop = async { is_sent = arrived.await.is_ok() };
    Dispatcher::new(store, outboxes).serve(stop, |_| {}).await;
    assert!(is_sent, "its letter is never sent");
}

#[tokio::test]
async fn one_that_has_not_ended_is_seen_however_many_came_after_it() {
    let store = BoxStore::new(MemoryStore::new());
    store.put(vec![letter(1)]).await.unwrap();
    let id = store.start(OperationSpec::replay(Filter::new()), by()).await.unwrap().id;
    let mut watched = Unfinished::default();
    for more in [0, 20, 150, 200] {
        idle(&store, more).await;
        // And by one who has just come.
        for unfinished in [&mut watched, &mut Unfinished::default()] {
            let open = unfinished.look(&store).await.unwrap();
            assert_eq!(open.iter().map(|open| open.id).collect::<Vec<_>>(), [id], "{more}");
        }
    }
}

//! A consumer that sends letters of its store back to their origin, and tells the store what became of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dlq_core::memory::{MemoryBroker, MemoryOutbox};
use dlq_core::outbox::Outboxes;
use dlq_core::store::{
    Actor, Cluster, ItemOutcome, Letters as _, OperationSpec, Operations as _, Target,
};
use dlq_core::{Delivery, Filter, Message, Status};
use dlq_letters::memory::MemoryStore;
use dlq_tower::consumer::Consumer;
use dlq_tower::handler::{HandlerError, handler};
use tokio::time::sleep;

use crate::support::{Running, clock, soon};

#[tokio::test(start_paused = true)]
async fn what_is_sent_back_and_handled_is_resolved_and_what_dies_again_failed() {
    let broker = MemoryBroker::new().stream("orders").clock(clock());
    let store = MemoryStore::new().clock(clock());
    let is_mended = Arc::new(AtomicBool::new(false));
    let mended = Arc::clone(&is_mended);
    let work = handler("orders.handle", move |delivery: Delivery| {
        let works = mended.load(Ordering::SeqCst)
            && delivery.message().payload().is_some_and(|payload| &payload[..] == b"good");
        async move { if works { Ok(()) } else { Err(HandlerError::msg("refused").permanent()) } }
    });
    let mut outboxes = Outboxes::new();
    outboxes.add(MemoryOutbox::new(&broker)).unwrap();
    let consumer = Consumer::builder(broker.source("orders.handle"))
        .handler(work.derived().build().unwrap())
        .dead_letters(store.clone())
        .outboxes(outboxes);
    let running = Running::start(consumer.build().unwrap());
    broker.publish(Message::new("orders.created", "good"));
    broker.publish(Message::new("orders.created", "bad"));
    let letters = |count: u64, status: Status| {
        let store = store.clone();
        async move {
            let filter = Filter::new().with_status(status);
            while store.count(filter.clone()).await.unwrap() < count {
                sleep(Duration::from_millis(100)).await;
            }
        }
    };
    soon(letters(2, Status::Pending)).await;
    is_mended.store(true, Ordering::SeqCst);
    let spec = OperationSpec::replay(Filter::new())
        .target(Target::Origin, [Cluster::new("memory", "default")]);
    let operation = store.start(spec, Actor::new("ana")).await.unwrap();
    soon(letters(1, Status::Resolved)).await;
    let ended = async {
        loop {
            let found = store.operation(operation.id).await.unwrap().unwrap();
            let counts = [ItemOutcome::Succeeded, ItemOutcome::FailedAgain]
                .map(|outcome| found.progress.with_outcome(outcome));
            if counts == [1, 1] {
                return;
            }
            sleep(Duration::from_millis(100)).await;
        }
    };
    soon(ended).await;
    let page = store.list(Filter::new().with_status(Status::Pending), Default::default()).await;
    let again = &page.unwrap().letters[0];
    assert_eq!((again.generation, again.state.replays), (1, 1), "it died again, and is counted");
    running.finish().await;
}

//! What a run leaves for those who watch: the processing audit and the gauges.

use std::collections::BTreeMap;
use std::time::Duration;

use dlq_core::memory::MemoryBroker;
use dlq_core::store::{Actor, Maintenance, Processed, Selection};
use dlq_core::{Delivery, ErrorClass, Message};
use dlq_letters::memory::MemoryStore;
use dlq_tower::consumer::{Consumer, ConsumerBuilder, DLQ_EVENTS_COUNT, DLQ_MESSAGES_QUARANTINED};
use dlq_tower::handler::handler;
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};

use crate::support::{Running, clock, policy, soon};

/// Refuses every second message.
async fn every_second(delivery: Delivery) -> Result<(), std::io::Error> {
    match delivery.message().payload() {
        Some(payload) if payload == "bad" => Err(std::io::Error::other("refused")),
        _ => Ok(()),
    }
}

fn consumer(broker: &MemoryBroker, store: &MemoryStore) -> ConsumerBuilder {
    let stack = handler("orders.handle", every_second)
        .classify(|_: &std::io::Error| ErrorClass::Permanent)
        .policy(policy(1, Duration::ZERO))
        .build()
        .unwrap();
    Consumer::builder(broker.source("orders"))
        .handler(stack)
        .dead_letters(store.clone())
        .clock(clock())
}

fn feed() -> MemoryBroker {
    let broker = MemoryBroker::new().stream("orders").clock(clock());
    for n in 0..20 {
        broker.publish(
            Message::new("orders", if n % 2 == 0 { "good" } else { "bad" })
                .with_id(format!("evt-{n}")),
        );
    }
    broker
}

#[tokio::test(start_paused = true)]
async fn the_processing_audit_is_complete_when_the_run_has_ended() {
    let (broker, store) = (feed(), MemoryStore::new());
    let running = Running::start(consumer(&broker, &store).processing_audit().build().unwrap());
    soon(broker.idle("orders")).await;
    running.finish().await;
    let rows = store.processed(100).await.unwrap();
    let with = |status| rows.iter().filter(|row| row.status == status).count();
    assert_eq!((rows.len(), with(Processed::Success), with(Processed::Dlq)), (20, 10, 10));
    assert!(rows.iter().all(|row| row.consumer == "orders.handle"));
}

#[tokio::test(start_paused = true)]
async fn without_being_asked_nothing_is_audited() {
    let (broker, store) = (feed(), MemoryStore::new());
    let running = Running::start(consumer(&broker, &store).build().unwrap());
    soon(broker.idle("orders")).await;
    running.finish().await;
    assert!(store.processed(100).await.unwrap().is_empty());
}

#[tokio::test]
async fn an_audit_without_a_store_is_refused() {
    let broker = feed();
    let stack = handler("orders.handle", every_second)
        .classify(|_: &std::io::Error| ErrorClass::Permanent)
        .build()
        .unwrap();
    let built = Consumer::builder(broker.source("orders"))
        .handler(stack)
        .sink(dlq_core::memory::MemorySink::new())
        .processing_audit()
        .build();
    assert!(built.unwrap_err().to_string().contains("no store to keep it"));
}

fn gauges(snapshotter: &Snapshotter) -> BTreeMap<String, f64> {
    let values = snapshotter.snapshot().into_vec().into_iter().filter_map(|(key, _, _, value)| {
        let DebugValue::Gauge(value) = value else { return None };
        Some((key.key().name().to_owned(), value.into_inner()))
    });
    values.collect()
}

#[test]
fn gauges_follow_the_store() {
    let installed = DebuggingRecorder::new();
    let snapshotter = installed.snapshotter();
    metrics::with_local_recorder(&installed, || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_time().start_paused(true).build().unwrap().block_on(async {
            let (broker, store) = (feed(), MemoryStore::new());
            let running = Running::start(consumer(&broker, &store).build().unwrap());
            soon(broker.idle("orders")).await;
            tokio::time::advance(Duration::from_secs(16)).await;
            tokio::task::yield_now().await;
            store
                .mark(Selection::all(), dlq_core::store::Mark::Quarantined, Actor::new("test"))
                .await
                .unwrap();
            let look = |wanted: (f64, f64)| {
                let gauges = gauges(&snapshotter);
                let found = (
                    gauges.get(DLQ_EVENTS_COUNT).copied(),
                    gauges.get(DLQ_MESSAGES_QUARANTINED).copied(),
                );
                found == (Some(wanted.0), Some(wanted.1))
            };
            soon(async {
                while !look((10.0, 10.0)) {
                    tokio::time::advance(Duration::from_secs(1)).await;
                }
            })
            .await;
            running.finish().await;
        });
    });
}

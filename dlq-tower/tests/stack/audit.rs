use std::sync::Arc;

use dlq_core::store::{Maintenance as _, Processed};
use dlq_letters::memory::MemoryStore;
use dlq_tower::audit::{AuditLayer, audit};
use dlq_tower::classify::ClassifyLayer;
use dlq_tower::dead_letter::DeadLetterLayer;
use dlq_tower::retry::RetryLayer;
use tokio_util::sync::CancellationToken;
use tower::ServiceBuilder;

use crate::support::*;

#[tokio::test(start_paused = true)]
async fn each_message_leaves_one_row() {
    let store = MemoryStore::new();
    let (layer, writer) = audit(store.clone());
    let stop = CancellationToken::new();
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(writer.run(stop.clone()));
    let script = [Act::Succeed, Act::Fail(down()), Act::Fail(bad())];
    let service = ServiceBuilder::new()
        .layer(layer.clock(clock()))
        .layer(DeadLetterLayer::new(store.clone()))
        .layer(RetryLayer::new(policy(5, secs(1))))
        .layer(ClassifyLayer::new(judge))
        .service(Handler::new(script));
    let _ = call(&service, delivery(1)).await.unwrap();
    let _ = call(&service, delivery(2)).await.unwrap();
    drop(service);
    stop.cancel();
    tasks.join_all().await;

    let rows = store.processed(10).await.unwrap();
    let found: Vec<_> =
        rows.iter().map(|row| (row.status, row.attempt, row.error.is_some())).collect();
    assert_eq!(found, [(Processed::Dlq, 2, true), (Processed::Success, 1, false)]);
    assert!(rows.iter().all(|row| row.subject == "payments.created"));
}

#[tokio::test(start_paused = true)]
async fn a_stop_writes_what_is_on_its_way() {
    let store = MemoryStore::new();
    let (layer, writer) = audit(store.clone());
    let service = ServiceBuilder::new()
        .layer(layer)
        .layer(DeadLetterLayer::new(store.clone()))
        .layer(RetryLayer::never())
        .layer(ClassifyLayer::new(judge))
        .service(Handler::new((0..1500).map(|_| Act::Succeed)));
    for n in 0..1500 {
        let _ = call(&service, delivery(n)).await.unwrap();
    }
    let stop = CancellationToken::new();
    stop.cancel();
    writer.run(stop).await;
    assert_eq!(store.processed(5000).await.unwrap().len(), 1500);
}

#[tokio::test(start_paused = true)]
async fn a_full_audit_holds_no_message_up() {
    let store = MemoryStore::new();
    let (layer, writer) = audit(store.clone());
    let writer = Arc::new(writer);
    let service = ServiceBuilder::new()
        .layer(layer)
        .layer(DeadLetterLayer::new(store))
        .layer(RetryLayer::never())
        .layer(ClassifyLayer::new(judge))
        .service(Handler::new((0..dlq_tower::audit::CAPACITY + 10).map(|_| Act::Succeed)));
    for n in 0..dlq_tower::audit::CAPACITY as u64 + 10 {
        let _ = call(&service, delivery(n)).await.unwrap();
    }
    drop(writer);
}

#[tokio::test(start_paused = true)]
async fn switched_off_it_notes_nothing() {
    let service = ServiceBuilder::new()
        .layer(AuditLayer::off())
        .layer(DeadLetterLayer::new(MemoryStore::new()))
        .layer(RetryLayer::never())
        .layer(ClassifyLayer::new(judge))
        .service(Handler::new([Act::Succeed]));
    let _ = call(&service, delivery(1)).await.unwrap();
}

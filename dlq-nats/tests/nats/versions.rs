//! Servers that are older than what we would like to use.

use std::time::{Duration, Instant};

use dlq_core::{
    Clock as _, DeliveredFrom, Disposition, RetryQueue as _, Settle as _, SystemClock,
    TransportErrorKind,
};
use dlq_nats::admin::{ConsumerPlan, Deployment, Finding, Severity};
use dlq_services::{Nats, Service, or_skip};

use crate::fixture::{STREAM, Server, billing, handle, next, number};
use crate::retry_queue::delayed_retry;

/// The last line before schedules.
pub(crate) const BEFORE_SCHEDULES: &str = "2.11.11";
/// The last line before consumers could have several filters.
const BEFORE_FILTERS: &str = "2.9.25";

pub(crate) async fn server(version: &str) -> Option<Server> {
    let program = tokio::task::block_in_place(|| Nats::installed(version));
    let program = or_skip(Service::Nats, program).ok()?;
    let server = Server::of(Nats::builder().ours().program(program)).await;
    assert_eq!(server.client.server_info().version, version);
    Some(server)
}

async fn finding(server: &Server) -> Finding {
    let mut deployment = Deployment::default();
    deployment.consumers.push(ConsumerPlan::new(STREAM, "billing"));
    let findings = deployment.check(&server.client).await.unwrap();
    let found = findings.iter().find(|found| found.setting == "version");
    found.unwrap_or_else(|| panic!("{findings:#?}")).clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retries_wait_without_schedules_where_the_server_has_none() {
    let Some(server) = server(BEFORE_SCHEDULES).await else { return };
    let queue = billing().retry_queue(&server.client).await.unwrap();
    assert!(!queue.has_schedules(), "this server has none");
    server.publish([1]).await;
    let mut source = server.source(&billing()).await;
    let (delivery, settle) = next(&mut source).await;
    let wait = Duration::from_secs(2);
    let began = Instant::now();
    let due = SystemClock.now().after(wait);
    queue.enqueue(delayed_retry(delivery, "billing", due)).await.unwrap();
    settle.settle(Disposition::Succeeded).await.unwrap();
    let stored = server.stored("DLQ_RETRY").await;
    assert_eq!(stored[0].subject, "retry.billing.orders.created", "it is no schedule");
    let record = handle(&mut source).await.unwrap();
    assert_eq!((record.delivered_from(), number(&record)), (DeliveredFrom::Retry, 1));
    assert!(began.elapsed() >= wait, "it came after {:?}", began.elapsed());
    // Opened again it is the same, and what would be better is said.
    assert!(!billing().retry_queue(&server.client).await.unwrap().has_schedules());
    let found = finding(&server).await;
    assert_eq!((found.severity, &*found.found), (Severity::Warning, BEFORE_SCHEDULES));
    assert!(found.want.contains("2.12") && found.advice.contains("`without_schedules`"), "{found}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_ignores_filters_is_refused_at_the_start() {
    let Some(server) = server(BEFORE_FILTERS).await else { return };
    let error = billing().subject("payments.>").source(&server.client).await.unwrap_err();
    assert_eq!(error.kind(), TransportErrorKind::InvalidConfig, "{error}");
    let text = error.to_string();
    for part in ["`filter_subjects`", BEFORE_FILTERS, "2.10 or later"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let stream = server.context.get_stream(STREAM).await.unwrap();
    assert!(stream.consumer_info("billing").await.is_err(), "none was made that hears everything");
    let found = finding(&server).await;
    assert_eq!((found.severity, &*found.found), (Severity::Error, BEFORE_FILTERS));
    assert!(found.want.contains("2.10") && found.advice.contains("several filters"), "{found}");
    // One filter works there.
    server.publish([1]).await;
    let mut source = server.source(&billing()).await;
    assert_eq!(number(&handle(&mut source).await.unwrap()), 1);
}

//! Records whose schedule fired while the server had no room for what is due: it tries them no more.

use std::time::Duration;

use async_nats::header::HeaderMap;
use async_nats::jetstream::stream;
use dlq_core::{
    Clock as _, DeliveredFrom, Disposition, RetryQueue, Settle, Source, SystemClock,
    TransportErrorKind,
};
use dlq_nats::NatsTransport;
use dlq_nats::admin::{Deployment, Finding, Severity};
use dlq_testkit::fixtures::ManualClock;
use tokio::time::{sleep, timeout};

use crate::fixture::{LEASE, PATIENCE, Server, available, billing, handle, next};
use crate::retry_queue::delayed_retry;

const HOUR: Duration = Duration::from_secs(60 * 60);
/// What an account may keep.
const ROOM: usize = 1024 * 1024;
const PIECE: usize = 16 * 1024;
/// Of a record, for which there is not the room of two of them.
const SIZE: usize = 4 * PIECE;

/// Headers of one name.
const VIA: [&str; 2] = ["a", "b"];

/// A process that has waited long enough for the server.
fn later() -> NatsTransport {
    let now = SystemClock.now().after(Duration::from_secs(120));
    billing().clock(ManualClock::starting_at(now).shared())
}

/// One whose account may keep so much.
async fn small() -> Server {
    let accounts = format!(
        "{{ SMALL: {{ jetstream: {{ max_file: {ROOM}, max_mem: 0 }}, users: [{{ user: app, password: app }}] }} }}"
    );
    Server::bare(&[("accounts", &accounts)], "app", "app").await
}

/// Uses up the room of the account, and says up to which message by messages of one piece.
async fn fill(server: &Server) -> u64 {
    let config = stream::Config {
        name: "FILL".to_owned(),
        subjects: vec!["fill".to_owned()],
        ..stream::Config::default()
    };
    server.context.create_stream(config).await.unwrap();
    let mut last = 0;
    loop {
        let sent = server.context.publish("fill", vec![b'x'; PIECE].into()).await.unwrap();
        match sent.await {
            Ok(ack) => last = ack.sequence,
            Err(error) => {
                assert!(error.to_string().contains("resource limits exceeded"), "{error}");
                return last;
            }
        }
    }
}

/// The server has tried all that was due when this returns.
async fn tried(server: &Server, times: usize) {
    let target = format!("retry.nobody.{times}");
    let mut headers = HeaderMap::new();
    headers.insert("Nats-Schedule", "@at 2020-01-01T00:00:00Z");
    headers.insert("Nats-Schedule-Target", target.as_str());
    let sent = server.context.publish_with_headers("retry-at.nobody.x", headers, "x".into());
    sent.await.unwrap().await.unwrap();
    let stream = server.context.get_stream("DLQ_RETRY").await.unwrap();
    let fired = async {
        while stream.get_last_raw_message_by_subject(&target).await.is_err() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, fired).await.expect("there is room for this one");
}

/// Fills the server, and then has records fall due that stay where they are: as many as there are messages in flight.
async fn stuck(server: &Server, consumer: &NatsTransport, records: usize) {
    let clock = ManualClock::new();
    let queue = consumer.clone().clock(clock.shared());
    let queue = queue.retry_queue(&server.client).await.unwrap();
    let mut source = server.source(consumer).await;
    let mut failed = Vec::new();
    for _ in 0..records {
        let mut headers = HeaderMap::new();
        VIA.iter().for_each(|via| headers.append("via", *via));
        let payload = vec![b'1'; SIZE].into();
        let sent = server.context.publish_with_headers("orders.created", headers, payload).await;
        sent.unwrap().await.unwrap();
        failed.push(next(&mut source).await);
    }
    let mut last = fill(server).await;
    let stream = server.context.get_stream("FILL").await.unwrap();
    for (times, (delivery, settle)) in failed.into_iter().enumerate() {
        // Room for one, and for what tells that it was tried.
        for _ in 0..SIZE / PIECE + usize::from(times == 0) {
            stream.delete_message(last).await.unwrap();
            last -= 1;
        }
        let due = delivery.message().published_at().unwrap().before(HOUR);
        clock.set(due.before(Duration::from_secs(1)));
        queue.enqueue(delayed_retry(delivery, "billing", due)).await.unwrap();
        settle.settle(Disposition::Succeeded).await.unwrap();
        tried(server, times).await;
    }
    source.close().await;
}

async fn wait(server: &Server, subject: &str) -> usize {
    let stored = server.stored("DLQ_RETRY").await;
    stored.iter().filter(|stored| stored.subject.starts_with(subject)).count()
}

/// What `check` says of it.
async fn overdue(server: &Server) -> Option<Finding> {
    let findings = Deployment::default().check(&server.client).await.unwrap();
    findings.into_iter().find(|found| {
        found.subject == "consumer `billing` of stream `DLQ_RETRY`"
            && (found.setting.as_str(), found.severity) == ("Nats-Schedule", Severity::Warning)
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_records_that_fell_due_while_there_was_no_room_come_once() {
    const FAR: usize = 20;
    if !available() {
        return;
    }
    let server = small().await;
    // Before them there are others, which wait for their time.
    let queue = billing().retry_queue(&server.client).await.unwrap();
    let mut source = server.source(&billing()).await;
    for number in 0..FAR as u32 {
        server.publish([number]).await;
        let (delivery, settle) = next(&mut source).await;
        let due = delivery.message().published_at().unwrap().after(HOUR);
        queue.enqueue(delayed_retry(delivery, "billing", due)).await.unwrap();
        settle.settle(Disposition::Succeeded).await.unwrap();
    }
    source.close().await;
    stuck(&server, &billing(), 3).await;
    server.context.delete_stream("FILL").await.unwrap();
    assert_eq!(wait(&server, "retry-at.billing.").await, FAR + 3, "the server has given up");
    let found = overdue(&server).await.expect("it is found");
    assert!(found.found.starts_with("3 records overdue, the first `retry-at.billing."), "{found}");
    // Two processes look after them.
    let mut sources = [server.source(&later()).await, server.source(&later()).await];
    let mut seen = Vec::new();
    while seen.len() < 3 {
        let [one, other] = &mut sources;
        let (delivery, settle) = tokio::select! {
            next = next(one) => next,
            next = next(other) => next,
        };
        assert_eq!((delivery.delivered_from(), delivery.attempt()), (DeliveredFrom::Retry, 2));
        assert_eq!(delivery.message().payload().unwrap().len(), SIZE);
        let headers = delivery.message().headers().iter();
        let via = headers.filter(|header| header.name == b"via"[..]);
        let via: Vec<_> = via.map(|header| header.value.clone().unwrap()).collect();
        assert_eq!(via, VIA, "all headers of one name");
        settle.settle(Disposition::Succeeded).await.unwrap();
        seen.push(delivery.origin().clone());
    }
    seen.dedup();
    assert_eq!(seen.len(), 3, "each is another one");
    assert_eq!(wait(&server, "retry-at.billing.").await, FAR, "the others wait for their time");
    let [one, other] = &mut sources;
    let again = async {
        tokio::select! {
            next = one.next() => next,
            next = other.next() => next,
        }
    };
    assert!(timeout(LEASE * 2, again).await.is_err(), "each comes once");
    assert_eq!(wait(&server, "retry.billing.").await, 0);
    assert_eq!(overdue(&server).await, None, "the others have time");
}

/// As after its consumer was given another name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g9_records_that_nobody_asks_for_are_told() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let queue = billing().retry_queue(&server.client).await.unwrap();
    let mut source = server.source(&billing()).await;
    server.publish([1]).await;
    let (delivery, settle) = next(&mut source).await;
    queue.enqueue(delayed_retry(delivery, "billing", SystemClock.now())).await.unwrap();
    settle.settle(Disposition::Succeeded).await.unwrap();
    source.close().await;
    let deserted = async || {
        let findings = Deployment::default().check(&server.client).await.unwrap();
        findings.into_iter().find(|found| {
            found.subject == "consumer `billing` of stream `DLQ_RETRY`"
                && found.setting == "num_waiting"
        })
    };
    // One that was given back counts as in flight until its lease ends.
    let found = async {
        loop {
            if let Some(found) = deserted().await {
                break found;
            }
        }
    };
    let found = timeout(PATIENCE, found).await.expect("it is found");
    assert_eq!((found.severity, &*found.found), (Severity::Warning, "0, while 1 records are due"));
    let mut source = server.source(&billing()).await;
    let held = next(&mut source).await;
    assert_eq!(deserted().await, None, "somebody has it");
    held.1.settle(Disposition::Succeeded).await.unwrap();
    assert_eq!(deserted().await, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g9_what_cannot_be_handed_out_for_want_of_room_is_told() {
    if !available() {
        return;
    }
    let server = small().await;
    stuck(&server, &billing(), 1).await;
    let mut source = server.source(&later()).await;
    let told = timeout(PATIENCE, source.next()).await.expect("there is no room to write it");
    let told = told.map(drop).unwrap_err();
    assert_eq!(told.kind(), TransportErrorKind::Unavailable);
    let text = told.to_string();
    for part in ["retry-at.billing.", "DLQ_RETRY", "resource limits exceeded", "max_file"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    server.context.delete_stream("FILL").await.unwrap();
    assert_eq!(handle(&mut source).await.unwrap().delivered_from(), DeliveredFrom::Retry);
}

//! JetStream under another name than `$JS.API`.

use std::time::Duration;

use async_nats::jetstream::consumer::pull;
use async_nats::jetstream::{self, Context, stream};
use dlq_core::idempotency::{Idempotency as _, IdempotencyClaim};
use dlq_core::store::Receipt;
use dlq_core::{CrashMarks as _, Sink as _};
use dlq_nats::admin::{ConsumerPlan, Deployment};
use dlq_nats::{
    DlqStream, EventRouter, IdempotencyBucket, NatsCrashMarks, NatsIdempotency, NatsSink,
};
use dlq_testkit::fixtures::letter;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use crate::fixture::{PATIENCE, STREAM, Server, available, billing, handle, number};

/// An account without JetStream, which uses that of another one as `hub.API`.
const ACCOUNTS: &str = r#"{
    HUB: {
        jetstream: enabled,
        users: [ { user: root, password: root } ],
        exports: [
            { service: "$JS.API.>", response_type: stream }, { service: "$JS.ACK.>" },
            { service: "dlq.>" }, { service: "dlq-aside.>" },
            { service: "retry.>" }, { service: "retry-at.>" }, { service: "retry-aside.>" },
            { stream: "$JS.EVENT.ADVISORY.>" },
        ]
    },
    LEAF: {
        users: [ { user: app, password: app } ],
        imports: [
            { service: { account: HUB, subject: "$JS.API.>" }, to: "hub.API.>" },
            { service: { account: HUB, subject: "$JS.ACK.>" } },
            { service: { account: HUB, subject: "dlq.>" } },
            { service: { account: HUB, subject: "dlq-aside.>" } },
            { service: { account: HUB, subject: "retry.>" } },
            { service: { account: HUB, subject: "retry-at.>" } },
            { service: { account: HUB, subject: "retry-aside.>" } },
            { stream: { account: HUB, subject: "$JS.EVENT.ADVISORY.>" } },
        ]
    },
}"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn buckets_are_found_in_a_domain() {
    if !available() {
        return;
    }
    let store = tempfile::tempdir().unwrap();
    // The later of two settings counts.
    let domain = format!("{{ store_dir: \"{}\", domain: hub }}", store.path().display());
    let server = Server::with("jetstream", &domain).await;
    let hub = jetstream::with_domain(server.client.clone(), "hub");
    let keys = NatsIdempotency::open(&hub, IdempotencyBucket::new()).await.unwrap();
    for _ in 0..2 {
        let claim = keys.claim("billing".into(), "a".into(), Duration::from_millis(1)).await;
        let IdempotencyClaim::New { token, .. } = claim.unwrap() else { panic!("it is new") };
        assert!(keys.complete(token, Duration::ZERO).await.unwrap());
        sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(keys.purge(9).await.unwrap(), 1);
    let marks = NatsCrashMarks::open(&hub, "marks", 1).await.unwrap();
    assert_eq!(marks.begin(letter(1).id).await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_goes_through_the_api_prefix() {
    if !available() {
        return;
    }
    let server = Server::bare(&[("accounts", ACCOUNTS)], "root", "root").await;
    let app = server.connect("app", "app").await;
    let hub: Context = jetstream::with_prefix(app.clone(), "hub.API");
    let usual = jetstream::new(app).query_account().await;
    assert!(usual.is_err(), "the usual name leads nowhere, else this test proves nothing");

    let mut deployment = Deployment::default();
    deployment.consumers.push(ConsumerPlan::new(STREAM, "billing"));
    deployment.consumers[0].ack_wait = Some(crate::fixture::LEASE);
    deployment.consumers[0].filter_subjects = Some(vec!["orders.>".to_owned()]);
    deployment.create(&hub).await.unwrap();
    let findings = deployment.check(&hub).await.unwrap();
    assert!(findings.iter().all(|found| found.setting == "ack_wait"), "{findings:#?}");

    server.publish([7]).await;
    let mut source = billing().source(&hub).await.unwrap();
    let delivery = handle(&mut source).await.unwrap();
    assert_eq!(number(&delivery), 7);
    drop(source);
    let _retry_queue = billing().retry_queue(&hub).await.unwrap();
    let sink = NatsSink::open(&hub, DlqStream::new()).await.unwrap();
    assert_eq!(sink.put(vec![letter(1)]).await.unwrap(), [Receipt::Stored]);
    // A consumer that exhausts, and nobody pulls any more: the sweep has to poke it.
    let config = pull::Config {
        durable_name: Some("mail".to_owned()),
        max_deliver: 2,
        ack_wait: Duration::from_millis(200),
        ..pull::Config::default()
    };
    let orders: stream::Stream = server.context.get_stream(STREAM).await.unwrap();
    let mail = orders.create_consumer(config).await.unwrap();
    let router = EventRouter::builder(hub).sweep_every(Duration::from_millis(200));
    let router = router.open().await.unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let run = router.run(async { _ = stopped.await });
    let exhausting = async {
        for _ in 0..2 {
            let mut batch = mail.fetch().max_messages(1).messages().await.unwrap();
            while futures_util::StreamExt::next(&mut batch).await.is_none() {
                batch = mail.fetch().max_messages(1).messages().await.unwrap();
            }
        }
        let routed = async {
            while server.count("DLQ").await < 2 {
                sleep(Duration::from_millis(50)).await;
            }
        };
        timeout(PATIENCE, routed).await.expect("the sweep makes the server say it");
        stop.send(()).unwrap();
    };
    let (report, ()) = tokio::join!(run, exhausting);
    assert!(report.routed == 1 && report.pokes > 0, "{report}");
}

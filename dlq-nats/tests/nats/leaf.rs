//! A leaf node whose streams take the same subjects as those of its hub.

use std::future::pending;
use std::net::TcpListener;
use std::time::Duration;

use async_nats::jetstream::{self, Context, stream};
use dlq_core::{Filter, Message, Sink as _, StoreErrorKind};
use dlq_nats::{DlqStream, NatsLetters, NatsSink};
use dlq_services::Service;
use dlq_testkit::fixtures::{letter, letter_of};
use tempfile::TempDir;
use tokio::time::{sleep, timeout};

use crate::fixture::{PATIENCE, STREAM, Server, available, read};
use crate::letters::{bury_at, dead, to_origin};

/// A server of this JetStream domain.
async fn server(domain: &str, leafnodes: &str, store: &TempDir) -> Server {
    let jetstream = format!("{{ store_dir: \"{}\", domain: {domain} }}", store.path().display());
    let builder = Service::Nats.builder().ours();
    Server::of(builder.setting("jetstream", jetstream).setting("leafnodes", leafnodes)).await
}

/// A hub and its leaf, which keep what they have in these folders; and the hub's JetStream as a client of the leaf has it.
async fn linked(one: &TempDir, two: &TempDir) -> (Server, Server, Context) {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let hub = server("hub", &format!("{{ listen: \"127.0.0.1:{port}\" }}"), one).await;
    let remotes = format!("{{ remotes: [ {{ url: \"nats-leaf://127.0.0.1:{port}\" }} ] }}");
    let leaf = server("leaf", &remotes, two).await;
    let at_hub: Context = jetstream::with_domain(leaf.client.clone(), "hub");
    let linked = async {
        while at_hub.query_account().await.is_err() {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(PATIENCE, linked).await.expect("they are connected");
    (hub, leaf, at_hub)
}

/// The leaf answers first, and its stream is not the one that is meant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_what_a_stream_of_another_domain_refuses_is_not_refused() {
    if !available() {
        return;
    }
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (hub, leaf, at_hub) = linked(&one, &two).await;
    let letters = bury_at(&at_hub, DlqStream::new(), dead(0..20)).await;
    leaf.context.delete_stream(STREAM).await.unwrap();
    let other = stream::Config {
        name: "AUDIT".to_owned(),
        subjects: vec!["orders.>".to_owned(), "dlq.>".to_owned()],
        ..stream::Config::default()
    };
    leaf.context.create_stream(other).await.unwrap();
    let before = hub.count(STREAM).await;
    let report = to_origin(&letters, 1).run(pending(), |_| {}).await.unwrap();
    assert_eq!((report.sent, report.is_complete()), (20, true), "{report}");
    assert_eq!(hub.count(STREAM).await - before, 20);
    // By itself, too.
    let sink = NatsSink::open(&at_hub, DlqStream::new()).await.unwrap();
    let most = leaf.client.max_payload();
    let message = Message::new("orders.created", "x".repeat(most - 64_000));
    let large = letter_of(message.with_header("long", "y".repeat(60_000)), 3);
    sink.put(vec![letter(2), large]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_a_letter_is_confirmed_by_its_own_domain_only() {
    if !available() {
        return;
    }
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (hub, leaf, at_hub) = linked(&one, &two).await;

    let at_leaf = NatsSink::open(&leaf.client, DlqStream::new()).await.unwrap();
    at_leaf.put(vec![letter(1)]).await.unwrap();
    let sink = NatsSink::open(&at_hub, DlqStream::new()).await.unwrap();
    // Both keep it from now on, and the leaf is faster. What is in parts names where they stand.
    let heard = async {
        while hub.count("DLQ").await == 0 || leaf.count("DLQ").await < 2 {
            sink.put(vec![letter(2)]).await.unwrap();
        }
    };
    timeout(PATIENCE, heard).await.expect("both hear of it");
    let letters = NatsLetters::new(&at_hub, DlqStream::new());
    let most = leaf.client.max_payload();
    for (payload, header) in [(1, 64_000), (most - 64_000, 60_000)] {
        let message = Message::new("orders.created", "x".repeat(payload));
        let large = letter_of(message.with_header("long", "y".repeat(header)), 3 + header as u64);
        sink.put(vec![large.clone()]).await.unwrap();
        let read = read(&letters, &Filter::new().with_id(large.id)).await.unwrap();
        assert_eq!(read[0].letter.message, large.message);
    }

    hub.running().kill().unwrap();
    let error = sink.put(vec![letter(4)]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    let text = error.to_string();
    assert!(text.contains("domain `leaf`") && text.contains("domain `hub`"), "{text}");
    hub.kill_and_restart().await;
    let again = async { while sink.put(vec![letter(4)]).await.is_err() {} };
    timeout(PATIENCE, again).await.expect("it is taken when the hub is back");
}

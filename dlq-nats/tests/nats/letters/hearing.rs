//! Who hears what is sent back, and what is lost where nobody does.

use std::future::pending;

use async_nats::jetstream::consumer::pull;
use async_nats::jetstream::stream::{Config, Republish, RetentionPolicy, Source};
use dlq_core::store::Letters;
use dlq_core::{DeadLetter, Filter, Message, OperationId, Origin, Source as _, Status, Timestamp};
use dlq_nats::{DlqStream, NatsLetters, NatsReplay, NatsTarget, ReplayOutcome, RetryStream};
use tokio::time::timeout;

use super::{bury, dead, to_origin, users};
use crate::fixture::{PATIENCE, STREAM, Server, available, billing, now};
use crate::versions;

fn config(name: &str) -> Config {
    let subjects = vec![format!("{}.>", name.to_lowercase())];
    Config { name: name.to_owned(), subjects, ..Config::default() }
}

fn consumer(name: &str, filter: &str) -> pull::Config {
    pull::Config {
        durable_name: Some(name.to_owned()),
        filter_subject: filter.to_owned(),
        ..pull::Config::default()
    }
}

/// A letter of a message that stood on this stream.
fn born_at(stream: &str, subject: &str, number: u32) -> DeadLetter {
    let mut letter = dead([number]).remove(0);
    letter.origin = Origin::new("nats", stream, letter.origin.position().clone());
    let payload = letter.message.payload().unwrap().clone();
    letter.message = Message::new(subject, payload);
    letter
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g9_what_nobody_wants_is_not_sent_to_a_stream_that_would_forget_it() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let events = Config { retention: RetentionPolicy::Interest, ..config("EVENTS") };
    let events = server.context.create_stream(events).await.unwrap();
    // Somebody wants something else.
    events.create_consumer(consumer("audit", "events.b")).await.unwrap();
    let letters = [born_at("EVENTS", "events.a", 1), born_at("EVENTS", "events.b", 2)];
    let letters = bury(&server, DlqStream::new(), letters.to_vec()).await;
    let replay = to_origin(&letters, 1);
    let plan = replay.plan().await.unwrap();
    let says = |why: &str| plan.notes.iter().any(|note| note.contains(why));
    assert!(says("none of them wants `events.a`"), "{:?}", plan.notes);
    let mut failed = Vec::new();
    let report = replay.run(pending(), |replayed| {
        if let ReplayOutcome::Failed(error) = &replayed.outcome {
            failed.push(error.to_string());
        }
    });
    let report = report.await.unwrap();
    assert_eq!((report.sent, report.failed), (1, 1), "{report}");
    assert!(failed[0].contains("none of them wants `events.a`"), "{failed:?}");
    let sent = Filter::new().with_status(Status::Sent);
    assert_eq!(now(&letters).count(sent).await.unwrap(), 1, "it is not marked");
    assert_eq!(server.count("EVENTS").await, 1);
    // Whoever comes now has it.
    events.create_consumer(consumer("mail", "events.a")).await.unwrap();
    let report = to_origin(&letters, 2).run(pending(), |_| {}).await.unwrap();
    assert_eq!((report.sent, report.failed), (1, 0), "{report}");
    assert_eq!(server.count("EVENTS").await, 2);
}

/// A stream that forgets what nobody wants, another one that copies a part of it, and letters of both parts.
async fn copied(server: &Server) -> NatsLetters {
    let events = Config { retention: RetentionPolicy::Interest, ..config("EVENTS") };
    server.context.create_stream(events).await.unwrap();
    let source = Source {
        name: "EVENTS".to_owned(),
        filter_subject: Some("events.a".to_owned()),
        ..Source::default()
    };
    let copy = Config { name: "COPY".to_owned(), sources: Some(vec![source]), ..Config::default() };
    server.context.create_stream(copy).await.unwrap();
    let letters = [born_at("EVENTS", "events.a", 1), born_at("EVENTS", "events.b", 2)];
    bury(server, DlqStream::new(), letters.to_vec()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_stream_copies_is_wanted_though_no_consumer_is_seen() {
    let Some(server) = versions::server(versions::BEFORE_SCHEDULES).await else { return };
    let letters = copied(&server).await;
    let report = to_origin(&letters, 1).run(pending(), |_| {}).await.unwrap();
    assert_eq!((report.sent, report.failed), (1, 1), "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_consumer_by_which_another_stream_copies_is_understood() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let letters = copied(&server).await;
    let listed = async {
        let list = || server.client.request("$JS.API.CONSUMER.LIST.EVENTS", "".into());
        while !String::from_utf8_lossy(&list().await.unwrap().payload).contains("flow_control") {}
    };
    timeout(PATIENCE, listed).await.expect("the server has made one");
    let replay = to_origin(&letters, 1);
    let _ = replay.plan().await.unwrap();
    let report = replay.run(pending(), |_| {}).await.unwrap();
    assert_eq!((report.sent, report.failed), (1, 1), "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_says_who_hears_letters_by_another_stream_and_which_cannot_come() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let source = || Source { name: STREAM.to_owned(), ..Source::default() };
    let mirror = Config { name: "MIRROR".to_owned(), mirror: Some(source()), ..Config::default() };
    let filtered = Source { filter_subject: Some("orders.other".to_owned()), ..source() };
    let other =
        Config { name: "OTHER".to_owned(), sources: Some(vec![filtered]), ..Config::default() };
    let copy = Config { sources: Some(vec![source()]), ..config("COPY") };
    let republish = Republish {
        source: "orders.>".to_owned(),
        destination: "copied.>".to_owned(),
        headers_only: false,
    };
    let orders = Config { republish: Some(republish), ..config(STREAM) };
    server.context.update_stream(orders).await.unwrap();
    for config in [mirror, other, copy] {
        server.context.create_stream(config).await.unwrap();
    }
    let mut all = dead([1]);
    all.push(born_at("MIRROR", "orders.created", 2));
    let letters = bury(&server, DlqStream::new(), all).await;
    let replay = to_origin(&letters, 1);
    let plan = replay.plan().await.unwrap();
    let said = |why: &str| plan.notes.iter().filter(|note| note.contains(why)).count();
    for (why, times) in [
        ("stream `COPY` copies what comes to `ORDERS`", 1),
        ("stream `MIRROR` copies what comes to `ORDERS`", 1),
        ("stream `OTHER`", 0),
        ("stream `ORDERS` publishes what comes to it again, to `copied.>`", 1),
        ("stream `MIRROR` takes no messages on `orders.created` itself", 1),
        ("stream `ORDERS` takes no messages", 0),
    ] {
        assert_eq!(said(why), times, "{why}: {:?}", plan.notes);
    }
    let report = replay.run(pending(), |_| {}).await.unwrap();
    assert_eq!((report.sent, report.failed), (1, 1), "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_says_that_parts_of_large_letters_may_not_be_written() {
    if !available() {
        return;
    }
    let may = "{ publish: { deny: [\"retry-aside.>\"] } }";
    let server = Server::bare(&[("authorization", &users(may))], "root", "root").await;
    server.source(&billing()).await.close().await;
    let app = server.connect("app", "app").await;
    let target = NatsTarget::Handler(RetryStream::new());
    let operation = OperationId::of("ana", Timestamp::EPOCH, 1);
    let mut large = dead([2]).remove(0);
    let payload = vec![b'x'; server.client.max_payload() - 200];
    large.message = large.message.with_payload(Some(payload.into()));
    for (letter, is_told) in [(dead([1]).remove(0), false), (large, true)] {
        bury(&server, DlqStream::new(), vec![letter]).await;
        let letters = NatsLetters::new(&app, DlqStream::new());
        let replay = NatsReplay::new(&letters, Filter::new(), target.clone(), operation);
        let notes = replay.plan().await.unwrap().notes;
        let found = notes.iter().any(|note| note.contains("`retry-aside.billing.>`"));
        assert_eq!(found, is_told, "{notes:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_says_that_it_cannot_be_looked_what_was_sent() {
    if !available() {
        return;
    }
    let may = "{ publish: { deny: [\"$JS.API.CONSUMER.CREATE.ORDERS.>\"] } }";
    let server = Server::bare(&[("authorization", &users(may))], "root", "root").await;
    bury(&server, DlqStream::new(), dead([1])).await;
    let app = server.connect("app", "app").await;
    let plan = to_origin(&NatsLetters::new(&app, DlqStream::new()), 1).plan().await.unwrap();
    let says = |note: &String| note.contains("`$JS.API.CONSUMER.CREATE.ORDERS.>`");
    assert!(plan.notes.iter().any(says), "{:?}", plan.notes);
}

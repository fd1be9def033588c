//! Which letters are sent, how often, and what is said of it.

use std::future::pending;
use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, pull};
use async_nats::jetstream::kv;
use dlq_core::{Filter, Sink, StoreErrorKind};
use dlq_nats::{DlqStream, NatsSink, NatsTarget, ReplayOutcome, Skipped};
use tokio_util::sync::CancellationToken;

use super::{assert_once, bury, dead, forget_fast, sent_back, to_origin, window_passed};
use crate::fixture::{STREAM, Server, available, read};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_that_is_slower_than_its_lease_keeps_it() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    forget_fast(&server).await;
    let letters = bury(&server, DlqStream::new(), dead(0..30)).await;
    // Ten seconds, with four seconds of lease; somebody else waits for it all the time.
    let slow = to_origin(&letters, 1).lease(Duration::from_secs(4)).rate(3);
    let other = to_origin(&letters, 2);
    let begun = CancellationToken::new();
    let slowly = slow.run(pending(), |_| begun.cancel());
    let waiting = async {
        begun.cancelled().await;
        other.run(pending(), |_| {}).await
    };
    let (slowly, waiting) = tokio::join!(slowly, waiting);
    let (slowly, waiting) = (slowly.unwrap(), waiting.unwrap());
    assert_eq!(slowly.sent + waiting.sent, 30, "{slowly}; {waiting}");
    assert!(slowly.sent > 15, "it was not taken over after one lease: {slowly}; {waiting}");
    assert_once(&server, 0..30).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_of_a_death_are_sent_once_also_when_the_first_has_gone() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    forget_fast(&server).await;
    let stream = DlqStream::new().duplicate_window(Duration::from_millis(100));
    let letters = bury(&server, stream.clone(), dead([1])).await;
    let sink = NatsSink::open(&server.client, stream).await.unwrap();
    while server.count("DLQ").await < 2 {
        sink.put(dead([1])).await.unwrap();
    }
    assert_eq!(to_origin(&letters, 1).run(pending(), |_| {}).await.unwrap().sent, 1);
    server.context.get_stream("DLQ").await.unwrap().delete_message(1).await.unwrap();
    window_passed(&server).await;
    let report = to_origin(&letters, 2).run(pending(), |_| {}).await.unwrap();
    assert_eq!((report.sent, report.skipped[&Skipped::Sent]), (0, 1));
    assert_once(&server, [1]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn payloads_of_any_size_are_sent_byte_for_byte() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let mut dead = dead(0..300);
    let mut wanted = Vec::new();
    for (number, letter) in dead.iter_mut().enumerate() {
        let size = [10, 1_024, 1_025, 20_000][number % 4];
        wanted.push(format!("{number:0size$}"));
        letter.message = letter.message.clone().with_payload(Some(wanted[number].clone().into()));
    }
    let letters = bury(&server, DlqStream::new(), dead).await;
    let read: Vec<_> = read(&letters, &Filter::new()).await.unwrap();
    assert!(read.is_sorted_by_key(|read| read.sequence), "in the order of the stream");
    let mut payloads: Vec<_> = read.iter().map(|r| r.letter.message.payload().unwrap()).collect();
    payloads.sort_by_key(|payload| std::str::from_utf8(payload).unwrap().parse::<u32>().unwrap());
    assert!(payloads.into_iter().eq(wanted.iter().map(String::as_bytes)), "byte for byte");
    let report = to_origin(&letters, 1).run(pending(), |_| {}).await.unwrap();
    assert_eq!((report.sent, report.is_complete()), (300, true));
    let mut sent = sent_back(&server).await;
    assert!(wanted.iter().all(|payload| sent.remove(payload) == Some(1)) && sent.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_letter_does_not_stop_the_others() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let mut dead = dead(0..6);
    dead[1].message = dead[1].message.clone().with_key("customer-7");
    dead[2].origin = dlq_testkit::fixtures::origin(2);
    dead[3].message = dlq_core::Message::new("orders..broken", "3");
    dead[4].message = dlq_core::Message::new("nobody.listens", "4");
    let big = vec![b'x'; server.client.max_payload() - 10];
    dead[5].message = dead[5].message.clone().with_payload(Some(big.into()));
    let letters = bury(&server, DlqStream::new(), dead.clone()).await;
    let (mut failed, mut skipped) = (Vec::new(), Vec::new());
    let replay = to_origin(&letters, 1);
    let notes = replay.plan().await.unwrap().notes;
    let says = |note: &String| note.starts_with("1 of the letters will fail: they have a key");
    assert!(notes.iter().any(says), "{notes:?}");
    let report = replay.run(pending(), |replayed| {
        let number = dead.iter().position(|letter| letter.id == replayed.id).unwrap();
        match &replayed.outcome {
            ReplayOutcome::Failed(error) => failed.push((number, error.to_string())),
            ReplayOutcome::Skipped(why) => skipped.push((number, *why)),
            _ => {}
        }
    });
    let report = report.await.unwrap();
    assert_eq!((report.sent, report.failed, report.is_complete()), (1, 4, true), "{failed:?}");
    assert_eq!(skipped, [(2, Skipped::NoOrigin)]);
    failed.sort();
    let why: Vec<&str> = failed.iter().map(|(_, why)| why.as_str()).collect();
    assert!(why[0].contains("key_header"), "{why:?}");
    assert!(why[1].contains("orders..broken"), "{why:?}");
    assert!(why[2].contains("stream"), "{why:?}");
    assert!(why[3].contains("--to handler") && why[3].contains("`max_payload`"), "{why:?}");
    assert_once(&server, [0]).await;
    // What failed was not marked.
    let letters = letters.key_header("key");
    let report = to_origin(&letters, 2).run(pending(), |_| {}).await.unwrap();
    assert_eq!((report.sent, report.failed), (1, 3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_says_what_would_be_done_and_who_will_hear_it() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let stream = server.context.get_stream(STREAM).await.unwrap();
    let filters =
        [("billing", "orders.>"), ("shipping", "orders.*"), ("returns", "orders.returned.>")];
    for (name, filter) in filters {
        let config = pull::Config {
            durable_name: Some(name.to_owned()),
            filter_subject: filter.to_owned(),
            ack_policy: AckPolicy::Explicit,
            ..pull::Config::default()
        };
        stream.create_consumer(config).await.unwrap();
    }
    let mut dead = dead(0..12);
    dead[11].state.replays = 10;
    let letters = bury(&server, DlqStream::new(), dead).await;
    let plan = to_origin(&letters, 1).plan().await.unwrap();
    assert_eq!((plan.letters, plan.sample.len()), (11, 10));
    assert_eq!(plan.sample[0].payload_size, Some(1));
    assert_eq!(plan.skipped[&Skipped::MaxReplays], 1);
    let subscribers: Vec<&str> =
        plan.subscribers.iter().map(|subscriber| subscriber.consumer.as_str()).collect();
    assert_eq!(subscribers, ["shipping"]);
    assert!(plan.notes.is_empty(), "{:?}", plan.notes);
    assert!(sent_back(&server).await.is_empty());
    assert!(server.context.get_key_value("DLQ_REPLAYS").await.is_err(), "nothing was changed");
    forget_fast(&server).await;
    let plan = to_origin(&letters, 1).plan().await.unwrap();
    assert!(plan.notes[0].contains("duplicate window"), "{:?}", plan.notes);
    for subject in ["orders.*", "nobody.listens", "dlq.orders.created"] {
        let operation = dlq_core::OperationId::of("ana", dlq_core::Timestamp::EPOCH, 9);
        let target = NatsTarget::Subject(subject.to_owned());
        let replay = dlq_nats::NatsReplay::new(&letters, Filter::new(), target, operation);
        let refused = replay.plan().await.unwrap_err();
        assert_eq!(refused.kind(), StoreErrorKind::Refused);
        assert!(refused.to_string().contains(subject), "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_is_of_no_use_for_a_stream_that_was_created_again() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let letters = bury(&server, DlqStream::new(), dead(0..5)).await;
    let replay = to_origin(&letters, 1);
    assert_eq!(replay.plan().await.unwrap().letters, 5);
    // The numbers of another stream are not those that were shown.
    server.context.delete_stream("DLQ").await.unwrap();
    bury(&server, DlqStream::new(), dead(30..40)).await;
    let refused = replay.run(pending(), |_| {}).await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Refused);
    assert!(refused.to_string().contains("created again"), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ledger_that_would_forget_what_was_sent_is_refused() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let letters = bury(&server, DlqStream::new(), dead(0..3)).await;
    let config = kv::Config {
        bucket: "DLQ_REPLAYS".to_owned(),
        max_age: Duration::from_secs(3600),
        ..kv::Config::default()
    };
    server.context.create_key_value(config).await.unwrap();
    let error = to_origin(&letters, 1).run(pending(), |_| {}).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::InvalidConfig);
    let text = error.to_string();
    assert!(text.contains("bucket `DLQ_REPLAYS`") && text.contains("`max_age` is 3600s"), "{text}");
    assert!(sent_back(&server).await.is_empty());
}

//! Who hears what is sent back, and what is lost where nobody does.

use std::future::pending;

use async_nats::jetstream::consumer::pull;
use async_nats::jetstream::stream::{Config, RetentionPolicy, Source};
use dlq_core::store::Letters;
use dlq_core::{DeadLetter, Filter, Message, Origin, Status};
use dlq_nats::{DlqStream, ReplayOutcome};

use super::{bury, dead, to_origin};
use crate::fixture::{Server, available};

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
    letter.origin = Origin::new("nats", stream, letter.origin.position());
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
    assert_eq!(letters.count(sent).await.unwrap(), 1, "it is not marked");
    assert_eq!(server.count("EVENTS").await, 1);
    // Whoever comes now has it.
    events.create_consumer(consumer("mail", "events.a")).await.unwrap();
    let report = to_origin(&letters, 2).run(pending(), |_| {}).await.unwrap();
    assert_eq!((report.sent, report.failed), (1, 0), "{report}");
    assert_eq!(server.count("EVENTS").await, 2);
}

/// No consumer of a stream that is copied is seen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_stream_copies_is_wanted() {
    if !available() {
        return;
    }
    let server = Server::start().await;
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
    let letters = bury(&server, DlqStream::new(), letters.to_vec()).await;
    let report = to_origin(&letters, 1).run(pending(), |_| {}).await.unwrap();
    assert_eq!((report.sent, report.failed), (1, 1), "{report}");
}

//! The letters of a stream as they come, for the store beside it.

use std::collections::BTreeSet;
use std::time::Duration;

use async_nats::connection::State;
use dlq_core::log::{Content, Entries as _, Entry, Log as _};
use dlq_core::{LetterId, Message, Sink as _, StoreErrorKind};
use dlq_nats::{DlqStream, NatsEntries, NatsLetters, NatsSink};
use dlq_testkit::fixtures::{letter, letter_of};
use tokio::time::{sleep, timeout};

use crate::fixture::{PATIENCE, Server, available};
use crate::letters::users;

const STORE: &str = "sqlite:///dlq.db";

const LEASE: Duration = Duration::from_secs(5);

fn letters(server: &Server) -> NatsLetters {
    NatsLetters::new(&server.client, DlqStream::new())
}

async fn open(server: &Server) -> Result<NatsEntries, dlq_core::StoreError> {
    letters(server).follow(STORE.to_owned(), LEASE).await
}

async fn next(feed: &mut NatsEntries, limit: usize) -> Vec<Entry> {
    timeout(PATIENCE, feed.next(limit)).await.expect("letters come").unwrap()
}

fn ids(fed: &[Entry]) -> BTreeSet<LetterId> {
    let id = |fed: &Entry| match &fed.content {
        Content::Letter(letter) => Some(letter.id),
        _ => None,
    };
    fed.iter().filter_map(id).collect()
}

async fn with_letters(count: u64) -> (Server, NatsSink) {
    let server = Server::start().await;
    let sink = NatsSink::open(&server.client, DlqStream::new()).await.unwrap();
    sink.put((0..count).map(letter).collect()).await.unwrap();
    (server, sink)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_who_may_not_read_from_the_leader_is_told() {
    const READS: &str = "$JS.API.STREAM.MSG.GET.DLQ";
    if !available() {
        return;
    }
    let may = format!("{{ publish: {{ deny: [\"{READS}\"] }} }}");
    let server = Server::bare(&[("authorization", &users(&may))], "root", "root").await;
    NatsSink::open(&server.client, DlqStream::new()).await.unwrap();
    let app = server.connect("app", "app").await;
    let letters = NatsLetters::new(&app, DlqStream::new());
    let opened = letters.follow(STORE.to_owned(), LEASE).await;
    let refused = opened.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::InvalidConfig, "{refused}");
    assert!(refused.to_string().contains(READS), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_confirmation_that_no_server_hears_is_an_error() {
    if !available() {
        return;
    }
    let (server, _) = with_letters(3).await;
    let mut feed = open(&server).await.unwrap();
    assert_ne!(next(&mut feed, 3).await.len(), 0);
    tokio::task::block_in_place(|| server.running().kill().unwrap());
    let noticed = async {
        while server.client.connection_state() == State::Connected {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, noticed).await.expect("the client notices");
    let confirmed = timeout(PATIENCE, feed.confirm()).await.expect("it is not waited for for ever");
    let error = confirmed.unwrap_err();
    assert!(error.is_transient(), "{error}");
    assert!(error.to_string().contains("there is no connection to the server"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_mark_comes_back_with_a_consumer_that_was_deleted() {
    if !available() {
        return;
    }
    let (server, sink) = with_letters(2).await;
    let mut feed = open(&server).await.unwrap();
    next(&mut feed, 10).await;
    feed.confirm().await.unwrap();
    // Somebody deletes the consumer: it is created again, with its mark, and nothing new is missed.
    let dlq = server.context.get_stream("DLQ").await.unwrap();
    dlq.delete_consumer("dlq-ingest").await.unwrap();
    sink.put(vec![letter(7)]).await.unwrap();
    while !ids(&next(&mut feed, 10).await).contains(&letter(7).id) {
        feed.confirm().await.unwrap();
    }
    feed.confirm().await.unwrap();
    let marks = letters(&server).marks().await.unwrap();
    assert_eq!(marks[0].store, STORE);
    let none = NatsLetters::new(&server.client, DlqStream::new().name("NONE"));
    assert_eq!(none.marks().await.unwrap_err().kind(), StoreErrorKind::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_letter_of_any_size_is_whole_and_one_with_a_part_missing_is_told() {
    if !available() {
        return;
    }
    let (server, sink) = with_letters(1).await;
    let large = |n: u64| letter_of(Message::new("orders.large", vec![b'x'; 1024 * 1024 - 10]), n);
    sink.put(vec![large(5)]).await.unwrap();
    sink.put(vec![large(6)]).await.unwrap();
    // The first part of the second one.
    let mut dlq = server.context.get_stream("DLQ").await.unwrap();
    let last = dlq.info().await.unwrap().state.last_sequence;
    let mut parts = Vec::new();
    for sequence in 1..=last {
        let message = dlq.get_raw_message(sequence).await.unwrap();
        if message.subject.contains("aside") && message.subject.contains(&large(6).id.to_string()) {
            parts.push(sequence);
        }
    }
    assert!(dlq.delete_message(parts[0]).await.unwrap());
    let mut feed = letters(&server).until_end().follow(STORE.to_owned(), LEASE).await.unwrap();
    let mut all = Vec::new();
    loop {
        let fed = next(&mut feed, 10).await;
        if fed.is_empty() {
            break;
        }
        feed.confirm().await.unwrap();
        all.extend(fed);
    }
    let whole = all.iter().find_map(|fed| match &fed.content {
        Content::Letter(found) if found.id == large(5).id => Some(found.message.clone()),
        _ => None,
    });
    assert_eq!(whole, Some(large(5).message));
    let damaged: Vec<_> = all
        .iter()
        .filter_map(|fed| match &fed.content {
            Content::Damaged(why) => Some(why.clone()),
            _ => None,
        })
        .collect();
    assert!(damaged.len() == 1 && damaged[0].contains("has gone"), "{damaged:?}");
}

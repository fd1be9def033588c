//! A stream is read while letters come and go.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use async_nats::Client;
use dlq_core::store::Letters;
use dlq_core::{Cursor, DeadLetter, Filter, LetterId, Order, PageRequest, Sink};
use dlq_nats::{DlqStream, NatsLetters, NatsSink};
use dlq_testkit::fixtures::{died_again, varied};

use super::{bury, dead};
use crate::fixture::{Server, available};

const MANY: u32 = 1_200;
const PAGES: u32 = 12;

/// A connection of its own, which counts what comes to it.
async fn reader(server: &Server) -> Client {
    let url = server.running().url().to_owned();
    async_nats::connect(url).await.unwrap()
}

/// As an export does it: the page after this place, and its letters.
async fn page(letters: &NatsLetters, after: Option<Cursor>) -> (Vec<DeadLetter>, Option<Cursor>) {
    let page = PageRequest::new().with_limit(MANY / PAGES).with_order(Order::OldestFirst);
    let page = letters.list(Filter::new(), page.with_after(after)).await.unwrap();
    let ids = page.letters.iter().map(|letter| letter.id).collect();
    (letters.get_all(ids).await.unwrap(), page.next)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_letters_come_to_and_go_from_is_not_read_again_for_each_page() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    bury(&server, DlqStream::new(), dead(0..MANY)).await;
    let sink = NatsSink::open(&server.client, DlqStream::new()).await.unwrap();
    let stream = server.context.get_stream("DLQ").await.unwrap();
    // One that was removed by hand stands between the others all the time.
    stream.delete_message(u64::from(MANY) / 2).await.unwrap();
    let client = reader(&server).await;
    let letters = NatsLetters::new(&client, DlqStream::new());
    let (mut after, mut read, mut turn) = (None, 0, 0);
    loop {
        let (found, next) = page(&letters, after).await;
        read += found.len();
        turn += 1;
        // One comes, and the first one goes.
        sink.put(dead([MANY + turn])).await.unwrap();
        stream.delete_message(turn.into()).await.unwrap();
        after = next;
        if after.is_none() {
            break;
        }
    }
    assert!(turn > PAGES && read > MANY as usize, "{turn} pages, {read} letters");
    let heard = client.statistics().in_messages.load(Relaxed);
    assert!(heard < 2 * u64::from(MANY), "{heard} messages for {MANY} letters");
}

/// What is read of it: of each letter where it stands, and which death it is.
async fn seen(letters: &NatsLetters) -> BTreeMap<LetterId, (u64, u32)> {
    let found = letters.read(&Filter::new()).await.unwrap();
    let one = |stored: dlq_nats::StoredLetter| {
        (stored.letter.id, (stored.sequence, stored.letter.generation))
    };
    found.into_iter().map(one).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_read_before_knows_what_anybody_would_read() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let config = DlqStream::new().with_duplicate_window(Duration::from_millis(100));
    let sink = NatsSink::open(&server.client, config.clone()).await.unwrap();
    let letters = NatsLetters::new(&server.client, config.clone());
    let put = async |letter: DeadLetter| {
        let before = server.count("DLQ").await;
        // Until the server has forgotten a copy that was there.
        while server.count("DLQ").await == before {
            sink.put(vec![letter.clone()]).await.unwrap();
        }
    };
    let stream = server.context.get_stream("DLQ").await.unwrap();
    let same = async |what: &str| {
        let anew = NatsLetters::new(&server.client, config.clone());
        assert_eq!(seen(&letters).await, seen(&anew).await, "{what}");
    };
    for number in 0..6 {
        put(varied(number)).await;
    }
    same("at first").await;
    put(varied(6)).await;
    same("one has come").await;
    put(varied(1)).await;
    put(died_again(&varied(2))).await;
    same("a copy and a further death").await;
    stream.delete_message(1).await.unwrap();
    same("the first has gone").await;
    stream.delete_message(2).await.unwrap();
    same("the first of two copies has gone").await;
    stream.delete_message(5).await.unwrap();
    put(varied(7)).await;
    same("one has gone from between, and one has come").await;
    stream.delete_message(9).await.unwrap();
    same("the later of two deaths has gone").await;
    let mut other = varied(3);
    other.message = other.message.with_payload(Some("other".into()));
    put(other).await;
    same("another message claims the identity of one").await;
    stream.delete_message(4).await.unwrap();
    same("and the one has gone").await;
    stream.delete_message(stream.get_info().await.unwrap().state.last_sequence).await.unwrap();
    same("the last has gone").await;
    stream.purge().await.unwrap();
    same("all have gone").await;
    put(varied(8)).await;
    same("one has come again").await;
    server.context.delete_stream("DLQ").await.unwrap();
    let _ = NatsSink::open(&server.client, config.clone()).await.unwrap();
    put(varied(9)).await;
    same("the stream was made anew").await;
}

//! A stream is read while letters come and go.

use std::sync::atomic::Ordering::Relaxed;

use dlq_core::log::Range;
use dlq_core::store::Letters;
use dlq_core::{Filter, Order, PageRequest, Sink};
use dlq_letters::log::Reading;
use dlq_nats::{DlqStream, NatsLetters, NatsSink};

use super::{bury, dead};
use crate::fixture::{Server, available};

const MANY: u32 = 1_200;
const PAGES: u32 = 12;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_letters_come_to_and_go_from_is_read_once_for_all_pages() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    bury(&server, DlqStream::new(), dead(0..MANY)).await;
    let sink = NatsSink::open(&server.client, DlqStream::new()).await.unwrap();
    let stream = server.context.get_stream("DLQ").await.unwrap();
    // One that was removed by hand stands between the others all the time.
    stream.delete_message(u64::from(MANY) / 2).await.unwrap();
    // A connection of its own, which counts what comes to it.
    let url = server.running().url().to_owned();
    let client = async_nats::connect(url).await.unwrap();
    let letters = NatsLetters::new(&client, DlqStream::new());
    let reading = Reading::of(letters, Range::all()).await.unwrap();
    let (mut after, mut read, mut turn) = (None, 0, 0);
    loop {
        let page = PageRequest::new().limit(MANY / PAGES).order(Order::OldestFirst);
        let page = reading.list(Filter::new(), page.after(after)).await.unwrap();
        let ids = page.letters.iter().map(|letter| letter.id).collect();
        read += reading.get_all(ids).await.unwrap().len();
        turn += 1;
        // One comes, and the first one goes.
        sink.put(dead([MANY + turn])).await.unwrap();
        stream.delete_message(turn.into()).await.unwrap();
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!((turn, read), (PAGES, MANY as usize - 1), "as it was when it was read");
    let heard = client.statistics().in_messages.load(Relaxed);
    assert!(heard < 2 * u64::from(MANY), "{heard} messages for {MANY} letters");
}

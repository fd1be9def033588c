//! Letters are listed without their payloads.

use async_nats::HeaderMap;
use dlq_core::log::Range;
use dlq_core::store::Letters;
use dlq_core::{DeadLetter, Filter, LetterSummary, Message, PageRequest, Sink as _};
use dlq_letters::log::Reading;
use dlq_nats::{DlqStream, NatsLetters, NatsSink};
use dlq_testkit::fixtures::{died_again, hostile_messages, letter, letter_of, varied};

use super::bury;
use crate::fixture::{Server, available};

async fn listed(letters: &NatsLetters, range: Range) -> Vec<LetterSummary> {
    let reading = Reading::of(letters.clone(), range).await.unwrap();
    let page = PageRequest::new().limit(10_000);
    reading.list(Filter::new(), page).await.unwrap().letters
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_of_headers_says_what_one_of_all_says() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let hostile = hostile_messages().into_iter().enumerate();
    let hostile = hostile.map(|(n, (_, message))| letter_of(message, 1_000 + n as u64));
    let mut written: Vec<DeadLetter> = (0..60).map(varied).chain(hostile).collect();
    // Parts of it stand aside.
    let large = Message::new("orders.created", vec![b'x'; 1_500_000]);
    written.push(letter_of(large, 2_000));
    written.push(died_again(&varied(3)));
    let letters = bury(&server, DlqStream::new(), written.clone()).await;
    let whole = listed(&letters, Range::all()).await;
    assert!(whole.len() >= 60, "{}", whole.len());
    assert_eq!(listed(&letters, Range::all().headers_only()).await, whole);

    // A letter of such a reading can still be had whole, and is looked at then.
    let reading = Reading::of(letters.clone(), Range::all().headers_only()).await.unwrap();
    for id in [varied(3).id, written[70].id] {
        let whole = Reading::of(letters.clone(), Range::all()).await.unwrap().get(id).await;
        let whole = whole.unwrap();
        assert!(whole.is_some());
        assert_eq!(reading.get(id).await.unwrap(), whole);
    }

    // Two letters of one identity: which ids they have only their payloads say.
    let mut other = varied(5);
    other.message = other.message.with_payload(Some("other".into()));
    bury(&server, DlqStream::new(), vec![other]).await;
    let with_conflict = listed(&letters, Range::all()).await;
    assert_eq!(with_conflict.len(), whole.len() + 1);
    assert_eq!(listed(&letters, Range::all().headers_only()).await, with_conflict);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_of_headers_costs_no_payloads() {
    const LETTERS: u64 = 200;
    const SIZE: usize = 10 * 1024;
    if !available() {
        return;
    }
    let server = Server::start().await;
    let large = |n| letter_of(Message::new("orders.created", vec![b'x'; SIZE]), n);
    bury(&server, DlqStream::new(), (0..LETTERS).map(large).collect()).await;
    let costs = async |range: Range| {
        // A connection of its own, which counts nothing else.
        let url = server.running().url().to_owned();
        let client = async_nats::connect(url).await.unwrap();
        let letters = NatsLetters::new(&client, DlqStream::new());
        assert_eq!(listed(&letters, range).await.len() as u64, LETTERS);
        client.statistics().in_bytes.load(std::sync::atomic::Ordering::Relaxed)
    };
    let (whole, headers) = (costs(Range::all()).await, costs(Range::all().headers_only()).await);
    println!("{LETTERS} letters of {SIZE} bytes: {whole} bytes whole, {headers} bytes of headers");
    assert!(whole >= LETTERS * SIZE as u64, "{whole}");
    assert!(headers < whole / 4, "{headers} of {whole}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_of_a_letter_on_other_bytes_are_listed_and_never_given_out() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let sink = NatsSink::open(&server.client, DlqStream::new()).await.unwrap();
    sink.put(vec![letter(1)]).await.unwrap();
    let stored = server.stored("DLQ").await.remove(0);
    let mut headers = HeaderMap::new();
    for (name, values) in stored.headers.iter() {
        let is_id = AsRef::<str>::as_ref(name) == "Nats-Msg-Id";
        for value in values.iter().filter(|_| !is_id) {
            headers.append(name.clone(), value.clone());
        }
    }
    headers.insert("Nats-Msg-Size", "7");
    server.context.get_stream("DLQ").await.unwrap().delete_message(1).await.unwrap();
    let forged =
        server.context.publish_with_headers("dlq.orders.created", headers, "forged!!".into());
    forged.await.unwrap().await.unwrap();
    let letters = NatsLetters::new(&server.client, DlqStream::new());
    assert!(listed(&letters, Range::all()).await.is_empty());
    let believed = listed(&letters, Range::all().headers_only()).await;
    assert_eq!(
        (believed.len(), believed[0].payload_size),
        (1, Some(8)),
        "the server's size counts"
    );
    let reading = Reading::of(letters, Range::all().headers_only()).await.unwrap();
    assert_eq!(reading.get(letter(1).id).await.unwrap(), None, "nobody is shown other bytes");
}

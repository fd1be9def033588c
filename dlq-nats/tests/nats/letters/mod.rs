//! Letters are read from their stream and sent back.

mod reading;

use std::time::Duration;

use dlq_core::store::Receipt;
use dlq_core::{DeadLetter, Filter, Lane, OperationId, Sink, Source, StoreErrorKind, Timestamp};
use dlq_nats::{DlqStream, NatsLetters, NatsSink};
use dlq_testkit::fixtures::{died_again, letter, letter_of};
use tokio::time::timeout;

use crate::fixture::{LEASE, Server, available, billing, consumer, handle, number};

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(1_790_000_000_000 + seconds * 1_000)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g2_copies_are_one_letter_and_no_bytes_are_lost() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let letters = NatsLetters::new(&server.client, DlqStream::new());
    let error = letters.read(&Filter::new()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::NotFound);
    // A window so short that the second copy is stored.
    let stream = DlqStream::new().with_duplicate_window(Duration::from_millis(200));
    let sink = NatsSink::open(&server.client, stream).await.unwrap();
    assert!(letters.read(&Filter::new()).await.unwrap().is_empty());
    let first = letter(1);
    let mut other = first.clone();
    other.message = other.message.with_payload(Some("other".into()));
    sink.put(vec![first.clone()]).await.unwrap();
    let stored_again =
        async { while sink.put(vec![first.clone()]).await.unwrap() != [Receipt::Stored] {} };
    timeout(Duration::from_secs(30), stored_again).await.expect("the window ends");
    sink.put(vec![other.clone(), died_again(&first), letter(2)]).await.unwrap();
    assert_eq!(server.count("DLQ").await, 5);
    let read = letters.read(&Filter::new()).await.unwrap();
    let ids: Vec<_> = read.iter().map(|read| read.letter.death().to_string()).collect();
    let conflict = first.id.conflicting(&other.message);
    assert_eq!(
        ids,
        [format!("{conflict}.0"), format!("{}.1", first.id), format!("{}.0", letter(2).id)]
    );
    let one = Filter::new().with_message_id("evt-2".to_owned());
    let one = letters.read(&one).await.unwrap();
    assert_eq!((one.len(), one[0].sequence), (1, 5));
    assert_eq!(DeadLetter { state: letter(2).state, ..one[0].letter.clone() }, letter(2));
}

/// A letter of `billing` for a message that stood on the stream.
async fn dead(server: &Server) -> DeadLetter {
    server.publish([1]).await;
    let mut source = server.source(&billing()).await;
    let original = handle(&mut source).await.unwrap();
    source.close().await;
    let mut letter = letter_of(original.message().clone(), 1);
    letter.origin = original.origin().clone();
    letter.consumer = "billing".to_owned();
    letter.id = original.death("billing").letter;
    let sink = NatsSink::open(&server.client, DlqStream::new()).await.unwrap();
    sink.put(vec![letter.clone()]).await.unwrap();
    letter
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_a_letter_is_sent_to_its_origin_once() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let letter = dead(&server).await;
    let letters = NatsLetters::new(&server.client, DlqStream::new());
    let read = letters.read(&Filter::new()).await.unwrap();
    let operation = OperationId::of("ana", at(0), 1);
    assert!(letters.send_to_origin(&read[0], operation, at(1)).await.unwrap());
    assert!(!letters.send_to_origin(&read[0], operation, at(2)).await.unwrap(), "it was sent");
    let mut source = server.source(&billing()).await;
    let again = handle(&mut source).await.unwrap();
    assert_eq!((number(&again), again.lane(), again.attempt()), (1, Lane::Main, 1));
    assert_eq!(again.message(), &letter.message);
    let death = again.death("billing");
    assert_eq!((death.letter, death.generation, again.replays()), (letter.id, 1, 1));
    assert!(timeout(LEASE, source.next()).await.is_err(), "once");
    let mut elsewhere = read[0].clone();
    elsewhere.letter.origin = letter_of(letter.message, 1).origin;
    let refused = letters.send_to_origin(&elsewhere, operation, at(1)).await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Refused);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_goes_with_the_letter_or_it_is_not_sent() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let mut headers = async_nats::HeaderMap::new();
    headers.insert("key", "customer-7");
    headers.insert("Nats-Msg-Id", "evt-1");
    let sent = server.context.publish_with_headers("orders.created", headers, "1".into()).await;
    sent.unwrap().await.unwrap();
    let mut source = server.source(&billing()).await;
    let original = handle(&mut source).await.unwrap();
    assert_eq!(original.message().id(), Some("evt-1"));
    let mut letter = letter_of(original.message().clone(), 1);
    letter.origin = original.origin().clone();
    letter.consumer = "billing".to_owned();
    letter.id = original.death("billing").letter;
    let sink = NatsSink::open(&server.client, DlqStream::new()).await.unwrap();
    sink.put(vec![letter.clone()]).await.unwrap();
    let letters = NatsLetters::new(&server.client, DlqStream::new());
    let read = letters.read(&Filter::new()).await.unwrap();
    let operation = OperationId::of("ana", at(0), 1);
    let refused = letters.send_to_origin(&read[0], operation, at(1)).await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Refused);
    let letters = letters.with_key_header("key");
    assert!(letters.send_to_origin(&read[0], operation, at(1)).await.unwrap());
    let again = handle(&mut source).await.unwrap();
    assert_eq!(again.message(), original.message(), "id, key and headers are the producer's");
    assert_eq!(again.death("billing").letter, letter.id);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_a_letter_is_sent_to_its_handler_and_to_nobody_else() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let letter = dead(&server).await;
    let mut other = server.source(&consumer("shipping")).await;
    assert_eq!(handle(&mut other).await.unwrap().lane(), Lane::Main);
    let letters = NatsLetters::new(&server.client, DlqStream::new());
    let lane = billing().retry_lane(&server.client).await.unwrap();
    let read = letters.read(&Filter::new()).await.unwrap();
    letters.send_to_handler(&read[0], &lane, at(0)).await.unwrap();
    letters.send_to_handler(&read[0], &lane, at(0)).await.unwrap();
    let mut source = server.source(&billing()).await;
    let again = handle(&mut source).await.unwrap();
    assert_eq!((number(&again), again.lane(), again.attempt()), (1, Lane::Retry, 1));
    assert_eq!(again.message(), &letter.message);
    assert_eq!(again.history(), &letter.history);
    let death = again.death("billing");
    assert_eq!((death.letter, death.generation, again.replays()), (letter.id, 1, 1));
    assert!(timeout(LEASE, source.next()).await.is_err(), "once");
    assert!(timeout(LEASE, other.next()).await.is_err(), "nobody else");
}

//! Letters: one per death, and none lost where the server refuses.

use std::time::Duration;

use dlq_core::store::Receipt;
use dlq_core::{Disposition, Settle, Sink, StoreErrorKind};
use dlq_redis::RedisConfig;
use dlq_testkit::fixtures::{died_again, hostile_messages, letter, letter_of};
use redis::Value;

use crate::fixture::{Server, available, billing, next, number};

const DEAD: &str = "{orders}:dlq";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g2_a_letter_written_again_is_one_letter() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let sink = billing().dead_letters(&server.client).await.unwrap();
    let (first, second) = (letter(1), letter(2));
    let batch = vec![first.clone(), second.clone(), first.clone(), died_again(&first)];
    let written = sink.put(batch).await.unwrap();
    assert_eq!(written, [Receipt::Stored, Receipt::Stored, Receipt::Unchanged, Receipt::Stored]);
    // Another process, and a server that has restarted.
    tokio::task::block_in_place(|| server.running().restart().unwrap());
    let sink = billing().dead_letters(&server.client).await.unwrap();
    assert_eq!(sink.put(vec![second]).await.unwrap(), [Receipt::Unchanged]);
    let mut other = first.clone();
    other.message = other.message.with_payload(Some("other".into()));
    assert_eq!(
        sink.put(vec![other]).await.unwrap(),
        [Receipt::Stored],
        "other bytes, another letter"
    );
    assert_eq!(server.int(&format!("XLEN {DEAD}")).await, 4);
}

/// An answer that is lost after the script has run: the client repeats the script, on another connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g2_an_answer_that_is_lost_makes_no_second_letter() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    // The client makes the call once, so that it is this test that makes it again.
    let config = RedisConfig::new().response_timeout(Duration::from_millis(300)).retries(0);
    let client = config.open(&server.url()).await.unwrap();
    let sink = billing().dead_letters(&client).await.unwrap();
    assert_eq!(sink.put(vec![letter(1)]).await.unwrap(), [Receipt::Stored]);
    // The server stands still while the letter is under way, and carries it out afterwards.
    server.running().pause().unwrap();
    let error = sink.put(vec![letter(2)]).await.expect_err("nobody responds");
    assert!(error.is_transient(), "{error}");
    server.running().resume().unwrap();
    let again = sink.put(vec![letter(2)]).await.unwrap();
    assert_eq!(again, [Receipt::Unchanged], "it was carried out, and nobody heard");
    assert_eq!(server.int(&format!("XLEN {DEAD}")).await, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g8_a_letter_of_any_bytes_is_written() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let sink = billing().dead_letters(&server.client).await.unwrap();
    let mut messages = hostile_messages();
    let mut many = dlq_core::Message::new("s", "x");
    for number in 0..5000 {
        many = many.with_header(format!("h{number}"), "v");
    }
    messages.push(("many headers", many));
    let letters: Vec<_> = messages
        .iter()
        .enumerate()
        .map(|(n, (_, message))| letter_of(message.clone(), n as u64))
        .collect();
    let count = letters.len();
    let written = sink.put(letters).await.unwrap();
    assert!(written.iter().all(|receipt| *receipt == Receipt::Stored), "{written:?}");
    assert_eq!(server.int(&format!("XLEN {DEAD}")).await, i64::try_from(count).unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g9_full_memory_and_a_bound_hold_letters_back_and_trim_none() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let sink = billing().max_dead_letters(2).dead_letters(&server.client).await.unwrap();
    let outcomes = sink.put_each(vec![letter(1), letter(2), letter(3)]).await.unwrap();
    let kinds: Vec<_> =
        outcomes.iter().map(|one| one.as_ref().map_err(|error| error.kind()).copied()).collect();
    assert_eq!(kinds, [Ok(Receipt::Stored), Ok(Receipt::Stored), Err(StoreErrorKind::Unavailable)]);
    let text = outcomes[2].as_ref().unwrap_err().to_string();
    assert!(text.contains("which is its bound"), "{text}");
    assert_eq!(server.int(&format!("XLEN {DEAD}")).await, 2, "none was trimmed");

    let sink = billing().dead_letters(&server.client).await.unwrap();
    server.run("CONFIG SET maxmemory 1").await;
    let error = sink.put(vec![letter(3)]).await.expect_err("memory is full");
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert!(error.to_string().contains("memory of the server is full"), "{error}");
    server.run("CONFIG SET maxmemory 0").await;
    assert_eq!(sink.put(vec![letter(3)]).await.unwrap(), [Receipt::Stored], "no mark was left");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_a_key_of_another_type_changes_nothing() {
    if !available() {
        return;
    }
    for version in [None, Some("6.2")] {
        let server = match version {
            None => Server::start().await,
            Some(version) => Server::version(version).await,
        };
        let opened = billing().open(&server.client).await.unwrap();
        let (mut source, sink) = (opened.source, opened.dead_letters);
        server.publish([1]).await;
        let (_, settle) = next(&mut source).await;
        server.run(&format!("SET {DEAD} text")).await;
        let error = sink.put(vec![letter(1)]).await.expect_err("no stream");
        assert_eq!(
            error.kind(),
            StoreErrorKind::Unavailable,
            "of the sink, not of the letter: {error}"
        );
        assert!(error.to_string().contains("another type"), "{error}");
        assert_eq!(server.pending().await, 1);
        server.run(&format!("DEL {DEAD}")).await;
        assert_eq!(sink.put(vec![letter(1)]).await.unwrap(), [Receipt::Stored], "no mark was left");
        settle.settle(Disposition::Dead(Box::new(letter(1)))).await.unwrap();
        assert_eq!(server.pending().await, 0);
        let Value::Array(all) = server.run(&format!("XRANGE {DEAD} - +")).await else { panic!() };
        assert_eq!(all.len(), 1);
    }
}

/// Two owners: whoever lost a message gives nothing back that another holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_owner_takes_nothing_away() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    server.publish([1]).await;
    let mut late = server.source().await;
    let (_, mut settle) = next(&mut late).await;
    let mut owner = server.source().await;
    let (again, held) = next(&mut owner).await;
    assert_eq!((number(&again), again.deliveries()), (1, 2));
    let error = settle.extend().await.expect_err("the lease is lost");
    assert_eq!(error.kind(), dlq_core::TransportErrorKind::Lost);
    let deferred = settle.settle(Disposition::Deferred { after: Duration::ZERO }).await;
    assert_eq!(deferred.expect_err("it is another's").kind(), dlq_core::TransportErrorKind::Lost);
    held.settle(Disposition::Succeeded).await.expect("it is still the owner's");
    assert_eq!(server.pending().await, 0);
}

//! A server that has forgotten a confirmed letter or retry record, as the new master after a fail-over may have, keeps the
//! message.

use dlq_core::{
    DelayedRetry, Delivery, Disposition, History, RetryQueue, Settle, Sink, Source, Timestamp,
    TransportErrorKind,
};
use dlq_redis::RedisSettle;
use dlq_testkit::fixtures::letter_of;

use crate::fixture::{Server, available, billing, next};

/// The server forgets everything that was written beside the stream.
async fn forget(server: &Server) {
    let keys: Vec<String> = redis::from_redis_value(server.run("KEYS *").await).unwrap();
    for key in keys.iter().filter(|key| *key != "orders") {
        server.run(&format!("DEL {key}")).await;
    }
}

async fn is_refused(settle: RedisSettle, end: Disposition) {
    let error = settle.settle(end).await.expect_err("what stands for the message is not there");
    assert_eq!(error.kind(), TransportErrorKind::Lost, "{error}");
}

fn put_off(delivery: Delivery) -> (DelayedRetry, Disposition) {
    let due = Timestamp::EPOCH;
    let history = History::new();
    let end = Disposition::DelayedRetry { due, history: history.clone(), attempts: 1 };
    (DelayedRetry { delivery, consumer: "billing".into(), due, history, attempts: 1 }, end)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_a_letter_that_the_server_forgot_acknowledges_nothing() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let opened = billing().open(&server.client).await.unwrap();
    let (mut source, sink) = (opened.source, opened.dead_letters);
    server.publish([1]).await;
    let dead = |delivery: &Delivery| letter_of(delivery.message().clone(), 1);

    let (delivery, settle) = next(&mut source).await;
    let letter = dead(&delivery);
    sink.put(vec![letter.clone()]).await.unwrap();
    forget(&server).await;
    is_refused(settle, Disposition::Dead(Box::new(letter.clone()))).await;
    assert_eq!(server.pending().await, 1, "the message is still there");

    // It comes again, dies again, and has a letter then.
    let (again, settle) = next(&mut source).await;
    let letter = dead(&again);
    sink.put(vec![letter.clone()]).await.unwrap();
    settle.settle(Disposition::Dead(Box::new(letter))).await.unwrap();
    assert_eq!(server.int("XLEN {orders}:dlq").await, 1);

    // A letter that is kept elsewhere is none of this server's business.
    server.publish([2]).await;
    let (delivery, settle) = next(&mut source).await;
    let elsewhere = letter_of(delivery.message().clone(), 2);
    settle.settle(Disposition::Dead(Box::new(elsewhere))).await.unwrap();
    source.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_a_retry_record_that_the_server_forgot_acknowledges_nothing() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let opened = billing().open(&server.client).await.unwrap();
    let (mut source, queue) = (opened.source, opened.retry_queue.unwrap());
    server.publish([1]).await;
    let (delivery, settle) = next(&mut source).await;
    let (delayed_retry, end) = put_off(delivery);
    queue.enqueue(delayed_retry).await.unwrap();
    forget(&server).await;
    is_refused(settle, end).await;
    assert_eq!(server.pending().await, 1, "the message is still there");

    // It comes again, and waits in a record then.
    let (delivery, settle) = next(&mut source).await;
    let (delayed_retry, end) = put_off(delivery);
    queue.enqueue(delayed_retry).await.unwrap();
    settle.settle(end).await.unwrap();
    assert_eq!(server.pending().await, 0);

    // So it is with what a record becomes: the next record.
    let (delivery, settle) = next(&mut source).await;
    assert_eq!(delivery.delayed_retries(), 1);
    let (delayed_retry, end) = put_off(delivery);
    let before: Vec<String> = redis::from_redis_value(server.run("KEYS *:r:*").await).unwrap();
    queue.enqueue(delayed_retry).await.unwrap();
    let after: Vec<String> = redis::from_redis_value(server.run("KEYS *:r:*").await).unwrap();
    for new in after.iter().filter(|key| !before.contains(key)) {
        server.run(&format!("DEL {new}")).await;
    }
    is_refused(settle, end).await;
    let left = server.int("ZCARD {orders}:retry:billing:due").await;
    assert_eq!(left, 2, "the first record, and the name of the other");
    source.close().await;
}

/// And a letter, of a message that comes from a record.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_a_record_stays_whose_letter_the_server_forgot() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let opened = billing().open(&server.client).await.unwrap();
    let (mut source, sink) = (opened.source, opened.dead_letters);
    let queue = opened.retry_queue.unwrap();
    server.publish([1]).await;
    let (delivery, settle) = next(&mut source).await;
    let (delayed_retry, end) = put_off(delivery);
    queue.enqueue(delayed_retry).await.unwrap();
    settle.settle(end).await.unwrap();

    let (delivery, settle) = next(&mut source).await;
    let letter = letter_of(delivery.message().clone(), 1);
    sink.put(vec![letter.clone()]).await.unwrap();
    let marks: Vec<String> = redis::from_redis_value(server.run("KEYS *:written:*").await).unwrap();
    assert_eq!(marks.len(), 1);
    server.run(&format!("DEL {} {{orders}}:dlq", marks[0])).await;
    is_refused(settle, Disposition::Dead(Box::new(letter.clone()))).await;

    let (_, settle) = next(&mut source).await;
    sink.put(vec![letter.clone()]).await.unwrap();
    settle.settle(Disposition::Dead(Box::new(letter))).await.unwrap();
    assert_eq!(server.int("XLEN {orders}:dlq").await, 1);
    assert_eq!(server.int("ZCARD {orders}:retry:billing:due").await, 0);
    source.close().await;
}

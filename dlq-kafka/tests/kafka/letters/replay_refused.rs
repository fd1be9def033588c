//! What a user may not do is an outcome of the letters that it is about, or ends the replay with a word of what it was.

use std::future::pending;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Instant;

use dlq_core::StoreErrorKind;
use dlq_kafka::ReplayOutcome;
use dlq_kafka::rdkafka::producer::{FutureProducer, FutureRecord};

use crate::access::guarded;
use crate::fixture_replay::{PATIENCE, Shop, broker, run, to_origin};

const TOPIC: u8 = 2;
const TRANSACTIONAL_ID: u8 = 5;
/// Who may read may see it.
const ALLOW_READ: [u8; 2] = [3, 3];
const DENY_WRITE: [u8; 2] = [4, 2];

/// A rule for everybody, by the request `CreateAcls` in version 1, which the client does not have.
fn rule(url: &str, kind: u8, name: &str, rule: [u8; 2]) {
    let text = |text: &str| {
        [&i16::try_from(text.len()).unwrap().to_be_bytes()[..], text.as_bytes()].concat()
    };
    let mut body = vec![0, 30, 0, 1, 0, 0, 0, 7, 0xff, 0xff, 0, 0, 0, 1, kind];
    body.extend(text(name));
    body.push(3);
    body.extend([text("User:*"), text("*")].concat());
    body.extend(rule);
    let mut stream = TcpStream::connect(url).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&u32::try_from(body.len()).unwrap().to_be_bytes()).unwrap();
    stream.write_all(&body).unwrap();
    // Length, number, throttling, how many results, and the error of the first.
    let mut answer = [0; 18];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!((answer[7], &answer[16..]), (7, &[0, 0][..]), "{answer:?}");
}

/// Returns when nobody may write to this topic any more.
async fn is_forbidden(shop: &Shop, topic: &str) {
    let producer: FutureProducer = shop.config().create().unwrap();
    let until = Instant::now() + PATIENCE;
    while producer.send(FutureRecord::to(topic).key("k").payload("p"), PATIENCE).await.is_ok() {
        assert!(Instant::now() < until, "the rule comes into force");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_may_not_be_written_is_said_of_the_letters_that_it_is_about() {
    if broker().is_none() {
        return;
    }
    let guarded = guarded();
    let shop = Shop::at(guarded.url().to_owned(), "refused");
    for topic in [&shop.topic, &shop.dlq, "closed", "hidden"] {
        shop.create(topic, 3, &[]).await;
    }
    let mut dead = shop.dead(0..40);
    for letter in dead.iter_mut().filter(|letter| letter.origin.partition() == Some(1)) {
        letter.origin = dlq_core::Origin::new("kafka", "closed", letter.origin.position().clone())
            .with_partition(0);
    }
    let at = dead[0].origin.position().clone();
    dead[0].origin = dlq_core::Origin::new("kafka", "hidden", at).with_partition(0);
    let letters = shop.bury(&dead).await;
    // One that may be seen, and one that may not.
    rule(&shop.url, TOPIC, "closed", ALLOW_READ);
    for topic in ["closed", "hidden"] {
        rule(&shop.url, TOPIC, topic, DENY_WRITE);
        is_forbidden(&shop, topic).await;
    }
    let mut why = Vec::new();
    let replay = to_origin(&letters, 1);
    let report = replay.run(pending(), |replayed| {
        if let ReplayOutcome::Failed(error) = &replayed.outcome {
            why.push(error.to_string());
        }
    });
    let report = report.await.unwrap();
    assert!(report.is_complete(), "{report}");
    assert_eq!((report.sent, report.failed), (26, 14), "{report}; {why:?}");
    why.sort_unstable();
    let closed = why.iter().filter(|why| why.contains("topic `closed` cannot be written to"));
    assert_eq!(closed.count(), 13, "{why:?}");
    assert!(why.iter().all(|why| why.contains("uthorization")), "{why:?}");
    assert_eq!(why.iter().filter(|why| why.contains("`hidden`")).count(), 1, "{why:?}");
    shop.assert_once((1..40).filter(|number| number % 3 != 1)).await;
    // The ledger, and the right to send.
    let ledger = format!("{}.replays", shop.dlq);
    rule(&shop.url, TOPIC, &ledger, ALLOW_READ);
    rule(&shop.url, TOPIC, &ledger, DENY_WRITE);
    is_forbidden(&shop, &ledger).await;
    let report = to_origin(&letters, 2).run(pending(), |_| {}).await.unwrap();
    let error = report.stopped.unwrap();
    assert!(error.to_string().contains(&ledger), "{error}");
    assert_eq!((report.sent, report.left, report.failed), (0, 14, 0));
    let other = Shop { dlq: "other.dlq".to_owned(), ..shop.clone() };
    other.create(&other.dlq, 1, &[]).await;
    let letters = other.bury(&other.dead(100..103)).await;
    assert_eq!(run(to_origin(&letters, 1)).await.sent, 3);
    rule(&shop.url, TRANSACTIONAL_ID, "dlq-replay.other.dlq", DENY_WRITE);
    let until = Instant::now() + PATIENCE;
    let mut number = 1;
    let error = loop {
        assert!(Instant::now() < until, "the rule comes into force");
        number += 1;
        let replay = to_origin(&letters, number).again().cap(0);
        if let Some(error) = replay.run(pending(), |_| {}).await.unwrap().stopped {
            break error;
        }
    };
    assert_eq!(error.kind(), StoreErrorKind::InvalidConfig, "{error}");
    assert!(error.to_string().contains("dlq-replay.other.dlq"), "{error}");
}

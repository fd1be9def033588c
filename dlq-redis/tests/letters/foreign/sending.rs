//! Letters are sent back as their library does it, each once.

use std::future::pending;

use dlq_core::log::Log as _;
use dlq_core::replay::{ReplayOutcome, Skipped};
use dlq_core::store::Letters as _;
use dlq_core::{Filter, OperationId, StoreErrorKind};
use dlq_redis::foreign::{ForeignLetters, ForeignReplay};

use super::{BULLMQ, CHASQUIMQ, DRAMATIQ, ForeignServer, RQ, all, everything, reading};

type Fields = Vec<(Vec<u8>, Vec<u8>)>;

const STREAM: &str = "{chasqui:emails}:stream";

fn operation(number: u8) -> OperationId {
    OperationId::from_bytes([number; 16])
}

fn replay(letters: &ForeignLetters, number: u8) -> ForeignReplay {
    ForeignReplay::new(letters, everything(), operation(number))
}

async fn sent(replay: &ForeignReplay) -> (u64, Vec<(Skipped, u64)>, Vec<String>) {
    let mut failed = Vec::new();
    let report = replay.run(pending(), |one| {
        if let ReplayOutcome::Failed(error) = &one.outcome {
            failed.push(format!("{} {error}", one.entry));
        }
    });
    let report = report.await.unwrap();
    assert!(report.stopped.is_none(), "{report}");
    (report.sent, report.skipped.into_iter().collect(), failed)
}

async fn stream(place: &ForeignServer) -> Vec<Fields> {
    let all = place.words(&format!("XRANGE {STREAM} - +")).await;
    let all: Vec<(String, Fields)> = redis::from_redis_value(all).unwrap();
    all.into_iter().map(|(_, fields)| fields).collect()
}

async fn chasquimq() -> Option<ForeignServer> {
    let place = ForeignServer::with(CHASQUIMQ).await?;
    place.words(&format!("XGROUP CREATE {STREAM} default 0 MKSTREAM")).await;
    Some(place)
}

#[tokio::test(flavor = "multi_thread")]
async fn g6_jobs_of_chasquimq_arrive_once_with_fresh_attempts() {
    let Some(place) = chasquimq().await else { return };
    let letters = place.letters("chasqui:emails");
    let plan = replay(&letters, 1).plan().await.unwrap();
    assert_eq!((plan.letters, plan.skipped.get(&Skipped::NoOrigin)), (4, Some(&3)));
    assert!(plan.notes[0].contains("3 letters have no job"), "{:?}", plan.notes);
    assert_eq!(stream(&place).await.len(), 0, "a plan sends nothing");
    let (count, skipped, failed) = sent(&replay(&letters, 1)).await;
    assert_eq!((count, skipped, failed), (4, vec![(Skipped::NoOrigin, 3)], vec![]));
    let arrived = stream(&place).await;
    let names: Vec<_> = arrived.iter().map(|fields| &fields.last().unwrap().1[..]).collect();
    assert_eq!(names, [&b"big"[..], b"never", b"own", b"charge"]);
    // A retry policy stays, the attempt starts over, and no field is added.
    assert!(arrived[2][0].1.ends_with(b"\x00\x92\x02\xc0"), "{:?}", arrived[2]);
    assert!(arrived[3][0].1.ends_with(b"\x00"), "{:?}", arrived[3]);
    assert!(
        arrived
            .iter()
            .all(|fields| fields.len() == 2 && fields[0].0 == b"d" && fields[1].0 == b"n")
    );
    // What could not be sent is where it was, and the rest has gone from there, as by the library.
    assert_eq!(place.count("XLEN {chasqui:emails}:dlq").await, 3);
    let (count, ..) = sent(&replay(&letters, 2)).await;
    assert_eq!((count, stream(&place).await.len()), (0, 4));
}

/// The library reads what it was sent: ids, payloads, time of creation as before.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_dies_again_is_the_same_letter_and_a_new_death() {
    let Some(place) = chasquimq().await else { return };
    let letters = place.letters("chasqui:emails");
    let before = all(&letters).await;
    sent(&replay(&letters, 1)).await;
    // It fails once more, as the library writes it; the library's own identity has not changed.
    let arrived = stream(&place).await;
    let envelope = &arrived[3][0].1;
    place
        .command(&[
            b"XADD" as &[u8],
            b"{chasqui:emails}:dlq",
            b"*",
            b"d",
            envelope,
            b"n",
            b"charge",
            b"source_id",
            b"9-9",
            b"reason",
            b"retries_exhausted",
        ])
        .await;
    let after = all(&letters).await;
    let again = after.last().unwrap();
    let first = before.iter().find(|one| one.message.event() == Some("charge")).unwrap();
    assert_eq!((again.id, again.generation, again.state.replays), (first.id, 1, 1));
    assert_eq!(reading(&letters).await.count(everything()).await.unwrap(), 4);
    // The cap counts what was sent from here.
    let (count, skipped, _) = sent(&replay(&letters, 2).cap(1)).await;
    assert_eq!((count, skipped), (0, vec![(Skipped::MaxReplays, 1), (Skipped::NoOrigin, 3)]));
    assert_eq!(sent(&replay(&letters, 3)).await.0, 1);
}

/// A copy of a letter, which was there when the other was sent, is not sent.
#[tokio::test(flavor = "multi_thread")]
async fn g6_a_copy_in_the_stream_is_not_sent_too() {
    let Some(place) = chasquimq().await else { return };
    place.words("XTRIM {chasqui:emails}:dlq MAXLEN 0").await;
    let envelope = b"\x94\xa3id1\xc4\x01x\x05\x00";
    for _ in 0..2 {
        place
            .command(&[
                b"XADD" as &[u8],
                b"{chasqui:emails}:dlq",
                b"*",
                b"d",
                envelope,
                b"source_id",
                b"1-1",
                b"reason",
                b"unrecoverable",
            ])
            .await;
    }
    let letters = place.letters("chasqui:emails");
    assert_eq!(sent(&replay(&letters, 1)).await.0, 1);
    assert_eq!(place.count("XLEN {chasqui:emails}:dlq").await, 1);
    let (count, skipped, _) = sent(&replay(&letters, 2)).await;
    assert_eq!((count, skipped), (0, vec![(Skipped::Sent, 1)]));
    assert_eq!(stream(&place).await.len(), 1);
}

/// The later of two finds that the letter has gone.
#[tokio::test(flavor = "multi_thread")]
async fn g6_two_at_once_send_each_letter_once() {
    let Some(place) = chasquimq().await else { return };
    for number in 0..300_u32 {
        let envelope = [
            b"\x94\xa4".to_vec(),
            format!("{number:04}").into_bytes(),
            b"\xc4\x01x\x05\x07".to_vec(),
        ]
        .concat();
        place
            .command(&[
                b"XADD" as &[u8],
                b"{chasqui:emails}:dlq",
                b"*",
                b"d",
                &envelope,
                b"source_id",
                b"1-1",
                b"reason",
                b"unrecoverable",
            ])
            .await;
    }
    let letters = place.letters("chasqui:emails");
    let (one, other) = (replay(&letters, 1), replay(&letters, 2));
    let (one, other) = tokio::join!(sent(&one), sent(&other));
    assert_eq!(one.0 + other.0, 304, "{one:?} {other:?}");
    assert_eq!(stream(&place).await.len(), 304);
}

/// Dropped at any of its steps, which is what killing it is: the next one sends the rest, and nothing twice.
#[tokio::test(flavor = "multi_thread")]
async fn g6_killed_at_any_step_it_sends_nothing_twice() {
    use std::future::Future as _;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    let Some(place) = chasquimq().await else { return };
    for number in 0..40_u32 {
        let envelope = [
            b"\x94\xa4".to_vec(),
            format!("{number:04}").into_bytes(),
            b"\xc4\x01x\x05\x07".to_vec(),
        ]
        .concat();
        place
            .command(&[
                b"XADD" as &[u8],
                b"{chasqui:emails}:dlq",
                b"*",
                b"d",
                &envelope,
                b"source_id",
                b"1-1",
                b"reason",
                b"unrecoverable",
            ])
            .await;
    }
    let letters = place.letters("chasqui:emails");
    let mut dropped = 0;
    for steps in 0.. {
        let replay = replay(&letters, 1).limit(5).rate(1_000);
        let is_done = {
            let mut run = pin!(replay.run(pending(), |_| {}));
            let mut is_done = false;
            for _ in 0..steps {
                if let Poll::Ready(report) =
                    run.as_mut().poll(&mut Context::from_waker(Waker::noop()))
                {
                    is_done = report.unwrap().sent == 0;
                    break;
                }
                // A step ends with an answer of the server.
                place.words("PING").await;
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
            is_done
        };
        dropped += 1;
        if is_done || dropped > 200 {
            break;
        }
    }
    while sent(&replay(&letters, 2)).await.0 > 0 {}
    let arrived = stream(&place).await;
    let mut ids: Vec<_> = arrived.iter().map(|fields| fields[0].1.clone()).collect();
    let count = ids.len();
    ids.sort();
    ids.dedup();
    assert_eq!((count, ids.len()), (44, 44), "after {dropped} drops");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_written_leaves_the_letter_where_it_is() {
    let Some(place) = ForeignServer::with(CHASQUIMQ).await else { return };
    let letters = place.letters("chasqui:emails");
    let before = place.dump().await;
    let (count, _, failed) = sent(&replay(&letters, 1)).await;
    assert_eq!((count, failed.len()), (0, 4));
    assert!(failed[0].contains("`{chasqui:emails}:stream` is not there"), "{failed:?}");
    assert_eq!(place.dump().await, before);
    place.words("SET {chasqui:emails}:stream text").await;
    let before = place.dump().await;
    let (_, _, failed) = sent(&replay(&letters, 1)).await;
    assert!(failed[0].contains("is a string"), "{failed:?}");
    assert_eq!(place.dump().await, before);
    // Out of memory: the first write of the script is the one that gives the job away.
    place.words("DEL {chasqui:emails}:stream").await;
    place.words(&format!("XGROUP CREATE {STREAM} default 0 MKSTREAM")).await;
    let before = place.dump().await;
    place.words("CONFIG SET maxmemory 1").await;
    let report = replay(&letters, 1).run(pending(), |_| {}).await.unwrap();
    assert_eq!((report.sent, report.left), (0, 4), "{report}");
    assert!(report.stopped.unwrap().to_string().contains("memory"));
    place.words("CONFIG SET maxmemory 0").await;
    assert_eq!(place.dump().await, before);
    assert_eq!(sent(&replay(&letters, 1)).await.0, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_sent_is_known_after_a_restart() {
    let Some(mut place) = chasquimq().await else { return };
    let letters = place.letters("chasqui:emails");
    assert_eq!(sent(&replay(&letters, 1)).await.0, 4);
    place.restart();
    assert_eq!(sent(&replay(&place.letters("chasqui:emails"), 2)).await.0, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn g6_jobs_of_bullmq_go_where_its_own_retry_puts_them() {
    let Some(place) = ForeignServer::with(BULLMQ).await else { return };
    let letters = place.letters("bull:mail:failed");
    let (count, _, failed) = sent(&replay(&letters, 1)).await;
    assert_eq!(count, 6, "{failed:?}");
    assert_eq!(failed.len(), 1);
    assert!(
        failed[0].starts_with("child-1 ") && failed[0].contains("use `job.retry()`"),
        "{failed:?}"
    );
    let list = place.words("LRANGE bull:mail:wait 0 -1").await;
    let mut waiting: Vec<String> = redis::from_redis_value(list).unwrap();
    assert_eq!(
        waiting.pop().as_deref(),
        Some("6"),
        "last in, first out: at the end that is taken first"
    );
    waiting.sort();
    assert_eq!(waiting, ["1", "2", "5", "order-3"]);
    let first = place.words("ZRANGE bull:mail:prioritized 0 -1 WITHSCORES").await;
    let first: Vec<String> = redis::from_redis_value(first).unwrap();
    assert_eq!(first[0], "4");
    let score: f64 = first[1].parse().unwrap();
    assert_eq!((score / 4_294_967_296.0).floor(), 4.0);
    assert_eq!(place.count("ZCARD bull:mail:marker").await, 1);
    assert_eq!(place.count("XLEN bull:mail:events").await, 6);
    assert_eq!(place.count("HEXISTS bull:mail:1 failedReason").await, 0);
    assert_eq!(place.count("HEXISTS bull:mail:1 data").await, 1);
    assert_eq!(place.count("ZCARD bull:mail:failed").await, 1);
    // A queue that waits is not woken, and nothing is sent twice.
    assert_eq!(sent(&replay(&letters, 2)).await.0, 0);
    // It fails again.
    place.words("LREM bull:mail:wait 0 1").await;
    place.words("HSET bull:mail:1 finishedOn 1795633999000 failedReason again atm 3").await;
    place.words("ZADD bull:mail:failed 1795633999000 1").await;
    let again = all(&letters).await;
    let again = again.iter().find(|one| one.message.id() == Some("1")).unwrap();
    assert_eq!((again.generation, again.state.replays, &*again.error()), (1, 1, "again"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_of_bullmq_of_which_too_little_is_known_is_left_alone() {
    let Some(place) = ForeignServer::with(BULLMQ).await else { return };
    let letters = place.letters("bull:mail:failed");
    for (change, why) in [
        ("HDEL bull:mail:meta version", "does not say that BullMQ 6"),
        ("HSET bull:mail:meta version bullmq:6.7.0 concurrency 3", "a limit of its own"),
        ("SET bull:mail:wait text", "`bull:mail:wait` is a string and no list"),
    ] {
        place.words(change).await;
        let before = place.dump().await;
        let (count, _, failed) = sent(&replay(&letters, 1)).await;
        assert_eq!((count, failed.len()), (0, 7), "{change}");
        assert!(failed.iter().any(|text| text.contains(why)), "{failed:?}");
        assert_eq!(place.dump().await, before, "{change}");
    }
    place.words("DEL bull:mail:wait").await;
    place.words("HDEL bull:mail:meta concurrency").await;
    place.words("HSET bull:mail:meta paused 1").await;
    place.words("DEL bull:mail:marker").await;
    assert_eq!(sent(&replay(&letters, 1)).await.0, 6);
    assert_eq!(place.count("EXISTS bull:mail:marker").await, 0, "nobody is woken");
}

#[tokio::test(flavor = "multi_thread")]
async fn g6_messages_of_dramatiq_go_where_its_broker_puts_them() {
    let Some(place) = ForeignServer::with(DRAMATIQ).await else { return };
    let letters = place.letters("dramatiq:mail.XQ");
    let before = all(&letters).await;
    // One that names another queue, and one that is no message.
    place.words(r#"HSET dramatiq:mail.XQ.msgs odd {"queue_name":"x","actor_name":"a","message_id":"odd","options":{"redis_message_id":"odd"}}"#).await;
    place.words("HSET dramatiq:mail.XQ.msgs none []").await;
    place.words("ZADD dramatiq:mail.XQ 1 odd 2 none").await;
    place.words("SET dramatiq:mail text").await;
    let untouched = place.dump().await;
    let (count, _, failed) = sent(&replay(&letters, 1)).await;
    assert_eq!((count, failed.len()), (0, 5));
    assert!(failed[0].contains("`dramatiq:mail` is a string and no list"), "{failed:?}");
    assert_eq!(place.dump().await, untouched);
    place.words("DEL dramatiq:mail").await;
    let (count, skipped, failed) = sent(&replay(&letters, 1)).await;
    assert_eq!((count, skipped), (4, vec![(Skipped::NoOrigin, 1)]));
    assert!(failed[0].contains("names another queue"), "{failed:?}");
    let ids: Vec<String> =
        redis::from_redis_value(place.words("LRANGE dramatiq:mail 0 -1").await).unwrap();
    for (id, letter) in ids.iter().zip(&before) {
        assert_eq!(letter.attributes["dramatiq.redis-message-id"], *id);
        let bytes = place.words(&format!("HGET dramatiq:mail.msgs {id}")).await;
        let bytes: Vec<u8> = redis::from_redis_value(bytes).unwrap();
        assert_eq!(letter.message.payload().unwrap(), &bytes[..]);
    }
    assert_eq!(ids.len(), 4);
    assert_eq!(place.count("HLEN dramatiq:mail.XQ.msgs").await, 2);
    assert_eq!(sent(&replay(&letters, 2)).await.0, 0);
    // It dies again.
    let bytes = before[0].message.payload().unwrap();
    place.command(&[b"HSET" as &[u8], b"dramatiq:mail.XQ.msgs", ids[0].as_bytes(), bytes]).await;
    place.words(&format!("ZADD dramatiq:mail.XQ 1795633999000 {}", ids[0])).await;
    let again = all(&letters).await;
    let again = again.iter().find(|one| one.id == before[0].id).unwrap();
    assert_eq!((again.generation, again.state.replays), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn rq_is_named_with_what_to_use() {
    let Some(place) = ForeignServer::with(RQ).await else { return };
    let before = place.dump().await;
    {
        let letters = place.letters("rq:failed:mail");
        let replay = ForeignReplay::new(&letters, Filter::new(), operation(1));
        let plan = replay.plan().await.unwrap_err();
        let run = replay.run(pending(), |_| {}).await.unwrap_err();
        for error in [plan, run] {
            assert_eq!(error.kind(), StoreErrorKind::Refused);
            assert!(error.to_string().contains("rq requeue"), "{error}");
        }
        assert!(letters.marks().await.unwrap().is_empty());
    }
    assert_eq!(place.dump().await, before);
}

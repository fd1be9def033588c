//! Letters arrive at their origin, elsewhere, or at their handler.

use std::future::pending;
use std::time::Duration;

use async_nats::jetstream::stream;
use dlq_core::store::Letters;
use dlq_core::{
    DeadLetter, DelayedRetry, DeliveredFrom, Disposition, Filter, Message, OperationId, Order,
    PageRequest, RetryQueue, Settle, Sink, Source, Timestamp,
};
use dlq_nats::{
    DlqStream, NatsLetters, NatsReplay, NatsSink, NatsTarget, ReplayOutcome, RetryStream,
};
use dlq_testkit::fixtures::{failed, letter_of};
use tokio::time::timeout;

use super::{assert_once, bury, dead, replays, to_origin};
use crate::fixture::{
    LEASE, Server, available, billing, consumer, handle, next, now, number, read,
};

/// A letter of `billing` for a message that stood on the stream.
async fn died(server: &Server, payload: &str) -> (DeadLetter, NatsLetters) {
    let mut headers = async_nats::HeaderMap::new();
    headers.insert("key", "customer-7");
    headers.insert("traceparent", "00-1-2-01");
    headers.insert("Nats-Msg-Id", "evt-1");
    let payload = payload.to_owned().into();
    let sent = server.context.publish_with_headers("orders.created", headers, payload).await;
    sent.unwrap().await.unwrap();
    let mut source = server.source(&billing()).await;
    let original = handle(&mut source).await.unwrap();
    source.close().await;
    assert_eq!(original.message().id(), Some("evt-1"));
    let mut letter = letter_of(original.message().clone(), 1);
    letter.origin = original.origin().clone();
    letter.consumer = "billing".to_owned();
    letter.id = original.death("billing").letter;
    let sink = NatsSink::open(&server.client, DlqStream::new()).await.unwrap();
    sink.put(vec![letter.clone()]).await.unwrap();
    let letters = NatsLetters::new(&server.client, DlqStream::new()).key_header("key");
    (letter, letters)
}

fn replay(letters: &NatsLetters, target: NatsTarget) -> NatsReplay {
    let operation = OperationId::of("ana", Timestamp::EPOCH, 1);
    NatsReplay::new(letters, Filter::new(), target, operation)
}

async fn run(replay: NatsReplay) -> u64 {
    let report = replay.run(pending(), |_| {}).await.unwrap();
    assert!(report.is_complete() && report.failed == 0, "{report}");
    report.sent
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_a_letter_is_sent_to_its_origin() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let (letter, letters) = died(&server, "1").await;
    assert_eq!(run(replay(&letters, NatsTarget::Origin)).await, 1);
    let mut source = server.source(&billing()).await;
    let again = handle(&mut source).await.unwrap();
    assert_eq!(
        (number(&again), again.delivered_from(), again.attempt()),
        (1, DeliveredFrom::Main, 1)
    );
    assert_eq!(again.message(), &letter.message, "id, key and headers are the producer's");
    let death = again.death("billing");
    assert_eq!((death.letter, death.generation, again.replays()), (letter.id, 1, 1));
    assert!(timeout(LEASE, source.next()).await.is_err(), "once");
    let stored = replays(&server).await.pop().unwrap();
    let header = |name: &str| stored.headers.get(name).unwrap().as_str().to_owned();
    assert_eq!((header("retry.count"), header("replay.from-dlq")), ("0".into(), "DLQ@1".into()));
    assert_eq!(
        (header("traceparent"), header("dlq.consumer")),
        ("00-1-2-01".into(), "billing".into())
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_a_letter_is_sent_to_its_handler_and_to_nobody_else() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    // Larger than what fits beside our headers.
    let payload = format!("1{}", " ".repeat(server.client.max_payload() - 200));
    let (letter, letters) = died(&server, &payload).await;
    let mut other = server.source(&consumer("shipping")).await;
    assert_eq!(handle(&mut other).await.unwrap().delivered_from(), DeliveredFrom::Main);
    let target = NatsTarget::Handler(RetryStream::new());
    assert_eq!(run(replay(&letters, target.clone())).await, 1);
    assert_eq!(run(replay(&letters, target)).await, 0);
    let mut source = server.source(&billing()).await;
    let (again, settle) = next(&mut source).await;
    assert_eq!(
        (again.delivered_from(), again.attempt(), again.delayed_retries()),
        (DeliveredFrom::Retry, 1, 0)
    );
    assert_eq!(again.message(), &letter.message);
    assert_eq!(again.history(), &letter.history);
    let death = again.death("billing");
    assert_eq!((death.letter, death.generation, again.replays()), (letter.id, 1, 1));
    // Its first hop to the retry stage is not taken for the replay.
    let queue = billing().retry_queue(&server.client).await.unwrap();
    let delayed_retry = DelayedRetry {
        delivery: again.clone(),
        consumer: "billing".into(),
        due: Timestamp::EPOCH,
        history: again.history().clone(),
        attempts: 1,
    };
    queue.enqueue(delayed_retry).await.unwrap();
    settle.settle(Disposition::Succeeded).await.unwrap();
    let retried = handle(&mut source).await.unwrap();
    assert_eq!(
        (retried.delivered_from(), retried.attempt(), retried.delayed_retries()),
        (DeliveredFrom::Retry, 2, 1)
    );
    assert!(timeout(LEASE, source.next()).await.is_err(), "once");
    assert!(timeout(Duration::from_millis(100), other.next()).await.is_err(), "nobody else");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_letter_that_stands_aside_is_sent_to_its_origin_and_elsewhere() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let config = stream::Config {
        name: "REPAIR".to_owned(),
        subjects: vec!["repair.>".to_owned()],
        ..stream::Config::default()
    };
    server.context.create_stream(config).await.unwrap();
    let mut large = dead(0..2);
    // The second fits only without what tells of its error, which the letter still knows.
    let long = "no ".repeat(900);
    for (letter, (room, error)) in large.iter_mut().zip([(1_500, "no"), (1_300, &long)]) {
        let payload = vec![b'x'; server.client.max_payload() - room];
        letter.message = letter.message.clone().with_payload(Some(payload.into()));
        *letter = failed(letter.clone(), error);
    }
    let letters = bury(&server, DlqStream::new(), large.clone()).await;
    let aside = server.stored("DLQ").await;
    let aside = aside.iter().filter(|stored| stored.subject.starts_with("dlq-aside."));
    assert!(aside.count() >= 2, "neither fits beside the headers of a letter");
    assert_eq!(run(to_origin(&letters, 2)).await, 2);
    let target = NatsTarget::Subject("repair.orders".to_owned());
    assert_eq!(run(replay(&letters, target).again()).await, 2);
    let there = server.context.get_stream("REPAIR").await.unwrap();
    let elsewhere = futures_util::future::join_all([1, 2].map(|n| there.get_raw_message(n))).await;
    let elsewhere = elsewhere.into_iter().map(Result::unwrap).collect();
    for mut sent in [replays(&server).await, elsewhere] {
        sent.sort_by_key(|message| message.payload.len());
        for (message, letter) in sent.iter().zip(&large) {
            assert_eq!(Some(&message.payload), letter.message.payload(), "byte for byte");
            assert!(message.headers.get("replay.id").is_some());
        }
        let tells = [0, 1].map(|n: usize| sent[n].headers.get("replay.original-error").is_some());
        assert_eq!(tells, [true, false]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_letter_that_no_handler_would_hear_is_not_sent() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let letters = bury(&server, DlqStream::new(), dead([1])).await;
    let target = NatsTarget::Handler(RetryStream::new());
    let refused = replay(&letters, target.clone()).plan().await.unwrap_err();
    assert!(refused.to_string().contains("no retry stream `DLQ_RETRY`"), "{refused}");
    server.source(&consumer("shipping")).await.close().await;
    let mut why = String::new();
    let replay = replay(&letters, target);
    let plan = replay.plan().await.unwrap();
    let unread = "no consumer called `billing` reads the retry stream";
    assert!(plan.notes.iter().any(|note| note.contains(unread)), "{:?}", plan.notes);
    let report = replay.run(pending(), |replayed| {
        if let ReplayOutcome::Failed(error) = &replayed.outcome {
            why = error.to_string();
        }
    });
    assert_eq!(report.await.unwrap().failed, 1);
    assert!(why.contains(unread), "{why}");
    assert_eq!(server.count("DLQ_RETRY").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_letter_whose_parts_have_gone_does_not_keep_list_and_replay_from_others() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let sink = NatsSink::open(&server.client, DlqStream::new()).await.unwrap();
    let large = Message::new("orders.large", vec![b'x'; server.client.max_payload() - 10]);
    let large = letter_of(large, 9);
    sink.put(vec![large.clone()]).await.unwrap();
    // Its first part is removed by an operator.
    let stream = server.context.get_stream("DLQ").await.unwrap();
    let parts = server.stored("DLQ").await;
    let part = parts.iter().position(|stored| stored.subject.starts_with("dlq-aside.")).unwrap();
    assert!(stream.delete_message(u64::try_from(part).unwrap() + 1).await.unwrap());
    // Somebody's headers that name what never was, no sequence, the same part and more parts than there can be.
    let many = (1..=5_000).map(|n| n.to_string()).collect::<Vec<_>>().join(",");
    let again = vec!["2"; 5_000].join(",");
    for rest in ["999999999", "0", "2,2", &again, &many] {
        let mut headers = async_nats::HeaderMap::new();
        headers.insert("dlq.nats.rest", rest);
        let sent = server.context.publish_with_headers("dlq.x", headers, "x".into()).await;
        sent.unwrap().await.unwrap();
    }
    let letters = bury(&server, DlqStream::new(), dead(1..=3)).await;
    let page = PageRequest::new().order(Order::OldestFirst);
    let found = now(&letters).list(Filter::new(), page).await.unwrap().letters;
    let wanted = dead(1..=3).into_iter().map(|letter| letter.id).collect::<Vec<_>>();
    assert_eq!(found.iter().map(|found| found.id).collect::<Vec<_>>(), wanted);
    assert_eq!(read(&letters, &Filter::new()).await.unwrap().len(), 3);
    assert_eq!(run(to_origin(&letters, 1)).await, 3);
    assert_once(&server, 1..=3).await;
}

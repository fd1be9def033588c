//! Letters are read from their stream while they come and go, beside what is no letter, and past a lost connection.

use std::future::ready;
use std::time::Duration;

use async_nats::Subscriber;
use dlq_core::log::{Content, Entries as _, Log as _, Range};
use dlq_core::store::Letters;
use dlq_core::{DeadLetter, Filter, Origin, Position, Sink, StoreError};
use dlq_nats::{DlqStream, NatsEntries, NatsLetters, NatsSink};
use dlq_testkit::fixtures::{died_again, letter};
use futures_util::{StreamExt, TryStreamExt};
use tokio::time::{sleep, timeout};

use super::{bury, dead};
use crate::fixture::{PATIENCE, Server, available, now};
use crate::warnings::Warnings;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_and_goes_is_seen() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let sink = NatsSink::open(&server.client, DlqStream::new()).await.unwrap();
    let letters = NatsLetters::new(&server.client, DlqStream::new());
    assert_eq!(now(&letters).count(Filter::new()).await.unwrap(), 0);
    for n in 1..=3 {
        sink.put(vec![letter(n)]).await.unwrap();
        assert_eq!(now(&letters).count(Filter::new()).await.unwrap(), n);
    }
    let stream = server.context.get_stream("DLQ").await.unwrap();
    stream.delete_message(2).await.unwrap();
    assert_eq!(now(&letters).count(Filter::new()).await.unwrap(), 2);
    assert_eq!(now(&letters).get(letter(2).id).await.unwrap(), None);
    // Another stream with as many letters under the same name.
    server.context.delete_stream("DLQ").await.unwrap();
    sink.put(vec![letter(8)]).await.unwrap();
    sink.put(vec![letter(9)]).await.unwrap();
    sink.put(vec![letter(10)]).await.unwrap();
    server.context.get_stream("DLQ").await.unwrap().delete_message(2).await.unwrap();
    assert!(now(&letters).get(letter(8).id).await.unwrap().is_some());
    assert_eq!(now(&letters).get(letter(1).id).await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_letter_is_passed_over() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let sink = NatsSink::open(&server.client, DlqStream::new()).await.unwrap();
    sink.put(vec![letter(1)]).await.unwrap();
    let stored = server.stored("DLQ").await.remove(0);
    let mut headers = stored.headers.clone();
    headers.insert("Nats-Msg-Id", "another");
    let publish = |subject: &'static str, headers: async_nats::HeaderMap, payload: &'static str| {
        let context = server.context.clone();
        async move {
            context
                .publish_with_headers(subject, headers, payload.into())
                .await
                .unwrap()
                .await
                .unwrap()
        }
    };
    // Foreign, without its identity, with other bytes, with another identity, with parts that are no sequences.
    publish("dlq.foreign", async_nats::HeaderMap::new(), "{}").await;
    publish("dlq.orders.created", headers.clone(), "tampered").await;
    let mut renamed = headers.clone();
    renamed.insert("Nats-Msg-Id", "third");
    renamed.insert("dlq.id", letter(3).id.to_string().as_str());
    publish("dlq.orders.created", renamed, "tampered").await;
    let mut torn = headers.clone();
    torn.insert("Nats-Msg-Id", "fourth");
    torn.insert("dlq.nats.rest", "{\"half\":");
    publish("dlq.orders.created", torn, "x").await;
    sink.put(vec![letter(2)]).await.unwrap();
    assert_eq!(server.count("DLQ").await, 6);
    let warnings = Warnings::default();
    let hears = tracing::subscriber::set_default(warnings.clone());
    let letters = NatsLetters::new(&server.client, DlqStream::new());
    assert_eq!(now(&letters).count(Filter::new()).await.unwrap(), 2);
    drop(hears);
    let told = warnings.with("something else than a letter");
    assert!(told.len() == 1, "one line for all: {told:?}");
    assert!(told[0].contains("messages=4") && told[0].contains("first_sequence=2"), "{told:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn letters_are_seen_as_they_arrive() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let sink = NatsSink::open(&server.client, DlqStream::new()).await.unwrap();
    sink.put(vec![letter(1)]).await.unwrap();
    sink.put(vec![letter(2)]).await.unwrap();
    sink.put(vec![died_again(&letter(1))]).await.unwrap();
    let letters = NatsLetters::new(&server.client, DlqStream::new());
    let mut scan = Scan::from(&letters, 2).await;
    let mut seen = Vec::new();
    while let Some((sequence, letter)) = scan.next().await.unwrap() {
        seen.push((sequence, letter.death()));
    }
    assert_eq!(seen, [(2, letter(2).death()), (3, died_again(&letter(1)).death())], "no collapse");
    let mut after = Scan::from(&letters, 4).await;
    assert!(after.next().await.unwrap().is_none(), "nothing was written from there on");
    let mut follow = Scan::on_from(&letters, 3).await;
    assert_eq!(follow.next().await.unwrap().unwrap().0, 3);
    // Waiting that is given up loses nothing.
    assert!(timeout(Duration::from_millis(20), follow.next()).await.is_err());
    sink.put(vec![letter(4)]).await.unwrap();
    let next = timeout(PATIENCE, follow.next()).await.unwrap().unwrap().unwrap();
    assert_eq!((next.0, next.1.message), (4, letter(4).message));
    // Its consumer is forgotten by a server that is killed.
    server.kill_and_restart().await;
    sink.put(vec![letter(5)]).await.unwrap();
    let next = async {
        loop {
            if let Ok(next) = follow.next().await {
                return next.unwrap();
            }
        }
    };
    assert_eq!(timeout(PATIENCE, next).await.unwrap().0, 5);
}

/// The entries of a reading, one by one.
struct Scan(NatsEntries);

impl Scan {
    async fn from(letters: &NatsLetters, sequence: u64) -> Self {
        let place = Origin::new("nats", "DLQ", Position::Offset(sequence));
        Self(letters.read(Range::all().from(place)).await.unwrap())
    }

    async fn on_from(letters: &NatsLetters, sequence: u64) -> Self {
        let place = Origin::new("nats", "DLQ", Position::Offset(sequence));
        Self(letters.read(Range::all().from(place).for_ever()).await.unwrap())
    }

    async fn next(&mut self) -> Result<Option<(u64, DeadLetter)>, StoreError> {
        let Some(entry) = self.0.next(1).await?.pop() else { return Ok(None) };
        let (&Position::Offset(at), Content::Letter(letter)) =
            (entry.place.position(), entry.content)
        else {
            panic!("only letters were written")
        };
        Ok(Some((at, *letter)))
    }
}

/// The consumer of the stream of dead letters by which somebody reads it.
async fn reader(server: &Server) -> String {
    let stream = server.context.get_stream("DLQ").await.unwrap();
    let names: Vec<String> = stream.consumer_names().try_collect().await.unwrap();
    let [reader] = &names[..] else { panic!("one reads: {names:?}") };
    reader.clone()
}

/// Asks the server to hand what a reader would be handed next to somebody else, as it does to a connection that is lost.
async fn divert(server: &Server, reader: &str, asked: serde_json::Value) -> Subscriber {
    let inbox = server.client.new_inbox();
    let lost = server.client.subscribe(inbox.clone()).await.unwrap();
    let subject = format!("$JS.API.CONSUMER.MSG.NEXT.DLQ.{reader}");
    let asked = asked.to_string().into();
    server.client.publish_with_reply(subject, inbox, asked).await.unwrap();
    lost
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_handed_to_a_lost_connection_is_read_again() {
    const MANY: u32 = 3_300;
    /// So many the reader asks for before it has read two.
    const ASKED: usize = 2_000;
    if !available() {
        return;
    }
    let server = Server::start().await;
    let letters = bury(&server, DlqStream::new(), dead(0..MANY)).await;
    // What comes before others, and all that is left.
    for lost in [300, MANY as usize - ASKED] {
        let mut scan = Scan::from(&letters, 1).await;
        let mut read = vec![scan.next().await.unwrap().unwrap().0];
        let reader = reader(&server).await;
        let asked = serde_json::json!({ "batch": lost, "no_wait": true });
        let mut diverted = divert(&server, &reader, asked).await;
        for _ in 0..lost {
            let message = timeout(PATIENCE, diverted.next()).await.expect("it is handed out");
            assert!(message.unwrap().status.is_none());
        }
        while let Some((sequence, _)) = scan.next().await.unwrap() {
            read.push(sequence);
        }
        assert_eq!(read, (1..=u64::from(MANY)).collect::<Vec<_>>());
        let stream = server.context.get_stream("DLQ").await.unwrap();
        let names: Vec<String> = stream.consumer_names().try_collect().await.unwrap();
        for name in names {
            stream.delete_consumer(&name).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_follows_misses_nothing_of_one_request() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let letters = bury(&server, DlqStream::new(), dead(0..3)).await;
    let mut scan = Scan::on_from(&letters, 1).await;
    let reading = async {
        let mut read = Vec::new();
        while read.len() < 23 {
            read.push(scan.next().await.unwrap().expect("it never ends").0);
        }
        read
    };
    let losing = async {
        let stream = server.context.get_stream("DLQ").await.unwrap();
        let waiting = async |requests: usize| loop {
            let names: Vec<String> = stream.consumer_names().try_collect().await.unwrap();
            if let Some(reader) = names.first()
                && stream.consumer_info(reader).await.unwrap().num_waiting == requests
            {
                return reader.clone();
            }
            sleep(Duration::from_millis(10)).await;
        };
        // Both wait for what comes, and are served in turn.
        let reader = waiting(1).await;
        let asked = serde_json::json!({ "batch": 5, "expires": PATIENCE.as_nanos() });
        let diverted = divert(&server, &reader, asked).await;
        waiting(2).await;
        bury(&server, DlqStream::new(), dead(3..23)).await;
        let served = diverted.filter(|message| ready(message.status.is_none())).take(5);
        assert_eq!(timeout(PATIENCE, served.count()).await.expect("it was served"), 5);
    };
    let both = async { tokio::join!(reading, losing).0 };
    let read = timeout(PATIENCE, both).await.expect("all come");
    assert_eq!(read, (1..=23).collect::<Vec<_>>());
}

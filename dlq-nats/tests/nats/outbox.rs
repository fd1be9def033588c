//! Letters of a store go back to their streams, each once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, pull};
use async_nats::jetstream::{self, stream};
use async_nats::{Client, ConnectOptions};
use dlq_core::outbox::{Once, Outbox, Outgoing, Sent, Settled};
use dlq_core::protocol::Replay;
use dlq_core::store::Target;
use dlq_core::{
    Clock, DeadLetter, LetterId, Message, OperationId, Origin, Position, StoreErrorKind,
    SystemClock, Timestamp,
};
use dlq_nats::{NatsOutbox, RetryStream};
use dlq_testkit::fixtures::{CONSUMER, letter};
use dlq_testkit::outbox::OutboxFixture;
use tokio::time::{Instant, timeout};

use crate::fixture::{PATIENCE, STREAM, Server, available, billing, next};
use crate::letters::users;

mod conformance {
    dlq_testkit::outbox_conformance!(super::Fixture);
}

const MARKER: &str = "orders.marker";

#[derive(Debug)]
struct Fixture {
    server: Server,
    /// The connections of senders.
    clients: Mutex<HashMap<String, Client>>,
}

impl OutboxFixture for Fixture {
    type Outbox = NatsOutbox;

    fn is_available() -> bool {
        available()
    }

    async fn fresh(_: &'static str) -> Self {
        Self { server: Server::start().await, clients: Mutex::default() }
    }

    async fn outbox(&self, sender: &str) -> NatsOutbox {
        let url = self.server.running().url().to_owned();
        let client = ConnectOptions::new().connect(url).await.unwrap();
        self.clients.lock().unwrap().insert(sender.to_owned(), client.clone());
        NatsOutbox::new(&client).sender(sender).key_header("key")
    }

    fn letter(&self, n: u64) -> DeadLetter {
        born(n)
    }

    fn unacceptable(&self, _: &NatsOutbox, n: u64) -> DeadLetter {
        let mut letter = born(n);
        letter.message = letter.message.with_payload(Some(vec![b'x'; 2 * 1024 * 1024].into()));
        letter
    }

    async fn listen(&self, consumer: &str) -> bool {
        let config = pull::Config {
            durable_name: Some(consumer.to_owned()),
            ack_policy: AckPolicy::Explicit,
            ..pull::Config::default()
        };
        let stream = self.server.context.get_stream(STREAM).await.unwrap();
        stream.create_consumer(config).await.unwrap();
        true
    }

    /// What was published before on a connection is kept before what follows.
    async fn calm(&self, outbox: &NatsOutbox) {
        let client = self.clients.lock().unwrap()[outbox.sender()].clone();
        let kept = jetstream::new(client).publish(MARKER, "".into()).await.unwrap();
        kept.await.unwrap();
    }

    async fn arrived(&self) -> Vec<Message> {
        arrived(&self.server, STREAM).await
    }
}

async fn arrived(server: &Server, stream: &str) -> Vec<Message> {
    let stream = server.context.get_stream(stream).await.unwrap();
    let last = stream.cached_info().state.last_sequence;
    let mut stored = Vec::new();
    for sequence in 1..=last {
        stored.push(stream.get_raw_message(sequence).await.unwrap());
    }
    let stored = stored.into_iter().filter(|stored| &*stored.subject != MARKER);
    let messages = stored.map(|stored| {
        let mut message = Message::new(&*stored.subject, stored.payload);
        for (name, values) in stored.headers.iter() {
            for value in values {
                let (name, value) = (name.to_string(), value.as_str().to_owned());
                if name == "key" {
                    message = message.with_key(value.clone());
                }
                message = message.with_header(name, value);
            }
        }
        message
    });
    messages.collect()
}

/// The `n`-th letter of the testkit, as one that was born here.
fn born(n: u64) -> DeadLetter {
    let mut letter = letter(n);
    letter.origin = Origin::new("nats", STREAM, Position::Offset(n));
    letter.id = LetterId::of(&letter.origin, letter.message.published_at(), CONSUMER);
    letter
}

fn outgoing(outbox: &NatsOutbox, letter: DeadLetter, to: &Target) -> Outgoing {
    let operation = OperationId::from_bytes([3; 16]);
    Outgoing {
        to: outbox.route(&letter, to).unwrap(),
        once: Once::in_operation(letter.death(), operation),
        replay: Replay { operation, count: 1, from: "store".to_owned(), at: Timestamp::EPOCH },
        letter: Arc::new(letter),
    }
}

fn outbox(server: &Server) -> NatsOutbox {
    NatsOutbox::new(&server.client).key_header("key")
}

/// To their origin.
fn batch(outbox: &NatsOutbox, numbers: impl IntoIterator<Item = u64>) -> Vec<Outgoing> {
    numbers.into_iter().map(|n| outgoing(outbox, born(n), &Target::Origin)).collect()
}

async fn send(outbox: &NatsOutbox, batch: Vec<Outgoing>) -> Vec<Sent> {
    outbox.send(batch, Instant::now() + PATIENCE).await.unwrap()
}

async fn settle(outbox: &NatsOutbox, since: Timestamp, batch: Vec<Outgoing>) -> Vec<Settled> {
    outbox.settle("dead".to_owned(), since, batch).await.unwrap()
}

async fn update(server: &Server, change: impl FnOnce(&mut stream::Config)) {
    let mut config = stream::Config {
        name: STREAM.to_owned(),
        subjects: vec!["orders.>".to_owned()],
        ..stream::Config::default()
    };
    change(&mut config);
    server.context.update_stream(config).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_settle_says_unclear_where_messages_may_have_gone() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let (outbox, since) = (outbox(&server), SystemClock.now());
    assert!(send(&outbox, batch(&outbox, 1..=3)).await.iter().all(Sent::is_confirmed));
    let settled = settle(&outbox, since, batch(&outbox, 1..=4)).await;
    assert!(matches!(settled[..], [.., Settled::Arrived(_), Settled::Not]), "{settled:?}");
    let stream = server.context.get_stream(STREAM).await.unwrap();
    stream.delete_message(2).await.unwrap();
    let settled = settle(&outbox, since, batch(&outbox, 1..=4)).await;
    let [Settled::Arrived(_), Settled::Unclear(why), Settled::Arrived(_), Settled::Unclear(_)] =
        &settled[..]
    else {
        panic!("{settled:?}");
    };
    assert!(why.contains("lost messages"), "{why}");
    stream.purge().await.unwrap();
    let settled = settle(&outbox, since, batch(&outbox, [1])).await;
    assert!(matches!(settled[..], [Settled::Unclear(_)]), "{settled:?}");
    // One that was made anew does not know what its predecessor had.
    server.context.delete_stream(STREAM).await.unwrap();
    let settled = settle(&outbox, since, batch(&outbox, [1])).await;
    assert!(matches!(settled[..], [Settled::Unclear(_)]), "{settled:?}");
    server.create_stream().await;
    let settled = settle(&outbox, since, batch(&outbox, [1])).await;
    let [Settled::Unclear(why)] = &settled[..] else { panic!("{settled:?}") };
    assert!(why.contains("created since"), "{why}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_settle_finds_what_a_work_queue_still_has() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let config = stream::Config {
        name: "JOBS".to_owned(),
        subjects: vec!["jobs.>".to_owned()],
        retention: stream::RetentionPolicy::WorkQueue,
        ..stream::Config::default()
    };
    server.context.create_stream(config).await.unwrap();
    let (outbox, since) = (outbox(&server), SystemClock.now());
    let to = Target::Subject("jobs.again".to_owned());
    let batch = |numbers: &[u64]| -> Vec<Outgoing> {
        numbers.iter().map(|n| outgoing(&outbox, born(*n), &to)).collect()
    };
    assert!(send(&outbox, batch(&[1])).await[0].is_confirmed());
    let settled = settle(&outbox, since, batch(&[1, 2])).await;
    assert!(matches!(settled[..], [Settled::Arrived(_), Settled::Unclear(_)]), "{settled:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_beyond_the_duplicate_window_settle_knows_what_arrived() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    update(&server, |config| config.duplicate_window = Duration::from_millis(100)).await;
    let (outbox, since) = (outbox(&server), SystemClock.now());
    let survey = outbox.survey([batch(&outbox, [1])[0].to.clone()].into()).await.unwrap();
    assert_eq!(survey.short_window(Duration::from_secs(30)), Some(Duration::from_millis(100)));
    assert!(send(&outbox, batch(&outbox, [1])).await[0].is_confirmed());
    tokio::time::sleep(Duration::from_millis(300)).await;
    let settled = settle(&outbox, since, batch(&outbox, [1, 2])).await;
    assert!(matches!(settled[..], [Settled::Arrived(_), Settled::Not]), "{settled:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_a_lost_answer_leaves_the_letter_unknown_until_it_is_settled() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let (outbox, since) = (outbox(&server), SystemClock.now());
    update(&server, |config| config.no_ack = true).await;
    let sent = send(&outbox, batch(&outbox, [1, 2])).await;
    assert!(sent.iter().all(|sent| matches!(sent, Sent::Unknown(_))), "{sent:?}");
    update(&server, |_| {}).await;
    let settled = settle(&outbox, since, batch(&outbox, [1, 2, 3])).await;
    let arrived = settled.iter().map(|one| matches!(one, Settled::Arrived(_)));
    assert_eq!(arrived.collect::<Vec<_>>(), [true, true, false], "{settled:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_a_server_that_is_killed_keeps_each_letter_once() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let (outbox, since) = (outbox(&server), SystemClock.now());
    assert!(send(&outbox, batch(&outbox, 1..=2)).await.iter().all(Sent::is_confirmed));
    tokio::task::block_in_place(|| server.running().stop().unwrap());
    // At first the client does not know.
    let mut open: Vec<u64> = (3..=8).collect();
    let until = Instant::now() + Duration::from_secs(2);
    if let Ok(sent) = outbox.send(batch(&outbox, open.clone()), until).await {
        let is_open = sent.iter().all(|one| matches!(one, Sent::Later(_) | Sent::Unknown(_)));
        assert!(is_open, "{sent:?}");
    }
    server.kill_and_restart().await;
    let settled = settle(&outbox, since, batch(&outbox, open.clone())).await;
    let mut arrived = settled.iter().map(|one| matches!(one, Settled::Arrived(_)));
    open.retain(|_| !arrived.next().unwrap());
    assert!(send(&outbox, batch(&outbox, open)).await.iter().all(Sent::is_confirmed));
    assert_eq!(server.count(STREAM).await, 8);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_server_refuses_now_and_for_good_is_told_apart() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let outbox = outbox(&server);
    update(&server, |config| {
        config.max_messages = 1;
        config.discard = stream::DiscardPolicy::New;
    })
    .await;
    assert!(send(&outbox, batch(&outbox, [1])).await[0].is_confirmed());
    let sent = send(&outbox, batch(&outbox, [2])).await;
    let [Sent::Later(error)] = &sent[..] else { panic!("{sent:?}") };
    assert!(error.is_transient() && error.to_string().contains("is full"), "{error}");
    update(&server, |_| {}).await;
    assert!(send(&outbox, batch(&outbox, [2])).await[0].is_confirmed());

    let to = |subject: &str| Target::Subject(subject.to_owned());
    let mut elsewhere = born(4);
    elsewhere.origin = Origin::new("nats", "GONE", Position::Offset(4));
    let keyless = NatsOutbox::new(&server.client);
    let hopeless = vec![
        outgoing(&outbox, born(3), &to("nobody.keeps.this")),
        outgoing(&outbox, born(3), &to("orders.*")),
        outgoing(&outbox, elsewhere, &Target::Origin),
    ];
    for sent in send(&outbox, hopeless).await {
        assert!(matches!(sent, Sent::Refused(_)), "{sent:?}");
    }
    let sent = send(&keyless, batch(&keyless, [5])).await;
    let [Sent::Refused(error)] = &sent[..] else { panic!("{sent:?}") };
    assert!(error.to_string().contains("it has a key"), "{error}");
    // Of these the survey says so.
    let closed = outgoing(&outbox, born(3), &to("nobody.keeps.this")).to;
    let survey = outbox.survey([closed.clone()].into()).await.unwrap();
    assert!(survey.closed[&closed].contains("no stream keeps"), "{survey:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g8_a_letter_whose_headers_nats_cannot_carry_is_refused_and_not_stripped() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let outbox = outbox(&server);
    let with = |n, name: &[u8], value: &[u8]| {
        let mut letter = born(n);
        letter.message = letter.message.with_header(name.to_vec(), value.to_vec());
        outgoing(&outbox, letter, &Target::Origin)
    };
    let lost = vec![
        with(1, b"trace", b"a\nb"),
        with(2, b"two words", b"a"),
        with(3, b"binary", b"\xff"),
        with(4, b"plain", b"a"),
    ];
    let sent = send(&outbox, lost).await;
    for (sent, name) in sent.iter().zip(["`trace`", "`two words`", "`binary`"]) {
        let Sent::Refused(error) = sent else { panic!("{name}: {sent:?}") };
        assert!(error.to_string().contains(name), "{error}");
    }
    assert!(sent[3].is_confirmed(), "{sent:?}");
    assert_eq!(server.count(STREAM).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_what_nobody_wants_is_not_taken_for_sent() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let config = stream::Config {
        name: "NEWS".to_owned(),
        subjects: vec!["news.>".to_owned()],
        retention: stream::RetentionPolicy::Interest,
        ..stream::Config::default()
    };
    let stream = server.context.create_stream(config).await.unwrap();
    let outbox = outbox(&server);
    let one = || outgoing(&outbox, born(1), &Target::Subject("news.again".to_owned()));
    let survey = outbox.survey([one().to].into()).await.unwrap();
    assert!(survey.closed.contains_key(&one().to), "{survey:?}");
    let sent = send(&outbox, vec![one()]).await;
    assert!(matches!(sent[..], [Sent::Refused(_)]), "{sent:?}");
    let reader =
        pull::Config { durable_name: Some("reader".to_owned()), ..pull::Config::default() };
    stream.create_consumer(reader).await.unwrap();
    assert!(send(&outbox, vec![one()]).await[0].is_confirmed());
    assert_eq!(server.count("NEWS").await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_survey_names_the_rights_that_are_missing() {
    if !available() {
        return;
    }
    let may = r#"{ publish: { allow: ["$JS.API.>", "$SYS.REQ.USER.INFO", "orders.other"] } }"#;
    let server = Server::bare(&[("authorization", &users(may))], "root", "root").await;
    let client = server.connect("app", "app").await;
    let outbox = NatsOutbox::new(&client).key_header("key");
    let error = outbox.survey([batch(&outbox, [1])[0].to.clone()].into()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::InvalidConfig, "{error}");
    assert!(error.to_string().contains("may not publish to `orders.created`"), "{error}");
    let other = outgoing(&outbox, born(1), &Target::Subject("orders.other".to_owned()));
    assert!(outbox.survey([other.to].into()).await.unwrap().closed.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_letter_goes_to_its_handler_by_the_retry_stream() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let consumer = billing().retry_stream(RetryStream::new());
    let mut source = server.source(&consumer).await;
    let outbox = outbox(&server).retry_stream(RetryStream::new());
    let mut letter = born(1);
    letter.consumer = "billing".to_owned();
    letter.id = LetterId::of(&letter.origin, letter.message.published_at(), "billing");
    let one = || outgoing(&outbox, letter.clone(), &Target::Handler);
    assert!(outbox.survey([one().to].into()).await.unwrap().closed.is_empty());
    let sent = send(&outbox, vec![one(), one()]).await;
    assert!(sent.iter().all(Sent::is_confirmed), "{sent:?}");
    let (delivery, _settle) = next(&mut source).await;
    assert_eq!(delivery.message().payload(), letter.message.payload());
    assert_eq!(delivery.death("billing").generation, 1);
    assert_eq!(server.count("DLQ_RETRY").await, 1);
    let mut deaf = letter.clone();
    deaf.consumer = "nobody".to_owned();
    let to = outgoing(&outbox, deaf, &Target::Handler).to;
    let survey = timeout(PATIENCE, outbox.survey([to.clone()].into())).await.unwrap().unwrap();
    assert!(survey.closed.contains_key(&to), "{survey:?}");
}

//! The stream of dead letters.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_nats::jetstream::stream::DiscardPolicy;
use dlq_core::store::Receipt;
use dlq_core::{
    DeadLetter, Delivery, ErrorClass, Filter, Message, Sink, StoreError, StoreErrorKind, protocol,
};
use dlq_nats::{DlqStream, NatsLetters, NatsSink};
use dlq_testkit::fixtures::{died_again, hostile_messages, letter, letter_of};
use dlq_tower::consumer::Consumer;
use dlq_tower::handler::handler;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::fixture::{PATIENCE, STREAM, Server, available, billing, read};
use crate::warnings::Warnings;

async fn sink(server: &Server) -> NatsSink {
    NatsSink::open(&server.client, DlqStream::new()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g8_a_letter_is_on_the_stream_byte_for_byte() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let sink = sink(&server).await;
    let message = Message::new("orders.eu.created", vec![0, 255, b'\r', b'\n', 0xc3])
        .with_header("Nats-Msg-Id", "evt-1")
        .with_header("Nats-Rollup", "all")
        .with_header("Nats-TTL", "1s")
        .with_header("Nats-Expected-Stream", "ORDERS")
        .with_header("trace", "a: b")
        .with_header("trace", "Ärger")
        .with_id("evt-1");
    let letter = letter_of(message, 1);
    assert_eq!(sink.put(vec![letter.clone()]).await.unwrap(), [Receipt::Stored]);
    let stored = server.stored("DLQ").await;
    assert_eq!(stored.len(), 1);
    let stored = &stored[0];
    assert_eq!(stored.subject, "dlq.orders.eu.created");
    assert_eq!(Some(&stored.payload), letter.message.payload());
    let header = |name: &str| stored.headers.get(name).map(|value| value.as_str().to_owned());
    let all = |name: &str| -> Vec<String> {
        stored.headers.get_all(name).map(|value| value.as_str().to_owned()).collect()
    };
    assert_eq!(all("trace"), ["a: b", "Ärger"], "the producer's headers are untouched");
    assert_eq!(header(protocol::names::DLQ_ID), Some(letter.id.to_string()));
    assert_eq!(header(protocol::names::ERROR_REASON).as_deref(), Some("exhausted"));
    assert_eq!(header("dlq.kept.Nats-Rollup").as_deref(), Some("all"));
    for name in ["Nats-Rollup", "Nats-TTL"] {
        assert_eq!(header(name), None, "{name} would act upon the stream");
    }
    assert!(header("Nats-Msg-Id").is_some_and(|id| id.starts_with(&letter.death().to_string())));
    assert_eq!(header("Nats-Expected-Stream").as_deref(), Some("DLQ"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g8_no_letter_is_refused_for_its_content() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let sink = sink(&server).await;
    let letters: Vec<_> =
        hostile_messages().into_iter().zip(1..).map(|((_, m), n)| letter_of(m, n)).collect();
    let receipts = sink.put(letters.clone()).await.unwrap();
    assert_eq!(receipts, vec![Receipt::Stored; letters.len()]);
    let stored = server.stored("DLQ").await;
    assert!(
        stored.iter().any(|stored| stored.subject.starts_with("dlq-aside.")),
        "one is too long"
    );
    let read =
        read(&NatsLetters::new(&server.client, DlqStream::new()), &Filter::new()).await.unwrap();
    assert_eq!(read.len(), letters.len());
    for letter in letters {
        let read = read.iter().find(|read| read.letter.id == letter.id).unwrap().letter.clone();
        // When it came to the stream is the stream's to say.
        assert_eq!(read.with_state(letter.state.clone()), letter);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g2_one_letter_per_death() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let sink = sink(&server).await;
    let first = letter(1);
    let mut other_bytes = first.clone();
    other_bytes.message = other_bytes.message.with_payload(Some("other".into()));
    let put = |letter: &DeadLetter| sink.put(vec![letter.clone()]);
    assert_eq!(put(&first).await.unwrap(), [Receipt::Stored]);
    assert_eq!(put(&first).await.unwrap(), [Receipt::Unchanged]);
    server.kill_and_restart().await;
    assert_eq!(put(&first).await.unwrap(), [Receipt::Unchanged], "the server knows it still");
    assert_eq!(put(&died_again(&first)).await.unwrap(), [Receipt::Stored]);
    assert_eq!(put(&other_bytes).await.unwrap(), [Receipt::Stored], "no bytes are swallowed");
    assert_eq!(server.count("DLQ").await, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payload_that_does_not_fit_beside_the_headers_stands_on_its_own() {
    if !available() {
        return;
    }
    let server = Server::with("max_payload", "65536").await;
    let sink = sink(&server).await;
    let payload: Vec<u8> = (0..64_000_u32).map(|n| n.to_le_bytes()[0]).collect();
    let large = letter_of(Message::new("orders.created", payload.clone()), 1);
    assert_eq!(sink.put(vec![large.clone()]).await.unwrap(), [Receipt::Stored]);
    assert_eq!(sink.put(vec![large.clone()]).await.unwrap(), [Receipt::Unchanged]);
    let stored = server.stored("DLQ").await;
    let subjects: Vec<_> = stored.iter().map(|stored| stored.subject.as_str()).collect();
    let aside = format!("dlq-aside.{}", large.id);
    assert_eq!(subjects, [aside.as_str(), &aside, &aside, "dlq.orders.created"]);
    assert_eq!([&*stored[0].payload, &stored[1].payload].concat(), payload, "byte for byte");
    assert!(stored[3].payload.is_empty());
    // Whoever asks for one of them gets it as Base64, which may have to pass a leaf node.
    let largest = stored.iter().map(|stored| stored.payload.len()).max().unwrap();
    assert!(largest.div_ceil(3) * 4 < 65_536, "{largest}");
    // More than the server takes in one message at all: from elsewhere.
    let huge = letter_of(Message::new("orders.created", vec![7; 150_000]), 2);
    assert_eq!(sink.put(vec![huge.clone()]).await.unwrap(), [Receipt::Stored]);
    let read =
        read(&NatsLetters::new(&server.client, DlqStream::new()), &Filter::new()).await.unwrap();
    let messages: Vec<_> = read.iter().map(|read| &read.letter.message).collect();
    assert_eq!(messages, [&large.message, &huge.message]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g9_a_stream_that_was_deleted_is_made_again_aloud() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let sink = sink(&server).await;
    let warnings = Warnings::default();
    let _hears = tracing::subscriber::set_default(warnings.clone());
    server.context.delete_stream("DLQ").await.unwrap();
    assert_eq!(sink.put(vec![letter(1)]).await.unwrap(), [Receipt::Stored]);
    assert_eq!(server.count("DLQ").await, 1);
    let told = warnings.with("the stream was deleted");
    assert!(told.len() == 1 && told[0].starts_with("ERROR"), "what it kept is lost: {told:?}");
    assert!(told[0].contains("DLQ"), "{told:?}");
}

/// Tells when a letter was refused.
#[derive(Clone, Debug)]
struct Watched {
    sink: NatsSink,
    refused: Arc<AtomicU32>,
    told: Arc<Notify>,
}

impl Sink for Watched {
    async fn put(&self, letters: Vec<DeadLetter>) -> Result<Vec<Receipt>, StoreError> {
        let put = self.sink.put(letters).await;
        if put.is_err() {
            self.refused.fetch_add(1, Ordering::SeqCst);
        }
        self.told.notify_one();
        put
    }
}

#[derive(Debug, thiserror::Error)]
#[error("never")]
struct Never;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_nothing_is_acknowledged_before_its_letter_is_confirmed() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let sink = sink(&server).await;
    sink.put(vec![letter(1)]).await.unwrap();
    // Full: the server refuses what it is sent.
    let mut config = server.context.get_stream("DLQ").await.unwrap().cached_info().config.clone();
    let roomy = config.clone();
    config.max_messages = 1;
    assert_eq!(config.discard, DiscardPolicy::New);
    server.context.update_stream(config).await.unwrap();
    server.publish([7]).await;

    let watched = Watched { sink, refused: Arc::default(), told: Arc::default() };
    let stack = handler("billing", |_: Delivery| async { Err::<(), _>(Never) })
        .classify(|_: &Never| ErrorClass::Permanent)
        .build()
        .unwrap();
    let consumer = Consumer::builder(server.source(&billing()).await)
        .handler(stack)
        .sink(watched.clone())
        .build()
        .unwrap();
    let stop = consumer.handle();
    let checking = async {
        let told = timeout(PATIENCE, watched.told.notified()).await;
        told.expect("the letter is written, or tried to");
        // An acknowledgement that should not be would follow at once.
        tokio::time::sleep(Duration::from_millis(500)).await;
        let stream = server.context.get_stream(STREAM).await.unwrap();
        let settled =
            || async { stream.consumer_info("billing").await.unwrap().ack_floor.stream_sequence };
        let early = settled().await;
        let refused = watched.refused.load(Ordering::SeqCst);
        server.context.update_stream(roomy).await.unwrap();
        let buried = timeout(PATIENCE, async {
            while settled().await == 0 {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        })
        .await;
        stop.stop();
        (early, refused, buried)
    };
    let (_, (early, refused, buried)) =
        tokio::join!(consumer.run(std::future::pending()), checking);
    assert_eq!(early, 0, "acknowledged although the letter was refused");
    assert!(refused >= 1, "the server has refused nothing, so this test proves nothing");
    buried.expect("it is buried when there is room");
    let stored = server.stored("DLQ").await;
    assert_eq!(stored.len(), 2);
    assert_eq!(stored[1].payload, "7");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g2_what_is_written_beside_what_is_refused_is_told() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let sink = sink(&server).await;
    let mut stream = server.context.get_stream("DLQ").await.unwrap();
    let mut config = stream.info().await.unwrap().config.clone();
    config.max_messages = 2;
    server.context.update_stream(config).await.unwrap();
    let letters: Vec<_> = (0..4).map(letter).collect();
    let written = sink.put_each(letters.clone()).await.unwrap();
    let [first, second, refused @ ..] = &written[..] else { panic!("{written:?}") };
    for written in [first, second] {
        assert_eq!(*written.as_ref().unwrap(), Receipt::Stored);
    }
    for refused in refused {
        assert_eq!(refused.as_ref().unwrap_err().kind(), StoreErrorKind::Unavailable);
    }
    assert_eq!((refused.len(), server.stored("DLQ").await.len()), (2, 2));
    sink.put(letters).await.unwrap_err();
}

//! Letters are read from their stream and sent back.

mod behind;
mod crowded;
mod growing;
mod handlers;
mod hearing;
mod killed;
mod outlines;
mod reading;
mod refused;
mod replay;
mod targets;

use std::collections::BTreeMap;
use std::time::Duration;

use async_nats::jetstream::message::{PublishMessage, StreamMessage};
use async_nats::jetstream::{self, stream};
use dlq_core::store::Receipt;
use dlq_core::{
    DeadLetter, Filter, LetterId, Message, OperationId, Origin, Position, Sink, StoreErrorKind,
    Timestamp,
};
use dlq_nats::{DlqStream, NatsLetters, NatsReplay, NatsSink, NatsTarget};
use dlq_testkit::fixtures::{died_again, letter, letter_of};
use futures_util::StreamExt;
use tokio::time::timeout;

pub(crate) use refused::users;

use crate::fixture::{PATIENCE, STREAM, Server, available, read};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g2_copies_are_one_letter_and_no_bytes_are_lost() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let letters = NatsLetters::new(&server.client, DlqStream::new());
    let error = read(&letters, &Filter::new()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::NotFound);
    // A window so short that the second copy is stored.
    let stream = DlqStream::new().duplicate_window(Duration::from_millis(200));
    let sink = NatsSink::open(&server.client, stream).await.unwrap();
    assert!(read(&letters, &Filter::new()).await.unwrap().is_empty());
    let first = letter(1);
    let mut other = first.clone();
    other.message = other.message.with_payload(Some("other".into()));
    sink.put(vec![first.clone()]).await.unwrap();
    let stored_again =
        async { while sink.put(vec![first.clone()]).await.unwrap() != [Receipt::Stored] {} };
    timeout(PATIENCE, stored_again).await.expect("the window ends");
    sink.put(vec![other.clone(), died_again(&first), letter(2)]).await.unwrap();
    assert_eq!(server.count("DLQ").await, 5);
    let found = read(&letters, &Filter::new()).await.unwrap();
    let ids: Vec<_> = found.iter().map(|read| read.letter.death().to_string()).collect();
    let conflict = first.id.conflicting(&other.message);
    assert_eq!(
        ids,
        [format!("{conflict}.0"), format!("{}.1", first.id), format!("{}.0", letter(2).id)]
    );
    let one = Filter::new().with_message_id("evt-2".to_owned());
    let one = read(&letters, &one).await.unwrap();
    assert_eq!((one.len(), one[0].sequence), (1, 5));
    assert_eq!(one[0].letter.clone().with_state(letter(2).state), letter(2));
}

/// Letters of `billing` for messages that stood on the stream, of which each is its number.
pub(crate) fn dead(numbers: impl IntoIterator<Item = u32>) -> Vec<DeadLetter> {
    let one = |number: u32| {
        let message = Message::new("orders.created", number.to_string());
        let message = message.with_header("traceparent", "00-1-2-01");
        let message = message.with_published_at(Timestamp::from_millis(1_790_000_000_000));
        let mut letter = letter_of(message, u64::from(number));
        letter.origin = Origin::new("nats", STREAM, Position::Offset(u64::from(number) + 1));
        letter.consumer = "billing".to_owned();
        let at = letter.message.published_at();
        letter.id = LetterId::of(&letter.origin, at, &letter.consumer);
        letter
    };
    numbers.into_iter().map(one).collect()
}

async fn bury(server: &Server, stream: DlqStream, letters: Vec<DeadLetter>) -> NatsLetters {
    let sink = NatsSink::open(&server.client, stream.clone()).await.unwrap();
    sink.put(letters).await.unwrap();
    NatsLetters::new(&server.client, stream)
}

/// The same beside three servers, some of which may not have heard yet of a stream that was just made.
pub(crate) async fn bury_at(
    context: &jetstream::Context,
    stream: DlqStream,
    letters: Vec<DeadLetter>,
) -> NatsLetters {
    let written = async {
        loop {
            let put = async {
                let sink = NatsSink::open(context, stream.clone()).await?;
                sink.put(letters.clone()).await
            };
            match put.await {
                Ok(_) => return,
                Err(error) => assert!(error.is_transient(), "{error}"),
            }
        }
    };
    timeout(PATIENCE, written).await.expect("the letters are written");
    NatsLetters::new(context, stream)
}

/// Sends everything back to its origin, as the operation of this number.
pub(crate) fn to_origin(letters: &NatsLetters, operation: u64) -> NatsReplay {
    let operation = OperationId::of("ana", Timestamp::EPOCH, operation);
    NatsReplay::new(letters, Filter::new(), NatsTarget::Origin, operation)
}

/// From here on the server remembers what was written to the stream for so short a time that it is no help.
async fn forget_fast(server: &Server) {
    let config = stream::Config {
        name: STREAM.to_owned(),
        subjects: vec!["orders.>".to_owned()],
        duplicate_window: Duration::from_millis(100),
        ..stream::Config::default()
    };
    server.context.update_stream(config).await.unwrap();
}

/// Returns when the server has forgotten what was written before.
async fn window_passed(server: &Server) {
    let probe = server.client.new_inbox();
    let passed = async {
        let mut sent = 0;
        loop {
            let probe = PublishMessage::build().message_id(&probe);
            let ack = server.context.send_publish("orders.probe", probe).await.unwrap();
            sent += 1;
            if !ack.await.unwrap().duplicate && sent > 1 {
                return;
            }
        }
    };
    timeout(PATIENCE, passed).await.expect("the window passes");
}

/// What was sent back to the stream.
async fn replays(server: &Server) -> Vec<StreamMessage> {
    let stream = server.context.get_stream(STREAM).await.unwrap();
    let last = stream.cached_info().state.last_sequence;
    let all = (1..=last).map(|sequence| stream.get_raw_message(sequence));
    let all = futures_util::stream::iter(all).buffered(64);
    let all: Vec<StreamMessage> = all.map(Result::unwrap).collect().await;
    all.into_iter().filter(|message| message.headers.get("replay.id").is_some()).collect()
}

/// How often each message was sent back to the stream.
async fn sent_back(server: &Server) -> BTreeMap<String, u32> {
    let mut sent = BTreeMap::new();
    for message in replays(server).await {
        *sent.entry(String::from_utf8(message.payload.to_vec()).unwrap()).or_default() += 1;
    }
    sent
}

/// Each of these numbers was sent back to the stream once, and nothing else was.
async fn assert_once(server: &Server, numbers: impl IntoIterator<Item = u32>) {
    let mut sent = sent_back(server).await;
    let numbers = numbers.into_iter().map(|number| number.to_string());
    let missing: Vec<String> = numbers.filter(|number| sent.remove(number) != Some(1)).collect();
    assert!(missing.is_empty() && sent.is_empty(), "not once: {missing:?}; not asked: {sent:?}");
}

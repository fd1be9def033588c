//! Headers as foreign producers write them.

use async_nats::HeaderMap;
use async_nats::jetstream::AckKind;
use async_nats::jetstream::consumer::pull;
use dlq_core::{DeadLetter, Filter};
use dlq_nats::{DlqStream, NatsLetters};

use super::{Letter, Routing, SECOND, answer, answer_nothing, consumer, theirs};
use crate::fixture::{STREAM, Server, available, read};
use crate::raw::Raw;

async fn letters(server: &Server) -> Vec<DeadLetter> {
    let letters = NatsLetters::new(&server.client, DlqStream::new());
    let read = read(&letters, &Filter::new()).await.unwrap();
    read.into_iter().map(|stored| stored.letter).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g8_all_headers_of_one_name_are_in_the_letter() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let router = Routing::start(&server).await;
    let theirs = consumer(&server, STREAM, 1).await;
    let mut headers = HeaderMap::new();
    headers.append("via", "a");
    headers.append("trace", "t");
    headers.append("via", "b");
    let sent = server.context.publish_with_headers("orders.a", headers, "1".into()).await;
    sent.unwrap().await.unwrap();
    answer(&theirs, 1, |_| AckKind::Nak(None)).await;
    answer_nothing(&theirs).await;
    Letter::until(&server, 1).await;
    router.stop().await;
    let letters = letters(&server).await;
    let headers = letters[0].message.headers();
    assert_eq!(headers.get_all("via").collect::<Vec<_>>(), [b"a", b"b"]);
    assert_eq!(headers.get_str("trace"), Some("t"));
}

/// The client reads none of these messages, neither from a consumer nor by their sequence.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g8_headers_that_no_client_would_write_keep_no_message_from_its_letter() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let router = Routing::start(&server).await;
    let config = pull::Config { ack_wait: SECOND, ..theirs(1) };
    let _ = server.context.create_consumer_on_stream(config, STREAM).await.unwrap();
    let mut raw = Raw::connect(&server);
    let all: [(&[u8], &str, &[u8]); 4] = [
        (b"text: caf\xe9\r\n", "text", b"caf\xe9"),
        (b"error: KeyError: 7\nline 3\r\n", "error", b"KeyError: 7\nline 3"),
        (b"progress: 50 %\r100 %\r\n", "progress", b"50 %\r100 %"),
        (b"my name: x\r\n", "my name", b"x"),
    ];
    for (number, (lines, ..)) in all.iter().enumerate() {
        let lines = [b"trace: t\r\n", *lines].concat();
        raw.publish("orders.a", &lines, &number.to_string());
        raw.take(STREAM, "theirs");
    }
    Letter::until(&server, all.len() as u64).await;
    let report = router.stop().await;
    assert_eq!((report.routed, report.given_up), (all.len() as u64, 0), "{report}");
    let letters = letters(&server).await;
    for (number, (_, name, value)) in all.into_iter().enumerate() {
        let payload = number.to_string();
        let is = |letter: &&DeadLetter| letter.message.payload().is_some_and(|is| *is == payload);
        let headers = letters.iter().find(is).expect("it has a letter").message.headers();
        assert_eq!((headers.get(name), headers.get_str("trace")), (Some(value), Some("t")));
    }
}

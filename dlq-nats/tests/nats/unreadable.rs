//! Messages with headers that the client cannot read.

use dlq_core::{Sink as _, Source as _, TransportError, TransportErrorKind};
use dlq_nats::{DlqStream, NatsSink, NatsSource};
use dlq_testkit::fixtures::letter;
use tokio::time::{Instant, sleep, timeout};

use crate::fixture::{PATIENCE, STREAM, Server, available, billing, handle, number};
use crate::raw::Raw;

/// The first error of this kind; nothing else comes.
async fn error(source: &mut NatsSource, is: impl Fn(&TransportError) -> bool) -> TransportError {
    let failing = async {
        loop {
            match source.next().await {
                Ok(_) => panic!("nothing that can be read is there"),
                Err(error) if is(&error) => return error,
                Err(_) => sleep(PATIENCE / 1000).await,
            }
        }
    };
    timeout(PATIENCE, failing).await.expect("it is told")
}

fn is_corrupt(error: &TransportError) -> bool {
    error.kind() == TransportErrorKind::Corrupt
}

fn names_it(error: &TransportError) {
    let text = error.to_string();
    for part in [
        "message 1 of stream `ORDERS`, on `orders.a`",
        "consumer `billing`",
        "nats stream rmm ORDERS 1",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g9_a_message_that_breaks_the_connection_again_and_again_is_named() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let mut source = server.source(&billing()).await;
    Raw::connect(&server).publish("orders.a", b"text: caf\xe9\r\n", "1");
    names_it(&error(&mut source, is_corrupt).await);
    let stream = server.context.get_stream(STREAM).await.unwrap();
    stream.delete_message(1).await.unwrap();
    server.publish([2]).await;
    assert_eq!(number(&handle(&mut source).await.unwrap()), 2);
}

/// The client's task breaks down at it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g9_a_client_that_has_ended_says_so_and_the_next_one_why() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let app = server.connect("", "").await;
    let sink = NatsSink::open(&app, DlqStream::new()).await.unwrap();
    let mut source = billing().source(&app).await.unwrap();
    Raw::connect(&server).publish("orders.a", b"progress: 50 %\r100 %\r\n", "1");
    let has_ended = |error: &TransportError| error.to_string().contains("the client has ended");
    error(&mut source, has_ended).await;
    let unwritten = sink.put(vec![letter(1)]).await.unwrap_err();
    assert!(unwritten.to_string().contains("the client has ended"), "{unwritten}");
    // As a process that is started again.
    let began = Instant::now();
    loop {
        assert!(began.elapsed() < PATIENCE, "it is named");
        let app = server.connect("", "").await;
        let Ok(mut source) = billing().source(&app).await else { continue };
        let told = error(&mut source, |error| is_corrupt(error) || has_ended(error)).await;
        if is_corrupt(&told) {
            return names_it(&told);
        }
    }
}

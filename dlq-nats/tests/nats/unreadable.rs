//! Messages with headers that the client cannot read.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dlq_core::{
    Cause, Delivery, Disposition, ErrorClass, Filter, Reason, Settle as _, Sink as _, Source as _,
    TransportError, TransportErrorKind,
};
use dlq_nats::{DlqStream, NatsLetters, NatsSink, NatsSource, NatsTransport};
use dlq_testkit::fixtures::letter;
use dlq_tower::consumer::{Consumer, Ended};
use dlq_tower::handler::handler;
use tokio::time::{Instant, sleep, timeout};

use crate::fixture::{
    LEASE, PATIENCE, STREAM, Server, available, billing, handle, next, number, read,
};
use crate::raw::Raw;

/// A header at which the client's task breaks down.
const BREAKS: &[u8] = b"progress: 50 %\r100 %\r\n";

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

/// Runs consumers one after another as a supervisor does, each with a client of its own, until `done`. Returns how many
/// ended by themselves.
async fn supervised(
    server: &Server,
    consumer: NatsTransport,
    done: impl AsyncFn(u32) -> bool,
) -> u32 {
    let handled = Arc::new(AtomicU32::new(0));
    let mut ended = 0;
    let until = async {
        loop {
            let app = server.connect("", "").await;
            // One that begins in trouble begins again.
            let Ok(sink) = NatsSink::open(&app, DlqStream::new()).await else { continue };
            let Ok(source) = consumer.source(&app).await else { continue };
            let counted = Arc::clone(&handled);
            let stack = handler("billing", move |_: Delivery| {
                counted.fetch_add(1, Ordering::Relaxed);
                async { Ok::<(), std::io::Error>(()) }
            });
            let stack = stack.classify(|_: &std::io::Error| ErrorClass::Transient).build().unwrap();
            let consumer = Consumer::builder(source).handler(stack).sink(sink).build().unwrap();
            let stop = consumer.handle();
            let mut running = pin!(consumer.run(std::future::pending()));
            let report = loop {
                tokio::select! {
                    report = &mut running => break Some(report),
                    () = sleep(PATIENCE / 600) => if done(handled.load(Ordering::Relaxed)).await {
                        break None;
                    },
                }
            };
            let Some(report) = report else {
                stop.stop();
                let _report = running.await;
                return;
            };
            assert!(
                matches!(&report.ended, Ended::SourceFailed(why) if why.contains("client has ended"))
            );
            ended += 1;
        }
    };
    assert!(timeout(PATIENCE * 2, until).await.is_ok(), "all is done; {ended} ended");
    ended
}

/// Returns true if `billing` has nothing left.
async fn is_done(server: &Server, messages: u64) -> bool {
    let stream = server.context.get_stream(STREAM).await.unwrap();
    let info = stream.consumer_info("billing").await.unwrap();
    info.ack_floor.stream_sequence == messages
}

/// The letter of such a message has all that the message had.
async fn is_malformed(server: &Server, header: (&str, &[u8])) {
    let letters = NatsLetters::new(&server.client, DlqStream::new());
    let letters = read(&letters, &Filter::new()).await.unwrap();
    let [read] = &letters[..] else { panic!("{} letters", letters.len()) };
    let letter = &read.letter;
    assert_eq!((letter.reason, letter.cause), (Reason::Permanent, Some(Cause::Malformed)));
    assert_eq!((letter.attempts, &*letter.consumer), (0, "billing"));
    assert_eq!(letter.message.subject(), "orders.a");
    assert_eq!(letter.message.payload().unwrap(), "1");
    let headers: Vec<_> = letter.message.headers().iter().collect();
    let [found] = &headers[..] else { panic!("{headers:?}") };
    assert_eq!((&found.name[..], found.value.as_deref()), (header.0.as_bytes(), Some(header.1)));
    let why = letter.history.last().unwrap().message();
    assert!(why.contains(&format!("`{}`", header.0)) && why.contains("mend the producer"), "{why}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g4_a_header_with_a_carriage_return_takes_one_process_with_it_and_has_a_letter() {
    const HEALTHY: u32 = 20;
    if !available() {
        return;
    }
    let server = Server::start().await;
    let _ = server.source(&billing()).await;
    Raw::connect(&server).publish("orders.a", BREAKS, "1");
    server.publish(0..HEALTHY).await;
    let all = u64::from(HEALTHY) + 1;
    let ended = supervised(&server, billing(), async |_| is_done(&server, all).await).await;
    assert_eq!(ended, 1, "the one that was handed the message");
    is_malformed(&server, ("progress", b"50 %\r100 %")).await;
}

/// Another process has it in flight, and dies of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g4_a_process_that_lives_finds_the_message_before_it_is_handed_to_it() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let slow = billing().lease(Duration::from_secs(20));
    server.source(&slow).await.close().await;
    let mut other = Raw::connect(&server);
    other.ask(STREAM, "billing");
    let other = std::sync::Mutex::new(Some(other));
    let ended = supervised(&server, slow, async |_| {
        let stream = server.context.get_stream(STREAM).await.unwrap();
        let info = stream.consumer_info("billing").await.unwrap();
        if info.num_waiting >= 2
            && let Some(mut other) = other.lock().unwrap().take()
        {
            Raw::connect(&server).publish("orders.a", BREAKS, "1");
            other.taken();
        }
        is_done(&server, 1).await
    })
    .await;
    assert_eq!(ended, 0);
    is_malformed(&server, ("progress", b"50 %\r100 %")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g8_a_message_that_breaks_the_connection_is_refused_with_all_its_bytes() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let mut source = server.source(&billing()).await;
    Raw::connect(&server).publish("orders.a", b"text: caf\xe9\r\n", "1");
    let (refused, settle) = next(&mut source).await;
    let failure = refused.refusal().unwrap();
    assert_eq!(failure.cause, Cause::Malformed);
    assert!(failure.message().contains("`text`"), "{failure}");
    let headers: Vec<_> = refused.message().headers().iter().collect();
    assert_eq!(headers[0].value.as_deref(), Some(&b"caf\xe9"[..]));
    assert_eq!((number(&refused), refused.message().subject()), (1, "orders.a"));
    // Where its letter cannot be written it is not handed to a client again.
    settle.settle(Disposition::Deferred { after: Duration::ZERO }).await.unwrap();
    let (again, settle) = next(&mut source).await;
    assert!(again.refusal().is_some());
    settle.settle(Disposition::Succeeded).await.unwrap();
    server.publish([2]).await;
    assert_eq!(number(&handle(&mut source).await.unwrap()), 2);
    assert!(is_done(&server, 2).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g9_a_source_ends_with_its_client() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let app = server.connect("", "").await;
    let sink = NatsSink::open(&app, DlqStream::new()).await.unwrap();
    let mut source = billing().source(&app).await.unwrap();
    Raw::connect(&server).publish("orders.a", BREAKS, "1");
    let has_ended = |error: &TransportError| error.to_string().contains("the client has ended");
    let ended = error(&mut source, has_ended).await;
    assert_eq!(ended.kind(), TransportErrorKind::Closed);
    let unwritten = sink.put(vec![letter(1)]).await.unwrap_err();
    assert!(unwritten.to_string().contains("the client has ended"), "{unwritten}");
    // As a process that is started again.
    let began = Instant::now();
    loop {
        assert!(began.elapsed() < PATIENCE, "it is found");
        let app = server.connect("", "").await;
        let Ok(mut source) = billing().source(&app).await else { continue };
        if let Ok(Some((refused, settle))) = source.next().await {
            assert!(refused.refusal().is_some());
            settle.settle(Disposition::Succeeded).await.unwrap();
            return;
        }
    }
}

/// A letter that cannot be written is no reason to keep the others waiting, nor to hand the message to a client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g4_a_message_whose_letter_waits_keeps_nobody_from_the_rest() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    server.source(&billing()).await.close().await;
    Raw::connect(&server).publish("orders.a", BREAKS, "1");
    Raw::connect(&server).take(STREAM, "billing");
    // A process of its own, which must not end.
    let app = server.connect("", "").await;
    let mut source = billing().source(&app).await.unwrap();
    let (refused, settle) = next(&mut source).await;
    assert!(refused.refusal().is_some());
    let put_off = Instant::now() + LEASE * 3;
    settle.settle(Disposition::Deferred { after: LEASE * 3 }).await.unwrap();
    server.publish([2]).await;
    assert_eq!(number(&handle(&mut source).await.unwrap()), 2);
    let (again, settle) = next(&mut source).await;
    assert!(again.refusal().is_some() && Instant::now() >= put_off, "as long as it was put off");
    settle.settle(Disposition::Succeeded).await.unwrap();
    server.publish([3]).await;
    assert_eq!(number(&handle(&mut source).await.unwrap()), 3);
    assert!(is_done(&server, 3).await);
}

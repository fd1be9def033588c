//! Letters of several handlers that one durable consumer has go back to the right one.

use std::collections::BTreeSet;
use std::future::pending;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlq_core::outbox::Outbox as _;
use dlq_core::store::{Letters as _, Target};
use dlq_core::{
    DeadLetter, Delivery, ErrorClass, Filter, LetterId, Message, OperationId, Reason, Sink as _,
    Source as _, Timestamp,
};
use dlq_nats::{
    DlqStream, NatsLetters, NatsOutbox, NatsReplay, NatsSink, NatsTarget, NatsTransport,
    RetryStream,
};
use dlq_tower::consumer::Consumer;
use dlq_tower::handler::{HandlerStack, handler};
use dlq_tower::router::Router;
use tokio::time::{sleep, timeout};

use super::{bury, dead};
use crate::fixture::{PATIENCE, Server, available, consumer, now, number, published};

/// Numbers of the messages that each handler has handled.
type Handled = Arc<Mutex<BTreeSet<(&'static str, u32)>>>;

fn shop() -> NatsTransport {
    consumer("shop")
}

fn stack(name: &'static str, is_down: &Arc<AtomicBool>, handled: &Handled) -> HandlerStack {
    let (is_down, handled) = (Arc::clone(is_down), Arc::clone(handled));
    let work = move |delivery: Delivery| {
        let fails = is_down.load(Ordering::Relaxed);
        if !fails {
            handled.lock().unwrap().insert((name, number(&delivery)));
        }
        std::future::ready(if fails { Err(std::io::Error::other("no account")) } else { Ok(()) })
    };
    handler(name, work).classify(|_: &std::io::Error| ErrorClass::Permanent).build().unwrap()
}

fn to_handler(letters: &NatsLetters, operation: u64) -> NatsReplay {
    let operation = OperationId::of("ana", Timestamp::EPOCH, operation);
    NatsReplay::new(letters, Filter::new(), NatsTarget::Handler(RetryStream::new()), operation)
}

/// A letter of this handler for a message of another one's subject.
fn letter_of_handler(name: &str, number: u32, subject: &str) -> DeadLetter {
    let mut letter = dead([number]).remove(0);
    letter.consumer = name.to_owned();
    let message = Message::new(subject, number.to_string());
    letter.message = message.with_published_at(Timestamp::from_millis(1_790_000_000_000));
    letter.id = LetterId::of(&letter.origin, letter.message.published_at(), name);
    letter
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_a_letter_goes_to_its_handler_among_those_of_one_consumer() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let (is_down, handled) = (Arc::new(AtomicBool::new(true)), Handled::default());
    let router = Router::new()
        .name("shop")
        .route("orders.created", stack("created", &is_down, &handled))
        .route("orders.paid", stack("paid", &is_down, &handled))
        .build()
        .unwrap();
    // The sink is told the name of the consumer.
    let opened = shop().open(&server.client).await.unwrap();
    let queue = opened.retry_queue.unwrap();
    let running = Consumer::builder(opened.source).handler(router).retry_queue(queue);
    let running = running.sink(opened.dead_letters).build().unwrap();
    let sink = NatsSink::open(&server.client, DlqStream::new()).await.unwrap().consumer("shop");
    let stop = running.handle();
    let letters = NatsLetters::new(&server.client, DlqStream::new());
    let scene = async {
        published(&server.context, "orders.created", "1").await;
        published(&server.context, "orders.paid", "2").await;
        let died = async {
            while server.count("DLQ").await < 2 {
                sleep(Duration::from_millis(20)).await
            }
        };
        timeout(PATIENCE, died).await.expect("both die");
        // Not the subject says whose letter it is; and one handler is no more.
        sink.put(vec![letter_of_handler("created", 3, "orders.paid")]).await.unwrap();
        let gone = letter_of_handler("gone", 4, "orders.created");
        sink.put(vec![gone.clone()]).await.unwrap();
        let found = now(&letters).get(gone.id).await.unwrap().unwrap();
        assert_eq!(found.attributes["nats.consumer"], "shop");
        let outbox = NatsOutbox::new(&server.client).retry_stream(RetryStream::new());
        let address = outbox.route(&found, &Target::Handler).unwrap();
        assert_eq!(
            (address.consumer.as_deref(), &*address.subject),
            (Some("shop"), "retry.shop.orders.created")
        );

        is_down.store(false, Ordering::Relaxed);
        let replay = to_handler(&letters, 1);
        let plan = replay.plan().await.unwrap();
        assert!(
            plan.notes.iter().all(|note| !note.contains("letters will fail")),
            "{:?}",
            plan.notes
        );
        let report = replay.run(pending(), |_| {}).await.unwrap();
        assert_eq!((report.sent, report.failed), (4, 0), "{report}");
        let came = async {
            loop {
                let again = now(&letters).get(gone.id).await.unwrap().unwrap();
                if handled.lock().unwrap().len() == 3 && again.generation == 1 {
                    return again;
                }
                sleep(Duration::from_millis(20)).await;
            }
        };
        let again = timeout(PATIENCE, came).await.expect("each comes to an end");
        assert_eq!((again.reason, again.consumer.as_str()), (Reason::Rejected, "gone"));
        assert_eq!(again.message.payload(), gone.message.payload());
        stop.stop();
    };
    let (report, ()) = tokio::join!(running.run(pending()), scene);
    assert_eq!((report.dead, report.handled), (3, 3), "{report}");
    let handled = handled.lock().unwrap().clone();
    assert_eq!(handled, BTreeSet::from([("created", 1), ("created", 3), ("paid", 2)]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_who_knows_the_consumer_of_letters_says_it() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    server.source(&shop()).await.close().await;
    // Nobody told the sink.
    let letters = bury(&server, DlqStream::new(), dead([1, 2])).await;
    let replay = to_handler(&letters, 1);
    let plan = replay.plan().await.unwrap();
    let said = plan.notes.iter().filter(|note| note.contains("no consumer called `billing` reads"));
    assert_eq!(said.count(), 1, "{:?}", plan.notes);
    let report = replay.run(pending(), |_| {}).await.unwrap();
    assert_eq!((report.sent, report.failed), (0, 2), "{report}");
    assert_eq!(server.count("DLQ_RETRY").await, 0, "nothing is written where nobody reads it");
    let report = to_handler(&letters, 2).consumer("shop").run(pending(), |_| {}).await.unwrap();
    assert_eq!((report.sent, report.failed), (2, 0), "{report}");
    let stored = server.stored("DLQ_RETRY").await;
    assert_eq!(stored.len(), 2);
    let mut subjects = stored.iter().map(|record| &*record.subject);
    assert!(subjects.all(|subject| subject == "retry.shop.orders.created"), "{stored:?}");
    let mut handlers = stored.iter().map(|record| record.headers.get("dlq.consumer").unwrap());
    assert!(handlers.all(|name| name.as_str() == "billing"));
}

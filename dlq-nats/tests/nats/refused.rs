//! A subject of dead letters that is full, beside others that are not.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_nats::jetstream::stream::DiscardPolicy;
use dlq_core::{Delivery, ErrorClass};
use dlq_nats::{DlqStream, NatsSink};
use dlq_tower::consumer::{Consumer, ConsumerHealth};
use dlq_tower::handler::handler;
use tokio::time::{sleep, timeout};

use crate::fixture::{PATIENCE, Server, available, billing, published};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g4_a_subject_of_letters_that_is_full_delays_its_own_messages_only() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let sink = NatsSink::open(&server.client, DlqStream::new()).await.unwrap();
    let mut config = server.context.get_stream("DLQ").await.unwrap().cached_info().config.clone();
    let roomy = config.clone();
    config.discard = DiscardPolicy::New;
    config.discard_new_per_subject = true;
    config.max_messages_per_subject = 1;
    server.context.update_stream(config).await.unwrap();

    let handled = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&handled);
    let work = move |delivery: Delivery| {
        let fails = delivery.message().payload().is_some_and(|payload| payload.starts_with(b"-"));
        count.fetch_add(usize::from(!fails), Ordering::Relaxed);
        let done = if fails { Err(std::io::Error::other("no account")) } else { Ok(()) };
        std::future::ready(done)
    };
    let work = handler("billing", work).classify(|_: &std::io::Error| ErrorClass::Permanent);
    let source = billing().source(&server.client).await.unwrap();
    let consumer =
        Consumer::builder(source).handler(work.build().unwrap()).sink(sink).build().unwrap();
    let (mut health, stop) = (consumer.health(), consumer.handle());
    let scene = async {
        published(&server.context, "orders.created", "-1").await;
        published(&server.context, "orders.created", "-2").await;
        let refused = health.wait_for(|health| health.refused_letters.is_some());
        let told = timeout(PATIENCE, refused).await.expect("it is told").expect("it runs");
        let told = told.refused_letters.unwrap();
        println!("{told}");
        assert!(told.why.contains("`dlq.orders.created`"), "{told}");
        assert!(told.why.contains("`max_msgs_per_subject`"), "{told}");
        assert_eq!(told.count, 1);
        server.publish(1..=100).await;
        published(&server.context, "orders.refunded", "-3").await;
        let all = async {
            while handled.load(Ordering::Relaxed) < 100 || server.count("DLQ").await < 2 {
                sleep(Duration::from_millis(20)).await;
                let health = health.get();
                assert!(health.route_error.is_none(), "fetching pauses: {health:?}");
            }
        };
        timeout(PATIENCE, all).await.expect("nobody else waits");
        assert!(health.get().refused_letters.is_some());
        server.context.update_stream(roomy).await.unwrap();
        let well = health.wait_for(ConsumerHealth::is_healthy);
        timeout(PATIENCE, well).await.expect("it is well again").expect("it runs");
        stop.stop();
    };
    let (report, ()) = tokio::join!(consumer.run(std::future::pending()), scene);
    assert_eq!((report.dead, report.handled), (3, 100), "{report}");
    assert_eq!(server.count("DLQ").await, 3);
}

//! What was fetched and waits for room stays with its process.

use std::future::pending;
use std::time::Duration;

use dlq_core::Delivery;
use dlq_nats::{DlqStream, NatsSink};
use dlq_tower::consumer::Consumer;
use dlq_tower::handler::handler;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use crate::fixture::{PATIENCE, Server, available, billing, number};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_for_room_for_longer_than_its_lease_is_delivered_once() {
    // A renewal has seconds to arrive, however busy the machine is.
    const LEASE: Duration = Duration::from_secs(6);
    if !available() {
        return;
    }
    let server = Server::start().await;
    server.publish(1..=4).await;
    let (seen, mut all) = mpsc::unbounded_channel();
    let slow = handler("billing", move |delivery: Delivery| {
        let number = number(&delivery);
        let _ = seen.send((number, delivery.deliveries()));
        async move {
            // The others wait meanwhile.
            if number == 1 {
                sleep(LEASE * 3 / 2).await;
            }
            Ok::<_, std::io::Error>(())
        }
    });
    let source = billing().lease(LEASE).prefetch(8).source(&server.client).await.unwrap();
    let sink = NatsSink::open(&server.client, DlqStream::new()).await.unwrap();
    let consumer = Consumer::builder(source)
        .handler(slow.build().unwrap())
        .sink(sink)
        .max_in_flight(1)
        .build()
        .unwrap();
    let stop = consumer.handle();
    let hearing = async {
        let mut found = Vec::new();
        while found.len() < 4 {
            found.push(timeout(PATIENCE, all.recv()).await.expect("the next comes").unwrap());
        }
        stop.stop();
        found
    };
    let (_, found) = tokio::join!(consumer.run(pending()), hearing);
    assert_eq!(found, (1..=4).map(|number| (number, 1)).collect::<Vec<_>>());
}

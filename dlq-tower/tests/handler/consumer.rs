//! An annotated handler and a router in a real consumer.

use dlq_letters::memory::MemoryStore;
use dlq_tower::consumer::Consumer;
use dlq_tower::core::memory::MemoryBroker;
use dlq_tower::core::{DeadLetters, Filter, Message, PageRequest, Reason};
use dlq_tower::dlq_handler;
use dlq_tower::extract::Json;
use dlq_tower::router::Router;

use crate::fixture::Payment;

#[derive(Debug, thiserror::Error)]
#[error("amount must be positive, found {0}")]
struct BadAmount(i64);

#[dlq_handler(name = "payments.charge", terminal = BadAmount(..=0), order_by = |p: &Payment| p.customer)]
async fn charge(Json(payment): Json<Payment>) -> Result<(), BadAmount> {
    if payment.cents > 0 { Ok(()) } else { Err(BadAmount(payment.cents)) }
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_handled_becomes_a_letter_of_its_handler() {
    let broker = MemoryBroker::new();
    let json = |cents: i64| format!(r#"{{"id":"{cents}","customer":7,"cents":{cents}}}"#);
    for message in [
        Message::new("payments.made", json(5)),
        Message::new("payments.made", json(-5)),
        Message::new("payments.made", "broken"),
        Message::new("unheard.of", "{}"),
    ] {
        broker.publish(message);
    }
    let store = MemoryStore::new();
    let router = Router::new().name("shop").route("payments.*", charge::handler()).build().unwrap();
    let consumer = Consumer::builder(broker.source("shop"))
        .handler(router)
        .dead_letters(store.clone())
        .build()
        .unwrap();
    let handle = consumer.handle();
    let watch = async {
        broker.idle("shop").await;
        handle.stop();
    };
    let (_, ()) = tokio::join!(consumer.run(std::future::pending::<()>()), watch);

    let letters = DeadLetters::new(store);
    let page = letters.list(Filter::new(), PageRequest::default()).await.unwrap();
    let mut found: Vec<_> = page
        .letters
        .iter()
        .map(|letter| (letter.consumer.as_str(), letter.reason, letter.error.as_str()))
        .collect();
    found.sort_by_key(|(_, _, error)| error.len());
    assert_eq!(found.len(), 3, "{found:?}");
    assert_eq!(
        found[0],
        ("payments.charge", Reason::Permanent, "amount must be positive, found -5")
    );
    let unroutable = "no route of `shop` takes the subject `unheard.of`";
    assert_eq!(found[1], ("shop", Reason::Rejected, unroutable));
    assert_eq!((found[2].0, found[2].1), ("payments.charge", Reason::Permanent));
    assert!(found[2].2.contains("Payment` as JSON"), "{found:?}");
}

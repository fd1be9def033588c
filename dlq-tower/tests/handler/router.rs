//! Which handler gets which message.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlq_tower::core::{DeliveredFrom, Delivery, Message, Reason};
use dlq_tower::handler::{HandlerStack, Handles, handler};
use dlq_tower::router::{Router, event};
use dlq_tower::stage::Verdict;

use crate::fixture::{bytes, delivery, dies, run, succeeds};

/// Who has run, in order.
#[derive(Clone, Default)]
struct Ran(Arc<Mutex<Vec<&'static str>>>);

impl Ran {
    fn handler(&self, name: &'static str) -> HandlerStack {
        let ran = Arc::clone(&self.0);
        let run = move || {
            let ran = Arc::clone(&ran);
            async move { ran.lock().unwrap().push(name) }
        };
        handler(name, run).alias(format!("{name}-before")).build().unwrap()
    }

    fn take(&self) -> Vec<&'static str> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

fn at(subject: &str) -> Delivery {
    delivery(Message::new(subject, "{}"))
}

fn router(ran: &Ran) -> Router {
    let everything = ran.handler("everything");
    Router::new()
        .name("shop")
        .route("orders.created", ran.handler("created"))
        .route("orders.>", everything.clone())
        .route("orders.*", ran.handler("orders"))
        .route("audit.>", everything)
        .route(event("payment.*"), ran.handler("payments"))
        .build()
        .unwrap()
}

#[tokio::test]
async fn the_narrowest_route_takes_a_message() {
    let ran = Ran::default();
    let router = router(&ran);
    for subject in ["orders.created", "orders.paid", "orders.eu.paid", "audit.x"] {
        succeeds(&router, at(subject)).await;
    }
    assert_eq!(ran.take(), ["created", "orders", "everything", "everything"]);
    let message = Message::new("orders.created", "{}").with_event("payment.made");
    succeeds(&router, delivery(message.clone())).await;
    succeeds(&router, delivery(message.with_event("other"))).await;
    assert_eq!(ran.take(), ["payments", "created"], "an event goes before a subject");
    assert_eq!(&*router.name_for(&at("orders.paid")), "orders");
}

#[tokio::test]
async fn what_no_route_takes_is_rejected_under_the_routers_name() {
    let ran = Ran::default();
    let router = router(&ran);
    let dead = dies(&router, bytes("{}")).await;
    assert_eq!((dead.reason, dead.attempts), (Reason::Rejected, 0));
    let error = dead.history.last().unwrap().message();
    assert_eq!(error, "no route of `shop` takes the subject `payments`");
    assert_eq!(&*dead.consumer, "shop");
    assert_eq!(&*router.name_for(&bytes("{}")), "shop");
    assert!(ran.take().is_empty());

    let router =
        Router::new().route("a", ran.handler("a")).fallback(ran.handler("rest")).build().unwrap();
    succeeds(&router, bytes("{}")).await;
    assert_eq!(ran.take(), ["rest"]);
}

#[tokio::test]
async fn a_letter_goes_to_the_handler_that_failed_whatever_its_subject() {
    let ran = Ran::default();
    let router = router(&ran);
    let letter = |consumer: &str, queue| {
        at("orders.created").with_consumer(consumer).with_delivered_from(queue)
    };
    succeeds(&router, letter("payments", DeliveredFrom::Store)).await;
    succeeds(&router, letter("orders-before", DeliveredFrom::Store)).await;
    succeeds(&router, letter("orders", DeliveredFrom::Retry)).await;
    assert_eq!(ran.take(), ["payments", "orders", "orders"]);

    // A retry of a handler that was renamed goes by its subject; a letter that was sent back is for nobody else.
    succeeds(&router, letter("renamed", DeliveredFrom::Retry)).await;
    assert_eq!(ran.take(), ["created"]);
    let sent =
        |consumer| letter(consumer, DeliveredFrom::Retry).with_replays(1).with_delayed_retries(0);
    succeeds(&router, sent("payments")).await;
    succeeds(&router, sent("shop")).await;
    assert_eq!(ran.take(), ["payments", "created"]);
    let dead = dies(&router, sent("renamed")).await;
    assert_eq!((&*dead.consumer, dead.reason, dead.attempts), ("renamed", Reason::Rejected, 0));
    let error = dead.history.last().unwrap().message();
    assert!(error.contains("`renamed`") && error.contains("`orders.created`"), "{error}");
    assert_eq!(&*router.name_for(&sent("renamed")), "renamed");
    assert!(ran.take().is_empty());

    // The router's own letters are routed anew; those of others are left alone.
    succeeds(&router, letter("shop", DeliveredFrom::Store)).await;
    assert_eq!(ran.take(), ["created"]);
    let verdict = run(&router, letter("stranger", DeliveredFrom::Store)).await;
    let minute = Duration::from_secs(60);
    assert_eq!(verdict, Verdict::Defer { after: minute, why: "its handler is not here" });
    assert!(ran.take().is_empty());

    let names: Vec<_> = router.names().iter().map(ToString::to_string).collect();
    assert_eq!(names[..3], ["shop", "created", "created-before"]);
    assert_eq!(names.len(), 9, "each handler once: {names:?}");
}

#[tokio::test]
async fn a_letter_of_a_former_name_dies_under_the_present_one() {
    let stack = handler("new", || async { Err::<(), _>("down") })
        .policy(dlq_tower::core::RetryPolicy::never())
        .alias("old")
        .build()
        .unwrap();
    let dead =
        dies(&stack, bytes("").with_consumer("old").with_delivered_from(DeliveredFrom::Store))
            .await;
    assert_eq!(&*dead.consumer, "new");
}

#[test]
fn conflicts_are_refused() {
    let ran = Ran::default();
    let refused = |router: dlq_tower::router::RouterBuilder, part: &str| {
        let error = router.build().unwrap_err().to_string();
        assert!(error.contains(part), "expected `{part}` in `{error}`");
    };
    let a = || ran.handler("a");
    let b = || ran.handler("b");
    refused(Router::new().route("x", a()).route("x", b()), "two routes for the subject `x`");
    refused(Router::new().route("x.*", a()).route("*.y", b()), "meet, and neither is narrower");
    refused(Router::new().route("x", a()).route("y", a()), "two handlers are called `a`");
    refused(Router::new().route("x.>.y", a()), "no valid pattern");
    refused(Router::new().name("a").route("x", a()), "both called `a`");
    refused(Router::new().route("x", handler("", || async {})), "is not a name");
    let both = Router::new().route("x", a()).route(event("x"), b()).build();
    assert!(both.is_ok(), "a subject and an event are not in conflict");
}

#[test]
fn order_keys_are_those_of_the_handler() {
    let ordered =
        handler("ordered", || async {}).order_by(|d: &Delivery| d.message().key().cloned());
    let plain = handler("plain", || async {});
    let router = Router::new().route("a", ordered).route("b", plain).build().unwrap();
    assert!(router.is_ordered());
    let at = |subject: &str| delivery(Message::new(subject, "").with_key("k"));
    assert_eq!(router.order_key(&at("a")).unwrap(), "k");
    assert_eq!(router.order_key(&at("b")), None);
    assert_eq!(router.order_key(&at("c")), None);
}

//! The span around a message, and what is told at the start. Alone in their binary: `tracing` decides once per process whether a place in the code is
//! listened to, and other tests that run at the same time could decide it first.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the answer")]

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlq_core::idempotency::memory::MemoryIdempotency;
use dlq_core::memory::MemoryBroker;
use dlq_core::policy::{Backoff, RetryPolicy};
use dlq_core::{Delivery, ErrorClass, Message, Origin, Position, Source, Timestamp, TokioClock};
use dlq_letters::memory::MemoryStore;
use dlq_tower::classify::ClassifyLayer;
use dlq_tower::consumer::{Consumer, ConsumerBuilder};
use dlq_tower::dead_letter::DeadLetterLayer;
use dlq_tower::handler::handler;
use dlq_tower::retry::RetryLayer;
use dlq_tower::router::Router;
use dlq_tower::stage::{Done, Verdict};
use dlq_tower::trace::TraceLayer;
use tokio::task::JoinSet;
use tower::{ServiceBuilder, ServiceExt, service_fn};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Keeps the fields of the one span it sees, and counts what is logged in it.
#[derive(Clone, Default)]
struct Listener(Arc<Mutex<Heard>>);

#[derive(Default)]
struct Heard {
    fields: BTreeMap<String, String>,
    entered: u32,
    events_inside: u32,
}

impl Visit for Heard {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.fields.insert(field.name().to_owned(), format!("{value:?}"));
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.insert(field.name().to_owned(), value.to_owned());
    }
}

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("dlq_tower") || metadata.target().starts_with("trace")
    }
    fn new_span(&self, span: &Attributes<'_>) -> Id {
        span.record(&mut *self.0.lock().unwrap());
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, values: &Record<'_>) {
        values.record(&mut *self.0.lock().unwrap());
    }
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {
        let mut heard = self.0.lock().unwrap();
        if heard.entered > 0 {
            heard.events_inside += 1;
        }
    }
    fn enter(&self, _: &Id) {
        self.0.lock().unwrap().entered += 1;
    }
    fn exit(&self, _: &Id) {
        self.0.lock().unwrap().entered -= 1;
    }
}

#[test]
fn a_span_says_what_is_in_flight_and_what_became_of_it() {
    let listener = Listener::default();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    tracing::subscriber::with_default(listener.clone(), || {
        runtime.unwrap().block_on(async {
            let service = ServiceBuilder::new()
                .layer(TraceLayer::new())
                .layer(DeadLetterLayer::new(MemoryStore::new()))
                .layer(RetryLayer::never())
                .layer(ClassifyLayer::new(|_: &std::io::Error| ErrorClass::Permanent))
                .service(service_fn(|_: Delivery| async {
                    tracing::info!("before a wait");
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    tracing::info!("after it");
                    Err::<(), _>(std::io::Error::other("bad amount"))
                }));
            let message = Message::new("payments.created", "{}").with_id("evt-7").with_header(
                "traceparent",
                "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            );
            let origin = Origin::new("memory", "payments", Position::Offset(7));
            let delivery =
                Delivery::new(message, origin).with_consumer("billing.charge").with_attempt(2);
            assert!(service.oneshot(delivery).await.is_ok());
        });
    });
    let heard = listener.0.lock().unwrap();
    let field = |name: &str| heard.fields.get(name).map(String::as_str);
    assert_eq!(field("consumer"), Some("billing.charge"));
    assert_eq!(field("subject"), Some("payments.created"));
    assert_eq!(field("message_id"), Some("evt-7"));
    assert_eq!(field("event"), None);
    assert_eq!(field("attempt"), Some("2"));
    assert_eq!(field("trace_id"), Some("0af7651916cd43dd8448eb211c80319c"));
    assert_eq!(field("parent_id"), Some("b7ad6b7169203331"));
    assert_eq!(field("outcome"), Some("dead"));
    assert!(field("origin").unwrap().contains("payments"), "{:?}", field("origin"));
    assert_eq!(heard.entered, 0);
    assert!(heard.events_inside >= 4, "the handler's own and ours: {}", heard.events_inside);
}

/// Keeps what is told at one level, as a warning by default.
#[derive(Clone)]
struct Warnings(Arc<Mutex<Vec<String>>>, Level);

impl Default for Warnings {
    fn default() -> Self {
        Self(Arc::default(), Level::WARN)
    }
}

impl Visit for Warnings {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.0.lock().unwrap().push(format!("{value:?}"));
        }
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == self.1
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        event.record(&mut self.clone());
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[test]
fn who_would_not_find_out_what_kills_the_process_is_told() {
    let warned = Warnings::default();
    let build = |adjust: fn(ConsumerBuilder) -> ConsumerBuilder| {
        let work = handler("orders.handle", |_: Delivery| async {}).build().unwrap();
        let source = MemoryBroker::new().source("orders");
        assert!(source.capabilities().counts_deliveries);
        let _ = adjust(Consumer::builder(source).handler(work)).build().unwrap();
        std::mem::take(&mut *warned.0.lock().unwrap())
    };
    tracing::subscriber::with_default(warned.clone(), || {
        let told = build(|consumer| consumer.sink(MemoryStore::new()));
        assert!(told.len() == 1 && told[0].contains("`crash_marks(…)`"), "{told:?}");
        assert!(build(|consumer| consumer.dead_letters(MemoryStore::new())).is_empty());
        let marked = |consumer: ConsumerBuilder| {
            consumer.sink(MemoryStore::new()).crash_marks(MemoryStore::new())
        };
        assert!(build(marked).is_empty());
    });
}

/// However often a key has to be waited for, one line of each message says so.
#[test]
fn a_message_that_waits_for_its_key_says_so_once() {
    let told = Warnings(Arc::default(), Level::INFO);
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    tracing::subscriber::with_default(told.clone(), || {
        runtime.unwrap().block_on(async {
            let clock = Arc::new(TokioClock::starting_at(Timestamp::EPOCH));
            let second = Duration::from_secs(1);
            let stack = handler("orders.handle", move |_: Delivery| tokio::time::sleep(second))
                .idempotency(MemoryIdempotency::new().clock(clock))
                .idempotency_key(|_: &Delivery| "k")
                .build()
                .unwrap();
            let start = |tasks: &mut JoinSet<_>| {
                let origin = Origin::new("memory", "orders", Position::Offset(7));
                let delivery = Delivery::new(Message::new("orders", "{}"), origin);
                tasks.spawn(stack.clone().oneshot(delivery));
            };
            let (mut first, mut waiting) = (JoinSet::new(), JoinSet::new());
            start(&mut first);
            tokio::time::sleep(second / 2).await;
            start(&mut waiting);
            start(&mut waiting);
            tokio::time::sleep(second / 4).await;
            // Both are woken: one runs, and the other waits once more.
            first.abort_all();
            for expected in [Done::Succeeded, Done::Duplicate] {
                let Ok(verdict) = waiting.join_next().await.unwrap().unwrap();
                assert_eq!(verdict, Verdict::Done(expected));
            }
        });
    });
    assert_eq!(*told.0.lock().unwrap(), ["waiting for the key of a message"; 2]);
}

/// Its attempts are forgotten between two stages, and no later stage is ever reached.
#[test]
fn who_never_comes_to_the_end_of_a_ladder_is_told() {
    let warned = Warnings::default();
    let build = |waits: Duration, adjust: fn(ConsumerBuilder) -> ConsumerBuilder| {
        let policy = RetryPolicy::new().with_backoff(Backoff::ladder([waits, waits]));
        let work = handler("orders.handle", |_: Delivery| async {}).policy(policy);
        let router = Router::new().route("orders", work).build().unwrap();
        let consumer = Consumer::builder(MemoryBroker::new().source("orders")).handler(router);
        let _ = adjust(consumer.crash_marks(MemoryStore::new())).build().unwrap();
        std::mem::take(&mut *warned.0.lock().unwrap())
    };
    let (short, long) = (Duration::from_secs(5), Duration::from_secs(30));
    let store: fn(ConsumerBuilder) -> ConsumerBuilder = |it| it.dead_letters(MemoryStore::new());
    let sink: fn(ConsumerBuilder) -> ConsumerBuilder = |it| it.sink(MemoryStore::new());
    let queue: fn(ConsumerBuilder) -> ConsumerBuilder =
        |it| it.sink(MemoryStore::new()).retry_queue(MemoryStore::new());
    let of_routing: fn(ConsumerBuilder) -> ConsumerBuilder =
        |it| it.sink(MemoryStore::new()).routing(|routing| routing.retry_queue(MemoryStore::new()));
    tracing::subscriber::with_default(warned.clone(), || {
        let told = build(long, sink);
        assert!(told.len() == 1 && told[0].contains("`retry_queue(…)`"), "{told:?}");
        for (waits, adjust) in [(short, sink), (long, store), (long, queue), (long, of_routing)] {
            assert_eq!(build(waits, adjust), [""; 0]);
        }
    });
}

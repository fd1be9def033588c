//! Consumers that open what a transport describes.

use std::sync::{Arc, Mutex};

use dlq_core::memory::{MemoryBroker, MemorySink, MemorySource, MemoryTransport};
use dlq_core::{
    BoxCrashMarks, BoxRetryQueue, BoxSink, Delivery, Message, StoreError, StoreErrorKind,
    Transport, TransportError, TransportErrorKind,
};
use dlq_letters::memory::MemoryStore;
use dlq_tower::consumer::{Consumer, ConsumerBuilder, Described, OpenError};
use dlq_tower::handler::{HandlerStack, handler};
use dlq_tower::router::Router;

use crate::support::Running;

/// Notes which parts are opened, for whom.
#[derive(Clone)]
struct Noting {
    inner: MemoryTransport,
    opened: Arc<Mutex<Vec<String>>>,
    fails: Option<&'static str>,
}

impl Noting {
    fn new() -> Self {
        Self { inner: MemoryTransport::new("orders"), opened: Arc::default(), fails: None }
    }

    fn note(&self, part: &'static str, name: &str) -> Result<(), StoreError> {
        if self.fails == Some(part) {
            return Err(StoreError::new(StoreErrorKind::Unavailable, "open a part"));
        }
        self.opened.lock().unwrap().push(format!("{part} {name}"));
        Ok(())
    }

    fn opened(&self) -> Vec<String> {
        self.opened.lock().unwrap().clone()
    }
}

impl Transport<MemoryBroker> for Noting {
    type Source = MemorySource;

    fn consumer_name(&self) -> Option<&str> {
        Transport::<MemoryBroker>::consumer_name(&self.inner)
    }

    fn summary(&self) -> String {
        self.inner.summary()
    }

    async fn source(
        &self,
        broker: &MemoryBroker,
        name: &str,
    ) -> Result<MemorySource, TransportError> {
        let closed = |_| TransportError::new(TransportErrorKind::Unavailable, "open a source");
        self.note("source", name).map_err(closed)?;
        self.inner.source(broker, name).await
    }

    async fn retry_queue(
        &self,
        broker: &MemoryBroker,
        name: &str,
    ) -> Result<Option<BoxRetryQueue>, StoreError> {
        self.note("retries", name)?;
        self.inner.retry_queue(broker, name).await
    }

    async fn dead_letters(&self, broker: &MemoryBroker, name: &str) -> Result<BoxSink, StoreError> {
        self.note("letters", name)?;
        self.inner.dead_letters(broker, name).await
    }

    async fn crash_marks(
        &self,
        _broker: &MemoryBroker,
        _source: &mut MemorySource,
    ) -> Result<Option<BoxCrashMarks>, StoreError> {
        self.note("marks", "")?;
        Ok(Some(BoxCrashMarks::new(MemoryStore::new())))
    }
}

fn work() -> HandlerStack {
    handler("billing", |_: Delivery| async {}).build().unwrap()
}

async fn open(builder: ConsumerBuilder<Described>) {
    drop(builder.open().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn everything_that_is_not_given_is_opened_and_the_source_last() {
    let noting = Noting::new();
    let opening = Consumer::on(noting.clone(), &MemoryBroker::new()).handler(work());
    open(opening).await;
    assert_eq!(noting.opened(), ["letters billing", "retries billing", "source billing", "marks "]);
}

#[tokio::test(start_paused = true)]
async fn a_part_that_is_given_or_left_out_is_not_opened() {
    let noting = Noting::new();
    let broker = MemoryBroker::new();
    let on = || Consumer::on(noting.clone(), &broker).handler(work());
    // A store takes the letters and keeps the marks.
    open(on().dead_letters(MemoryStore::new())).await;
    assert_eq!(noting.opened(), ["retries billing", "source billing"]);
    noting.opened.lock().unwrap().clear();
    let bare = on().without_retry_queue().without_crash_marks().sink(MemorySink::new());
    open(bare).await;
    assert_eq!(noting.opened(), ["source billing"]);
    noting.opened.lock().unwrap().clear();
    let queue = broker.retry_queue();
    open(on().retry_queue(queue).crash_marks(MemoryStore::new())).await;
    assert_eq!(noting.opened(), ["letters billing", "source billing"]);
}

#[tokio::test(start_paused = true)]
async fn the_name_is_that_of_the_transport_else_that_of_the_handler_or_the_router() {
    let broker = MemoryBroker::new();
    let mut noting = Noting::new();
    noting.inner = MemoryTransport::new("orders").name("accounts");
    open(Consumer::on(noting.clone(), &broker).handler(work())).await;
    assert!(noting.opened().contains(&"source accounts".to_owned()), "{:?}", noting.opened());

    let router = |name: Option<&str>| {
        let router = Router::new().route("orders.*", work());
        let router = match name {
            Some(name) => router.name(name),
            None => router,
        };
        router.build().unwrap()
    };
    let noting = Noting::new();
    open(Consumer::on(noting.clone(), &broker).handler(router(Some("shop")))).await;
    assert!(noting.opened().contains(&"source shop".to_owned()), "{:?}", noting.opened());

    // Another service's router would be another consumer of the same name, and share its messages.
    let noting = Noting::new();
    let unnamed = Consumer::on(noting.clone(), &broker).handler(router(None)).open().await;
    let error = unnamed.expect_err("nobody has named it");
    assert!(matches!(error, OpenError::InvalidConfig(_)), "{error:?}");
    assert!(error.to_string().contains("`Router::new().name(…)`"), "{error}");
    assert!(noting.opened().is_empty(), "{:?}", noting.opened());
}

#[tokio::test(start_paused = true)]
async fn nothing_is_opened_for_settings_that_contradict_each_other() {
    let noting = Noting::new();
    let on = || Consumer::on(noting.clone(), &MemoryBroker::new());
    for wrong in
        [on(), on().handler(work()).max_in_flight(0), on().handler(work()).processing_audit()]
    {
        let error = wrong.open().await.expect_err("it contradicts itself");
        assert!(!error.is_transient(), "{error}");
    }
    assert!(noting.opened().is_empty(), "{:?}", noting.opened());
}

#[tokio::test(start_paused = true)]
async fn a_part_that_does_not_open_is_told_and_the_source_is_not_read() {
    for part in ["letters", "retries", "source", "marks"] {
        let mut noting = Noting::new();
        noting.fails = Some(part);
        let opening = Consumer::on(noting.clone(), &MemoryBroker::new()).handler(work());
        let error = opening.open().await.expect_err(part);
        assert!(error.is_transient(), "{error}");
        let read = noting.opened().iter().any(|opened| opened.starts_with("source"));
        assert_eq!(read, part == "marks", "{part}");
    }
}

#[tokio::test(start_paused = true)]
async fn g1_the_dead_are_in_the_stream_of_the_transport() {
    let (broker, dead) = (MemoryBroker::new(), MemorySink::new());
    let orders = broker.clone().stream("orders");
    orders.publish(Message::new("orders.created", "1"));
    let failing = handler("billing", |_: Delivery| async { Err::<(), _>("refused") });
    let failing = failing.classify(|_: &&str| dlq_core::ErrorClass::Permanent).build().unwrap();
    let transport = MemoryTransport::new("orders").sink(dead.clone());
    let consumer = Consumer::on(transport, &broker).handler(failing).open().await.unwrap();
    let running = Running::start(consumer);
    orders.idle("billing").await;
    running.finish().await;
    assert_eq!(dead.letters().len(), 1);
}

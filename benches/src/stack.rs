//! Cost that the layers add to a handler, per successful message: each layer's share, the attribute's, and
//! idempotency's.

use std::collections::BTreeMap;
use std::fmt;
use std::future::{Ready, ready};
use std::hint::black_box;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use dlq_core::idempotency::{
    BoxIdempotency, Idempotency, IdempotencyClaim, memory::MemoryIdempotency,
};
use dlq_core::{Classification, Classify, Delivery, Message, Origin, Position, RetryPolicy};
use dlq_letters::memory::MemoryStore;
use dlq_sql::sqlite::SqliteStore;
use dlq_tower::catch_panic::CatchPanicLayer;
use dlq_tower::classify::ClassifyLayer;
use dlq_tower::concurrency::ConcurrencyLayer;
use dlq_tower::dead_letter::{DeadLetter, DeadLetterLayer};
use dlq_tower::dlq_handler;
use dlq_tower::handler::{HandlerStack, InvalidConfig};
use dlq_tower::idempotency::IdempotencyLayer;
use dlq_tower::metrics::{Metrics, MetricsLayer};
use dlq_tower::retry::RetryLayer;
use dlq_tower::timeout::TimeoutLayer;
use dlq_tower::trace::{Trace, TraceLayer};
use futures_util::FutureExt as _;
use tokio::runtime::Runtime;
use tower::ServiceExt as _;
use tower_layer::Layer as _;
use tower_service::Service;

use crate::measure::{Size, fastest, nanos_each};

const NAME: &str = "payments.charge";

#[derive(Debug)]
pub(crate) struct Refused;

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("refused")
    }
}

impl std::error::Error for Refused {}

impl Classify for Refused {
    fn classify(&self) -> Classification {
        Classification::transient()
    }
}

/// Handles a message: looks at the payload and succeeds.
fn look(delivery: &Delivery) -> Result<(), Refused> {
    let length = delivery.message().payload().map_or(0, Bytes::len);
    if black_box(length) == 0 { Err(Refused) } else { Ok(()) }
}

/// The bare handler.
#[derive(Clone)]
struct Bare;

impl Service<Delivery> for Bare {
    type Response = ();
    type Error = Refused;
    type Future = Ready<Result<(), Refused>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Refused>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, delivery: Delivery) -> Self::Future {
        ready(look(&delivery))
    }
}

/// The same under the attribute.
#[dlq_handler(name = "payments.charge", timeout = "10s", concurrency = 16)]
async fn charge(delivery: Delivery) -> Result<(), Refused> {
    look(&delivery)
}

/// Cost of one call.
#[derive(Clone, Copy, Default)]
struct Cost {
    nanos: f64,
    allocations: f64,
}

struct Bench {
    runtime: Runtime,
    rounds: usize,
    /// As many messages as a round has calls, each with a key of its own, all made beforehand.
    deliveries: Vec<Delivery>,
    costs: BTreeMap<&'static str, Cost>,
}

impl Bench {
    fn new(size: Size) -> std::io::Result<Self> {
        let consumer: Arc<str> = Arc::from(NAME);
        let delivery = |number: u64| {
            let message =
                Message::new("payments.requested", r#"{"id":"pay-1","amount_cents":100}"#)
                    .with_key(Bytes::from(number.to_string()));
            Delivery::new(message, Origin::new("memory", "payments", Position::Offset(7)))
                .with_consumer(Arc::clone(&consumer))
        };
        Ok(Self {
            runtime: tokio::runtime::Builder::new_current_thread().enable_time().build()?,
            rounds: size.pick(1, 300),
            deliveries: (0..size.pick(500, 5_000)).map(delivery).collect(),
            costs: BTreeMap::new(),
        })
    }

    fn calls<S>(&self, service: &mut S)
    where
        S: Service<Delivery>,
    {
        self.runtime.block_on(async {
            for delivery in &self.deliveries {
                let ready = service.ready().await.map_err(drop).ok();
                if let Some(service) = ready {
                    black_box(service.call(delivery.clone()).await.ok());
                }
            }
        });
    }

    /// Measures the stacks that `make` makes, one for each round, and prints what a call costs beyond `inside`.
    fn measure<S>(&mut self, name: &'static str, inside: &str, make: impl Fn() -> S)
    where
        S: Service<Delivery>,
    {
        let time = fastest(self.rounds, &make, |service| self.calls(service));
        let mut service = make();
        let counted = allocation_counter::measure(|| self.calls(&mut service));
        let calls = self.deliveries.len() as u64;
        let cost = Cost {
            nanos: nanos_each(time, calls),
            allocations: counted.count_total as f64 / calls as f64,
        };
        let inner = self.costs.get(inside).copied().unwrap_or_default();
        println!(
            "{name:<44} {:>8.1} ns {:>6.2} allocations   ({:+.1} ns, {:+.2})",
            cost.nanos,
            cost.allocations,
            cost.nanos - inner.nanos,
            cost.allocations - inner.allocations
        );
        self.costs.insert(name, cost);
    }

    /// A spawned task per message, which a run loop needs: shown apart.
    fn spawned<S>(&self, name: &str, make: impl Fn() -> S)
    where
        S: Service<Delivery, Response: Send, Error: Send, Future: Send> + Clone + Send + 'static,
    {
        let time = fastest(self.rounds, make, |service| {
            self.runtime.block_on(async {
                let mut tasks = tokio::task::JoinSet::new();
                for delivery in &self.deliveries {
                    let call = service.clone().oneshot(delivery.clone());
                    tasks.spawn(async move { black_box(call.await.is_ok()) });
                    if tasks.len() >= 64 {
                        tasks.join_next().await;
                    }
                }
                tasks.join_all().await;
            });
        });
        println!("{name:<44} {:>8.1} ns", nanos_each(time, self.deliveries.len() as u64));
    }
}

pub(crate) fn run(size: Size) -> Result<(), Box<dyn std::error::Error>> {
    let mut bench = Bench::new(size)?;
    by_hand(&mut bench);
    by_attribute(&mut bench)?;
    Ok(())
}

/// Each layer's share of a stack composed by hand.
fn by_hand(bench: &mut Bench) {
    let classified = ClassifyLayer::derived().layer(Bare);
    let guarded = CatchPanicLayer::new().layer(classified.clone());
    let timed = TimeoutLayer::new(Duration::from_secs(10)).layer(guarded.clone());
    let permitted = ConcurrencyLayer::new(16).layer(timed.clone());
    let retried = RetryLayer::new(RetryPolicy::new()).layer(permitted.clone());
    let routed = DeadLetterLayer::new(MemoryStore::new()).layer(retried.clone());
    let counted = MetricsLayer::new().layer(routed.clone());
    let traced = TraceLayer::new().layer(counted.clone());

    bench.measure("bare handler", "", || Bare);
    bench.measure("+ classify", "bare handler", || classified.clone());
    bench.measure("+ panic guard", "+ classify", || guarded.clone());
    bench.measure("+ timeout", "+ panic guard", || timed.clone());
    bench.measure("+ permit", "+ timeout", || permitted.clone());
    bench.measure("+ retry", "+ permit", || retried.clone());
    bench.measure("+ dead-letter routing", "+ retry", || routed.clone());
    bench.measure("+ metrics (no recorder)", "+ dead-letter routing", || counted.clone());
    bench.measure("+ trace (no subscriber)", "+ metrics (no recorder)", || traced.clone());

    // Every call is a first claim and a completion; a store for each round, so that it does not grow without end.
    let once = || {
        let key = |delivery: &Delivery| delivery.message().key().cloned();
        let once = IdempotencyLayer::new(MemoryIdempotency::new(), key).layer(timed.clone());
        let permitted = ConcurrencyLayer::new(16).layer(once);
        let retried = RetryLayer::new(RetryPolicy::new()).layer(permitted);
        let routed = DeadLetterLayer::new(MemoryStore::new()).layer(retried);
        TraceLayer::new().layer(MetricsLayer::new().layer(routed))
    };
    bench.measure("full stack, by hand, idempotent", "bare handler", once);
}

/// The same by the attribute, inside the layers that a consumer adds.
fn by_attribute(bench: &mut Bench) -> Result<(), InvalidConfig> {
    let plain = whole(charge::handler().build()?);
    bench.measure("full stack, by attribute", "bare handler", || plain.clone());

    let keyed = charge::handler().idempotency_key(|delivery| delivery.message().key().cloned());
    let _ = keyed.clone().idempotency(MemoryIdempotency::new()).build()?;
    let once = || {
        let store = MemoryIdempotency::new();
        keyed.clone().idempotency(store).build().map(whole).expect("the same was built above")
    };
    bench.measure("full stack, by attribute, idempotent", "bare handler", once);
    // The same in a store that has grown already: its keys are done for no time, and claimed anew in each round.
    let kept = keyed.clone().idempotency_keep(Duration::ZERO);
    let kept = kept.idempotency(MemoryIdempotency::new()).build().map(whole)?;
    let name = "by attribute, idempotent, in a grown store";
    bench.measure(name, "bare handler", || kept.clone());
    let boxed = || {
        let store = BoxIdempotency::new(MemoryIdempotency::new());
        keyed.clone().idempotency(store).build().map(whole).expect("the same was built above")
    };
    bench.measure("by attribute, idempotent, the store boxed", "bare handler", boxed);
    let claims = Claims(MemoryIdempotency::new());
    bench.measure("the claim and the completion alone", "", || claims.clone());
    bench.spawned("the idempotent one, a spawned task for each", once);
    let subscriber = tracing_subscriber::fmt().with_writer(std::io::sink).finish();
    tracing::subscriber::with_default(subscriber, || {
        let name = "by attribute, with a formatting subscriber";
        bench.measure(name, "full stack, by attribute", || plain.clone());
    });
    let folder = tempfile::tempdir().expect("a temporary folder");
    let store = bench.runtime.block_on(SqliteStore::open(folder.path().join("dlq.db")));
    let store = store.expect("a new store");
    bench.deliveries.truncate(bench.deliveries.len() / 10);
    let on_disk = || {
        let store = store.idempotency();
        keyed.clone().idempotency(store).build().map(whole).expect("the same was built above")
    };
    let mut service = on_disk();
    let start = std::time::Instant::now();
    bench.calls(&mut service);
    let each = nanos_each(start.elapsed(), bench.deliveries.len() as u64);
    println!("{:<44} {each:>8.1} ns", "the idempotent one, claims synced to disk");
    Ok(())
}

/// A handler's stack inside the layers that a consumer adds.
fn whole(handler: HandlerStack) -> Trace<Metrics<DeadLetter<HandlerStack>>> {
    let routed = DeadLetterLayer::new(MemoryStore::new()).layer(handler);
    TraceLayer::new().layer(MetricsLayer::new().layer(routed))
}

/// Claims of idempotency on a store that has grown, and nothing else.
#[derive(Clone)]
struct Claims(MemoryIdempotency);

impl Service<Delivery> for Claims {
    type Response = ();
    type Error = Refused;
    type Future = Ready<Result<(), Refused>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Refused>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, delivery: Delivery) -> Self::Future {
        let Some(key) = delivery.message().key().cloned() else { return ready(Err(Refused)) };
        let consumer = delivery.consumer_shared().clone();
        // In memory, both answer at once.
        let claim = self.0.claim(consumer, key, Duration::from_secs(60)).now_or_never();
        let Some(Ok(IdempotencyClaim::New { token, .. })) = claim else {
            return ready(Err(Refused));
        };
        let done = self.0.complete(token, Duration::ZERO).now_or_never();
        ready(if matches!(done, Some(Ok(true))) { Ok(()) } else { Err(Refused) })
    }
}

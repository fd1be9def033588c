//! What the layers add to a handler, per successful message, each layer's share and the attribute's.

use std::collections::BTreeMap;
use std::future::{Ready, ready};
use std::hint::black_box;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use dlq_core::idempotency::{BoxIdempotency, memory::MemoryIdempotency};
use dlq_core::store::memory::MemoryStore;
use dlq_core::{Classification, Classify, Delivery, Message, Origin, Position, RetryPolicy};
use dlq_tower::catch_panic::CatchPanicLayer;
use dlq_tower::classify::ClassifyLayer;
use dlq_tower::concurrency::ConcurrencyLayer;
use dlq_tower::dead_letter::DeadLetterLayer;
use dlq_tower::idempotency::IdempotencyLayer;
use dlq_tower::metrics::MetricsLayer;
use dlq_tower::retry::RetryLayer;
use dlq_tower::timeout::TimeoutLayer;
use dlq_tower::trace::TraceLayer;
use tokio::runtime::Runtime;
use tower::ServiceExt as _;
use tower_layer::Layer as _;
use tower_service::Service;

use crate::measure::{Size, median, nanos_each};

#[derive(Debug)]
struct Refused;

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("refused")
    }
}

impl std::error::Error for Refused {}

impl Classify for Refused {
    fn classify(&self) -> Classification {
        Classification::transient()
    }
}

/// The bare handler: looks at the payload and succeeds.
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
        let length = delivery.message().payload().map_or(0, Bytes::len);
        ready(if black_box(length) == 0 { Err(Refused) } else { Ok(()) })
    }
}

/// Cost of one call.
#[derive(Clone, Copy, Default)]
struct Cost {
    nanos: f64,
    allocations: f64,
}

struct Bench {
    runtime: Runtime,
    calls: u64,
    rounds: usize,
    delivery: Delivery,
    costs: BTreeMap<String, Cost>,
}

impl Bench {
    fn calls<S>(&self, service: &mut S)
    where
        S: Service<Delivery>,
        S::Error: std::fmt::Debug,
    {
        self.runtime.block_on(async {
            for _ in 0..self.calls {
                let ready = service.ready().await.map_err(drop).ok();
                if let Some(service) = ready {
                    black_box(service.call(self.delivery.clone()).await.ok());
                }
            }
        });
    }

    /// Measures a stack and prints what it costs beyond `inside`.
    fn measure<S>(&mut self, name: &str, inside: Option<&str>, mut service: S)
    where
        S: Service<Delivery>,
        S::Error: std::fmt::Debug,
    {
        self.calls(&mut service);
        let time = median(self.rounds, || self.calls(&mut service));
        let counted = allocation_counter::measure(|| self.calls(&mut service));
        let cost = Cost {
            nanos: nanos_each(time, self.calls),
            allocations: counted.count_total as f64 / self.calls as f64,
        };
        let inner = inside.and_then(|name| self.costs.get(name)).copied().unwrap_or_default();
        println!(
            "{name:<44} {:>8.1} ns {:>6.2} allocations   (+{:.1} ns, +{:.2})",
            cost.nanos,
            cost.allocations,
            cost.nanos - inner.nanos,
            cost.allocations - inner.allocations
        );
        self.costs.insert(name.to_owned(), cost);
    }
}

pub(crate) fn run(size: Size) -> Result<(), Box<dyn std::error::Error>> {
    let mut bench = Bench {
        runtime: tokio::runtime::Builder::new_current_thread().enable_time().build()?,
        calls: size.pick(2_000, 200_000),
        rounds: size.pick(1, 9),
        delivery: Delivery::new(
            Message::new("payments.requested", r#"{"id":"pay-1","amount_cents":100}"#)
                .with_key("customer-7"),
            Origin::new("memory", "payments", Position::Offset(7)),
        )
        .with_consumer("payments.charge"),
        costs: BTreeMap::new(),
    };

    let classified = ClassifyLayer::derived().layer(Bare);
    let guarded = CatchPanicLayer::new().layer(classified.clone());
    let timed = TimeoutLayer::new(Duration::from_secs(10)).layer(guarded.clone());
    let permitted = ConcurrencyLayer::new(16).layer(timed.clone());
    let retried = RetryLayer::new(RetryPolicy::new()).layer(permitted.clone());
    let routed = DeadLetterLayer::new(MemoryStore::new()).layer(retried.clone());
    let counted = MetricsLayer::new().layer(routed.clone());
    let traced = TraceLayer::new().layer(counted.clone());

    bench.measure("bare handler", None, Bare);
    bench.measure("+ classify", Some("bare handler"), classified);
    bench.measure("+ panic guard", Some("+ classify"), guarded);
    bench.measure("+ timeout", Some("+ panic guard"), timed.clone());
    bench.measure("+ permit", Some("+ timeout"), permitted);
    bench.measure("+ retry", Some("+ permit"), retried);
    bench.measure("+ dead-letter routing", Some("+ retry"), routed);
    bench.measure("+ metrics (no recorder)", Some("+ dead-letter routing"), counted);
    bench.measure("+ trace (no subscriber)", Some("+ metrics (no recorder)"), traced);

    // Each message has a key of its own; every call is a first claim and a completion.
    let number = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let idempotent = IdempotencyLayer::new(
        BoxIdempotency::new(MemoryIdempotency::new()),
        move |_: &Delivery| {
            let number = number.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            Some(Bytes::copy_from_slice(&number.to_le_bytes()))
        },
    )
    .layer(timed);
    let permitted = ConcurrencyLayer::new(16).layer(idempotent);
    let retried = RetryLayer::new(RetryPolicy::new()).layer(permitted);
    let routed = DeadLetterLayer::new(MemoryStore::new()).layer(retried);
    let full = TraceLayer::new().layer(MetricsLayer::new().layer(routed));
    bench.measure("full stack, with idempotency in memory", Some("bare handler"), full.clone());

    spawned(&bench, full);
    Ok(())
}

/// A spawned task per message, which a run loop needs: shown apart.
fn spawned<S>(bench: &Bench, service: S)
where
    S: Service<Delivery> + Clone + Send + 'static,
    S::Future: Send,
    S::Response: Send,
    S::Error: Send,
{
    let calls = bench.calls.min(50_000);
    let time = median(bench.rounds, || {
        bench.runtime.block_on(async {
            let mut tasks = tokio::task::JoinSet::new();
            for _ in 0..calls {
                let call = service.clone().oneshot(bench.delivery.clone());
                tasks.spawn(async move { black_box(call.await.is_ok()) });
                if tasks.len() >= 64 {
                    tasks.join_next().await;
                }
            }
            tasks.join_all().await;
        });
    });
    println!("{:<44} {:>8.1} ns", "the same, a spawned task for each", nanos_each(time, calls));
}

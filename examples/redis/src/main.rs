//! The payments consumer of the quickstart on Redis Streams. Its handler, payment and provider are the same files; what
//! differs is where messages come from and where the dead go.
//!
//! It needs Redis 6.2 or later, or Valkey: `cargo run -p dlq-services -- up redis` starts one and prints where it is. Then
//! `REDIS_URL=redis://127.0.0.1:6379 cargo run -p redis-example`. Messages, retries, letters and idempotency keys are all on
//! that server. With `-- --repaired` the provider works again: letters whose error can pass, and those that could not be
//! decoded, are sent back to the handler.

mod feed;
mod idle;
#[path = "../../quickstart/src/payment.rs"]
mod payment;
#[path = "../../quickstart/src/provider.rs"]
mod provider;

use std::error::Error;
use std::time::Duration;

use tower_dlq::consumer::Consumer;
use tower_dlq::core::store::{Actor, Letters as _, OperationSpec, Operations as _};
use tower_dlq::core::{Cause, ErrorClass, Filter};
use tower_dlq::dlq_handler;
use tower_dlq::extract::{Attempt, Json, State};
use tower_dlq::redis::redis::{self, AsyncConnectionConfig};
use tower_dlq::redis::store::RedisStore;
use tower_dlq::redis::{IdempotencyConfig, RedisClient, RedisIdempotency, RedisTransport};

use payment::Payment;
use provider::{ChargeError, Provider};

const CONSUMER: &str = "payments.charge";

#[dlq_handler(
    name = "payments.charge",
    max_attempts = 3,
    backoff = exponential("20ms", max = "200ms", jitter = full),
    timeout = "250ms",
    idempotency_key = |payment: &Payment| payment.id.clone(),
)]
async fn charge(
    Json(payment): Json<Payment>,
    attempt: Attempt,
    State(provider): State<Provider>,
) -> Result<(), ChargeError> {
    provider.charge(&payment.card, payment.amount_cents, attempt.number()).await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // A panic ends up in its letter.
    std::panic::set_hook(Box::new(|_| {}));
    let repaired = std::env::args().any(|arg| arg == "--repaired");
    payment::accept_amounts_as_text(repaired);
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    let client = RedisClient::open(&url).await?;

    let payments = RedisTransport::new(feed::STREAM);
    let store = RedisStore::connect(&client).await?;
    let keys = RedisIdempotency::open(&client, IdempotencyConfig::new()).await?;
    // The producer's connection, and that of whoever looks at how far the group is.
    let patient = AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(10)));
    let raw = redis::Client::open(url)?;
    let mut raw = raw.get_multiplexed_async_connection_with_config(&patient).await?;
    let messages = if repaired { 0 } else { feed::publish(&mut raw, &payments).await? };
    let mut sent = 0;
    if repaired {
        let fixed = [
            Filter::new().with_class(ErrorClass::Transient),
            Filter::new().with_cause(Cause::Decode),
        ];
        for filter in fixed {
            let by = Actor::new("redis-example").with_note("the provider is repaired");
            sent += store.start(OperationSpec::replay(filter), by).await?.progress.total;
        }
    }

    let provider = Provider::new(repaired);
    let charge = charge::handler().with_state(provider.clone()).idempotency(keys).build()?;
    let consumer = Consumer::on(payments, &client)
        .handler(charge)
        .dead_letters(store.clone())
        .shutdown_deadline(Duration::from_secs(10))
        .open()
        .await?;
    // It runs until there is nothing left to do.
    let report = consumer.run(idle::until_idle(raw, &store)).await;

    let charged = provider.charged();
    if repaired {
        println!("{sent} letters sent back: {charged} payments charged that had died before");
    } else {
        println!("{messages} messages: {charged} charged");
    }
    let stats = store.stats(Filter::new()).await?;
    println!("{} letters wait for somebody", stats.backlog());
    for (cause, count) in stats.by_cause {
        println!("  {count:>4}  {cause}");
    }
    if report.unsettled > 0 {
        return Err(format!("{report}").into());
    }
    Ok(())
}

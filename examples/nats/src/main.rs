//! The payments consumer of the quickstart on NATS JetStream. Its handler, payment and provider are the same files;
//! what differs is where messages come from and where the dead go.
//!
//! It needs a server with JetStream: `cargo run -p dlq-services -- up nats` starts one and prints where it is. Then
//! `NATS_URL=nats://127.0.0.1:4222 cargo run -p nats-example`. The dead letters are in the stream `DLQ`, on subjects
//! `dlq.payments.*`. With `-- --repaired` the provider works again: letters whose error can pass, and those that could
//! not be decoded, are sent back to the handler and to nobody else.

mod feed;
mod idle;
#[path = "../../quickstart/src/payment.rs"]
mod payment;
#[path = "../../quickstart/src/provider.rs"]
mod provider;

use std::collections::BTreeMap;
use std::error::Error;
use std::time::Duration;

use tower_dlq::consumer::Consumer;
use tower_dlq::core::idempotency::memory::MemoryIdempotency;
use tower_dlq::core::log::Range;
use tower_dlq::core::{Cause, Clock as _, ErrorClass, Filter, OperationId, SystemClock};
use tower_dlq::dlq_handler;
use tower_dlq::extract::{Attempt, Json, State};
use tower_dlq::nats::{
    DlqStream, NatsLetters, NatsReplay, NatsTarget, NatsTransport, Reading, RetryStream, async_nats,
};

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
    let url = std::env::var("NATS_URL").unwrap_or_else(|_| "nats://127.0.0.1:4222".to_owned());
    let client = async_nats::connect(url).await?;

    let payments = NatsTransport::new(feed::STREAM).subject("payments.>").key_header(feed::KEY);
    let letters = NatsLetters::new(&client, DlqStream::new());
    let messages = if repaired { 0 } else { feed::publish(&client).await? };
    let mut sent = 0;
    if repaired {
        let operation = OperationId::of(CONSUMER, SystemClock.now(), 0);
        let fixed = [
            Filter::new().with_class(ErrorClass::Transient),
            Filter::new().with_cause(Cause::Decode),
        ];
        for filter in fixed {
            let handler = NatsTarget::Handler(RetryStream::new());
            let replay = NatsReplay::new(&letters, filter, handler, operation);
            sent += replay.run(std::future::pending(), |_| {}).await?.sent;
        }
    }

    let provider = Provider::new(repaired);
    let charge = charge::handler()
        .with_state(provider.clone())
        .idempotency(MemoryIdempotency::new())
        .build()?;
    let consumer = Consumer::on(payments, &client)
        .handler(charge)
        .shutdown_deadline(Duration::from_secs(10))
        .open()
        .await?;
    // It runs until there is nothing left to do.
    let report = consumer.run(idle::until_idle(&client)).await;

    let charged = provider.charged();
    if repaired {
        println!("{sent} letters sent back: {charged} payments charged that had died before");
    } else {
        println!("{messages} messages: {charged} charged");
    }
    let mut causes: BTreeMap<String, u32> = BTreeMap::new();
    let dead = Reading::of(letters, Range::all()).await?.rows(&Filter::new()).await?;
    for row in &dead {
        let cause = row.letter.cause.map_or_else(|| "none".to_owned(), |c| c.to_string());
        *causes.entry(cause).or_default() += 1;
    }
    println!("{} letters in the stream DLQ", dead.len());
    for (cause, count) in causes {
        println!("  {count:>4}  {cause}");
    }
    if report.unsettled > 0 {
        return Err(format!("{report}").into());
    }
    Ok(())
}

//! The payments consumer of the quickstart on Kafka. Its handler, payment and provider are the same files; what differs is
//! where messages come from, where they wait for a retry, and where the dead go.
//!
//! It needs a broker: `cargo run -p dlq-services -- up kafka` starts one and prints where it is. Then
//! `KAFKA_BROKERS=127.0.0.1:9092 cargo run -p kafka-example`. What fails waits in `payments.payments.charge.retry.1s`, then
//! in `….retry.3s`; the dead letters are in the topic `payments.dlq`. With `-- --repaired` the provider works again: letters
//! whose error can pass, and those that could not be decoded, are sent back to the handler and to nobody else.

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
use tower_dlq::kafka::{
    Brokers, KafkaLag, KafkaLetters, KafkaReplay, KafkaTarget, KafkaTransport, Ladder, Reading,
};

use payment::Payment;
use provider::{ChargeError, Provider};

const CONSUMER: &str = "payments.charge";

#[dlq_handler(
    name = "payments.charge",
    backoff = ladder("1s", "3s"),
    max_in_process_delay = "500ms",
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
    let at = std::env::var("KAFKA_BROKERS").unwrap_or_else(|_| "127.0.0.1:9092".to_owned());
    let brokers = Brokers::at(&*at);
    feed::create(&at).await?;

    let ladder = Ladder::of([Duration::from_secs(1), Duration::from_secs(3)]);
    let payments = KafkaTransport::new(feed::TOPIC).ladder(ladder.clone()).create_missing_topics();
    let letters = KafkaLetters::new(&brokers, "payments.dlq");
    let messages = if repaired { 0 } else { feed::publish(&at).await? };
    let mut sent = 0;
    if repaired {
        let operation = OperationId::of(CONSUMER, SystemClock.now(), 0);
        let fixed = [
            Filter::new().with_class(ErrorClass::Transient),
            Filter::new().with_cause(Cause::Decode),
        ];
        for filter in fixed {
            let handler = KafkaTarget::Handler(ladder.clone());
            let replay = KafkaReplay::new(&letters, filter, handler, operation);
            sent += replay.run(std::future::pending(), |_| {}).await?.sent;
        }
    }

    let provider = Provider::new(repaired);
    let charge = charge::handler()
        .with_state(provider.clone())
        .idempotency(MemoryIdempotency::new())
        .build()?;
    let consumer = Consumer::on(payments, &brokers)
        .handler(charge)
        .shutdown_deadline(Duration::from_secs(10))
        .open()
        .await?;
    // It runs until there is nothing left to do.
    let stages = ladder.stages(feed::TOPIC, CONSUMER)?.into_iter().map(|stage| stage.topic);
    let topics: Vec<_> = stages.chain([feed::TOPIC.to_owned()]).collect();
    let report = consumer.run(idle::until_idle(&KafkaLag::new(brokers, CONSUMER, topics))).await;

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
    println!("{} letters in the topic payments.dlq", dead.len());
    for (cause, count) in causes {
        println!("  {count:>4}  {cause}");
    }
    if report.unsettled > 0 {
        return Err(format!("{report}").into());
    }
    Ok(())
}

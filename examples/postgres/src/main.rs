//! A payments consumer through an outage, with its letters in PostgreSQL.
//!
//! `cargo run -p dlq-services -- up postgres` starts a server and prints where it is. Then
//! `POSTGRES_URL=postgres://… cargo run -p postgres-example`. The bank is away for the first seconds: payments become
//! letters, and the automatic schedule brings them back until it succeeds. What the schedule does here every two seconds
//! it does by default every six hours.
//!
//! Messages come from memory, from NATS JetStream where `NATS_URL` is set, or from Kafka where `KAFKA_BROKERS` is (with
//! `--features kafka`). The handler, the letters and the command are the same. See the README beside this for what to type
//! while it runs, and afterwards.

mod bank;
#[path = "../../quickstart/src/payment.rs"]
mod payment;
mod transport;

use std::error::Error;
use std::time::Duration;

use tower_dlq::consumer::Consumer;
use tower_dlq::core::store::{Letters as _, Schedule};
use tower_dlq::core::{ErrorClass, Filter, Source, Status};
use tower_dlq::dlq_handler;
use tower_dlq::extract::{Json, State};
use tower_dlq::sql::postgres::PostgresStore;

use bank::{Bank, ChargeError};
use payment::Payment;

const CONSUMER: &str = "payments.charge";
const OUTAGE: Duration = Duration::from_secs(5);

#[dlq_handler(
    name = "payments.charge",
    max_attempts = 2,
    backoff = constant("20ms"),
    timeout = "5s",
    idempotency_key = |payment: &Payment| payment.id.clone(),
)]
async fn charge(Json(payment): Json<Payment>, State(bank): State<Bank>) -> Result<(), ChargeError> {
    bank.charge(&payment.card, payment.amount_cents).await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    payment::accept_amounts_as_text(true);
    let url = std::env::var("POSTGRES_URL")
        .map_err(|_| "say where the letters go: POSTGRES_URL=postgres://USER@HOST/DATABASE")?;
    let store = PostgresStore::connect(url).await?;
    transport::publish_and_consume(store).await
}

/// Consumes until what can succeed has succeeded.
async fn consume<S: Source>(source: S, store: PostgresStore) -> Result<(), Box<dyn Error>> {
    let bank = Bank::away_for(OUTAGE);
    let charge =
        charge::handler().with_state(bank.clone()).idempotency(store.idempotency()).build()?;
    let schedule = Schedule::enabled().every(Duration::from_secs(2)).batch(200);
    let consumer = Consumer::builder(source)
        .handler(charge)
        .dead_letters(store.clone())
        .schedule(schedule)
        // So that there are letters to look at: else fetching would pause until the bank is back.
        .without_outage_protection()
        .processing_audit()
        .shutdown_deadline(Duration::from_secs(10))
        .build()?;
    let report = consumer.run(until_brought_back(&bank, &store)).await;
    let stats = store.stats(Filter::new()).await?;
    println!(
        "{} payments charged; {} letters resolved, {} wait for somebody",
        bank.charged(),
        stats.with_status(Status::Resolved),
        stats.backlog()
    );
    if report.unsettled > 0 {
        return Err(format!("{report}").into());
    }
    Ok(())
}

/// Tells every second how it stands, until the bank is back and no letter waits whose error can pass. Where an earlier run
/// has charged everything there is nothing to charge, which is seen by nothing happening.
async fn until_brought_back(bank: &Bank, store: &PostgresStore) {
    let (mut seconds, mut still) = (0, 0);
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        seconds += 1;
        let transient = Filter::new().with_class(ErrorClass::Transient);
        let waiting = [Status::Pending, Status::Replaying, Status::Retrying];
        let waiting = waiting.into_iter().fold(transient, Filter::with_status);
        // A store that does not answer has letters left, as far as we know.
        let waiting = store.count(waiting).await;
        let is = if bank.is_away() { "away" } else { "back" };
        match &waiting {
            Ok(letters) => println!(
                "{seconds:>3} s  the bank is {is}: {} charged, {letters} letters wait for it",
                bank.charged()
            ),
            Err(error) => println!("{seconds:>3} s  the bank is {is}: {error}"),
        }
        still = if !bank.is_away() && matches!(waiting, Ok(0)) { still + 1 } else { 0 };
        if still > 0 && bank.charged() > 0 || still > 5 {
            return;
        }
    }
}

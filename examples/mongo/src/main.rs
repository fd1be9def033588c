//! A payments consumer through an outage, with its letters in MongoDB: the consumer of the PostgreSQL example with another
//! store.
//!
//! `cargo run -p dlq-services -- up mongo` starts a stand-in for MongoDB and prints where it is. Then
//! `MONGO_URL=mongodb://… cargo run -p mongo-example`. The bank is away for the first seconds: payments become letters, and
//! the automatic replay brings them back until it succeeds. Here it runs every two seconds, by default every six hours.

#[path = "../../postgres/src/bank.rs"]
mod bank;
#[path = "../../quickstart/src/feed.rs"]
mod feed;
#[path = "../../quickstart/src/payment.rs"]
mod payment;

use std::error::Error;
use std::time::Duration;

use tower_dlq::consumer::Consumer;
use tower_dlq::core::memory::MemoryBroker;
use tower_dlq::core::store::{Letters as _, Schedule};
use tower_dlq::core::{ErrorClass, Filter, Status};
use tower_dlq::dlq_handler;
use tower_dlq::extract::{Json, State};
use tower_dlq::mongo::MongoStore;

use bank::{Bank, ChargeError};
use payment::Payment;

const GROUP: &str = "payments";
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
    let url = std::env::var("MONGO_URL")
        .map_err(|_| "say where the letters go: MONGO_URL=mongodb://HOST/DATABASE")?;
    let store = MongoStore::open(url).await?;
    let broker = MemoryBroker::new().stream("payments");
    println!("{} messages in memory", feed::publish(&broker)?);
    consume(&broker, store).await
}

/// Consumes until what can succeed has succeeded.
async fn consume(broker: &MemoryBroker, store: MongoStore) -> Result<(), Box<dyn Error>> {
    let bank = Bank::away_for(OUTAGE);
    let charge = charge::handler()
        .with_state(bank.clone())
        .idempotency(store.idempotency())
        // A duplicate that comes while its first copy is being handled looks again when this has passed.
        .idempotency_lease(Duration::from_secs(1))
        .build()?;
    let schedule = Schedule::enabled().every(Duration::from_secs(2)).batch(200);
    let consumer = Consumer::builder(broker.source(GROUP))
        .handler(charge)
        .dead_letters(store.clone())
        .schedule(schedule)
        // So that there are letters to look at: else fetching would pause until the bank is back.
        .without_outage_protection()
        .processing_audit()
        .shutdown_deadline(Duration::from_secs(10))
        .build()?;
    let report = consumer.run(until_brought_back(&bank, broker, &store)).await;
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

/// Prints every second how far it is, until the feed is consumed, the bank is back, and no letter waits whose error can pass.
/// If an earlier run has charged everything, it ends after some seconds in which nothing happens.
async fn until_brought_back(bank: &Bank, broker: &MemoryBroker, store: &MongoStore) {
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
        let is_done = broker.is_idle(GROUP) && matches!(waiting, Ok(0));
        still = if !bank.is_away() && is_done { still + 1 } else { 0 };
        if still > 0 && bank.charged() > 0 || still > 5 {
            return;
        }
    }
}

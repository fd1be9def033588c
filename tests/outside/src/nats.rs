//! Captures and refunds of one stream. Both fail while the bank is closed; then captures alone are sent back.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use tower_dlq::core::log::Range;
use tower_dlq::core::{OperationId, Timestamp};
use tower_dlq::nats::async_nats::{self, Client, jetstream};
use tower_dlq::nats::{DlqStream, NatsLetters, NatsReplay, NatsTarget, Reading, RetryStream};
use tower_dlq::prelude::*;

#[derive(Clone, Default)]
struct Bank {
    is_open: Arc<AtomicBool>,
    captured: Arc<AtomicU32>,
    refunded: Arc<AtomicU32>,
}

#[derive(Debug, thiserror::Error, Classify)]
#[error("the bank is closed")]
#[classify(permanent)]
struct Closed;

impl Bank {
    fn book(&self, books: &AtomicU32) -> Result<(), Closed> {
        if !self.is_open.load(SeqCst) {
            return Err(Closed);
        }
        books.fetch_add(1, SeqCst);
        Ok(())
    }
}

#[dlq_handler(name = "bank.capture", max_attempts = 3)]
async fn capture(State(bank): State<Bank>) -> Result<(), Closed> {
    bank.book(&bank.captured)
}

#[dlq_handler(name = "bank.refund", max_attempts = 3)]
async fn refund(State(bank): State<Bank>) -> Result<(), Closed> {
    bank.book(&bank.refunded)
}

pub(crate) async fn run(url: &str) -> Result<(), Box<dyn Error>> {
    let client = async_nats::connect(url).await?;
    let bank = Bank::default();
    let router = Router::new()
        .name("bank")
        .route("bank.capture", capture::handler().with_state(bank.clone()))
        .route("bank.refund", refund::handler().with_state(bank.clone()))
        .build()?;
    let context = jetstream::new(client.clone());
    let stream = jetstream::stream::Config {
        name: "BANK".to_owned(),
        subjects: vec!["bank.>".to_owned()],
        ..Default::default()
    };
    context.create_stream(stream).await?;
    let transport = NatsTransport::new("BANK").subject("bank.>");
    let consumer = Consumer::on(transport, &client).handler(router).open().await?;
    for subject in ["bank.capture", "bank.refund"] {
        context.publish(subject, "5".into()).await?.await?;
    }

    let stop = consumer.handle();
    let scene = async {
        let sent = replay_captures(&client, &bank).await;
        stop.stop();
        sent
    };
    let (report, sent) = tokio::join!(consumer.run(std::future::pending()), scene);
    println!("on NATS: {} dead", report.dead);
    let (captured, refunded) = (bank.captured.load(SeqCst), bank.refunded.load(SeqCst));
    println!("{} sent back: {captured} captured, {refunded} refunded", sent?);
    Ok(())
}

async fn replay_captures(client: &Client, bank: &Bank) -> Result<u64, Box<dyn Error>> {
    let letters = NatsLetters::new(client, DlqStream::new());
    let all = Filter::new();
    until(async || {
        let reading = Reading::of(letters.clone(), Range::all()).await?;
        Ok(reading.rows(&all).await?.len() == 2)
    })
    .await?;
    bank.is_open.store(true, SeqCst);
    let captures = Filter::new().with_consumer("bank.capture".to_owned());
    let operation = OperationId::of("ana", Timestamp::EPOCH, 1);
    let replay =
        NatsReplay::new(&letters, captures, NatsTarget::Handler(RetryStream::new()), operation);
    let report = replay.run(std::future::pending(), |_| {}).await?;
    until(async || Ok(bank.captured.load(SeqCst) == 1)).await?;
    Ok(report.sent)
}

async fn until(is_so: impl AsyncFn() -> Result<bool, Box<dyn Error>>) -> Result<(), Box<dyn Error>> {
    let waiting = async {
        while !is_so().await? {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    };
    tokio::time::timeout(Duration::from_secs(60), waiting).await?
}

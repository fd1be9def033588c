//! Whether records that wait 30 s in a retry topic slow the others down: a feed of a steady pace, in which a tenth of the
//! records succeeds or fails.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dlq_core::policy::Backoff;
use dlq_core::{Classification, Delivery, RetryPolicy};
use dlq_kafka::rdkafka::producer::{FutureProducer, FutureRecord};
use dlq_kafka::{KafkaConsumer, Ladder};
use dlq_tower::consumer::Consumer;
use dlq_tower::extract::State;
use dlq_tower::handler::handler;
use tokio::time::MissedTickBehavior;

use super::{Bench, Failed, block_on};
use crate::measure::Size;

/// Records a millisecond.
const PACE: u64 = 2;

#[derive(Debug)]
struct Down;

impl std::fmt::Display for Down {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the provider is down")
    }
}

impl std::error::Error for Down {}

#[derive(Clone)]
struct Work {
    a_tenth_fails: bool,
    begun: Instant,
    took: Arc<Mutex<Vec<Duration>>>,
}

async fn work(delivery: Delivery, State(work): State<Work>) -> Result<(), Down> {
    let payload = delivery.message().payload().cloned().unwrap_or_default();
    let micros = <[u8; 8]>::try_from(&payload[..8]).map_or(0, u64::from_le_bytes);
    if delivery.message().key().is_some_and(|key| key == "tenth") {
        return if work.a_tenth_fails { Err(Down) } else { Ok(()) };
    }
    let took = work.begun.elapsed().saturating_sub(Duration::from_micros(micros));
    if let Ok(mut all) = work.took.lock() {
        all.push(took);
    }
    Ok(())
}

pub(crate) fn run(size: Size) -> Result<(), Failed> {
    let seconds = size.pick(2, 40);
    block_on(async {
        let Some(mut bench) = Bench::start(false).await? else { return Ok(()) };
        println!("{} records/s for {seconds} s, a stage of 30 s", PACE * 1_000);
        let mut worst = Vec::new();
        for fails in [false, true, false, true] {
            let took = once(&mut bench, seconds, fails).await?;
            let at = |part: usize| took[(took.len() - 1) * part / 1_000].as_secs_f64() * 1e3;
            let name = if fails { "a tenth waits in a retry topic" } else { "none fails" };
            println!("{name:<34} half within {:.2} ms, 99 % within {:.2} ms", at(500), at(990));
            worst.push(at(990));
        }
        println!("ratio of the 99 %: {:.2}", (worst[1] + worst[3]) / (worst[0] + worst[2]));
        Ok(())
    })
}

/// How long each healthy record took from its producer to its handler.
async fn once(bench: &mut Bench, seconds: u64, fails: bool) -> Result<Vec<Duration>, Failed> {
    let name = bench.next_name();
    bench.create(&name).await?;
    let records = KafkaConsumer::new(&bench.brokers(), &*name, "bench.work")
        .with_group(&*name)
        .with_ladder(Ladder::of([Duration::from_secs(30)]))
        .with_missing_topics_created();
    let took = Arc::new(Mutex::new(Vec::new()));
    let begun = Instant::now();
    let state = Work { a_tenth_fails: fails, begun, took: Arc::clone(&took) };
    let policy = RetryPolicy::new().with_backoff(Backoff::constant(Duration::from_secs(30)));
    let stack = handler("bench.work", work)
        .with_state(state)
        .classify(|_: &Down| Classification::transient())
        .policy(policy)
        .build()?;
    let consumer = Consumer::builder(records.source().await?)
        .handler(stack)
        .retry_lane(records.retry_lane().await?)
        .sink(records.sink().await?)
        .build()?;
    let producer: FutureProducer = bench.config().set("linger.ms", "1").create()?;
    let feeding = async {
        let mut ticks = tokio::time::interval(Duration::from_millis(1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        for number in 0..seconds * 1_000 * PACE {
            if number % PACE == 0 {
                ticks.tick().await;
            }
            let micros = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
            let payload = micros.to_le_bytes();
            let mut record = FutureRecord::<[u8], _>::to(&name).payload(&payload[..]);
            if number % 10 == 0 {
                record = record.key(b"tenth");
            }
            drop(producer.send_result(record));
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    };
    let report = consumer.run(feeding).await;
    println!("{report}");
    let mut took = std::mem::take(&mut *took.lock().map_err(|error| error.to_string())?);
    // While the group joins, records wait for it.
    took.drain(..took.len() / 10);
    took.sort_unstable();
    Ok(took)
}

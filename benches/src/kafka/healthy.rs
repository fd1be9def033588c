//! Effect of records that wait 30 s in a retry topic on the others: a feed of a steady pace, in which a tenth of the
//! records succeeds or fails. Beside it the client alone writes a tenth of the records to another topic and reads them
//! there: the same broker and the same cores have that much more to do, whoever asks.
//!
//! A first turn warms the broker up and does not count. The others go to and fro, so that what gets faster or slower with
//! time does so for both; how far turns of one kind are apart says what a ratio is worth.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dlq_core::policy::Backoff;
use dlq_core::{Classification, Delivery, RetryPolicy};
use dlq_kafka::rdkafka::producer::{FutureProducer, FutureRecord};
use dlq_kafka::{KafkaTransport, Ladder};
use dlq_tower::consumer::Consumer;
use dlq_tower::extract::State;
use dlq_tower::handler::handler;
use tokio::time::MissedTickBehavior;

use super::{Bench, Failed, block_on, raw};
use crate::measure::Size;

/// Records a millisecond.
const PACE: u64 = 2;
const WAIT: Duration = Duration::from_secs(30);
const TENTH: &str = "tenth";
/// For how many seconds the broker is warmed up.
const WARM: u64 = 10;
/// Time limit for all healthy records after the last was sent.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct Down;

impl std::fmt::Display for Down {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the provider is down")
    }
}

impl std::error::Error for Down {}

/// When records were sent, and how long they took from there to a handler.
#[derive(Clone)]
pub(super) struct Watch {
    begun: Instant,
    took: Arc<Mutex<Vec<Duration>>>,
}

impl Watch {
    fn new() -> Self {
        Self { begun: Instant::now(), took: Arc::default() }
    }

    fn micros(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Notes a healthy record. Whether it is one.
    pub(super) fn is_healthy(&self, key: Option<&[u8]>, payload: Option<&[u8]>) -> bool {
        if key == Some(TENTH.as_bytes()) {
            return false;
        }
        let sent = payload.and_then(|payload| payload.get(..8)?.try_into().ok());
        let sent = Duration::from_micros(sent.map_or(0, u64::from_le_bytes));
        if let Ok(mut all) = self.took.lock() {
            all.push(self.begun.elapsed().saturating_sub(sent));
        }
        true
    }

    fn count(&self) -> usize {
        self.took.lock().map_or(0, |took| took.len())
    }

    /// From the shortest to the longest.
    fn sorted(&self, seconds: u64) -> Result<Vec<Duration>, Failed> {
        let mut took = std::mem::take(&mut *self.took.lock().map_err(|error| error.to_string())?);
        let healthy = healthy(seconds);
        if took.len() < healthy {
            return Err(format!("only {} of {healthy} healthy records came", took.len()).into());
        }
        // While the group joins, records wait for it.
        took.drain(..took.len() / 10);
        took.sort_unstable();
        Ok(took)
    }
}

#[derive(Clone)]
struct Work {
    a_tenth_fails: bool,
    watch: Watch,
}

async fn work(delivery: Delivery, State(work): State<Work>) -> Result<(), Down> {
    let message = delivery.message();
    let (key, payload) = (message.key().map(|key| &**key), message.payload().map(|bytes| &**bytes));
    if work.watch.is_healthy(key, payload) || !work.a_tenth_fails { Ok(()) } else { Err(Down) }
}

/// With a consumer as a user composes it.
pub(crate) fn run(size: Size) -> Result<(), Failed> {
    block_on(async {
        let Some(mut bench) = Bench::start(false).await? else { return Ok(()) };
        let seconds = introduce(size);
        ours(&mut bench, seconds.min(WARM), false).await?;
        let mut turns = Vec::new();
        for &fails in turns_of(size) {
            turns.push((fails, ours(&mut bench, seconds, fails).await?));
        }
        compare(&turns);
        Ok(())
    })
}

/// With the client alone.
pub(crate) fn raw(size: Size) -> Result<(), Failed> {
    block_on(async {
        let Some(mut bench) = Bench::start(false).await? else { return Ok(()) };
        let seconds = introduce(size);
        alone(&mut bench, seconds.min(WARM), false).await?;
        let mut turns = Vec::new();
        for &fails in turns_of(size) {
            turns.push((fails, alone(&mut bench, seconds, fails).await?));
        }
        compare(&turns);
        Ok(())
    })
}

fn introduce(size: Size) -> u64 {
    let seconds = size.pick(2, 36);
    println!("{} records/s, {seconds} s each time, a stage of {WAIT:?}", PACE * 1_000);
    seconds
}

/// Returns for each turn whether a tenth fails.
fn turns_of(size: Size) -> &'static [bool] {
    size.pick(&[false, true][..], &[false, true, true, false])
}

fn compare(turns: &[(bool, Vec<Duration>)]) {
    let at = |took: &[Duration], part: usize| {
        let took = took.get(took.len().saturating_sub(1) * part / 1_000);
        took.map_or(0.0, |took| took.as_secs_f64() * 1e3)
    };
    let mut sums = [0.0; 2];
    for (fails, took) in turns {
        let [half, most, nearly_all] = [500, 990, 999].map(|part| at(took, part));
        let name = if *fails { "a tenth fails" } else { "none fails" };
        println!(
            "{name:<14} half within {half:.2} ms, 99 % within {most:.2} ms, 99.9 % within {nearly_all:.2} ms"
        );
        sums[usize::from(*fails)] += most;
    }
    println!("ratio of the 99 %: {:.2}", sums[1] / sums[0]);
}

async fn ours(bench: &mut Bench, seconds: u64, fails: bool) -> Result<Vec<Duration>, Failed> {
    let name = bench.next_name();
    bench.create(&name).await?;
    let records = KafkaTransport::new(&*name)
        .name("bench.work")
        .group(&*name)
        .ladder(Ladder::of([WAIT]))
        .create_missing_topics();
    let watch = Watch::new();
    let stack = handler("bench.work", work)
        .with_state(Work { a_tenth_fails: fails, watch: watch.clone() })
        .classify(|_: &Down| Classification::transient())
        .policy(RetryPolicy::new().with_backoff(Backoff::constant(WAIT)))
        .build()?;
    let consumer =
        Consumer::on(records, &bench.brokers()).handler(stack).without_crash_marks().open().await?;
    let producer = producer(bench)?;
    let report = consumer.run(feed(&producer, &name, &watch, seconds)).await;
    println!("{}: {report}", if fails { "a tenth waits" } else { "none fails" });
    watch.sorted(seconds)
}

async fn alone(bench: &mut Bench, seconds: u64, fails: bool) -> Result<Vec<Duration>, Failed> {
    let name = bench.next_name();
    bench.create(&name).await?;
    let to = format!("{name}.retry");
    bench.create(&to).await?;
    let watch = Watch::new();
    let stop = Arc::new(AtomicBool::new(false));
    let reading = {
        let (config, name, watch) = (bench.config(), name.clone(), watch.clone());
        let (to, stop) = (fails.then_some(to), Arc::clone(&stop));
        tokio::task::spawn_blocking(move || {
            raw::divert(config, &name, to.as_deref(), &watch, &stop).map_err(|e| e.to_string())
        })
    };
    feed(&producer(bench)?, &name, &watch, seconds).await;
    stop.store(true, Ordering::Relaxed);
    let diverted = reading.await??;
    println!("raw: {diverted} written to another topic");
    watch.sorted(seconds)
}

fn producer(bench: &Bench) -> Result<FutureProducer, Failed> {
    Ok(bench.config().set("linger.ms", "1").create()?)
}

/// Sends records at their pace.
async fn feed(producer: &FutureProducer, topic: &str, watch: &Watch, seconds: u64) {
    let mut ticks = tokio::time::interval(Duration::from_millis(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    for number in 0..seconds * 1_000 * PACE {
        if number % PACE == 0 {
            ticks.tick().await;
        }
        let payload = watch.micros().to_le_bytes();
        let mut record = FutureRecord::<[u8], _>::to(topic).payload(&payload[..]);
        if number % 10 == 0 {
            record = record.key(TENTH.as_bytes());
        }
        drop(producer.send_result(record));
    }
    // Where the machine is slow, many wait until the group has joined.
    let ending = Instant::now() + PATIENCE;
    while watch.count() < healthy(seconds) && Instant::now() < ending {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Returns the number of records outside of the tenth.
fn healthy(seconds: u64) -> usize {
    let total = seconds * 1_000 * PACE;
    usize::try_from(total - total / 10).unwrap_or(usize::MAX)
}

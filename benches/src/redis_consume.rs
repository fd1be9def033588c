//! Consumers on Redis Streams beside the raw client on the same server in the same run: successes, and deaths.
//!
//! Each round reads the same stream in a consumer group of its own. Rounds of one and the other take turns, and the fastest of
//! each counts: other processes on the machine only ever add. The raw client reads batches of so many; so does ours, which
//! fetches up to two of them ahead.

use std::hint::black_box;
use std::time::{Duration, Instant};

use dlq_redis::redis::aio::MultiplexedConnection;
use dlq_redis::redis::streams::StreamReadReply;
use dlq_redis::redis::{self, Value};
use dlq_redis::{RedisClient, RedisTransport};
use dlq_services::{Running, Service, ensure_installed, or_skip};
use dlq_tower::consumer::Consumer;

use crate::measure::{Size, rate};
use crate::proxy::Proxy;
use crate::work::{Counting, Fate, work};

type Failed = Box<dyn std::error::Error>;

const STREAM: &str = "work";
const LETTERS: &str = "{work}:dlq";
/// Bytes of a message.
const BYTES: usize = 100;
/// Added to each way by the proxy.
const DELAY: Duration = Duration::from_micros(3_750);
/// Messages that are handled or acknowledged at once.
const IN_FLIGHT: usize = 256;

pub(crate) fn run(size: Size) -> Result<(), Failed> {
    let count = size.pick(2_000, 100_000);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let Some(mut bench) = Bench::start(count).await? else { return Ok(()) };
        for batch in [32, 256] {
            bench.once(size, false, batch, count).await?;
        }
        for (batch, count) in [(32, count / 10), (256, count)] {
            bench.once(size, true, batch, count).await?;
        }
        Ok(())
    })
}

/// A server with a stream of messages.
struct Bench {
    server: Running,
    proxy: Proxy,
    /// Names groups.
    rounds: u32,
}

impl Bench {
    /// Starts a server and publishes messages. `None` if there is no server to be had.
    async fn start(messages: usize) -> Result<Option<Self>, Failed> {
        if or_skip(Service::Redis, ensure_installed(Service::Redis)).is_err() {
            return Ok(None);
        }
        let server = Service::Redis.builder().ours().start()?;
        let proxy = Proxy::start(server.url().trim_start_matches("redis://").parse()?, DELAY)?;
        let mut raw = raw(server.url()).await?;
        for _ in 0..messages.div_ceil(1_000) {
            let mut adds = redis::pipe();
            for _ in 0..1_000 {
                adds.cmd("XADD").arg(STREAM).arg("*").arg("d").arg(&[b'x'; BYTES]).ignore();
            }
            let () = adds.query_async(&mut raw).await?;
        }
        Ok(Some(Self { server, proxy, rounds: 0 }))
    }

    fn url(&self, far: bool) -> String {
        if far { format!("redis://{}", self.proxy.address()) } else { self.server.url().to_owned() }
    }

    fn group(&mut self) -> String {
        self.rounds += 1;
        format!("round-{}", self.rounds)
    }

    async fn once(
        &mut self,
        size: Size,
        far: bool,
        batch: usize,
        count: usize,
    ) -> Result<(), Failed> {
        let way = if far { "3.75 ms added to each way" } else { "no way to go" };
        println!(
            "\n{count} messages of {BYTES} bytes, read {batch} at a time, {IN_FLIGHT} in flight, {way}"
        );
        let mut best = [Duration::MAX; 4];
        for _ in 0..size.pick(1, 5) {
            let url = self.url(far);
            let mut times = [Duration::ZERO; 4];
            let group = self.group();
            times[0] = raw_consume(&url, &group, batch, count).await?;
            let group = self.group();
            times[1] = consume(&url, &group, batch, count, Fate::Success).await?;
            self.forget_letters().await?;
            let group = self.group();
            times[2] = consume(&url, &group, batch, count, Fate::Death).await?;
            // Letters as ours are.
            let letter = self.last_letter().await?;
            self.forget_letters().await?;
            let group = self.group();
            times[3] = raw_bury(&url, &group, batch, count, &letter).await?;
            for (best, time) in best.iter_mut().zip(times) {
                *best = time.min(*best);
            }
        }
        let [raw, ours, dead, raw_dead] = best;
        show("raw, each batch acknowledged", raw, count);
        show("dlq-redis, success", ours, count);
        println!("ratio: {:.2}", raw.as_secs_f64() / ours.as_secs_f64());
        show("raw, each batch written and acknowledged", raw_dead, count);
        show("dlq-redis, death", dead, count);
        println!(
            "ratio: {:.2}, and {:.2} to raw successes",
            raw_dead.as_secs_f64() / dead.as_secs_f64(),
            raw.as_secs_f64() / dead.as_secs_f64()
        );
        Ok(())
    }

    /// Removes the letters and their marks, so that those of the next round are not taken for the same.
    async fn forget_letters(&self) -> Result<(), Failed> {
        let mut raw = raw(self.server.url()).await?;
        for pattern in ["{work}:dlq*", "{work}:written:*"] {
            let keys: Vec<String> = redis::cmd("KEYS").arg(pattern).query_async(&mut raw).await?;
            for some in keys.chunks(1_000) {
                let _: Value = redis::cmd("DEL").arg(some).query_async(&mut raw).await?;
            }
        }
        Ok(())
    }

    /// Returns the fields and values of the last letter.
    async fn last_letter(&self) -> Result<Vec<Vec<u8>>, Failed> {
        let mut raw = raw(self.server.url()).await?;
        let mut last = redis::cmd("XREVRANGE");
        last.arg(LETTERS).arg("+").arg("-").arg("COUNT").arg(1);
        let entries: Vec<(String, Vec<Vec<u8>>)> = last.query_async(&mut raw).await?;
        Ok(entries.into_iter().next().ok_or("there is no letter")?.1)
    }
}

async fn raw(url: &str) -> Result<MultiplexedConnection, Failed> {
    Ok(redis::Client::open(url)?.get_multiplexed_async_connection().await?)
}

fn show(name: &str, time: Duration, count: usize) {
    println!("{name:<44} {:>10.0} messages/s", rate(time, count as u64));
}

/// Measures consuming so many messages, until the last one is settled and the consumer has ended.
async fn consume(
    url: &str,
    group: &str,
    batch: usize,
    count: usize,
    fate: Fate,
) -> Result<Duration, Failed> {
    let client = RedisClient::open(url).await?;
    let messages = RedisTransport::new(STREAM).name(group).prefetch(2 * batch);
    let state = Counting::new(fate, count);
    let consumer = Consumer::on(messages, &client)
        .handler(work::handler().with_state(state.clone()).build()?)
        .without_crash_marks()
        .max_in_flight(IN_FLIGHT)
        .open()
        .await?;
    state.measure(consumer, count).await
}

/// Measures the same by the client alone: batches are read on one connection, and acknowledged on another meanwhile.
async fn raw_consume(
    url: &str,
    group: &str,
    batch: usize,
    count: usize,
) -> Result<Duration, Failed> {
    raw_batches(url, group, batch, count, |pipe, ids| {
        pipe.cmd("XACK").arg(STREAM).arg(group).arg(ids).ignore();
    })
    .await
}

/// Measures writing a letter of each message of a batch and acknowledging them, in one transaction for each batch.
async fn raw_bury(
    url: &str,
    group: &str,
    batch: usize,
    count: usize,
    letter: &[Vec<u8>],
) -> Result<Duration, Failed> {
    raw_batches(url, group, batch, count, |pipe, ids| {
        pipe.atomic();
        for _ in ids {
            pipe.cmd("XADD").arg(LETTERS).arg("*").arg(letter).ignore();
        }
        pipe.cmd("XACK").arg(STREAM).arg(group).arg(ids).ignore();
    })
    .await
}

async fn raw_batches(
    url: &str,
    group: &str,
    batch: usize,
    count: usize,
    settle: impl Fn(&mut redis::Pipeline, &[String]),
) -> Result<Duration, Failed> {
    let (mut reading, settling) = (raw(url).await?, raw(url).await?);
    let mut create = redis::cmd("XGROUP");
    create.arg("CREATE").arg(STREAM).arg(group).arg(0);
    let _: Value = create.query_async(&mut reading).await?;
    let start = Instant::now();
    let mut settled = tokio::task::JoinSet::new();
    let mut read = 0;
    while read < count {
        // No more than ours has in flight.
        while settled.len() * batch >= IN_FLIGHT {
            settled.join_next().await.ok_or("nothing is settled")???;
        }
        let mut next = redis::cmd("XREADGROUP");
        next.arg("GROUP").arg(group).arg("raw").arg("COUNT").arg(batch.min(count - read));
        next.arg("STREAMS").arg(STREAM).arg(">");
        let reply: Option<StreamReadReply> = next.query_async(&mut reading).await?;
        let entries = reply.and_then(|mut reply| reply.keys.pop()).ok_or("the stream has ended")?;
        let ids: Vec<String> = entries.ids.into_iter().map(|entry| black_box(entry).id).collect();
        read += ids.len();
        let mut pipe = redis::pipe();
        settle(&mut pipe, &ids);
        let mut settling = settling.clone();
        settled.spawn(async move {
            pipe.query_async::<()>(&mut settling).await.map_err(|error| error.to_string())
        });
    }
    while let Some(done) = settled.join_next().await {
        done??;
    }
    Ok(start.elapsed())
}

//! The store in Redis beside raw writes of the same bytes, and its reads at 100,000 letters.

use std::time::{Duration, Instant};

use dlq_core::store::{ClaimRequest, Claims as _, Letters as _, Maintenance as _};
use dlq_core::{Filter, Order, PageRequest, Sink as _, Status};
use dlq_redis::RedisClient;
use dlq_redis::redis;
use dlq_redis::store::RedisStore;
use dlq_services::Redis;

use crate::letters::letter;
use crate::measure::{Size, rate};

/// Letters of one call, and of one pipeline.
const BATCH: u64 = 100;
const PAYLOAD: usize = 1024;

type Failure = Box<dyn std::error::Error>;

pub(crate) fn run(size: Size) -> Result<(), Failure> {
    let count: u64 = size.pick(2_000, 100_000);
    let rounds: u32 = size.pick(1, 21);
    let server = Redis::start()?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let client = RedisClient::open(server.url()).await?;
        let store = RedisStore::connect(&client).await?;
        let (mut put, mut raw) = (Duration::ZERO, Duration::ZERO);
        let mut conn =
            redis::Client::open(server.url())?.get_multiplexed_async_connection().await?;
        for start in (0..count).step_by(BATCH as usize) {
            let letters: Vec<_> = (start..start + BATCH).map(|n| letter(n, PAYLOAD)).collect();
            let began = Instant::now();
            let mut pipe = redis::Pipeline::with_capacity(BATCH as usize);
            for letter in &letters {
                let mut head = letter.clone();
                head.message = head.message.with_payload(None);
                let payload = letter.message.payload().map(|payload| payload.to_vec());
                pipe.cmd("HSET")
                    .arg(format!("raw:{}", letter.id))
                    .arg("h")
                    .arg(serde_json::to_vec(&head)?)
                    .arg("p")
                    .arg(payload.unwrap_or_default())
                    .ignore();
            }
            let () = pipe.query_async(&mut conn).await?;
            raw += began.elapsed();
            let began = Instant::now();
            store.put(letters).await?;
            put += began.elapsed();
        }
        let letters = f64::from(u32::try_from(count)?);
        let [by_raw, by_put] =
            [busy_with(&mut conn, "hset").await?, busy_with(&mut conn, "evalsha").await?]
                .map(|time| time * 1e3 / letters);
        println!("{count} letters of {PAYLOAD} bytes, {BATCH} in a batch");
        println!("{:<28} {:>9.0} /s", "raw pipelined hash", rate(raw, count));
        let ratio = raw.as_secs_f64() / put.as_secs_f64();
        println!("{:<28} {:>9.0} /s, {ratio:.2} of raw", "put", rate(put, count));
        println!("a letter takes {by_put:.1} us of the server, and a raw one {by_raw:.1}");
        macro_rules! show {
            ($name:literal, $call:expr) => {{
                let mut runs = Vec::new();
                let before = busy(&mut conn).await?;
                for _ in 0..rounds {
                    let start = Instant::now();
                    $call.await?;
                    runs.push(start.elapsed());
                }
                runs.sort();
                let server = (busy(&mut conn).await? - before) / f64::from(rounds);
                let median = runs[runs.len() / 2].as_secs_f64() * 1e3;
                println!("{:<28} {median:>9.3} ms, {server:.3} of them the server", $name);
            }};
        }
        let page = PageRequest::new();
        show!("first page", store.list(Filter::new(), page));
        show!("last page", store.list(Filter::new(), page.order(Order::OldestFirst)));
        let pending = || Filter::new().with_status(Status::Pending);
        let subject = letter(0, 1).message.subject().to_owned();
        let two = || Ok::<_, Failure>(pending().with_subject(subject.parse()?));
        let two = two()?;
        show!("page by two facets", store.list(two.clone(), page));
        show!("page by text of the error", store.list(Filter::new().error("e"), page));
        show!("count", store.count(Filter::new()));
        show!("count by two facets", store.count(two.clone()));
        show!("stats, and so health", store.stats(Filter::new()));
        show!("groups", store.groups(Filter::new(), 20));
        show!("check", store.check(dlq_core::store::CheckLimits::default()));
        let spec = dlq_core::store::OperationSpec::replay(Filter::new());
        let began = Instant::now();
        let by = dlq_core::store::Actor::new("bench");
        dlq_core::store::Operations::start(&store, spec, by).await?;
        println!("{:<28} {:>9.0} /s", "letters frozen", rate(began.elapsed(), count));
        let consumer = letter(0, 1).consumer;
        let request = |limit| ClaimRequest::due([consumer.clone()], limit, Duration::from_secs(60));
        show!("claim of 50, released", store.claim(request(50)));
        show!("claim of 1, released", store.claim(request(1)));
        let none = ClaimRequest::due(["nobody"], 50, Duration::from_secs(60));
        show!("claim of nothing", store.claim(none.clone()));
        Ok(())
    })
}

/// The time that the server has spent in commands and scripts so far, in milliseconds.
async fn busy(conn: &mut redis::aio::MultiplexedConnection) -> Result<f64, Failure> {
    Ok(usec(conn).await?.into_iter().filter(|(name, _)| is_outer(name)).map(|(_, time)| time).sum())
}

/// The time that it has spent in this command.
async fn busy_with(
    conn: &mut redis::aio::MultiplexedConnection,
    name: &str,
) -> Result<f64, Failure> {
    let mut all = usec(conn).await?.into_iter().filter(|(found, _)| found == name);
    Ok(all.next().map_or(0.0, |(_, time)| time))
}

/// Calls that scripts make are in the time of the script.
fn is_outer(name: &str) -> bool {
    matches!(name, "evalsha" | "eval")
}

async fn usec(conn: &mut redis::aio::MultiplexedConnection) -> Result<Vec<(String, f64)>, Failure> {
    let text: String = redis::cmd("INFO").arg("commandstats").query_async(conn).await?;
    let line = |line: &str| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(':')?;
        let time = rest.split(',').find_map(|part| part.strip_prefix("usec="))?;
        Some((name.to_owned(), time.parse::<f64>().ok()? / 1e3))
    };
    Ok(text.lines().filter_map(line).collect())
}

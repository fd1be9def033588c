//! NATS: what `dlq-nats` costs beside its client, used raw, on the same server in the same run.
//!
//! Both read the same stream by durable pull consumers of their own with the same settings. Rounds of one and the other
//! take turns, and the fastest of each counts: other processes on the machine only ever add.

pub(crate) mod bury;
pub(crate) mod consume;
mod ours;
mod raw;
pub(crate) mod replay;
pub(crate) mod retries;

use std::error::Error;
use std::time::Duration;

use async_nats::jetstream::{self, Context, stream};
use async_nats::{Client, HeaderMap};
use bytes::Bytes;
use dlq_services::{Running, Service, ensure_installed, or_skip};

use crate::cpu::{self, Computed};
use crate::measure::{Size, rate};
use crate::proxy::Proxy;

type Failed = Box<dyn Error>;

const STREAM: &str = "WORK";
const SUBJECT: &str = "work.requested";
/// Bytes of a message.
const BYTES: usize = 100;
/// Added to each way by the proxy.
const DELAY: Duration = Duration::from_millis(5);

/// The settings that bound how fast anybody can be.
#[derive(Clone, Copy, Debug)]
struct Shape {
    /// Number of messages that are fetched ahead.
    prefetch: usize,
    /// Number of messages that are handled or acknowledged at once.
    in_flight: usize,
}

impl Shape {
    const DEFAULT: Self = Self { prefetch: 32, in_flight: 256 };
    const MORE: Self = Self { prefetch: 256, in_flight: 256 };
    const MOST: Self = Self { prefetch: 1024, in_flight: 1024 };

    /// Returns the number of messages that the server hands out before it wants to see acknowledgements.
    fn unsettled(self) -> u32 {
        u32::try_from((self.prefetch + self.in_flight) * 2).unwrap_or(u32::MAX).max(1024)
    }
}

/// A server with a stream of messages, and a client that is near or far.
struct Bench {
    server: Running,
    _proxy: Proxy,
    client: Client,
    far: Client,
    /// Names consumers.
    rounds: u32,
}

impl Bench {
    /// `None` when there is no server to be had.
    async fn start(messages: usize) -> Result<Option<Self>, Failed> {
        if or_skip(Service::Nats, ensure_installed(Service::Nats)).is_err() {
            return Ok(None);
        }
        let server = Service::Nats.builder().ours().start()?;
        let address = server.url().trim_start_matches("nats://").parse()?;
        let proxy = Proxy::start(address, DELAY)?;
        let client = async_nats::connect(server.url()).await?;
        let far = async_nats::connect(proxy.url()).await?;
        let bench = Self { server, _proxy: proxy, client, far, rounds: 0 };
        fill(&jetstream::new(bench.client.clone()), messages).await?;
        Ok(Some(bench))
    }

    fn client(&self, far: bool) -> &Client {
        if far { &self.far } else { &self.client }
    }

    fn next_name(&mut self) -> String {
        self.rounds += 1;
        format!("round-{}", self.rounds)
    }

    fn computed(&self) -> Computed {
        cpu::of_both(self.server.process_id())
    }

    /// Forgets the letters, so that those of the next round are not taken for the same.
    async fn forget_letters(&self) {
        // It is not there the first time.
        let _ = jetstream::new(self.client.clone()).delete_stream("DLQ").await;
    }

    fn headline(&self, far: bool, shape: Shape, messages: usize) {
        let Shape { prefetch, in_flight } = shape;
        let way = if far { "5 ms added to each way" } else { "no way to go" };
        println!(
            "\n{messages} messages of {BYTES} bytes, prefetch {prefetch}, {in_flight} in flight, {way}"
        );
    }
}

async fn create(context: &Context) -> Result<(), Failed> {
    let subjects = vec![SUBJECT.to_owned()];
    let config = stream::Config { name: STREAM.to_owned(), subjects, ..stream::Config::default() };
    context.create_stream(config).await?;
    Ok(())
}

async fn fill(context: &Context, messages: usize) -> Result<(), Failed> {
    create(context).await?;
    let payload = Bytes::from(vec![b'x'; BYTES]);
    raw::publish(context, (0..messages).map(|_| (HeaderMap::new(), payload.clone()))).await
}

/// Runs a bench on a server with so many messages as the size wants.
fn run_on(
    size: Size,
    bench: impl AsyncFnOnce(&mut Bench, usize) -> Result<(), Failed>,
) -> Result<(), Failed> {
    run_with(size.pick(2_000, 100_000), bench)
}

fn run_with(
    count: usize,
    bench: impl AsyncFnOnce(&mut Bench, usize) -> Result<(), Failed>,
) -> Result<(), Failed> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        match Bench::start(count).await? {
            Some(mut on) => bench(&mut on, count).await,
            None => Ok(()),
        }
    })
}

fn show(name: &str, time: Duration, count: usize) {
    println!("{name:<44} {:>10.0} messages/s", rate(time, count as u64));
}

//! The store on Postgres beside what a careful program would do by itself.

pub(crate) mod bulk;
pub(crate) mod bury;
pub(crate) mod claim;
pub(crate) mod console;
#[cfg(all(feature = "kafka", feature = "nats"))]
pub(crate) mod outbox;
pub(crate) mod read;

use std::future::Future;
use std::time::{Duration, Instant};

use dlq_services::{Running, Service, ensure_installed, or_skip};
use dlq_sql::postgres::PostgresStore;
use sqlx::{Connection as _, Executor as _, PgConnection};

use crate::measure::rate;

type Failed = Box<dyn std::error::Error>;

/// A server as it is by default, flushing included, with a store in it.
struct Bench {
    server: Running,
    store: PostgresStore,
    raw: PgConnection,
}

impl Bench {
    /// `None` when there is no server to be had.
    async fn start() -> Result<Option<Self>, Failed> {
        if or_skip(Service::Postgres, ensure_installed(Service::Postgres)).is_err() {
            return Ok(None);
        }
        let server = Service::Postgres.builder().ours().setting("max_wal_size", "4GB").start()?;
        let store = PostgresStore::connect(server.url()).await?;
        let raw = PgConnection::connect(server.url()).await?;
        Ok(Some(Self { server, store, raw }))
    }

    async fn sql(&mut self, sql: &'static str) -> Result<(), Failed> {
        self.raw.execute(sql).await?;
        Ok(())
    }

    /// Nothing in the tables, and nothing left to be written of what was in them.
    async fn empty(&mut self) -> Result<(), Failed> {
        self.sql("TRUNCATE dlq_events CASCADE").await?;
        self.sql("CHECKPOINT").await
    }
}

/// Runs a bench with a server, or says that there is none.
fn with_server<F>(bench: impl FnOnce(Bench) -> F) -> Result<(), Failed>
where
    F: Future<Output = Result<(), Failed>>,
{
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        match Bench::start().await? {
            Some(started) => bench(started).await,
            None => Ok(()),
        }
    })
}

fn show(name: &str, time: Duration, count: u64) -> f64 {
    let rate = rate(time, count);
    println!("{name:<52} {rate:>10.0} letters/s");
    rate
}

async fn timed<T>(work: impl Future<Output = Result<T, Failed>>) -> Result<Duration, Failed> {
    let start = Instant::now();
    work.await?;
    Ok(start.elapsed())
}

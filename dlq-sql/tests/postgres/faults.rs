//! G1 with a consumer, while the database is treated as databases are: each message succeeds or has one letter.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dlq_core::memory::MemoryBroker;
use dlq_core::{Delivery, Message, RetryPolicy};
use dlq_services::{Running, Service};
use dlq_sql::postgres::PostgresStore;
use dlq_tower::consumer::{Consumer, Report};
use dlq_tower::handler::{HandlerError, handler};
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, Executor as _, Postgres};
use tokio::task::{JoinSet, block_in_place};
use tokio::time::{Instant, sleep, timeout};

use crate::fixture::{PATIENCE, Schema, available};

const MESSAGES: u64 = 1_000;
/// Every so many-th message dies.
const DIES: u64 = 20;
/// How long a fault lasts that lasts.
pub(crate) const WHILE: Duration = Duration::from_millis(2_500);

fn server() -> Running {
    Service::Postgres.builder().start().unwrap()
}

/// A consumer at work.
pub(crate) struct World {
    broker: MemoryBroker,
    messages: u64,
    succeeded: Arc<Mutex<BTreeMap<String, u64>>>,
    consumer: JoinSet<Report>,
    stop: Box<dyn Fn() + Send + Sync>,
}

impl World {
    pub(crate) fn start(store: PostgresStore) -> Self {
        let broker = MemoryBroker::new();
        let succeeded: Arc<Mutex<BTreeMap<String, u64>>> = Arc::default();
        let runs = Arc::clone(&succeeded);
        let work = handler("orders.handle", move |delivery: Delivery| {
            let runs = Arc::clone(&runs);
            async move {
                sleep(Duration::from_millis(20)).await;
                let id = delivery.message().id().unwrap_or_default().to_owned();
                if id.parse::<u64>().is_ok_and(|n| n.is_multiple_of(DIES)) {
                    return Err(HandlerError::msg("this one dies").permanent());
                }
                *runs.lock().unwrap_or_else(PoisonError::into_inner).entry(id).or_default() += 1;
                Ok(())
            }
        });
        let work = work.policy(RetryPolicy::new().with_max_attempts(1)).build().unwrap();
        let consumer = Consumer::builder(broker.source("orders"))
            .handler(work)
            .dead_letters(store)
            .max_in_flight(16)
            .build()
            .unwrap();
        let handle = consumer.handle();
        let mut tasks = JoinSet::new();
        tasks.spawn(consumer.run(pending()));
        let stop = Box::new(move || handle.stop());
        let mut world = Self { broker, messages: 0, succeeded, consumer: tasks, stop };
        world.publish(MESSAGES);
        world
    }

    /// So many messages more.
    pub(crate) fn publish(&mut self, count: u64) {
        for n in self.messages..self.messages + count {
            self.broker.publish(Message::new("orders", n.to_string()).with_id(n.to_string()));
        }
        self.messages += count;
    }

    /// Waits until so many messages are not settled.
    pub(crate) async fn until(&self, left: u64) {
        let began = Instant::now();
        while self.broker.pending("orders") as u64 > left {
            assert!(
                began.elapsed() < PATIENCE,
                "{} never become {left}",
                self.broker.pending("orders")
            );
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Every message has succeeded or has one letter; how often a letter could not be written.
    pub(crate) async fn ends_well(mut self, schema: &Schema, fault: &str) -> u64 {
        let began = Instant::now();
        timeout(PATIENCE, self.broker.idle("orders")).await.expect("the consumer recovers");
        (self.stop)();
        let report = self.consumer.join_next().await.unwrap().unwrap();
        let succeeded = std::mem::take(&mut *self.succeeded.lock().unwrap());
        let mut conn = schema.connect().await;
        let letters: Vec<(String, i64)> =
            sqlx::query_as("SELECT event_id, count(*) FROM dlq_events GROUP BY event_id")
                .fetch_all(&mut conn)
                .await
                .unwrap();
        println!(
            "{fault}: {} messages: {} succeeded, {} letters, none lost; {} writes failed, recovered in {:.1?}",
            self.messages,
            succeeded.len(),
            letters.len(),
            report.route_errors,
            began.elapsed()
        );
        let dead = self.messages / DIES;
        assert_eq!(letters.len() as u64, dead);
        assert_eq!(succeeded.len() as u64, self.messages - dead);
        assert!(letters.iter().all(|(id, count)| *count == 1 && !succeeded.contains_key(id)));
        assert_eq!((report.dead, report.lost_tasks), (dead, 0), "{report}");
        crate::racing::counts_are_right(schema).await;
        report.route_errors
    }
}

/// Ends all connections but one's own.
pub(crate) async fn cut(schema: &Schema) {
    let mut conn = schema.connect().await;
    let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
               WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
    conn.execute(sql).await.unwrap();
}

pub(crate) async fn impatient(schema: &Schema) -> PostgresStore {
    // Its tables take as long as they take.
    drop(schema.store().await);
    let builder = schema.builder().acquire_timeout(Duration::from_millis(300));
    let builder = builder.statement_timeout(Duration::from_millis(300));
    let began = Instant::now();
    loop {
        match builder.clone().open().await {
            Ok(store) => return store,
            Err(error) => assert!(began.elapsed() < PATIENCE, "it is never opened: {error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn g1_the_server_is_restarted() {
    if !available() {
        return;
    }
    let mut server = server();
    let schema = Schema::at(server.url());
    let world = World::start(impatient(&schema).await);
    for (left, is_killed) in [(900, false), (700, true), (500, false), (300, true), (100, true)] {
        world.until(left).await;
        block_in_place(|| {
            if is_killed { server.kill() } else { server.stop() }.unwrap();
        });
        sleep(Duration::from_millis(700)).await;
        block_in_place(|| server.restart().unwrap());
    }
    let errors = world.ends_well(&schema, "2 fast and 3 immediate restarts").await;
    assert!(errors > 0, "nobody was struck");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn g1_connections_are_cut_again_and_again() {
    if !available() {
        return;
    }
    let server = server();
    for connections in [4, 1] {
        let schema = Schema::at(server.url());
        let store = schema.builder().max_connections(connections).open().await.unwrap();
        let world = World::start(store);
        let mut cuts = 0;
        while world.broker.pending("orders") > 50 {
            cut(&schema).await;
            cuts += 1;
            sleep(Duration::from_millis(10)).await;
        }
        let began = Instant::now();
        world.ends_well(&schema, &format!("{cuts} cuts of {connections} connections")).await;
        assert!(began.elapsed() < PATIENCE, "somebody waited for a connection in vain");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn g1_the_database_refuses_for_a_while() {
    if !available() {
        return;
    }
    let server = server();
    for fault in ["disk full", "read-only", "a lock is held", "the pool is exhausted"] {
        let schema = Schema::at(server.url());
        let options: PgConnectOptions = server.url().parse().unwrap();
        let pool =
            PgPoolOptions::new().max_connections(1).acquire_timeout(Duration::from_millis(300));
        let pool = pool.connect_with(options).await.unwrap();
        let store = if fault == "the pool is exhausted" {
            drop(schema.store().await);
            PostgresStore::with_pool(pool.clone()).schema(&schema.name).open().await.unwrap()
        } else {
            impatient(&schema).await
        };
        let mut world = World::start(store);
        world.until(900).await;
        strike(&schema, fault, &pool, || world.publish(MESSAGES)).await;
        let began = Instant::now();
        let errors = world.ends_well(&schema, fault).await;
        assert!(errors > 0, "{fault} struck nobody");
        assert!(began.elapsed() < PATIENCE, "{fault} goes on after its end");
    }
}

/// Lets the database refuse for a while. What it takes to begin may take until nothing is left to do, so there is `more`.
async fn strike(schema: &Schema, fault: &str, pool: &PgPool, more: impl FnOnce()) {
    let mut conn = schema.connect().await;
    match fault {
        "disk full" => {
            let on = "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS \
                      $$BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END$$; \
                      CREATE TRIGGER full_disk BEFORE INSERT ON dlq_events FOR EACH ROW EXECUTE FUNCTION full_disk()";
            conn.execute(on).await.unwrap();
            more();
            sleep(WHILE).await;
            conn.execute("DROP FUNCTION full_disk CASCADE").await.unwrap();
        }
        "read-only" => {
            conn.execute("ALTER DATABASE postgres SET default_transaction_read_only = on")
                .await
                .unwrap();
            cut(&Schema { url: schema.url.clone(), name: "none".to_owned() }).await;
            more();
            sleep(WHILE).await;
            let mut conn = schema.connect().await;
            // Not in one transaction: that would begin as one that only reads.
            conn.execute("SET default_transaction_read_only = off").await.unwrap();
            let off = "ALTER DATABASE postgres RESET default_transaction_read_only";
            conn.execute(off).await.unwrap();
        }
        "a lock is held" => {
            conn.execute("BEGIN; LOCK TABLE dlq_events IN ACCESS EXCLUSIVE MODE").await.unwrap();
            more();
            sleep(WHILE).await;
            conn.execute("ROLLBACK").await.unwrap();
        }
        _ => {
            let held = acquired(pool).await;
            more();
            sleep(WHILE).await;
            drop(held);
        }
    }
}

/// Its only connection, for which the consumer's calls wait as well.
async fn acquired(pool: &PgPool) -> PoolConnection<Postgres> {
    let began = Instant::now();
    loop {
        match pool.acquire().await {
            Ok(held) => return held,
            Err(error) => assert!(began.elapsed() < PATIENCE, "it is never to be had: {error}"),
        }
    }
}

/// Others win now and then: the call is made again, and nobody hears of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn g1_transactions_cannot_be_serialized() {
    if !available() {
        return;
    }
    let schema = Schema::fresh();
    let isolation = [("default_transaction_isolation", "serializable")];
    let options: PgConnectOptions = schema.url.parse().unwrap();
    let pool = PgPoolOptions::new().connect_with(options.options(isolation)).await.unwrap();
    let store = PostgresStore::with_pool(pool).schema(&schema.name).open().await.unwrap();
    let mut conn = schema.connect().await;
    let sql = "CREATE FUNCTION SCHEMA.lose() RETURNS trigger LANGUAGE plpgsql AS \
               $$BEGIN IF random() < 0.5 THEN RAISE EXCEPTION 'lost' USING ERRCODE = '40001'; END IF; RETURN NULL; END$$; \
               CREATE TRIGGER lose BEFORE INSERT ON dlq_events FOR EACH STATEMENT EXECUTE FUNCTION SCHEMA.lose()";
    conn.execute(AssertSqlSafe(sql.replace("SCHEMA", &schema.name))).await.unwrap();
    let errors = World::start(store).ends_well(&schema, "every second write loses").await;
    assert_eq!(errors, 0);
}

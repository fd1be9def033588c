//! Behind a pooler that gives a connection to somebody else after each transaction.

use std::fs::{self, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Command};

use dlq_core::store::{
    ClaimRequest, Claims as _, Finish, Finished, Letters as _, Maintenance as _, Sink as _,
};
use dlq_core::{
    Filter, Resolution, RetryQueue as _, Status, StoreError, StoreErrorKind, Timestamp,
};
use dlq_services::{Running, Service, require_pgbouncer};
use dlq_sql::postgres::{PostgresBuilder, PostgresStore};
use dlq_testkit::fixtures::{CONSUMER, delayed_retry, letter};
use sqlx::{Connection as _, PgConnection};
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::dropped::{drop_everywhere, no_transaction_is_open};
use crate::faults::{World, cut};
use crate::fixture::{PATIENCE, Schema, available};
use crate::silence::calls;

/// PgBouncer in transaction mode, with three connections to a server of its own, until this is dropped.
struct Pooler {
    process: Child,
    url: String,
    schema: Schema,
    _server: Running,
    _folder: TempDir,
}

impl Pooler {
    /// `None` where there is none to be had, which was said aloud.
    async fn start() -> Option<Self> {
        if !available() {
            return None;
        }
        let program = require_pgbouncer().ok()?;
        let server = Service::Postgres.builder().ours().start().unwrap();
        let port = server.url().rsplit([':', '/']).nth(1).unwrap().to_owned();
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let file = folder.path().join("pgbouncer.ini");
        let begin = || {
            let own = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let settings = format!(
                "[databases]\npostgres = host=127.0.0.1 port={port} user=postgres\n\
                 [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {own}\nunix_socket_dir =\n\
                 auth_type = any\npool_mode = transaction\ndefault_pool_size = 3\nmax_client_conn = 100\n"
            );
            fs::write(&file, settings).unwrap();
            let mut command = Command::new(&program);
            // As root it becomes another user; as another it ignores this.
            if is_root() {
                command.args(["-u", "postgres"]);
            }
            let process = command.arg("-q").arg(&file).current_dir("/").spawn().unwrap();
            (process, format!("postgres://postgres@127.0.0.1:{own}/postgres"))
        };
        let schema = Schema::at(server.url());
        let (process, url) = begin();
        let mut pooler = Self { process, url, schema, _server: server, _folder: folder };
        let began = Instant::now();
        while pooler.settings().await.is_none() {
            assert!(began.elapsed() < PATIENCE, "the pooler never answers");
            // Somebody else may have taken its port meanwhile.
            if pooler.process.try_wait().unwrap().is_some() {
                (pooler.process, pooler.url) = begin();
            }
            sleep(std::time::Duration::from_millis(20)).await;
        }
        Some(pooler)
    }

    fn builder(&self) -> PostgresBuilder {
        PostgresStore::builder(&self.url).schema(&self.schema.name).max_connections(8)
    }

    /// What somebody else finds who uses the pooler too.
    async fn settings(&self) -> Option<Vec<String>> {
        let options: sqlx::postgres::PgConnectOptions = self.url.parse().unwrap();
        let options = options.extra_float_digits(None).statement_cache_capacity(0);
        let mut conn = PgConnection::connect_with(&options).await.ok()?;
        let mut found = Vec::new();
        for name in ["statement_timeout", "default_transaction_isolation", "synchronous_commit"] {
            let show = sqlx::AssertSqlSafe(format!("SHOW {name}"));
            let row = sqlx::raw_sql(show).fetch_one(&mut conn).await.ok()?;
            found.push(sqlx::Row::get::<String, _>(&row, 0));
        }
        conn.close().await.ok()?;
        Some(found)
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt as _;
    fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_call_works_and_leaves_no_trace_on_the_connections_of_others() {
    let Some(pooler) = Pooler::start().await else { return };
    let before = pooler.settings().await.unwrap();
    let error = pooler.builder().pooler(true).open().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::NotFound, "{error}");
    assert!(error.to_string().contains("dlq migrate --apply"), "{error}");
    let error = pooler.builder().pooler(true).apply_migration().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::InvalidConfig, "{error}");
    pooler.schema.store().await;
    let store = pooler.builder().pooler(true).open().await.unwrap();
    store.put(vec![letter(0)]).await.unwrap();
    for _ in 0..3 {
        for (name, done) in futures_util::future::join_all(
            calls(&store).into_iter().map(|(name, call)| async move { (name, call.await) }),
        )
        .await
        {
            done.unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }
    assert_eq!(store.verify().await.unwrap(), Vec::<String>::new());
    assert_eq!(pooler.settings().await.unwrap(), before);
}

/// Eight at once on three connections: each statement is prepared where it runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_claim_and_finish_at_once() {
    const LETTERS: u64 = 400;
    let Some(pooler) = Pooler::start().await else { return };
    let direct = pooler.schema.store().await;
    for n in 0..LETTERS {
        direct.enqueue(delayed_retry(&letter(n), 1, Timestamp::EPOCH)).await.unwrap();
    }
    let store = pooler.builder().pooler(true).open().await.unwrap();
    let mut claimers = JoinSet::new();
    for _ in 0..8 {
        let store = store.clone();
        claimers.spawn(async move {
            loop {
                let claims = store.claim(ClaimRequest::due([CONSUMER], 7, PATIENCE)).await.unwrap();
                if claims.is_empty() {
                    return;
                }
                let success = Finish::Resolved(Resolution::Succeeded);
                let finishes = claims.iter().map(|claim| (claim.token, success.clone()));
                let finished = store.finish(finishes.collect()).await.unwrap();
                assert!(finished.iter().all(|finished| *finished == Finished::Applied));
            }
        });
    }
    claimers.join_all().await;
    let resolved = direct.count(Filter::new().with_status(Status::Resolved)).await.unwrap();
    assert_eq!(resolved, LETTERS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn g1_a_consumer_buries_through_a_pooler() {
    let Some(pooler) = Pooler::start().await else { return };
    pooler.schema.store().await;
    let store = pooler.builder().pooler(true).open().await.unwrap();
    let errors = World::start(store).ends_well(&pooler.schema, "through a pooler").await;
    assert_eq!(errors, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_dropped_call_keeps_no_connection_of_the_pooler() {
    let Some(pooler) = Pooler::start().await else { return };
    pooler.schema.store().await;
    let url = format!("{}?application_name=dropping", pooler.url);
    let builder = PostgresStore::builder(url).schema(&pooler.schema.name).max_connections(1);
    let store = builder.pooler(true).open().await.unwrap();
    drop_everywhere(&store, async |name, polls, _| {
        let what = format!("{name}, dropped after {polls} polls,");
        no_transaction_is_open(&pooler.schema, "dropping", &what).await;
    })
    .await;
}

/// Who does not know of the pooler is told that nothing is heard.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_pooler_that_swallows_what_is_said_is_found() {
    let Some(pooler) = Pooler::start().await else { return };
    let direct = pooler.schema.store().await;
    assert_eq!(direct.check(Default::default()).await.unwrap(), []);
    let options: sqlx::postgres::PgConnectOptions = pooler.url.parse().unwrap();
    let options = options.extra_float_digits(None);
    let names_the_pooler = |error: StoreError| {
        // Or what was cut.
        let is_said = error.to_string().contains("pooler=true");
        assert!(is_said || error.is_transient(), "{error}");
    };
    let (began, mut found) = (Instant::now(), Vec::new());
    while found.is_empty() {
        assert!(began.elapsed() < PATIENCE, "no check ends");
        // One connection at a time, so that most often it is given the same one of the database again.
        let pool = sqlx::postgres::PgPoolOptions::new().max_connections(1);
        let pool = pool.connect_lazy_with(options.clone());
        match PostgresStore::with_pool(pool).schema(&pooler.schema.name).open().await {
            Err(error) => names_the_pooler(error),
            Ok(unaware) => match unaware.check(Default::default()).await {
                Err(error) => names_the_pooler(error),
                Ok(all) => found = all,
            },
        }
        // Forgets what others have prepared.
        cut(&pooler.schema).await;
    }
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((found[0].subject.as_str(), found[0].setting.as_str()), ("connection", "LISTEN"));
    assert!(found[0].advice.contains("pooler=true"));
}

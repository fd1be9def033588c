//! A database that freezes, and a network that swallows what is sent: connections stay open and nothing comes.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use dlq_core::idempotency::Idempotency as _;
use dlq_core::store::{
    Actor, AuditRequest, ClaimRequest, Claims as _, Cleanup, Edit, Finish, Finished, HealthState,
    HealthThresholds, Letters as _, Maintenance as _, Mark, OperationSpec, Operations as _,
    Selection, Sink as _,
};
use dlq_core::{
    CrashMarks as _, DeadLetters, Filter, PageRequest, Resolution, RetryQueue as _, Source as _,
    Status, StoreError, StoreErrorKind, Timestamp,
};
use dlq_services::Service;
use dlq_sql::postgres::PostgresStore;
use dlq_testkit::fixtures::{CONSUMER, delayed_retry, letter};
use dlq_tower::store_source::StoreSource;
use futures_util::future::join_all;
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, Executor as _};
use tokio::task::{JoinSet, block_in_place};
use tokio::time::{Instant, sleep, timeout};

use crate::faults::{WHILE, World};
use crate::fixture::{PATIENCE, Schema, available, url};
use crate::proxy::Proxy;

/// How long the database may be silent here.
const ANSWER: Duration = Duration::from_millis(700);
const ACQUIRE: Duration = Duration::from_millis(400);

/// A store that does not wait long, at `url`.
async fn impatient(url: &str, schema: &Schema) -> PostgresStore {
    opened(schema, async || {
        let builder = PostgresStore::builder(url).schema(&schema.name).max_connections(24);
        let builder = builder.statement_timeout(ACQUIRE).acquire_timeout(ACQUIRE);
        builder.answer_timeout(ANSWER).open().await
    })
    .await
}

/// A store that does not wait long, however long it takes to open it.
async fn opened<E: std::fmt::Display>(
    schema: &Schema,
    open: impl AsyncFn() -> Result<PostgresStore, E>,
) -> PostgresStore {
    // Its tables take as long as they take; through a proxy, they are made before it.
    drop(schema.store().await);
    let began = Instant::now();
    loop {
        match open().await {
            Ok(store) => return store,
            Err(error) => assert!(began.elapsed() < PATIENCE, "it is never opened: {error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn g1_the_server_freezes_and_goes_on() {
    if !available() {
        return;
    }
    let mut server = Service::Postgres.builder().ours().start().unwrap();
    let schema = Schema::at(server.url());
    let world = World::start(impatient(server.url(), &schema).await);
    for left in [900, 600, 300] {
        world.until(left).await;
        block_in_place(|| server.pause().unwrap());
        sleep(WHILE).await;
        block_in_place(|| server.resume().unwrap());
    }
    let errors = world.ends_well(&schema, "the server is frozen 3 times").await;
    assert!(errors > 0, "nobody was struck");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn g1_the_network_swallows_what_is_sent() {
    if !available() {
        return;
    }
    let proxy = Proxy::before(url()).await;
    let schema = Schema::fresh();
    let world = World::start(impatient(&proxy.url, &schema).await);
    for left in [900, 600, 300] {
        world.until(left).await;
        proxy.swallow(true);
        sleep(WHILE).await;
        proxy.swallow(false);
    }
    let errors = world.ends_well(&schema, "all connections are swallowed 3 times").await;
    assert!(errors > 0, "nobody was struck");
}

pub(crate) type Call<'c> = Pin<Box<dyn Future<Output = Result<(), StoreError>> + Send + 'c>>;

/// One call of each kind, none of which finds anything wrong.
pub(crate) fn calls(store: &PostgresStore) -> Vec<(&'static str, Call<'_>)> {
    fn call<'c, T>(
        name: &'static str,
        work: impl Future<Output = Result<T, StoreError>> + Send + 'c,
    ) -> (&'static str, Call<'c>) {
        (name, Box::pin(async { work.await.map(|_| ()) }))
    }
    let by = || Actor::new("ana");
    let one = || Selection::matching(Filter::new().with_consumer("none".to_owned())).unwrap();
    let record = delayed_retry(&letter(7), 1, Timestamp::EPOCH);
    vec![
        call("put", store.put(vec![letter(1)])),
        call("put again", store.put(vec![letter(0)])),
        call("enqueue", store.enqueue(record)),
        call("claim", store.claim(ClaimRequest::due(["nobody"], 1, PATIENCE))),
        call("next_due", store.next_due(vec![])),
        call("get", store.get(letter(0).id)),
        call("list", store.list(Filter::new(), PageRequest::new())),
        call("groups", store.groups(Filter::new(), 1)),
        call("stats", store.stats(Filter::new())),
        call("mark", store.mark(one(), Mark::Resolved, by())),
        call("delete", store.delete(one(), by())),
        call("cleanup", store.cleanup(Cleanup::older_than(PATIENCE), by())),
        call("edit", store.edit(letter(0).id, Edit::new(), by())),
        call("plan", store.plan(OperationSpec::replay(Filter::new()))),
        call("begin a run", store.begin(letter(0).id)),
        call("audit", store.audit(AuditRequest::latest(1))),
        call("check", store.check(Default::default())),
        call("purge keys", async { store.idempotency().purge(1).await }),
        call("claim a key", async {
            let key = Bytes::from_static(b"key");
            store.idempotency().claim(Arc::from("c"), key, PATIENCE).await
        }),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_call_ends_in_time_and_health_says_so() {
    if !available() {
        return;
    }
    let mut server = Service::Postgres.builder().ours().start().unwrap();
    let schema = Schema::at(server.url());
    let store = impatient(server.url(), &schema).await;
    store.put(vec![letter(0)]).await.unwrap();
    let health = async || DeadLetters::new(store.clone()).health(HealthThresholds::default()).await;
    let first = Instant::now();
    loop {
        // Connections that are there, so that it is the calls that hang and not connecting.
        connected(&store, 24).await;
        block_in_place(|| server.pause().unwrap());
        let (names, calls_at_once): (Vec<_>, Vec<_>) = calls(&store).into_iter().unzip();
        let done = timeout(PATIENCE, join_all(calls_at_once)).await.expect("they end");
        let mut silent = 0;
        for (name, done) in names.iter().zip(&done) {
            let error = done.as_ref().expect_err("nobody answers");
            assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{name}: {error}");
            silent += usize::from(error.to_string().contains("silent"));
        }
        assert_eq!(health().await.state, HealthState::Unhealthy);
        block_in_place(|| server.resume().unwrap());
        if silent * 2 > done.len() {
            break;
        }
        // The pool asks a connection that it is given back how it is, and had not heard of enough of them yet.
        let all = done.len();
        assert!(first.elapsed() < PATIENCE, "{silent} of {all} calls were under way");
    }
    // What it had been sent is still being done.
    connected(&store, 24).await;
    let began = Instant::now();
    while health().await.state == HealthState::Unhealthy {
        assert!(began.elapsed() < PATIENCE, "it is never well again");
    }
    // By one that has time: this one's calls are cut off wherever the disk is slow.
    for (name, call) in calls(&schema.store().await) {
        call.await.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

/// Claims that were under way are leases that end; every letter is run to its end, and only those again.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn claims_in_flight_run_again_and_no_others() {
    if !available() {
        return;
    }
    const LETTERS: u64 = 600;
    const LEASE: Duration = Duration::from_secs(2);
    let mut server = Service::Postgres.builder().ours().start().unwrap();
    let schema = Schema::at(server.url());
    let patient = schema.store().await;
    for n in 0..LETTERS {
        patient.enqueue(delayed_retry(&letter(n), 1, Timestamp::EPOCH)).await.unwrap();
    }
    let store = impatient(server.url(), &schema).await;
    // When each claim of a letter was asked for and had; and the letters whose outcome was taken.
    let runs: Arc<Mutex<BTreeMap<_, Vec<[Instant; 2]>>>> = Arc::default();
    let ended: Arc<Mutex<BTreeSet<_>>> = Arc::default();
    let mut claimers = JoinSet::new();
    for _ in 0..4 {
        let (store, runs, ended) = (store.clone(), Arc::clone(&runs), Arc::clone(&ended));
        claimers.spawn(async move {
            while (ended.lock().unwrap().len() as u64) < LETTERS {
                let asked = Instant::now();
                let request = ClaimRequest::due([CONSUMER], 5, LEASE);
                let Ok(claims) = store.claim(request).await else { continue };
                for claim in &claims {
                    let mut runs = runs.lock().unwrap();
                    runs.entry(claim.letter.id).or_default().push([asked, Instant::now()]);
                }
                sleep(Duration::from_millis(20)).await;
                let finish = Finish::Resolved(Resolution::Succeeded);
                let finishes: Vec<_> =
                    claims.iter().map(|claim| (claim.token, finish.clone())).collect();
                // An outcome whose answer was lost is said again.
                let finished = loop {
                    if let Ok(finished) = store.finish(finishes.clone()).await {
                        break finished;
                    }
                };
                for (claim, finished) in claims.iter().zip(finished) {
                    if finished == Finished::Applied {
                        let is_first = ended.lock().unwrap().insert(claim.letter.id);
                        assert!(is_first, "{} ended twice", claim.letter.id);
                    }
                }
            }
        });
    }
    for share in [1, 2, 3] {
        let began = Instant::now();
        while (ended.lock().unwrap().len() as u64) < LETTERS * share / 4 {
            assert!(began.elapsed() < PATIENCE, "it does not go on");
            sleep(Duration::from_millis(5)).await;
        }
        block_in_place(|| server.pause().unwrap());
        sleep(WHILE).await;
        block_in_place(|| server.resume().unwrap());
    }
    let all = async { while claimers.join_next().await.is_some_and(|done| done.is_ok()) {} };
    timeout(PATIENCE, all).await.expect("every letter is run to its end");
    assert!(claimers.is_empty(), "a claimer has failed");
    let resolved = patient.count(Filter::new().with_status(Status::Resolved)).await.unwrap();
    assert_eq!(resolved, LETTERS);
    let runs = runs.lock().unwrap();
    let again: usize = runs.values().map(|times| times.len() - 1).sum();
    println!(
        "{LETTERS} letters, 3 freezes of {WHILE:?}: every one resolved once, {again} run again"
    );
    for (id, times) in &*runs {
        for two in times.windows(2) {
            assert!(two[1][1] - two[0][0] >= LEASE, "{id} runs twice within a lease");
        }
    }
}

/// The pool waits for what a dropped call has under way, and so would every connection of it, for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn calls_that_are_dropped_in_the_silence_hold_no_connection() {
    if !available() {
        return;
    }
    let proxy = Proxy::before(url()).await;
    let schema = Schema::fresh();
    let store = impatient(&proxy.url, &schema).await;
    let all_at_once = || join_all((0..24).map(|n| store.put(vec![letter(n)])));
    connected(&store, 24).await;
    proxy.swallow(true);
    let dropped = timeout(Duration::from_millis(100), all_at_once()).await;
    assert!(dropped.is_err(), "they are under way");
    proxy.swallow(false);
    let began = Instant::now();
    while let Err(error) = store.put(vec![letter(9)]).await {
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
        assert!(began.elapsed() < PATIENCE, "the connections are lost: {error}");
    }
}

/// One connection that died of silence is enough to tell of the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_call_finds_out_for_all() {
    if !available() {
        return;
    }
    let proxy = Proxy::before(url()).await;
    let schema = Schema::fresh();
    let store = impatient(&proxy.url, &schema).await;
    connected(&store, 24).await;
    proxy.swallow(true);
    store.put(vec![letter(1)]).await.unwrap_err();
    proxy.swallow(false);
    let mut failed = 0;
    for n in 0..24 {
        failed += u32::from(store.put(vec![letter(n)]).await.is_err());
    }
    assert!(failed < 12, "{failed} of 24 had to find out for themselves");
}

/// Waits until so many calls are made at once, each on a connection of its own.
async fn connected(store: &PostgresStore, calls: u64) {
    let began = Instant::now();
    while join_all((0..calls).map(|n| store.get(letter(n).id))).await.iter().any(Result::is_err) {
        assert!(began.elapsed() < PATIENCE, "there are never {calls} connections");
    }
}

/// Whoever vanishes in the middle of a transaction leaves locks behind, but not for long.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn who_vanishes_in_the_middle_of_a_call_holds_its_letters_up_for_a_moment_only() {
    if !available() {
        return;
    }
    let proxy = Proxy::before(url()).await;
    let schema = Schema::fresh();
    let builder = PostgresStore::builder(&proxy.url).schema(&schema.name);
    // Long enough for what follows to come before it has ended.
    let builder = builder.answer_timeout(ANSWER * 5).statement_timeout(ANSWER * 4);
    let vanishing = builder.open().await.unwrap();
    let other = schema.store().await;
    let now = || delayed_retry(&letter(0), 1, Timestamp::EPOCH);
    other.enqueue(now()).await.unwrap();
    // The second statement of the call waits for this one.
    let mut conn = schema.connect().await;
    conn.execute("BEGIN; LOCK TABLE dlq_audit IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let mut calls = JoinSet::new();
    let selection = Selection::matching(Filter::new().with_consumer(CONSUMER.to_owned())).unwrap();
    calls.spawn(async move { vanishing.mark(selection, Mark::Pending, Actor::new("ana")).await });
    let waits = "SELECT FROM pg_locks WHERE NOT granted AND relation = 'dlq_audit'::regclass";
    let began = Instant::now();
    while schema.connect().await.fetch_optional(waits).await.unwrap().is_none() {
        assert!(began.elapsed() < PATIENCE, "the call does not come that far");
        sleep(Duration::from_millis(5)).await;
    }
    proxy.swallow(true);
    conn.execute("ROLLBACK").await.unwrap();
    let request = || ClaimRequest::due([CONSUMER], 1, PATIENCE);
    assert!(other.claim(request()).await.unwrap().is_empty(), "the call has locked the letter");
    let began = Instant::now();
    while other.claim(request()).await.unwrap().is_empty() {
        assert!(began.elapsed() < PATIENCE, "the letter stays locked");
        sleep(Duration::from_millis(20)).await;
    }
    let done = timeout(PATIENCE, calls.join_next()).await.unwrap().unwrap().unwrap();
    assert_eq!(done.unwrap_err().kind(), StoreErrorKind::Unavailable);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_source_whose_connections_are_swallowed_polls_and_listens_anew() {
    if !available() {
        return;
    }
    let proxy = Proxy::before(url()).await;
    let schema = Schema::fresh();
    let other = schema.store().await;
    let store = impatient(&proxy.url, &schema).await;
    let mut source = StoreSource::new(store.clone(), [CONSUMER]);
    source = source.poll(Duration::from_millis(200)).lease(Duration::from_secs(3600));
    let enqueue = async |n| {
        other.enqueue(delayed_retry(&letter(n), 1, Timestamp::EPOCH)).await.unwrap();
    };
    let mut is_given = async || {
        let given = async {
            loop {
                match source.next().await {
                    Ok(given) => break given.is_some(),
                    Err(error) => assert!(error.is_transient(), "{error}"),
                }
            }
        };
        assert!(timeout(PATIENCE, given).await.expect("the source polls"));
    };
    enqueue(0).await;
    is_given().await;
    // It listens by the time it has waited for something.
    let hears = async |heard| {
        let consumers = vec![CONSUMER.to_owned()];
        timeout(PATIENCE, store.due_elsewhere(consumers, heard)).await.expect("it hears").unwrap()
    };
    let mut heard = hears(0).await;
    for n in 1..3 {
        proxy.swallow(true);
        sleep(ANSWER / 2).await;
        proxy.swallow(false);
        // The connection that listens is as dead as the others.
        enqueue(n).await;
        is_given().await;
        // When it is made anew everybody is woken, and what is said from then on is heard.
        heard = hears(heard).await;
        while let Ok(more) =
            timeout(ANSWER, store.due_elsewhere(vec![CONSUMER.to_owned()], heard)).await
        {
            heard = more.unwrap();
        }
        enqueue(100 + n).await;
        heard = hears(heard).await;
        is_given().await;
    }
}

/// The program's own connections, which others use too: one of them that is silent is closed, and no other.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_a_pool_that_was_handed_over_only_the_silent_connection_is_closed() {
    if !available() {
        return;
    }
    let proxy = Proxy::before(url()).await;
    let schema = Schema::fresh();
    let pool = PgPoolOptions::new().max_connections(3).acquire_timeout(ACQUIRE);
    let pool = pool.test_before_acquire(false).connect(&proxy.url).await.unwrap();
    let open = async || {
        let builder = PostgresStore::with_pool(pool.clone()).schema(&schema.name);
        builder.answer_timeout(ANSWER).open().await
    };
    let store = opened(&schema, open).await;
    let began = Instant::now();
    while join_all((0..3).map(|_| pool.acquire())).await.iter().any(Result::is_err) {
        assert!(began.elapsed() < PATIENCE, "there are never three connections");
    }
    let idle = async |count| {
        let began = Instant::now();
        while pool.num_idle() != count {
            assert!(began.elapsed() < PATIENCE, "{} are idle, not {count}", pool.num_idle());
            sleep(Duration::from_millis(5)).await;
        }
    };
    idle(3).await;
    proxy.swallow(true);
    store.put(vec![letter(1)]).await.unwrap_err();
    idle(2).await;
    // Opening uses up the others, and gives none of them back to wait for what never comes.
    for _ in 0..2 {
        let error = open().await.unwrap_err();
        assert!(error.to_string().contains("silent"), "{error}");
    }
    proxy.swallow(false);
    let all = join_all((0..3).map(|_| pool.acquire())).await;
    assert!(all.iter().all(Result::is_ok), "a connection is lost");
}

#[tokio::test]
async fn a_time_out_that_no_statement_could_use_is_refused() {
    let builder = PostgresStore::builder("postgres://ana@127.0.0.1:1/orders");
    let builder = builder.statement_timeout(Duration::from_secs(30));
    let error = builder.answer_timeout(Duration::from_secs(30)).open().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::InvalidConfig);
    for word in ["`answer_timeout` is 30s", "`statement_timeout` 30s"] {
        assert!(error.to_string().contains(word), "{error}");
    }
}

#[tokio::test]
async fn opening_ends_in_time() {
    if !available() {
        return;
    }
    let proxy = Proxy::before(url()).await;
    let schema = Schema::fresh();
    proxy.swallow(true);
    let began = Instant::now();
    let builder = PostgresStore::builder(&proxy.url).schema(&schema.name);
    let error = builder.acquire_timeout(ACQUIRE).open().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    assert!(began.elapsed() < PATIENCE);
    let sql = AssertSqlSafe(format!("SELECT FROM pg_namespace WHERE nspname = '{}'", schema.name));
    assert!(schema.connect().await.fetch_optional(sql).await.unwrap().is_none());
}

//! A source hears of what another process makes due, long before it would ask by itself.

use std::time::Duration;

use dlq_core::store::{
    Actor, ClaimRequest, Claims as _, Control, Finish, Maintenance as _, OperationSpec,
    Operations as _, Schedule, ScheduleRun, Sink as _,
};
use dlq_core::{Filter, RetryQueue as _, Source as _, Timestamp};
use dlq_sql::postgres::PostgresStore;
use dlq_testkit::fixtures::{CONSUMER, delayed_retry, history, letter};
use dlq_tower::store_source::StoreSource;
use sqlx::PgConnection;
use tokio::time::{Instant, sleep, timeout};

use crate::fixture::{PATIENCE, Schema, available};

const POLL: Duration = Duration::from_secs(3600);

/// What it yields is never finished: the lease ends long after the test, so that nothing else wakes it.
fn source(store: &PostgresStore) -> StoreSource<PostgresStore> {
    StoreSource::new(store.clone(), [CONSUMER]).poll(POLL).lease(POLL)
}

async fn enqueue(store: &PostgresStore, n: u64) {
    let delayed_retry = delayed_retry(&letter(n), 1, Timestamp::from_millis(0));
    store.enqueue(delayed_retry).await.unwrap();
}

/// How many connections listen for this schema, all of which are ended on demand.
async fn listeners(conn: &mut PgConnection, schema: &Schema, end: bool) -> i64 {
    let sql = "SELECT count(CASE WHEN $2 THEN pg_terminate_backend(pid) ELSE true END) \
               FROM pg_stat_activity WHERE query = $1";
    let query = sqlx::query_scalar(sql).bind(format!("LISTEN \"{}.dlq_events\"", schema.name));
    query.bind(end).fetch_one(conn).await.unwrap()
}

async fn until_listeners(schema: &Schema, count: i64) {
    let mut conn = schema.connect().await;
    let began = Instant::now();
    while listeners(&mut conn, schema, false).await != count {
        assert!(began.elapsed() < PATIENCE, "there are never {count} listeners");
        sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until the source has been given what becomes due while it waits.
async fn is_woken_by(
    source: &mut StoreSource<PostgresStore>,
    doing: impl Future<Output = ()>,
) -> Duration {
    let doing = async {
        // Most often the source waits by then; it has to be given the record either way.
        sleep(Duration::from_millis(500)).await;
        doing.await;
        Instant::now()
    };
    let both = async { tokio::join!(source.next(), doing) };
    let (yielded, done) = timeout(PATIENCE, both).await.expect("the source is woken");
    assert!(yielded.unwrap().is_some());
    done.elapsed()
}

#[tokio::test]
async fn a_delayed_retry_wakes_the_source_of_another_process() {
    if !available() {
        return;
    }
    let schema = Schema::fresh();
    let (one, other) = (schema.store().await, schema.store().await);
    let mut source = source(&one);
    let mut took = Vec::new();
    for n in 0..5 {
        took.push(is_woken_by(&mut source, enqueue(&other, n)).await);
    }
    println!("woken after {took:?}");
}

#[tokio::test]
async fn a_lost_connection_is_made_anew_and_nothing_missed() {
    if !available() {
        return;
    }
    let schema = Schema::fresh();
    let (one, other) = (schema.store().await, schema.store().await);
    let mut source = source(&one);
    is_woken_by(&mut source, enqueue(&other, 0)).await;
    let mut conn = schema.connect().await;
    let mut took = Vec::new();
    for n in 1..4 {
        until_listeners(&schema, 1).await;
        let cut_off = async {
            assert_eq!(listeners(&mut conn, &schema, true).await, 1);
            enqueue(&other, n).await;
        };
        took.push(is_woken_by(&mut source, cut_off).await);
    }
    println!("woken after {took:?}");
}

/// The number up to which everything was heard, once nothing has been heard for a while.
async fn quiet(store: &PostgresStore) -> u64 {
    let mut heard = 0;
    while let Ok(now) = timeout(Duration::from_millis(500), elsewhere(store, heard)).await {
        heard = now;
    }
    heard
}

async fn elsewhere(store: &PostgresStore, heard: u64) -> u64 {
    store.due_elsewhere(vec![CONSUMER.to_owned()], heard).await.unwrap()
}

#[tokio::test]
async fn whatever_makes_letters_due_is_heard() {
    if !available() {
        return;
    }
    let schema = Schema::fresh();
    let listening = schema.builder().max_connections(1).open().await.unwrap();
    let other = schema.store().await;
    other.put((0..10).map(letter).collect()).await.unwrap();
    elsewhere(&listening, 0).await;
    until_listeners(&schema, 1).await;
    let mut heard = quiet(&listening).await;
    let mut hears = async |what: &str| {
        let news = timeout(PATIENCE, elsewhere(&listening, heard)).await;
        heard = news.unwrap_or_else(|_| panic!("it is not heard that {what}"));
        // Something was said twice, perhaps.
        heard = heard.max(quiet(&listening).await);
    };
    let by = || Actor::new("ana");
    let spec = OperationSpec::replay(Filter::new()).limit(5);
    let operation = other.start(spec, by()).await.unwrap();
    hears("an operation began").await;
    other.control(operation.id, Control::Pause, by()).await.unwrap();
    other.control(operation.id, Control::Resume, by()).await.unwrap();
    hears("an operation goes on").await;
    let request = || ClaimRequest::due([CONSUMER], 1, Duration::from_secs(600));
    let claim = other.claim(request()).await.unwrap().remove(0);
    let released = Finish::Released { after: Duration::ZERO };
    other.finish(vec![(claim.token, released)]).await.unwrap();
    hears("a claim was released").await;
    let claim = other.claim(request()).await.unwrap().remove(0);
    let due = Timestamp::from_millis(0);
    let retry = Finish::Retry { due, history: history(1, 1), attempts: 1 };
    other.finish(vec![(claim.token, retry)]).await.unwrap();
    hears("a claim ended with a retry").await;
    let schedule = Schedule::enabled().all_classes();
    let run = ScheduleRun { consumer: CONSUMER.to_owned(), schedule };
    assert!(other.run_schedule(run).await.unwrap().0 > 0);
    hears("the schedule ran").await;
    let mut restored = letter(50);
    restored.state.due = Some(Timestamp::from_millis(0));
    other.restore(vec![restored], by()).await.unwrap();
    hears("what is due was restored").await;
    let mut foreign = letter(100);
    foreign.consumer = "audit.write".to_owned();
    let delayed_retry = delayed_retry(&foreign, 1, Timestamp::from_millis(0));
    other.enqueue(delayed_retry).await.unwrap();
    let nothing = timeout(Duration::from_millis(500), elsewhere(&listening, heard)).await;
    assert!(nothing.is_err(), "that was about another consumer's letters");
}

#[tokio::test]
async fn who_listens_ends_with_the_last_handle() {
    if !available() {
        return;
    }
    let schema = Schema::fresh();
    let store = schema.store().await;
    let clone = store.clone();
    elsewhere(&store, 0).await;
    elsewhere(&clone, 0).await;
    until_listeners(&schema, 1).await;
    drop(store);
    elsewhere(&clone, 0).await;
    until_listeners(&schema, 1).await;
    drop(clone);
    until_listeners(&schema, 0).await;
}

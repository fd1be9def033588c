//! No query of the store reads the whole table of letters: the server logs the plan of every statement that a day's work
//! sends, and none scans it. A query that is new is looked at without being listed here.

use std::fs;
use std::path::Path;
use std::time::Duration;

use dlq_core::store::{
    Actor, AuditRequest, ClaimRequest, Claims as _, Cleanup, Control, Finish, HealthThresholds,
    Letters as _, Maintenance as _, Mark, OperationSpec, Operations as _, Schedule, ScheduleRun,
    Selection, Sink as _,
};
use dlq_core::{
    DeadLetters, Filter, Order, PageRequest, Resolution, RetryQueue as _, Status, Timestamp,
};
use dlq_services::{Service, ensure_installed, or_skip};
use dlq_sql::postgres::PostgresStore;
use dlq_testkit::fixtures::{CONSUMER, delayed_retry, died_again, letter, varied};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

const LETTERS: u64 = 100_000;
const LEASE: Duration = Duration::from_secs(60);

/// What stands before a plan in the log.
const PLAN: &str = "  plan:";

/// The statements of which a plan has a sequential scan of the letters. Lines that go on begin with a tab.
fn scans(log: &str) -> (usize, Vec<String>) {
    let mut plans = 0;
    let mut found = Vec::new();
    for entry in log.replace("\n\t", "\u{1}").lines() {
        let Some((_, plan)) = entry.split_once(PLAN) else { continue };
        plans += 1;
        if plan.contains("Seq Scan on dlq_events") {
            found.push(plan.replace('\u{1}', "\n"));
        }
    }
    (plans, found)
}

async fn sql(conn: &mut PgConnection, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(conn).await.unwrap();
}

/// Everything that consumers, the schedule, a dashboard and an operator ask for in a day.
async fn work(store: &PostgresStore, first: u64) {
    let by = Actor::new("ana");
    let ids: Vec<_> = (first..first + 3).map(|n| varied(n).id).collect();
    let one = || Filter::new().with_id(ids[0]);
    let pending = || Filter::new().with_status(Status::Pending);
    let letters = DeadLetters::new(store.clone());
    // Consumers die, again, of something else, and wait.
    let mut other = varied(5);
    other.message = other.message.with_payload(Some("other".into()));
    store.put(vec![varied(5), other, died_again(&varied(6)), varied(LETTERS + 1)]).await.unwrap();
    store.enqueue(delayed_retry(&letter(LETTERS + 2), 2, Timestamp::EPOCH)).await.unwrap();
    store.next_due(vec![CONSUMER.to_owned()]).await.unwrap();
    let run = ScheduleRun { consumer: CONSUMER.to_owned(), schedule: Schedule::enabled() };
    store.run_schedule(run).await.unwrap();
    let claims = store.claim(ClaimRequest::due([CONSUMER], 8, LEASE).owner("a")).await.unwrap();
    assert!(claims.len() >= 4, "{}", claims.len());
    store.extend(claims.iter().map(|claim| claim.token).collect(), LEASE).await.unwrap();
    let history = || claims[1].letter.history.clone();
    let dead = Box::new(died_again(&claims[2].letter));
    let finishes = [
        Finish::Resolved(Resolution::Succeeded),
        Finish::Retry { due: Timestamp::EPOCH, history: history(), attempts: 4 },
        Finish::Dead(dead),
        Finish::Released { after: Duration::ZERO },
    ];
    let finishes = claims.iter().map(|claim| claim.token).zip(finishes).collect();
    store.finish(finishes).await.unwrap();
    // A dashboard looks.
    assert!(store.get(ids[0]).await.unwrap().is_some());
    store.with_prefix(ids[0].to_string()[..6].to_owned(), 5).await.unwrap();
    let subject = || Filter::new().with_subject("payments.charged".parse().unwrap());
    let filters = [
        Filter::new(),
        one(),
        pending(),
        Filter::new().with_status(Status::Resolved),
        Filter::new().with_message_id("evt-7".to_owned()),
        Filter::new().with_consumer(CONSUMER.to_owned()),
        Filter::new().with_event("order".to_owned()),
        Filter::new().since(Timestamp::MAX.before(LEASE)),
        subject(),
        subject().with_status(Status::Quarantined),
    ];
    for filter in filters {
        for order in [Order::NewestFirst, Order::OldestFirst] {
            let page = PageRequest::new().order(order).limit(20);
            let first = store.list(filter.clone(), page).await.unwrap();
            store.list(filter.clone(), page.after(first.next)).await.unwrap();
        }
    }
    for filter in
        [Filter::new(), one(), pending(), Filter::new().with_message_id("evt-7".to_owned())]
    {
        store.count(filter.clone()).await.unwrap();
        store.stats(filter.clone()).await.unwrap();
        store.groups(filter, 20).await.unwrap();
    }
    // These are served by the optional indexes that the book describes.
    for filter in [Filter::new().error("nowhere"), Filter::new().attribute("customer", "nobody")] {
        assert_eq!(store.count(filter).await.unwrap(), 0);
    }
    letters.health(HealthThresholds::default()).await;
    store.due(LEASE).await.unwrap();
    // An operator acts.
    let spec = OperationSpec::replay(Filter::new().with_message_id("evt-9".to_owned()));
    store.plan(spec.clone()).await.unwrap();
    let operation = store.start(spec, by.clone()).await.unwrap();
    store.claim(ClaimRequest::due([CONSUMER], 2, LEASE).owner("b")).await.unwrap();
    store.operations(10).await.unwrap();
    store.operation(operation.id).await.unwrap();
    store.items(operation.id, 0, 10).await.unwrap();
    store.control(operation.id, Control::Cancel, by.clone()).await.unwrap();
    for mark in [Mark::Quarantined, Mark::Pending, Mark::Resolved] {
        store.mark(Selection::matching(one()).unwrap(), mark, by.clone()).await.unwrap();
    }
    store.cleanup(Cleanup::older_than(Duration::ZERO), by.clone()).await.unwrap();
    let gone = Selection::matching(Filter::new().with_id(ids[1])).unwrap();
    store.delete(gone, by).await.unwrap();
    store.restore(vec![varied(first + 1), varied(first + 2)], Actor::new("ana")).await.unwrap();
    store.audit(AuditRequest::latest(10)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn no_query_reads_the_whole_table_of_letters() {
    if or_skip(Service::Postgres, ensure_installed(Service::Postgres)).is_err() {
        return;
    }
    let builder = Service::Postgres.builder().ours().setting("fsync", "off");
    let builder = builder.setting("session_preload_libraries", "auto_explain");
    let server = tokio::task::block_in_place(|| builder.start().unwrap());
    let log = server.folder().unwrap().join("server.log");
    let store = PostgresStore::connect(server.url()).await.unwrap();
    for start in (0..LETTERS).step_by(1000) {
        store.put((start..start + 1000).map(varied).collect()).await.unwrap();
    }
    let mut conn = PgConnection::connect(server.url()).await.unwrap();
    for statement in optional_indexes() {
        sql(&mut conn, &statement).await;
    }
    sql(&mut conn, "VACUUM ANALYZE").await;
    sql(
        &mut conn,
        "ALTER DATABASE postgres SET auto_explain.log_min_duration = 0;
         ALTER DATABASE postgres SET auto_explain.log_nested_statements = on",
    )
    .await;
    // Those settings are of connections that are new.
    for (dedup, first) in [(false, 1), (true, 101)] {
        let store = PostgresStore::builder(server.url()).dedup(dedup).open().await.unwrap();
        work(&store, first).await;
    }
    let (plans, found) = logged(&log);
    println!("{plans} plans");
    assert!(plans > 200, "{plans}");
    assert!(
        found.is_empty(),
        "{} of {plans} plans read everything:\n{}",
        found.len(),
        found.join("\n\n")
    );
    // Such a scan would have been seen.
    let mut conn = PgConnection::connect(server.url()).await.unwrap();
    sql(&mut conn, "SELECT count(*) FROM dlq_events WHERE error || 'x' = 'x'").await;
    assert_eq!(logged(&log).1.len(), 1);
}

/// Returns the statements of the book that make the indexes of searches.
fn optional_indexes() -> Vec<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/search.md");
    let page = fs::read_to_string(page).unwrap();
    let (_, block) = page.split_once("```sql\n").unwrap();
    let (block, _) = block.split_once("```").unwrap();
    let statements = block.split(';').map(|statement| statement.trim().to_owned());
    let statements: Vec<_> = statements.filter(|statement| !statement.is_empty()).collect();
    assert_eq!(statements.len(), 3);
    statements
}

fn logged(log: &Path) -> (usize, Vec<String>) {
    scans(&String::from_utf8_lossy(&fs::read(log).unwrap()))
}

//! Calls whose transaction ends while nobody knows how: they are carried out once, and say so.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dlq_core::idempotency::{Idempotency as _, IdempotencyClaim, Release};
use dlq_core::store::{
    Actor, ArchiveFilter, AuditRequest, Edit, ItemOutcome, Letters as _, Maintenance as _, Mark,
    OperationSpec, Operations as _, Processed, ProcessedEvent, Selection, Sink as _,
};
use dlq_core::{CrashMarks as _, Filter, Status, Timestamp};
use dlq_sql::postgres::{PostgresBuilder, PostgresStore};
use dlq_testkit::fixtures::letter;
use sqlx::{AssertSqlSafe, Executor as _};
use tokio::time::{Instant, sleep};

use crate::fixture::{PATIENCE, Schema, available, url};
use crate::proxy::{Proxy, Trouble};

/// What may become of a COMMIT.
const ALL: [Trouble; 3] = [Trouble::Lost, Trouble::Unanswered, Trouble::Late];

fn through(proxy: &Proxy, schema: &Schema) -> PostgresBuilder {
    let builder = PostgresStore::builder(&proxy.url).schema(&schema.name);
    // The server waits for the next statement of a transaction for a time in between.
    builder.statement_timeout(Duration::from_secs(1)).answer_timeout(Duration::from_secs(5))
}

fn by() -> Actor {
    Actor::new("ana")
}

fn all() -> Selection {
    Selection::matching(Filter::new().with_consumer(letter(0).consumer)).unwrap()
}

/// G6: a replay is not started twice, over the next letters, because nobody heard that it had been started.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn g6_an_operation_is_started_once_however_its_commit_ends() {
    if !available() {
        return;
    }
    for trouble in ALL {
        for is_pooled in [false, true] {
            let (proxy, schema) = (Proxy::before(url()).await, Schema::fresh());
            schema.store().await.put((0..30).map(letter).collect()).await.unwrap();
            let store = through(&proxy, &schema).pooler(is_pooled).open().await.unwrap();
            proxy.trouble(trouble);
            let spec = OperationSpec::replay(Filter::new()).limit(10);
            let started = store.start(spec, by()).await.unwrap();
            assert!(!proxy.is_troubling(), "{trouble:?}");
            let all = store.operations(10).await.unwrap();
            assert_eq!(all, std::slice::from_ref(&started), "{trouble:?}");
            assert_eq!(started.progress.with_outcome(ItemOutcome::Queued), 10, "{trouble:?}");
            let held = "SELECT count(*) FROM dlq_events WHERE operation IS NOT NULL";
            let mut conn = schema.connect().await;
            let held: i64 = sqlx::query_scalar(held).fetch_one(&mut conn).await.unwrap();
            assert_eq!(held, 10, "{trouble:?}");
            assert_eq!(
                store.audit(AuditRequest::latest(10)).await.unwrap().len(),
                1,
                "{trouble:?}"
            );
        }
    }
}

/// What an operator did is told to him and to the audit as it was.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_was_done_is_told_however_the_commit_ends() {
    if !available() {
        return;
    }
    for trouble in ALL {
        let (proxy, schema) = (Proxy::before(url()).await, Schema::fresh());
        let store = through(&proxy, &schema).open().await.unwrap();
        store.put((0..5).map(letter).collect()).await.unwrap();
        let stored = store.get(letter(0).id).await.unwrap().unwrap();
        proxy.trouble(trouble);
        let edit = Edit::new().payload("other").allow_invalid().expecting(&stored);
        let edited = store.edit(stored.id, edit, by()).await.unwrap();
        assert_eq!(edited.message.payload().map(|payload| &payload[..]), Some(&b"other"[..]));
        proxy.trouble(trouble);
        assert_eq!(
            store.mark(all(), Mark::Resolved, by()).await.unwrap().changed,
            5,
            "{trouble:?}"
        );
        proxy.trouble(trouble);
        assert_eq!(store.delete(all(), by()).await.unwrap().changed, 5, "{trouble:?}");
        assert_eq!(store.count(Filter::new()).await.unwrap(), 0);
        proxy.trouble(trouble);
        let restored = store.undelete(ArchiveFilter::new(), by()).await.unwrap();
        assert_eq!((restored.changed, restored.skipped), (5, 0), "{trouble:?}");
        assert!(!proxy.is_troubling(), "{trouble:?}");
        let audit = store.audit(AuditRequest::latest(10)).await.unwrap();
        let done: Vec<_> =
            audit.iter().map(|entry| (entry.action.as_str(), entry.affected)).collect();
        let all = [("undelete", 5), ("delete", 5), ("resolve", 5), ("edit", 1)];
        assert_eq!(done, all, "{trouble:?}");
        let back = store.count(Filter::new().with_status(Status::Resolved)).await.unwrap();
        assert_eq!(back, 5);
    }
}

/// Servers may end connections that nobody uses; whoever uses one next does not hear of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn connections_that_the_server_ended_for_idleness_cost_no_call() {
    if !available() {
        return;
    }
    let schema = Schema::fresh();
    schema.store().await;
    let url = format!(
        "{}?application_name={}&options=-c%20idle_session_timeout%3D1s",
        schema.url, schema.name
    );
    let store = PostgresStore::builder(url).schema(&schema.name).open().await.unwrap();
    for n in 0..3 {
        store.put(vec![letter(n)]).await.unwrap();
        let sql =
            format!("SELECT FROM pg_stat_activity WHERE application_name = '{}'", schema.name);
        let mut conn = schema.connect().await;
        let began = Instant::now();
        while conn.fetch_optional(AssertSqlSafe(sql.as_str())).await.unwrap().is_some() {
            assert!(began.elapsed() < PATIENCE, "the server ends no connection");
            sleep(Duration::from_millis(5)).await;
        }
        assert!(store.get(letter(n).id).await.unwrap().is_some());
    }
}

/// G3: a run is marked once, so that a healthy message is not taken for one that kills its process.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn g3_a_run_is_marked_once_however_its_commit_ends() {
    if !available() {
        return;
    }
    for trouble in ALL {
        let (proxy, schema) = (Proxy::before(url()).await, Schema::fresh());
        schema.store().await;
        let store = through(&proxy, &schema).pooler(true).open().await.unwrap();
        for before in 0..3 {
            proxy.trouble(trouble);
            assert_eq!(store.begin(letter(0).id).await.unwrap(), before, "{trouble:?}");
            assert!(!proxy.is_troubling(), "{trouble:?}");
        }
        // A run that ended takes the later marks with it.
        store.end(letter(0).id, 1).await.unwrap();
        assert_eq!(store.begin(letter(0).id).await.unwrap(), 1, "{trouble:?}");
    }
}

/// G3: a claim whose answer was lost is known again. Else it would be taken for another's, and for a crash once its lease
/// has ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn g3_a_key_is_claimed_once_however_its_commit_ends() {
    if !available() {
        return;
    }
    let lease = Duration::from_secs(3600);
    for trouble in ALL {
        let (proxy, schema) = (Proxy::before(url()).await, Schema::fresh());
        schema.store().await;
        let keys = through(&proxy, &schema).pooler(true).open().await.unwrap().idempotency();
        let claim =
            async || keys.claim(Arc::from("billing"), Bytes::from("k"), lease).await.unwrap();
        for failed in 0..3 {
            proxy.trouble(trouble);
            let IdempotencyClaim::New { token, attempts, crashes } = claim().await else {
                panic!("{trouble:?}: the key is nobody's");
            };
            assert!(!proxy.is_troubling(), "{trouble:?}");
            assert_eq!((attempts, crashes), (failed, 0), "{trouble:?}");
            assert!(matches!(claim().await, IdempotencyClaim::InFlight { .. }), "{trouble:?}");
            assert!(keys.release(token, Release::Failed).await.unwrap(), "{trouble:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_was_processed_is_recorded_once_however_its_commit_ends() {
    if !available() {
        return;
    }
    let event = |n: u32| ProcessedEvent {
        event_id: format!("e{n}"),
        subject: "orders".to_owned(),
        consumer: "billing".to_owned(),
        status: Processed::Dlq,
        attempt: n,
        duration: Duration::from_millis(1),
        at: Timestamp::EPOCH,
        error: None,
    };
    for is_pooled in [true, false] {
        for trouble in ALL {
            let (proxy, schema) = (Proxy::before(url()).await, Schema::fresh());
            schema.store().await;
            let store = through(&proxy, &schema).pooler(is_pooled).open().await.unwrap();
            proxy.trouble(trouble);
            store.record_processed((0..3).map(event).collect()).await.unwrap();
            store.record_processed(vec![event(3)]).await.unwrap();
            assert!(!proxy.is_troubling(), "{trouble:?}");
            let recorded = store.processed(10).await.unwrap();
            let recorded: Vec<_> = recorded.iter().rev().map(|event| event.attempt).collect();
            assert_eq!(recorded, [0, 1, 2, 3], "{trouble:?}");
        }
    }
}

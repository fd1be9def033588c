//! G1 where the connections were told that a commit need not be durable.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dlq_core::idempotency::{Idempotency as _, IdempotencyClaim};
use dlq_core::store::{
    ClaimRequest, Claims as _, Finish, Finished, Letters as _, Maintenance as _, Processed,
    ProcessedEvent, Sink as _,
};
use dlq_core::{CrashMarks as _, Filter, Resolution, RetryQueue as _, Status, Timestamp};
use dlq_services::Service;
use dlq_sql::postgres::PostgresStore;
use dlq_testkit::fixtures::{CONSUMER, delayed_retry, letter};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use tokio::task::block_in_place;

use crate::fixture::{PATIENCE, Schema, available};

/// What was confirmed is there after the server was killed, whatever a connection was told for others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_what_was_confirmed_survives_although_the_pool_does_not_ask_for_that() {
    if !available() {
        return;
    }
    // Otherwise what is not asked for is written soon enough, most often.
    let server = Service::Postgres.builder().ours().setting("wal_writer_delay", "10s");
    let mut server = server.start().unwrap();
    let schema = Schema::at(server.url());
    let options: PgConnectOptions = server.url().parse().unwrap();
    let pool = PgPoolOptions::new().max_connections(2);
    let pool = pool.connect_lazy_with(options.options([("synchronous_commit", "off")]));
    let store = PostgresStore::with_pool(pool).schema(&schema.name).open().await.unwrap();
    let consumer: Arc<str> = Arc::from("c");
    let key = |n: u64| Bytes::from(format!("key {n}"));
    let mut kill = || block_in_place(|| server.restart().unwrap());
    let due = |n| delayed_retry(&letter(n), 1, Timestamp::EPOCH);
    let one = |lease| ClaimRequest::due([CONSUMER], 1, lease);
    for n in 0..1 {
        store.put(vec![letter(n)]).await.unwrap();
        kill();
        assert!(store.get(letter(n).id).await.unwrap().is_some(), "letter {n} was lost");

        store.enqueue(due(100 + n)).await.unwrap();
        kill();
        let record = store.get(letter(100 + n).id).await.unwrap();
        assert_eq!(record.map(|it| it.state.status), Some(Status::Retrying));

        let claims = store.claim(one(PATIENCE)).await.unwrap();
        kill();
        assert_eq!((claims.len(), store.claim(one(PATIENCE)).await.unwrap().len()), (1, 0));
        let token = claims[0].token;
        let lease = PATIENCE * 60;
        assert_eq!(store.extend(vec![token], lease).await.unwrap(), [true]);
        kill();
        let until = store.next_due(vec![]).await.unwrap().unwrap();
        assert!(until > Timestamp::EPOCH.after(lease), "the extension was lost");
        let success = Finish::Resolved(Resolution::Succeeded);
        assert_eq!(store.finish(vec![(token, success)]).await.unwrap(), [Finished::Applied]);
        kill();
        let resolved = store.count(Filter::new().with_status(Status::Resolved)).await.unwrap();
        assert_eq!(resolved, n + 1, "an outcome was lost");

        assert_eq!(store.begin(letter(n).id).await.unwrap(), 0);
        kill();
        assert_eq!(store.begin(letter(n).id).await.unwrap(), 1, "a mark was lost");

        let keys = store.idempotency();
        let claim = keys.claim(consumer.clone(), key(n), PATIENCE).await.unwrap();
        kill();
        let IdempotencyClaim::New { token, .. } = claim else { panic!("{claim:?}") };
        let again = keys.claim(consumer.clone(), key(n), PATIENCE).await.unwrap();
        assert!(matches!(again, IdempotencyClaim::InFlight { .. }), "{again:?}");
        assert!(keys.complete(token, Duration::from_secs(600)).await.unwrap());
        kill();
        let again = keys.claim(consumer.clone(), key(n), PATIENCE).await.unwrap();
        assert!(matches!(again, IdempotencyClaim::Done { .. }), "{again:?}");

        let events = vec![event(n)];
        store.record_processed(events.clone()).await.unwrap();
        kill();
        assert_eq!(store.processed(1).await.unwrap(), events, "a row of the audit was lost");
    }
}

fn event(n: u64) -> ProcessedEvent {
    ProcessedEvent {
        event_id: n.to_string(),
        subject: "orders".to_owned(),
        consumer: CONSUMER.to_owned(),
        status: Processed::Success,
        attempt: 1,
        duration: Duration::from_millis(1),
        at: Timestamp::from_millis(1_000),
        error: None,
    }
}

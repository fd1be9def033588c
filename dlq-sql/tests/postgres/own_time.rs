//! The time is that of the database: what the suites prove by a clock of their own, here by its clock, whatever the
//! process thinks what time it is. Nothing here has to be fast.

use std::time::{Duration, Instant};

use dlq_core::store::{
    Actor, ClaimRequest, Claims as _, Cleanup, Finish, Letters as _, Maintenance as _, Sink as _,
};
use dlq_core::{Clock as _, Filter, RetryQueue as _, Status, SystemClock, Timestamp};
use dlq_sql::postgres::PostgresStore;
use dlq_testkit::fixtures::{CONSUMER, delayed_retry, letter};
use sqlx::Row as _;

use crate::fixture::{PATIENCE, Schema, available};

const LONG: Duration = Duration::from_secs(3_600);

async fn database_time(schema: &Schema) -> Timestamp {
    let mut conn = schema.connect().await;
    let sql = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS micros";
    let row = sqlx::query(sql).fetch_one(&mut conn).await.unwrap();
    Timestamp::from_nanos(row.get::<i64, _>("micros") * 1_000)
}

async fn claimed(store: &PostgresStore, lease: Duration) -> Vec<dlq_core::store::Claim> {
    store.claim(ClaimRequest::due([CONSUMER], 10, lease)).await.unwrap()
}

#[tokio::test]
async fn letters_are_dated_by_the_database() {
    if !available() {
        return;
    }
    let schema = Schema::fresh();
    let store = schema.store().await;
    let before = database_time(&schema).await;
    store.put(vec![letter(1)]).await.unwrap();
    // Written again by another way: it is looked at.
    store.put(vec![letter(1), letter(2)]).await.unwrap();
    let after = database_time(&schema).await;
    for n in [1, 2] {
        let state = store.get(letter(n).id).await.unwrap().unwrap().state;
        assert!(before <= state.created_at && state.created_at <= after, "{state:?}");
    }
    let old = Cleanup::older_than(LONG).unresolved();
    assert_eq!(store.cleanup(old, Actor::new("ana")).await.unwrap().deleted, 0);
    let any = Cleanup::older_than(Duration::ZERO).unresolved();
    assert_eq!(store.cleanup(any, Actor::new("ana")).await.unwrap().deleted, 2);
}

#[tokio::test]
async fn a_lease_ends_by_the_time_of_the_database() {
    if !available() {
        return;
    }
    let schema = Schema::fresh();
    let store = schema.store().await;
    let now = SystemClock.now();
    store.enqueue(delayed_retry(&letter(1), 1, now)).await.unwrap();
    store.enqueue(delayed_retry(&letter(2), 1, now.after(LONG))).await.unwrap();
    let first = claimed(&store, LONG).await;
    assert_eq!(first.len(), 1, "the other is not due");
    assert!(first[0].lease_until > database_time(&schema).await);
    assert!(claimed(&store, LONG).await.is_empty());
    let token = first[0].token;
    assert_eq!(store.extend(vec![token], Duration::from_millis(1)).await.unwrap(), [true]);
    let until = Instant::now() + PATIENCE;
    let second = loop {
        let again = claimed(&store, LONG).await;
        if let Some(again) = again.into_iter().next() {
            break again;
        }
        assert!(Instant::now() < until, "the lease has ended");
    };
    assert_eq!((second.token.letter, second.letter.crashes), (token.letter, 1));
    let released = Finish::Released { after: LONG };
    store.finish(vec![(second.token, released)]).await.unwrap();
    assert!(claimed(&store, LONG).await.is_empty());
    let next = store.next_due(vec![CONSUMER.to_owned()]).await.unwrap().unwrap();
    let now = database_time(&schema).await;
    assert!(next > now && next <= now.after(LONG), "{next}");
    assert_eq!(store.count(Filter::new().with_status(Status::Retrying)).await.unwrap(), 2);
}

//! What the store in Redis has to pass, against a real server: the conformance suites, and what is its own.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "store/failing.rs"]
mod failing;
#[path = "store/fixture.rs"]
mod fixture;
#[path = "store/in_doubt.rs"]
mod in_doubt;
#[path = "store/others.rs"]
mod others;
#[path = "store/own_time.rs"]
mod own_time;
#[path = "store/proxy.rs"]
mod proxy;

dlq_testkit::store_conformance!(crate::fixture::RedisFixture);
dlq_testkit::store_model!(crate::fixture::RedisFixture, 24);

/// Whatever the others do, the letters of each worker are as if it were alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_workers_agree_with_their_models() {
    if fixture::available() {
        dlq_testkit::store::workers::agree_with_their_models::<fixture::RedisFixture>(150).await;
    }
}

//! Tests of the store in Redis against a real server: the conformance suites, and tests of its own.

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
#[path = "store/replicas.rs"]
mod replicas;

use dlq_testkit::store::StoreFixture as _;
use dlq_testkit::store::workers::agree_with_their_models;

dlq_testkit::store_conformance!(crate::fixture::RedisFixture);
dlq_testkit::store_model!(crate::fixture::RedisFixture, 24);

/// Whatever the others do, the letters of each worker are as if it were alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_workers_agree_with_their_models() {
    if fixture::available() {
        let place = fixture::RedisFixture::fresh("eight_workers_agree_with_their_models").await;
        agree_with_their_models(|| place.open(false), 150).await;
    }
}

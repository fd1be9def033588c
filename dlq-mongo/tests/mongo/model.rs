//! Eight workers at once, against a model that is kept in memory.

use dlq_testkit::store::workers::agree_with_their_models;

use crate::fixture::{TestDatabase, available};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn eight_workers_agree_with_their_models() {
    if !available() {
        return;
    }
    let place = TestDatabase::fresh();
    let open = async || place.builder().max_connections(2).open().await.unwrap();
    agree_with_their_models(open, 200).await;
}

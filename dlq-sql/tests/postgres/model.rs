//! Eight workers at once, against a model that is kept in memory; and the counts that the database keeps.

use dlq_testkit::store::workers::agree_with_their_models;

use crate::fixture::{Schema, available};
use crate::racing::counts_are_right;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn eight_workers_agree_with_their_models() {
    if !available() {
        return;
    }
    let schema = Schema::fresh();
    let open = async || schema.builder().max_connections(2).open().await.unwrap();
    agree_with_their_models(open, 300).await;
    counts_are_right(&schema).await;
}

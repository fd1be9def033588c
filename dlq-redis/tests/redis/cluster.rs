//! Refusals that only a cluster has.

use dlq_redis::{RedisClient, RedisErrorKind};

use crate::fixture::{available, billing, cluster_urls};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_alone_and_a_database_number_are_refused() {
    if !available() {
        return;
    }
    let urls = cluster_urls();
    let error = RedisClient::open(&urls[0]).await.expect_err("one node");
    assert_eq!(error.kind(), RedisErrorKind::InvalidConfig);
    assert!(error.to_string().contains("it is a node of a cluster"), "{error}");
    let url = format!("{}/3", urls[0].trim_end_matches('/'));
    let error = RedisClient::cluster([url]).await.expect_err("a database");
    assert_eq!(
        error.to_string(),
        "a cluster has no database 3; leave it out of the URL and use key prefixes"
    );
    let client = RedisClient::cluster(&urls).await.unwrap();
    let transport = billing().dead_letter_stream("elsewhere");
    let error = transport.open(&client).await.expect_err("another slot");
    assert!(!error.is_transient(), "{error}");
}

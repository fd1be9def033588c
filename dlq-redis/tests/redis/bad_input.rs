//! Wrong settings and servers: a clear error, at the start where it can be known.

use dlq_redis::{RedisClient, RedisTransport};

use crate::fixture::{Server, available, billing};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_of_another_type_is_named_at_the_start() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    for key in ["orders", "{orders}:dlq", "{orders}:retry:billing:due", "{orders}:later:billing"] {
        server.run(&format!("SET {key} text")).await;
        let error = billing().open(&server.client).await.expect_err(key);
        assert!(!error.is_transient(), "{error}");
        assert!(
            error.to_string().contains(&format!("key `{key}` holds a value of type string")),
            "{error}"
        );
        server.run(&format!("DEL {key}")).await;
    }
    for (transport, found) in [
        (RedisTransport::new("").name("billing"), "is empty"),
        (RedisTransport::new("a}b").name("billing"), "brace outside"),
        (RedisTransport::new("orders"), "has no name"),
        (billing().dead_letter_stream("elsewhere"), "with the same hash tag"),
        (billing().dead_letter_stream("orders"), "has to be another key"),
    ] {
        let error = transport.open(&server.client).await.expect_err(found);
        assert!(!error.is_transient(), "{error}");
        assert!(error.to_string().contains(found), "{error}");
    }
    billing().open(&server.client).await.expect("nothing is left of it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_is_forbidden_is_named_at_the_start() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let address = server.url().trim_start_matches("redis://").trim_end_matches('/').to_owned();
    for command in ["xclaim", "xautoclaim", "xadd", "hset", "zadd", "xgroup", "evalsha"] {
        server.run(&format!("ACL SETUSER narrow reset on >pw ~* +@all -{command}")).await;
        let client = RedisClient::open(&format!("redis://narrow:pw@{address}")).await.unwrap();
        let error = billing().open(&client).await.expect_err(command);
        assert!(!error.is_transient(), "{error}");
        let text = error.to_string().to_lowercase();
        assert!(text.contains(&format!("`{command}")), "{error}");
        assert!(text.contains("acl setuser"), "{error}");
    }
    server.run("ACL SETUSER narrow reset on >pw ~other* +@all").await;
    let client = RedisClient::open(&format!("redis://narrow:pw@{address}")).await.unwrap();
    let error = billing().open(&client).await.expect_err("other keys");
    assert!(!error.is_transient(), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_and_a_database_number_are_told() {
    if !available() {
        return;
    }
    let (master, replica) = (Server::start().await, Server::start().await);
    let port = master.url().trim_end_matches('/').rsplit(':').next().unwrap().to_owned();
    replica.run(&format!("REPLICAOF 127.0.0.1 {port}")).await;
    let error = RedisClient::open(&replica.url()).await.expect_err("a replica");
    assert!(error.to_string().contains("it is a replica"), "{error}");
    let url = format!("{}/3", master.url().trim_end_matches('/'));
    let client = RedisClient::open(&url).await.unwrap();
    billing().open(&client).await.expect("a database of its own is fine on a single server");
    assert_eq!(master.int("EXISTS orders").await, 0);
}

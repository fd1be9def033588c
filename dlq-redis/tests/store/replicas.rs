//! What is confirmed with `Durability::Replicas` is on a replica.

use std::time::Duration;

use dlq_core::StoreErrorKind;
use dlq_core::store::{Letters as _, Receipt, Sink as _};
use dlq_redis::redis;
use dlq_redis::store::{Durability, RedisStore};
use dlq_services::{RedisSentinel, Running};
use dlq_testkit::fixtures::{died_again, letter};
use tokio::time::{sleep, timeout};

use crate::fixture::{PATIENCE, available, client, prefix};
use crate::proxy::{Proxy, Trouble};

/// A store at a master with one replica, which nobody fails over.
async fn opened(url: &str) -> RedisStore {
    let client = client(url).await;
    let builder = RedisStore::builder(&client).prefix(prefix()).durability(Durability::Replicas(1));
    builder.replica_timeout(Duration::from_millis(200)).open().await.unwrap()
}

/// Number of letters that the server has.
async fn letters_at(server: &Running) -> usize {
    let client = redis::Client::open(server.url()).unwrap();
    let mut raw = client.get_multiplexed_async_connection().await.unwrap();
    let keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*:l:*").query_async(&mut raw).await.unwrap();
    keys.len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_a_letter_that_is_put_again_is_not_confirmed_before_a_replica_has_it() {
    if !available() {
        return;
    }
    let mut servers = tokio::task::block_in_place(|| RedisSentinel::start().unwrap());
    let store = opened(servers.nodes()[0].url()).await;
    assert_eq!(store.put(vec![letter(1)]).await.unwrap(), [Receipt::Stored]);
    servers.pause(1).unwrap();
    for _ in 0..3 {
        let error = store.put(vec![letter(2)]).await.expect_err("no replica has it");
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
    }
    servers.resume(1).unwrap();
    let again = async {
        loop {
            match store.put(vec![letter(2)]).await {
                Ok(receipts) => return receipts,
                Err(error) => assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}"),
            }
            sleep(Duration::from_millis(50)).await;
        }
    };
    assert_eq!(timeout(PATIENCE, again).await.expect("in time"), [Receipt::Unchanged]);
    assert_eq!(letters_at(&servers.nodes()[1]).await, 2);
    assert!(store.get(letter(2).id).await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_a_connection_that_was_replaced_confirms_nothing_of_the_one_before() {
    if !available() {
        return;
    }
    let mut servers = tokio::task::block_in_place(|| RedisSentinel::start().unwrap());
    let proxy = Proxy::before(servers.nodes()[0].url()).await;
    let store = opened(&proxy.url).await;
    store.put(vec![letter(1)]).await.unwrap();
    servers.pause(1).unwrap();
    // The connection breaks before the write is answered, and after it. The client goes on with another.
    let mut letter = letter(1);
    for trouble in [Trouble::Unanswered, Trouble::Severed] {
        proxy.trouble(trouble);
        letter = died_again(&letter);
        let error = store.put(vec![letter.clone()]).await.expect_err("no replica has it");
        assert!(error.to_string().contains("0 of 1 replicas"), "{trouble:?}: {error}");
        assert!(!proxy.is_troubling(), "{trouble:?} has come");
    }
    servers.resume(1).unwrap();
}

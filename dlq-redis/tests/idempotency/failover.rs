//! A replica that becomes the master.

use dlq_core::idempotency::{Idempotency as _, Release};
use dlq_redis::{IdempotencyConfig, RedisConfig, RedisIdempotency};
use dlq_services::{RedisSentinel, Sentinels, Service, or_skip, wire};
use std::time::Duration;

use crate::fixture::{HOUR, PATIENCE, claim, is_done, new, until_claimed};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_go_on_at_the_new_master() {
    let Ok(mut sentinels) = or_skip(Service::Redis, RedisSentinel::start()) else { return };
    let config = RedisConfig::new().response_timeout(Duration::from_secs(2));
    let client = config.sentinel(sentinels.urls(), Sentinels::MASTER_NAME).await.unwrap();
    let keys = RedisIdempotency::open(&client, IdempotencyConfig::new()).await.unwrap();
    let (done, ..) = new(claim(&keys, "done").await);
    assert!(keys.complete(done, HOUR).await.unwrap());
    let (held, ..) = new(claim(&keys, "held").await);
    // Replication is asynchronous; what this test is about is what had arrived.
    let words = ["WAIT", "1", "60000"];
    let master = sentinels.master().unwrap();
    let waited = wire::redis::command(sentinels.nodes()[master].url(), &words, PATIENCE).unwrap();
    assert_eq!(waited.as_deref(), Some("1"));
    let identity = keys.store_identity();

    sentinels.kill(master).unwrap();
    let next = sentinels.await_failover(master).unwrap();
    assert_ne!(next, master);
    is_done(&until_claimed(&keys, "done").await);
    assert!(keys.release(held.clone(), Release::Failed).await.unwrap(), "its owner still owns it");
    let (token, attempts, _) = new(claim(&keys, "held").await);
    assert_eq!(attempts, 1);
    assert!(token.fence > held.fence);
    let again = RedisIdempotency::open(&client, IdempotencyConfig::new()).await.unwrap();
    assert_eq!(again.store_identity(), identity);
}

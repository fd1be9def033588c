//! Keys that the server forgets, by itself or by somebody's hand.

use std::time::Duration;

use dlq_core::idempotency::{Idempotency as _, KEEP_FREE, Release};
use dlq_redis::{IdempotencyConfig, RedisIdempotency};

use crate::fixture::{HOUR, Version, claim, client, command, fresh_prefix, new};

/// A minute, for which the server keeps a key longer than it has to.
const SPARE: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_forgets_every_key_in_time_and_none_before() {
    if Version::Usual.program().is_none() {
        return;
    }
    let (url, prefix) = (Version::Usual.url(), fresh_prefix());
    let config = IdempotencyConfig::new().prefix(&prefix);
    let keys = RedisIdempotency::open(&client(url).await, config).await.unwrap();
    assert!(keys.purges_itself());
    let left = || {
        let name = format!("{prefix}:idem:billing:a");
        let left = command(url, &["PTTL", &name]).unwrap().parse().unwrap();
        Duration::from_millis(left)
    };
    // What passes while the test asks is less than a minute, as it is for whoever keeps a key.
    let is = |what: &str, kept: Duration| {
        let left = left();
        assert!(left > kept && left <= kept + SPARE + Duration::from_millis(1), "{what}: {left:?}");
    };
    let (token, ..) = new(claim(&keys, "a").await);
    is("held", HOUR + KEEP_FREE);
    assert!(keys.extend(token.clone(), 2 * HOUR).await.unwrap());
    is("extended", 2 * HOUR + KEEP_FREE);
    assert!(keys.release(token, Release::Failed).await.unwrap());
    is("free", KEEP_FREE);
    let (token, ..) = new(claim(&keys, "a").await);
    assert!(keys.complete(token, 3 * HOUR).await.unwrap());
    is("done", 3 * HOUR);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_longest_times_are_taken() {
    if Version::Usual.program().is_none() {
        return;
    }
    let config = IdempotencyConfig::new().prefix(fresh_prefix());
    let client = client(Version::Usual.url()).await;
    let keys = RedisIdempotency::open(&client, config).await.unwrap();
    let claimed = keys.claim("billing".into(), "a".into(), Duration::MAX).await.unwrap();
    let (token, ..) = new(claimed);
    assert!(keys.extend(token.clone(), Duration::MAX).await.unwrap());
    assert!(keys.complete(token, Duration::MAX).await.unwrap());
    crate::fixture::is_done(&claim(&keys, "a").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_of_a_key_that_was_forgotten_are_worth_nothing() {
    for version in Version::ALL {
        if version.program().is_none() {
            continue;
        }
        let (url, prefix) = (version.url(), fresh_prefix());
        let config = IdempotencyConfig::new().prefix(&prefix);
        let keys = RedisIdempotency::open(&client(url).await, config).await.unwrap();
        let (former, ..) = new(claim(&keys, "a").await);
        command(url, &["DEL", &format!("{prefix}:idem:billing:a")]);
        assert!(!keys.complete(former.clone(), HOUR).await.unwrap(), "nothing is there");
        let (token, attempts, crashes) = new(claim(&keys, "a").await);
        assert_eq!((attempts, crashes), (0, 0));
        assert!(token.fence > former.fence, "fences grow with time");
        assert!(!keys.extend(former.clone(), HOUR).await.unwrap());
        assert!(!keys.release(former, Release::Failed).await.unwrap());
        assert!(keys.complete(token, HOUR).await.unwrap());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purge_leaves_keys_of_others() {
    if Version::Usual.program().is_none() {
        return;
    }
    // One that begins with the other, and one that would match it were it a pattern.
    let (url, prefix) = (Version::Usual.url(), fresh_prefix());
    let prefixes = [format!("{prefix}*"), prefix.clone(), format!("{prefix}xyz")];
    let mut all = Vec::new();
    for prefix in &prefixes {
        let config = IdempotencyConfig::new().prefix(prefix);
        let keys = RedisIdempotency::open(&client(url).await, config).await.unwrap();
        let (token, ..) = new(claim(&keys, "a").await);
        assert!(keys.complete(token, Duration::ZERO).await.unwrap());
        all.push(keys);
    }
    tokio::time::sleep(Duration::from_millis(2)).await;
    for keys in &all {
        assert_eq!(keys.purge(100).await.unwrap(), 1);
        assert_eq!(keys.purge(100).await.unwrap(), 0);
    }
}

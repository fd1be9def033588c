//! A server that is killed, or that answers nothing for a while.

use dlq_core::StoreErrorKind;
use dlq_core::idempotency::{Idempotency as _, IdempotencyClaim, Release};
use dlq_redis::{IdempotencyConfig, RedisConfig, RedisIdempotency};
use std::time::Duration;

use crate::fixture::{HOUR, Version, claim, is_done, new, open, own, try_claim, until_claimed};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_claimed_and_done_survives_a_killed_server() {
    for version in Version::ALL {
        let Some(mut server) = own(version) else { continue };
        let keys = open(server.url()).await;
        let (done, ..) = new(claim(&keys, "done").await);
        assert!(keys.complete(done.clone(), HOUR).await.unwrap());
        let (held, ..) = new(claim(&keys, "held").await);
        let (free, ..) = new(claim(&keys, "free").await);
        assert!(keys.release(free, Release::Failed).await.unwrap());
        server.kill().unwrap();
        let error = try_claim(&keys, "held").await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
        server.restart().unwrap();
        assert_eq!(server.starts(), 2);
        // A server that was restarted knows no script.
        is_done(&until_claimed(&keys, "done").await);
        assert!(keys.complete(done, HOUR).await.unwrap(), "saying it again is fine");
        let found = claim(&keys, "held").await;
        assert!(matches!(found, IdempotencyClaim::InFlight { .. }), "{found:?}");
        assert!(keys.complete(held.clone(), HOUR).await.unwrap(), "its owner still owns it");
        let (token, attempts, crashes) = new(claim(&keys, "free").await);
        assert_eq!((attempts, crashes), (1, 0));
        assert!(token.fence > held.fence);
        // Another process, later.
        is_done(&claim(&open(server.url()).await, "held").await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_answers_nothing_is_an_error_and_taken_up_again() {
    let Some(mut server) = own(Version::Usual) else { return };
    let config = RedisConfig::new().response_timeout(Duration::from_millis(300));
    let client = config.open(server.url()).await.unwrap();
    let keys = RedisIdempotency::open(&client, IdempotencyConfig::new()).await.unwrap();
    let (token, ..) = new(until_claimed(&keys, "a").await);
    server.pause().unwrap();
    let error = keys.complete(token.clone(), HOUR).await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    assert!(error.to_string().starts_with("cannot complete a key: "), "{error}");
    server.resume().unwrap();
    // The call that was not answered was carried out all the same, or not.
    let completed =
        async { while !matches!(keys.complete(token.clone(), HOUR).await, Ok(true)) {} };
    tokio::time::timeout(crate::fixture::PATIENCE, completed).await.expect("it is completed");
    is_done(&until_claimed(&keys, "a").await);
}

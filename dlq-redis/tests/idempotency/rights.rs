//! A user who may do what is needed and nothing else.

use std::time::Duration;

use dlq_core::StoreErrorKind;
use dlq_core::idempotency::{Idempotency as _, KeyState, Release};
use dlq_redis::{IdempotencyConfig, RedisIdempotency};
use tokio::time::sleep;

use crate::fixture::{HOUR, Version, claim, command, is_done, new, own, patient, try_claim};

/// As `docs/idempotency.md` has it.
const RIGHTS: &str = "+eval +evalsha +time +hmget +hset +hdel +pexpireat +get +set +del +scan";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn few_rights_are_enough_and_a_missing_one_is_said() {
    assert!(include_str!("../../docs/idempotency.md").contains(RIGHTS), "the docs say so");
    for version in Version::ALL {
        let Some(server) = own(version) else { continue };
        let set = |rights: &str| {
            let mut words = vec!["ACL", "SETUSER", "app", "reset", "on", ">pw", "~dlq:idem*"];
            words.extend(rights.split(' '));
            command(server.url(), &words);
        };
        set(RIGHTS);
        let url = server.url().replace("://", "://app:pw@");
        let client = patient().open(&url).await.unwrap();
        let keys = RedisIdempotency::open(&client, IdempotencyConfig::new()).await.unwrap();
        let (token, ..) = new(claim(&keys, "a").await);
        assert!(keys.release(token, Release::Failed).await.unwrap());
        let (token, ..) = new(claim(&keys, "a").await);
        assert!(keys.extend(token.clone(), HOUR).await.unwrap());
        assert!(keys.complete(token, Duration::ZERO).await.unwrap());
        sleep(Duration::from_millis(2)).await;
        let state = keys.look_up("billing".into(), "a".into()).await.unwrap();
        assert_eq!(state, KeyState::Free, "kept for no time");
        assert_eq!(keys.purge(10).await.unwrap(), 1);
        let findings = keys.check().await.unwrap();
        assert_eq!(findings.len(), 1, "what it may not ask: {findings:?}");
        assert_eq!(findings[0].setting, "INFO");
        let (done, ..) = new(claim(&keys, "done").await);
        assert!(keys.complete(done, HOUR).await.unwrap());

        // Under another prefix it may not write.
        let elsewhere = IdempotencyConfig::new().prefix("other");
        let error = RedisIdempotency::open(&client, elsewhere).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::InvalidConfig, "{error}");
        // A right that is taken away holds messages up, and none is lost.
        set(&RIGHTS.replace(" +hset", ""));
        let error = try_claim(&keys, "b").await.unwrap_err();
        assert!(error.is_transient(), "{error}");
        // Some versions name it.
        let texts = ["`hset`", "a command that a script needs"].map(|what| {
            format!("cannot claim a key: the user may not run {what}; grant it with `ACL SETUSER`")
        });
        assert!(texts.contains(&error.to_string()), "{error}");
        set(RIGHTS);
        new(claim(&keys, "b").await);
        is_done(&claim(&keys, "done").await);
    }
}

//! Values that others have left under our names.

use dlq_core::StoreErrorKind;
use dlq_core::idempotency::{Idempotency as _, KeyState, Release};
use dlq_redis::{IdempotencyConfig, RedisIdempotency};

use crate::fixture::{HOUR, Version, claim, client, command, fresh_prefix, new, try_claim};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_ours_is_named_and_left_alone() {
    for version in Version::ALL {
        if version.program().is_none() {
            continue;
        }
        let (url, prefix) = (version.url(), fresh_prefix());
        let config = IdempotencyConfig::new().prefix(&prefix);
        let keys = RedisIdempotency::open(&client(url).await, config).await.unwrap();
        let name = format!("{prefix}:idem:billing:a");
        let (token, ..) = new(claim(&keys, "a").await);
        for foreign in [
            &["SET", &name, "text"][..],
            &["RPUSH", &name, "an item"],
            &["HSET", &name, "p", "x", "f", "1", "s", "1"],
            &["HSET", &name, "p", "h", "f", "many", "s", "1", "u", "1"],
            &["HSET", &name, "p", "h", "f", "1", "s", "1", "u", "never"],
            &["HSET", &name, "p", "f", "f", "99999999999999999999", "s", "1", "u", "1"],
            &["HSET", &name, "p", "d"],
        ] {
            command(url, &["DEL", &name]);
            command(url, foreign);
            let before = command(url, &["DUMP", &name]);
            let error = try_claim(&keys, "a").await.unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{foreign:?}");
            let expected =
                format!("cannot claim a key: the key `{name}` of the server is not one that was");
            assert!(error.to_string().starts_with(&expected), "{error}");
            if !foreign.contains(&"99999999999999999999") {
                assert_eq!(command(url, &["DUMP", &name]), before, "{foreign:?}");
                assert!(keys.look_up("billing".into(), "a".into()).await.is_err());
                assert!(keys.complete(token.clone(), HOUR).await.is_err());
                assert!(keys.release(token.clone(), Release::Failed).await.is_err());
                assert_eq!(keys.purge(10).await.unwrap(), 0);
                assert_eq!(command(url, &["EXISTS", &name]).as_deref(), Some("1"));
            }
            // Nobody else is concerned.
            let (other, ..) = new(claim(&keys, "b").await);
            assert!(keys.release(other, Release::Unused).await.unwrap());
        }
        command(url, &["DEL", &name]);
        let (later, ..) = new(claim(&keys, "a").await);
        assert!(later.fence > token.fence);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_are_exact_to_the_last() {
    for version in Version::ALL {
        if version.program().is_none() {
            continue;
        }
        let (url, prefix) = (version.url(), fresh_prefix());
        let config = IdempotencyConfig::new().prefix(&prefix);
        let keys = RedisIdempotency::open(&client(url).await, config).await.unwrap();
        let name = format!("{prefix}:idem:billing:a");
        // Above 2^53 a number of Lua's has no last digit.
        for fence in [9_007_199_254_740_993, 9_999_999_999_999_999, u64::MAX - 1] {
            let text = fence.to_string();
            command(url, &["HSET", &name, "p", "f", "f", &text, "s", "1", "u", "1"]);
            let (token, ..) = new(claim(&keys, "a").await);
            assert_eq!(token.fence, fence + 1);
            let mut former = token.clone();
            former.fence = fence;
            assert!(!keys.complete(former, HOUR).await.unwrap());
            assert!(keys.release(token, Release::Unused).await.unwrap());
            assert_eq!(keys.look_up("billing".into(), "a".into()).await.unwrap(), KeyState::Free);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prefix_that_cannot_be_used_is_refused() {
    if Version::Usual.program().is_none() {
        return;
    }
    let (url, taken) = (Version::Usual.url(), fresh_prefix());
    let client = client(url).await;
    command(url, &["RPUSH", &format!("{taken}:idem#id"), "an item"]);
    for (prefix, found) in [("", "the prefix is ``"), ("a b", "`a b`"), (&taken, "another type")] {
        let config = IdempotencyConfig::new().prefix(prefix);
        let error = RedisIdempotency::open(&client, config).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::InvalidConfig);
        let text = error.to_string();
        assert!(
            text.starts_with("cannot open the idempotency keys: ") && text.contains(found),
            "{text}"
        );
    }
}

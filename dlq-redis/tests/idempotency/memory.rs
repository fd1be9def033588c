//! A server whose memory is full, and what `check` says of one that evicts.

use dlq_core::idempotency::{Idempotency as _, KeyState, Release};
use dlq_core::{Finding, Severity, StoreErrorKind};

use crate::fixture::{HOUR, Version, claim, command, is_done, new, open, own, try_claim};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_claimed_can_be_settled_while_memory_is_full() {
    for version in Version::ALL {
        let Some(server) = own(version) else { continue };
        let url = server.url();
        let keys = open(url).await;
        let (done, ..) = new(claim(&keys, "done").await);
        let (free, ..) = new(claim(&keys, "free").await);
        let (held, ..) = new(claim(&keys, "held").await);
        command(url, &["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
        command(url, &["CONFIG", "SET", "maxmemory", "1"]);

        let error = try_claim(&keys, "new").await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable);
        assert!(error.to_string().contains("memory"), "{error}");
        assert_eq!(command(url, &["EXISTS", "dlq:idem:billing:new"]).as_deref(), Some("0"));
        assert!(keys.extend(held.clone(), 2 * HOUR).await.unwrap());
        assert!(keys.complete(done, HOUR).await.unwrap());
        assert!(keys.release(free, Release::Failed).await.unwrap());
        is_done(&claim(&keys, "done").await);
        let state = keys.look_up("billing".into(), "held".into()).await.unwrap();
        assert!(matches!(state, KeyState::InFlight { remaining } if remaining > HOUR), "{state:?}");
        // A claim that would change a key that is there is refused as well, and changes nothing.
        assert!(try_claim(&keys, "free").await.unwrap_err().is_transient());
        // Another process can still settle.
        let other = open(url).await;
        assert_eq!(other.store_identity(), keys.store_identity());
        assert!(other.complete(held, HOUR).await.unwrap());

        command(url, &["CONFIG", "SET", "maxmemory", "0"]);
        let (_, attempts, crashes) = new(claim(&keys, "free").await);
        assert_eq!((attempts, crashes), (1, 0));
        new(claim(&keys, "new").await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_evicts_or_forgets_is_found() {
    let Some(server) = own(Version::Usual) else { return };
    let keys = open(server.url()).await;
    let set = |name: &str, value: &str| command(server.url(), &["CONFIG", "SET", name, value]);
    set("appendfsync", "always");
    assert_eq!(keys.check().await.unwrap(), []);
    set("maxmemory", "100mb");
    assert_eq!(keys.check().await.unwrap(), [], "it evicts nothing");
    set("maxmemory-policy", "volatile-lru");
    set("appendfsync", "everysec");
    let port = server.url().rsplit(':').next().unwrap();
    let is = |finding: &Finding, severity: Severity, setting: &str, found: &str| {
        assert_eq!((finding.setting.as_str(), finding.found.as_str()), (setting, found));
        assert_eq!(
            (finding.severity, &*finding.subject),
            (severity, &*format!("redis server on port {port}"))
        );
    };
    let [evicting, late] = &keys.check().await.unwrap()[..] else { panic!("two findings") };
    is(evicting, Severity::Warning, "maxmemory-policy", "volatile-lru");
    is(late, Severity::Note, "appendfsync", "everysec");
    set("appendonly", "no");
    let [evicting, forgetting] = &keys.check().await.unwrap()[..] else { panic!("two findings") };
    is(evicting, Severity::Warning, "maxmemory-policy", "volatile-lru");
    is(forgetting, Severity::Warning, "appendonly", "no");
}

//! Calls whose answer is lost: they are carried out once, and say so.

use std::time::Duration;

use dlq_core::store::{
    Actor, ArchiveFilter, AuditRequest, ClaimRequest, Claims as _, Finish, Finished, ItemOutcome,
    Letters as _, Maintenance as _, Mark, OperationSpec, Operations as _, ProcessedEvent, Receipt,
    Selection, Sink as _,
};
use dlq_core::{CrashMarks as _, Filter, Resolution, RetryQueue as _, Status, Timestamp};
use dlq_redis::RedisConfig;
use dlq_redis::store::RedisStore;
use dlq_testkit::fixtures::{delayed_retry, letter};

use crate::fixture::{PATIENCE, available, prefix, url};
use crate::proxy::{Proxy, Trouble};

/// Fate of a call, and the number of times that the client makes it again by itself.
const ALL: [(Trouble, u32); 4] =
    [(Trouble::Lost, 0), (Trouble::Unanswered, 0), (Trouble::Lost, 1), (Trouble::Unanswered, 1)];

async fn through(proxy: &Proxy, retries: u32) -> RedisStore {
    // Long: an answer is lost with its connection here, and never because the machine is slow.
    let config = RedisConfig::new().response_timeout(PATIENCE).retries(retries);
    let client = config.open(&proxy.url).await.unwrap();
    RedisStore::builder(&client).prefix(prefix()).open().await.unwrap()
}

fn by() -> Actor {
    Actor::new("ana")
}

fn all() -> Selection {
    Selection::matching(Filter::new().with_consumer(letter(0).consumer)).unwrap()
}

/// G6: a replay is not started twice, over the next letters, because nobody heard that it had been started.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_an_operation_is_started_once() {
    if !available() {
        return;
    }
    for (trouble, retries) in ALL {
        let proxy = Proxy::before(url()).await;
        let store = through(&proxy, retries).await;
        store.put((0..30).map(letter).collect()).await.unwrap();
        proxy.trouble(trouble);
        let spec = OperationSpec::replay(Filter::new()).limit(10);
        let started = store.start(spec, by()).await.unwrap();
        assert!(!proxy.is_troubling(), "{trouble:?}");
        let operations = store.operations(10).await.unwrap();
        assert_eq!(operations, std::slice::from_ref(&started), "{trouble:?}");
        assert_eq!(started.progress.with_outcome(ItemOutcome::Queued), 10, "{trouble:?}");
        assert_eq!(store.count(Filter::new()).await.unwrap(), 30);
        assert_eq!(store.audit(AuditRequest::latest(10)).await.unwrap().len(), 1, "{trouble:?}");
    }
}

/// G3: a claim whose answer is lost is told all the same; nobody waits for the end of its lease, and it is no crash.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g3_a_claim_is_not_lost_with_its_answer() {
    if !available() {
        return;
    }
    for (trouble, retries) in ALL {
        let proxy = Proxy::before(url()).await;
        let store = through(&proxy, retries).await;
        for n in 0..5 {
            store.enqueue(delayed_retry(&letter(n), 1, Timestamp::EPOCH)).await.unwrap();
        }
        proxy.trouble(trouble);
        let request = ClaimRequest::due([letter(0).consumer], 10, Duration::from_secs(600));
        let claims = store.claim(request.clone()).await.unwrap();
        assert!(!proxy.is_troubling(), "{trouble:?}");
        assert_eq!(claims.len(), 5, "{trouble:?}");
        assert!(store.claim(request).await.unwrap().is_empty(), "{trouble:?}");
        for claim in claims {
            assert_eq!(claim.letter.crashes, 0, "{trouble:?}");
            let finish = Finish::Resolved(Resolution::Succeeded);
            let finished = store.finish(vec![(claim.token, finish)]).await.unwrap();
            assert_eq!(finished, [Finished::Applied], "{trouble:?}");
        }
    }
}

/// Actions of an operator are told to them and to the audit as they were.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_done_is_told() {
    if !available() {
        return;
    }
    for (trouble, retries) in ALL {
        let proxy = Proxy::before(url()).await;
        let store = through(&proxy, retries).await;
        store.put((0..5).map(letter).collect()).await.unwrap();
        proxy.trouble(trouble);
        assert_eq!(store.mark(all(), Mark::Resolved, by()).await.unwrap().changed, 5);
        proxy.trouble(trouble);
        assert_eq!(store.delete(all(), by()).await.unwrap().changed, 5, "{trouble:?}");
        assert_eq!(store.count(Filter::new()).await.unwrap(), 0);
        proxy.trouble(trouble);
        let restored = store.undelete(ArchiveFilter::new(), by()).await.unwrap();
        assert_eq!((restored.changed, restored.skipped), (5, 0), "{trouble:?}");
        assert!(!proxy.is_troubling(), "{trouble:?}");
        let audit = store.audit(AuditRequest::latest(10)).await.unwrap();
        let done: Vec<_> =
            audit.iter().map(|entry| (entry.action.as_str(), entry.affected)).collect();
        let all = [("undelete", 5), ("delete", 5), ("resolve", 5)];
        assert_eq!(done, all, "{trouble:?}");
        let back = store.count(Filter::new().with_status(Status::Resolved)).await.unwrap();
        assert_eq!(back, 5);
    }
}

/// Calls after which messages are acknowledged may be made again, which changes nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_consumers_do_may_be_done_again() {
    if !available() {
        return;
    }
    for (trouble, retries) in ALL {
        let proxy = Proxy::before(url()).await;
        let store = through(&proxy, retries).await;
        // One that is there already takes the way of a verb.
        store.put(vec![letter(0)]).await.unwrap();
        proxy.trouble(trouble);
        let put = vec![letter(0), dlq_testkit::fixtures::died_again(&letter(0))];
        if store.put(put.clone()).await.is_err() {
            assert_eq!(retries, 0, "{trouble:?}");
            store.put(put).await.unwrap();
        }
        assert!(!proxy.is_troubling(), "{trouble:?}");
        assert_eq!(store.count(Filter::new()).await.unwrap(), 1, "{trouble:?}");
        let event = ProcessedEvent::dead_lettered(&letter(0));
        proxy.trouble(trouble);
        let recorded = store.record_processed(vec![event.clone()]).await;
        assert_eq!(recorded.is_ok(), retries > 0, "{trouble:?}");
        assert!(!proxy.is_troubling(), "{trouble:?}");
        let rows = store.processed(10).await.unwrap().len();
        assert!(rows <= 1, "{trouble:?}: a row twice");
        assert_eq!(store.begin(letter(0).id).await.unwrap(), 0, "{trouble:?}");
        assert_eq!(store.put(vec![letter(1)]).await.unwrap(), [Receipt::Stored]);
    }
}

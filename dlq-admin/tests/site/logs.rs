//! Logs of brokers beside stores.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::body::Body;
use dlq_admin::{Admin, BrokerLog, LogFuture, Role, Snapshot, mask::Mask};
use dlq_core::store::Sink as _;
use dlq_core::{DeadLetters, StoreError, StoreErrorKind};
use dlq_letters::memory::MemoryStore;
use dlq_testkit::fixtures::{letter, varied};

use crate::access::ROUTES;
use crate::common::{Site, tokens};

/// Routes that serve logs as well as stores.
const OF_LOGS: &[(&str, &str)] = &[
    ("GET", "/api/v1/default/letters"),
    ("GET", "/api/v1/default/letters/{id}"),
    ("GET", "/api/v1/default/letters/{id}/payload"),
    ("GET", "/api/v1/default/count"),
    ("GET", "/api/v1/default/groups"),
    ("GET", "/api/v1/default/hours"),
    ("GET", "/api/v1/default/stats"),
    ("GET", "/s/default"),
    ("GET", "/s/default/groups"),
    ("GET", "/s/default/group"),
    ("GET", "/s/default/letters"),
    ("GET", "/s/default/letters/{id}"),
    ("GET", "/s/default/letters/{id}/attempts/{n}"),
    ("GET", "/s/default/letters/{id}/payload"),
];

/// A log of what is put into a store in memory, and how often it was read.
#[derive(Clone, Debug, Default)]
struct Fake {
    letters: MemoryStore,
    reads: Arc<AtomicU32>,
    takes: Duration,
}

impl BrokerLog for Fake {
    fn read(&self) -> LogFuture<'_, Snapshot> {
        Box::pin(async {
            self.reads.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(self.takes).await;
            let copy = MemoryStore::new();
            let all = DeadLetters::new(self.letters.clone());
            let page = all.list(Default::default(), dlq_core::PageRequest::new()).await?;
            for one in page.letters {
                copy.put(vec![all.get(one.id).await?]).await?;
            }
            Ok(Snapshot::new(copy))
        })
    }
}

impl Fake {
    async fn of(letters: Vec<dlq_core::DeadLetter>) -> Self {
        let fake = Self::default();
        fake.letters.put(letters).await.unwrap();
        fake
    }

    fn reads(&self) -> u32 {
        self.reads.load(Ordering::Relaxed)
    }

    /// A console of this log alone.
    async fn site(&self) -> Site {
        let router = Admin::of_log("default", self.clone()).access(tokens()).router();
        Site::of(Vec::new()).await.router(router)
    }
}

#[tokio::test]
async fn what_would_change_a_log_is_refused_and_what_reads_it_is_not() {
    let fake = Fake::of(vec![letter(0)]).await;
    let site = fake.site().await.bearer(Role::Admin);
    for (method, at, _) in ROUTES.iter().filter(|(_, at, _)| at.contains("default")) {
        let path = at.replace("{id}", &letter(0).id.to_string()).replace("{n}", "0");
        let reply = site.send(site.request(method, &path).body(Body::empty()).unwrap()).await;
        let serves = OF_LOGS.contains(&(*method, *at));
        assert_eq!(reply.status == 409, !serves, "{method} {at}: {}", reply.body);
        assert_eq!(reply.body.contains("is a log of a broker"), !serves, "{}", reply.body);
    }
    let document = site.get("/api/v1/openapi.json").await.ok().json();
    for (path, methods) in document["paths"].as_object().unwrap() {
        let at = path.replace("{store}", "default");
        for (method, operation) in methods.as_object().unwrap() {
            let serves = OF_LOGS.contains(&(&*method.to_uppercase(), &*at));
            let said = operation.get("x-logs").and_then(serde_json::Value::as_bool);
            assert_eq!(said, path.contains("{store}").then_some(serves), "{method} {path}");
        }
    }
    // Whoever may not change a store learns that first.
    let reader = fake.site().await.bearer(Role::Read);
    reader.post("/api/v1/default/delete", "all=true&note=x").await.is(403);
}

#[tokio::test]
async fn the_role_read_sees_no_payload_and_reveals_none() {
    let fake = Fake::of(vec![letter(0)]).await;
    let site = fake.site().await;
    let one = format!("letters/{}", letter(0).id);
    let site = site.bearer(Role::Read);
    let hidden = site.get(&format!("/api/v1/default/{one}")).await.ok().json();
    assert!(hidden["hidden"].is_array() && hidden["message"]["payload"].is_null(), "{hidden}");
    let page = site.get(&format!("/s/default/{one}")).await.ok().body;
    assert!(page.contains("keeps no audit of who has looked"), "{page}");
    assert!(!page.contains("/reveal"), "{page}");
    site.get(&format!("/s/default/{one}/payload")).await.is(403);
    let site = site.bearer(Role::Operate);
    let payload = site.get(&format!("/api/v1/default/{one}/payload")).await.ok().body;
    assert_eq!(payload.as_bytes(), &letter(0).message.payload().unwrap()[..]);
    let page = site.get(&format!("/s/default/{one}")).await.ok().body;
    for absent in ["Resolve", "Quarantine", "What was done to it", "keeps no audit"] {
        assert!(!page.contains(absent), "{absent}: {page}");
    }
    let admin = Admin::of_log("default", fake).mask(Mask::new(["$"]).unwrap());
    let site = Site::of(Vec::new()).await.router(admin.router());
    let masked = site.get(&format!("/s/default/{one}")).await.ok().body;
    assert!(masked.contains("Rules mask parts of: payload.") && !masked.contains("/reveal"));
}

#[tokio::test]
async fn pages_leave_out_what_a_log_cannot_do() {
    let fake = Fake::of((0..12).map(varied).collect()).await;
    let store = DeadLetters::new(MemoryStore::new());
    let admin =
        Admin::named("orders", store.clone()).log("events", fake).log("old", Fake::default());
    // The name of a log is taken over by a store, and the other way round.
    let site = Site::of(Vec::new()).await.router(admin.store("old", store).router());
    let stores = site.get("/api/v1/stores").await.ok().json();
    assert_eq!(stores["stores"], serde_json::json!(["orders", "events", "old"]));
    assert_eq!(stores["logs"], serde_json::json!(["events"]));
    let groups = site.get("/api/v1/events/groups").await.ok().json();
    let fingerprint = groups["groups"][0]["fingerprint"].as_str().unwrap().to_owned();
    assert!(groups["groups"][0].get("state").is_none(), "{groups}");
    for path in ["", "/groups", "/letters", &format!("/group?fingerprint={fingerprint}")] {
        let page = site.get(&format!("/s/events{path}")).await.ok().body;
        assert!(page.contains("A log of a broker, as of"), "{path}: {page}");
        for absent in ["/operations", "/schedule", "/consumers", "/audit", "/archive", "/change"] {
            let link = format!("s/events{absent}");
            assert!(!page.contains(&link), "{path}: {absent}: {page}");
        }
        assert!(!page.contains("<form class=\"narrow\""), "{path}: {page}");
    }
    let page = site.get("/s/orders").await.ok().body;
    assert!(!page.contains("A log of a broker") && page.contains("s/orders/audit"), "{page}");
    for refused in [
        "groups?state=new",
        "groups?began=1h",
        "letters?operation=00000000000000000000000000000000",
    ] {
        site.get(&format!("/api/v1/events/{refused}")).await.is(422);
    }
}

#[tokio::test(start_paused = true)]
async fn a_log_is_read_once_for_all_and_anew_when_that_is_old() {
    let fake = Fake::of(vec![letter(0)]).await;
    let fake = Fake { takes: Duration::from_secs(2), ..fake };
    let site = fake.site().await.bearer(Role::Read);
    let count = async || {
        let count = site.get("/api/v1/default/count").await.ok().json();
        count["count"].as_u64().unwrap()
    };
    // A visitor who leaves does not end the reading.
    let gone = tokio::time::timeout(Duration::from_secs(1), site.get("/api/v1/default/count"));
    assert!(gone.await.is_err());
    let asked = (0..20).map(|_| count());
    assert_eq!(futures_util::future::join_all(asked).await, [1; 20]);
    assert_eq!(fake.reads(), 1);
    fake.letters.put(vec![letter(1)]).await.unwrap();
    // Twenty times the two seconds that a reading takes.
    tokio::time::advance(Duration::from_secs(39)).await;
    assert_eq!((count().await, fake.reads()), (1, 1));
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!((count().await, fake.reads()), (2, 2));
}

/// A log that nobody answers for.
#[derive(Debug)]
struct Away;

impl BrokerLog for Away {
    fn read(&self) -> LogFuture<'_, Snapshot> {
        let error = StoreError::new(StoreErrorKind::Unavailable, "read the dead letters");
        Box::pin(std::future::ready(Err(error
            .with_detail("nobody answered")
            .with_source("s3cret"))))
    }
}

#[tokio::test]
async fn a_log_that_is_away_keeps_others_from_nothing() {
    let store = DeadLetters::new(MemoryStore::new());
    let router = Admin::new(store).log("away", Away).router();
    let site = Site::of(Vec::new()).await.router(router);
    let reply = site.get("/api/v1/away/letters").await.is(503);
    assert!(reply.body.contains("nobody answered") && !reply.body.contains("s3cret"));
    site.get("/s/away").await.is(503);
    site.get("/s/default").await.ok();
}

//! Logs of brokers beside stores.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::body::Body;
use dlq_admin::mask::Mask;
use dlq_admin::{Admin, BrokerLog, LogFuture, LogReplay, PlannedReplay, Role, Snapshot};
use dlq_core::replay::{ReplayOutcome, ReplayPlan, ReplayReport};
use dlq_core::store::Sink as _;
use dlq_core::{DeadLetters, OperationId, Order, PageRequest, StoreError, StoreErrorKind};
use dlq_letters::memory::MemoryStore;
use dlq_testkit::fixtures::{letter, varied};
use futures_util::FutureExt as _;
use futures_util::future::FusedFuture as _;
use serde_json::Value;
use tokio::sync::Semaphore;

use crate::access::ROUTES;
use crate::common::{Site, form, tokens};

/// Routes that serve logs as well as stores.
const OF_LOGS: &[(&str, &str)] = &[
    ("GET", "/api/v1/default/letters"),
    ("GET", "/api/v1/default/letters/{id}"),
    ("GET", "/api/v1/default/letters/{id}/payload"),
    ("GET", "/api/v1/default/count"),
    ("GET", "/api/v1/default/groups"),
    ("GET", "/api/v1/default/hours"),
    ("GET", "/api/v1/default/stats"),
    ("POST", "/api/v1/default/plan"),
    ("POST", "/api/v1/default/replay"),
    ("GET", "/s/default"),
    ("GET", "/s/default/groups"),
    ("GET", "/s/default/group"),
    ("GET", "/s/default/letters"),
    ("GET", "/s/default/letters/{id}"),
    ("GET", "/s/default/letters/{id}/attempts/{n}"),
    ("GET", "/s/default/letters/{id}/payload"),
    ("GET", "/s/default/replay"),
    ("POST", "/s/default/replay"),
    ("POST", "/s/default/plan"),
];

/// Routes that serve logs alone.
const OF_LOGS_ALONE: &[(&str, &str)] = &[
    ("GET", "/api/v1/default/latest-replay"),
    ("GET", "/api/v1/default/latest-replay/events"),
    ("POST", "/api/v1/default/latest-replay/stop"),
    ("GET", "/s/default/latest-replay"),
    ("POST", "/s/default/latest-replay/stop"),
];

fn serves_logs(method: &str, at: &str) -> bool {
    let is = |one: &(&str, &str)| *one == (method, at);
    OF_LOGS.iter().any(is) || OF_LOGS_ALONE.iter().any(is)
}

/// A log of what is put into a store in memory, and how often it was read.
#[derive(Clone, Debug)]
struct Fake {
    letters: MemoryStore,
    reads: Arc<AtomicU32>,
    takes: Duration,
    /// Letters that its replays may still send.
    sends: Arc<Semaphore>,
    /// True if a replay panics at its second letter, and not just fails to send that.
    dies: bool,
}

impl BrokerLog for Fake {
    fn read(&self) -> LogFuture<'_, Snapshot> {
        Box::pin(async {
            self.reads.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(self.takes).await;
            let copy = MemoryStore::new();
            let all = DeadLetters::new(self.letters.clone());
            let page = all.list(Default::default(), PageRequest::new()).await?;
            for one in page.letters {
                copy.put(vec![all.get(one.id).await?]).await?;
            }
            Ok(Snapshot::new(copy))
        })
    }

    fn plan(&self, replay: LogReplay) -> LogFuture<'_, PlannedReplay> {
        Box::pin(async move {
            let all = DeadLetters::new(self.letters.clone());
            let page =
                all.list(replay.filter, PageRequest::new().order(Order::OldestFirst)).await?;
            let mut letters = page.letters;
            letters
                .truncate(usize::try_from(replay.limit.unwrap_or(u64::MAX)).unwrap_or(usize::MAX));
            let mut plan = ReplayPlan::default();
            plan.letters = letters.len() as u64;
            let (sends, dies) = (Arc::clone(&self.sends), self.dies);
            Ok(PlannedReplay::new(OperationId::from_bytes([7; 16]), plan, async move |watch| {
                let mut report = ReplayReport::default();
                let mut stop = Box::pin(watch.stop().fuse());
                for (index, one) in letters.into_iter().enumerate() {
                    let room = tokio::select! {
                        biased;
                        () = &mut stop, if !stop.is_terminated() => None,
                        room = sends.acquire(), if !stop.is_terminated() => Some(room.unwrap()),
                        else => None,
                    };
                    let Some(room) = room else {
                        report.left += 1;
                        continue;
                    };
                    room.forget();
                    assert!(index != 1 || !dies, "the second letter is deadly");
                    let outcome = if index == 1 {
                        let error = StoreError::new(StoreErrorKind::Refused, "send the second");
                        ReplayOutcome::Failed(error)
                    } else {
                        ReplayOutcome::Sent
                    };
                    watch.note(one.id, &outcome);
                    report.count(&outcome);
                }
                Ok(report)
            }))
        })
    }
}

impl Default for Fake {
    fn default() -> Self {
        Self {
            letters: MemoryStore::new(),
            reads: Arc::default(),
            takes: Duration::ZERO,
            sends: Arc::new(Semaphore::new(0)),
            dies: false,
        }
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
        let serves = serves_logs(method, at);
        assert_eq!(reply.status == 409, !serves, "{method} {at}: {}", reply.body);
        assert_eq!(reply.body.contains("is a log of a broker"), !serves, "{}", reply.body);
    }
    let document = site.get("/api/v1/openapi.json").await.ok().json();
    for (path, methods) in document["paths"].as_object().unwrap() {
        let at = path.replace("{store}", "default");
        for (method, operation) in methods.as_object().unwrap() {
            let method = method.to_uppercase();
            let said = |name: &str| operation.get(name).and_then(Value::as_bool);
            let is_of_one = path.contains("{store}");
            let serves = is_of_one.then_some(serves_logs(&method, &at));
            assert_eq!(said("x-logs"), serves, "{method} {path}");
            let is_of_logs = OF_LOGS_ALONE.contains(&(&*method, &*at));
            assert_eq!(said("x-stores"), is_of_one.then_some(!is_of_logs), "{method} {path}");
        }
    }
    let store = Site::of(vec![letter(0)]).await;
    for (method, at) in OF_LOGS_ALONE {
        let reply = store.send(store.request(method, at).body(Body::empty()).unwrap()).await;
        assert_eq!(reply.status, 409, "{method} {at}: {}", reply.body);
        assert!(reply.body.contains("is a store"), "{}", reply.body);
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

/// Waits until the latest replay is in this state, and returns it.
async fn until(site: &Site, is_so: impl Fn(&Value) -> bool) -> Value {
    let began = std::time::Instant::now();
    loop {
        let found = site.get("/api/v1/default/latest-replay").await.ok().json()["replay"].clone();
        if is_so(&found) {
            return found;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{found}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn one_replay_of_a_log_runs_at_a_time_and_is_watched_and_stopped() {
    let fake = Fake::of((0..5).map(letter).collect()).await;
    let site = fake.site().await.bearer(Role::Operate);
    site.get("/s/default/latest-replay").await.ok();
    site.get("/api/v1/default/latest-replay/events").await.is(404);
    let page = site.get("/s/default/replay?all=true&to=origin").await.ok();
    assert!(
        page.body.contains("Replay 5 letters") && !page.body.contains("audit"),
        "{}",
        page.body
    );
    let fields = |expect: &str| {
        let fixed = [("all", "true"), ("to", "origin"), ("note", "mended")];
        let expect = (!expect.is_empty()).then_some(("expect", expect));
        form(&fixed.into_iter().chain(expect).collect::<Vec<_>>())
    };
    site.post("/s/default/replay", &fields("")).await.is(422);
    site.post("/s/default/replay", &fields("4")).await.is(409);
    let begun = site.post("/s/default/replay", &fields("5")).await.is(303);
    assert_eq!(begun.location(), "../../s/default/latest-replay");
    let second = site.post("/s/default/replay", &fields("5")).await.is(409);
    assert!(second.body.contains("a replay of this log is running"), "{}", second.body);
    fake.sends.add_permits(2);
    let found = until(&site, |found| found["sent"] == 1 && found["failed"] == 1).await;
    assert_eq!(
        (&found["state"], &found["left"], &found["by"]),
        (&"running".into(), &3.into(), &"otto".into())
    );
    assert_eq!(found["failures"][0]["error"], "cannot send the second: refused");
    let page = site.get("/s/default/latest-replay").await.ok().body;
    assert!(page.contains("cannot send the second: refused") && page.contains(">Stop<"), "{page}");
    let read = fake.site().await.bearer(Role::Read);
    read.post("/s/default/latest-replay/stop", "note=x").await.is(403);
    // The reading of before does not say what was sent.
    let reads = fake.reads();
    site.post("/s/default/latest-replay/stop", "").await.is(400);
    let listening = site.get("/api/v1/default/latest-replay/events");
    let stopping = async {
        site.post("/s/default/latest-replay/stop", "note=enough").await.is(303);
        until(&site, |found| found["state"] == "stopped").await
    };
    let (heard, stopped) = futures_util::future::join(listening, stopping).await;
    let heard = heard.ok().body;
    assert!(heard.starts_with("event: news\ndata: {\"replay\":"), "{heard}");
    assert!(heard.contains("event: end\n") && heard.contains("\"stopped\""), "{heard}");
    assert_eq!((&stopped["sent"], &stopped["left"]), (&1.into(), &3.into()));
    let events = site.get("/api/v1/default/latest-replay/events").await.ok().body;
    assert!(events.starts_with("event: end\ndata: {\"replay\":"), "{events}");
    site.get("/api/v1/default/count").await.ok();
    assert_eq!(fake.reads(), reads + 1);
    site.post("/api/v1/default/latest-replay/stop", "note=again").await.is(409);
    // The next one may begin, and comes to its end.
    fake.sends.add_permits(10);
    let begun = site.post("/api/v1/default/replay", &fields("5")).await.ok().json();
    assert_eq!(begun["replay"]["total"], 5);
    let ended = until(&site, |found| found["state"] == "complete").await;
    assert_eq!(
        (&ended["sent"], &ended["failed"], &ended["left"]),
        (&4.into(), &1.into(), &0.into())
    );
    site.post("/api/v1/default/replay", "all=true&note=x&canary=1").await.is(422);
}

#[tokio::test]
async fn a_replay_that_panics_has_ended() {
    let fake = Fake::of(vec![letter(0), letter(1)]).await;
    let fake = Fake { dies: true, ..fake };
    fake.sends.add_permits(10);
    let site = fake.site().await.bearer(Role::Operate);
    for _ in 0..2 {
        site.post("/api/v1/default/replay", "all=true&to=origin&note=x").await.ok();
        let ended = until(&site, |found| !found["ended"].is_null()).await;
        assert_eq!((&ended["state"], &ended["sent"]), (&"failed".into(), &1.into()), "{ended}");
        assert!(ended["stopped"].as_str().unwrap().contains("the replay died"), "{ended}");
    }
}

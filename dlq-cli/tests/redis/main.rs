//! The command at a real server of Redis: the verbs of a store, and what can go wrong.

#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../common/mod.rs"]
mod common;
mod console;
mod foreign;
#[allow(dead_code, reason = "others need all of it")]
#[path = "../common/http.rs"]
mod http;
mod letters;
#[allow(dead_code, reason = "others need all of it")]
#[path = "../common/process.rs"]
mod process;
#[path = "../common/scrape.rs"]
mod scrape;
mod serve;

use std::time::Duration;

use dlq_core::store::{ClaimRequest, Claims as _, Finish, Finished, Sink as _};
use dlq_core::{DeadLetter, Filter, Resolution, Status};
use dlq_redis::RedisClient;
use dlq_redis::store::RedisStore;
use dlq_services::{Running, Service, ensure_installed, or_skip};
use dlq_testkit::fixtures::{CONSUMER, letter, varied};
use serde_json::Value;
use tokio::task::block_in_place;

use crate::common::{Ran, dlq};

/// A store with letters, on a server of its own.
struct Bench {
    server: Running,
    store: RedisStore,
}

impl Bench {
    async fn with(letters: Vec<DeadLetter>) -> Option<Self> {
        let server = block_in_place(|| {
            or_skip(Service::Redis, ensure_installed(Service::Redis)).ok()?;
            Some(Service::Redis.builder().ours().start().unwrap())
        })?;
        let client = RedisClient::open(server.url()).await.unwrap();
        let store = RedisStore::builder(&client).prefix("{shop}").open().await.unwrap();
        store.put(letters).await.unwrap();
        Some(Self { server, store })
    }

    fn url(&self, rest: &str) -> String {
        let host = self.server.url().trim_start_matches("redis://").trim_end_matches('/');
        format!("redis-store://{host}{rest}")
    }

    fn run(&self, args: &[&str]) -> Ran {
        run(&[args, &["--from", &self.url("?prefix=shop")]].concat())
    }
}

pub(crate) fn run(args: &[&str]) -> Ran {
    block_in_place(|| dlq(args).output().unwrap().into())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_verbs_that_look_agree_with_each_other() {
    let Some(bench) = Bench::with((0..40).map(varied).collect()).await else { return };
    assert_eq!(bench.run(&["count"]).ok().out, "40\n");
    let page = bench.run(&["list", "--limit", "15", "-o", "json"]).ok().json();
    let cursor = page["next"].as_str().unwrap();
    let rest = bench.run(&["list", "--limit", "0", "-o", "json", "--cursor", cursor]).ok().json();
    let letters = [&page, &rest].map(|page| page["letters"].as_array().unwrap().len());
    assert_eq!((letters, &rest["next"]), ([15, 25], &Value::Null));
    let stats = bench.run(&["stats", "-o", "json"]).ok().json();
    assert_eq!(stats["total"], 40);
    for (word, count) in stats["by_status"].as_object().unwrap() {
        assert_eq!(bench.run(&["count", "--status", word]).ok().out, format!("{count}\n"));
    }
    let groups = bench.run(&["groups", "--limit", "100", "-o", "json"]).ok().json();
    let groups = groups["groups"].as_array().unwrap();
    assert_eq!(groups.iter().map(|group| group["count"].as_u64().unwrap()).sum::<u64>(), 40);
    let one = varied(7);
    let id = one.id.to_string();
    let shown = bench.run(&["show", &id[..12], "-o", "json"]).ok().out;
    assert!(shown.contains(&id), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_becomes_an_operation_that_is_followed_to_its_end() {
    let Some(bench) = Bench::with((0..5).map(letter).collect()).await else { return };
    let id = bench.run(&["replay", "--all", "--limit", "3", "--yes", "--note", "fixed"]).ok();
    let id = id.out.trim().to_owned();
    let request = ClaimRequest::due([CONSUMER], 10, Duration::from_secs(60));
    let claims = bench.store.claim(request).await.unwrap();
    let ends =
        |claim: &dlq_core::store::Claim| (claim.token, Finish::Resolved(Resolution::Succeeded));
    let finished = bench.store.finish(claims.iter().map(ends).collect()).await.unwrap();
    assert_eq!(finished, [Finished::Applied; 3]);
    let watched = bench.run(&["op", "watch", &id[..8], "-o", "json"]).ok().json();
    assert_eq!(watched["progress"]["by_outcome"]["succeeded"], 3, "{watched}");
    let marked = bench.run(&["mark", "resolved", "--status", "pending", "--all", "--yes"]).ok();
    assert!(marked.err.contains('2'), "{}", marked.err);
    let left = Filter::new().with_status(Status::Pending);
    let left = dlq_core::store::Letters::count(&bench.store, left).await.unwrap();
    assert_eq!(left, 0);
    bench.run(&["check"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_goes_from_store_to_store() {
    let Some(bench) = Bench::with((0..20).map(varied).collect()).await else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("letters.jsonl").display().to_string();
    bench.run(&["export", "--to", &file]).ok();
    let copy = bench.url("?prefix=copy");
    let refused = run(&["import", &file, "--from", &copy]);
    assert_eq!(refused.code, 2, "{}", refused.err);
    assert!(refused.err.contains("--create"), "{}", refused.err);
    run(&["import", &file, "--from", &copy, "--create"]).ok();
    assert_eq!(run(&["count", "--from", &copy]).ok().out, "20\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_a_file_is_refused_with_what_to_type() {
    let Some(bench) = Bench::with(vec![letter(1)]).await else { return };
    let client = dlq_redis::redis::Client::open(bench.server.url()).unwrap();
    let mut to = client.get_multiplexed_async_connection().await.unwrap();
    let mut set = dlq_redis::redis::cmd("CONFIG");
    let () = set.arg("SET").arg("appendonly").arg("no").query_async(&mut to).await.unwrap();
    let refused = bench.run(&["count"]);
    assert_ne!(refused.code, 0);
    let typed = format!("--from '{}&durability=memory'", bench.url("?prefix=shop"));
    for part in ["no append-only file", "set `appendonly yes` at the server", &typed] {
        assert!(refused.err.contains(part), "{part}: {}", refused.err);
    }
    assert!(!refused.err.contains("Durability::"), "{}", refused.err);
    let typed = bench.url("?prefix=shop&durability=memory");
    assert_eq!(run(&["count", "--from", &typed]).ok().out, "1\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_opened_is_named() {
    let Some(bench) = Bench::with(Vec::new()).await else { return };
    let unknown = run(&["count", "--from", &bench.url("?prefix=other")]);
    assert_eq!(unknown.code, 2, "{}", unknown.err);
    assert!(unknown.err.contains("there is no store at redis-store://"), "{}", unknown.err);
    let wrong = run(&["count", "--from", &bench.url("?colour=red")]);
    assert_eq!(wrong.code, 2, "{}", wrong.err);
    assert!(wrong.err.contains("`colour` is unknown"), "{}", wrong.err);
    let url = bench.url("").replace("redis-store://", "redis-store://ana:s3cret@");
    let login = run(&["count", "--from", &url]);
    assert_ne!(login.code, 0);
    assert!(!login.err.contains("s3cret"), "{}", login.err);
    let nobody = run(&["count", "--from", "redis-store://127.0.0.1:1"]);
    assert_eq!(nobody.code, 1, "{}", nobody.err);
    let tables = bench.run(&["migrate"]);
    assert_eq!(tables.code, 2, "{}", tables.err);
}

//! The command at a store in MongoDB.

#![cfg(feature = "mongo")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../common/mod.rs"]
mod common;
mod import;

use std::time::Duration;

use dlq_core::store::{ClaimRequest, Claims as _, Finish, Letters as _};
use dlq_core::{DeadLetter, Resolution, Sink as _, Status};
use dlq_mongo::MongoStore;
use dlq_mongo::mongodb::Client;
use dlq_mongo::mongodb::bson::doc;
use dlq_services::{Running, Service, ensure_installed, or_skip};
use dlq_testkit::fixtures::{CONSUMER, letter};

use common::{Ran, dlq};

/// A store with letters, and its URL.
async fn store(letters: Vec<DeadLetter>) -> Option<(Running, String, MongoStore)> {
    or_skip(Service::Mongo, ensure_installed(Service::Mongo)).ok()?;
    let server = Service::Mongo.builder().setting("file", "").start().unwrap();
    let name = format!("dlq_cli_{}", std::process::id());
    let url = format!("{}/{name}", server.url().trim_end_matches('/'));
    let store = MongoStore::builder(&url).prefix("dead_").open().await.unwrap();
    store.put(letters).await.unwrap();
    Some((server, format!("{url}?prefix=dead_"), store))
}

#[tokio::test(flavor = "multi_thread")]
async fn every_verb_of_a_store_works() {
    let letters: Vec<_> = (0..20).map(letter).collect();
    let Some((_server, url, store)) = store(letters.clone()).await else { return };
    let run = |args: &[&str]| -> Ran {
        let mut all = args.to_vec();
        all.extend(["--from", &url]);
        dlq(&all).output().unwrap().into()
    };
    assert_eq!(run(&["count"]).ok().out, "20\n");
    let stats = run(&["stats", "-o", "json"]).ok().json();
    assert_eq!(stats["total"], 20);
    let groups = run(&["groups", "-o", "json"]).ok().json();
    let count = |group: &serde_json::Value| group["count"].as_u64().unwrap();
    let all: u64 = groups["groups"].as_array().unwrap().iter().map(count).sum();
    assert_eq!(all, 20);
    let list = run(&["list", "--limit", "5", "-o", "json"]).ok().json();
    assert_eq!(list["letters"].as_array().unwrap().len(), 5);
    let id = letters[3].id.to_string();
    assert!(run(&["show", &id[..12]]).ok().out.contains(&id));

    let started = run(&["replay", "--consumer", CONSUMER, "--yes", "-o", "json"]).ok();
    assert!(started.out.contains("running"), "{}", started.out);
    let lease = Duration::from_secs(60);
    let claims = store.claim(ClaimRequest::due([CONSUMER], 50, lease)).await.unwrap();
    assert_eq!(claims.len(), 20);
    let resolved = || Finish::Resolved(Resolution::Succeeded);
    let finishes = claims.iter().map(|claim| (claim.token, resolved())).collect();
    store.finish(finishes).await.unwrap();
    let operations = run(&["op", "list", "-o", "json"]).ok().out;
    assert!(operations.contains("completed"), "{operations}");
    assert_eq!(run(&["count", "--status", "resolved"]).ok().out, "20\n");
    run(&["mark", "quarantined", "--id", &id, "--yes"]).ok();
    let found = store.get(letters[3].id).await.unwrap().unwrap();
    assert_eq!(found.state.status, Status::Quarantined);
    run(&["check"]).ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_not_there_is_not_made() {
    let Some((_server, url, _store)) = store(Vec::new()).await else { return };
    let other = url.replace("dead_", "other_");
    let ran: Ran = dlq(&["count", "--from", &other]).output().unwrap().into();
    assert_ne!(ran.code, 0);
    assert!(ran.err.contains("other_"), "{}", ran.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_missing_is_shown_and_made_again() {
    let Some((_server, url, _store)) = store(Vec::new()).await else { return };
    let other = url.replace("dead_", "other_");
    let run = |verb: &[&str], url: &str| -> Ran {
        let mut all = verb.to_vec();
        all.extend(["--from", url]);
        dlq(&all).output().unwrap().into()
    };
    let ran = run(&["migrate"], &other).ok();
    assert!(ran.out.contains("make the collections"), "{}", ran.out);
    assert!(ran.err.contains("no store yet"), "{}", ran.err);
    run(&["migrate", "--apply", "--yes"], &other).ok();
    assert_eq!(run(&["count"], &other).ok().out, "0\n");

    let (server, name) = url.split_once('?').unwrap().0.rsplit_once('/').unwrap();
    let client = Client::with_uri_str(server).await.unwrap();
    let drop = doc! { "dropIndexes": "other_letters", "index": "dedup" };
    client.database(name).run_command(drop).await.unwrap();
    let ran = run(&["check"], &other);
    assert_eq!(ran.code, 3, "{}", ran.err);
    assert!(ran.out.contains("index `dedup` of `other_letters`"), "{}", ran.out);
    let ran = run(&["migrate", "--check"], &other);
    assert_eq!(ran.code, 3);
    assert!(ran.err.contains("index dedup of other_letters"), "{}", ran.err);
    run(&["migrate", "--apply", "--yes"], &other).ok();
    run(&["check"], &other).ok();
}

#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread")]
async fn letters_of_a_stream_are_ingested_once() {
    use dlq_redis::{RedisClient, RedisTransport};

    let Some((_server, url, store)) = store(Vec::new()).await else { return };
    if or_skip(Service::Redis, ensure_installed(Service::Redis)).is_err() {
        return;
    }
    let redis = Service::Redis.builder().ours().start().unwrap();
    let client = RedisClient::open(redis.url()).await.unwrap();
    let sink = RedisTransport::new("orders").dead_letters(&client).await.unwrap();
    let letters: Vec<_> = (0..20).map(letter).collect();
    sink.put(letters.clone()).await.unwrap();
    let from = format!("{}/{{orders}}:dlq", redis.url().trim_end_matches('/'));
    let ingest = || -> Ran {
        let args = ["ingest", "--once", "--from", &from, "--into", &url];
        dlq(&args).output().unwrap().into()
    };
    let ran = ingest().ok();
    assert!(ran.out.contains("20 letters stored"), "{}", ran.out);
    ingest().ok();
    let count: Ran = dlq(&["count", "--from", &url]).output().unwrap().into();
    assert_eq!(count.ok().out, "20\n");
    for letter in letters {
        let found = store.get(letter.id).await.unwrap().expect("it was stored");
        assert_eq!(found.message.payload(), letter.message.payload());
    }
}

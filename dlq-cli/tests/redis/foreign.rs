//! The command at dead letters that other libraries keep in Redis; what they wrote is made by the files of `dlq-redis`.

use std::fs::read_to_string;

use dlq_redis::redis;
use dlq_services::{Redis, Running, Service, ensure_installed, or_skip};
use serde_json::Value;
use tokio::task::block_in_place;

use super::run;
use crate::common::Ran;

const CHASQUIMQ: &str = include_str!("../../../dlq-redis/tests/letters/foreign/chasquimq.jsonl");
pub(crate) const BULLMQ: &str =
    include_str!("../../../dlq-redis/tests/letters/foreign/bullmq.jsonl");
pub(crate) const RQ: &str = include_str!("../../../dlq-redis/tests/letters/foreign/rq.jsonl");
const DRAMATIQ: &str = include_str!("../../../dlq-redis/tests/letters/foreign/dramatiq.jsonl");
const EVENT_DLQ: &str = include_str!("../../../dlq-redis/tests/letters/foreign/event_dlq.jsonl");

pub(crate) struct Fixture {
    server: Running,
}

impl Fixture {
    pub(crate) async fn with(fixtures: &[&str]) -> Option<Self> {
        let server = block_in_place(|| {
            or_skip(Service::Redis, ensure_installed(Service::Redis)).ok()?;
            Some(Redis::builder().ours().start().unwrap())
        })?;
        let place = Self { server };
        for line in fixtures.iter().flat_map(|fixture| fixture.lines()) {
            let words: Vec<Value> = serde_json::from_str(line).unwrap();
            let words: Vec<Vec<u8>> = words.iter().map(bytes).collect();
            place.command(&words).await;
        }
        Some(place)
    }

    pub(crate) async fn command<W: AsRef<[u8]>>(&self, words: &[W]) -> redis::Value {
        let client = redis::Client::open(self.server.url()).unwrap();
        let mut raw = client.get_multiplexed_async_connection().await.unwrap();
        let mut cmd = redis::Cmd::new();
        words.iter().for_each(|word| {
            cmd.arg(word.as_ref());
        });
        cmd.query_async(&mut raw).await.unwrap()
    }

    async fn count(&self, words: &str) -> i64 {
        let words: Vec<&str> = words.split(' ').collect();
        redis::from_redis_value(self.command(&words).await).unwrap()
    }

    pub(crate) fn url(&self, key: &str) -> String {
        let host = self.server.url().trim_start_matches("redis://").trim_end_matches('/');
        format!("redis://{host}/{key}")
    }

    fn run(&self, key: &str, args: &[&str]) -> Ran {
        run(&[args, &["--from", &self.url(key)]].concat())
    }
}

fn bytes(word: &Value) -> Vec<u8> {
    match word {
        Value::String(text) => text.clone().into_bytes(),
        other => {
            let digits = other["hex"].as_str().unwrap();
            let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
            (0..digits.len()).step_by(2).map(byte).collect()
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_verbs_that_look_read_every_library() {
    let Some(place) = Fixture::with(&[CHASQUIMQ, BULLMQ, RQ, DRAMATIQ]).await else { return };
    for (key, letters) in [
        ("chasqui:emails", 7),
        ("bull:mail:failed", 7),
        ("rq:failed:mail", 3),
        ("dramatiq:mail.XQ", 4),
    ] {
        assert_eq!(place.run(key, &["count"]).ok().out, format!("{letters}\n"), "{key}");
        let page = place.run(key, &["list", "--limit", "2", "-o", "json"]).ok().json();
        let cursor = page["next"].as_str().unwrap();
        let rest =
            place.run(key, &["list", "--limit", "0", "-o", "json", "--cursor", cursor]).ok().json();
        assert_eq!(rest["letters"].as_array().unwrap().len(), letters - 2, "{key}");
        let stats = place.run(key, &["stats", "-o", "json"]).ok().json();
        assert_eq!(stats["total"], letters, "{key}");
        let groups = place.run(key, &["groups", "--limit", "100", "-o", "json"]).ok().json();
        let groups = groups["groups"].as_array().unwrap();
        let sum: u64 = groups.iter().map(|group| group["count"].as_u64().unwrap()).sum();
        assert_eq!(sum, letters as u64, "{key}");
        let peeked = place.run(key, &["peek", "--limit", "3", "-o", "json"]).ok().json();
        assert_eq!(peeked["latest"].as_array().unwrap().len(), 3, "{key}");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("letters.jsonl").display().to_string();
        place.run(key, &["export", "--to", &file]).ok();
        assert_eq!(read_to_string(file).unwrap().lines().count(), letters, "{key}");
        place.run(key, &["check"]).ok();
        let refused = place.run(key, &["delete", "--all", "--yes"]);
        assert_eq!(refused.code, 2, "{}", refused.err);
    }
    let listed = place.run("bull:mail:failed", &["list"]).ok().out;
    assert!(listed.contains("cannot pay o-1, try 1"), "{listed}");
    let found = place
        .run("bull:mail:failed", &["list", "-o", "json", "--error", "reading 'x'"])
        .ok()
        .json();
    let id = found["letters"][0]["id"].as_str().unwrap();
    let shown = place.run("bull:mail:failed", &["show", &id[..12]]).ok().out;
    for part in ["TypeError", "bullmq", "\"order\": \"o-5\""] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ingest_adds_each_letter_once() {
    let Some(place) = Fixture::with(&[CHASQUIMQ, BULLMQ, RQ, DRAMATIQ]).await else { return };
    let keys = place.count("DBSIZE").await;
    let folder = tempfile::tempdir().unwrap();
    let store = format!("sqlite://{}", folder.path().join("dlq.db").display());
    let ingest = ["ingest", "--once", "--into", &store, "-o", "json"];
    for key in ["chasqui:emails", "bull:mail:failed", "rq:failed:mail", "dramatiq:mail.XQ"] {
        place.run(key, &ingest).ok();
    }
    assert_eq!(run(&["count", "--from", &store]).ok().out, "21\n");
    for key in ["chasqui:emails", "bull:mail:failed", "rq:failed:mail", "dramatiq:mail.XQ"] {
        let again = place.run(key, &ingest).ok().json();
        assert_eq!(again["by_outcome"]["stored"], Value::Null, "{key}: {again}");
    }
    assert_eq!(run(&["count", "--from", &store]).ok().out, "21\n");
    assert_eq!(place.count("DBSIZE").await, keys, "no key is made beside them");
    // No outbox writes what the library could not read.
    let via = place.url("");
    let send = ["replay", "--all", "--yes", "--to", "origin", "--via", &via, "--from", &store];
    assert_ne!(run(&send).code, 0);
    assert_eq!(place.count("DBSIZE").await, keys);
    let named =
        place.run("chasqui:emails", &["ingest", "--once", "--into", &store, "--durable", "x"]);
    assert_eq!(named.code, 2, "{}", named.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn letters_go_back_to_their_queue_once() {
    let Some(place) = Fixture::with(&[CHASQUIMQ, BULLMQ]).await else { return };
    place
        .command(&["XGROUP", "CREATE", "{chasqui:emails}:stream", "default", "0", "MKSTREAM"])
        .await;
    let replay = ["replay", "--all", "--yes", "--to", "origin", "-o", "json"];
    let plan =
        place.run("chasqui:emails", &["replay", "--all", "--dry-run", "--to", "origin"]).ok();
    assert!(plan.err.contains("4 letters would be sent"), "{}", plan.err);
    assert!(plan.err.contains("3 letters have no job"), "{}", plan.err);
    let report = place.run("chasqui:emails", &replay);
    assert_eq!((report.code, &report.json()["sent"]), (3, &4.into()), "{}", report.err);
    assert_eq!(place.count("XLEN {chasqui:emails}:stream").await, 4);
    assert_eq!(place.run("chasqui:emails", &["count"]).ok().out, "3\n");
    let nothing = place.run("chasqui:emails", &replay);
    assert!(nothing.err.contains("nothing to replay"), "{}", nothing.err);
    let report = place.run("bull:mail:failed", &replay);
    assert_eq!(report.json()["sent"], 6, "{}", report.err);
    assert!(report.err.contains("use `job.retry()`"), "{}", report.err);
    let elsewhere = place.run("bull:mail:failed", &["replay", "--all", "--yes", "--to", "orders"]);
    assert_eq!(elsewhere.code, 2, "{}", elsewhere.err);
    assert!(elsewhere.err.contains("say --to origin"), "{}", elsewhere.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_sent_or_found_is_named() {
    let Some(place) = Fixture::with(&[RQ]).await else { return };
    let refused = place.run("rq:failed:mail", &["replay", "--all", "--yes", "--to", "origin"]);
    assert_ne!(refused.code, 0);
    assert!(refused.err.contains("rq requeue"), "{}", refused.err);
    let missing = place.run("chasqui:emails", &["list"]);
    assert_eq!(missing.code, 1, "{}", missing.err);
    assert!(missing.err.contains("there is no `{chasqui:emails}:dlq`"), "{}", missing.err);
    place.command(&["SET", "bull:mail:failed", "text"]).await;
    let other = place.run("bull:mail:failed", &["list"]);
    assert_eq!(other.code, 2, "{}", other.err);
    assert!(other.err.contains("`bull:mail:failed` is a string"), "{}", other.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_store_of_event_dlq_is_imported() {
    let Some(place) = Fixture::with(&[EVENT_DLQ]).await else { return };
    place.command(&["ZADD", "dlq:by_time", "1", "gone"]).await;
    let folder = tempfile::tempdir().unwrap();
    let store = format!("sqlite://{}", folder.path().join("dlq.db").display());
    let url = place.url("");
    let import = ["import", "--create", "--from-redis", &url, "--from", &store];
    let dry = run(&[&import[..], &["--dry-run"]].concat()).ok();
    assert!(dry.err.contains("5 messages of event-dlq"), "{}", dry.err);
    let first = run(&[&import[..], &["--consumer", "billing", "-o", "json"]].concat());
    assert_eq!(first.code, 3, "{}", first.err);
    assert!(first.err.contains("message gone: it is in the index"), "{}", first.err);
    let report = first.json();
    assert_eq!((&report["receipts"]["stored"], &report["bad_messages"]), (&4.into(), &1.into()));
    let again = run(&[&import[..], &["--consumer", "billing", "-o", "json"]].concat()).json();
    assert_eq!(
        (&again["receipts"]["unchanged"], &again["receipts"]["stored"]),
        (&4.into(), &Value::Null)
    );
    let count = |status: &str| run(&["count", "--status", status, "--from", &store]).ok().out;
    assert_eq!([count("pending"), count("resolved"), count("quarantined")], ["2\n", "1\n", "1\n"]);
    let other = place.url("shop:dlq:");
    run(&["import", "--from-redis", &other, "--from", &store]).ok();
    assert_eq!(run(&["count", "--from", &store]).ok().out, "8\n");
    let nothing = run(&["import", "--from-redis", &place.url("nobody:"), "--from", &store]);
    assert_eq!(nothing.code, 1, "{}", nothing.err);
    assert!(nothing.err.contains("there is no `nobody:by_time`"), "{}", nothing.err);
    let wrong = run(&["import", "--from-redis", "sqlite://x", "--from", &store]);
    assert_eq!(wrong.code, 2, "{}", wrong.err);
    let both = run(&["import", "letters.jsonl", "--from-redis", &url, "--from", &store]);
    assert_eq!(both.code, 2, "{}", both.err);
    assert_eq!(run(&["import", "--consumer", "x", "letters.jsonl", "--from", &store]).code, 2);
    assert_eq!(run(&["import", "--from", &store]).code, 2, "neither a file nor another place");
}

/// The rights that the README of `dlq-redis` names are enough.
#[tokio::test(flavor = "multi_thread")]
async fn a_user_needs_the_rights_that_are_documented() {
    const LOOK: &str = "+type +xinfo|stream +xrange +xrevrange +xlen +zrange +zrank +zscore +zcount +zcard +hmget +hget +eval \
                        +evalsha +info";
    const SEND: &str = "+time +hset +xadd +xdel +zadd +zrem +hdel +hexists +lpush +rpush +incr";
    const IMPORT: &str = "+type +zrange +zrank +zscore +zcount +zcard +hmget +eval +evalsha +info";
    let Some(place) = Fixture::with(&[CHASQUIMQ, BULLMQ, RQ, DRAMATIQ, EVENT_DLQ]).await else {
        return;
    };
    place
        .command(&["XGROUP", "CREATE", "{chasqui:emails}:stream", "default", "0", "MKSTREAM"])
        .await;
    let user = async |rights: &str| {
        let words = format!("ACL SETUSER ops reset on >pw ~* {rights}");
        place.command(&words.split_whitespace().collect::<Vec<_>>()).await;
    };
    let url = |key: &str| place.url(key).replace("redis://", "redis://ops:pw@");
    let folder = tempfile::tempdir().unwrap();
    let store = format!("sqlite://{}", folder.path().join("dlq.db").display());
    user(LOOK).await;
    for key in ["chasqui:emails", "bull:mail:failed", "rq:failed:mail", "dramatiq:mail.XQ"] {
        for verb in [&["peek"][..], &["check"], &["ingest", "--once", "--into", &store]] {
            run(&[verb, &["--from", &url(key)]].concat()).ok();
        }
    }
    user(&format!("{LOOK} {SEND}")).await;
    for (key, letters) in [("chasqui:emails", 4), ("bull:mail:failed", 6), ("dramatiq:mail.XQ", 4)]
    {
        let sent =
            run(&["replay", "--all", "--yes", "--to", "origin", "-o", "json", "--from", &url(key)]);
        assert_eq!(sent.json()["sent"], letters, "{}", sent.err);
    }
    user(IMPORT).await;
    run(&["import", "--from-redis", &url("dlq:"), "--from", &store]).ok();
    user("-zrange").await;
    let refused = run(&["count", "--from", &url("rq:failed:mail")]);
    assert_ne!(refused.code, 0);
    assert!(refused.err.contains("the user may not run `type`"), "{}", refused.err);
}

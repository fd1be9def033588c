//! The command at a stream of dead letters.

use std::collections::BTreeSet;
use std::fs::read_to_string;
use std::process::Stdio;
use std::time::Duration;

use dlq_core::{DeadLetter, LetterId, Origin, Position, Sink as _};
use dlq_redis::{RedisClient, RedisTransport, redis};
use dlq_services::{Redis, Running, Service, ensure_installed, or_skip};
use dlq_testkit::fixtures::{died_again, varied};
use serde_json::Value;
use tokio::task::block_in_place;
use tokio::time::{sleep, timeout};

use super::run;
use crate::common::{Ran, dlq};

const DEAD: &str = "{orders}:dlq";

/// Names and values of an entry.
type Fields = Vec<(Vec<u8>, Vec<u8>)>;

/// A stream with dead letters, on a server of its own.
pub(super) struct Fixture {
    server: Running,
}

/// A letter that was born in the stream.
pub(super) fn born(number: u64) -> DeadLetter {
    let mut letter = varied(number);
    letter.origin = Origin::new("redis", "orders", Position::Pair(1_790_000_000_000, number));
    letter.origin = letter.origin.with_cluster("default");
    letter.id = LetterId::of(&letter.origin, letter.message.published_at(), &letter.consumer);
    letter
}

impl Fixture {
    pub(super) async fn with(letters: Vec<DeadLetter>) -> Option<Self> {
        let server = block_in_place(|| {
            or_skip(Service::Redis, ensure_installed(Service::Redis)).ok()?;
            Some(Redis::builder().ours().start().unwrap())
        })?;
        let place = Self { server };
        place.command(&["XGROUP", "CREATE", "orders", "billing", "0", "MKSTREAM"]).await;
        let client = RedisClient::open(place.server.url()).await.unwrap();
        let sink = RedisTransport::new("orders").dead_letters(&client).await.unwrap();
        sink.put(letters).await.unwrap();
        Some(place)
    }

    pub(super) async fn command(&self, words: &[&str]) -> redis::Value {
        let client = redis::Client::open(self.server.url()).unwrap();
        let mut raw = client.get_multiplexed_async_connection().await.unwrap();
        let mut cmd = redis::cmd(words[0]);
        cmd.arg(&words[1..]);
        cmd.query_async(&mut raw).await.unwrap()
    }

    pub(super) async fn count(&self, words: &[&str]) -> i64 {
        redis::from_redis_value(self.command(words).await).unwrap()
    }

    fn host(&self) -> &str {
        self.server.url().trim_start_matches("redis://").trim_end_matches('/')
    }

    pub(super) fn url(&self) -> String {
        format!("redis://{}/{DEAD}", self.host())
    }

    pub(super) fn run(&self, args: &[&str]) -> Ran {
        run(&[args, &["--from", &self.url()]].concat())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_verbs_that_look_read_the_stream() {
    let mut letters: Vec<_> = (0..40).map(born).collect();
    letters.extend([died_again(&born(3)), born(5)]);
    let Some(place) = Fixture::with(letters).await else { return };
    place.command(&["XADD", DEAD, "*", "type", "paid"]).await;
    let counted = place.run(&["count"]).ok();
    assert_eq!(counted.out, "40\n");
    assert!(counted.err.contains("foreign=1"), "{}", counted.err);
    let page = place.run(&["list", "--limit", "15", "-o", "json"]).ok().json();
    let cursor = page["next"].as_str().unwrap();
    let rest = place.run(&["list", "--limit", "0", "-o", "json", "--cursor", cursor]).ok().json();
    let letters = [&page, &rest].map(|page| page["letters"].as_array().unwrap().len());
    assert_eq!((letters, &rest["next"]), ([15, 25], &Value::Null));
    let stats = place.run(&["stats", "-o", "json"]).ok().json();
    assert_eq!((&stats["total"], &stats["by_status"]["pending"]), (&40.into(), &40.into()));
    let groups = place.run(&["groups", "--limit", "100", "-o", "json"]).ok().json();
    let groups = groups["groups"].as_array().unwrap();
    assert_eq!(groups.iter().map(|group| group["count"].as_u64().unwrap()).sum::<u64>(), 40);
    let id = born(7).id.to_string();
    let shown = place.run(&["show", &id[..12], "-o", "json"]).ok().out;
    assert!(shown.contains(&id), "{shown}");
    let peeked = place.run(&["peek", "--limit", "3", "-o", "json"]).ok().json();
    assert_eq!(peeked["latest"].as_array().unwrap().len(), 3, "{peeked}");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("letters.jsonl").display().to_string();
    place.run(&["export", "--to", &file]).ok();
    assert_eq!(read_to_string(file).unwrap().lines().count(), 40);
    assert_eq!(place.count(&["XLEN", DEAD]).await, 42, "nothing was removed");
}

#[tokio::test(flavor = "multi_thread")]
async fn letters_go_into_a_store_once_and_are_sent_from_there() {
    let Some(place) = Fixture::with((0..20).map(born).collect()).await else { return };
    place.command(&["XADD", DEAD, "*", "type", "paid"]).await;
    let folder = tempfile::tempdir().unwrap();
    let store = format!("sqlite://{}", folder.path().join("dlq.db").display());
    let ingest = ["ingest", "--once", "--into", &store, "-o", "json"];
    let report = place.run(&ingest).ok().json();
    assert_eq!(report["by_outcome"]["stored"], 20, "{report}");
    assert_eq!(run(&["count", "--from", &store]).ok().out, "20\n");
    let again = place.run(&ingest).ok().json();
    assert_eq!(again["by_outcome"]["stored"], Value::Null, "{again}");
    // The store is the one place that knows what becomes of letters from now on.
    let other = format!("sqlite://{}", folder.path().join("other.db").display());
    let other = place.run(&["ingest", "--once", "--into", &other]);
    assert_eq!(other.code, 2, "{}", other.err);
    assert!(other.err.contains("redis-cli DEL '{orders}:dlq:ingest:dlq-ingest'"), "{}", other.err);
    for verb in [&["mark", "resolved", "--all", "--yes"][..], &["replay", "--all", "--yes"]] {
        let refused = place.run(verb);
        assert_eq!(refused.code, 2, "{}", refused.err);
        assert!(
            refused.err.contains(&format!("dlq {} --from sqlite://", verb[0])),
            "{}",
            refused.err
        );
    }
    let via = format!("redis://{}", place.host());
    let send = ["replay", "--all", "--yes", "--to", "origin", "--via", &via, "--from", &store];
    run(&send).ok();
    assert_eq!(place.count(&["XLEN", "orders"]).await, 20);
    assert_eq!(run(&["count", "--status", "sent", "--from", &store]).ok().out, "20\n");
}

/// The rights that the README of `dlq-redis` names are enough, and one that is missing is named.
#[tokio::test(flavor = "multi_thread")]
async fn a_user_needs_the_rights_that_are_documented() {
    const LOOK: &str = "+xinfo|stream +xrange +xrevrange +hmget +smembers +eval +evalsha +info";
    const INGEST: &str = "+sadd +hget +hset +hincrby +hdel +zrevrange +time";
    const REPLAY: &str = "+type +xadd +hget +hset +zadd +zrem +zscore +zremrangebyscore +time +get +set +xinfo|groups";
    let Some(place) = Fixture::with((0..5).map(born).collect()).await else { return };
    let folder = tempfile::tempdir().unwrap();
    let store = format!("sqlite://{}", folder.path().join("dlq.db").display());
    let ingest = ["ingest", "--once", "--into", &store];
    let verbs: [(&str, &[&str]); 5] = [
        ("", &["count"]),
        ("", &["peek"]),
        ("+type", &["check"]),
        (REPLAY, &["replay", "--all", "--limit", "2", "--yes", "--to", "origin"]),
        (INGEST, &ingest),
    ];
    let user = async |rights: &str| {
        let words = format!("ACL SETUSER ops reset on >pw ~orders ~{{orders}}:* {LOOK} {rights}");
        place.command(&words.split_whitespace().collect::<Vec<_>>()).await;
    };
    let url = format!("redis://ops:pw@{}/{DEAD}", place.host());
    for (rights, verb) in verbs {
        user(rights).await;
        run(&[verb, &["--from", &url]].concat()).ok();
    }
    user("-xrange").await;
    let refused = run(&["count", "--from", &url]);
    assert_ne!(refused.code, 0);
    assert!(refused.err.contains("the user may not run `xrange`"), "{}", refused.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_names_settings_and_entries_that_lose_letters() {
    let Some(place) = Fixture::with((0..5).map(born).collect()).await else { return };
    place.run(&["check"]).ok();
    place.command(&["CONFIG", "SET", "appendonly", "no"]).await;
    place.command(&["XADD", DEAD, "*", "type", "paid"]).await;
    let found = place.run(&["check", "-o", "json"]);
    assert_eq!(found.code, 3, "{}", found.err);
    for part in ["appendonly", "1 foreign and 0 damaged"] {
        assert!(found.out.contains(part), "{part}: {}", found.out);
    }
    place.command(&["SET", &format!("{DEAD}:replays"), "text"]).await;
    let found = place.run(&["check"]);
    assert!(found.out.contains("key `{orders}:dlq:replays`"), "{}", found.out);
    assert_eq!(place.run(&["check", "--consumer", "a/b"]).code, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_read_is_named() {
    let Some(place) = Fixture::with(Vec::new()).await else { return };
    let missing = place.run(&["list"]);
    assert_eq!(missing.code, 1, "{}", missing.err);
    assert!(missing.err.contains("there is no stream `{orders}:dlq`"), "{}", missing.err);
    place.command(&["SET", DEAD, "text"]).await;
    for verb in ["list", "count"] {
        let other = place.run(&[verb]);
        assert_ne!(other.code, 0);
        assert!(other.err.contains("another type"), "{}", other.err);
    }
    let bare = run(&["list", "--from", &format!("redis://{}", place.host())]);
    assert_eq!(bare.code, 2, "{}", bare.err);
    assert!(bare.err.contains("names no stream of dead letters"), "{}", bare.err);
    let login = run(&["list", "--from", &format!("redis://ana:s3cret@{}/{DEAD}", place.host())]);
    assert_ne!(login.code, 0);
    assert!(!login.err.contains("s3cret"), "{}", login.err);
    let nobody = run(&["list", "--from", "redis://127.0.0.1:1/{orders}:dlq"]);
    assert_eq!(nobody.code, 1, "{}", nobody.err);
    let via = format!("redis://{}/orders", place.host());
    let store = tempfile::tempdir().unwrap();
    let store = format!("sqlite://{}", store.path().join("dlq.db").display());
    let key = run(&["replay", "--all", "--to", "origin", "--via", &via, "--from", &store]);
    assert_ne!(key.code, 0);
}

/// Two operators at once, of whom one is killed in the middle, and a third who comes after: each letter arrives once (G6).
#[tokio::test(flavor = "multi_thread")]
async fn g6_two_operators_and_a_kill_send_each_letter_once() {
    const LETTERS: i64 = 60;
    let letters = (0..60).map(|number| {
        let mut letter = born(number);
        letter.message = letter.message.with_payload(Some(number.to_string().into()));
        letter
    });
    let Some(place) = Fixture::with(letters.collect()).await else { return };
    let url = place.url();
    let replay = ["replay", "--all", "--yes", "--to", "origin", "--from", &url];
    let slowly = [&replay[..], &["--rate", "20/s", "--lease", "1s"]].concat();
    let mut killed = dlq(&slowly).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let other = dlq(&slowly).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let some = async {
        while place.count(&["XLEN", "orders"]).await < 10 {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(60), some).await.expect("they send");
    killed.kill().unwrap();
    block_in_place(|| killed.wait().unwrap());
    let third = run(&[&replay[..], &["-o", "json"]].concat()).ok().json();
    assert!(third["sent"].as_u64().unwrap() > 0, "{third}");
    block_in_place(|| other.wait_with_output().unwrap());
    assert_eq!(place.count(&["XLEN", "orders"]).await, LETTERS);
    let all = place.command(&["XRANGE", "orders", "-", "+"]).await;
    let all: Vec<(String, Fields)> = redis::from_redis_value(all).unwrap();
    let payloads = all.iter().flat_map(|(_, fields)| fields.iter().filter(|one| one.0 == b"d"));
    let payloads: BTreeSet<_> = payloads.map(|(_, payload)| payload.clone()).collect();
    assert_eq!(payloads.len(), 60, "each of them");
    assert_eq!(place.run(&["count", "--status", "sent"]).ok().out, "60\n");
    let nothing = run(&replay).ok();
    assert!(nothing.err.contains("nothing to replay"), "{}", nothing.err);
    // A store that is filled now knows of it.
    let folder = tempfile::tempdir().unwrap();
    let store = format!("sqlite://{}", folder.path().join("dlq.db").display());
    place.run(&["ingest", "--once", "--into", &store]).ok();
    assert_eq!(run(&["count", "--status", "sent", "--from", &store]).ok().out, "60\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_says_what_it_will_do_and_where_it_cannot() {
    let Some(place) = Fixture::with((0..5).map(born).collect()).await else { return };
    place.command(&["XGROUP", "CREATE", "orders", "shipping", "0"]).await;
    let dry = place.run(&["replay", "--all", "--to", "origin", "--dry-run", "-o", "json"]).ok();
    assert_eq!(dry.json()["plan"]["count"], 5);
    assert!(dry.err.contains("consumer `shipping` of `orders`"), "{}", dry.err);
    assert_eq!(place.count(&["XLEN", "orders"]).await, 0);
    let handler = place.run(&["replay", "--all", "--yes"]);
    assert_eq!(handler.code, 2, "{}", handler.err);
    assert!(handler.err.contains("--to origin"), "{}", handler.err);
    let nowhere = place.run(&["replay", "--all", "--yes", "--to", "nobody"]);
    assert_eq!(nowhere.code, 2, "{}", nowhere.err);
    assert!(nowhere.err.contains("there is no stream `nobody`"), "{}", nowhere.err);
    let id = born(3).id.to_string();
    let one = ["replay", "--id", &id[..12], "--yes", "--to", "origin", "-o", "json"];
    assert_eq!(place.run(&one).ok().json()["sent"], 1);
    let again = place.run(&[&one[..], &["--again"]].concat()).ok().json();
    assert_eq!((&again["sent"], place.count(&["XLEN", "orders"]).await), (&1.into(), 2));
    let shown = place.run(&["show", &id, "-o", "json"]).ok().out;
    assert!(shown.contains("\"replays\":2") || shown.contains("\"replays\": 2"), "{shown}");
}

//! Idempotency on a key-value bucket: the suite, by the server's clock, and what is its own.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::kv;
use bytes::Bytes;
use dlq_core::StoreErrorKind;
use dlq_core::idempotency::{Idempotency, IdempotencyClaim, Release};
use dlq_nats::{IdempotencyBucket, NatsIdempotency};
use dlq_testkit::fixtures::ManualClock;
use dlq_testkit::idempotency::IdempotencyFixture;
use tokio::time::{sleep, timeout};

use crate::fixture::{PATIENCE, Server, available};

const LEASE: Duration = Duration::from_secs(2);

/// One server for all checks, each with a bucket of its own.
struct Bucket {
    server: Arc<Server>,
    bucket: IdempotencyBucket,
}

impl IdempotencyFixture for Bucket {
    type Store = NatsIdempotency;

    async fn fresh(check: &'static str) -> Self {
        let server = Arc::new(Server::start().await);
        Self { server, bucket: IdempotencyBucket::new().name(check) }
    }

    async fn open(&self) -> NatsIdempotency {
        NatsIdempotency::open(&self.server.client, self.bucket.clone()).await.unwrap()
    }

    fn clock(&self) -> Option<&ManualClock> {
        None
    }
}

dlq_testkit::idempotency_conformance!(crate::idempotency::Bucket);

async fn open(server: &Server) -> NatsIdempotency {
    NatsIdempotency::open(&server.client, IdempotencyBucket::new()).await.unwrap()
}

async fn claim(keys: &NatsIdempotency, key: &'static str) -> IdempotencyClaim {
    keys.claim("billing".into(), Bytes::from_static(key.as_bytes()), LEASE).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_claimed_and_done_survives_a_killed_server() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let keys = open(&server).await;
    let IdempotencyClaim::New { token: done, .. } = claim(&keys, "done").await else { panic!() };
    assert!(keys.complete(done, Duration::from_secs(3600)).await.unwrap());
    let IdempotencyClaim::New { token: held, .. } = claim(&keys, "held").await else { panic!() };
    let IdempotencyClaim::New { token: free, .. } = claim(&keys, "free").await else { panic!() };
    assert!(keys.release(free, Release::Failed).await.unwrap());
    server.kill_and_restart().await;
    assert!(matches!(claim(&keys, "done").await, IdempotencyClaim::Done { .. }));
    assert!(keys.complete(held.clone(), Duration::from_secs(3600)).await.unwrap());
    let IdempotencyClaim::New { attempts, token, .. } = claim(&keys, "free").await else {
        panic!()
    };
    assert_eq!(attempts, 1);
    assert!(token.fence > held.fence, "fences grow across restarts");
    // Another process, later.
    assert!(matches!(claim(&open(&server).await, "held").await, IdempotencyClaim::Done { .. }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_with_other_settings_is_reported_and_not_changed() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let theirs = kv::Config {
        bucket: "DLQ_KEYS".to_owned(),
        history: 5,
        storage: async_nats::jetstream::stream::StorageType::Memory,
        ..kv::Config::default()
    };
    server.context.create_key_value(theirs).await.unwrap();
    let error = NatsIdempotency::open(&server.client, IdempotencyBucket::new()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::InvalidConfig);
    for part in ["bucket `DLQ_KEYS`", "`storage` is Memory", "`history` is 5", "`max_age` is 0ns"] {
        assert!(error.to_string().contains(part), "{part}: {error}");
    }
    let kept = server.context.get_key_value("DLQ_KEYS").await.unwrap();
    assert_eq!(kept.stream.cached_info().config.max_messages_per_subject, 5);
    let odd = IdempotencyBucket::new().name("no bucket");
    let error = NatsIdempotency::open(&server.client, odd).await.unwrap_err();
    assert!(error.to_string().contains("no bucket"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_that_goes_is_named_and_taken_up_again() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let keys = open(&server).await;
    assert!(matches!(claim(&keys, "a").await, IdempotencyClaim::New { .. }));
    server.context.delete_key_value("DLQ_KEYS").await.unwrap();
    let error = keys.claim("billing".into(), "a".into(), LEASE).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert!(error.is_transient() && error.to_string().contains("bucket `DLQ_KEYS`"), "{error}");
    let _other = open(&server).await;
    assert!(matches!(claim(&keys, "a").await, IdempotencyClaim::New { .. }));
}

/// As while another server becomes its leader.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_that_nobody_hears_for_a_moment_is_waited_for() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let keys = open(&server).await;
    server.context.delete_key_value("DLQ_KEYS").await.unwrap();
    // Asked first, on the same connection.
    let (claimed, _) = tokio::join!(claim(&keys, "a"), open(&server));
    assert!(matches!(claimed, IdempotencyClaim::New { .. }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_forgets_what_is_older_than_the_bucket_keeps() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let bucket = IdempotencyBucket::new().max_age(Duration::from_secs(1));
    let keys = NatsIdempotency::open(&server.client, bucket).await.unwrap();
    // A claim is as old as the bucket keeps before long.
    let completed = async {
        loop {
            let claimed = claim(&keys, "a").await;
            let IdempotencyClaim::New { token, .. } = claimed else { panic!("{claimed:?}") };
            if keys.complete(token, Duration::from_secs(3600)).await.unwrap() {
                break;
            }
        }
    };
    timeout(PATIENCE, completed).await.expect("it is completed in time once");
    let forgotten = async {
        while !matches!(claim(&keys, "a").await, IdempotencyClaim::New { .. }) {
            sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(PATIENCE, forgotten).await.expect("it is new again");
}

/// Variables that make this binary the other process of the test below.
const URL: &str = "DLQ_NATS_TEST_IDEMPOTENCY_URL";
const KEYS: u32 = 150;

/// Claims all keys and completes what it got; dies with one in flight.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_another_process() {
    let Ok(url) = std::env::var(URL) else { return };
    let client = async_nats::connect(url).await.unwrap();
    let keys = NatsIdempotency::open(&client, IdempotencyBucket::new()).await.unwrap();
    for number in 0..KEYS {
        let key = Bytes::from(number.to_string());
        let claim = keys.claim("billing".into(), key, LEASE).await.unwrap();
        if let IdempotencyClaim::New { token, crashes, .. } = claim {
            println!("claimed {number} {crashes}");
            if number % 50 == 49 {
                std::process::abort();
            }
            println!("completing {number}");
            assert!(keys.complete(token, Duration::from_secs(3600)).await.unwrap());
            println!("completed {number}");
        }
    }
    println!("through");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn racing_processes_that_die_handle_every_key_once() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    drop(open(&server).await);
    let url = server.running().url().to_owned();
    let program = std::env::current_exe().unwrap();
    let run = |program: &Path, url: &str| {
        Command::new(program)
            .args(["--exact", "idempotency::as_another_process", "--nocapture"])
            .env(URL, url)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let (mut claims, mut completed, mut kills) = (Vec::new(), Vec::new(), 0);
    let mut completing = BTreeSet::new();
    let keys = open(&server).await;
    for round in 0..3 {
        let both = [run(&program, &url), run(&program, &url)];
        if round == 0 {
            server.kill_and_restart().await;
        }
        let waiting = move || both.map(|child| child.wait_with_output().unwrap());
        let outputs = tokio::task::spawn_blocking(waiting);
        for output in timeout(PATIENCE, outputs).await.expect("they end").unwrap() {
            kills += u32::from(!output.status.success());
            for line in String::from_utf8(output.stdout).unwrap().lines() {
                // The harness begins the first line with the name of the test.
                let line = line.rsplit("... ").next().unwrap_or(line);
                let mut words = line.split(' ');
                match (words.next(), words.next().and_then(|number| number.parse::<u32>().ok())) {
                    (Some("claimed"), Some(number)) => claims.push(number),
                    (Some("completing"), Some(number)) => drop(completing.insert(number)),
                    (Some("completed"), Some(number)) => completed.push(number),
                    _ => {}
                }
            }
        }
    }
    // What a dead process held is free when its lease has ended, and the crash was counted.
    let mut crashes = 0;
    for number in 0..KEYS {
        let key = Bytes::from(number.to_string());
        let done = async {
            loop {
                match keys.claim(Arc::from("billing"), key.clone(), LEASE).await.unwrap() {
                    IdempotencyClaim::Done { .. } => return,
                    IdempotencyClaim::InFlight { remaining } => sleep(remaining).await,
                    IdempotencyClaim::New { token, crashes: crashed, .. } => {
                        crashes += crashed;
                        completed.push(number);
                        let keep = Duration::from_secs(3600);
                        assert!(keys.complete(token, keep).await.unwrap());
                    }
                }
            }
        };
        timeout(PATIENCE, done).await.expect("every key is done");
    }
    let unique: BTreeSet<u32> = completed.iter().copied().collect();
    assert_eq!(completed.len(), unique.len(), "no key is completed twice");
    // Whose server is killed while it answers does not hear that it has completed.
    let all: BTreeSet<u32> = unique.union(&completing).copied().collect();
    assert_eq!(all.len() as u32, KEYS);
    assert!(kills >= 3, "processes really died: {kills}");
    println!(
        "{KEYS} keys, {kills} deaths, {} claims, {crashes} crashes counted at the end",
        claims.len()
    );
}

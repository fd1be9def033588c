//! Three masters that share the slots: the suite, and one of them killed.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use dlq_core::idempotency::{Idempotency as _, Release};
use dlq_redis::{IdempotencyConfig, RedisIdempotency};
use dlq_services::{Cluster, RedisCluster, Service, ensure_installed, or_skip};
use dlq_testkit::fixtures::ManualClock;
use dlq_testkit::idempotency::IdempotencyFixture;
use std::time::Duration;

use crate::fixture::{
    HOUR, claim, command, fresh_prefix, is_done, new, patient, try_claim, until_claimed,
};

async fn open_at(url: &str, prefix: &str) -> RedisIdempotency {
    let client = patient().cluster(url.split(',')).await.unwrap();
    RedisIdempotency::open(&client, IdempotencyConfig::new().prefix(prefix)).await.unwrap()
}

/// The cluster that all checks share.
fn shared() -> String {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    CLUSTER.get_or_init(|| RedisCluster::builder().ours().start_cluster().unwrap()).url()
}

pub(crate) struct Keys(String);

impl IdempotencyFixture for Keys {
    type Store = RedisIdempotency;

    fn is_available() -> bool {
        or_skip(Service::Redis, ensure_installed(Service::Redis)).is_ok()
    }

    async fn fresh(_check: &'static str) -> Self {
        Self(fresh_prefix())
    }

    async fn open(&self) -> RedisIdempotency {
        open_at(&shared(), &self.0).await
    }

    fn clock(&self) -> Option<&ManualClock> {
        None
    }
}

mod conformance {
    dlq_testkit::idempotency_conformance!(crate::cluster::Keys);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_a_node_wait_for_it_and_others_go_on() {
    let started = RedisCluster::builder().ours().start_cluster();
    let Ok(mut cluster) = or_skip(Service::Redis, started) else { return };
    // Short, as every key of the killed node costs this time.
    let config = dlq_redis::RedisConfig::new().response_timeout(Duration::from_secs(2));
    let client = config.cluster(cluster.url().split(',')).await.unwrap();
    let keys = RedisIdempotency::open(&client, IdempotencyConfig::new()).await.unwrap();
    let checked = keys.check().await.unwrap();
    assert_eq!(checked.len(), 3, "of each node how it writes: {checked:?}");
    let mut tokens = BTreeMap::new();
    for number in 0..30 {
        let key = format!("order-{number}");
        let (token, ..) = new(until_claimed(&keys, &key).await);
        tokens.insert(key, token);
    }
    let on: Vec<usize> = (0..3)
        .map(|node| command(cluster.nodes()[node].url(), &["KEYS", "dlq:idem:*"]).unwrap())
        .map(|names| names.lines().count())
        .collect();
    assert_eq!(on.iter().sum::<usize>(), 30);
    assert!(on.iter().all(|count| *count > 0), "spread over all nodes: {on:?}");

    let gone = command(cluster.nodes()[0].url(), &["KEYS", "dlq:idem:*"]).unwrap();
    cluster.kill(0).unwrap();
    cluster.await_formed().unwrap();
    for (key, token) in &tokens {
        let name = format!("dlq:idem:billing:{key}");
        if gone.lines().any(|line| line == name) {
            let error = keys.complete(token.clone(), HOUR).await.unwrap_err();
            assert!(error.is_transient(), "{error}");
        } else {
            let completed = async {
                loop {
                    match keys.complete(token.clone(), HOUR).await {
                        Ok(completed) => return completed,
                        Err(error) => assert!(error.is_transient(), "{error}"),
                    }
                }
            };
            let completed = tokio::time::timeout(crate::fixture::PATIENCE, completed).await;
            assert!(completed.expect("others go on"), "{key}");
        }
    }
    cluster.restart(0).unwrap();
    for (key, token) in &tokens {
        let name = format!("dlq:idem:billing:{key}");
        if gone.lines().any(|line| line == name) {
            let found = until_claimed(&keys, key).await;
            assert!(!matches!(found, dlq_core::idempotency::IdempotencyClaim::New { .. }));
            assert!(keys.release(token.clone(), Release::Failed).await.unwrap());
            assert_eq!(new(claim(&keys, key).await).1, 1);
        } else {
            is_done(&try_claim(&keys, key).await.unwrap());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hash_tag_in_the_prefix_puts_all_keys_on_one_node() {
    if !Keys::is_available() {
        return;
    }
    let prefix = format!("{{{}}}", fresh_prefix());
    let keys = open_at(&shared(), &prefix).await;
    for number in 0..20 {
        let (token, ..) = new(claim(&keys, &format!("{{{number}}}")).await);
        assert!(keys.complete(token, Duration::ZERO).await.unwrap());
    }
    let nodes = shared();
    let counts: Vec<_> = nodes
        .split(',')
        .map(|url| command(url, &["KEYS", &format!("{prefix}:idem#*")]).unwrap().lines().count())
        .collect();
    assert_eq!(counts.iter().max(), Some(&21), "{counts:?}");
    tokio::time::sleep(Duration::from_millis(2)).await;
    assert_eq!(keys.purge(7).await.unwrap(), 7);
    assert_eq!(keys.purge(100).await.unwrap(), 13);
}

/// A slot that is half moved to another node: each key is at one of them, and new ones belong to the next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_a_slot_that_moves_are_where_it_says() {
    let started = RedisCluster::builder().ours().start_cluster();
    let Ok(cluster) = or_skip(Service::Redis, started) else { return };
    let keys = open_at(&cluster.url(), "{moving}").await;
    let urls: Vec<_> = cluster.nodes().iter().map(|node| node.url().to_owned()).collect();
    let (mut done, mut held) = (Vec::new(), Vec::new());
    for number in 0..20 {
        let key = format!("order-{number}");
        let (token, ..) = new(until_claimed(&keys, &key).await);
        if number % 2 == 0 {
            assert!(keys.complete(token, HOUR).await.unwrap());
            done.push(key);
        } else {
            held.push((key, token));
        }
    }
    let slot = command(&urls[0], &["CLUSTER", "KEYSLOT", "{moving}"]).unwrap();
    let names_at = |url: &str| command(url, &["CLUSTER", "GETKEYSINSLOT", &slot, "100"]).unwrap();
    let from = urls.iter().position(|url| !names_at(url).is_empty()).unwrap();
    let to = (from + 1) % 3;
    let id = |node: usize| command(&urls[node], &["CLUSTER", "MYID"]).unwrap();
    command(&urls[to], &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &id(from)]);
    command(&urls[from], &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &id(to)]);
    let port = urls[to].rsplit(':').next().unwrap();
    let moving = names_at(&urls[from]);
    let migrate = |name: &str| {
        command(&urls[from], &["MIGRATE", "127.0.0.1", port, name, "0", "60000"]);
    };
    // Only half of the keys move at first: the slot is then at both nodes, which is the state that is tested.
    let (first, second): (Vec<_>, Vec<_>) =
        moving.lines().enumerate().partition(|(index, _)| index % 2 == 0);
    first.iter().for_each(|(_, name)| migrate(name));
    assert_eq!(names_at(&urls[to]).lines().count(), first.len());

    for key in &done {
        is_done(&claim(&keys, key).await);
    }
    for (key, token) in &held {
        let found = claim(&keys, key).await;
        assert!(!matches!(found, dlq_core::idempotency::IdempotencyClaim::New { .. }), "{key}");
        assert!(keys.complete(token.clone(), HOUR).await.unwrap(), "{key}");
    }
    let (token, ..) = new(claim(&keys, "new").await);
    assert!(keys.release(token, Release::Failed).await.unwrap());
    assert_eq!(new(claim(&keys, "new").await).1, 1, "found again where it was put");

    second.iter().for_each(|(_, name)| migrate(name));
    for node in [to, from] {
        command(&urls[node], &["CLUSTER", "SETSLOT", &slot, "NODE", &id(to)]);
    }
    assert_eq!(names_at(&urls[to]).lines().count(), 22, "with the new one and the identity");
    for (key, _) in &held {
        is_done(&claim(&keys, key).await);
    }
    let found = claim(&keys, "new").await;
    assert!(matches!(found, dlq_core::idempotency::IdempotencyClaim::InFlight { .. }), "{found:?}");
}

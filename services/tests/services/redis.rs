//! Other versions of Redis, three masters that share the slots, and a master under sentinels.

use std::collections::BTreeSet;

use dlq_services::{
    Cluster, ErrorKind, Redis, RedisCluster, RedisSentinel, Running, Sentinels, Service, or_skip,
    wire,
};

use crate::single::{ours, survives};
use crate::{A_TRY, PATIENCE, until};

fn ask(node: &Running, words: &[&str]) -> Result<String, String> {
    let reply =
        wire::redis::command(node.url(), words, A_TRY).map_err(|error| error.to_string())?;
    Ok(reply.unwrap_or_default())
}

/// A server of another version, whose name and number its `INFO` has.
fn other(version: &str, expected: &str) {
    let Ok(program) = or_skip(Service::Redis, Redis::installed(version)) else { return };
    let Some(redis) = ours(Redis::builder().program(program), Service::Redis) else { return };
    let info = wire::redis::command(redis.url(), &["INFO", "server"], PATIENCE).unwrap().unwrap();
    assert!(info.contains(expected), "{info}");
    until(|| ask(&redis, &["SET", "kept", "a value"]));
    survives(redis, |redis| {
        let value = wire::redis::command(redis.url(), &["GET", "kept"], PATIENCE).unwrap();
        assert_eq!(value.as_deref(), Some("a value"));
        value
    });
}

#[test]
fn redis_6_survives() {
    other("6.2", "redis_version:6.2.5");
}

#[test]
fn valkey_9_survives() {
    other("valkey-9", "valkey_version:9.1.2");
}

/// Index of the node that owns the key, which is set there.
fn owned(cluster: &Cluster, key: &str) -> usize {
    let owns = |node: &Running| ask(node, &["SET", key, "a value"]).is_ok();
    until(|| cluster.nodes().iter().position(owns).ok_or("nobody owns it"))
}

fn cluster_goes_on_without_a_node(started: Result<Cluster, dlq_services::Error>) {
    let Ok(mut cluster) = or_skip(Service::Redis, started) else { return };
    let all = BTreeSet::from([0, 1, 2]);
    assert_eq!(cluster.url().split(',').count(), 3);
    let keys: Vec<String> = (0..30).map(|number| format!("kept {number}")).collect();
    let owners: Vec<usize> = keys.iter().map(|key| owned(&cluster, key)).collect();
    let distinct: BTreeSet<_> = owners.iter().copied().collect();
    assert_eq!(distinct, all, "each node has keys");
    let all_are_there = |cluster: &Cluster, but: Option<usize>| {
        for (key, &owner) in keys.iter().zip(&owners).filter(|(_, owner)| Some(**owner) != but) {
            until(|| match ask(&cluster.nodes()[owner], &["GET", key])?.as_str() {
                "a value" => Ok(()),
                other => Err(format!("`{key}` is `{other}`")),
            });
        }
    };
    all_are_there(&cluster, None);
    let elsewhere = (owners[0] + 1) % 3;
    let moved = ask(&cluster.nodes()[elsewhere], &["GET", &keys[0]]).unwrap_err();
    assert!(moved.contains("MOVED"), "{moved}");

    let gone = owners[0];
    let rest: BTreeSet<_> = all.iter().copied().filter(|&index| index != gone).collect();
    for way in ["kill", "pause"] {
        if way == "kill" { cluster.kill(gone) } else { cluster.pause(gone) }.unwrap();
        cluster.await_formed().unwrap();
        for &index in &rest {
            assert_eq!(cluster.view(index).unwrap().members, rest, "they know who is gone");
        }
        all_are_there(&cluster, Some(gone));
        if way == "kill" { cluster.restart(gone) } else { cluster.resume(gone) }.unwrap();
        cluster.await_formed().unwrap();
        assert_eq!(cluster.view(gone).unwrap().members, all, "it is back");
        all_are_there(&cluster, None);
    }
    let starts: Vec<_> = cluster.nodes().iter().map(Running::starts).collect();
    assert_eq!(starts.iter().sum::<u32>(), 4);
}

#[test]
fn three_redis_masters_go_on_with_two() {
    cluster_goes_on_without_a_node(RedisCluster::builder().ours().start_cluster());
}

#[test]
fn three_masters_of_redis_6_go_on_with_two() {
    let Ok(program) = or_skip(Service::Redis, Redis::installed("6.2")) else { return };
    cluster_goes_on_without_a_node(RedisCluster::builder().program(program).ours().start_cluster());
}

#[test]
fn a_server_alone_is_no_cluster() {
    let Some(redis) = ours(Redis::builder(), Service::Redis) else { return };
    let error = ask(&redis, &["CLUSTER", "INFO"]).unwrap_err();
    assert!(error.contains("cluster support disabled"), "{error}");
}

/// A value that the master has, as soon as it has it.
fn value(sentinels: &Sentinels, master: usize) -> String {
    until(|| ask(&sentinels.nodes()[master], &["GET", "kept"]))
}

#[test]
fn sentinels_make_the_replica_the_master() {
    let Ok(mut sentinels) = or_skip(Service::Redis, RedisSentinel::start()) else { return };
    assert_eq!(sentinels.urls().len(), 3);
    assert_eq!(sentinels.master().unwrap(), 0, "at first");
    until(|| ask(&sentinels.nodes()[0], &["SET", "kept", "first"]));
    let refused = ask(&sentinels.nodes()[1], &["SET", "kept", "elsewhere"]).unwrap_err();
    assert!(refused.contains("READONLY"), "{refused}");
    until(|| match ask(&sentinels.nodes()[1], &["GET", "kept"])?.as_str() {
        "first" => Ok(()),
        other => Err(format!("the replica has `{other}`")),
    });

    sentinels.kill(0).unwrap();
    let master = sentinels.await_failover(0).unwrap();
    assert_eq!((master, sentinels.master().unwrap()), (1, 1));
    assert_eq!(value(&sentinels, 1), "first");
    until(|| ask(&sentinels.nodes()[1], &["SET", "kept", "second"]));
    sentinels.restart(0).unwrap();
    sentinels.await_formed().unwrap();
    assert_eq!(value(&sentinels, 0), "second", "the former master follows");

    // Two of three sentinels are enough, also for a master that is only paused.
    sentinels.kill(2).unwrap();
    sentinels.pause(1).unwrap();
    assert_eq!(sentinels.await_failover(1).unwrap(), 0);
    assert_eq!(value(&sentinels, 0), "second");
    sentinels.resume(1).unwrap();
    sentinels.restart(2).unwrap();
    sentinels.await_formed().unwrap();
    assert_eq!(sentinels.master().unwrap(), 0);

    let error = sentinels.kill(5).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::System);
    assert_eq!(error.to_string(), "redis: there is no node 5; there are 5, counted from 0");
}

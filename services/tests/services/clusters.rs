//! Three nodes of each server that forms clusters.

use std::collections::BTreeSet;
use std::time::Duration;

use dlq_services::{
    Cluster, ErrorKind, KafkaCluster, NatsCluster, Postgres, Service, or_skip, wire,
};

use crate::{A_TRY, PATIENCE, until};

#[test]
fn three_nats_servers_go_on_with_two() {
    let started = NatsCluster::builder().ours().start_cluster();
    let Ok(mut cluster) = or_skip(Service::Nats, started) else { return };
    let ask = |cluster: &Cluster, index: usize, subject: &str, payload: &str, patience| {
        let node = &cluster.nodes()[index];
        wire::nats::request(node.url(), subject, payload, patience)
    };
    let stream = r#"{"name":"KEPT","subjects":["kept.*"],"storage":"file","num_replicas":3}"#;
    let reply = ask(&cluster, 0, "$JS.API.STREAM.CREATE.KEPT", stream, PATIENCE).unwrap();
    assert!(reply.contains("\"did_create\":true"), "{reply}");
    // Of a stream just created another node may not have heard; a message nobody heard is not kept.
    until(|| {
        let reply =
            ask(&cluster, 1, "kept.one", "a message", A_TRY).map_err(|error| error.to_string())?;
        if reply.contains("\"seq\":") { Ok(()) } else { Err(reply) }
    });

    goes_on_with_two(&mut cluster, |cluster, present| {
        // Elections in the stream's own group may take a moment longer.
        until(|| {
            let reply = ask(cluster, present, "$JS.API.STREAM.MSG.GET.KEPT", r#"{"seq":1}"#, A_TRY)
                .map_err(|error| error.to_string())?;
            if reply.contains("\"subject\":\"kept.one\"") { Ok(()) } else { Err(reply) }
        });
    });
}

#[test]
fn three_kafka_brokers_go_on_with_two() {
    let started = KafkaCluster::builder().ours().start_cluster();
    let Ok(mut cluster) = or_skip(Service::Kafka, started) else { return };
    goes_on_with_two(&mut cluster, |cluster, present| {
        until(|| {
            let url = cluster.nodes()[present].url();
            let metadata =
                wire::kafka::metadata(url, &["kept"], A_TRY).map_err(|error| error.to_string())?;
            let replicas = metadata.topics[0].replicas.first().cloned().unwrap_or_default();
            let replicas: BTreeSet<_> = replicas.into_iter().collect();
            let all = BTreeSet::from([1, 2, 3]);
            if replicas == all { Ok(()) } else { Err(format!("{metadata:?}")) }
        });
    });
}

/// The leader is killed, the other two go on under a new one, it comes back; all the while `check`
/// holds when asked of a node that is there.
fn goes_on_with_two(cluster: &mut Cluster, check: impl Fn(&Cluster, usize)) {
    let all = BTreeSet::from([0, 1, 2]);
    assert_eq!(cluster.url().split(',').count(), 3);
    for (index, node) in cluster.nodes().iter().enumerate() {
        until(|| node.ping());
        assert_eq!(cluster.view(index).unwrap().members, all, "they know one another");
    }
    let leader = cluster.leader().unwrap().expect("a formed cluster has a leader");
    check(cluster, leader);

    cluster.kill(leader).unwrap();
    assert!(cluster.nodes()[leader].ping_within(Duration::from_millis(300)).is_err());
    cluster.await_formed().unwrap();
    let others: BTreeSet<_> = all.iter().copied().filter(|&index| index != leader).collect();
    for &index in &others {
        until(|| cluster.nodes()[index].ping());
        assert_eq!(cluster.view(index).unwrap().members, others, "they know who is gone");
        check(cluster, index);
    }
    let next = cluster.leader().unwrap().expect("two of three elect a leader");
    assert!(others.contains(&next));

    cluster.restart(leader).unwrap();
    assert_eq!(cluster.view(leader).unwrap().members, all, "it is back");
    check(cluster, leader);
    let starts: Vec<_> = cluster.nodes().iter().map(|node| node.starts()).collect();
    assert_eq!(starts.iter().sum::<u32>(), 4);
    assert_eq!(starts[leader], 2);

    let error = cluster.kill(3).unwrap_err();
    assert_eq!(
        error.to_string().split(": ").nth(1),
        Some("there is no node 3; there are 3, counted from 0")
    );
}

#[test]
fn other_servers_form_no_cluster() {
    let error = Postgres::builder().start_cluster().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert_eq!(error.to_string(), "postgres: only nats, kafka and redis form clusters here");
    let error = Postgres::builder().start_sentinels().unwrap_err();
    assert_eq!(error.to_string(), "postgres: only redis has sentinels");
}

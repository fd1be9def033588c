//! Every server is installed, starts, answers, and survives what the other tests will do to it.

use std::time::Duration;

use dlq_services::{
    ErrorKind, Running, Service, postgres_query, redis_command, require, start, start_cluster,
};

const PATIENCE: Duration = Duration::from_secs(5);

/// The server, or the end of the test where it may be missing.
fn server(service: Service) -> Option<Running> {
    require(service).unwrap_or_else(|error| panic!("{error}"))
}

/// Killed and restarted it answers on the same URL; paused it does not, resumed it does.
fn survives(mut running: Running) {
    let url = running.url().to_owned();
    running.ping().unwrap();
    running.kill().unwrap();
    assert_eq!(running.ping().unwrap_err().kind(), ErrorKind::NoAnswer);
    running.restart().unwrap();
    assert_eq!(running.url(), url);
    running.ping().unwrap();
    running.pause().unwrap();
    assert_eq!(running.ping().unwrap_err().kind(), ErrorKind::NoAnswer);
    running.resume().unwrap();
    running.ping().unwrap();
}

#[test]
fn nats_answers_and_survives() {
    if let Some(running) = server(Service::Nats) {
        survives(running);
    }
}

#[test]
fn kafka_answers_and_survives() {
    if let Some(running) = server(Service::Kafka) {
        survives(running);
    }
}

#[test]
fn redis_keeps_what_was_written_before_a_kill() {
    let Some(mut running) = server(Service::Redis) else { return };
    assert_eq!(redis_command(running.url(), &["SET", "a", "kept"], PATIENCE).unwrap(), "+OK");
    running.kill().unwrap();
    running.restart().unwrap();
    assert_eq!(redis_command(running.url(), &["GET", "a"], PATIENCE).unwrap(), "kept");
    survives(running);
}

#[test]
fn postgres_keeps_what_was_committed_before_a_kill() {
    let Some(mut running) = server(Service::Postgres) else { return };
    postgres_query(
        running.url(),
        "CREATE TABLE t (x text); INSERT INTO t VALUES ('kept')",
        PATIENCE,
    )
    .unwrap();
    running.kill().unwrap();
    running.restart().unwrap();
    assert!(postgres_query(running.url(), "SELECT x FROM t", PATIENCE).unwrap().ends_with("kept"));
    survives(running);
}

#[test]
fn three_nats_servers_go_on_with_two() {
    three_go_on_with_two(Service::Nats);
}

#[test]
fn three_kafka_brokers_go_on_with_two() {
    three_go_on_with_two(Service::Kafka);
}

fn three_go_on_with_two(service: Service) {
    // Where a single one can be had (and is not somebody else's), three can.
    if server(service).is_none() {
        return;
    }
    let mut cluster = start_cluster(service).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(cluster.url().split(',').count(), 3);
    cluster.nodes().iter().for_each(|node| node.ping().unwrap());
    cluster.node(0).unwrap().kill().unwrap();
    cluster.nodes()[1..].iter().for_each(|node| node.ping().unwrap());
    cluster.node(0).unwrap().restart().unwrap();
    cluster.nodes().iter().for_each(|node| node.ping().unwrap());
}

#[test]
fn mongodb_has_no_recipe_and_says_what_to_do() {
    if std::env::var_os(Service::Mongo.variable()).is_some() {
        return;
    }
    let error = start(Service::Mongo).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("DLQ_TEST_MONGO_URL"), "{error}");
}

#[test]
fn only_nats_and_kafka_come_in_threes() {
    assert_eq!(start_cluster(Service::Redis).unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn a_url_in_the_environment_replaces_a_server() {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_services"))
        .arg("env")
        .envs(
            Service::ALL
                .map(|service| (service.variable(), "redis://ana:s3cret@example.invalid:1")),
        )
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.matches("example.invalid:1").count(), Service::ALL.len(), "{text}");
    assert!(!text.contains("s3cret"), "{text}");
}

#[test]
fn wrong_arguments_are_usage_errors() {
    for args in [&[] as &[&str], &["down"], &["up", "oracle"]] {
        let output =
            std::process::Command::new(env!("CARGO_BIN_EXE_services")).args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("usage:"));
    }
}

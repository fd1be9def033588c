//! What can be wrong before anything is read: each is named, and no password is shown.

use std::net::TcpListener;
use std::time::Instant;

use crate::common::{Ran, dlq};
use crate::fixture::{Bench, PATIENCE};
use crate::ingest::letters;

fn run(args: &[&str]) -> Ran {
    tokio::task::block_in_place(|| dlq(args).output().unwrap().into())
}

/// Runs the command, which fails so, soon.
#[track_caller]
fn wrong(args: &[&str], code: i32, expected: &[&str]) {
    let begun = Instant::now();
    let ran = run(args);
    assert_eq!(ran.code, code, "{args:?}: {}", ran.err);
    for text in expected {
        assert!(ran.err.contains(text), "{args:?}: `{text}` is not in {}", ran.err);
    }
    assert!(!ran.err.contains("s3cret") && ran.out.is_empty(), "{args:?}: {}", ran.err);
    assert!(begun.elapsed() < PATIENCE, "{args:?}: {:?}", begun.elapsed());
}

#[test]
fn what_is_no_url_is_refused() {
    tokio::runtime::Builder::new_multi_thread().build().unwrap().block_on(async {
        let how = "kafka://HOST:PORT[,HOST:PORT]/TOPIC";
        wrong(&["count", "--from", "kafka://"], 2, &["names no broker", how]);
        wrong(&["count", "--from", "kafka://ana:s3cret@h:port/t"], 2, &["names no broker"]);
        wrong(&["count", "--from", "kafka://ana:s3cret@h/a b"], 2, &["name of a topic"]);
        wrong(&["count", "--from", "kafka://h:9092"], 2, &["name of a topic"]);
        let at = ["count", "--from", "kafka://localhost/t"];
        let with = |more: &[&'static str]| [&at[..], more].concat();
        wrong(&with(&["--kafka", "security.protocol"]), 2, &["KEY=VALUE"]);
        wrong(&with(&["--kafka-config", "/none.conf"]), 2, &["/none.conf"]);
        wrong(&with(&["--tls-ca", "/none.pem"]), 2, &["/none.pem"]);
        wrong(&with(&["--kafka", "bootstrap.servers=h"]), 2, &["bootstrap.servers"]);
        wrong(&with(&["--kafka", "no.such.setting=s3cret"]), 1, &["no.such.setting"]);
        wrong(&with(&["--kafka", "group.id=x"]), 1, &["group.id"]);
        wrong(&with(&["--kafka", "ssl.key.password=s3cret"]), 1, &[]);
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_not_there_is_said_soon() {
    // Nobody listens there.
    let address = "127.0.0.1:1";
    let url = format!("kafka://ana:s3cret@{address}/orders.dlq");
    let folder = tempfile::tempdir().unwrap();
    let into = format!("sqlite://{}", folder.path().join("dlq.db").display());
    for args in [&["count"] as &[&str], &["ingest", "--once", "--into", &into], &["check"]] {
        wrong(&[args, &["--from", &url]].concat(), 1, &[address]);
    }
    wrong(&["replay", "--all", "--yes", "--from", &url], 1, &[address]);
    assert!(!folder.path().join("dlq.db").exists());
    // One that takes connections and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    wrong(&["list", "--from", &format!("kafka://{address}/orders.dlq")], 1, &[&address]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_is_missing_is_named() {
    let Some(bench) = Bench::with("bad", letters(1)).await else { return };
    let url = format!("kafka://{}/none.dlq", bench.host);
    let into = bench.store_url();
    for args in [&["count"] as &[&str], &["ingest", "--once", "--into", &into]] {
        wrong(&[args, &["--from", &url]].concat(), 1, &["none.dlq", bench.host]);
    }
    wrong(&["replay", "--all", "--yes", "--from", &url], 1, &["none.dlq"]);
    wrong(&["delete", "--all", "--yes", "--from", &url], 1, &["none.dlq"]);
    assert!(!std::path::Path::new(&bench.file("dlq.db")).exists());
    // A login that this broker does not ask for.
    let login = format!("kafka://ana:s3cret@{}/bad.dlq", bench.host);
    wrong(&["count", "--from", &login], 1, &[bench.host]);
    let ran = bench.run(&["count", "--kafka", "client.id=ops"]).ok();
    assert_eq!(ran.out, "1\n");
    let file = bench.file("client.properties");
    std::fs::write(&file, "# ours\nclient.id=ops\n").unwrap();
    assert_eq!(bench.run(&["count", "--kafka-config", &file]).ok().out, "1\n");
    let mut command = bench.command(&["count"]);
    command.env("DLQ_KAFKA_ACKS", "0");
    let ran = Ran::from(tokio::task::block_in_place(|| command.output()).unwrap());
    assert_eq!(ran.code, 1, "the environment has settings: {}", ran.err);
    assert!(ran.err.contains("`acks`"), "{}", ran.err);

    let refused = bench.run(&["route"]);
    assert_eq!(refused.code, 2, "{}", refused.err);
    assert!(refused.err.contains("NATS"), "{}", refused.err);
}

//! What can be wrong before anything is read: each is named, and no password is shown.

use std::net::TcpListener;
use std::time::Instant;

use dlq_nats::async_nats::jetstream::{self, stream};
use dlq_nats::async_nats::{self, ConnectOptions};
use dlq_testkit::fixtures::letter;

use crate::common::{Ran, dlq};
use crate::fixture::{Bench, PATIENCE, server_in, server_with};
use crate::process::Process;

fn run(args: &[&str]) -> Ran {
    tokio::task::block_in_place(|| dlq(args).output().unwrap().into())
}

/// Runs `dlq count` there.
#[track_caller]
fn wrong(url: &str, code: i32, expected: &[&str]) {
    let begun = Instant::now();
    let ran = run(&["count", "--from", url]);
    assert_eq!(ran.code, code, "{url}: {}", ran.err);
    for text in expected {
        assert!(ran.err.contains(text), "{url}: `{text}` is not in {}", ran.err);
    }
    assert!(!ran.err.contains("s3cret") && ran.out.is_empty(), "{url}: {}", ran.err);
    assert!(begun.elapsed() < PATIENCE, "{url}: it took {:?}", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_url_is_refused() {
    wrong("nats://", 2, &["names no server", "HOST:PORT/STREAM"]);
    wrong("nats://ana:s3cret@h:port/DLQ", 2, &["names no server"]);
    wrong("nats://ana:s3cret@h/D.Q", 2, &["name of a stream"]);
    wrong("http://h/DLQ", 2, &["sqlite://PATH", "nats://HOST/STREAM"]);
    wrong("amqp://h/DLQ", 2, &["amqp://h/DLQ", "nats://HOST/STREAM"]);
    let help = dlq(&["count", "--help"]).env("DLQ_FROM", "nats://ana:s3cret@h").output().unwrap();
    assert!(!String::from_utf8(help.stdout).unwrap().contains("s3cret"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_not_there_is_said_soon() {
    // Nobody listens there.
    wrong("nats://ana:s3cret@127.0.0.1:1/DLQ", 1, &["no server was reached"]);
    // One that takes connections and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    wrong(&format!("nats://127.0.0.1:{port}/DLQ"), 1, &[&format!("127.0.0.1:{port}")]);
    wrong("nats://host.invalid/DLQ", 1, &["no server was reached", "host.invalid"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_missing_or_another_is_named() {
    let Some(bench) = Bench::with("bad", vec![letter(1)]).await else { return };
    wrong(&format!("{}/NONE", bench.host()), 1, &["no stream `NONE`", "DLQ_bad"]);
    let subjects = vec!["other.>".to_owned()];
    let config = stream::Config { name: "OTHER".to_owned(), subjects, ..stream::Config::default() };
    bench.context.create_stream(config).await.unwrap();
    wrong(&format!("{}/OTHER", bench.host()), 2, &["`OTHER`", "other.>", "not dead letters"]);
    let host = bench.host().trim_start_matches("nats://");
    wrong(&format!("tls://{host}/DLQ_bad"), 1, &["speaks TLS"]);

    for (args, expected) in [
        (&["ingest"] as &[&str], "--into"),
        (&["ingest", "--into", "nats://ana:s3cret@h/DLQ"], "has no store"),
        (&["ingest", "--into", "dlq.db"], "sqlite://PATH"),
        (&["ingest", "--into", "sqlite://x.db", "--lease", "soon"], "soon"),
        (&["check", "--consumer", "S"], "STREAM/CONSUMER"),
        (&["count", "--creds", "/none.creds"], "/none.creds"),
        (&["count", "--tls-ca", "/none.pem"], "/none.pem"),
    ] {
        let ran = bench.run(args);
        assert_eq!(ran.code, 2, "{args:?}: {}", ran.err);
        assert!(ran.err.contains(expected) && !ran.err.contains("s3cret"), "{args:?}: {}", ran.err);
    }
    assert!(!std::path::Path::new("x.db").exists());

    let into = bench.store_url();
    bench.run(&["ingest", "--into", &into, "--once"]).ok();
    for args in [&["route"] as &[&str], &["ingest", "--into", &into]] {
        let ran = run(&[args, &["--from", &into]].concat());
        assert_eq!(ran.code, 2, "{args:?}: {}", ran.err);
        assert!(ran.err.contains("works at a broker"), "{}", ran.err);
    }
}

const USERS: &str = r#"{ users: [
    { user: "guest", password: "guest" },
    { user: "ana", password: "s3cret" },
    { user: "carl", password: "s3cret", permissions: { publish: { deny: ["$JS.ACK.>"] } } },
    { user: "bob", password: "s3cret", permissions: { publish: { deny: ["$JS.API.CONSUMER.>", "$JS.API.STREAM.INFO.HIDDEN"] } } }
] }"#;

#[tokio::test(flavor = "multi_thread")]
async fn who_may_not_is_told_what() {
    let Some(server) = tokio::task::block_in_place(|| server_with("authorization", USERS)) else {
        return;
    };
    let host = server.url().trim_start_matches("nats://").trim_end_matches('/').to_owned();
    let ana = ConnectOptions::with_user_and_password("ana".to_owned(), "s3cret".to_owned());
    let client = ana.connect(server.url()).await.unwrap();
    dlq_nats::NatsSink::open(&client, dlq_nats::DlqStream::new()).await.unwrap();

    assert_eq!(run(&["count", "--from", &format!("nats://ana:s3cret@{host}")]).ok().out, "0\n");
    for url in [format!("nats://ana:wrong@{host}"), format!("nats://t0k@{host}")] {
        wrong(&url, 1, &["does not know this user", "--creds"]);
    }
    wrong(
        &format!("nats://bob:s3cret@{host}/HIDDEN"),
        1,
        &["does not permit", "$JS.API.STREAM.INFO.HIDDEN"],
    );
    let folder = tempfile::tempdir().unwrap();
    let into = format!("sqlite://{}", folder.path().join("dlq.db").display());
    let bob = format!("nats://bob:s3cret@{host}/DLQ");
    let ran = run(&["ingest", "--once", "--into", &into, "--from", &bob]);
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert!(ran.err.contains("$JS.API.CONSUMER") && !ran.err.contains("s3cret"), "{}", ran.err);
    // Reads, and cannot say that it has.
    let sink = dlq_nats::NatsSink::open(&client, dlq_nats::DlqStream::new()).await.unwrap();
    dlq_core::Sink::put(&sink, vec![letter(1)]).await.unwrap();
    let carl = format!("nats://carl:s3cret@{host}/DLQ");
    let ran = run(&["ingest", "--once", "--into", &into, "--from", &carl]);
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert!(ran.err.contains("does not permit") && ran.err.contains("$JS.ACK.DLQ"), "{}", ran.err);
    assert_eq!(ran.out, "1 letters stored\n", "what was done is told all the same");
    // Who stays does not end of it, which may pass.
    dlq_core::Sink::put(&sink, vec![letter(2)]).await.unwrap();
    let mut process = Process::start(dlq(&["ingest", "--into", &into, "--from", &carl]));
    process.says(&letter(2).id.to_string());
    process.says("the server refuses something");
    process.signal("-TERM");
    let ran = process.end().ok();
    assert!(ran.out.contains("1 letters stored"), "{}", ran.out);
}

#[tokio::test(flavor = "multi_thread")]
async fn whether_there_is_a_store_is_not_guessed() {
    // Who asks for consumers of the stream is not heard.
    let lost = r#"{ "$JS.API.CONSUMER.LIST.DLQ": "nowhere" }"#;
    let Some(server) = tokio::task::block_in_place(|| server_in("mappings", lost)) else {
        return;
    };
    let client = async_nats::connect(server.url()).await.unwrap();
    dlq_nats::NatsSink::open(&client, dlq_nats::DlqStream::new()).await.unwrap();
    let ran = run(&["delete", "--all", "--yes", "--from", server.url()]);
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert!(!ran.err.contains("ingest"), "{}", ran.err);
}

const ACCOUNTS: &str = r#"{
    JS: { jetstream: enabled, users: [ { user: "guest", password: "guest" } ] },
    PLAIN: { users: [ { user: "ana", password: "s3cret" } ] }
}"#;

#[tokio::test(flavor = "multi_thread")]
async fn an_account_without_jetstream_is_told() {
    let Some(server) = tokio::task::block_in_place(|| server_with("accounts", ACCOUNTS)) else {
        return;
    };
    let host = server.url().trim_start_matches("nats://").trim_end_matches('/').to_owned();
    wrong(&format!("nats://ana:s3cret@{host}"), 1, &["JetStream"]);
    // The server itself answers.
    let ana = ConnectOptions::with_user_and_password("ana".to_owned(), "s3cret".to_owned());
    let client: async_nats::Client = ana.connect(server.url()).await.unwrap();
    assert!(jetstream::new(client).query_account().await.is_err());
}

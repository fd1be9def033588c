//! Crash marks in a bucket.

use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::{kv, stream};
use dlq_core::{CrashMarks, LetterId, Origin, Position, StoreErrorKind};
use dlq_nats::NatsCrashMarks;

use crate::fixture::{Server, available};
use crate::letters::users;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g3_marks_count_runs_that_did_not_end() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let open = || NatsCrashMarks::open(&server.client, "dlq-marks", 1);
    let letter = |n| LetterId::of(&Origin::new("nats", "ORDERS", Position::Offset(n)), None, "c");
    let marks = open().await.unwrap();
    assert_eq!(marks.begin(letter(1)).await.unwrap(), 0);
    assert_eq!(marks.begin(letter(1)).await.unwrap(), 1);
    drop(marks);
    server.kill_and_restart().await;
    let marks = open().await.unwrap();
    assert_eq!(marks.begin(letter(1)).await.unwrap(), 2, "the mark outlasts process and server");
    assert_eq!(marks.begin(letter(2)).await.unwrap(), 0, "another message has its own");
    marks.end(letter(1), 2).await.unwrap();
    assert_eq!(marks.begin(letter(1)).await.unwrap(), 2, "those of other runs are left");
    marks.end(letter(1), 9).await.unwrap();
    assert_eq!(marks.begin(letter(1)).await.unwrap(), 3, "none is added");
    marks.end(letter(1), 0).await.unwrap();
    for left in [0, 1] {
        marks.end(letter(1), left).await.unwrap();
        marks.end(letter(3), left).await.unwrap();
    }
    assert_eq!(marks.begin(letter(1)).await.unwrap(), 0);
    assert_eq!(marks.begin(letter(3)).await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g3_a_mark_that_nobody_confirmed_counts_no_run() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let mut context = server.context.clone();
    context.set_timeout(Duration::from_secs(2));
    let open = || NatsCrashMarks::open(&context, "dlq-marks", 1);
    let processes = [open().await.unwrap(), open().await.unwrap(), open().await.unwrap()];
    let letter = |n| LetterId::of(&Origin::new("nats", "ORDERS", Position::Offset(n)), None, "c");
    let letters = [letter(0), letter(1), letter(2)];
    assert_eq!(processes[0].begin(letters[0]).await.unwrap(), 0);
    let bucket = server.context.get_stream("KV_dlq-marks").await.unwrap();
    let config = bucket.cached_info().config.clone();
    // The server keeps what it is sent, and does not say so.
    let silent = stream::Config { no_ack: true, ..config.clone() };
    server.context.update_stream(silent).await.unwrap();
    for (marks, letter) in processes.iter().zip(letters) {
        marks.begin(letter).await.unwrap_err();
    }
    server.context.update_stream(config).await.unwrap();
    assert_eq!(server.count("KV_dlq-marks").await, 3, "all of them were written");
    assert_eq!(processes[0].begin(letters[0]).await.unwrap(), 1, "the run that did begin");
    assert_eq!(processes[1].begin(letters[1]).await.unwrap(), 0);
    assert_eq!(processes[1].begin(letters[1]).await.unwrap(), 1);
    processes[2].end(letter(9), 0).await.unwrap();
    assert_eq!(processes[0].begin(letters[2]).await.unwrap(), 0, "nor does it count elsewhere");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_that_would_forget_marks_is_refused() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let hour = Duration::from_secs(3600);
    for (name, storage, max_age, why) in [
        ("memory", stream::StorageType::Memory, Duration::ZERO, "`storage` is Memory"),
        ("short", stream::StorageType::File, hour, "`max_age` is 3600s"),
        ("will-do", stream::StorageType::File, Duration::ZERO, ""),
    ] {
        let bucket = name.to_owned();
        let config = kv::Config { bucket, storage, max_age, ..kv::Config::default() };
        server.context.create_key_value(config).await.unwrap();
        let opened = NatsCrashMarks::open(&server.client, name, 1).await;
        match opened {
            Err(error) => {
                assert_eq!(error.kind(), StoreErrorKind::InvalidConfig, "{name}");
                assert!(!why.is_empty() && error.to_string().contains(why), "{error}");
            }
            Ok(_) => assert_eq!(why, "", "{name}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mark_that_the_server_has_removed_is_none() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let marks = NatsCrashMarks::open(&server.client, "dlq-marks", 1).await.unwrap();
    let letter = LetterId::of(&Origin::new("nats", "ORDERS", Position::Offset(1)), None, "c");
    assert_eq!(marks.begin(letter).await.unwrap(), 0);
    let mut headers = HeaderMap::new();
    headers.insert("Nats-Marker-Reason", "MaxAge");
    let subject = format!("$KV.dlq-marks.{letter}");
    let left = server.context.publish_with_headers(subject, headers, "".into()).await;
    left.unwrap().await.unwrap();
    assert_eq!(marks.begin(letter).await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_who_may_not_read_marks_is_told() {
    told("$JS.API.STREAM.MSG.GET.KV_dlq-marks").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_who_may_not_write_marks_is_told() {
    told("$KV.dlq-marks.>").await;
}

/// When it is tried, by the subject and what to do about it.
async fn told(denied: &str) {
    if !available() {
        return;
    }
    let may = format!("{{ publish: {{ deny: [\"{denied}\"] }} }}");
    let server = Server::bare(&[("authorization", &users(&may))], "root", "root").await;
    let app = server.connect("app", "app").await;
    let marks = NatsCrashMarks::open(&app, "dlq-marks", 1).await.unwrap();
    let origin = Origin::new("nats", "ORDERS", Position::Offset(1));
    let letter = LetterId::of(&origin, None, "c");
    if denied.starts_with("$KV.") {
        let text = marks.end(letter, 0).await.unwrap_err().to_string();
        assert!(text.contains(denied) && text.contains("`permissions"), "{text}");
    }
    let text = marks.begin(letter).await.unwrap_err().to_string();
    assert!(text.contains(denied) && text.contains("`permissions"), "{text}");
}

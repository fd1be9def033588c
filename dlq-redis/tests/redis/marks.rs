//! Crash marks.

use std::time::Duration;

use dlq_core::{CrashMarks, LetterId, Origin, Position};
use dlq_redis::RedisConfig;

use crate::fixture::{Server, available, billing};

fn letter(n: u64) -> LetterId {
    LetterId::of(&Origin::new("redis", "orders", Position::Pair(n, 0)), None, "c")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g3_marks_count_runs_that_did_not_end() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let marks = billing().crash_marks(&server.client).await.unwrap();
    assert_eq!(marks.begin(letter(1)).await.unwrap(), 0);
    assert_eq!(marks.begin(letter(1)).await.unwrap(), 1);
    tokio::task::block_in_place(|| server.running().restart().unwrap());
    let marks = billing().crash_marks(&server.client).await.unwrap();
    assert_eq!(marks.begin(letter(1)).await.unwrap(), 2, "marks outlast process and server");
    assert_eq!(marks.begin(letter(2)).await.unwrap(), 0, "another message has its own");
    marks.end(letter(1), 2).await.unwrap();
    assert_eq!(marks.begin(letter(1)).await.unwrap(), 2, "those of other runs are left");
    marks.end(letter(1), 9).await.unwrap();
    assert_eq!(marks.begin(letter(1)).await.unwrap(), 3, "none is added");
    for _ in 0..2 {
        marks.end(letter(1), 0).await.unwrap();
        marks.end(letter(3), 0).await.unwrap();
    }
    assert_eq!(marks.begin(letter(1)).await.unwrap(), 0);
    marks.explain(letter(4)).await.unwrap();
    assert_eq!(marks.explained(letter(4)).await.unwrap(), 1);
    assert_eq!(marks.begin(letter(4)).await.unwrap(), 0, "explanations are no marks");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g3_a_mark_that_nobody_confirmed_counts_no_run() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let config = RedisConfig::new().response_timeout(Duration::from_millis(300)).retries(0);
    let client = config.open(&server.url()).await.unwrap();
    let marks = billing().crash_marks(&client).await.unwrap();
    assert_eq!(marks.begin(letter(1)).await.unwrap(), 0);
    server.running().pause().unwrap();
    marks.begin(letter(1)).await.expect_err("nobody responds");
    server.running().resume().unwrap();
    // The server has carried it out by the time it answers anything.
    assert_eq!(server.int(&format!("HLEN {{orders}}:marks:{}", letter(1))).await, 2);
    assert_eq!(marks.begin(letter(1)).await.unwrap(), 1, "the run that did begin");
}

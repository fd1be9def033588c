//! Crash marks in a bucket.

use dlq_core::{CrashMarks, LetterId, Origin, Position};
use dlq_nats::NatsCrashMarks;

use crate::fixture::{Server, available};

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
    marks.end(letter(1)).await.unwrap();
    assert_eq!(marks.begin(letter(1)).await.unwrap(), 0);
    marks.end(letter(3)).await.unwrap();
}

use dlq_core::store::Sink as _;
use dlq_services::{Service, ensure_installed, or_skip};
use dlq_testkit::fixtures::letter;

use crate::fixture::{command, run};
use crate::process::Process;
use crate::schema::Schema;

/// Whoever watches an operation waits for the database as consumers do, and sees the end.
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_outlives_a_restart_of_the_database() {
    if or_skip(Service::Postgres, ensure_installed(Service::Postgres)).is_err() {
        return;
    }
    let mut server =
        tokio::task::block_in_place(|| Service::Postgres.builder().ours().start().unwrap());
    let schema = Schema::at(server.url(), "watched");
    let store = schema.store().await;
    store.put((0..3).map(letter).collect()).await.unwrap();
    let id = run(&schema.url(), &["replay", "--all", "--yes"]).ok().out.trim().to_owned();
    run(&schema.url(), &["op", "pause", &id]).ok();
    let mut watch = Process::start(command(&schema.url(), &["op", "watch", &id]));
    watch.says("is paused");
    tokio::task::block_in_place(|| server.stop().unwrap());
    watch.says("looking again");
    tokio::task::block_in_place(|| server.restart().unwrap());
    run(&schema.url(), &["op", "cancel", &id]).ok();
    let ran = watch.end();
    assert_eq!(ran.code, 3, "{}", ran.err);
    assert!(ran.out.contains("cancelled: 3 of 3 letters done"), "{}", ran.out);
}

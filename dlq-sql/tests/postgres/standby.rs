//! A hot standby, which is read but not written to until it is promoted.

use std::path::Path;
use std::process::Command;

use dlq_core::store::{CheckLimits, Letters as _, Maintenance as _, Receipt, Sink as _};
use dlq_core::{Filter, StoreErrorKind};
use dlq_services::{Running, Service, ensure_installed};
use dlq_sql::postgres::PostgresStore;
use dlq_testkit::fixtures::letter;
use sqlx::{Connection as _, Executor as _, PgConnection};
use tokio::task::block_in_place;
use tokio::time::Instant;

use crate::fixture::{PATIENCE, Schema, available};

/// A copy of what the server has in `data`, which follows it from then on.
fn copied(server: &Running, data: &Path) {
    let program = ensure_installed(Service::Postgres).unwrap().with_file_name("pg_basebackup");
    let mut owner = Command::new("chown");
    let is_root =
        owner.arg("postgres").arg(data.parent().unwrap()).status().is_ok_and(|it| it.success());
    let mut copy = if is_root { Command::new("runuser") } else { Command::new(&program) };
    if is_root {
        copy.args(["-u", "postgres", "--"]).arg(&program);
    }
    copy.arg("--write-recovery-conf").arg("--dbname").arg(server.url()).arg("--pgdata").arg(data);
    let ended = copy.args(["--checkpoint", "fast"]).output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_is_read_and_written_to_once_it_is_promoted() {
    if !available() {
        return;
    }
    let server = block_in_place(|| Service::Postgres.builder().ours().start().unwrap());
    let schema = Schema::at(server.url());
    schema.store().await.put(vec![letter(1), letter(2)]).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let node = folder.path().join("n1");
    std::fs::create_dir_all(&node).unwrap();
    let standby = block_in_place(|| {
        // Everybody may pass through on the way to their own.
        Command::new("chmod").arg("755").arg(folder.path()).status().unwrap();
        copied(&server, &node.join("data"));
        Service::Postgres.builder().ours().keep_in(folder.path()).start().unwrap()
    });
    let open = || PostgresStore::builder(standby.url()).schema(&schema.name).migrate(false).open();
    let store = open().await.unwrap();
    let began = Instant::now();
    while store.count(Filter::new()).await.unwrap() < 2 {
        assert!(began.elapsed() < PATIENCE, "it follows");
    }
    assert_eq!(store.get(letter(1).id).await.unwrap().unwrap().message, letter(1).message);
    let error = store.put(vec![letter(3)]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert!(error.to_string().contains("read-only, a replica perhaps"), "{error}");
    let found = store.check(CheckLimits::default()).await.unwrap();
    let settings: Vec<_> = found.iter().map(|finding| finding.setting.as_str()).collect();
    assert_eq!(settings, ["LISTEN"], "{found:?}");
    assert!(found[0].found.contains("read-only"), "{found:?}");
    let mut conn = PgConnection::connect(standby.url()).await.unwrap();
    conn.execute("SELECT pg_promote()").await.unwrap();
    let began = Instant::now();
    let receipts = loop {
        match store.put(vec![letter(3)]).await {
            Ok(receipts) => break receipts,
            Err(error) => assert!(began.elapsed() < PATIENCE, "{error}"),
        }
    };
    assert_eq!(receipts, [Receipt::Stored]);
    assert_eq!(store.count(Filter::new()).await.unwrap(), 3);
}

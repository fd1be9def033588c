//! G1 on a disk that is full: the server is told so by the file system, as by a real one, without any rights being needed.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use dlq_core::store::Sink as _;
use dlq_core::{Message, StoreErrorKind};
use dlq_services::{Running, Service};
use dlq_testkit::fixtures::letter_of;
use sqlx::{Connection as _, Executor as _, PgConnection};
use tempfile::TempDir;
use tokio::task::block_in_place;
use tokio::time::{Instant, sleep, timeout};

use crate::faults::{WHILE, World, impatient};
use crate::fixture::{PATIENCE, Schema, available};

/// A disk that is full while a file is there.
struct Disk(TempDir);

impl Disk {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        // The server may be another user.
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/postgres/full_disk.c");
        let mut compile = Command::new("cc");
        compile.args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"]);
        compile.arg(folder.path().join("full.so")).arg(source).arg("-ldl");
        let done = compile.status().expect("the C compiler that SQLite needs too is there");
        assert!(done.success(), "{compile:?} failed");
        Self(folder)
    }

    fn server(&self) -> Running {
        let path = |path: PathBuf| path.to_str().unwrap().to_owned();
        let server = Service::Postgres.builder().ours();
        let server = server.env("LD_PRELOAD", path(self.0.path().join("full.so")));
        server.env("FULL_DISK", path(self.0.path().to_owned())).start().unwrap()
    }

    /// For tables (`data`) or for the log of the database (`wal`).
    fn fill(&self, what: &str) {
        fs::write(self.0.path().join(what), "").unwrap();
    }

    fn make_room(&self, what: &str) {
        fs::remove_file(self.0.path().join(what)).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn g1_the_disk_of_the_tables_is_full() {
    if !available() {
        return;
    }
    let disk = Disk::new();
    let server = disk.server();
    let schema = Schema::at(server.url());
    let store = impatient(&schema).await;
    let mut world = World::start(store.clone());
    world.until(900).await;
    disk.fill("data");
    // Large enough to need room of its own, and not to be compressed into what there is.
    let large = letter_of(noise(), 5_000_000);
    let began = Instant::now();
    let error = loop {
        match store.put(vec![large.clone()]).await {
            Err(error) if error.to_string().contains("disk") => break error,
            other => assert!(began.elapsed() < PATIENCE, "the disk is never full: {other:?}"),
        }
    };
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert!(error.to_string().contains("the disk of the database is full; make room"), "{error}");
    world.publish(1_000);
    sleep(WHILE).await;
    disk.make_room("data");
    let errors = world.ends_well(&schema, "the disk of the tables is full").await;
    assert!(errors > 0, "nobody was struck");
    schema.store().await.put(vec![large]).await.unwrap();
}

/// A database that cannot write its log stops. It may have to be started again by hand.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn g1_the_disk_of_the_log_is_full() {
    if !available() {
        return;
    }
    let disk = Disk::new();
    let mut server = disk.server();
    let schema = Schema::at(server.url());
    let mut world = World::start(impatient(&schema).await);
    world.until(900).await;
    disk.fill("wal");
    let stopped = async {
        // Each begins a new file of the log; those that are there are used up first.
        while use_up_a_file(server.url()).await.is_ok() {}
    };
    timeout(PATIENCE, stopped).await.expect("the database stops");
    world.publish(1_000);
    sleep(WHILE).await;
    disk.make_room("wal");
    block_in_place(|| server.restart().unwrap());
    let errors = world.ends_well(&schema, "the disk of the log is full").await;
    assert!(errors > 0, "nobody was struck");
}

async fn use_up_a_file(url: &str) -> Result<(), sqlx::Error> {
    let mut conn = PgConnection::connect(url).await?;
    conn.execute("SELECT pg_logical_emit_message(true, 'x', 'x'); SELECT pg_switch_wal()").await?;
    conn.close().await
}

/// A megabyte that does not compress.
fn noise() -> Message {
    let mut state = 1_u64;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes()
    };
    let bytes: Vec<u8> = (0..1 << 17).flat_map(|_| next()).collect();
    Message::new("orders", bytes)
}

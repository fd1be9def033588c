//! A store in a folder of its own, and the command on it.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use dlq_core::store::{Actor, Letters as _, Maintenance as _};
use dlq_core::{DeadLetter, Filter, Resolution, Sink as _, Status, Timestamp};
use dlq_sql::sqlite::SqliteStore;
use dlq_testkit::fixtures::{hostile_messages, letter, letter_of};
use tempfile::TempDir;

use crate::common::{Ran, dlq};

pub(crate) struct Bench {
    pub(crate) folder: TempDir,
    pub(crate) store: SqliteStore,
}

impl Bench {
    pub(crate) async fn with(letters: Vec<DeadLetter>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(folder.path().join("dlq.db")).await.unwrap();
        store.put(letters).await.unwrap();
        Self { folder, store }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A path in the folder as an argument.
    pub(crate) fn arg(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// Writes a file, and returns its path.
    pub(crate) fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> String {
        std::fs::write(self.path(name), bytes).unwrap();
        self.arg(name)
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = dlq(args);
        command.env("DLQ_FROM", format!("sqlite://{}", self.arg("dlq.db")));
        command.env_remove("EDITOR").env_remove("VISUAL");
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        self.command(args).output().unwrap().into()
    }

    pub(crate) async fn count(&self) -> u64 {
        self.store.count(Filter::new()).await.unwrap()
    }
}

/// A store with a letter of every status and every odd content.
pub(crate) async fn of_every_kind() -> Bench {
    let bench = Bench::with(Vec::new()).await;
    let time = |seconds: u64| {
        Timestamp::from_nanos(1_790_000_000_123_456_789).after(Duration::from_secs(seconds))
    };
    let every = (0..).zip(Status::ALL).map(|(n, status)| {
        let mut letter = letter(n);
        let state = &mut letter.state;
        state.status = *status;
        state.resolution = (*status == Status::Resolved).then_some(Resolution::Succeeded);
        state.due = (*status == Status::Retrying).then_some(time(900));
        state.retry_count = 7;
        state.replays = 3;
        state.last_retry_at = Some(time(n));
        state.created_at = time(n);
        state.updated_at = time(n + 5);
        letter
    });
    bench.store.restore(every.collect(), Actor::new("ana")).await.unwrap();
    let odd = (100..).zip(hostile_messages()).map(|(n, (_, message))| letter_of(message, n));
    bench.store.put(odd.collect()).await.unwrap();
    bench
}

/// Waits until something has happened.
pub(crate) async fn until(mut happened: impl AsyncFnMut() -> bool) {
    let wait = async {
        let mut look = tokio::time::interval(Duration::from_millis(1));
        while !happened().await {
            look.tick().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), wait).await.expect("it happens");
}

//! A store in a folder of its own, and the command on it.

use std::path::{Path, PathBuf};
use std::process::Command;

use dlq_core::DeadLetter;
use dlq_core::store::Sink as _;
use dlq_sql::sqlite::SqliteStore;
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

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("dlq.db")
    }

    pub(crate) fn url(&self) -> String {
        url(&self.path())
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = dlq(args);
        command.env("DLQ_FROM", self.url());
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        self.command(args).output().unwrap().into()
    }

    /// Changes the file behind the store's back.
    pub(crate) fn tamper(&self, sql: &str) {
        rusqlite::Connection::open(self.path()).unwrap().execute_batch(sql).unwrap();
    }
}

pub(crate) fn url(path: &Path) -> String {
    format!("sqlite://{}", path.display())
}

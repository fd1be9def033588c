//! A store in a schema of its own, and the command on it.

use std::process::Command;

use dlq_core::DeadLetter;
use dlq_core::store::Sink as _;
use dlq_services::wire;
use dlq_sql::postgres::PostgresStore;
use tempfile::TempDir;

use crate::common::{Ran, dlq};
use crate::schema::{PATIENCE, Schema};

pub(crate) struct Bench {
    pub(crate) folder: TempDir,
    pub(crate) schema: Schema,
    pub(crate) store: PostgresStore,
}

impl Bench {
    /// `None` where there is no server to be had.
    pub(crate) async fn with(name: &str, letters: Vec<DeadLetter>) -> Option<Self> {
        let schema = tokio::task::block_in_place(|| Schema::new(name))?;
        let store = schema.store().await;
        store.put(letters).await.unwrap();
        Some(Self { folder: tempfile::tempdir().unwrap(), schema, store })
    }

    /// A path in the folder as an argument.
    pub(crate) fn arg(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        command(&self.schema.url(), args)
    }

    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        run(&self.schema.url(), args)
    }
}

impl Schema {
    /// What a user sees and does in this schema.
    pub(crate) fn sql(&self, sql: &str) -> wire::postgres::Rows {
        let sql = format!("SET search_path = {}; {sql}", self.name);
        wire::postgres::query(&self.server, &sql, PATIENCE).unwrap()
    }
}

pub(crate) fn command(url: &str, args: &[&str]) -> Command {
    let mut command = dlq(args);
    command.env("DLQ_FROM", url);
    command
}

pub(crate) fn run(url: &str, args: &[&str]) -> Ran {
    tokio::task::block_in_place(|| command(url, args).output().unwrap().into())
}

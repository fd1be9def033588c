//! `dlq serve` as Prometheus meets it, the table of metrics in `docs/metrics.md`, and the rules and the dashboard in
//! `ops/`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod alerts;
#[path = "../common/mod.rs"]
mod common;
mod console;
mod consumer;
mod documented;
#[allow(dead_code, reason = "others need all of it")]
#[path = "../common/http.rs"]
mod http;
mod page;
#[path = "../common/process.rs"]
mod process;
mod receiver;
mod rules;
mod serve;
mod served;
mod table;

use std::path::{Path, PathBuf};

/// The root of the workspace.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

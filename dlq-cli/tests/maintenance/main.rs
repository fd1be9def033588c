//! What keeps a store in order: `edit`, `cleanup`, `export` and `import`, also when they are killed.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod audit;
mod cleanup;
#[path = "../common/mod.rs"]
mod common;
mod edit;
mod export;
mod fixture;
mod import;
#[cfg(feature = "postgres")]
mod import_table;
#[path = "../common/process.rs"]
mod process;
mod restore;
mod triage;

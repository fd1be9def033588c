//! Dead letter stores on SQL databases.
//!
//! | module | database | for |
//! |---|---|---|
//! | [`sqlite`] | a file, embedded | one machine: any number of processes, no server |
//!
//! Every store gives the same answers as [`dlq_core::store::memory`], durably: a call that writes returns once what it
//! wrote would survive a power cut.
//!
//! # Features
//!
//! | feature | default | gives |
//! |---|---|---|
//! | `sqlite` | yes | [`sqlite::SqliteStore`], with SQLite built in |

#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod migration;
#[cfg(feature = "sqlite")]
pub mod sqlite;

#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub use migration::{Migration, MigrationStep};

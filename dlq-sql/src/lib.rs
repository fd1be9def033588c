//! Dead letter stores on SQL databases.
//!
//! | module | database | for |
//! |---|---|---|
//! | [`sqlite`] | a file, embedded | one machine: any number of processes, no server |
//! | [`postgres`] | PostgreSQL | any number of processes on any number of machines |
//!
//! Every store gives the same answers as the store in memory (`dlq-letters`), durably: a call that writes returns once what it
//! wrote would survive a power cut.
//!
//! # Features
//!
//! | feature | default | gives |
//! |---|---|---|
//! | `sqlite` | yes | [`sqlite::SqliteStore`], with SQLite built in |
//! | `postgres` | no | [`postgres::PostgresStore`] |
//! | `postgres-tls` | no | secure connections to it |

#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod columns;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod error;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod escape;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod kinds;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod values;

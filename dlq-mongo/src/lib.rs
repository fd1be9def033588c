//! MongoDB as a store of dead letters and of idempotency keys.
//!
//! ```no_run
//! use dlq_mongo::MongoStore;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = MongoStore::builder("mongodb://localhost/orders").open().await?;
//! let keys = store.idempotency();
//! # drop((store, keys));
//! # Ok(()) }
//! ```
//!
//! # What it needs
//!
//! A MongoDB server of version 4.4 or later: a single server, a replica set or a sharded cluster whose collections of this
//! store are not sharded. No transactions, no change streams, no update pipelines. FerretDB is refused, since its
//! `findAndModify` is not atomic.
//!
//! # Durability
//!
//! Every write asks for the confirmation of a majority of the servers, with the journal written, whatever the URL says.
//! `w=0` in the URL is refused.
//!
//! # Commits
//!
//! A change of one letter is one conditional update. A change of several documents is a commit of its own making: written
//! first, then decided by one conditional update, then applied by whoever comes by. Another reader may see letters of such a
//! change one after another; a process that dies leaves nothing half done.

mod backend;
mod change;
mod codec;
mod commit;
mod config;
mod db;
mod dedup;
mod error;
mod fast;
mod filter;
pub mod foreign;
mod idempotency;
mod keys;
mod letters;
mod load;
mod maintenance;
mod marks;
mod operations;
mod parts;
mod run;
mod schema;
mod select;
mod store;

pub use config::MongoBuilder;
pub use idempotency::MongoIdempotency;
/// The driver, in the version that this crate was built with.
pub use mongodb;
pub use store::MongoStore;

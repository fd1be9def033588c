//! Description of a deployment, creation of missing topics, and checks of existing ones.
//!
//! A [`Deployment`] describes consumers and the topics they need; it can be read from a file.
//! [`create`](Deployment::create) makes what is missing, and [`check`](Deployment::check) looks at what is there. Neither
//! changes anything that exists: what differs is a [`Finding`], and changing it is the operator's.
//!
//! ```no_run
//! # async fn check() -> Result<(), dlq_core::StoreError> {
//! use dlq_kafka::Brokers;
//! use dlq_kafka::admin::{ConsumerPlan, Deployment};
//!
//! let mut deployment = Deployment::default();
//! deployment.consumers.push(ConsumerPlan::new("orders", "billing"));
//! for finding in deployment.check(&Brokers::at("localhost:9092")).await? {
//!     println!("{finding}");
//! }
//! # Ok(()) }
//! ```
//!
//! # What is looked at
//!
//! | looked at | finding |
//! |---|---|
//! | every topic | missing; not to be seen by this user; partitions without a leader; one replica in a cluster; `min.insync.replicas` that confirms too early, or stops all writing when one broker is away; unclean elections; settings that this user may not read |
//! | retry topics | compaction; retention by size; retention that is shorter than the delay, or hardly longer; fewer partitions than the consumer's topic; messages that are too small for our headers; those that are no stage of their ladder any more, where groups do not share them; where they do, records that no group of the deployment takes, among the newest 10,000 of each partition |
//! | dead-letter topics | compaction; retention by size, or shorter than asked; fewer partitions; messages that are too small for letters; letters that are about to be removed |
//! | the consumer's topic, where letters may be too large for the dead-letter topic and then only point to it | compaction; retention that is shorter than that of the letters, or by size |
//! | brokers | topics that are made by asking for them; offsets that are forgotten early; commits whose metadata are too small, or of unknown size |
//!
//! Whether brokers write to disk before they confirm is not looked at: Kafka relies on replicas instead.
//!
//! # If the process dies here
//!
//! `create` asks for all missing topics by one request, of which any part may be done: what was made stays, and running
//! it again makes the rest. `check` writes nothing.

mod check;
mod claims;
mod deployment;
mod rules;

pub use deployment::{ConsumerPlan, Created, Deployment};
pub use dlq_core::{Finding, Severity};

//! Description of a deployment, creation of missing parts, and checks of existing ones.
//!
//! A [`Deployment`] describes streams, consumers and buckets; it can be read from a file.
//! [`create`](Deployment::create) makes what is missing, and [`check`](Deployment::check) looks at what is there. Neither
//! changes anything that exists: what differs is a [`Finding`], and changing it is the operator's.
//!
//! ```no_run
//! # async fn check(client: async_nats::Client) -> Result<(), dlq_core::StoreError> {
//! use dlq_nats::admin::{ConsumerPlan, Deployment};
//!
//! let mut deployment = Deployment::default();
//! deployment.consumers.push(ConsumerPlan::new("ORDERS", "billing"));
//! for finding in deployment.check(&client).await? {
//!     println!("{finding}");
//! }
//! # Ok(()) }
//! ```
//!
//! # What is looked at
//!
//! The streams that are named, or all of the account when none is; on them the consumers that are named, which are
//! *ours* and must never be dropped by the server, and all other durable ones, which need the
//! [event router](crate::router) when their `max_deliver` is finite.
//!
//! | looked at | finding |
//! |---|---|
//! | server | no JetStream; a version without schedules or filters; permissions that are missing; no answer |
//! | streams of ours | missing while their subjects belong to another stream; other settings than asked; a bound that evicts; fullness; the age of the oldest letter; a duplicate window that is shorter than a lease; messages that are too small for letters |
//! | the retry stream | parts of records that nobody reads; records that were not handed out when they were due |
//! | the user's streams | memory; one replica in a cluster; bounds that drop what nobody has settled; `work queue` and `interest`, whose terminated messages a router cannot read |
//! | consumers of ours | a limit of deliveries; a backoff; acknowledgement; a lease that is too short or too long; `max_ack_pending` below the prefetch |
//! | other consumers | a limit of deliveries without a router; another limit than the router expects, or none; no acknowledgement |
//! | router | nobody is listening |
//! | buckets | missing; memory; one replica in a cluster; entries that are evicted |
//!
//! Whether the server writes to disk before it confirms (`sync_interval`) cannot be seen from outside.
//!
//! # Permissions
//!
//! A server refuses in silence: a request that is not permitted is not answered, and an acknowledgement that is not
//! permitted is not missed before its message comes again. So sources, retry queues and sinks ask the server once each, at
//! their start, who they are, and refuse to start where that says that they cannot fetch, acknowledge or write. `check`
//! asks the same for all of a deployment by one request, with what is only needed later: reading of what stands aside and
//! of messages with headers that no client reads, late acknowledgements, buckets, the router. A user who may not ask
//! starts, and learns of what is missing when it is needed.
//!
//! # If the process dies here
//!
//! `create` makes one thing after the other, each by one request: what was made stays, and running it again makes the
//! rest. `check` writes nothing.

mod create;
mod deployment;
mod look;
mod permissions;
mod retries;
mod rules;

pub use create::Created;
pub use deployment::{ConsumerPlan, Deployment, StreamPlan};
pub use dlq_core::{Finding, Severity};

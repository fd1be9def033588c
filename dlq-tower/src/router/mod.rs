//! Router: hands each message to the handler that takes it, by event or subject.
//!
//! # Where it goes
//!
//! Into a [`Consumer`](crate::consumer), as one handler would.
//!
//! # Example
//!
//! ```
//! use dlq_tower::handler::{Handles, handler};
//! use dlq_tower::router::{Router, event};
//! # async fn order() {}
//! # async fn audit() {}
//! # async fn paid() {}
//!
//! let router = Router::new()
//!     .name("shop")
//!     .route("orders.*", handler("shop.order", order))
//!     .route("orders.>", handler("shop.audit", audit))
//!     .route(event("payment.created"), handler("shop.paid", paid))
//!     .build()?;
//! assert_eq!(router.names().len(), 4);
//! # Ok::<(), dlq_tower::handler::InvalidConfig>(())
//! ```
//!
//! # Which route
//!
//! A message goes to exactly one handler:
//!
//! 1. a letter or retry record to the handler that failed, by its name or a former one, whatever the routes say now;
//! 2. a message that reports an event to the route of that event;
//! 3. any other to the route of its subject; of several that match, to the **narrowest**: `orders.created` before
//!    `orders.*` before `orders.>`;
//! 4. what is left to the [fallback](RouterBuilder::fallback).
//!
//! Where two patterns meet and neither is narrower, as `orders.*` and `*.created` do, [`RouterBuilder::build`] refuses
//! both: order of declaration decides nothing. So it does with two handlers of one name, whose letters could not be
//! told apart.
//!
//! # On failure
//!
//! A message that no handler takes is dead at once, with the reason `rejected` and the router's own name as its
//! consumer: nothing is dropped in silence. The letter's error names its subject. Once there is a route for it, replay it to the handler: the router takes
//! back its own letters and routes them anew.
//!
//! # Cost
//!
//! One look-up for a literal subject or event; otherwise one comparison per pattern. Nothing is allocated.

mod builder;
mod future;
mod matcher;
mod pattern;
mod service;
mod table;

/// Name of a router that was given none.
pub(crate) const DEFAULT_NAME: &str = "router";

pub use builder::RouterBuilder;
pub use future::RouteFuture;
pub use matcher::{Matcher, event};
pub use service::Router;

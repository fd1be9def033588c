//! A console and an HTTP interface for dead letters, as a router of axum.
//!
//! ```no_run
//! use dlq_admin::{Access, Admin, Role, Token};
//! use dlq_core::DeadLetters;
//!
//! # fn mount(letters: DeadLetters, token: String) {
//! let admin = Admin::new(letters).access(Access::tokens([Token::new("ana", Role::Admin, token)]));
//! let app: axum::Router = axum::Router::new().nest("/dlq", admin.router());
//! # let _ = app; }
//! ```
//!
//! `/dlq` is the console, for people: what waits, groups of errors, letters, replays, edits, the audit. Every page works
//! without a script. `/dlq/api/v1/{store}/…` is the same for programs: the JSON documents of the command `dlq`, filters by the
//! names of its options, and its refusals. `/dlq/api/v1/openapi.json` describes it.
//!
//! # Who may do what
//!
//! [`Access`] says who is let in, [`Role`] what they may do. Unless told otherwise everybody who reaches the router may do
//! everything, so that it answers requests to loopback addresses alone.
//!
//! Letters hold text of others. It is shown as text, with control characters as escapes, under a policy
//! (`Content-Security-Policy`) by which a page loads nothing but the two files of this crate.
//!
//! # If the process dies
//!
//! Sessions, the answers of idempotency keys and counts of failed logins are in memory: people log in again, and a
//! request that is made again is carried out again. Letters and operations are in the store, where a call that changes
//! something may be repeated.

#![deny(clippy::expect_used, reason = "a request must not end the process")]
#![cfg_attr(test, allow(clippy::expect_used))]

mod access;
mod actions;
mod api;
mod call;
mod door;
mod events;
mod filter;
mod guesses;
mod hidden;
mod idempotency;
pub mod mask;
mod openapi;
mod pages;
mod params;
mod random;
mod refusal;
mod routes;
mod same_site;
mod sessions;
pub mod shown;
mod trends;

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::Router;
use dlq_core::DeadLetters;
use dlq_core::store::Cluster;

pub use access::{Access, Role, Token, UnknownRole};

use events::Events;
use guesses::Guesses;
use idempotency::Answers;
use mask::Mask;
use sessions::Sessions;
use trends::Trends;

/// Console and HTTP interface of one or several stores. See the [crate's page](crate).
#[derive(Clone, Debug)]
#[must_use = "it serves nothing until its router is mounted"]
pub struct Admin {
    stores: Vec<(String, DeadLetters)>,
    access: Access,
    via: BTreeSet<Cluster>,
    mask: Mask,
}

impl Admin {
    /// The dead letters of one store, called `default`.
    pub fn new(letters: DeadLetters) -> Self {
        Self::named("default", letters)
    }

    /// The dead letters of one store, by a name for people and for paths.
    pub fn named(name: impl Into<String>, letters: DeadLetters) -> Self {
        let stores = vec![(name.into(), letters)];
        Self { stores, access: Access::open(), via: BTreeSet::new(), mask: Mask::default() }
    }

    /// Adds a store. One of the same name takes the place of the former.
    pub fn store(mut self, name: impl Into<String>, letters: DeadLetters) -> Self {
        let name = name.into();
        // Paths name stores, so two of one name would leave the second out of reach.
        self.stores.retain(|(other, _)| *other != name);
        self.stores.push((name, letters));
        self
    }

    /// Sets who is let in. Defaults to [`Access::open`].
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// Sets the brokers that somebody sends letters of operations to, such as a
    /// [dispatcher](dlq_core::outbox::Dispatcher) in this process or `dlq serve --replay`. Letters can then be sent to where
    /// they came from and to other subjects too. Defaults to none: letters go back to their handlers alone.
    pub fn via(mut self, clusters: impl IntoIterator<Item = Cluster>) -> Self {
        self.via = clusters.into_iter().collect();
        self
    }

    /// Sets the rules by which parts of messages are masked, for all roles and stores: on pages, in the HTTP interface and
    /// where the audit quotes edits. A letter that is revealed, with a reason, is shown to the role `admin` as it is.
    /// Defaults to none.
    ///
    /// ```
    /// # use dlq_admin::{Admin, mask::Mask};
    /// # fn of(admin: Admin) -> Result<Admin, dlq_admin::mask::InvalidRule> {
    /// Ok(admin.mask(Mask::new(["$.card.number", "headers.authorization"])?))
    /// # }
    /// ```
    pub fn mask(mut self, mask: Mask) -> Self {
        self.mask = mask;
        self
    }

    /// Returns the router, which works at any path that it is nested under.
    pub fn router(self) -> Router {
        routes::router(Arc::new(Console {
            stores: self.stores,
            access: self.access,
            via: self.via,
            mask: self.mask,
            sessions: Sessions::default(),
            guesses: Guesses::default(),
            answers: Answers::default(),
            events: Events::default(),
            trends: Trends::default(),
            // Without a source of secrets no form is accepted, rather than any.
            secret: random::bytes().ok(),
        }))
    }
}

/// State that all requests have in common.
#[derive(Debug)]
pub(crate) struct Console {
    stores: Vec<(String, DeadLetters)>,
    access: Access,
    via: BTreeSet<Cluster>,
    mask: Mask,
    sessions: Sessions,
    guesses: Guesses,
    answers: Answers,
    events: Events,
    trends: Trends,
    secret: Option<[u8; 32]>,
}

impl Console {
    /// Returns the token that forms of this session or user carry. Nobody else can read or compute it.
    fn csrf(&self, of: &str) -> Option<String> {
        let secret = self.secret.as_ref()?;
        // The token is computed rather than kept, so that it needs no memory for each session and ends with the process,
        // as sessions do.
        Some(blake3::keyed_hash(secret, of.as_bytes()).to_hex().to_string())
    }
}

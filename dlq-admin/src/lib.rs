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
//! # Logs of brokers
//!
//! A [`BrokerLog`] is shown beside stores, or alone: what can be read of a store can be read of it, as of its latest reading,
//! and its letters can be sent back. They cannot be marked, edited or deleted, since a log only grows; routes that would do so
//! answer 409.
//!
//! # If the process dies
//!
//! Sessions, the answers of idempotency keys and counts of failed logins are in memory: people log in again, and a
//! request that is made again is carried out again. Letters and operations are in the store, where a call that changes
//! something may be repeated.
//!
//! A replay of a log runs in the process, and ends with it. What it had sent is marked at the broker, or found there by the
//! next replay, which sends the rest. The page of the replay is gone.

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
mod kept;
mod log;
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

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use dlq_core::DeadLetters;
use dlq_core::store::Cluster;

pub use access::{Access, Role, Token, UnknownRole};
pub use log::{BrokerLog, LogFuture, LogReplay, PlannedReplay, ReplayWatch, Snapshot};

use events::Events;
use guesses::Guesses;
use idempotency::Answers;
use kept::Kept;
use log::CachedLog;
use mask::Mask;
use sessions::Sessions;

/// Console and HTTP interface of one or several stores and logs. See the [crate's page](crate).
#[derive(Clone, Debug)]
#[must_use = "it serves nothing until its router is mounted"]
pub struct Admin {
    stores: Vec<(String, Served)>,
    access: Access,
    via: BTreeSet<Cluster>,
    mask: Mask,
    max_age: Duration,
}

impl Admin {
    /// The dead letters of one store, called `default`.
    pub fn new(letters: DeadLetters) -> Self {
        Self::named("default", letters)
    }

    /// The dead letters of one store, by a name for people and for paths.
    pub fn named(name: impl Into<String>, letters: DeadLetters) -> Self {
        Self::of(name.into(), Served::Store(letters))
    }

    /// The dead letters of one log of a broker, by a name for people and for paths.
    pub fn of_log(name: impl Into<String>, log: impl BrokerLog) -> Self {
        Self::of(name.into(), Served::Log(Arc::new(CachedLog::new(log))))
    }

    fn of(name: String, served: Served) -> Self {
        let stores = vec![(name, served)];
        let (access, via, mask) = (Access::open(), BTreeSet::new(), Mask::default());
        Self { stores, access, via, mask, max_age: Duration::from_secs(60) }
    }

    /// Adds a store. A store or log of the same name is replaced.
    pub fn store(self, name: impl Into<String>, letters: DeadLetters) -> Self {
        self.add(name.into(), Served::Store(letters))
    }

    /// Adds a log of a broker. A store or log of the same name is replaced.
    pub fn log(self, name: impl Into<String>, log: impl BrokerLog) -> Self {
        self.add(name.into(), Served::Log(Arc::new(CachedLog::new(log))))
    }

    fn add(mut self, name: String, served: Served) -> Self {
        // Paths name stores, so two of one name would leave the second out of reach.
        self.stores.retain(|(other, _)| *other != name);
        self.stores.push((name, served));
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

    /// Sets how old the counts of a page may be. A store of a million letters takes seconds to group them, so a count that
    /// took longer than 200 ms is shown again for twenty times as long as it took, and no longer than this; the page says
    /// when it was made. A change that is made in this console is seen at once. The HTTP interface always counts anew.
    /// Defaults to one minute; zero counts anew for each page.
    pub fn max_age(mut self, max_age: Duration) -> Self {
        self.max_age = max_age;
        self
    }

    /// Returns the router, which works at any path that it is nested under.
    pub fn router(self) -> Router {
        routes::router(Arc::new(self.console()))
    }

    fn console(self) -> Console {
        Console {
            stores: self.stores,
            access: self.access,
            via: self.via,
            mask: self.mask,
            sessions: Sessions::default(),
            guesses: Guesses::default(),
            answers: Answers::default(),
            events: Events::default(),
            counts: Counts::default(),
            max_age: self.max_age,
            // Without a source of secrets no form is accepted, rather than any.
            secret: random::bytes().ok(),
        }
    }
}

/// Letters behind a name.
#[derive(Clone, Debug)]
pub(crate) enum Served {
    Store(DeadLetters),
    Log(Arc<CachedLog>),
}

/// State that all requests have in common.
#[derive(Debug)]
pub(crate) struct Console {
    stores: Vec<(String, Served)>,
    access: Access,
    via: BTreeSet<Cluster>,
    mask: Mask,
    sessions: Sessions,
    guesses: Guesses,
    answers: Answers,
    events: Events,
    counts: Counts,
    max_age: Duration,
    secret: Option<[u8; 32]>,
}

/// Counts for the pages that look at many letters.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    overview: Kept<pages::OverviewCounts>,
    groups: Kept<actions::Groups>,
    group: Kept<pages::GroupCounts>,
}

impl Counts {
    /// Forgets the counts of a store.
    fn forget(&self, store: &str) {
        self.overview.forget(store);
        self.groups.forget(store);
        self.group.forget(store);
    }
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

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use axum::http::{Request, StatusCode, header};
    use dlq_letters::memory::MemoryStore;
    use dlq_testkit::fixtures::letter;
    use tower::ServiceExt as _;

    use super::*;

    const TOKEN: &str = "admin-token-012345678";

    async fn ask(router: &Router, request: axum::http::request::Builder, body: &str) -> String {
        let request = request.header(header::AUTHORIZATION, format!("Bearer {TOKEN}"));
        let response = router.clone().oneshot(request.body(Body::from(body.to_owned())).unwrap());
        let response = response.await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        String::from_utf8(body.to_vec()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn pages_show_counts_again_until_something_is_changed_here() {
        let letters = DeadLetters::new(MemoryStore::new());
        letters.put(vec![letter(1)]).await.unwrap();
        let key = {
            let group = letters.groups(dlq_core::Filter::new(), 1).await.unwrap().remove(0);
            format!("fingerprint={}&consumer={}", group.fingerprint, group.consumer)
        };
        let access = Access::tokens([Token::new("ana", Role::Admin, TOKEN)]);
        let mut console = Admin::new(letters.clone()).access(access).console();
        // The store is quick, and its counts are kept all the same.
        console.counts.overview.long = Duration::ZERO;
        console.counts.groups.long = Duration::ZERO;
        console.counts.group.long = Duration::ZERO;
        let router = routes::router(Arc::new(console));
        let pages = ["/s/default", "/s/default/groups", &format!("/s/default/group?{key}")];
        let show = async || {
            let mut shown = Vec::new();
            for page in pages {
                let page = ask(&router, Request::get(page), "").await;
                shown.push(page.contains(">2<"));
            }
            shown
        };
        assert_eq!(show().await, [false; 3]);
        letters.put(vec![letter(2)]).await.unwrap();
        assert_eq!(show().await, [false; 3], "as it was counted");
        let counted = ask(&router, Request::get("/api/v1/default/count"), "").await;
        assert!(counted.contains('2'), "the interface for programs is exact: {counted}");
        tokio::time::advance(Duration::from_secs(4)).await;
        assert_eq!(show().await, [true; 3], "counted anew after a while");
        letters.put(vec![letter(3)]).await.unwrap();
        assert_eq!(show().await, [true; 3]);
        let mark = Request::post("/api/v1/default/mark");
        let mark = mark.header(header::CONTENT_TYPE, "application/json");
        let body = r#"{"all":"true","mark":"resolved","note":"x"}"#;
        let _ = ask(&router, mark, body).await;
        assert_eq!(show().await, [false; 3], "counted anew after a change");
    }
}

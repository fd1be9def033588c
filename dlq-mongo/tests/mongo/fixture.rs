//! A server for all tests, and collections for each.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dlq_mongo::{MongoBuilder, MongoIdempotency, MongoStore};
use dlq_services::{Running, Service, ensure_installed, or_skip};
use dlq_testkit::fixtures::ManualClock;
use dlq_testkit::idempotency::IdempotencyFixture;
use dlq_testkit::store::StoreFixture;
use mongodb::bson::{Document, doc};

/// Time that a test waits for what must come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Returns true if there is a server to be had; says so if not.
pub(crate) fn available() -> bool {
    or_skip(Service::Mongo, ensure_installed(Service::Mongo)).is_ok()
}

/// The server that all tests share which break nothing; it keeps its data in memory.
pub(crate) fn url() -> &'static str {
    static SERVER: OnceLock<Running> = OnceLock::new();
    SERVER.get_or_init(|| Service::Mongo.builder().setting("file", "").start().unwrap()).url()
}

/// A database that nobody else has.
#[derive(Clone, Debug)]
pub(crate) struct TestDatabase {
    pub(crate) url: String,
    pub(crate) name: String,
}

impl TestDatabase {
    /// On the server that all share.
    pub(crate) fn fresh() -> Self {
        Self::at(url())
    }

    pub(crate) fn at(url: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // A server that was given may have those of an earlier run.
        let name = format!("dlq_test_{}_{number}", std::process::id());
        Self { url: url.to_owned(), name }
    }

    pub(crate) fn builder(&self) -> MongoBuilder {
        MongoStore::builder(&self.url)
            .database(&self.name)
            .max_connections(4)
            .answer_timeout(PATIENCE)
    }

    pub(crate) async fn database(&self) -> mongodb::Database {
        mongodb::Client::with_uri_str(&self.url).await.unwrap().database(&self.name)
    }

    /// Number of documents of a collection.
    pub(crate) async fn count(&self, name: &str) -> u64 {
        let found = self.database().await.collection::<Document>(&format!("dlq_{name}"));
        found.count_documents(doc! {}).await.unwrap()
    }

    pub(crate) async fn store(&self) -> MongoStore {
        self.builder().open().await.unwrap()
    }
}

/// A store by the clock of the test.
#[derive(Debug)]
pub(crate) struct MongoFixture {
    place: TestDatabase,
    clock: ManualClock,
}

impl MongoFixture {
    fn new() -> Self {
        Self { place: TestDatabase::fresh(), clock: ManualClock::new() }
    }

    async fn opened(&self, dedup: bool) -> MongoStore {
        self.place.builder().clock(self.clock.shared()).dedup(dedup).open().await.unwrap()
    }
}

impl StoreFixture for MongoFixture {
    type Store = MongoStore;

    fn is_available() -> bool {
        available()
    }

    async fn fresh(_check: &'static str) -> Self {
        Self::new()
    }

    async fn open(&self, dedup: bool) -> MongoStore {
        self.opened(dedup).await
    }

    fn clock(&self) -> Option<&ManualClock> {
        Some(&self.clock)
    }
}

impl IdempotencyFixture for MongoFixture {
    type Store = MongoIdempotency;

    fn is_available() -> bool {
        available()
    }

    async fn fresh(_check: &'static str) -> Self {
        Self::new()
    }

    async fn open(&self) -> MongoIdempotency {
        self.opened(false).await.idempotency()
    }

    fn clock(&self) -> Option<&ManualClock> {
        Some(&self.clock)
    }
}

/// A store by the clock of the server.
#[derive(Debug)]
pub(crate) struct OwnTimeFixture(TestDatabase);

impl IdempotencyFixture for OwnTimeFixture {
    type Store = MongoIdempotency;

    fn is_available() -> bool {
        available()
    }

    async fn fresh(_check: &'static str) -> Self {
        Self(TestDatabase::fresh())
    }

    async fn open(&self) -> MongoIdempotency {
        self.0.store().await.idempotency()
    }

    fn clock(&self) -> Option<&ManualClock> {
        None
    }
}

//! A console over a real store, with a consumer and a broker behind it.

use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use dlq_admin::{Access, Admin, Role, Token};
use dlq_core::memory::MemoryBroker;
use dlq_core::store::Cluster;
use dlq_core::{
    Attempt, Cause, Clock as _, DeadLetter, DeadLetters, ErrorClass, Failure, History, Message,
    Origin, Position, Reason, SystemClock, Timestamp,
};
use dlq_testkit::fixtures::ManualClock;
use futures_util::FutureExt as _;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::browser::Browsers;
use crate::page::Page;
use crate::store::Database;

/// Name of the consumer that fails.
pub(crate) const CONSUMER: &str = "billing.charge";
pub(crate) const HOUR: Duration = Duration::from_secs(3_600);
pub(crate) const DAY: Duration = Duration::from_secs(24 * 3_600);

/// Store with its console, and everything that it needs.
#[derive(Debug)]
pub(crate) struct World {
    /// The store by the machine's clock.
    pub(crate) letters: DeadLetters,
    /// The same store, for events of the past: by the time of `clock`.
    pub(crate) past: DeadLetters,
    pub(crate) clock: ManualClock,
    pub(crate) broker: MemoryBroker,
    /// Address of the console.
    pub(crate) url: String,
    database: Database,
    running: JoinSet<()>,
}

impl World {
    async fn open(database: Database) -> Self {
        let clock = ManualClock::starting_at(SystemClock.now());
        let letters = database.open(SystemClock::shared()).await;
        let past = database.open(clock.shared()).await;
        let broker = MemoryBroker::new().stream("payments");
        let admin = Admin::new(letters.clone())
            .max_age(Duration::ZERO)
            .via([Cluster::new("memory", "default")]);
        let people = [("ana", Role::Admin), ("rita", Role::Read)];
        let tokens = people.map(|(name, role)| Token::new(name, role, secret(name)));
        let router = admin.access(Access::tokens(tokens)).router();
        // Cookies are not told apart by ports, so each console has an address of its own.
        static NEXT: AtomicU8 = AtomicU8::new(0);
        let host = NEXT.fetch_add(1, Ordering::Relaxed) % 250 + 2;
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, host], 0))).await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let mut running = JoinSet::new();
        running.spawn(async {
            let service = router.into_make_service_with_connect_info::<SocketAddr>();
            axum::serve(listener, service).await.unwrap();
        });
        Self { letters, past, clock, broker, url, database, running }
    }

    /// Stores letters as if it were so long ago.
    pub(crate) async fn put(&self, ago: Duration, letters: impl IntoIterator<Item = DeadLetter>) {
        let at = SystemClock.now().before(ago);
        self.clock.set(at);
        let died = |mut letter: DeadLetter| {
            letter.died_at = at;
            letter
        };
        self.past.put(letters.into_iter().map(died).collect()).await.unwrap();
    }

    /// Starts the consumer.
    pub(crate) async fn consume(&mut self) {
        let consumer = self.database.consumer(&self.broker).await;
        self.running.spawn(async move {
            let _ = consumer.run(std::future::pending::<()>()).await;
        });
    }
}

/// Returns the token of somebody.
pub(crate) fn secret(name: &str) -> String {
    format!("{name}-0123456789abcdef")
}

/// A payment of a customer that the provider refused with these words.
pub(crate) fn refused(n: u64, customer: &str, why: &str) -> DeadLetter {
    let payload = format!("{{\"order\":{n},\"customer\":\"{customer}\",\"cents\":1200}}");
    payment(n, customer, payload, why)
}

/// A payment with this payload.
pub(crate) fn payment(n: u64, customer: &str, payload: String, why: &str) -> DeadLetter {
    let message = Message::new("payments.charge", payload)
        .with_id(format!("evt-{n}"))
        .with_key(customer.to_owned())
        .with_header("traceparent", format!("00-{n:032x}-00f067aa0ba902b7-01"));
    let origin = Origin::new("memory", "payments", Position::Offset(n)).with_cluster("default");
    let failure = Failure::new(ErrorClass::Permanent, Cause::Error, "shop::Refused", why)
        .timed(Timestamp::from_nanos(SystemClock.now().as_nanos()), Duration::from_millis(41));
    let mut history = History::new();
    history.push(Attempt { number: 1, generation: 0, failure });
    let letter = DeadLetter::new(message, origin, CONSUMER, Reason::Permanent);
    let mut letter = letter.with_history(history);
    letter.service = Some("shop".to_owned());
    letter.attempts = 1;
    letter.deliveries = 1;
    letter.attributes.insert("customer".to_owned(), customer.to_owned());
    letter
}

/// Carries out a task on each kind of store, logged in as `ana`, who may do everything.
pub(crate) fn on_each_store(name: &str, task: impl AsyncFn(&Page, &mut World)) {
    on(Database::all, name, task);
}

/// As [`on_each_store`], on SQLite alone.
pub(crate) fn on_sqlite(name: &str, task: impl AsyncFn(&Page, &mut World)) {
    on(|| vec![Database::sqlite()], name, task);
}

fn on(databases: fn() -> Vec<Database>, name: &str, task: impl AsyncFn(&Page, &mut World)) {
    let Some(browsers) = Browsers::get() else { return };
    for database in databases() {
        let name = format!("{name}-{}", database.name());
        browsers.runtime.block_on(Box::pin(carry_out(&browsers, database, &name, &task)));
    }
}

async fn carry_out(
    browsers: &Arc<Browsers>,
    database: Database,
    name: &str,
    task: &impl AsyncFn(&Page, &mut World),
) {
    let mut world = World::open(database).await;
    let client = browsers.take().await;
    let page = Page::new(client.clone().unwrap(), &world.url);
    let done = async {
        page.log_in(&secret("ana")).await;
        task(&page, &mut world).await;
    };
    // What was on the page says more than what was waited for.
    if let Err(panic) = AssertUnwindSafe(done).catch_unwind().await {
        page.report(name).await;
        std::panic::resume_unwind(panic);
    }
    // Nothing that this page listens to is of use to the next.
    page.leave().await;
    drop(client);
    world.running.shutdown().await;
    let World { database, .. } = world;
    database.remove().await;
}

use std::fmt;
use std::time::Duration;

use dlq_core::store::Migration;
use dlq_core::{SharedClock, StoreError, StoreErrorKind};
use mongodb::Client;
use mongodb::bson::doc;
use mongodb::event::EventHandler;
use mongodb::event::command::CommandEvent;
use mongodb::options::{Acknowledgment, ClientOptions, ServerAddress};

use crate::MongoStore;
use crate::commit::COMMIT_TIMEOUT;
use crate::db::{Coll, Db};
use crate::error::{During, Fault, Result};

/// Time to find a server that takes writes, where the URL says nothing.
const SELECTION: Duration = Duration::from_secs(5);

/// Time for one answer.
const ANSWER: Duration = Duration::from_secs(30);

/// The database, where the URL names none.
const DATABASE: &str = "dlq";

/// Prefix of the names of all collections.
const PREFIX: &str = "dlq_";

/// The most bytes of a database's name, and of a prefix.
const LONGEST: usize = 60;

/// Settings of a [`MongoStore`] to be opened.
///
/// ```no_run
/// use dlq_mongo::MongoStore;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = MongoStore::builder("mongodb://localhost").database("orders").prefix("dead_").dedup(true).open().await?;
/// # drop(store);
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "a builder does nothing until it is opened"]
pub struct MongoBuilder {
    /// May hold a password.
    url: String,
    database: Option<String>,
    prefix: String,
    clock: Option<SharedClock>,
    dedup: Option<bool>,
    migrate: bool,
    max_connections: Option<u32>,
    answer_timeout: Duration,
    commit_timeout: Duration,
    events: Option<EventHandler<CommandEvent>>,
}

impl fmt::Debug for MongoBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("MongoBuilder");
        shown.field("database", &self.database).field("prefix", &self.prefix);
        shown.field("dedup", &self.dedup).field("migrate", &self.migrate).finish_non_exhaustive()
    }
}

impl MongoBuilder {
    pub(crate) fn new(url: String) -> Self {
        Self {
            url,
            database: None,
            prefix: PREFIX.to_owned(),
            clock: None,
            dedup: None,
            migrate: true,
            max_connections: None,
            answer_timeout: ANSWER,
            commit_timeout: COMMIT_TIMEOUT,
            events: None,
        }
    }

    /// Sets the database. Defaults to the one that the URL names, or `dlq`.
    pub fn database(mut self, name: impl Into<String>) -> Self {
        self.database = Some(name.into());
        self
    }

    /// Sets what the names of all collections begin with. Defaults to `dlq_`.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets the clock by which this handle tells the time, for tests. Defaults to the server's.
    pub fn clock(mut self, clock: SharedClock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Sets whether letters of the same original message are kept as one, for everybody who uses this store. Letters that
    /// are there stay as they are; [`deduplicate`](dlq_core::store::Maintenance::deduplicate) collapses them. Defaults to what
    /// the store was told before, and to no for a new one.
    pub fn dedup(mut self, dedup: bool) -> Self {
        self.dedup = Some(dedup);
        self
    }

    /// Sets whether missing indexes are made. Defaults to yes.
    pub fn migrate(mut self, migrate: bool) -> Self {
        self.migrate = migrate;
        self
    }

    /// Sets the most connections to each server. Defaults to what the URL says, or 10.
    pub fn max_connections(mut self, connections: u32) -> Self {
        self.max_connections = Some(connections);
        self
    }

    /// Sets how long the server may be silent before a call fails as `Unavailable`. Defaults to 30 seconds.
    pub fn answer_timeout(mut self, timeout: Duration) -> Self {
        self.answer_timeout = timeout;
        self
    }

    /// Sets how long an open commit of another process is waited for, for tests.
    #[doc(hidden)]
    pub fn commit_timeout(mut self, timeout: Duration) -> Self {
        self.commit_timeout = timeout;
        self
    }

    /// Sets who is told of each command, for tests.
    #[doc(hidden)]
    pub fn events(mut self, events: EventHandler<CommandEvent>) -> Self {
        self.events = Some(events);
        self
    }

    /// Opens the store, and makes its indexes unless [told otherwise](Self::migrate).
    ///
    /// # Errors
    ///
    /// - `Unavailable`: no server answers.
    /// - `InvalidConfig`: the URL, a name or the login will not do, or the URL has `w=0`.
    /// - `NotFound`: there is no store, and none is to be made.
    /// - `Incompatible`: the server is FerretDB, or a collection is capped.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves behind the indexes that were made so far.
    pub async fn open(self) -> std::result::Result<MongoStore, StoreError> {
        self.start().await.during("open the store")
    }

    /// Returns a name of the store that is the same from everywhere, without a login: `mongodb://HOSTS/DATABASE?prefix=…`.
    ///
    /// # Errors
    ///
    /// `InvalidConfig`: the URL will not do.
    pub async fn place(&self) -> std::result::Result<String, StoreError> {
        const DURING: &str = "read the address of the store";
        let options = ClientOptions::parse(&self.url).await.map_err(Fault::from).during(DURING)?;
        let (hosts, name) = (hosts(&options), self.name(&options));
        Ok(format!("mongodb://{hosts}/{name}?prefix={}", self.prefix))
    }

    fn name(&self, options: &ClientOptions) -> String {
        let named = self.database.clone().or_else(|| options.default_database.clone());
        named.unwrap_or_else(|| DATABASE.to_owned())
    }

    /// Looks at what [`apply_migration`](Self::apply_migration) would do. Nothing is created or changed.
    ///
    /// # Errors
    ///
    /// As for [`open`](Self::open), but for `NotFound`; `Incompatible` also if a newer program has migrated the store.
    pub async fn migration(&self) -> std::result::Result<Migration, StoreError> {
        let look = async { self.connect().await?.0.migration().await };
        look.await.during("look at the indexes")
    }

    /// Makes the store, or the indexes that it lacks, and returns what was done. Safe when many do it at once, and while
    /// others work.
    ///
    /// # Errors
    ///
    /// As for [`migration`](Self::migration). `Unavailable` or another error of the server if an index cannot be made, as
    /// that of keys of duplicates while there are two letters of one key.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves behind the indexes that were made so far.
    pub async fn apply_migration(self) -> std::result::Result<Migration, StoreError> {
        let apply = async {
            let (db, _) = self.connect().await?;
            let migration = db.migration().await?;
            db.ensure().await?;
            Ok(migration)
        };
        apply.await.during("make the indexes")
    }

    /// Connects, and refuses a server or collections on which letters would be lost.
    async fn connect(&self) -> Result<(Db, String)> {
        let mut options = ClientOptions::parse(&self.url).await?;
        refuse_weak(&options)?;
        let name = self.name(&options);
        check_name("database", &name)?;
        check_name("prefix", &self.prefix)?;
        // A URL that says otherwise is heeded. The driver alone would let a call wait for half a minute.
        options.server_selection_timeout.get_or_insert(SELECTION);
        options.connect_timeout.get_or_insert(SELECTION);
        options.app_name.get_or_insert_with(|| "dlq".to_owned());
        if let Some(most) = self.max_connections {
            options.max_pool_size = Some(most);
        }
        options.command_event_handler = self.events.clone();
        let identity = format!("mongodb {} {name}.{}", hosts(&options), self.prefix);
        let client = Client::with_options(options)?;
        let (prefix, clock) = (self.prefix.clone(), self.clock.clone());
        let db = Db::new(&client, &name, prefix, clock, self.answer_timeout, self.commit_timeout);
        // Unfit servers are refused before anything is written, since they would lose letters or run them twice (G6, G9).
        db.refuse_unfit().await?;
        db.refuse_capped().await?;
        Ok((db, identity))
    }

    async fn start(self) -> Result<MongoStore> {
        let (db, identity) = self.connect().await?;
        // A store of a newer program is refused before its indexes are touched.
        let found = db.version().await?;
        if self.migrate {
            db.ensure().await?;
        } else if found.is_none() {
            return Err(Fault::new(
                StoreErrorKind::NotFound,
                format!(
                    "the database `{}` has no letters in collections that begin with `{}`; check both names, or open the \
                     store with a program that makes it",
                    db.database(),
                    self.prefix
                ),
            ));
        }
        match self.dedup {
            Some(true) if !db.is_dedup().await? => db.switch_dedup_on().await?,
            Some(false) if db.is_dedup().await? => {
                let off = doc! { "q": { "_id": "dedup" }, "u": { "$set": { "on": false } } };
                db.update(Coll::Meta, vec![off]).await?;
            }
            _ => {}
        }
        Ok(MongoStore::new(db, identity))
    }
}

/// The servers, in an order that does not depend on that of the URL.
fn hosts(options: &ClientOptions) -> String {
    let mut hosts: Vec<_> = options.hosts.iter().map(ServerAddress::to_string).collect();
    hosts.sort();
    hosts.join(",")
}

/// Refuses a URL by which no write would be confirmed, and warns of one that asks for less than what is done.
fn refuse_weak(options: &ClientOptions) -> Result<()> {
    let Some(concern) = &options.write_concern else { return Ok(()) };
    match &concern.w {
        Some(Acknowledgment::Nodes(0)) => Err(Fault::new(
            StoreErrorKind::InvalidConfig,
            "the URL has w=0, by which a letter may be lost without a word; leave it out",
        )),
        None | Some(Acknowledgment::Majority) if concern.journal != Some(false) => Ok(()),
        _ => {
            tracing::warn!(
                "write concern of the URL is not used; the store waits for a majority and the journal"
            );
            Ok(())
        }
    }
}

fn check_name(what: &str, name: &str) -> Result<()> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    let is_good = !name.is_empty() && name.len() <= LONGEST && name.bytes().all(is_plain);
    if is_good {
        return Ok(());
    }
    Err(Fault::new(
        StoreErrorKind::InvalidConfig,
        format!(
            "`{}` is not a name for a {what}; use letters, digits, underscores and hyphens, at most {LONGEST}",
            name.chars().take(80).collect::<String>()
        ),
    ))
}

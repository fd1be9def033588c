use std::fmt;
use std::time::Duration;

use dlq_core::{ErrorClass, StoreError, StoreErrorKind};
use futures_util::TryStreamExt as _;
use mongodb::bson::{Document, RawDocumentBuf, doc};
use mongodb::options::{ClientOptions, ReadPreference, SelectionCriteria};
use mongodb::{Client, Database};

use super::field::{self, TOLD_BY};
use super::letter::Reader;
use super::{ForeignCollection, answered_within};
use crate::db::Db;
use crate::error::{During as _, Fault, Result};

/// Time to find a server, where the URL says nothing.
const SELECTION: Duration = Duration::from_secs(5);

/// Time for one answer. A count looks at every document.
const ANSWER: Duration = Duration::from_secs(600);

/// Number of documents whose fields are listed.
const SAMPLE: i64 = 100;

/// Settings of a [`ForeignCollection`] to be opened.
///
/// ```no_run
/// use dlq_mongo::foreign::ForeignCollection;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let collection = ForeignCollection::builder("mongodb://localhost/orders", "event_dlq").consumer("payments.charge");
/// let collection = collection.open().await?;
/// # drop(collection);
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "a builder does nothing until it is opened"]
pub struct ForeignBuilder {
    /// May hold a password.
    url: String,
    name: String,
    skipped: Vec<String>,
    consumer: Option<String>,
    service: Option<String>,
    class: ErrorClass,
    cluster: Option<String>,
    answer_timeout: Duration,
}

impl fmt::Debug for ForeignBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForeignBuilder").field("name", &self.name).finish_non_exhaustive()
    }
}

impl ForeignBuilder {
    pub(super) fn new(url: String, name: String) -> Self {
        Self {
            url,
            name,
            skipped: Vec::new(),
            consumer: None,
            service: None,
            class: ErrorClass::Transient,
            cluster: None,
            answer_timeout: ANSWER,
        }
    }

    /// Leaves a field out: its value is not in the letters. Defaults to leaving out nothing.
    pub fn skip(mut self, field: impl Into<String>) -> Self {
        self.skipped.push(field.into());
        self
    }

    /// Sets whose deaths the letters are. Defaults to the name of the collection.
    pub fn consumer(mut self, consumer: impl Into<String>) -> Self {
        self.consumer = Some(consumer.into());
        self
    }

    /// Sets the program that wrote the letters, where no `source` says so. Defaults to none.
    pub fn service(mut self, service: impl Into<String>) -> Self {
        self.service = Some(service.into());
        self
    }

    /// Sets whether another attempt may succeed. Defaults to transient.
    pub fn class(mut self, class: ErrorClass) -> Self {
        self.class = class;
        self
    }

    /// Sets the alias of the database, a part of the letters' identity. Defaults to its name.
    pub fn cluster(mut self, cluster: impl Into<String>) -> Self {
        self.cluster = Some(cluster.into());
        self
    }

    /// Sets how long the server may be silent before a call fails as `Unavailable`. Defaults to ten minutes.
    pub fn answer_timeout(mut self, timeout: Duration) -> Self {
        self.answer_timeout = timeout;
        self
    }

    /// Connects, looks at the collection and begins to read.
    ///
    /// # Errors
    ///
    /// - `Unavailable`: no server answers.
    /// - `NotFound`: there is no such collection.
    /// - `InvalidConfig`: the URL or the login will not do, the URL names no database, or no document has the fields that
    ///   event-dlq writes.
    pub async fn open(self) -> std::result::Result<ForeignCollection, StoreError> {
        let limit = self.answer_timeout;
        answered_within(limit, self.start()).await.during("open the collection")
    }

    async fn start(self) -> Result<ForeignCollection> {
        let mut options = ClientOptions::parse(&self.url).await?;
        options.server_selection_timeout.get_or_insert(SELECTION);
        options.connect_timeout.get_or_insert(SELECTION);
        options.app_name.get_or_insert_with(|| "dlq".to_owned());
        // A secondary may not have the newest documents.
        options.selection_criteria =
            Some(SelectionCriteria::ReadPreference(ReadPreference::Primary));
        let named = options.default_database.clone().ok_or_else(|| {
            Fault::new(
                StoreErrorKind::InvalidConfig,
                "the URL names no database; write mongodb://HOST/DATABASE",
            )
        })?;
        let client = Client::with_options(options)?;
        let database = client.database(&named);
        self.check(&database).await?;
        let collection = database.collection::<Document>(&self.name);
        let raw = collection.clone_with_type::<RawDocumentBuf>();
        let in_order = || raw.find(doc! {}).sort(doc! { "_id": 1_i32 });
        let sample: Vec<RawDocumentBuf> = in_order().limit(SAMPLE).await?.try_collect().await?;
        let fields = field::listed(&sample, &self.skipped);
        let (limit, skipped) = (self.answer_timeout, self.skipped);
        let db = Db::new(&client, &named, String::new(), None, limit, Duration::ZERO);
        let reader = Reader {
            opened_at: db.server_now().await?,
            cluster: self.cluster.unwrap_or_else(|| named.clone()),
            stream: format!("{named}.{}", self.name),
            consumer: self.consumer.unwrap_or(self.name),
            service: self.service,
            class: self.class,
            skipped,
        };
        let cursor = in_order().batch_size(super::DOCUMENTS as u32).await?;
        let answer_timeout = self.answer_timeout;
        Ok(ForeignCollection {
            collection,
            cursor,
            reader,
            fields,
            answer_timeout,
            is_reading: false,
        })
    }

    /// Refuses a collection that is not there, or of which no document has event-dlq's fields.
    async fn check(&self, database: &Database) -> Result<()> {
        let there = database.list_collection_names().await?;
        if !there.contains(&self.name) {
            return Err(Fault::new(
                StoreErrorKind::NotFound,
                format!(
                    "there is no collection `{}` in the database `{}`; check both names",
                    self.name,
                    database.name()
                ),
            ));
        }
        let collection = database.collection::<Document>(&self.name);
        let mut known = Document::new();
        for field in TOLD_BY {
            known.insert(field, doc! { "$exists": true });
        }
        if collection.find_one(known).projection(doc! { "_id": 1_i32 }).await?.is_some() {
            return Ok(());
        }
        match collection.find_one(doc! {}).projection(doc! { "_id": 1_i32 }).await? {
            // An empty collection has nothing by which it could be told, and nothing that could be misread.
            None => Ok(()),
            Some(_) => Err(Fault::new(
                StoreErrorKind::InvalidConfig,
                format!(
                    "the fields of `{}` are not known; known are collections of event-dlq, with {}",
                    self.name,
                    TOLD_BY.join(", ")
                ),
            )),
        }
    }
}

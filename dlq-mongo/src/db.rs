//! [`Db`]: commands on the collections of a store. Every command may be sent twice, since an answer can be lost.

use std::future::Future;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use dlq_core::{Clock as _, SharedClock, SystemClock, Timestamp};
use futures_util::TryStreamExt as _;
use mongodb::bson::{Bson, Document, doc};
use mongodb::options::{FindOptions, ReadConcern, ReadPreference, SelectionCriteria};
use mongodb::{Client, Collection, Database};
use tokio::time::{Instant, sleep, timeout};

use crate::codec::number;
use crate::error::{Fault, Result, is_passing};

/// Pauses before a command is sent again.
const PAUSES: [Duration; 3] =
    [Duration::from_millis(10), Duration::from_millis(100), Duration::from_millis(400)];

/// Most bytes and statements of one command. A server takes 16 MiB and 100,000.
const BYTES: usize = 12 * 1024 * 1024;
const STATEMENTS: usize = 10_000;

/// Age from which the difference between the clocks is measured anew.
const FRESH: Duration = Duration::from_secs(30);

/// The collections of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Coll {
    Letters,
    Parts,
    Operations,
    Items,
    Aliases,
    Schedules,
    Documents,
    Commits,
    Audit,
    Processed,
    Marks,
    Meta,
    Keys,
}

impl Coll {
    pub(crate) const ALL: [Self; 13] = [
        Self::Letters,
        Self::Parts,
        Self::Operations,
        Self::Items,
        Self::Aliases,
        Self::Schedules,
        Self::Documents,
        Self::Commits,
        Self::Audit,
        Self::Processed,
        Self::Marks,
        Self::Meta,
        Self::Keys,
    ];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Letters => "letters",
            Self::Parts => "parts",
            Self::Operations => "operations",
            Self::Items => "items",
            Self::Aliases => "aliases",
            Self::Schedules => "schedules",
            Self::Documents => "documents",
            Self::Commits => "commits",
            Self::Audit => "audit",
            Self::Processed => "processed",
            Self::Marks => "marks",
            Self::Meta => "meta",
            Self::Keys => "keys",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|coll| coll.as_str() == name)
    }
}

/// The answer to a write of several statements.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wrote {
    /// Documents that matched or were inserted.
    pub(crate) n: u64,
    /// Statements that failed because a key is taken.
    pub(crate) duplicates: Vec<usize>,
    /// True if a command was sent more than once, so that `n` may be too small.
    pub(crate) is_repeated: bool,
}

/// A database, with what all calls share.
#[derive(Debug)]
pub(crate) struct Db {
    database: Database,
    prefix: String,
    clock: Option<SharedClock>,
    answer_timeout: Duration,
    /// Time that an open commit of somebody else is given.
    pub(crate) commit_timeout: Duration,
    offset: Mutex<Option<(Instant, i64)>>,
}

impl Db {
    pub(crate) fn new(
        client: &Client,
        name: &str,
        prefix: String,
        clock: Option<SharedClock>,
        answer_timeout: Duration,
        commit_timeout: Duration,
    ) -> Self {
        // A secondary may lag behind what this process has written. `local` also shows what a majority does not have
        // yet: what is decided over it is only confirmed once a majority has both.
        let options = mongodb::options::DatabaseOptions::builder()
            .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
            .read_concern(ReadConcern::local())
            .build();
        let database = client.database_with_options(name, options);
        Self { database, prefix, clock, answer_timeout, commit_timeout, offset: Mutex::default() }
    }

    /// The name of the database.
    pub(crate) fn database(&self) -> &str {
        self.database.name()
    }

    pub(crate) fn name(&self, coll: Coll) -> String {
        format!("{}{}", self.prefix, coll.as_str())
    }

    pub(crate) fn coll(&self, coll: Coll) -> Collection<Document> {
        self.database.collection(&self.name(coll))
    }

    /// Returns true if the time of the store is the server's.
    pub(crate) fn has_own_time(&self) -> bool {
        self.clock.is_none()
    }

    /// The time of the store: of the clock that was given, or of the server.
    pub(crate) async fn now(&self) -> Result<Timestamp> {
        match &self.clock {
            Some(clock) => Ok(clock.now()),
            None => self.server_now().await,
        }
    }

    /// The time of the server, to about a round trip.
    pub(crate) async fn server_now(&self) -> Result<Timestamp> {
        let known = *self.offset.lock().unwrap_or_else(PoisonError::into_inner);
        // The offset is kept for a while, or every call would cost a round trip for the time alone.
        let offset = match known {
            Some((at, offset)) if at.elapsed() < FRESH => offset,
            _ => self.measure().await?,
        };
        Ok(Timestamp::from_nanos(SystemClock.now().as_nanos().saturating_add(offset)))
    }

    /// Measures the difference between the clocks: the server's time was some moment of the round trip.
    pub(crate) async fn measure(&self) -> Result<i64> {
        let before = SystemClock.now().as_nanos();
        let answer = match self.command(doc! { "isMaster": 1 }).await {
            Ok(answer) => answer,
            // Servers may come that know the newer command only.
            Err(fault) if !fault.is_again() => self.command(doc! { "hello": 1 }).await?,
            Err(fault) => return Err(fault),
        };
        let after = SystemClock.now().as_nanos();
        let there = match answer.get("localTime") {
            Some(Bson::DateTime(time)) => time.timestamp_millis(),
            _ => return Err(Fault::corrupt("time of the server", &"isMaster has no localTime")),
        };
        let here = before / 2 + after / 2;
        // The server's clock shows whole milliseconds.
        let offset = there.saturating_mul(1_000_000).saturating_sub(here);
        // A difference within the round trip cannot be told from none, so that it is read as none.
        let offset = if offset.abs() <= (after - before).max(1_000_000) { 0 } else { offset };
        *self.offset.lock().unwrap_or_else(PoisonError::into_inner) =
            Some((Instant::now(), offset));
        Ok(offset)
    }

    /// Makes a call, and makes it again where the connection was lost. Returns true beside the answer if it was repeated.
    async fn attempt<T, F>(&self, mut call: impl FnMut() -> F + Send) -> Result<(T, bool)>
    where
        F: Future<Output = Result<T>> + Send,
    {
        let mut pauses = PAUSES.into_iter();
        loop {
            // The answers of a repetition are to be read with care: what is not there to change may have been changed by
            // the first try.
            let is_repeated = pauses.len() < PAUSES.len();
            let answer = timeout(self.answer_timeout, call()).await.unwrap_or_else(|_| {
                // A silent server is not asked again, since each try would be waited for as long.
                let silent = self.answer_timeout.as_secs();
                Err(Fault::unavailable(format!(
                    "no response from server for {silent} s; see that it can be reached"
                )))
            });
            match answer {
                Ok(answer) => return Ok((answer, is_repeated)),
                Err(fault) if fault.is_again() => match pauses.next() {
                    Some(pause) => {
                        tracing::debug!(error = ?fault, "connection lost; retrying");
                        sleep(pause).await;
                    }
                    None => return Err(fault),
                },
                Err(fault) => return Err(fault),
            }
        }
    }

    /// Runs a command that may be sent twice.
    pub(crate) async fn command(&self, command: Document) -> Result<Document> {
        let run = || async { Ok(self.database.run_command(command.clone()).await?) };
        Ok(self.attempt(run).await?.0)
    }

    pub(crate) async fn find(
        &self,
        coll: Coll,
        filter: Document,
        options: FindOptions,
    ) -> Result<Vec<Document>> {
        let coll = self.coll(coll);
        let find = || async {
            let cursor = coll.find(filter.clone()).with_options(options.clone()).await?;
            Ok(cursor.try_collect().await?)
        };
        Ok(self.attempt(find).await?.0)
    }

    pub(crate) async fn find_one(&self, coll: Coll, filter: Document) -> Result<Option<Document>> {
        let coll = self.coll(coll);
        let find = || async { Ok(coll.find_one(filter.clone()).await?) };
        Ok(self.attempt(find).await?.0)
    }

    pub(crate) async fn aggregate(
        &self,
        coll: Coll,
        pipeline: Vec<Document>,
    ) -> Result<Vec<Document>> {
        let coll = self.coll(coll);
        let aggregate = || async {
            let cursor = coll.aggregate(pipeline.clone()).await?;
            Ok(cursor.try_collect().await?)
        };
        Ok(self.attempt(aggregate).await?.0)
    }

    /// Number of documents that match, exactly.
    pub(crate) async fn count(&self, coll: Coll, filter: Document) -> Result<u64> {
        // The command `count` estimates on a sharded cluster, and may be wrong after a crash of the server.
        let pipeline = vec![
            doc! { "$match": filter },
            doc! { "$group": { "_id": 1_i32, "n": { "$sum": 1_i64 } } },
        ];
        let found = self.aggregate(coll, pipeline).await?;
        Ok(found.first().and_then(|found| number(found, "n")).unwrap_or(0).cast_unsigned())
    }

    /// Inserts documents, as many as can be. Those whose key is taken are told.
    pub(crate) async fn insert(&self, coll: Coll, documents: Vec<Document>) -> Result<Wrote> {
        self.write(coll, "insert", "documents", documents).await
    }

    /// Updates: `{ q, u, multi, upsert }` each.
    pub(crate) async fn update(&self, coll: Coll, updates: Vec<Document>) -> Result<Wrote> {
        self.write(coll, "update", "updates", updates).await
    }

    /// Deletes: `{ q, limit }` each.
    pub(crate) async fn delete(&self, coll: Coll, deletes: Vec<Document>) -> Result<Wrote> {
        self.write(coll, "delete", "deletes", deletes).await
    }

    async fn write(
        &self,
        coll: Coll,
        verb: &str,
        field: &str,
        statements: Vec<Document>,
    ) -> Result<Wrote> {
        let (mut wrote, mut done) = (Wrote::default(), 0);
        for batch in batches(statements)? {
            let count = batch.len();
            let command = doc! {
                verb: self.name(coll),
                field: batch,
                // A taken key does not keep back the statements behind it.
                "ordered": false,
                // It goes with each write, so that no URL weakens it (G1).
                "writeConcern": { "w": "majority", "j": true },
            };
            let run = || async { judged(self.database.run_command(command.clone()).await?) };
            let ((n, duplicates), is_repeated) = self.attempt(run).await?;
            // All others were inserted, whatever the count says: mongo-java-server counts those that failed.
            let inserted = (count - duplicates.len()) as u64;
            wrote.n += if verb == "insert" { inserted } else { n };
            wrote.duplicates.extend(duplicates.into_iter().map(|at| at + done));
            wrote.is_repeated |= is_repeated;
            done += count;
        }
        Ok(wrote)
    }

    /// Changes one document, and returns it as it was, or as it is.
    pub(crate) async fn find_and_modify(
        &self,
        coll: Coll,
        filter: Document,
        update: Document,
        is_upsert: bool,
        is_new: bool,
    ) -> Result<Option<Document>> {
        let command = doc! {
            "findAndModify": self.name(coll),
            "query": filter,
            "update": update,
            "upsert": is_upsert,
            "new": is_new,
            "writeConcern": { "w": "majority", "j": true },
        };
        let run = || async {
            let answer = self.database.run_command(command.clone()).await?;
            // A write that was not confirmed by enough members is reported inside an answer that is otherwise a
            // success.
            concern(&answer)?;
            Ok(answer)
        };
        let (mut answer, _) = self.attempt(run).await?;
        Ok(match answer.remove("value") {
            Some(Bson::Document(found)) => Some(found),
            _ => None,
        })
    }
}

/// Splits statements into what one command takes.
fn batches(statements: Vec<Document>) -> Result<Vec<Vec<Document>>> {
    let (mut all, mut batch, mut bytes) = (Vec::new(), Vec::new(), 0);
    for statement in statements {
        let size = size(&statement)?;
        if !batch.is_empty() && (bytes + size > BYTES || batch.len() == STATEMENTS) {
            all.push(std::mem::take(&mut batch));
            bytes = 0;
        }
        bytes += size;
        batch.push(statement);
    }
    if !batch.is_empty() {
        all.push(batch);
    }
    Ok(all)
}

fn size(document: &Document) -> Result<usize> {
    let bytes = document.to_vec();
    Ok(bytes.map_err(|error| Fault::corrupt("document", &error))?.len())
}

/// Reads the answer to a write: how many documents matched, and which statements met a key that is taken.
fn judged(answer: Document) -> Result<(u64, Vec<usize>)> {
    let mut duplicates = Vec::new();
    for error in answer.get_array("writeErrors").into_iter().flatten() {
        let Bson::Document(error) = error else { continue };
        let code = number(error, "code").and_then(|code| i32::try_from(code).ok()).unwrap_or(0);
        if code == 11_000 {
            let index = number(error, "index").and_then(|at| usize::try_from(at).ok());
            duplicates.extend(index);
            continue;
        }
        let text = error.get_str("errmsg").unwrap_or("no reason given");
        let fault = Fault::new(
            dlq_core::StoreErrorKind::Unexpected,
            format!("the server refused a write with error {code}: {text}"),
        );
        return Err(if is_passing(code) { fault.again() } else { fault });
    }
    concern(&answer)?;
    Ok((number(&answer, "n").unwrap_or(0).cast_unsigned(), duplicates))
}

/// An error about durability: the write has happened here, and may be taken back in a fail-over.
fn concern(answer: &Document) -> Result<()> {
    let Ok(error) = answer.get_document("writeConcernError") else { return Ok(()) };
    let text = error.get_str("errmsg").unwrap_or("no reason given");
    // The command may be sent again: what has happened does not happen twice, and its confirmation is waited for anew.
    Err(Fault::unavailable(format!(
        "a majority of the servers has not confirmed the write ({text}); see that they run"
    ))
    .again())
}

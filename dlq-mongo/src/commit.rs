//! Commits of several documents, without transactions.
//!
//! A commit is a document in `commits` that says what is to be written. It goes through these steps:
//!
//! 1. **Write** the commit, `open`, with everything that it will write.
//! 2. **Lock** what it changes: each letter, operation and schedule whose version is still the one that the verb decided over
//!    gets the commit's id as its `lock`, and a new version. A new letter gets a document with nothing but the lock. Keys of
//!    original messages are taken here, so that the unique index can still refuse them.
//! 3. **Decide**: `open` becomes `done` by one conditional update. From here on it has happened.
//! 4. **Apply**: items, aliases and the audit first, then the locked documents, which are unlocked by it.
//! 5. **Delete** the commit.
//!
//! Whoever meets a lock asks the commit: one that is `done` is applied by whoever comes; one that is `open` for longer than
//! [`COMMIT_TIMEOUT`] becomes `void`, by one conditional update as well, and its locks are taken away. So nobody waits
//! for a process that has died, and a process that was paused finds its commit void when it goes on.
//!
//! | the process dies | what is stored | then |
//! |---|---|---|
//! | before 1 | nothing | nothing has happened |
//! | in 2, or before 3 | an open commit, some locks | void: locks and empty letters are taken away; nothing has happened |
//! | after 3, in 4 | a commit that is done, some of it written | the next who meets a lock, or [`sweep`](crate::MongoStore::sweep), writes the rest |
//! | before 5 | a commit that is done and has no locks | applied again, which changes nothing, and deleted |
//! | of whoever makes a commit void, before its locks are taken away | a void commit and locks | as in the next row |
//! | paused in 2, void meanwhile, goes on | locks of a void commit | who meets one takes it away, or else the next sweep; 3 finds the commit void |
//! | paused in 4, others have applied it and gone on | | each write is conditional on the lock, or on an older version |
//! | the answer to 3 is lost | open or done | the commit is read: `open` is tried again, absent is `done` |
//!
//! Every write of 4 may be made twice: letters, operations and schedules are conditional on the lock; an item on an older
//! version of its letter; an entry of the audit has its number, and its count only grows to a number that was computed before.
//! Counts of an operation are never written: they are counted from its items, which are the truth, since an increment can be
//! neither repeated nor taken back.
//!
//! A single letter without anything beside it needs none of this: one conditional update by id and version.

use std::time::Duration;

use mongodb::bson::oid::ObjectId;
use mongodb::bson::{Binary, Bson, Document, doc, spec::BinarySubtype};
use mongodb::options::FindOptions;
use tokio::time::{Instant, sleep};

use crate::codec::number;
use crate::db::{Coll, Db};
use crate::error::{Fault, Result};
use crate::keys;
use crate::parts::{INLINE, Reference};

/// Time that an open commit is given before others make it void.
pub(crate) const COMMIT_TIMEOUT: Duration = Duration::from_secs(2);

/// Time for which a void commit is kept.
const KEPT: Duration = Duration::from_secs(24 * 3600);

/// Pause between two looks at a commit of somebody else.
const PAUSE: Duration = Duration::from_millis(3);

/// A document that a commit locks, and what becomes of it.
#[derive(Clone, Debug)]
pub(crate) struct Locked {
    pub(crate) coll: Coll,
    pub(crate) id: Bson,
    /// The version that the verb decided over; `None` for a new document.
    pub(crate) expected: Option<i64>,
    /// The version of a new document.
    pub(crate) first: i64,
    pub(crate) set: Document,
    pub(crate) unset: Document,
    pub(crate) is_removed: bool,
    /// The key of an original message that it takes, and its former key.
    pub(crate) takes: Option<(Bson, Option<Bson>)>,
}

/// Everything that a commit writes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Steps {
    pub(crate) locked: Vec<Locked>,
    /// Updates that may be made twice: `{ q, u, upsert }`, or `{ q, limit }` for a deletion.
    pub(crate) plain: Vec<(Coll, Document)>,
}

impl Locked {
    fn written(&self) -> Document {
        let mut document = doc! {
            "c": self.coll.as_str(),
            "id": self.id.clone(),
            "first": self.first,
            "set": self.set.clone(),
            "unset": self.unset.clone(),
            "removed": self.is_removed,
        };
        if let Some(expected) = self.expected {
            document.insert("expected", expected);
        }
        if let Some((key, former)) = &self.takes {
            document.insert("key", key.clone());
            if let Some(former) = former {
                document.insert("former", former.clone());
            }
        }
        document
    }

    fn read(mut document: Document) -> Option<Self> {
        let coll = Coll::named(document.get_str("c").ok()?)?;
        let take = |name: &str, document: &mut Document| match document.remove(name) {
            Some(Bson::Document(found)) => found,
            _ => Document::new(),
        };
        let (set, unset) = (take("set", &mut document), take("unset", &mut document));
        let takes = document.remove("key").map(|key| (key, document.remove("former")));
        Some(Self {
            coll,
            id: document.get("id")?.clone(),
            expected: number(&document, "expected"),
            first: number(&document, "first")?,
            set,
            unset,
            is_removed: document.get_bool("removed").unwrap_or(false),
            takes,
        })
    }

    /// The version that it has once it is locked.
    fn version(&self) -> i64 {
        self.expected.map_or(self.first, |expected| expected + 1)
    }
}

impl Steps {
    fn written(&self) -> Document {
        let locked: Vec<_> = self.locked.iter().map(|it| Bson::Document(it.written())).collect();
        let plain = self.plain.iter().map(|(coll, statement)| {
            Bson::Document(doc! { "c": coll.as_str(), "s": statement.clone() })
        });
        doc! { "locked": locked, "plain": plain.collect::<Vec<_>>() }
    }

    fn read(bytes: &[u8]) -> Result<Self> {
        let broken = |error: &dyn std::fmt::Display| Fault::corrupt("commit", error);
        let mut document = Document::from_reader(bytes).map_err(|error| broken(&error))?;
        let mut list = |name| match document.remove(name) {
            Some(Bson::Array(list)) => list,
            _ => Vec::new(),
        };
        let (locked, plain) = (list("locked"), list("plain"));
        let mut steps = Self::default();
        for one in locked {
            let Bson::Document(one) = one else { continue };
            steps.locked.push(Locked::read(one).ok_or_else(|| broken(&"a step is not whole"))?);
        }
        for one in plain {
            let Bson::Document(mut one) = one else { continue };
            let coll = one.get_str("c").ok().and_then(Coll::named);
            if let (Some(coll), Some(Bson::Document(statement))) = (coll, one.remove("s")) {
                steps.plain.push((coll, statement));
            }
        }
        Ok(steps)
    }
}

/// The field that only a whole document of a collection has, and one that is being written does not.
const fn mark(coll: Coll) -> &'static str {
    match coll {
        Coll::Letters => "created",
        Coll::Schedules => "last",
        Coll::Documents => "text",
        _ => "number",
    }
}

/// Collections whose documents can be locked.
const LOCKABLE: [Coll; 4] = [Coll::Letters, Coll::Operations, Coll::Schedules, Coll::Documents];

impl Db {
    /// Commits. Returns false if something had changed, or somebody else is at it: decide again.
    pub(crate) async fn commit(&self, steps: &Steps) -> Result<bool> {
        // A new id for each try, so that a lock tells which of them it belongs to.
        let id = ObjectId::new();
        let bytes = steps.written().to_vec().map_err(|error| Fault::corrupt("commit", &error))?;
        let at = self.server_now().await?;
        let mut document = doc! { "_id": id, "state": "open", "at": at.as_nanos() };
        // A document has a bound that many letters together may pass. Pieces are there before the commit names them.
        if bytes.len() <= 16 * INLINE {
            // The steps are bytes and not a document, since servers before 5.0 store no field with a name such as
            // `$set`.
            let steps = Binary { subtype: BinarySubtype::Generic, bytes };
            document.insert("steps", Bson::Binary(steps));
        } else {
            let parts = self.write_parts(&Bson::ObjectId(id), &bytes, at).await?;
            document.insert("steps_parts", parts.written());
        }
        // The commit is written before any lock: a call that meets one has to find out what it belongs to.
        self.insert(Coll::Commits, vec![document]).await?;
        let locked = self.lock(id, steps).await;
        let is_locked = match locked {
            Ok(is_locked) => is_locked,
            Err(fault) => {
                // Where this does not succeed either, others make it void.
                let _ = self.call_off(id, steps).await;
                return Err(fault);
            }
        };
        // A lock of somebody else is not waited for here, where locks are held, so that no two commits wait in a circle.
        if !is_locked || !self.decide(id).await? {
            self.call_off(id, steps).await?;
            return Ok(false);
        }
        // It has happened. Where the rest fails, others do it.
        if let Err(fault) = self.apply(id, steps).await {
            tracing::warn!(error = ?fault, "commit is not applied yet; the next call goes on with it");
        }
        Ok(true)
    }

    /// Locks everything. False if something is not as it was.
    async fn lock(&self, id: ObjectId, steps: &Steps) -> Result<bool> {
        for coll in LOCKABLE {
            let of_it = || steps.locked.iter().filter(move |it| it.coll == coll);
            let mut updates = Vec::new();
            for it in of_it() {
                let Some(expected) = it.expected else { continue };
                let mut set = doc! { "lock": id, "v": it.version() };
                if let Some((key, _)) = &it.takes {
                    set.insert("dedup", key.clone());
                }
                updates.push(doc! {
                    "q": { "_id": it.id.clone(), "v": expected, "lock": { "$exists": false } },
                    "u": { "$set": set },
                });
            }
            let new = of_it().filter(|it| it.expected.is_none()).map(|it| {
                let mut document = doc! { "_id": it.id.clone(), "v": it.first, "lock": id };
                if let Some((key, _)) = &it.takes {
                    document.insert("dedup", key.clone());
                }
                document
            });
            let new: Vec<_> = new.collect();
            let wanted = (updates.len() + new.len()) as u64;
            let updated = self.update(coll, updates).await?;
            let inserted = self.insert(coll, new).await?;
            if updated.n + inserted.n == wanted && updated.duplicates.is_empty() {
                continue;
            }
            // A command that was sent twice has found its own locks.
            let is_repeated = updated.is_repeated || inserted.is_repeated;
            if !is_repeated || self.count(coll, doc! { "lock": id }).await? != wanted {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Makes an open commit happen. False if somebody has made it void.
    async fn decide(&self, id: ObjectId) -> Result<bool> {
        let update = doc! {
            "q": { "_id": id, "state": "open" },
            "u": { "$set": { "state": "done" } },
        };
        // Of the owner who decides and others who make it void, this one condition lets only the first succeed.
        let wrote = self.update(Coll::Commits, vec![update]).await?;
        if wrote.n == 1 {
            return Ok(true);
        }
        // Either it is void, or an earlier try was carried out.
        match self.find_one(Coll::Commits, doc! { "_id": id }).await? {
            Some(found) => Ok(found.get_str("state").is_ok_and(|state| state == "done")),
            // After an earlier try, others have applied it and deleted it. Otherwise others made it void, and it was swept
            // while this process stood still.
            None => Ok(wrote.is_repeated),
        }
    }

    /// Writes everything of a commit that is done. May be done by several at once, and again.
    async fn apply(&self, id: ObjectId, steps: &Steps) -> Result<()> {
        // These come before what is locked: its update takes the lock away, and whoever reads it then finds all that goes
        // with it.
        for coll in [Coll::Items, Coll::Aliases, Coll::Audit, Coll::Operations] {
            let of_it = steps.plain.iter().filter(|(of, _)| *of == coll);
            let (deletes, updates): (Vec<_>, Vec<_>) =
                of_it.map(|(_, statement)| statement.clone()).partition(|it| !it.contains_key("u"));
            self.delete(coll, deletes).await?;
            // A key that is taken: it was written by somebody else who applies the same.
            self.update(coll, updates).await?;
        }
        for coll in LOCKABLE {
            let of_it = || steps.locked.iter().filter(move |it| it.coll == coll);
            // A write needs the lock of this commit: others may have applied it, and gone on with the letter since.
            let q = |it: &Locked| doc! { "_id": it.id.clone(), "lock": id };
            let removed = of_it().filter(|it| it.is_removed);
            let removed = removed.map(|it| doc! { "q": q(it), "limit": 1_i32 }).collect();
            self.delete(coll, removed).await?;
            let update = |it: &Locked, has_key: bool| {
                let (mut set, mut unset) = (it.set.clone(), it.unset.clone());
                if !has_key {
                    set.remove("dedup");
                }
                unset.insert("lock", "");
                set.insert("v", it.version());
                doc! { "q": q(it), "u": { "$set": set, "$unset": unset } }
            };
            // Keys that are given up come first.
            let mut kept: Vec<_> = of_it().filter(|it| !it.is_removed).collect();
            kept.sort_by_key(|it| it.set.contains_key("dedup"));
            let wrote = self.update(coll, kept.iter().map(|it| update(it, true)).collect()).await?;
            // A key that went from one letter to another in this commit, and that a third took in between.
            let again = wrote.duplicates.iter().filter_map(|at| kept.get(*at));
            let again = again.map(|it| update(it, false)).collect();
            self.update(coll, again).await?;
        }
        // The commit goes last: until everything is written, it is all that says what a lock is for.
        self.delete_commit(id).await
    }

    async fn delete_commit(&self, id: ObjectId) -> Result<()> {
        let delete = doc! { "q": { "_id": id }, "limit": 1_i32 };
        self.delete(Coll::Commits, vec![delete]).await.map(drop)
    }

    /// Makes a commit of our own void. Nobody locks for it any more, so that it need not be kept.
    async fn call_off(&self, id: ObjectId, steps: &Steps) -> Result<()> {
        self.void(id, steps).await?;
        self.delete_commit(id).await
    }

    /// Makes a commit void, and takes its locks away; unless it is decided by now.
    async fn void(&self, id: ObjectId, steps: &Steps) -> Result<()> {
        let update = doc! {
            "q": { "_id": id, "state": "open" },
            "u": { "$set": { "state": "void" } },
        };
        self.update(Coll::Commits, vec![update]).await?;
        // Its owner may have decided it since it was read. The locks of a decided commit keep others from what is yet to be written.
        let found = self.find_one(Coll::Commits, doc! { "_id": id }).await?;
        if found.is_some_and(|found| found.get_str("state").is_ok_and(|state| state == "void")) {
            return self.release(id, steps).await;
        }
        Ok(())
    }

    /// Takes the locks of a void commit away, and gives former keys back.
    async fn release(&self, id: ObjectId, steps: &Steps) -> Result<()> {
        let took = steps.locked.iter().filter(|it| it.expected.is_some());
        let took = took.filter_map(|it| {
            let (key, former) = it.takes.as_ref()?;
            let update = match former {
                Some(former) => doc! { "$set": { "dedup": former.clone() } },
                None => doc! { "$unset": { "dedup": "" } },
            };
            // A key is given back only under the lock of this commit: a letter that it never came to has its key from
            // somebody else.
            let q = doc! { "_id": it.id.clone(), "lock": id, "dedup": key.clone() };
            Some(doc! { "q": q, "u": update })
        });
        self.update(Coll::Letters, took.collect()).await?;
        for coll in LOCKABLE {
            if !steps.locked.iter().any(|it| it.coll == coll) {
                continue;
            }
            self.unlock(coll, id).await?;
        }
        Ok(())
    }

    async fn unlock(&self, coll: Coll, id: ObjectId) -> Result<()> {
        // New documents go first: without its lock such a document would be taken for a letter that has lost its fields.
        let empty = doc! { "lock": id, mark(coll): { "$exists": false } };
        self.delete(coll, vec![doc! { "q": empty, "limit": 0_i32 }]).await?;
        let unlock = doc! { "q": { "lock": id }, "u": { "$unset": { "lock": "" } }, "multi": true };
        self.update(coll, vec![unlock]).await.map(drop)
    }

    async fn steps(&self, commit: &Document) -> Result<Steps> {
        if let Some(bytes) = keys::bytes(commit.get("steps")) {
            return Steps::read(bytes);
        }
        let Some(reference) = Reference::read(commit, "steps_parts") else {
            return Err(Fault::corrupt("commit", &"it says nothing"));
        };
        let mut parts = self.read_parts(&[reference]).await?;
        let bytes = parts.remove(&reference);
        Steps::read(&bytes.ok_or_else(|| Fault::corrupt("commit", &"pieces are missing"))?)
    }

    /// Waits until a commit of somebody else is over, and lends a hand: a done one is applied, one that takes too long is
    /// made void.
    pub(crate) async fn resolve(&self, coll: Coll, id: ObjectId) -> Result<()> {
        let began = Instant::now();
        loop {
            let Some(commit) = self.find_one(Coll::Commits, doc! { "_id": id }).await? else {
                // It is over, or has been for long: who locked after it was void leaves this behind.
                return self.unlock(coll, id).await;
            };
            match commit.get_str("state") {
                Ok("done") => return self.apply(id, &self.steps(&commit).await?).await,
                // The time counts from the first look by the clock of this process, so that clocks that differ shorten
                // nobody's time.
                Ok("open") if began.elapsed() < self.commit_timeout => sleep(PAUSE).await,
                Ok("open") => {
                    let steps = self.steps(&commit).await?;
                    self.void(id, &steps).await?;
                }
                _ => return self.release(id, &self.steps(&commit).await?).await,
            }
        }
    }

    /// Ends commits that were left behind. Void ones are kept for a day, for those who still lock for them.
    pub(crate) async fn sweep_commits(&self) -> Result<u64> {
        let now = self.server_now().await?;
        // Twice the timeout keeps a commit under way from being made void by a clock that is a little ahead.
        let left = now.before(self.commit_timeout * 2).as_nanos();
        let mut swept = 0;
        // Apart from void ones, of which there may be so many that no other would be come to.
        for commit in
            self.oldest(doc! { "at": { "$lt": left }, "state": { "$ne": "void" } }).await?
        {
            let Ok(id) = commit.get_object_id("_id") else { continue };
            let steps = self.steps(&commit).await?;
            match commit.get_str("state") {
                Ok("done") => self.apply(id, &steps).await?,
                _ => self.void(id, &steps).await?,
            }
            swept += 1;
        }
        swept += self.sweep_locks().await?;
        let forgotten = now.before(KEPT).as_nanos();
        for commit in self.oldest(doc! { "at": { "$lt": forgotten }, "state": "void" }).await? {
            let Ok(id) = commit.get_object_id("_id") else { continue };
            self.release(id, &self.steps(&commit).await?).await?;
            self.delete_commit(id).await?;
            swept += 1;
        }
        Ok(swept)
    }

    async fn oldest(&self, filter: Document) -> Result<Vec<Document>> {
        // A sweep is part of a claim now and then, so it takes on no more than this at once.
        let options = FindOptions::builder().sort(doc! { "at": 1_i32 }).limit(100).build();
        self.find(Coll::Commits, filter, options).await
    }

    /// Takes away locks of commits that are void or gone. Claims pass over locked letters, so that nobody else may meet them:
    /// whoever made the commit void may have died before it came to this, or somebody may have locked later.
    async fn sweep_locks(&self) -> Result<u64> {
        let mut swept = 0;
        for coll in LOCKABLE {
            let pipeline = vec![
                doc! { "$match": { "lock": { "$exists": true } } },
                doc! { "$group": { "_id": "$lock" } },
            ];
            for lock in self.aggregate(coll, pipeline).await? {
                let Ok(id) = lock.get_object_id("_id") else { continue };
                let commit = self.find_one(Coll::Commits, doc! { "_id": id }).await?;
                match &commit {
                    None => self.unlock(coll, id).await?,
                    Some(commit) if commit.get_str("state").is_ok_and(|it| it == "void") => {
                        self.release(id, &self.steps(commit).await?).await?;
                    }
                    // It is under way, or was left behind and its time will come.
                    Some(_) => continue,
                }
                swept += 1;
            }
        }
        Ok(swept)
    }
}

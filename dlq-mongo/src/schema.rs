//! Indexes: which there are, and whether they are there.

use std::collections::BTreeSet;

use dlq_core::store::{Migration, MigrationStep};
use dlq_core::{Finding, Severity, StoreErrorKind};
use mongodb::bson::{Bson, Document, doc};

use crate::codec::text;
use crate::db::{Coll, Db};
use crate::error::{Fault, Result};

/// The version of collections and indexes that this program works with.
const VERSION: u32 = 1;

/// An index.
#[derive(Clone, Debug)]
pub(crate) struct Index {
    pub(crate) coll: Coll,
    pub(crate) name: &'static str,
    keys: Document,
    options: Document,
}

/// Every index of a store.
pub(crate) fn indexes() -> Vec<Index> {
    let plain = |coll, name, keys| Index { coll, name, keys, options: Document::new() };
    let sparse = |coll, name, keys| Index { coll, name, keys, options: doc! { "sparse": true } };
    let letters = Coll::Letters;
    let age = || doc! { "created": 1_i32, "_id": 1_i32 };
    let with_age = |field: &str| {
        let mut keys = doc! { field: 1_i32 };
        keys.extend(age());
        keys
    };
    vec![
        plain(letters, "age", age()),
        plain(letters, "status", with_age("status")),
        plain(letters, "consumer", with_age("consumer")),
        plain(letters, "subject", with_age("subject")),
        plain(letters, "fingerprint", with_age("fingerprint")),
        plain(letters, "updated", doc! { "status": 1_i32, "updated": 1_i32 }),
        sparse(letters, "message_id", doc! { "message_id": 1_i32 }),
        sparse(letters, "available", doc! { "available": 1_i32, "created": 1_i32, "_id": 1_i32 }),
        sparse(letters, "item", doc! { "operation": 1_i32, "item": 1_i32 }),
        sparse(letters, "claim_token", doc! { "claim_token": 1_i32 }),
        sparse(letters, "lock", doc! { "lock": 1_i32 }),
        Index {
            coll: letters,
            name: "dedup",
            keys: doc! { "dedup": 1_i32 },
            options: doc! { "unique": true, "sparse": true },
        },
        plain(Coll::Items, "frozen", doc! { "operation": 1_i32, "index": 1_i32 }),
        plain(Coll::Items, "outcome", doc! { "operation": 1_i32, "outcome": 1_i32 }),
        plain(Coll::Aliases, "row", doc! { "row": 1_i32 }),
        plain(Coll::Parts, "at", doc! { "at": 1_i32 }),
        plain(Coll::Commits, "at", doc! { "at": 1_i32 }),
        plain(Coll::Keys, "forget", doc! { "forget": 1_i32 }),
        Index {
            coll: Coll::Keys,
            name: "expires",
            keys: doc! { "expires": 1_i32 },
            options: doc! { "expireAfterSeconds": 0_i32 },
        },
    ]
}

impl Db {
    /// Returns the version of the store, or `None` if there is none.
    ///
    /// # Errors
    ///
    /// `Incompatible`: a newer program has migrated it.
    pub(crate) async fn version(&self) -> Result<Option<u32>> {
        let found = self.find_one(Coll::Meta, doc! { "_id": "version" }).await?;
        let Some(found) = found.and_then(|found| found.get_i64("n").ok()) else { return Ok(None) };
        match u32::try_from(found) {
            Ok(version) if (1..=VERSION).contains(&version) => Ok(Some(version)),
            _ => Err(Fault::new(
                StoreErrorKind::Incompatible,
                format!(
                    "the store has version {found}, and this program works with {VERSION}; use the program that migrated it"
                ),
            )),
        }
    }

    /// Looks at what [`ensure`](Self::ensure) would do.
    pub(crate) async fn migration(&self) -> Result<Migration> {
        let first = MigrationStep::new(VERSION, "make the collections and their indexes", true);
        let mut migration = Migration::between(self.version().await?, vec![first]);
        if migration.is_up_to_date() {
            let (there, _) = self.collections().await?;
            for coll in Coll::ALL {
                let lost = self.lost(coll, &there).await?.into_iter();
                let name = self.name(coll);
                migration
                    .missing
                    .extend(lost.map(|index| format!("index {} of {name}", index.name)));
            }
        }
        Ok(migration)
    }

    /// Makes the indexes that are missing, and says that the store is there. What is there is left as it is.
    pub(crate) async fn ensure(&self) -> Result<()> {
        for coll in Coll::ALL {
            let indexes: Vec<_> = indexes()
                .into_iter()
                .filter(|index| index.coll == coll)
                .map(|index| {
                    let mut definition = doc! { "key": index.keys, "name": index.name };
                    definition.extend(index.options);
                    Bson::Document(definition)
                })
                .collect();
            if !indexes.is_empty() {
                // The server leaves an index alone that is there as it is defined, so any number of processes may do
                // this at once.
                let create = doc! { "createIndexes": self.name(coll), "indexes": indexes };
                self.command(create).await?;
            }
        }
        let version = doc! {
            "q": { "_id": "version" },
            // What is there is left: an older program does not set a version back.
            "u": { "$setOnInsert": { "n": i64::from(VERSION) } },
            "upsert": true,
        };
        self.update(Coll::Meta, vec![version]).await?;
        Ok(())
    }

    /// Refuses servers on which the store would lose or double letters.
    pub(crate) async fn refuse_unfit(&self) -> Result<()> {
        let info = self.command(doc! { "buildInfo": 1_i32 }).await?;
        if info.contains_key("ferretdb") {
            return Err(Fault::new(
                StoreErrorKind::Incompatible,
                "the server is FerretDB, whose findAndModify is not atomic, so that letters would run twice; use a server of \
                 MongoDB",
            ));
        }
        Ok(())
    }

    /// Refuses collections from which the server deletes by itself.
    pub(crate) async fn refuse_capped(&self) -> Result<()> {
        let (_, capped) = self.collections().await?;
        let ours = Coll::ALL.into_iter().map(|coll| self.name(coll));
        let Some(name) = ours.into_iter().find(|name| capped.contains(name)) else { return Ok(()) };
        Err(Fault::new(
            StoreErrorKind::Incompatible,
            format!(
                "the collection `{name}` is capped, so that the server deletes the oldest letters to make room; use another \
                 prefix, or drop it"
            ),
        ))
    }

    /// Names of the collections that are there, and those of them that are capped.
    async fn collections(&self) -> Result<(BTreeSet<String>, BTreeSet<String>)> {
        // So many in the first batch that no second one has to be fetched.
        let list = doc! { "listCollections": 1_i32, "cursor": { "batchSize": 10_000_i32 } };
        let answer = self.command(list).await?;
        let batch = answer.get_document("cursor").and_then(|cursor| cursor.get_array("firstBatch"));
        let (mut all, mut capped) = (BTreeSet::new(), BTreeSet::new());
        for found in batch.into_iter().flatten().filter_map(Bson::as_document) {
            let Some(name) = text(found, "name") else { continue };
            all.insert(name.to_owned());
            let options = found.get_document("options");
            if options.is_ok_and(|options| options.get_bool("capped").unwrap_or(false)) {
                capped.insert(name.to_owned());
            }
        }
        Ok((all, capped))
    }

    /// Returns the indexes that this collection lacks.
    async fn lost(&self, coll: Coll, collections: &BTreeSet<String>) -> Result<Vec<Index>> {
        let mut lost: Vec<_> = indexes().into_iter().filter(|it| it.coll == coll).collect();
        if !lost.is_empty() && collections.contains(&self.name(coll)) {
            let there = self.index_names(coll).await?;
            lost.retain(|index| !there.contains(index.name));
        }
        Ok(lost)
    }

    async fn index_names(&self, coll: Coll) -> Result<BTreeSet<String>> {
        let list = doc! { "listIndexes": self.name(coll), "cursor": { "batchSize": 10_000_i32 } };
        let answer = self.command(list).await?;
        let batch = answer.get_document("cursor").and_then(|cursor| cursor.get_array("firstBatch"));
        let names = batch.into_iter().flatten().filter_map(Bson::as_document);
        Ok(names.filter_map(|index| text(index, "name")).map(str::to_owned).collect())
    }

    /// Says what is wrong with collections and indexes.
    pub(crate) async fn amiss(&self) -> Result<Vec<Finding>> {
        let (all, capped) = self.collections().await?;
        let mut findings = Vec::new();
        for coll in Coll::ALL {
            let name = self.name(coll);
            if capped.contains(&name) {
                let finding =
                    Finding::new(Severity::Error, &format!("collection `{name}`"), "capped");
                findings.push(finding.found("capped", "not capped").advice(
                    "the server deletes the oldest letters to make room, and says nothing; export the letters, drop the collection, \
                     and let the store make it anew",
                ));
            }
            for index in self.lost(coll, &all).await? {
                let subject = format!("index `{}` of `{name}`", index.name);
                let finding = Finding::new(Severity::Error, &subject, "existence");
                let why = match index.name {
                    "dedup" => "letters of one original message are kept twice",
                    "expires" => "idempotency keys are only forgotten where somebody purges them",
                    _ => "whatever it serves reads every document",
                };
                findings.push(finding.found("missing", "there").advice(format!(
                    "{why}; make it again: db.{name}.createIndex({}, {})",
                    shown(&index.keys),
                    shown(&named(&index))
                )));
            }
        }
        Ok(findings)
    }
}

fn named(index: &Index) -> Document {
    let mut options = doc! { "name": index.name };
    options.extend(index.options.clone());
    options
}

fn shown(document: &Document) -> String {
    document.to_string()
}

//! Running of a verb: load, decide, write if nothing has changed meanwhile; else again.
//!
//! | verb | letters | how it is written | the process dies in between |
//! |---|---|---|---|
//! | put, enqueue: a new letter or news | 1 | one conditional write | before it nothing, after it all |
//! | the same, of a letter that an operation holds; merge into another | 1, item or alias | commit | nothing or all |
//! | put of several, restore | many, audit | commit | nothing or all; the messages come again |
//! | claim of due letters | 1 or many | one conditional write; a commit for many | the lease of those claimed ends, and counts as a crash |
//! | claim that operations release | many, items, operation | commit, with the operation locked | nothing or all: neither rate nor canary is used up |
//! | extend, finish | 1 | one conditional write | the lease ends, or the same again is `Applied` |
//! | finish in an operation, take, record | letters, items | commit | nothing or all |
//! | start, freeze, steer, withdraw | letters, items, operation, audit | commit | an operation that is `preparing` stays so until resumed or cancelled |
//! | mark, delete, undelete, cleanup, edit | letters, items, copies in the archive, audit | commit | pages before it are done, and the audit says so |
//! | collapse | letters, aliases, keys, audit | commit | nothing or all |
//! | schedule | letters, its last run | commit | nothing or all |
//!
//! The steps of a commit, and what follows when a process dies between two of them, are in [`commit`](crate::commit). The
//! statements of the fast paths (new letters, due letters, leases, plain finishes) change single letters only, each on
//! condition that nobody has locked it.

use std::collections::BTreeSet;
use std::time::Duration;

use dlq_core::StoreError;
use dlq_letters::{Done, Needs, Rows, Verb};
use mongodb::bson::oid::ObjectId;
use tokio::time::{Instant, sleep};

use crate::change::{Single, Written};
use crate::db::{Coll, Db};
use crate::error::{Fault, Result};
use crate::load::Seen;

/// Time for which a verb decides again because others were first.
const LONGEST: Duration = Duration::from_secs(60);

impl Db {
    /// Runs a verb. The refusal of the verb itself is the inner error.
    pub(crate) async fn run<V: Verb>(
        &self,
        verb: &V,
    ) -> Result<std::result::Result<Done<V::Output>, StoreError>> {
        let began = Instant::now();
        let mut lost: u32 = 0;
        loop {
            // All is loaded anew after a loss, with the versions of now.
            let (mut rows, mut seen) = (Rows::new(self.now().await?), Seen::default());
            let mut needs = Needs::default();
            verb.needs(&mut needs);
            let answer = loop {
                self.load(&needs, &mut rows, &mut seen).await?;
                match rows.attempt(verb) {
                    Ok(Some(answer)) => break answer,
                    Ok(None) => needs = rows.missing().clone(),
                    Err(refusal) => return Ok(Err(refusal)),
                }
            };
            if rows.is_unchanged() {
                return Ok(Ok(Done { answer, note: None }));
            }
            if let Some(written) = self.written(&rows, &seen).await?
                && self.write_all(&written, V::ONCE).await?
            {
                let operations: &BTreeSet<_> = &written.operations;
                // Both are made up for: by whoever looks at the operation next, and by the next sweep.
                let settled = self.settle(operations, rows.now()).await;
                let deleted = self.delete_parts(&written.replaced).await;
                if let Err(fault) = settled.and(deleted) {
                    tracing::debug!(error = ?fault, "letters are written, and what follows is not");
                }
                return Ok(Ok(Done { answer, note: written.note }));
            }
            // The bound keeps a letter that changes all the time from holding a call for ever.
            if began.elapsed() > LONGEST {
                return Err(Fault::unavailable(
                    "others change the same letters all the time; try again later",
                ));
            }
            lost = lost.saturating_add(1);
            sleep(pause(lost)).await;
        }
    }

    /// Writes everything, or nothing. False if something had changed.
    async fn write_all(&self, written: &Written, is_once: bool) -> Result<bool> {
        let steps = &written.steps;
        // Only a commit knows for certain, after an answer was lost, that it has happened.
        if let ([single], [], false) = (&steps.locked[..], &steps.plain[..], is_once)
            && single.coll == Coll::Letters
            // A deletion leaves nothing behind by which it could be recognised after a lost answer.
            && !single.is_removed
        {
            return Ok(self.write_single(single).await? == Single::Written);
        }
        self.commit(steps).await
    }
}

/// A pause that differs between those who lost against each other.
fn pause(lost: u32) -> Duration {
    let id = ObjectId::new().bytes();
    let random = u64::from(id[11]) ^ u64::from(id[8]).rotate_left(3) ^ u64::from(id[5]);
    let most = 2_000_u64 << lost.min(5);
    Duration::from_micros(most * (64 + random % 192) / 256)
}

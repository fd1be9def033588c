//! An ingest into a whole store, which keeps an audit of what was processed.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::{BTreeSet, VecDeque};
use std::future::pending;
use std::sync::{Arc, Mutex};

use dlq_core::ingest::Ingest;
use dlq_core::log::{Content, Entries, Entry};
use dlq_core::store::{BoxStore, Maintenance as _, Processed};
use dlq_core::{
    Attempt, Cause, DeadLetter, ErrorClass, Failure, History, Message, Origin, Position, Reason,
    StoreError, Timestamp,
};
use dlq_letters::memory::MemoryStore;

/// Letters of a broker that keeps what is not confirmed, and how many were yielded.
#[derive(Clone, Debug)]
struct Letters(Arc<Mutex<VecDeque<Entry>>>, usize);

impl Entries for Letters {
    async fn next(&mut self, limit: usize) -> Result<Vec<Entry>, StoreError> {
        let mut all = self.0.lock().unwrap();
        let fed: Vec<_> = all.iter().take(limit).cloned().collect();
        all.iter_mut().take(limit).for_each(|fed| fed.again = true);
        self.1 = fed.len();
        Ok(fed)
    }

    async fn confirm(&mut self) -> Result<(), StoreError> {
        self.0.lock().unwrap().drain(..self.1);
        Ok(())
    }
}

fn letter(n: u64) -> DeadLetter {
    let origin = Origin::new("memory", "orders", Position::Offset(n));
    let mut history = History::new();
    let failure = Failure::new(ErrorClass::Permanent, Cause::Error, "app::E", "no such user");
    history.push(Attempt { number: 1, generation: 0, failure });
    let message = Message::new("orders.created", format!("{n}")).with_key("k");
    let letter = DeadLetter::new(message, origin, "billing", Reason::Permanent);
    let mut letter = letter.with_history(history);
    letter.attempts = 1;
    letter.deliveries = 1;
    letter.died_at = Timestamp::from_millis(1);
    letter
}

#[tokio::test]
async fn every_death_is_in_the_audit_also_after_a_crash() {
    let fed = |n| Entry {
        place: Origin::new("memory", "DLQ", Position::Offset(n)),
        again: false,
        content: Content::Letter(Box::new(letter(n))),
    };
    let letters = Letters(Arc::new(Mutex::new((1..=3).map(fed).collect())), 0);
    let store = MemoryStore::new();
    let audited = || {
        let ingest = Ingest::new(letters.clone(), store.clone()).batch(2);
        ingest.audit(BoxStore::new(store.clone()))
    };
    // It dies when the first two are in the store.
    audited().run(pending(), |_| Err("the disk is full".into())).await.unwrap_err();
    audited().run(pending(), |_| Ok(())).await.unwrap();
    audited().run(pending(), |_| Ok(())).await.unwrap();
    let rows = store.processed(100).await.unwrap();
    let events: BTreeSet<_> = rows.iter().map(|row| row.event_id.clone()).collect();
    assert_eq!((events.len(), rows.len()), (3, 5), "two may be there twice: {rows:?}");
    assert!(rows.iter().all(|row| row.status == Processed::Dlq && row.consumer == "billing"));
    assert_eq!(rows[0].error.as_deref(), Some("no such user"));
}

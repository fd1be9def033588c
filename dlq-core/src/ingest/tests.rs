use std::collections::{BTreeSet, VecDeque};
use std::future::pending;
use std::sync::{Arc, Mutex};

use super::*;
use crate::log::{Content, Entries, Entry};
use crate::memory::MemorySink;
use crate::store::{Group, Letters, Receipt, Sink, Stats};
use crate::{
    Cause, DeadLetter, ErrorClass, Failure, Filter, Fingerprint, History, LetterId, LetterState,
    Message, Origin, Page, PageRequest, Position, Reason, StoreError, StoreErrorKind, Timestamp,
};
use std::time::Duration;

fn letter(n: u64) -> DeadLetter {
    let origin = Origin::new("memory", "orders", Position::Offset(n));
    let mut history = History::new();
    let failure = Failure::new(ErrorClass::Permanent, Cause::Error, "app::E", "no such user");
    history.push(crate::Attempt { number: 1, generation: 0, failure });
    DeadLetter {
        id: LetterId::of(&origin, None, "billing"),
        generation: 0,
        message: Message::new("orders.created", format!("{n}")).with_key("k"),
        origin,
        consumer: "billing".to_owned(),
        service: None,
        reason: Reason::Permanent,
        class: ErrorClass::Permanent,
        cause: Some(Cause::Error),
        fingerprint: Fingerprint::of("billing", Reason::Permanent, history.last()),
        history,
        attempts: 1,
        deliveries: 1,
        crashes: 0,
        delayed_retries: 0,
        died_at: Timestamp::from_millis(1),
        confirmed: true,
        attributes: std::collections::BTreeMap::new(),
        state: LetterState::default(),
    }
}

/// A broker that keeps what is not confirmed.
#[derive(Clone, Debug, Default)]
struct Broker(Arc<Mutex<VecDeque<Entry>>>);

impl Broker {
    fn with(contents: Vec<Content>) -> Self {
        let fed = |(n, content)| Entry {
            place: Origin::new("memory", "DLQ", Position::Offset(n)),
            again: false,
            content,
        };
        Self(Arc::new(Mutex::new((1..).zip(contents).map(fed).collect())))
    }

    fn entries(&self) -> FakeEntries {
        FakeEntries { broker: self.clone(), yielded: 0, outages: 0 }
    }

    fn left(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

#[derive(Debug)]
struct FakeEntries {
    broker: Broker,
    yielded: usize,
    outages: u32,
}

impl Entries for FakeEntries {
    async fn next(&mut self, limit: usize) -> Result<Vec<Entry>, StoreError> {
        if self.outages > 0 {
            self.outages -= 1;
            return Err(StoreError::new(StoreErrorKind::Unavailable, "read"));
        }
        assert_eq!(self.yielded, 0, "it was confirmed");
        let mut all = self.broker.0.lock().unwrap();
        let fed: Vec<Entry> = all.iter().take(limit).cloned().collect();
        all.iter_mut().take(limit).for_each(|fed| fed.again = true);
        self.yielded = fed.len();
        Ok(fed)
    }

    async fn confirm(&mut self) -> Result<(), StoreError> {
        self.broker.0.lock().unwrap().drain(..self.yielded);
        self.yielded = 0;
        Ok(())
    }
}

/// A store that does not take these letters, or is not there for a while.
#[derive(Debug, Default)]
struct Picky {
    store: MemorySink,
    refuses: BTreeSet<LetterId>,
    outages: Mutex<u32>,
    kind: Option<StoreErrorKind>,
    unread: Option<StoreErrorKind>,
}

impl Sink for Picky {
    async fn put(&self, letters: Vec<DeadLetter>) -> Result<Vec<Receipt>, StoreError> {
        {
            let mut outages = self.outages.lock().unwrap();
            if *outages > 0 {
                *outages -= 1;
                return Err(StoreError::new(StoreErrorKind::Unavailable, "put"));
            }
        }
        if letters.iter().any(|letter| self.refuses.contains(&letter.id)) {
            return Err(StoreError::new(self.kind.unwrap_or(StoreErrorKind::Refused), "put"));
        }
        self.store.put(letters).await
    }
}

impl Letters for Picky {
    async fn get(&self, id: LetterId) -> Result<Option<DeadLetter>, StoreError> {
        match self.unread {
            Some(kind) => Err(StoreError::new(kind, "get")),
            None => Ok(self.store.get(id)),
        }
    }

    async fn get_all(&self, _: Vec<LetterId>) -> Result<Vec<DeadLetter>, StoreError> {
        unreachable!("an ingest gets letters one by one")
    }

    async fn with_prefix(&self, _: String, _: u32) -> Result<Vec<LetterId>, StoreError> {
        unreachable!("an ingest knows whole ids")
    }

    async fn list(&self, _: Filter, _: PageRequest) -> Result<Page, StoreError> {
        unreachable!("an ingest lists nothing")
    }

    async fn count(&self, _: Filter) -> Result<u64, StoreError> {
        unreachable!("an ingest counts nothing")
    }

    async fn groups(&self, _: Filter, _: u32) -> Result<Vec<Group>, StoreError> {
        unreachable!("an ingest groups nothing")
    }

    async fn stats(&self, _: Filter) -> Result<Stats, StoreError> {
        unreachable!("an ingest counts nothing")
    }
}

fn letters(count: u64) -> Vec<Content> {
    (1..=count).map(|n| Content::Letter(Box::new(letter(n)))).collect()
}

async fn drain(broker: &Broker, sink: Picky) -> (IngestReport, Vec<Incident>, Picky) {
    let mut told = Vec::new();
    let mut ingest = Ingest::new(broker.entries(), sink).batch(4);
    let tell = |incidents: &[Incident]| {
        told.extend_from_slice(incidents);
        Ok(())
    };
    ingest.run(pending(), tell).await.unwrap();
    (ingest.report().clone(), told, ingest.sink)
}

#[tokio::test]
async fn every_letter_is_stored_and_told_once() {
    let mut contents = letters(10);
    contents.push(Content::Letter(Box::new(letter(3))));
    contents.push(Content::Foreign);
    let broker = Broker::with(contents);
    let (report, told, sink) = drain(&broker, Picky::default()).await;
    assert_eq!(report.with_outcome(Outcome::Stored), 10);
    assert_eq!(report.with_outcome(Outcome::Known), 1);
    assert_eq!(report.with_outcome(Outcome::Foreign), 1);
    assert_eq!((told.len(), broker.left()), (10, 0));
    assert_eq!(sink.store.letters().len(), 10);
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_is_set_aside_and_blocks_nobody() {
    let mut contents = letters(9);
    contents.insert(2, Content::Damaged("a part has gone".to_owned()));
    let broker = Broker::with(contents);
    let picky = Picky { refuses: [letter(2).id].into(), ..Picky::default() };
    let (report, told, sink) = drain(&broker, picky).await;
    assert_eq!(report.with_outcome(Outcome::SetAside), 2);
    assert_eq!(report.with_outcome(Outcome::Stored), 8);
    assert_eq!(sink.store.letters().len(), 8);
    assert_eq!(broker.left(), 0);
    let aside: Vec<_> = told.iter().filter(|told| told.outcome == Outcome::SetAside).collect();
    assert_eq!(aside[0].letter.as_ref().map(|letter| letter.letter), Some(letter(2).id));
    assert_eq!((aside[1].letter.as_ref(), &aside[1].offset), (None, &Position::Offset(3)));
    assert!(aside.iter().all(|told| told.detail.is_some()));
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_waited_for_and_confirms_nothing() {
    let broker = Broker::with(letters(5));
    let picky = Picky { outages: Mutex::new(4), ..Picky::default() };
    let mut ingest = Ingest::new(broker.entries(), picky);
    ingest.entries.outages = 3;
    ingest.run(pending(), |_| Ok(())).await.unwrap();
    assert_eq!((ingest.report().outages, broker.left()), (7, 0));

    let broker = Broker::with(letters(5));
    let picky = Picky { outages: Mutex::new(u32::MAX), ..Picky::default() };
    let mut ingest = Ingest::new(broker.entries(), picky).outage_timeout(Duration::from_secs(30));
    ingest.run(pending(), |_| Ok(())).await.unwrap_err();
    assert_eq!(broker.left(), 5);
}

#[tokio::test]
async fn a_damaged_store_ends_it_and_confirms_nothing() {
    let broker = Broker::with(letters(5));
    let kind = Some(StoreErrorKind::Corrupt);
    let picky = Picky { refuses: [letter(1).id].into(), kind, ..Picky::default() };
    let mut ingest = Ingest::new(broker.entries(), picky);
    ingest.run(pending(), |_| Ok(())).await.unwrap_err();
    assert_eq!(broker.left(), 5);
}

/// Only a refusal is of one letter: whatever else is wrong is wrong with the store.
#[tokio::test(start_paused = true)]
async fn g1_nothing_is_confirmed_when_the_store_itself_fails() {
    for kind in [
        StoreErrorKind::Unexpected,
        StoreErrorKind::NotFound,
        StoreErrorKind::Conflict,
        StoreErrorKind::Incompatible,
        StoreErrorKind::InvalidConfig,
        StoreErrorKind::Corrupt,
    ] {
        let broker = Broker::with(letters(5));
        let refuses = (1..=5).map(|n| letter(n).id).collect();
        let picky = Picky { refuses, kind: Some(kind), ..Picky::default() };
        let mut ingest = Ingest::new(broker.entries(), picky);
        let ran = ingest.run(pending(), |_| Ok(())).await;
        assert!(ran.is_err() && broker.left() == 5, "{kind}: {ran:?}, {} left", broker.left());
    }
}

/// A letter that nobody else was taken beside is set aside where the store can be read, and only there.
#[tokio::test(start_paused = true)]
async fn g1_a_lone_letter_is_set_aside_only_where_the_store_answers() {
    let refusing = |unread| Picky { refuses: [letter(1).id].into(), unread, ..Picky::default() };
    let broker = Broker::with(letters(1));
    let (report, told, _) = drain(&broker, refusing(None)).await;
    assert_eq!((report.with_outcome(Outcome::SetAside), broker.left()), (1, 0));
    assert_eq!(told.len(), 1);

    let broker = Broker::with(letters(1));
    let mut ingest = Ingest::new(broker.entries(), refusing(Some(StoreErrorKind::NotFound)));
    ingest.run(pending(), |_| Ok(())).await.unwrap_err();
    assert_eq!(broker.left(), 1);

    let broker = Broker::with(letters(1));
    let mut ingest = Ingest::new(broker.entries(), refusing(Some(StoreErrorKind::Unavailable)))
        .outage_timeout(Duration::from_secs(30));
    ingest.run(pending(), |_| Ok(())).await.unwrap_err();
    assert_eq!(broker.left(), 1);
    assert!(ingest.report().outages > 1, "it was waited for");
}

/// A store that takes no letter at all is no store, whatever it says.
#[tokio::test(start_paused = true)]
async fn g1_refusals_in_a_row_end_the_run() {
    for batch in [1, 4, 100] {
        let broker = Broker::with(letters(100));
        let refuses = (1..=100).map(|n| letter(n).id).collect();
        let picky = Picky { refuses, ..Picky::default() };
        let mut ingest = Ingest::new(broker.entries(), picky).batch(batch);
        let error = ingest.run(pending(), |_| Ok(())).await.unwrap_err();
        assert!(broker.left() > 90, "in batches of {batch}: {} left", broker.left());
        assert!(error.to_string().contains("in a row"), "{error}");
    }
    // Letters that it takes in between tell the difference.
    let broker = Broker::with(letters(100));
    let refuses = (1..=100).filter(|n| n % 4 != 0).map(|n| letter(n).id).collect();
    let (report, ..) = drain(&broker, Picky { refuses, ..Picky::default() }).await;
    assert_eq!(report.with_outcome(Outcome::SetAside), 75);
    assert_eq!((report.with_outcome(Outcome::Stored), broker.left()), (25, 0));
}

#[tokio::test]
async fn stopped_it_ends_though_letters_wait() {
    let broker = Broker::with(letters(5));
    let mut ingest = Ingest::new(broker.entries(), Picky::default());
    ingest.run(std::future::ready(()), |_| Ok(())).await.unwrap();
    assert_eq!(broker.left(), 5);
}

#[tokio::test]
async fn incidents_that_were_not_told_are_told_the_next_time() {
    let broker = Broker::with(letters(3));
    let mut ingest = Ingest::new(broker.entries(), Picky::default());
    ingest.run(pending(), |_| Err("the disk is full".into())).await.unwrap_err();
    assert_eq!(broker.left(), 3, "nothing was confirmed");
    let (report, told, sink) = drain(&broker, ingest.sink).await;
    assert_eq!(report.with_outcome(Outcome::Known), 3, "the store had them");
    assert!(told.len() == 3 && told.iter().all(|told| told.again), "{told:?}");
    assert_eq!(sink.store.letters().len(), 3);
}

#[test]
fn an_incident_names_everything_but_the_payload() {
    let place = Origin::new("nats", "DLQ", Position::Offset(7));
    let mut letter = letter(42);
    letter.message = Message::new("orders.created", "SECRET").with_key("k-1");
    let incident = Incident::of(&place, false, Some(&letter), Outcome::Stored, None);
    let json = serde_json::to_value(&incident).unwrap();
    for (name, value) in [
        ("topic", "DLQ"),
        ("offset", "7"),
        ("key", "k-1"),
        ("class", "permanent"),
        ("reason", "permanent"),
        ("cause", "error"),
        ("error_type", "app::E"),
        ("error_message", "no such user"),
        ("subject", "orders.created"),
        ("original_topic", "orders"),
        ("original_offset", "42"),
        ("outcome", "stored"),
        ("consumer", "billing"),
    ] {
        assert_eq!(json[name], value, "{name} of {json}");
    }
    assert_eq!(json["retry_count"], 0);
    for name in ["partition", "original_partition", "original_timestamp"] {
        assert!(json.get(name).is_some_and(serde_json::Value::is_null), "{name}");
    }
    assert!(!json.to_string().contains("SECRET"));
}

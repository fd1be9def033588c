//! Refusals when a store is opened, and findings of `check`.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlq_core::idempotency::Idempotency as _;
use dlq_core::store::{
    Actor, CheckLimits, Claim, ClaimRequest, Claims as _, Cleanup, Finish, Letters as _,
    Maintenance as _, OperationSpec, Operations as _, Sink as _,
};
use dlq_core::{CrashMarks as _, Filter, Resolution, StoreErrorKind};
use dlq_mongo::MongoStore;
use dlq_testkit::fixtures::{died_again, letter};
use mongodb::bson::doc;
use mongodb::event::EventHandler;
use mongodb::event::command::CommandEvent;

use crate::fixture::{TestDatabase, available, url};

#[tokio::test]
async fn what_would_lose_letters_is_refused() {
    if !available() {
        return;
    }
    let open = |url: String| async move { MongoStore::open(url).await.unwrap_err() };
    let error = open(format!("{}/?w=0", url().trim_end_matches('/'))).await;
    assert_eq!(error.kind(), StoreErrorKind::InvalidConfig);
    assert!(error.to_string().contains("w=0"), "{error}");
    let error = open("mongodb://127.0.0.1:9/?serverSelectionTimeoutMS=200".to_owned()).await;
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    let error = open("postgres://127.0.0.1".to_owned()).await;
    assert_eq!(error.kind(), StoreErrorKind::InvalidConfig);
    let place = TestDatabase::fresh();
    let error = place.builder().prefix("a.$b").open().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::InvalidConfig);
    let error = place.builder().migrate(false).open().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::NotFound);
}

#[tokio::test]
async fn stores_of_two_prefixes_have_nothing_in_common() {
    if !available() {
        return;
    }
    let place = TestDatabase::fresh();
    let one = place.builder().prefix("one_").open().await.unwrap();
    let other = place.builder().prefix("other_").open().await.unwrap();
    one.put(vec![letter(1)]).await.unwrap();
    assert_eq!(other.count(Filter::new()).await.unwrap(), 0);
    assert_eq!(one.count(Filter::new()).await.unwrap(), 1);
}

#[tokio::test]
async fn check_names_what_is_missing() {
    if !available() {
        return;
    }
    let place = TestDatabase::fresh();
    let store = place.store().await;
    let found = store.check(CheckLimits::default()).await.unwrap();
    assert!(found.is_empty(), "{found:?}");
    let drop = doc! { "dropIndexes": "dlq_letters", "index": "dedup" };
    place.database().await.run_command(drop).await.unwrap();
    let found = store.check(CheckLimits::default()).await.unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].subject.contains("`dedup` of `dlq_letters`"), "{found:?}");
    place.store().await;
    let found = store.check(CheckLimits::default()).await.unwrap();
    assert!(found.is_empty(), "opening makes it again: {found:?}");
}

#[tokio::test]
async fn a_migration_is_shown_before_it_is_made() {
    if !available() {
        return;
    }
    let place = TestDatabase::fresh();
    let shown = place.builder().migration().await.unwrap();
    assert_eq!((shown.found, shown.known, shown.steps.len()), (None, 1, 1));
    let error = place.builder().migrate(false).open().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::NotFound, "looking makes nothing");
    assert_eq!(place.builder().apply_migration().await.unwrap(), shown);
    assert!(place.builder().migration().await.unwrap().is_up_to_date());
    place.builder().migrate(false).open().await.unwrap();

    let database = place.database().await;
    let drop = doc! { "dropIndexes": "dlq_letters", "index": "status" };
    database.run_command(drop).await.unwrap();
    let shown = place.builder().migration().await.unwrap();
    assert_eq!(shown.missing, ["index status of dlq_letters"]);
    place.builder().apply_migration().await.unwrap();
    assert!(place.builder().migration().await.unwrap().is_up_to_date());

    let meta = database.collection::<mongodb::bson::Document>("dlq_meta");
    meta.update_one(doc! { "_id": "version" }, doc! { "$set": { "n": 2_i64 } }).await.unwrap();
    for error in [
        place.builder().migration().await.unwrap_err(),
        place.builder().apply_migration().await.unwrap_err(),
        place.builder().open().await.map(|_| ()).unwrap_err(),
    ] {
        assert_eq!(error.kind(), StoreErrorKind::Incompatible);
        assert!(error.to_string().contains("version 2"), "{error}");
    }
}

#[tokio::test]
async fn a_capped_collection_is_refused_where_a_server_has_them() {
    if !available() {
        return;
    }
    let place = TestDatabase::fresh();
    let create = doc! { "create": "dlq_letters", "capped": true, "size": 1_000_000_i64 };
    if let Err(error) = place.database().await.run_command(create).await {
        println!("skipped: only MongoDB has capped collections, and this server says {error}");
        return;
    }
    let error = place.builder().open().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Incompatible);
    assert!(error.to_string().contains("capped"), "{error}");
}

/// Commands that write, without the answer to a heartbeat.
const WRITES: [&str; 4] = ["insert", "update", "delete", "findAndModify"];

#[tokio::test]
async fn g9_every_write_waits_for_a_majority_and_the_journal() {
    if !available() {
        return;
    }
    let written = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&written);
    let events = EventHandler::callback(move |event| {
        if let CommandEvent::Started(started) = event
            && WRITES.contains(&&*started.command_name)
        {
            let concern = started.command.get_document("writeConcern").ok().cloned();
            seen.lock().unwrap().push((started.command_name, concern));
        }
    });
    let weak = format!("{}/?w=1&journal=false", url().trim_end_matches('/'));
    let place = TestDatabase::at(&weak);
    let store = place.builder().events(events).open().await.unwrap();
    store.put(vec![letter(1), letter(2)]).await.unwrap();
    store.put(vec![died_again(&letter(1))]).await.unwrap();
    let by = || Actor::new("ana");
    store.start(OperationSpec::replay(Filter::new()), by()).await.unwrap();
    let lease = Duration::from_secs(60);
    let claims = store.claim(ClaimRequest::due(Vec::<String>::new(), 2, lease)).await.unwrap();
    let end = |claim: &Claim| (claim.token, Finish::Resolved(Resolution::Succeeded));
    store.finish(claims.iter().map(end).collect()).await.unwrap();
    store.cleanup(Cleanup::older_than(Duration::ZERO), by()).await.unwrap();
    store.begin(letter(1).id).await.unwrap();
    let keys = store.idempotency();
    let _ = keys.claim("c".into(), "k".into(), lease).await.unwrap();
    keys.purge(10).await.unwrap();
    let written = written.lock().unwrap();
    for verb in WRITES {
        assert!(written.iter().any(|(name, _)| name == verb), "{verb} was not seen");
    }
    let wanted = doc! { "w": "majority", "j": true };
    for (verb, concern) in &*written {
        assert_eq!(concern.as_ref(), Some(&wanted), "{verb}");
    }
}

//! Refusals when a store is opened, and findings of `check`.

use dlq_core::store::{CheckLimits, Letters as _, Sink as _, Upkeep as _};
use dlq_core::{Filter, StoreErrorKind};
use dlq_mongo::MongoStore;
use dlq_testkit::fixtures::letter;
use mongodb::bson::doc;

use crate::fixture::{Place, available, url};

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
    let place = Place::fresh();
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
    let place = Place::fresh();
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
    let place = Place::fresh();
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
    let place = Place::fresh();
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
async fn a_capped_collection_is_named() {
    if !available() {
        return;
    }
    let place = Place::fresh();
    let create = doc! { "create": "dlq_letters", "capped": true, "size": 1_000_000_i64 };
    if let Err(error) = place.database().await.run_command(create).await {
        println!("skipped: this server has no capped collections ({error})");
        return;
    }
    let error = place.builder().open().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Incompatible);
    assert!(error.to_string().contains("capped"), "{error}");
}

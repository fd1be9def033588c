//! Pieces of what is too large for one document: they go once nothing names them, and not before.

use dlq_core::store::Sink as _;
use dlq_testkit::fixtures::letter;
use mongodb::Collection;
use mongodb::bson::oid::ObjectId;
use mongodb::bson::spec::BinarySubtype;
use mongodb::bson::{Binary, Bson, Document, doc};

use crate::fixture::{TestDatabase, available};

/// Number of pieces that a sweep looks at in one step.
const PAGE: u32 = 1_000;

fn piece(name: ObjectId, index: u32, of: &Bson) -> Document {
    let bytes = [&name.bytes()[..], &index.to_be_bytes()].concat();
    let id = Bson::Binary(Binary { subtype: BinarySubtype::Generic, bytes });
    doc! { "_id": id, "of": of.clone(), "at": 0_i64, "data": "" }
}

async fn write(parts: &Collection<Document>, pieces: Vec<Document>) {
    parts.insert_many(pieces).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_pieces_in_use_hide_no_garbage_and_stay() {
    if !available() {
        return;
    }
    let place = TestDatabase::fresh();
    let store = place.builder().open().await.unwrap();
    store.put(vec![letter(1)]).await.unwrap();
    let database = place.database().await;
    let parts = database.collection::<Document>("dlq_parts");
    let letters = database.collection::<Document>("dlq_letters");
    let id = letters.find_one(doc! {}).await.unwrap().unwrap().get("_id").unwrap().clone();
    let (used, garbage, of_commit) = (
        ObjectId::parse_str("000000000000000000000001").unwrap(),
        ObjectId::parse_str("000000000000000000000002").unwrap(),
        ObjectId::parse_str("000000000000000000000003").unwrap(),
    );
    write(&parts, (0..PAGE).map(|index| piece(used, index, &id)).collect()).await;
    let names = doc! { "$set": { "history_parts": { "id": used, "n": i64::from(PAGE) } } };
    letters.update_one(doc! {}, names).await.unwrap();
    write(&parts, vec![piece(garbage, 0, &id), piece(garbage, 1, &id)]).await;
    // A commit that is void, and a newer one than its pieces, as by clocks that differ.
    let commit = ObjectId::new();
    write(&parts, vec![piece(of_commit, 0, &Bson::ObjectId(commit))]).await;
    let named = doc! { "_id": commit, "state": "void", "at": i64::MAX, "steps_parts": { "id": of_commit, "n": 1_i64 } };
    let commits = database.collection::<Document>("dlq_commits");
    commits.insert_one(named).await.unwrap();
    assert_eq!(store.sweep().await.unwrap(), 2);
    assert_eq!(parts.count_documents(doc! {}).await.unwrap(), u64::from(PAGE) + 1);
    commits.delete_many(doc! {}).await.unwrap();
    assert_eq!(store.sweep().await.unwrap(), 1);
}

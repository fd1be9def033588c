//! `dlq import --from-collection`: collections that event-dlq wrote.

use std::sync::atomic::{AtomicU32, Ordering};

use dlq_mongo::mongodb::bson::{Binary, Bson, DateTime, Document, doc, spec::BinarySubtype};
use dlq_mongo::mongodb::{Client, Collection};
use dlq_services::{Running, Service, ensure_installed, or_skip};
use serde_json::Value;

use crate::common::{Ran, dlq};

fn binary(bytes: &[u8]) -> Binary {
    Binary { subtype: BinarySubtype::Generic, bytes: bytes.to_vec() }
}

fn day(n: i64) -> Bson {
    Bson::DateTime(DateTime::from_millis(1_790_000_000_123 + n * 86_400_000))
}

/// A document as event-dlq writes it, with a random UUID as its key.
fn document(n: i64) -> Document {
    doc! {
        "_id": format!("{n:08}-1111-4222-8333-444455556666"),
        "event_name": "order.created",
        "original_id": format!("o{n}"),
        "payload": binary(b"\xff\x00\xfe$"),
        "metadata": { "trace": "t", "a.b": "$x" },
        "error": "no answer",
        "retry_count": i32::try_from(n).unwrap(),
        "source": "shop",
        "created_at": day(0),
        "retried_at": if n % 4 == 0 { day(1) } else { Bson::Null },
        "quarantined_at": if n % 5 == 0 { day(2) } else { Bson::Null },
    }
}

/// A server with such a collection, and the URL of its database.
async fn collection(documents: Vec<Document>) -> Option<(Running, String, Collection<Document>)> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    or_skip(Service::Mongo, ensure_installed(Service::Mongo)).ok()?;
    let server = Service::Mongo.builder().setting("file", "").start().unwrap();
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("dlq_import_{}_{number}", std::process::id());
    let url = format!("{}/{name}", server.url().trim_end_matches('/'));
    let client = Client::with_uri_str(&url).await.unwrap();
    let collection = client.database(&name).collection("event_dlq");
    if !documents.is_empty() {
        collection.insert_many(documents).await.unwrap();
    }
    Some((server, url, collection))
}

fn run(args: &[&str]) -> Ran {
    dlq(args).env_remove("DLQ_DATABASE").output().unwrap().into()
}

async fn all(collection: &Collection<Document>) -> Vec<Document> {
    use futures_util::TryStreamExt as _;
    let found = collection.find(doc! {}).sort(doc! { "_id": 1_i32 }).await.unwrap();
    found.try_collect().await.unwrap()
}

/// The only letter with this id of a message, as it is exported.
fn exported(store: &str, event_id: &str) -> Value {
    let found = run(&["--from", store, "-o", "json", "export", "--event-id", event_id]).ok();
    serde_json::from_str(&found.out).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collection_is_imported_once_into_any_store() {
    let documents: Vec<_> = (1..=2_500).map(document).collect();
    let Some((_server, url, collection)) = collection(documents.clone()).await else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = format!("sqlite://{}", folder.path().join("dlq.db").display());
    let mongo = format!("{url}?prefix=ours_");
    for (store, database) in [(&*file, Some(&*url)), (&*mongo, None)] {
        let import = |more: &[&str]| {
            let mut args =
                vec!["--from", store, "import", "--from-collection", "event_dlq", "--create"];
            args.extend(database.iter().flat_map(|url| ["--database", url]));
            args.extend(more);
            run(&args)
        };
        let looked = import(&["--dry-run"]).ok();
        assert!(looked.out.contains("quarantined-at"), "{}", looked.out);
        assert!(looked.err.contains("2500 documents in dlq_import_"), "{}", looked.err);
        assert!(looked.err.contains(".event_dlq, read as `event_dlq`"), "{}", looked.err);
        assert!(looked.err.contains("kept as attributes: _id"), "{}", looked.err);
        assert_eq!(run(&["--from", store, "count"]).ok().out.trim(), "0");
        let first = import(&["-o", "json", "--consumer", "billing"]).ok().json();
        assert_eq!(
            (&first["letters"], &first["receipts"]["stored"]),
            (&2_500.into(), &2_500.into())
        );
        let again = import(&["-o", "json"]).ok().json();
        assert_eq!(again["receipts"], serde_json::json!({ "unchanged": 2_500 }));
        assert_eq!(run(&["--from", store, "count"]).ok().out.trim(), "2500");
        for (status, count) in [("quarantined", "500"), ("resolved", "500"), ("pending", "1500")] {
            let counted =
                run(&["--from", store, "count", "--status", status, "--consumer", "billing"]);
            assert_eq!(counted.ok().out.trim(), count, "{status} in {store}");
        }
        // Retried and quarantined.
        let letter = exported(store, "o20");
        assert_eq!(letter["state"]["status"], "quarantined");
        assert_eq!(letter["state"]["retry_count"], 20);
        assert_eq!(letter["service"], "shop");
        assert_eq!(letter["message"]["event"], "order.created");
        assert_eq!(letter["died_at"], letter["state"]["created_at"]);
        assert!(letter["died_at"].as_str().unwrap().ends_with(".123000000Z"), "{letter}");
        let kept = &letter["attributes"];
        assert_eq!(kept["column._id"], documents[19].get_str("_id").unwrap());
        assert!(kept["column.quarantined_at"].as_str().unwrap().ends_with("Z"), "{letter}");
    }
    assert!(all(&collection).await == documents, "the collection is as it was");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_that_was_cut_short_goes_on() {
    let documents: Vec<_> = (1..=40).map(document).collect();
    let Some((_server, url, collection)) = collection(documents[..20].to_vec()).await else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let store = format!("sqlite://{}", folder.path().join("dlq.db").display());
    let args = [
        "--from",
        &store,
        "import",
        "--create",
        "--from-collection",
        "event_dlq",
        "--database",
        &url,
        "-o",
        "json",
    ];
    run(&args).ok();
    // To the store it is the same whether the rest came later or was not read at first.
    collection.insert_many(&documents[20..]).await.unwrap();
    let rest = run(&args).ok().json();
    assert_eq!(rest["receipts"], serde_json::json!({ "stored": 20, "unchanged": 20 }));
    // A letter that was resolved meanwhile is not brought back.
    run(&["--from", &store, "mark", "resolved", "--event-id", "o1", "--yes"]).ok();
    assert_eq!(run(&args).ok().json()["receipts"], serde_json::json!({ "unchanged": 40 }));
    assert_eq!(exported(&store, "o1")["state"]["status"], "resolved");
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_that_cannot_be_read_are_said_and_counted() {
    let with = |n: i64, name: &str, value: Bson| {
        let mut document = document(n);
        document.insert(name, value);
        document
    };
    let without = |n: i64, name: &str| {
        let mut document = document(n);
        document.remove(name);
        document
    };
    let bad = [
        without(1, "event_name"),
        with(2, "event_name", 7_i32.into()),
        with(3, "retry_count", (-1_i32).into()),
        with(4, "created_at", "yesterday".into()),
        with(5, "quarantined_at", true.into()),
        with(6, "created_at", Bson::DateTime(DateTime::from_millis(-62_135_596_800_000))),
        with(7, "unknown", "x".repeat((1 << 20) + 1).into()),
        doc! { "_id": 8_i64 },
    ];
    let good = vec![
        without(10, "payload"),
        with(11, "payload", Bson::Null),
        without(12, "metadata"),
        without(13, "error"),
        without(14, "retry_count"),
        with(15, "retry_count", 3.0.into()),
        with(16, "retry_count", 3_i64.into()),
        without(17, "source"),
        with(18, "metadata", "not a document".into()),
        with(19, "created_at", "2026-11-21T03:00:00Z".into()),
        with(20, "original_id", "".into()),
        with(21, "_id", Bson::ObjectId("65f0c0ffee65f0c0ffee65f0".parse().unwrap())),
        doc! {
            "_id": 22_i32, "event_name": "e", "original_id": "no times", "payload": binary(b""), "error": ""
        },
    ];
    let stored = good.len();
    let all = bad.iter().chain(&good).cloned().collect();
    let Some((_server, url, _collection)) = collection(all).await else { return };
    let folder = tempfile::tempdir().unwrap();
    let store = format!("sqlite://{}", folder.path().join("dlq.db").display());
    let import = [
        "--from",
        &store,
        "import",
        "--create",
        "--from-collection",
        "event_dlq",
        "--database",
        &url,
    ];
    let ran = run(&import);
    assert_eq!(ran.code, 3, "{}", ran.err);
    for said in [
        "document _id=00000001-1111-4222-8333-444455556666: it has no `event_name`",
        "field `event_name` is `7` (int), which is not a text",
        "field `retry_count` is `-1` (int), which is not a count",
        "field `created_at` is `yesterday` (string), which is not a time between the years",
        "field `quarantined_at` is `true` (bool), which is not a time between the years",
        "field `created_at` is `-62135596800000 ms since 1970` (date)",
        "are in `unknown`; leave that field out",
        "document _id=8: it has no `event_name`",
    ] {
        assert!(ran.err.contains(said), "{said}\n{}", ran.err);
    }
    let wanted = format!("imported: {stored} letters, {stored} stored, 8 bad documents");
    assert!(ran.out.contains(&wanted), "{}", ran.out);
    let again = run(&[&import[..], &["--skip-field", "unknown", "-o", "json"]].concat());
    assert_eq!(again.code, 3);
    let receipts = serde_json::json!({ "stored": 1, "unchanged": stored });
    assert_eq!(again.json()["receipts"], receipts, "the field that was too large is left out");

    assert_eq!(exported(&store, "o10")["message"]["payload"], Value::Null);
    assert_eq!(exported(&store, "o11")["message"]["payload"], Value::Null);
    assert_eq!(exported(&store, "o13")["history"]["attempts"].as_array().map(Vec::len), Some(0));
    assert_eq!(exported(&store, "o15")["state"]["retry_count"], 3);
    assert_eq!(exported(&store, "o18")["attributes"]["column.metadata"], "not a document");
    let letter = exported(&store, "no times");
    assert_eq!(letter["attributes"]["import.created-at"], "unknown");
    assert_eq!(letter["state"]["status"], "pending");
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_content_is_kept() {
    let mut hostile = document(1);
    hostile.insert("event_name", "$set");
    hostile.insert("error", "$user not found\u{1b}[31m\0");
    let metadata = doc! {
        "price": "$payload", "a.b.$[]": "\0", "": "empty", "$where": "'; drop", "n": 5_i64,
        "deep": { "a": [1_i32, null], "nan": f64::NAN },
    };
    hostile.insert("metadata", metadata);
    hostile.insert("bytes", binary(b"\x00\xff"));
    hostile.insert("$unknown", "$x");
    let mut long = document(2);
    long.insert("error", "e".repeat(50_000));
    long.insert("payload", "text, not bytes");
    let Some((_server, url, collection)) = collection(vec![long.clone()]).await else { return };
    // Names that begin with a dollar are refused by servers before MongoDB 5, and by the stand-in.
    if collection.insert_one(&hostile).await.is_err() {
        hostile.remove("$unknown");
        collection.insert_one(&hostile).await.unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let store = format!("sqlite://{}", folder.path().join("dlq.db").display());
    let import = [
        "--from",
        &store,
        "import",
        "--create",
        "--from-collection",
        "event_dlq",
        "--database",
        &url,
    ];
    let ran = run(&import).ok();
    assert!(ran.out.contains("imported: 2 letters, 2 stored"), "{}", ran.out);
    let letter = exported(&store, "o1");
    assert_eq!(letter["message"]["event"], "$set");
    let error = letter["history"]["attempts"][0]["failure"]["messages"][0].as_str().unwrap();
    assert_eq!(error, "$user not found\u{1b}[31m\0");
    let kept = &letter["attributes"];
    assert_eq!(kept["column.bytes"], "\\x00ff");
    let metadata: Value = serde_json::from_str(kept["column.metadata"].as_str().unwrap()).unwrap();
    assert_eq!(metadata["price"], "$payload");
    assert_eq!(metadata["a.b.$[]"], "\0");
    assert_eq!(metadata["deep"]["nan"]["$numberDouble"], "NaN");
    let letter = exported(&store, "o2");
    assert_eq!(letter["attributes"]["import.payload-type"], "string");
    assert_eq!(letter["attributes"]["column.error"].as_str().map(str::len), Some(50_000));
    let shown = run(&["--from", &store, "show", letter["id"].as_str().unwrap()]).ok();
    assert!(shown.out.contains("text, not bytes"), "{}", shown.out);
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_collections_are_refused() {
    let Some((_server, url, collection)) = collection(vec![doc! { "a": 1_i32 }]).await else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let store = format!("sqlite://{}", folder.path().join("dlq.db").display());
    let import = |more: &[&str]| {
        let mut args = vec!["--from", &*store, "import", "--create"];
        args.extend(more);
        run(&args)
    };
    let named = ["--from-collection", "event_dlq"];
    let (server, _) = url.rsplit_once('/').unwrap();
    let secret = "mongodb://ana:s3cret@127.0.0.1:1/db";
    let cases: [(&[&str], i32, &str); 8] = [
        (&[], 2, "<FILE|->"),
        (&named, 2, "which database has `event_dlq`? say --database mongodb://"),
        (&[named[0], named[1], "f.jsonl"], 2, "cannot be used with"),
        (&[named[0], named[1], "--from-table", "t"], 2, "cannot be used with"),
        (&[named[0], named[1], "--database", server], 1, "names no database"),
        (&[named[0], "nothing", "--database", &url], 1, "no collection `nothing`"),
        (&[named[0], named[1], "--database", &url], 1, "the fields of `event_dlq` are not known"),
        (&[named[0], named[1], "--database", secret], 1, "of mongodb://ana@127.0.0.1:1/db: "),
    ];
    for (args, code, says) in cases {
        let ran = import(args);
        assert_eq!(ran.code, code, "{args:?}: {}", ran.err);
        assert!(ran.err.contains(says), "{args:?}: {}", ran.err);
        assert!(!ran.err.contains("s3cret"), "{}", ran.err);
    }
    collection.delete_many(doc! {}).await.unwrap();
    let ran = import(&[named[0], named[1], "--database", &url]).ok();
    assert!(ran.out.contains("imported: 0 letters"), "an empty one is no error: {}", ran.out);
}

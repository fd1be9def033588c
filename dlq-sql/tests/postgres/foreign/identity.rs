//! Read again, a row is the same letter; rows that are not the same are never one.

use std::collections::BTreeSet;

use dlq_core::{DeadLetter, ErrorClass, LetterId};

use super::fixture::{Schema, letters};

fn ids(letters: &[DeadLetter]) -> Vec<LetterId> {
    letters.iter().map(|letter| letter.id).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_read_twice_makes_the_same_letters() {
    let Some(mut schema) = Schema::create("read_twice").await else { return };
    let table = "(event_id TEXT PRIMARY KEY, subject TEXT, data BYTEA, error TEXT); ";
    let rows = "SELECT n::text, 's', '', 'e' FROM generate_series(1, 3000) n; ";
    schema
        .run(&format!(
            "CREATE TABLE one {table} CREATE TABLE other {table} INSERT INTO one {rows} INSERT INTO other {rows}"
        ))
        .await;
    let first = letters(schema.table("one")).await;
    assert_eq!(first.len(), 3000);
    // Neither options nor what is written meanwhile change who they are.
    schema.run("UPDATE one SET error = 'other'; INSERT INTO one VALUES ('0', 's', '', 'e')").await;
    schema.run("VACUUM FULL one").await;
    let again = schema.table("one").consumer("else").service("x").class(ErrorClass::Permanent);
    let again = letters(again).await;
    let before: BTreeSet<_> = ids(&first).into_iter().collect();
    let after: BTreeSet<_> = ids(&again).into_iter().collect();
    assert_eq!(before.len(), 3000);
    assert_eq!(after.len(), 3001);
    assert!(before.is_subset(&after));
    assert_eq!(again[0].consumer, "else");
    assert_eq!(again[0].service.as_deref(), Some("x"));
    assert_eq!(again[0].class, ErrorClass::Permanent);
    for others in [schema.table("other"), schema.table("one").cluster("elsewhere")] {
        let others = letters(others).await;
        assert!(ids(&others).iter().all(|id| !before.contains(id)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_any_kind_tell_rows_apart() {
    let Some(mut schema) = Schema::create("any_key").await else { return };
    schema
        .run(
            "CREATE TABLE pair (a TEXT, b TEXT, event TEXT, body TEXT, PRIMARY KEY (a, b));
             INSERT INTO pair VALUES ('x', 'yz', 'e', '1'), ('xy', 'z', 'e', '2'), ('', 'xyz', 'e', '3'),
                ('1', '', 'e', '4'), ('', '1', 'e', '5'), ('1:x', '', 'e', '6');
             CREATE TABLE bytes (k BYTEA PRIMARY KEY, event TEXT, body TEXT);
             INSERT INTO bytes VALUES ('\\x00', 'e', '1'), ('\\xff', 'e', '2'), ('', 'e', '3'), ('\\xfe', 'e', '4');
             CREATE TABLE negative (k BIGINT UNIQUE NOT NULL, event TEXT, body TEXT);
             INSERT INTO negative VALUES (-1, 'e', '1'), (1, 'e', '2'), (9223372036854775807, 'e', '3');
             CREATE TABLE textual (k TEXT PRIMARY KEY, event TEXT, body TEXT);
             INSERT INTO textual VALUES ('1', 'e', '1'), ('01', 'e', '2'), ('+1', 'e', '3'), ('', 'e', '4');",
        )
        .await;
    let cases: [(&str, &[&str], usize); 4] = [
        ("pair", &["a", "b"], 6),
        ("bytes", &["k"], 4),
        ("negative", &["k"], 3),
        ("textual", &["k"], 4),
    ];
    for (table, key, count) in cases {
        let builder = || {
            let table = schema.table(table).map("event".parse().unwrap(), "event");
            table.map("payload".parse().unwrap(), "body")
        };
        let opened = builder().open().await.unwrap();
        assert_eq!(opened.key(), key, "{table}");
        drop(opened);
        let found = letters(builder()).await;
        let different: BTreeSet<_> = ids(&found).into_iter().collect();
        assert_eq!((found.len(), different.len()), (count, count), "{table}");
        assert_eq!(ids(&found), ids(&letters(builder()).await), "{table}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_key_rows_that_are_alike_are_letters_each() {
    let Some(mut schema) = Schema::create("no_key").await else { return };
    schema
        .run(
            "CREATE TABLE loose (event_id TEXT UNIQUE, subject TEXT, data JSON, error TEXT);
             INSERT INTO loose SELECT NULL, 's', '{}', (n % 10)::text FROM generate_series(1, 2000) n;
             CREATE VIEW seen AS SELECT * FROM loose;
             CREATE TABLE parent (event_id TEXT PRIMARY KEY, subject TEXT, data TEXT, error TEXT);
             CREATE TABLE child () INHERITS (parent);
             INSERT INTO parent VALUES ('1', 's', 'a', ''); INSERT INTO child VALUES ('1', 's', 'b', '');
             CREATE TABLE parts (event_id TEXT, subject TEXT, data TEXT, error TEXT, PRIMARY KEY (event_id, subject))
                PARTITION BY LIST (subject);
             CREATE TABLE part_a PARTITION OF parts FOR VALUES IN ('a');
             CREATE TABLE part_b PARTITION OF parts FOR VALUES IN ('b');
             INSERT INTO parts VALUES ('1', 'a', '', ''), ('1', 'b', '', '')",
        )
        .await;
    for (table, count) in [("loose", 2000), ("seen", 2000), ("parent", 2)] {
        assert_eq!(schema.table(table).open().await.unwrap().key(), [""; 0], "{table}");
        let found = letters(schema.table(table)).await;
        let different: BTreeSet<_> = ids(&found).into_iter().collect();
        assert_eq!((found.len(), different.len()), (count, count), "{table}");
        let again: BTreeSet<_> = ids(&letters(schema.table(table)).await).into_iter().collect();
        assert_eq!(again, different, "{table}");
    }
    let parts = letters(schema.table("parts")).await;
    assert_eq!(parts.len(), 2);
    assert_ne!(parts[0].id, parts[1].id);
}

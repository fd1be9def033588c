//! Tables that are not known, and what their users say of them.

use dlq_core::{ErrorClass, Reason, Status};
use dlq_sql::postgres::foreign::{Field, Meaning};

use super::fixture::{Schema, letters, read};

#[tokio::test(flavor = "multi_thread")]
async fn columns_mean_what_is_said() {
    let Some(mut schema) = Schema::create("mapped").await else { return };
    schema
        .run(
            "CREATE DOMAIN inner_body AS BYTEA; CREATE DOMAIN body AS inner_body;
             CREATE TABLE \"Odd \"\"Name\" (
                 \"The Key\" INT PRIMARY KEY, \"Body\" body, topic TEXT, kind TEXT, mkey BYTEA, heads TEXT, why TEXT,
                 type TEXT, trace TEXT, class TEXT, reason TEXT, state TEXT, tries TEXT, later TIMESTAMPTZ, who TEXT,
                 program TEXT, sent DATE, died TIMESTAMP, changed TIMESTAMPTZ, last TIMESTAMPTZ, secret TEXT,
                 amount NUMERIC, span INTERVAL, many INT[], price REAL);
             INSERT INTO \"Odd \"\"Name\" VALUES (7, '\\xff00', 'orders', 'created', '\\x00', '{\"b\":\"1\",\"a\":\"2\",\"b\":\"3\"}',
                 'no answer', 'Timeout', 'at x', 'PERMANENT', 'retries_exhausted', 'quarantined', '4', 'infinity', 'billing',
                 'shop', '2026-01-02', '2026-07-01 12:00:00.000001', '2026-07-02 00:00:00+00', '2026-07-03 00:00:00+00', 'hush',
                 12345678901234567890.10, '1 mon 2 days', '{1,NULL,3}', 0.1)",
        )
        .await;
    let fields = "id=The Key,payload=Body,subject=topic,event=kind,key=mkey,headers=heads,error=why,error-type=type,\
        stacktrace=trace,class=class,reason=reason,status=state,retry-count=tries,retry-after=later,consumer=who,\
        service=program,published-at=sent,created-at=died,updated-at=changed,last-retry-at=last";
    let mut builder = schema.table("\"Odd \"\"Name\"").time_zone("Europe/Berlin").skip("secret");
    for (field, column) in fields.split(',').filter_map(|pair| pair.split_once('=')) {
        builder = builder.map(field.parse().unwrap(), column);
    }
    let mut opened = builder.clone().open().await.unwrap();
    assert_eq!((opened.shape(), opened.key()), (None, vec!["The Key"]));
    assert_eq!(opened.name(), "mapped.Odd \"Name");
    assert_eq!(opened.count().await.unwrap(), 1);
    let columns = opened.columns();
    assert_eq!((columns.len(), &*columns[1].type_name), (25, "mapped.body"));
    assert_eq!(columns[1].meaning, Meaning::Field(Field::Payload));
    assert_eq!(columns[20].meaning, Meaning::Skipped);
    assert_eq!(columns[21].meaning, Meaning::Attribute);
    drop(opened);
    let letter = letters(builder).await.pop().unwrap();
    let message = &letter.message;
    assert_eq!(message.payload().unwrap()[..], [0xff, 0]);
    assert_eq!(message.key().unwrap()[..], [0]);
    assert_eq!(
        (message.id(), message.subject(), message.event()),
        (Some("7"), "orders", Some("created"))
    );
    let heads: Vec<_> =
        message.headers().iter().map(|header| (&*header.name, header.value.as_deref())).collect();
    let wanted: [(&[u8], Option<&[u8]>); 3] =
        [(b"b", Some(b"1")), (b"a", Some(b"2")), (b"b", Some(b"3"))];
    assert_eq!(heads, wanted);
    // Midnight and noon in Berlin, in winter and in summer.
    assert_eq!(message.published_at().unwrap().to_string(), "2026-01-01T23:00:00.000000000Z");
    assert_eq!(letter.died_at.to_string(), "2026-07-01T10:00:00.000001000Z");
    assert_eq!(letter.state.updated_at.to_string(), "2026-07-02T00:00:00.000000000Z");
    assert_eq!(letter.state.last_retry_at.unwrap().to_string(), "2026-07-03T00:00:00.000000000Z");
    let failure = letter.failure().unwrap();
    assert_eq!((failure.message(), &*failure.error_type), ("no answer", "Timeout"));
    assert_eq!(failure.backtrace.as_deref(), Some("at x"));
    assert_eq!((letter.class, letter.reason), (ErrorClass::Permanent, Reason::Exhausted));
    assert_eq!((letter.state.status, letter.state.retry_count), (Status::Quarantined, 4));
    assert_eq!((&*letter.consumer, letter.service.as_deref()), ("billing", Some("shop")));
    let attributes: Vec<_> =
        letter.attributes.iter().map(|(name, value)| (&**name, &**value)).collect();
    assert_eq!(
        attributes,
        [
            ("column.amount", "12345678901234567890.10"),
            ("column.class", "PERMANENT"),
            ("column.later", "infinity"),
            ("column.many", "{1,NULL,3}"),
            ("column.price", "0.1"),
            ("column.reason", "retries_exhausted"),
            ("column.span", "1 mon 2 days"),
            ("column.state", "quarantined"),
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mapping_prevails_over_what_is_known() {
    let Some(mut schema) = Schema::create("prevails").await else { return };
    schema
        .run(
            "CREATE TABLE t (event_id TEXT PRIMARY KEY, subject TEXT, data BYTEA, error TEXT, body TEXT, topic TEXT);
             INSERT INTO t VALUES ('1', 's', 'old', 'e', 'new', 'better'), ('2', 's', 'old', NULL, NULL, 'better')",
        )
        .await;
    let builder = schema.table("t").map(Field::Payload, "body").map(Field::Subject, "topic");
    let found = letters(builder).await;
    assert_eq!(found[0].message.payload().unwrap(), "new");
    assert_eq!(found[0].message.subject(), "better");
    assert_eq!(found[0].attributes["column.data"], "\\x6f6c64");
    assert_eq!(found[0].attributes["column.subject"], "s");
    assert_eq!(found[1].message.payload(), None, "NULL is a tombstone");
    assert_eq!((found[1].attempts, found[1].failure()), (0, None));
    assert_eq!(found[1].attributes["import.created-at"], "unknown");
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_are_no_letters_are_told_and_the_others_read() {
    let Some(mut schema) = Schema::create("bad_rows").await else { return };
    schema
        .run(
            "CREATE TABLE event_dlq (id INT PRIMARY KEY, event_name TEXT, original_id TEXT, payload BYTEA, error TEXT,
                 retry_count NUMERIC, created_at TIMESTAMP, retried_at TIMESTAMPTZ, more TEXT);
             INSERT INTO event_dlq SELECT n, 'e', n, '', 'e', 0, now(), NULL, NULL FROM generate_series(1, 1000) n;
             UPDATE event_dlq SET created_at = 'infinity' WHERE id = 10;
             UPDATE event_dlq SET created_at = '0044-03-15 BC' WHERE id = 20;
             UPDATE event_dlq SET created_at = '294276-12-31 23:59:59.999999' WHERE id = 30;
             UPDATE event_dlq SET created_at = '2262-12-31' WHERE id = 40;
             UPDATE event_dlq SET retried_at = '-infinity' WHERE id = 50;
             UPDATE event_dlq SET retry_count = -1 WHERE id = 60;
             UPDATE event_dlq SET retry_count = 4294967296 WHERE id = 70;
             UPDATE event_dlq SET retry_count = 'NaN' WHERE id = 80;
             UPDATE event_dlq SET event_name = NULL WHERE id = 90;
             UPDATE event_dlq SET more = repeat('x', 1048577) WHERE id = 100;
             UPDATE event_dlq SET more = repeat('x', 1048576 - 3) WHERE id = 110;",
        )
        .await;
    for zone in ["UTC", "Asia/Kolkata"] {
        let (found, bad) = read(schema.table("event_dlq").time_zone(zone)).await;
        let keys: Vec<_> = bad.iter().map(|row| &*row.key).collect();
        let wanted: Vec<_> = (1..=10).map(|n| format!("id={n}0")).collect();
        assert_eq!(keys, wanted, "{zone}");
        assert_eq!(found.len(), 990);
    }
    let (_, bad) = read(schema.table("event_dlq")).await;
    let said = |index: usize| bad[index].to_string();
    assert_eq!(
        said(0),
        "row id=10: column `created_at` is `infinity`, which is not a time between the years 1678 and 2261"
    );
    assert_eq!(said(5), "row id=60: column `retry_count` is `-1`, which is not a count");
    assert_eq!(said(8), "row id=90: it has neither a subject nor an event");
    assert!(said(9).contains("of which 1048577 are in `more`; map that column"), "{}", said(9));
    let (found, bad) = read(schema.table("event_dlq").skip("more")).await;
    assert_eq!((found.len(), bad.len()), (991, 9));
}

//! What everybody with `psql` sees.

use std::time::Duration;

use dlq_core::store::{ClaimRequest, Claims as _, Letters as _, Sink as _};
use dlq_core::{DeadLetter, Filter, Message, StoreErrorKind};
use dlq_testkit::fixtures::{CONSUMER, hostile_messages, letter, varied};
use sqlx::{Executor as _, Row as _, ValueRef as _};
use tokio::time::{Instant, sleep};

use crate::fixture::{PATIENCE, Schema, available};

#[tokio::test]
async fn plain_sql_finds_what_it_always_found() {
    if !available() {
        return;
    }
    let schema = Schema::fresh();
    let store = schema.store().await;
    let mut hostile = letter(2);
    hostile.message = hostile.message.with_payload(Some(b"\xff\0".as_slice().into()));
    let mut document = letter(3);
    document.message = document.message.with_payload(Some(r#"{"customer": "anna"}"#.into()));
    store.put(vec![letter(1), hostile, document]).await.unwrap();
    let mut conn = schema.connect().await;
    let rows = conn
        .fetch_all(
            "SELECT event_id, subject, data, error, retry_count FROM dlq_events WHERE status = 'pending' \
             AND event_type IS NULL AND retry_after IS NULL AND last_retry_at IS NULL AND updated_at >= created_at \
             AND created_at > now() - interval '1 hour' ORDER BY created_at",
        )
        .await
        .unwrap();
    assert_eq!(rows.len(), 3);
    let readable = "SELECT data_text, data_json->>'customer' AS customer, data_size FROM dlq_events_readable \
                    ORDER BY data_size";
    let rows = conn.fetch_all(readable).await.unwrap();
    let text = |row: usize| rows[row].get::<Option<String>, _>("data_text");
    assert_eq!(text(0), None, "no text");
    assert!(rows.iter().any(|row| row.get::<Option<&str>, _>("customer") == Some("anna")));
    // Whoever changes rows by hand is counted too.
    conn.execute("DELETE FROM dlq_events WHERE octet_length(data) = 2").await.unwrap();
    conn.execute("UPDATE dlq_events SET status = 'resolved', resolution = 'dismissed'")
        .await
        .unwrap();
    let stats = store.stats(Filter::new()).await.unwrap();
    assert_eq!((stats.total, stats.by_status.len()), (2, 1), "{stats:?}");
    conn.execute("TRUNCATE dlq_events CASCADE").await.unwrap();
    assert_eq!(store.count(Filter::new()).await.unwrap(), 0);
}

/// Nothing that a message may hold makes the view fail for the others: what is no text or no JSON is NULL there.
#[tokio::test]
async fn whatever_a_letter_holds_the_view_shows_it() {
    if !available() {
        return;
    }
    let schema = Schema::fresh();
    let store = schema.store().await;
    let json = [
        (r#"{"a": "\u0000"}"#.to_owned(), false),
        ("[".repeat(100_000), false),
        (r#""\ud800""#.to_owned(), false),
        ("1e400000".to_owned(), false),
        (r#"{"a": 1, "a": 2}"#.to_owned(), true),
        (format!("{}{}", "[".repeat(500), "]".repeat(500)), true),
    ];
    let is_json = |payload: &[u8]| json.iter().any(|(text, is)| *is && text.as_bytes() == payload);
    let messages = hostile_messages().into_iter().map(|(_, message)| message);
    let more = json.iter().map(|(text, _)| Message::new("s", text.clone()));
    let letters = messages.chain(more).zip(0..).map(|(message, n)| letter(n).with_message(message));
    let letters: Vec<DeadLetter> = letters.collect();
    store.put(letters.clone()).await.unwrap();
    let mut conn = schema.connect().await;
    let rows = conn.fetch_all("SELECT * FROM dlq_events_readable").await.unwrap();
    assert_eq!(rows.len(), letters.len());
    for row in rows {
        let id = row.get::<String, _>("letter_id");
        let letter = letters.iter().find(|letter| letter.id.to_string() == id).unwrap();
        let payload = letter.message.payload().map(|payload| &payload[..]);
        let text = payload.and_then(|payload| str::from_utf8(payload).ok());
        let text = text.filter(|text| !text.contains('\0'));
        assert_eq!(row.get::<Option<&str>, _>("data_text"), text, "{letter:?}");
        let json = row.try_get_raw("data_json").unwrap();
        let wanted = payload.is_some_and(is_json);
        assert_eq!(!json.is_null(), wanted, "{text:?}");
        let size = payload.map(|payload| i32::try_from(payload.len()).unwrap());
        assert_eq!(row.get::<Option<i32>, _>("data_size"), size);
    }
}

/// What stands in an index only in part is looked up there all the same.
#[tokio::test]
async fn names_are_looked_up_in_indexes() {
    if !available() {
        return;
    }
    let schema = Schema::fresh();
    let url = format!("{}?options=-c%20enable_seqscan%3Doff", schema.url);
    let schema = Schema { url, name: schema.name.clone() };
    let store = schema.builder().dedup(true).max_connections(1).open().await.unwrap();
    store.put((1..200).map(varied).collect()).await.unwrap();
    store.put((200..210).map(letter).collect()).await.unwrap();
    store.claim(ClaimRequest::due([CONSUMER], 3, Duration::from_secs(60))).await.unwrap();
    let filters = [
        Filter::new().with_consumer(CONSUMER.to_owned()),
        Filter::new().with_subject("orders.created".parse().unwrap()),
        Filter::new().with_subject("orders.eu.>".parse().unwrap()),
        Filter::new().with_event("charge".to_owned()),
        Filter::new().with_message_id("evt-7".to_owned()),
    ];
    for filter in filters {
        // Counted one by one.
        assert!(store.count(filter.clone().error("")).await.unwrap() > 0, "{filter:?}");
    }
    let wanted = ["available_to", "by_consumer", "by_subject", "by_type", "by_event", "by_key"];
    let began = Instant::now();
    // What a connection has done is told a second later.
    loop {
        let mut conn = schema.connect().await;
        let sql = "SELECT indexrelname FROM pg_stat_user_indexes \
                   WHERE schemaname = $1 AND idx_scan > 0 ORDER BY 1";
        let used: Vec<String> =
            sqlx::query_scalar(sql).bind(&schema.name).fetch_all(&mut conn).await.unwrap();
        if wanted.iter().all(|name| used.contains(&format!("dlq_events_{name}"))) {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "only {used:?} are used");
        sleep(Duration::from_millis(200)).await;
        store.count(Filter::new()).await.unwrap();
    }
}

/// A letter that a unique constraint of the operator keeps out is refused by its own, and is no outage.
#[tokio::test]
async fn what_a_unique_constraint_of_the_operator_keeps_out_is_refused() {
    if !available() {
        return;
    }
    let schema = Schema::fresh();
    let store = schema.store().await;
    let mut conn = schema.connect().await;
    conn.execute("ALTER TABLE dlq_events ADD UNIQUE (event_id, consumer)").await.unwrap();
    store.put(vec![letter(1)]).await.unwrap();
    let mut again = letter(2);
    again.message = letter(1).message;
    for _ in 0..2 {
        let error = store.put(vec![again.clone()]).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Refused, "{error}");
        assert!(!error.is_transient());
        let cause = std::error::Error::source(&error).map(ToString::to_string);
        assert!(cause.is_some_and(|cause| cause.contains("dlq_events_event_id_consumer_key")));
    }
    store.put(vec![letter(3)]).await.unwrap();
    assert_eq!(store.count(Filter::new()).await.unwrap(), 2);
}

/// `Refused` is a word about one letter, and nothing else may be taken for one.
#[tokio::test]
async fn what_a_constraint_keeps_out_is_refused_and_a_table_that_is_gone_is_not_found() {
    if !available() {
        return;
    }
    let schema = Schema::fresh();
    let store = schema.store().await;
    let mut conn = schema.connect().await;
    conn.execute("ALTER TABLE dlq_events ADD CHECK (octet_length(data) < 1000)").await.unwrap();
    let mut large = letter(1);
    large.message = large.message.with_payload(Some(vec![b'x'; 2_000].into()));
    let error = store.put(vec![large, letter(2)]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Refused, "{error}");
    store.put(vec![letter(2)]).await.unwrap();
    conn.execute("ALTER TABLE dlq_events RENAME TO gone").await.unwrap();
    let error = store.put(vec![letter(3)]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::NotFound, "{error}");
    conn.execute("ALTER TABLE gone RENAME TO dlq_events").await.unwrap();
    store.put(vec![letter(3)]).await.unwrap();
    conn.execute("ALTER TABLE dlq_events RENAME COLUMN data TO payload").await.unwrap();
    let error = store.put(vec![letter(4)]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Incompatible, "{error}");
}

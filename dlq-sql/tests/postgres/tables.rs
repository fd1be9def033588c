//! What everybody with `psql` sees.

use dlq_core::Filter;
use dlq_core::store::{Letters as _, Sink as _};
use dlq_testkit::fixtures::letter;
use sqlx::{Executor as _, Row as _};

use crate::fixture::{Schema, available};

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

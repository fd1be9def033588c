//! Dead-lettering beside `COPY` of the same rows into the same table, and beside one insert per row.

use dlq_core::{DeadLetter, Sink as _};
use futures_util::TryStreamExt as _;
use sqlx::postgres::PgPoolCopyExt as _;

use super::{Bench, Failed, show, timed, with_server};
use crate::letters::letter;
use crate::measure::Size;

pub(crate) fn run(size: Size) -> Result<(), Failed> {
    let count: u64 = size.pick(2_000, 100_000);
    let singly: u64 = size.pick(200, 5_000);
    with_server(|bench| measure(bench, count, singly, size.pick(1, 3)))
}

async fn measure(mut bench: Bench, count: u64, singly: u64, rounds: u32) -> Result<(), Failed> {
    let letters: Vec<DeadLetter> = (0..count).map(|n| letter(n, 1024)).collect();
    let store = bench.store.clone();
    let mut ratios = Vec::new();
    for _ in 0..rounds {
        bench.sql("TRUNCATE dlq_events CASCADE").await?;
        bench.sql("CHECKPOINT").await?;
        let ours = timed(async {
            for batch in letters.chunks(1_000) {
                store.put(batch.to_vec()).await?;
            }
            Ok(())
        });
        let ours = show("PostgresStore::put, 1,000 at a time", ours.await?, count);
        // The rows as they stand, and the same table, indexes and triggers once more.
        let rows = copied_out(&bench).await?;
        bench.sql("TRUNCATE dlq_events CASCADE").await?;
        bench.sql("CHECKPOINT").await?;
        let raw = timed(copied_in(&bench, &rows)).await?;
        let raw = show("COPY of the same rows into the same table", raw, count);
        ratios.push(ours / raw);
    }
    ratios.sort_by(f64::total_cmp);
    println!("ratio to COPY: {:.2} (all: {ratios:.2?})", ratios[ratios.len() / 2]);

    bench.sql("CREATE TABLE one_by_one (LIKE dlq_events INCLUDING ALL)").await?;
    let one = timed(one_by_one(&mut bench, &letters[..usize::try_from(singly)?])).await?;
    let one = show("INSERT, one row each", one, singly);
    bench.sql("TRUNCATE dlq_events CASCADE").await?;
    let many = &letters[..usize::try_from(singly)?];
    let ours = timed(async { Ok(store.put(many.to_vec()).await?) }).await?;
    let ours = show("PostgresStore::put of as many", ours, singly);
    println!("times one insert per row: {:.1}", ours / one);
    Ok(())
}

async fn copied_out(bench: &Bench) -> Result<Vec<u8>, Failed> {
    let pool = sqlx::PgPool::connect(bench.server.url()).await?;
    let copy = pool.copy_out_raw("COPY dlq_events TO STDOUT (FORMAT binary)").await?;
    let rows: Vec<_> = copy.try_collect().await?;
    Ok(rows.concat())
}

async fn copied_in(bench: &Bench, rows: &[u8]) -> Result<(), Failed> {
    let pool = sqlx::PgPool::connect(bench.server.url()).await?;
    let mut copy = pool.copy_in_raw("COPY dlq_events FROM STDIN (FORMAT binary)").await?;
    for part in rows.chunks(1 << 20) {
        copy.send(part).await?;
    }
    copy.finish().await?;
    Ok(())
}

async fn one_by_one(bench: &mut Bench, letters: &[DeadLetter]) -> Result<(), Failed> {
    for letter in letters {
        sqlx::query(
            "INSERT INTO one_by_one (letter_id, generation, event_id, subject, consumer, status, reason, class, cause, \
             fingerprint, error, attempts, deliveries, crashes, escalations, died_at, cluster, transport, stream, \
             position, attributes, headers, history, key, data) \
             VALUES ($1, 0, $2, $3, $4, 'pending', $5, $6, $7, $8, $9, 2, 1, 0, 0, $10, 'default', 'memory', \
             'payments', $11, '{}', $12, $13, $14, $15)",
        )
        .bind(&letter.id.as_bytes()[..])
        .bind(letter.message.id())
        .bind(letter.message.subject())
        .bind(&letter.consumer)
        .bind(letter.reason.as_str())
        .bind(letter.class.as_str())
        .bind(letter.cause.map(|cause| cause.as_str()))
        .bind(letter.fingerprint.to_string())
        .bind(letter.error())
        .bind(letter.died_at.as_nanos())
        .bind(letter.origin.position().to_string())
        .bind(serde_json::to_string(letter.message.headers())?)
        .bind(serde_json::to_string(&letter.history)?)
        .bind(letter.message.key().map(|key| &key[..]))
        .bind(letter.message.payload().map(|payload| &payload[..]))
        .execute(&mut bench.raw)
        .await?;
    }
    Ok(())
}

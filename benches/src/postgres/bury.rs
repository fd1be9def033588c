//! Dead-lettering beside `COPY` of the same rows, and beside one insert per row: all into the same table with its indexes
//! and triggers, empty at first, each transaction flushed to the disk.

use std::time::{Duration, Instant};

use bytes::Bytes;
use dlq_core::{DeadLetter, Sink as _, StoreError};
use futures_util::TryStreamExt as _;
use sqlx::postgres::PgPoolCopyExt as _;
use sqlx::{Connection as _, PgConnection};
use tokio::task::JoinSet;

use super::{Bench, Failed, show, timed, with_server};
use crate::letters::letter;
use crate::measure::Size;

/// Number of letters of one put.
const AT_ONCE: usize = 1_000;

pub(crate) fn run(size: Size) -> Result<(), Failed> {
    let count: u64 = size.pick(2_000, 100_000);
    let singly: u64 = size.pick(200, 10_000);
    with_server(|bench| measure(bench, count, singly, size.pick(1, 5)))
}

async fn measure(mut bench: Bench, count: u64, singly: u64, rounds: u32) -> Result<(), Failed> {
    let letters: Vec<DeadLetter> = (0..count).map(|n| letter(n, 1024)).collect();
    let few = &letters[..usize::try_from(singly)?];
    bench.store.put(letters.clone()).await?;
    let all = vec![copied_out(&bench, "true").await?];
    let halves = vec![
        copied_out(&bench, "get_byte(letter_id, 0) < 128").await?,
        copied_out(&bench, "get_byte(letter_id, 0) >= 128").await?,
    ];
    let [mut ours, mut copy, mut single, mut ours_twice, mut copy_twice] =
        [const { Vec::new() }; 5];
    for _ in 0..rounds {
        bench.empty().await?;
        let time = put(&bench, &letters, 1).await?;
        ours.push(show("PostgresStore::put, 1,000 at a time", time, count));
        bench.empty().await?;
        let time = copied_in(&bench, all.clone()).await?;
        copy.push(show("COPY", time, count));
        bench.empty().await?;
        let time = timed(one_by_one(&bench, few)).await?;
        single.push(show("INSERT, prepared, one row each", time, singly));
        bench.empty().await?;
        let time = put(&bench, &letters, 2).await?;
        ours_twice.push(show("PostgresStore::put, two writers", time, count));
        bench.empty().await?;
        let time = copied_in(&bench, halves.clone()).await?;
        copy_twice.push(show("COPY, two connections", time, count));
    }
    println!("\nof {rounds} rounds, the median of:");
    ratio("put / COPY", &ours, &copy);
    ratio("put / INSERT", &ours, &single);
    ratio("put by two / COPY by two", &ours_twice, &copy_twice);
    ratio("put by two / COPY by one", &ours_twice, &copy);
    ratio("put by two / INSERT", &ours_twice, &single);
    Ok(())
}

/// The median, and all.
fn ratio(name: &str, ours: &[f64], theirs: &[f64]) {
    let mut all: Vec<_> = ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect();
    all.sort_by(f64::total_cmp);
    println!("{name:<28} {:>6.2}  {all:.2?}", all[all.len() / 2]);
}

/// Puts them as consumers do: letters are handed over, and each writer waits for its last.
async fn put(bench: &Bench, letters: &[DeadLetter], writers: usize) -> Result<Duration, Failed> {
    let parts = letters.chunks(letters.len().div_ceil(writers));
    let parts: Vec<Vec<_>> =
        parts.map(|part| part.chunks(AT_ONCE).map(<[_]>::to_vec).collect()).collect();
    let mut tasks = JoinSet::new();
    let start = Instant::now();
    for part in parts {
        let store = bench.store.clone();
        tasks.spawn(async move {
            for letters in part {
                store.put(letters).await?;
            }
            Ok::<_, StoreError>(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(start.elapsed())
}

async fn copied_out(bench: &Bench, which: &str) -> Result<Bytes, Failed> {
    let pool = sqlx::PgPool::connect(bench.server.url()).await?;
    let sql = format!("COPY (SELECT * FROM dlq_events WHERE {which}) TO STDOUT (FORMAT binary)");
    let rows: Vec<_> = pool.copy_out_raw(&sql).await?.try_collect().await?;
    Ok(rows.concat().into())
}

/// Each on a connection of its own.
async fn copied_in(bench: &Bench, parts: Vec<Bytes>) -> Result<Duration, Failed> {
    let mut tasks = JoinSet::new();
    let mut conns = Vec::new();
    for _ in &parts {
        conns.push(PgConnection::connect(bench.server.url()).await?);
    }
    let start = Instant::now();
    for (rows, mut conn) in parts.into_iter().zip(conns) {
        tasks.spawn(async move {
            let copy = "COPY dlq_events FROM STDIN (FORMAT binary)";
            let mut copy = conn.copy_in_raw(copy).await?;
            for part in rows.chunks(1 << 20) {
                copy.send(part).await?;
            }
            copy.finish().await
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(start.elapsed())
}

async fn one_by_one(bench: &Bench, letters: &[DeadLetter]) -> Result<(), Failed> {
    let mut conn = PgConnection::connect(bench.server.url()).await?;
    for letter in letters {
        sqlx::query(
            "INSERT INTO dlq_events (letter_id, generation, event_id, subject, consumer, status, reason, class, cause, \
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
        .execute(&mut conn)
        .await?;
    }
    Ok(())
}

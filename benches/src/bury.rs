//! Dead-lettering into SQLite beside a raw batched prepared insert of the same bytes.

use std::time::Duration;

use dlq_core::{DeadLetter, Sink as _};
use dlq_sql::sqlite::SqliteStore;

use crate::letters::letter;
use crate::measure::{Size, median, rate};

const BATCH: usize = 500;

pub(crate) fn run(size: Size) -> Result<(), Box<dyn std::error::Error>> {
    let count: usize = size.pick(1_000, 20_000);
    let rounds = size.pick(1, 5);
    let letters: Vec<DeadLetter> = (0..count as u64).map(|n| letter(n, 1024)).collect();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;

    let ours = median(rounds, || {
        runtime.block_on(async {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let store = SqliteStore::open(folder.path().join("dlq.db")).await.expect("a new store");
            for batch in letters.chunks(BATCH) {
                store.put(batch.to_vec()).await.expect("letters are written");
            }
        });
    });
    let raw = median(rounds, || raw_insert(&letters).expect("rows are written"));
    show("SqliteStore::put", ours, count);
    show("raw prepared insert of the same bytes", raw, count);
    println!("ratio of rates: {:.2}", raw.as_secs_f64() / ours.as_secs_f64());
    Ok(())
}

fn show(name: &str, time: Duration, count: usize) {
    println!("{name:<44} {:>10.0} letters/s", rate(time, count as u64));
}

/// Inserts letters as a careful program without us would: the same bytes in one table, batches in transactions, the
/// same pragmas.
fn raw_insert(letters: &[DeadLetter]) -> rusqlite::Result<()> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut connection = rusqlite::Connection::open(folder.path().join("raw.db"))?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "synchronous", "full")?;
    connection.execute_batch(
        "CREATE TABLE dead (id BLOB PRIMARY KEY, subject TEXT, consumer TEXT, status TEXT, reason TEXT, cause TEXT,
         class TEXT, fingerprint TEXT, key BLOB, headers TEXT, data BLOB, error TEXT, history TEXT, created_at INTEGER);
         CREATE INDEX by_time ON dead (created_at, id);",
    )?;
    for batch in letters.chunks(BATCH) {
        let transaction = connection.transaction()?;
        {
            let mut insert = transaction.prepare_cached(
                "INSERT INTO dead VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14)",
            )?;
            for letter in batch {
                let headers =
                    serde_json::to_string(letter.message.headers()).expect("headers are JSON");
                let history = serde_json::to_string(&letter.history).expect("a history is JSON");
                insert.execute(rusqlite::params![
                    letter.id.as_bytes().as_slice(),
                    letter.message.subject(),
                    letter.consumer,
                    letter.state.status.as_str(),
                    letter.reason.as_str(),
                    letter.cause.map(|cause| cause.as_str()),
                    letter.class.as_str(),
                    letter.fingerprint.to_string(),
                    letter.message.key().map(|key| &key[..]),
                    headers,
                    letter.message.payload().map(|payload| &payload[..]),
                    letter.error(),
                    history,
                    letter.died_at.as_nanos(),
                ])?;
            }
        }
        transaction.commit()?;
    }
    Ok(())
}

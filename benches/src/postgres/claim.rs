//! Claim, run, complete: many at a time beside one at a time; and whether it slows down as dead rows pile up.

use std::time::Duration;

use dlq_core::store::rules::born;
use dlq_core::store::{Actor, ClaimRequest, Claims as _, Finish, Maintenance as _};
use dlq_core::{DeadLetter, Resolution, Timestamp};
use dlq_sql::postgres::PostgresStore;

use super::{Bench, Failed, show, timed, with_server};
use crate::letters::letter;
use crate::measure::Size;

const LEASE: Duration = Duration::from_secs(60);

pub(crate) fn run(size: Size) -> Result<(), Failed> {
    let count: u64 = size.pick(1_000, 100_000);
    let singly: u64 = size.pick(100, 3_000);
    let rounds: u64 = size.pick(2, 10);
    with_server(|bench| measure(bench, count, singly, rounds))
}

async fn measure(bench: Bench, count: u64, singly: u64, rounds: u64) -> Result<(), Failed> {
    let store = bench.store.clone();
    due(&store, 0..singly).await?;
    let one_at_a_time =
        show("claim and complete, one at a time", timed(drain(&store, 1)).await?, singly);
    let mut rates = Vec::new();
    for round in 0..rounds {
        let first = 1_000_000 * (round + 1);
        due(&store, first..first + count).await?;
        let time =
            timed(async { tokio::try_join!(drain(&store, 500), drain(&store, 500)).map(|_| ()) });
        rates.push(show(
            &format!("round {}: 500 at a time, two claimers", round + 1),
            time.await?,
            count,
        ));
    }
    let (first, last) = (rates[0], rates[rates.len() - 1]);
    println!(
        "times one at a time: {:.1}; last round to first: {:.2}",
        first / one_at_a_time,
        last / first
    );
    let size = "SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = 'dlq_events'";
    let mut raw = bench.raw;
    let dead: i64 = sqlx::query_scalar(size).fetch_one(&mut raw).await?;
    println!("dead rows at the end, by the database's estimate: {dead}");
    Ok(())
}

/// Writes letters that are due.
pub(super) async fn due(
    store: &PostgresStore,
    numbers: std::ops::Range<u64>,
) -> Result<(), Failed> {
    let due = Timestamp::from_millis(1_763_683_200_000);
    let state = born(due).with_due(due);
    let letters: Vec<DeadLetter> =
        numbers.map(|n| letter(n, 1024).with_state(state.clone())).collect();
    for batch in letters.chunks(1_000) {
        store.restore(batch.to_vec(), Actor::new("bench")).await?;
    }
    Ok(())
}

pub(super) async fn drain(store: &PostgresStore, batch: u32) -> Result<(), Failed> {
    loop {
        let claims = store.claim(ClaimRequest::due(["payments.charge"], batch, LEASE)).await?;
        if claims.is_empty() {
            return Ok(());
        }
        let done =
            |claim: dlq_core::store::Claim| (claim.token, Finish::Resolved(Resolution::Succeeded));
        store.finish(claims.into_iter().map(done).collect()).await?;
    }
}

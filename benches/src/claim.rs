//! Claim, extend and complete on SQLite, 500 at a time, and claims that find nothing.

use std::time::{Duration, Instant};

use dlq_core::store::rules::born;
use dlq_core::store::{Actor, ClaimRequest, Claims as _, Finish, Maintenance as _};
use dlq_core::{DeadLetter, Resolution, Sink as _, Timestamp};
use dlq_sql::sqlite::SqliteStore;

use crate::letters::letter;
use crate::measure::{Size, rate};

const BATCH: u32 = 500;
const LEASE: Duration = Duration::from_secs(600);

type Failed = Box<dyn std::error::Error>;

pub(crate) fn run(size: Size) -> Result<(), Failed> {
    let count: u64 = size.pick(1_000, 20_000);
    let idle: u64 = size.pick(100, 10_000);
    let rounds: usize = size.pick(1, 5);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let mut times: [Vec<Duration>; 6] = Default::default();
    for _ in 0..rounds {
        for (all, one) in times.iter_mut().zip(runtime.block_on(round(count, idle))?) {
            all.push(one);
        }
    }
    let names = ["put", "put of the same again", "claim", "extend", "finish", "idle claim"];
    for (name, mut all) in names.into_iter().zip(times) {
        all.sort_unstable();
        let of = if name == "idle claim" { idle } else { count };
        println!("{name:<44} {:>10.0} /s", rate(all[all.len() / 2], of));
    }
    Ok(())
}

async fn round(count: u64, idle: u64) -> Result<[Duration; 6], Failed> {
    let folder = tempfile::tempdir()?;
    let store = SqliteStore::open(folder.path().join("dlq.db")).await?;
    let due = Timestamp::from_millis(1_763_683_200_000);
    let state = born(due).with_due(due);
    let letters: Vec<DeadLetter> = (0..count).map(|n| letter(n, 1024)).collect();
    let mut times = [Duration::ZERO; 6];
    for time in &mut times[..2] {
        let start = Instant::now();
        for batch in letters.chunks(BATCH as usize) {
            store.put(batch.to_vec()).await?;
        }
        *time = start.elapsed();
    }
    let letters: Vec<_> =
        (count..2 * count).map(|n| letter(n, 1024).with_state(state.clone())).collect();
    for batch in letters.chunks(BATCH as usize) {
        store.restore(batch.to_vec(), Actor::new("bench")).await?;
    }
    let request = || ClaimRequest::due(["payments.charge"], BATCH, LEASE);
    let mut claimed = Vec::new();
    let start = Instant::now();
    loop {
        let claims = store.claim(request()).await?;
        if claims.is_empty() {
            break;
        }
        claimed.push(claims.into_iter().map(|claim| claim.token).collect::<Vec<_>>());
    }
    times[2] = start.elapsed();
    let start = Instant::now();
    for tokens in &claimed {
        store.extend(tokens.clone(), LEASE).await?;
    }
    times[3] = start.elapsed();
    let start = Instant::now();
    for tokens in claimed {
        let done = |token| (token, Finish::Resolved(Resolution::Succeeded));
        store.finish(tokens.into_iter().map(done).collect()).await?;
    }
    times[4] = start.elapsed();
    let start = Instant::now();
    for _ in 0..idle {
        store.claim(request()).await?;
    }
    times[5] = start.elapsed();
    Ok(times)
}

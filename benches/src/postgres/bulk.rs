//! Bulk work of operators on very many letters, and of consumers in an operation of them.

use std::time::{Duration, Instant};

use dlq_core::store::{
    Actor, ClaimRequest, Claims as _, Control, Finish, Maintenance as _, Mark, OperationSpec,
    Operations as _, Selection, Sink as _,
};
use dlq_core::{DeadLetter, Filter, Resolution};

use super::{Bench, Failed, show, timed, with_server};
use crate::letters::letter;
use crate::measure::Size;

const LEASE: Duration = Duration::from_secs(600);
const BATCH: u64 = 500;

pub(crate) fn run(size: Size) -> Result<(), Failed> {
    let count: u64 = size.pick(2_000, 300_000);
    with_server(|bench| measure(bench, count))
}

async fn measure(bench: Bench, count: u64) -> Result<(), Failed> {
    let (store, by) = (&bench.store, || Actor::new("bench"));
    let sample = (count / 10).max(BATCH);
    let letters = |first: u64, last: u64| -> Vec<DeadLetter> {
        (first..last).map(|n| letter(n, 1024)).collect()
    };
    for first in (0..count).step_by(1_000) {
        store.put(letters(first, first + 1_000)).await?;
    }
    let again = letters(0, sample);
    let put = timed(async {
        for some in again.chunks(1_000) {
            store.put(some.to_vec()).await?;
        }
        Ok(())
    });
    show("put of what is there", put.await?, sample);
    for mark in [Mark::Quarantined, Mark::Pending] {
        let marked = timed(async { Ok(store.mark(Selection::all(), mark, by()).await?) });
        show(&format!("mark as {mark:?}"), marked.await?, count);
    }
    let began = Instant::now();
    let started = store.start(OperationSpec::replay(Filter::new()), by()).await?;
    show("start", began.elapsed(), count);
    let (mut claiming, mut extending, mut finishing) =
        (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    for _ in 0..sample.div_ceil(BATCH) {
        let began = Instant::now();
        let request = ClaimRequest::due(["payments.charge"], BATCH as u32, LEASE);
        let claims = store.claim(request).await?;
        claiming += began.elapsed();
        let began = Instant::now();
        store.extend(claims.iter().map(|claim| claim.token).collect(), LEASE).await?;
        extending += began.elapsed();
        let began = Instant::now();
        let done = |token| (token, Finish::Resolved(Resolution::Succeeded));
        store.finish(claims.iter().map(|claim| done(claim.token)).collect()).await?;
        finishing += began.elapsed();
    }
    show("claim of an operation's", claiming, sample);
    show("extend", extending, sample);
    show("finish of an operation's", finishing, sample);
    let began = Instant::now();
    store.control(started.id, Control::Cancel, by()).await?;
    show("cancel", began.elapsed(), count - sample);
    Ok(())
}

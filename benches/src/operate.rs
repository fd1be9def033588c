//! Operations and marks of many letters on SQLite, and how long others wait meanwhile.

use std::pin::pin;
use std::time::{Duration, Instant};

use dlq_core::store::rules::born;
use dlq_core::store::{
    Actor, ClaimRequest, ClaimToken, Claims as _, Control, Letters as _, Maintenance as _, Mark,
    OperationSpec, Operations as _, Selection,
};
use dlq_core::{Filter, Sink as _, Timestamp};
use dlq_sql::sqlite::SqliteStore;

use crate::letters::letter;
use crate::measure::Size;

const LEASE: Duration = Duration::from_secs(3_600);

type Failed = Box<dyn std::error::Error>;

pub(crate) fn run(size: Size) -> Result<(), Failed> {
    let count = size.pick(3_000, 300_000);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(measure(count))
}

async fn measure(count: u64) -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let store = SqliteStore::open(folder.path().join("dlq.db")).await?;
    let due = Timestamp::from_millis(1_763_683_200_000);
    let state = born(due).with_due(due);
    let held = letter(count, 100).with_state(state);
    store.restore(vec![held], Actor::new("bench")).await?;
    let claims = store.claim(ClaimRequest::due(["payments.charge"], 1, LEASE)).await?;
    let token = claims.first().ok_or("there is no claim")?.token;
    let letters: Vec<_> = (0..count).map(|n| letter(n, 100)).collect();
    for batch in letters.chunks(1_000) {
        store.put(batch.to_vec()).await?;
    }
    println!("{count} letters; the longest that others waited to renew a lease");
    let by = || Actor::new("bench");
    let all = || OperationSpec::replay(Filter::new());
    let started = show("start", &store, token, store.start(all(), by())).await?;
    let cancel = store.control(started.id, Control::Cancel, by());
    show("cancel", &store, token, cancel).await?;
    let mark = store.mark(Selection::all(), Mark::Quarantined, by());
    show("mark", &store, token, mark).await?;
    let mark = store.mark(Selection::all(), Mark::Pending, by());
    show("mark again", &store, token, mark).await?;
    // Each page looks at many letters that do not match.
    let none = Filter::new().error("no error has this text");
    let mark = store.mark(Selection::matching(none.clone())?, Mark::Resolved, by());
    show("mark where none matches", &store, token, mark).await?;
    let start = store.start(OperationSpec::replay(none), by());
    show("start where none matches", &store, token, start).await?;
    let released = store.start(all(), by()).await?;
    while store.claim(ClaimRequest::due(["payments.charge"], 1_000, LEASE)).await?.len() == 1_000 {
        if store.operation(released.id).await?.is_some_and(|it| it.progress.sent() * 3 > count) {
            break;
        }
    }
    let cancel = store.control(released.id, Control::Cancel, by());
    show("cancel with a third in flight", &store, token, cancel).await?;
    show("delete", &store, token, store.delete(Selection::all(), by())).await?;
    println!("{} letters are left", store.count(Filter::new()).await?);
    Ok(())
}

/// Runs `work`, and renews a lease again and again until it is done.
async fn show<T, E: std::error::Error + 'static>(
    name: &str,
    store: &SqliteStore,
    token: ClaimToken,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, Failed> {
    let (start, mut work, mut longest) = (Instant::now(), pin!(work), Duration::ZERO);
    loop {
        let asked = Instant::now();
        tokio::select! {
            biased;
            done = &mut work => {
                longest = longest.max(asked.elapsed());
                let (all, longest) = (start.elapsed(), longest.as_secs_f64() * 1e3);
                println!("{name:<44} {:>8.2} s, {longest:>8.1} ms", all.as_secs_f64());
                return Ok(done?);
            }
            valid = store.extend(vec![token], LEASE) => {
                valid?;
                longest = longest.max(asked.elapsed());
            }
        }
    }
}

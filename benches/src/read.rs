//! Reading from a store of many letters: pages at any depth, counts, stats, groups.

use std::time::{Duration, Instant};

use dlq_core::store::Letters as _;
use dlq_core::{Clock as _, Filter, Order, PageRequest, Sink as _, Status, SystemClock};
use dlq_sql::sqlite::SqliteStore;

use crate::letters::letter;
use crate::measure::Size;

pub(crate) fn run(size: Size) -> Result<(), Box<dyn std::error::Error>> {
    let count: u64 = size.pick(2_000, 100_000);
    let rounds = size.pick(1, 11);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let folder = tempfile::tempdir()?;
        let store = SqliteStore::open(folder.path().join("dlq.db")).await?;
        let (mut since, began) = (SystemClock.now(), SystemClock.now());
        for start in (0..count).step_by(1000) {
            if start + 10_000 == count {
                since = SystemClock.now();
            }
            store.put((start..(start + 1000).min(count)).map(|n| letter(n, 256)).collect()).await?;
        }
        println!("{count} letters");
        let first = PageRequest::new().order(Order::OldestFirst);
        let near_the_end = cursor_near_the_end(&store, count).await?;
        let last = first.after(near_the_end);
        let mut times = Vec::new();
        macro_rules! show {
            ($name:literal, $call:expr) => {{
                let mut runs = Vec::new();
                for _ in 0..rounds {
                    let start = Instant::now();
                    $call.await?;
                    runs.push(start.elapsed());
                }
                runs.sort();
                let median: Duration = runs[runs.len() / 2];
                println!("{:<28} {:>9.3} ms", $name, median.as_secs_f64() * 1e3);
                times.push(median);
            }};
        }
        show!("first page", store.list(Filter::new(), first));
        show!("last page", store.list(Filter::new(), last));
        show!("count", store.count(Filter::new()));
        show!("count of one status", store.count(Filter::new().with_status(Status::Pending)));
        show!("stats", store.stats(Filter::new()));
        show!("groups", store.groups(Filter::new(), 20));
        show!("groups of all, with a bound", store.groups(Filter::new().since(began), 20));
        show!("groups of the latest 10,000", store.groups(Filter::new().since(since), 20));
        println!("last page / first page: {:.2}", times[1].as_secs_f64() / times[0].as_secs_f64());
        Ok(())
    })
}

/// Returns the cursor of the last page.
async fn cursor_near_the_end(
    store: &SqliteStore,
    count: u64,
) -> Result<Option<dlq_core::Cursor>, Box<dyn std::error::Error>> {
    let mut page = PageRequest::new().order(Order::OldestFirst).limit(1000);
    let mut seen = 0;
    loop {
        let left = count.saturating_sub(seen + 50);
        page = page.limit(u32::try_from(left.min(1000))?);
        let listed = store.list(Filter::new(), page).await?;
        seen += listed.letters.len() as u64;
        page = page.after(listed.next);
        if listed.next.is_none() || seen + 50 >= count {
            return Ok(page.after);
        }
    }
}

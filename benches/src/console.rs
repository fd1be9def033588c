//! Pages of the console over a store of a million letters: time to the first byte, and weight.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode, header};
use dlq_admin::Admin;
use dlq_core::search::{Search, SearchRequest};
use dlq_core::store::{Actor, Claim, ClaimRequest, Claims as _, Finish, OperationSpec};
use dlq_core::{Clock as _, DeadLetters, Filter, PageRequest, Resolution, Store, SystemClock};
use dlq_sql::sqlite::SqliteStore;
use futures_util::StreamExt as _;
use tokio::task::JoinSet;
use tower::ServiceExt as _;

use crate::letters::letter;
use crate::measure::{Size, computed, rate};

type Failed = Box<dyn std::error::Error>;

/// Fills a store in SQLite, and asks for pages.
pub(crate) fn sqlite(size: Size) -> Result<(), Failed> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let folder = tempfile::tempdir()?;
        let store = SqliteStore::open(folder.path().join("dlq.db")).await?;
        fill(&store, count(size)).await?;
        measure(DeadLetters::new(store), size).await
    })
}

/// Returns the number of letters to measure with.
pub(crate) fn count(size: Size) -> u64 {
    size.pick(2_000, 1_000_000)
}

/// Writes `count` letters.
pub(crate) async fn fill(store: &impl Store, count: u64) -> Result<(), Failed> {
    let began = Instant::now();
    for first in (0..count).step_by(1_000) {
        store.put((first..first + 1_000).map(|n| letter(n, 256)).collect()).await?;
    }
    println!("{:<40} {:>10.0} letters/s", "filled", rate(began.elapsed(), count));
    Ok(())
}

/// Asks for each page, and for what an operator looks for.
pub(crate) async fn measure(letters: DeadLetters, size: Size) -> Result<(), Failed> {
    let rounds = size.pick(2, 11);
    let router = Admin::new(letters.clone()).router();
    let latest = letters.list(Filter::new(), PageRequest::new().limit(1)).await?.letters;
    let latest = latest.first().ok_or("the store is empty")?;
    let (id, fingerprint) = (latest.id, latest.fingerprint);
    let pages = [
        ("overview", String::new()),
        ("groups", "/groups".to_owned()),
        ("group", format!("/group?fingerprint={fingerprint}&consumer={}", latest.consumer)),
        ("letters", "/letters".to_owned()),
        ("letters of a subject", "/letters?subject=payments.3&status=pending".to_owned()),
        ("letter", format!("/letters/{id}")),
        ("search of 5,000 letters", "/letters?payload-text=nowhere".to_owned()),
        ("plan of a replay of all", "/replay?all=true".to_owned()),
        ("operations", "/operations".to_owned()),
        ("consumers", "/consumers".to_owned()),
        ("audit", "/audit".to_owned()),
    ];
    println!("{:<40} {:>13} {:>13} {:>11}", "page", "first", "then", "weight");
    for (name, path) in pages {
        let mut times = Vec::new();
        let mut weight = 0;
        for _ in 0..rounds {
            let request = Request::get(format!("/s/default{path}"));
            let request = request.header(header::HOST, "localhost").body(Body::empty())?;
            let began = Instant::now();
            let response = router.clone().oneshot(request).await?;
            let status = response.status();
            // A page is rendered before its first byte is sent.
            weight = to_bytes(response.into_body(), usize::MAX).await?.len();
            times.push(began.elapsed());
            if status != StatusCode::OK {
                return Err(format!("{name}: {status}").into());
            }
        }
        let first = times.remove(0).as_secs_f64() * 1e3;
        let then = median(times);
        println!("{name:<40} {first:>10.1} ms {then:>10.1} ms {:>8.1} kB", weight as f64 / 1e3);
    }
    let hour = Filter::new().since(SystemClock.now().before(Duration::from_secs(3_600)));
    let began = Instant::now();
    letters.groups(hour, 20).await?;
    println!("{:<40} {:>10.1} ms", "groups of the last hour", median(vec![began.elapsed()]));
    let began = Instant::now();
    let page = letters.list(Filter::new().error("nowhere"), PageRequest::new()).await?;
    println!("{:<40} {:>10.1} ms", "error that no letter has", median(vec![began.elapsed()]));
    if !page.letters.is_empty() {
        return Err("a letter has an error that none has".into());
    }
    search(&letters).await?;
    browsers(&letters, &router, size).await
}

/// Watches an operation with many browsers while its letters are handled, and without one.
async fn browsers(letters: &DeadLetters, router: &Router, size: Size) -> Result<(), Failed> {
    const BROWSERS: usize = 50;
    let time = size.pick(Duration::from_secs(1), Duration::from_secs(20));
    let spec = OperationSpec::replay(Filter::new()).limit(size.pick(100, 10_000));
    let operation = letters.replay(spec, Actor::new("bench")).await?.id;
    let this = std::process::id();
    let (mut shares, pieces) = (Vec::new(), Arc::new(AtomicUsize::new(0)));
    for browsers in [0, BROWSERS] {
        let path = format!("/api/v1/default/operations/{operation}/events");
        let mut watching = JoinSet::new();
        for _ in 0..browsers {
            let request = Request::get(&path).header(header::HOST, "localhost");
            let response = router.clone().oneshot(request.body(Body::empty())?).await?;
            let pieces = Arc::clone(&pieces);
            let mut news = response.into_body().into_data_stream();
            watching.spawn(async move {
                while let Some(Ok(_)) = news.next().await {
                    pieces.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let (before, began) = (computed(this), Instant::now());
        while began.elapsed() < time {
            // The progress changes between any two looks at it, so that each of them is news.
            let request = ClaimRequest::due(["payments.charge"], 10, Duration::from_secs(60));
            let claims = letters.store().claim(request).await?;
            let done = |claim: Claim| (claim.token, Finish::Resolved(Resolution::Succeeded));
            letters.store().finish(claims.into_iter().map(done).collect()).await?;
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        let spent = computed(this).zip(before).map(|(now, before)| now - before);
        shares.extend(spent.map(|spent| spent.as_secs_f64() / began.elapsed().as_secs_f64()));
        watching.shutdown().await;
    }
    // Each of them hears of the beginning at once, and then of each second.
    let heard = pieces.load(Ordering::Relaxed) / BROWSERS;
    if heard < size.pick(1, 10) {
        return Err(format!("each browser heard {heard} pieces of news").into());
    }
    if let [without, with] = shares[..] {
        println!("{:<40} {:>10.2} % of a core", "a live operation", without * 100.0);
        println!("{:<40} {:>10.2} % of a core", "  that 50 browsers watch", with * 100.0);
    }
    Ok(())
}

/// Searches everything for what is not there.
async fn search(letters: &DeadLetters) -> Result<(), Failed> {
    let search = Search::new().field("customer", "nobody");
    let mut request = SearchRequest::new();
    let (began, mut read) = (Instant::now(), 0);
    loop {
        let page = letters.search(&search, Filter::new(), request).await?;
        read += page.read;
        let Some(next) = page.next else { break };
        request = request.after(next);
    }
    println!("{:<40} {:>10.0} letters/s", "search that finds nothing", rate(began.elapsed(), read));
    Ok(())
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64() * 1e3
}

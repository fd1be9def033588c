//! G1 and G6 with several processes, which are killed: each letter runs once, but for those that were in flight at a kill.
//!
//! The program starts itself as the processes that work. Each notes in a journal of its own what it was given before it
//! runs it. `DLQ_KILL_LETTERS` sets the number of letters (500), `DLQ_KILL_PROCESSES` that of processes (2) with as many
//! claimers each, `DLQ_KILL_RUNS` how often one is killed (6).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dlq_core::store::{
    Actor, ClaimRequest, Claims as _, Finish, Finished, ItemOutcome, Letters as _, OperationSpec,
    OperationState, Operations as _, Sink as _,
};
use dlq_core::{Filter, Resolution, Status};
use dlq_mongo::MongoStore;
use dlq_services::{Service, ensure_installed, or_skip};
use dlq_testkit::fixtures;
use tokio::task::JoinSet;

const NAME: &str = "processes_share_letters_also_when_killed";
const BATCH: u32 = 8;
/// Lease of a claim. What a killed process held is due again after it.
const LEASE: Duration = Duration::from_secs(4);
/// Time that all of it may take.
const PATIENCE: Duration = Duration::from_secs(300);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, url, journal] = &arguments[..]
        && flag == "--child"
    {
        return block_on(child(url, Path::new(journal)));
    }
    if arguments.iter().any(|argument| argument == "--list") {
        println!("{NAME}: test");
        return;
    }
    let filters: Vec<_> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let is_wanted = filters.is_empty() || filters.iter().any(|filter| NAME.contains(*filter));
    if is_wanted && or_skip(Service::Mongo, ensure_installed(Service::Mongo)).is_ok() {
        let server = Service::Mongo.builder().setting("file", "").start().unwrap();
        for (name, kills) in [("unharmed", 0), ("killed", number("DLQ_KILL_RUNS", 6))] {
            letters_run_once(server.url(), name, kills);
        }
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).enable_all().build().unwrap().block_on(future)
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

async fn child(url: &str, journal: &Path) {
    let store = MongoStore::open(url).await.unwrap();
    let journal = OpenOptions::new().append(true).create(true).open(journal).unwrap();
    let journal = Arc::new(journal);
    let mut claimers = JoinSet::new();
    for _ in 0..number("DLQ_KILL_PROCESSES", 2) {
        claimers.spawn(work(store.clone(), Arc::clone(&journal)));
    }
    claimers.join_all().await;
}

/// Claims, runs and finishes letters until nothing is left to wait for.
async fn work(store: MongoStore, journal: Arc<File>) {
    loop {
        let request = ClaimRequest::due([fixtures::CONSUMER], BATCH, LEASE);
        let claims = store.claim(request).await.unwrap();
        if claims.is_empty() {
            // Also what somebody else holds is something to wait for.
            if store.next_due(Vec::new()).await.unwrap().is_none() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        }
        // One write: a process that is killed has noted all of it or nothing.
        let run = claims.iter().map(|claim| format!("{}\n", claim.token.letter));
        (&*journal).write_all(run.collect::<String>().as_bytes()).unwrap();
        println!("step");
        let success = || Finish::Resolved(Resolution::Succeeded);
        let ends = store.finish(claims.iter().map(|claim| (claim.token, success())).collect());
        let ends = ends.await.unwrap();
        assert!(ends.iter().all(|end| *end == Finished::Applied), "a claim was lost: {ends:?}");
    }
}

struct Worker {
    process: Child,
    said: BufReader<std::process::ChildStdout>,
}

impl Worker {
    fn start(url: &str, journal: &Path) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--child", url])
            .arg(journal)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(process.stdout.take().unwrap());
        Self { process, said }
    }

    /// Waits for another step; false once there is none.
    fn step(&mut self) -> bool {
        self.said.read_line(&mut String::new()).unwrap() > 0
    }
}

/// All letters are released by an operation with a canary.
fn letters_run_once(url: &str, name: &str, kills: u64) {
    let folder = tempfile::tempdir().unwrap();
    let database = format!("dlq_kill_{}_{name}", std::process::id());
    let url = format!("{}/{database}", url.trim_end_matches('/'));
    let letters = number("DLQ_KILL_LETTERS", 500);
    let operation = block_on(async {
        let store = MongoStore::open(&url).await.unwrap();
        store.put((0..letters).map(fixtures::letter).collect()).await.unwrap();
        let spec = OperationSpec::replay(Filter::new()).with_canary(20);
        store.start(spec, Actor::new("ana")).await.unwrap().id
    });
    let journal = |n: u64| -> PathBuf { folder.path().join(format!("journal-{n}")) };
    let began = Instant::now();
    let processes = number("DLQ_KILL_PROCESSES", 2);
    let mut next = processes;
    let mut workers: Vec<_> = (0..processes).map(|n| Worker::start(&url, &journal(n))).collect();
    for kill in 0..kills {
        let at = usize::try_from(kill % processes).unwrap();
        // It is killed between the claim and the end of what it runs, or a little later.
        let _ = workers[at].step();
        workers[at].process.kill().unwrap();
        workers[at].process.wait().unwrap();
        workers[at] = Worker::start(&url, &journal(next));
        next += 1;
    }
    for worker in &mut workers {
        while worker.step() {
            assert!(began.elapsed() < PATIENCE, "it never ends");
        }
        assert!(worker.process.wait().unwrap().success());
    }
    let mut runs = BTreeMap::<String, u64>::new();
    for n in 0..next {
        let text = std::fs::read_to_string(journal(n)).unwrap_or_default();
        text.lines().for_each(|letter| *runs.entry(letter.to_owned()).or_default() += 1);
    }
    assert_eq!(runs.len() as u64, letters, "each letter ran");
    let again: u64 = runs.values().map(|runs| runs - 1).sum();
    // What the claimers of a process have in flight.
    assert!(again <= kills * processes * u64::from(BATCH), "{again} ran again after {kills} kills");
    if kills == 0 {
        assert_eq!(again, 0, "nobody was killed");
    }
    block_on(async {
        let store = MongoStore::open(&url).await.unwrap();
        let resolved = Filter::new().with_status(Status::Resolved);
        assert_eq!(store.count(resolved).await.unwrap(), letters);
        let operation = store.operation(operation).await.unwrap().unwrap();
        assert_eq!(operation.state, OperationState::Completed);
        assert_eq!(operation.progress.with_outcome(ItemOutcome::Succeeded), letters);
    });
    println!(
        "{name}: {letters} letters, {again} ran again after {kills} kills, {:?}",
        began.elapsed()
    );
}

//! G1 and G6 with several processes, which are killed: each letter runs once, but for those that were in flight at a kill.
//!
//! The program starts itself as the processes that work, four with four claimers each. Each process notes in a journal of its
//! own what it was given before it runs it, and what the store has confirmed as ended.
//!
//! There are as many rounds as kills, and a last one. In each round but the last, one process is killed in the midst of its
//! work, right after it was given letters or right after it ended some; the others end by themselves. The clock of a round
//! stands still, and is later than every lease of the round before. So a lease ends because a process has died, never because
//! one was slow.
//!
//! `DLQ_KILL_LETTERS` sets the number of letters (600), `DLQ_KILL_RUNS` how often a process is killed (3).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::future::pending;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use dlq_core::store::{
    Actor, ClaimRequest, Claims as _, Finish, Finished, ItemOutcome, Letters as _, OperationSpec,
    OperationState, Operations as _, Schedule, ScheduleRun, Sink as _,
};
use dlq_core::{Filter, Resolution, Status, StoreError, StoreErrorKind, Timestamp};
use dlq_mongo::MongoStore;
use dlq_services::{Service, ensure_installed, or_skip};
use dlq_testkit::fixtures::{self, ManualClock};
use tokio::task::JoinSet;

const NAME: &str = "processes_share_letters_also_when_killed";
const PROCESSES: usize = 4;
const CLAIMERS: u64 = 4;
/// Lease of a claim, by the clock of the round.
const LEASE: Duration = Duration::from_secs(3600);
/// Time that a round may take.
const PATIENCE: Duration = Duration::from_secs(1200);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, url, journal, round, steps, hang_at] = &arguments[..]
        && flag == "--child"
    {
        let hang_at = hang_at.parse().unwrap();
        let worker = (round.parse().unwrap(), steps.parse().unwrap(), hang_at);
        return block_on(child(url, Path::new(journal), worker));
    }
    if arguments.iter().any(|argument| argument == "--list") {
        println!("{NAME}: test");
        return;
    }
    let filters: Vec<_> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let is_wanted = filters.is_empty() || filters.iter().any(|filter| NAME.contains(*filter));
    if is_wanted && or_skip(Service::Mongo, ensure_installed(Service::Mongo)).is_ok() {
        let server = Service::Mongo.builder().setting("file", "").start().unwrap();
        for (name, kills) in [("unharmed", 0), ("killed", number("DLQ_KILL_RUNS", 3))] {
            processes_share_letters_also_when_killed(server.url(), name, kills);
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

fn letters() -> u64 {
    number("DLQ_KILL_LETTERS", 600)
}

/// Letters of one claim: more where there are more, since the stand-in looks at each document.
fn batch() -> u32 {
    u32::try_from(letters() / 60).unwrap().clamp(10, 50)
}

async fn open(url: &str, round: u64) -> MongoStore {
    let start = Timestamp::from_millis(1_790_000_000_000);
    let clock = ManualClock::starting_at(start.after(2 * LEASE * u32::try_from(round).unwrap()));
    // A server that sixteen claimers keep busy may be long in taking a connection.
    let url = format!("{url}?serverSelectionTimeoutMS=1200000&connectTimeoutMS=1200000");
    let store = MongoStore::builder(url).max_connections(4).answer_timeout(PATIENCE);
    store.clock(clock.shared()).open().await.unwrap()
}

/// A process that works: with four claimers, for so many steps each or to the end, until one of them has made so many notes
/// that it is to be killed.
async fn child(url: &str, journal: &Path, (round, steps, hang_at): (u64, u64, i64)) {
    let store = open(url, round).await;
    let file = OpenOptions::new().append(true).create(true).open(journal).unwrap();
    let journal = Arc::new(Journal { file, left: AtomicI64::new(hang_at) });
    let mut claimers = JoinSet::new();
    for _ in 0..CLAIMERS {
        claimers.spawn(work(store.clone(), Arc::clone(&journal), steps));
    }
    claimers.join_all().await;
}

struct Journal {
    file: File,
    left: AtomicI64,
}

impl Journal {
    /// Notes something about these letters, and waits to be killed if it is time.
    async fn note(&self, verb: &str, letters: impl Iterator<Item = dlq_core::LetterId>) {
        // One write: a process that is killed has noted all of it or nothing.
        let lines: String = letters.map(|letter| format!("{verb} {letter}\n")).collect();
        (&self.file).write_all(lines.as_bytes()).unwrap();
        if self.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            println!("kill me");
            pending::<()>().await;
        }
    }
}

/// Claims, runs and ends letters: for so many steps, or else until nothing is left to wait for.
async fn work(store: MongoStore, journal: Arc<Journal>, steps: u64) {
    for step in 0.. {
        if steps > 0 && step == steps {
            return;
        }
        let request = ClaimRequest::due([fixtures::CONSUMER], batch(), LEASE);
        let Some(claims) = unless_busy(store.claim(request).await) else { continue };
        if claims.is_empty() {
            // Also what somebody else holds is something to wait for.
            if store.next_due(Vec::new()).await.unwrap().is_none() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        }
        journal.note("run", claims.iter().map(|claim| claim.token.letter)).await;
        let success = || Finish::Resolved(Resolution::Succeeded);
        let ends: Vec<_> = claims.iter().map(|claim| (claim.token, success())).collect();
        let ends = loop {
            if let Some(ends) = unless_busy(store.finish(ends.clone()).await) {
                break ends;
            }
        };
        assert!(ends.iter().all(|end| *end == Finished::Applied), "a claim was lost: {ends:?}");
        journal.note("end", claims.iter().map(|claim| claim.token.letter)).await;
    }
}

/// The answer; `None` where others were first for so long that the call is to be made again.
fn unless_busy<T>(answer: Result<T, StoreError>) -> Option<T> {
    match answer {
        Ok(answer) => Some(answer),
        Err(error) if error.kind() == StoreErrorKind::Unavailable => None,
        Err(error) => panic!("{error:?}"),
    }
}

fn start(url: &str, journal: &Path, round: u64, steps: u64, hang_at: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--child", url])
        .arg(journal)
        .args([round, steps, hang_at].map(|number| number.to_string()))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Runs of a letter: the process, and true once their end was confirmed to it.
type Runs = BTreeMap<String, Vec<(usize, bool)>>;

fn read(journals: &[PathBuf]) -> Runs {
    let mut all = Runs::new();
    for (process, journal) in journals.iter().enumerate() {
        let text = std::fs::read_to_string(journal).unwrap_or_default();
        for line in text.lines() {
            let (verb, letter) = line.split_once(' ').unwrap();
            let runs = all.entry(letter.to_owned()).or_default();
            match verb {
                "run" => runs.push((process, false)),
                _ => runs.last_mut().unwrap().1 = true,
            }
        }
    }
    all
}

/// Some letters are released by an operation with a canary, the others are due.
fn processes_share_letters_also_when_killed(url: &str, name: &str, kills: u64) {
    let folder = tempfile::tempdir().unwrap();
    let database = format!("dlq_kill_{}_{name}", std::process::id());
    let url = format!("{}/{database}", url.trim_end_matches('/'));
    let letters = letters();
    let released = (letters / 10).min(60);
    let operation = block_on(async {
        let store = open(&url, 0).await;
        store.put((0..letters).map(fixtures::letter).collect()).await.unwrap();
        let some =
            (0..released).map(|n| fixtures::letter(n).id).fold(Filter::new(), Filter::with_id);
        let spec = OperationSpec::replay(some).canary(20);
        let operation = store.start(spec, Actor::new("ana")).await.unwrap().id;
        let others = letters - released;
        let schedule = Schedule::enabled().batch(others.try_into().unwrap());
        let schedule = schedule.all_classes();
        let run = ScheduleRun { consumer: fixtures::CONSUMER.to_owned(), schedule };
        let (mut due, began) = (0, Instant::now());
        while due < others {
            due += store.run_schedule(run.clone()).await.unwrap().0;
            assert!(began.elapsed() < PATIENCE, "{due} are due");
        }
        operation
    });
    let claimed_at_once = PROCESSES as u64 * CLAIMERS * u64::from(batch());
    let steps = (letters / ((kills + 1) * claimed_at_once)).max(1);
    let (began, mut journals, mut killed) = (Instant::now(), Vec::new(), BTreeSet::new());
    for round in 0..=kills {
        let is_last = round == kills;
        let mut processes = Vec::new();
        for place in 0..PROCESSES {
            let journal = folder.path().join(format!("journal-{}", journals.len()));
            let hang_at = if place == 0 && !is_last { 1 + round % 4 } else { 0 };
            let steps = if is_last { 0 } else { steps };
            processes.push((journals.len(), start(&url, &journal, round, steps, hang_at)));
            journals.push(journal);
        }
        let round_began = Instant::now();
        for (number, mut process) in processes {
            let mut said = String::new();
            BufReader::new(process.stdout.take().unwrap()).read_line(&mut said).unwrap();
            if said.is_empty() {
                assert!(process.wait().unwrap().success());
            } else {
                process.kill().unwrap();
                process.wait().unwrap();
                killed.insert(number);
            }
            assert!(round_began.elapsed() < PATIENCE, "it never ends");
        }
    }
    let runs = read(&journals);
    assert_eq!(runs.len() as u64, letters, "each letter ran");
    let mut again = 0;
    for (letter, runs) in &runs {
        let (_last, before) = runs.split_last().unwrap();
        again += before.len();
        for (process, is_ended) in before {
            assert!(killed.contains(process), "{letter} ran again, and no process died: {runs:?}");
            assert!(!is_ended, "{letter} ran again, and had ended: {runs:?}");
        }
    }
    assert!(kills == 0 || !killed.is_empty(), "no process was killed");
    block_on(async {
        let store = open(&url, kills).await;
        let resolved = Filter::new().with_status(Status::Resolved);
        assert_eq!(store.count(resolved).await.unwrap(), letters);
        let operation = store.operation(operation).await.unwrap().unwrap();
        assert_eq!(operation.state, OperationState::Completed);
        assert_eq!(operation.progress.with_outcome(ItemOutcome::Succeeded), released);
    });
    let (claimers, kills, took) = (PROCESSES as u64 * CLAIMERS, killed.len(), began.elapsed());
    println!(
        "{name}: {letters} letters, {claimers} claimers in {PROCESSES} processes, {kills} kills; \
         each letter ran, {again} that were in flight ran again ({took:.1?})"
    );
}

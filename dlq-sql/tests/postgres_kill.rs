//! G1 and G6 on Postgres with several processes, which are killed: each letter runs once, but for those that were in
//! somebody's hands at a kill.
//!
//! The program starts itself as the processes that work. Each notes in a journal of its own what it was given before it
//! runs it, and what it was told is finished. `DLQ_KILL_RUNS` sets how often a process is killed (24), `DLQ_KILL_SEED`
//! the random numbers.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dlq_core::store::{
    Actor, ClaimRequest, Claims as _, Finish, Finished, ItemOutcome, Letters as _, OperationSpec,
    OperationState, Operations as _, Schedule, ScheduleRun, Sink as _,
};
use dlq_core::{Filter, OperationId, Resolution, Status};
use dlq_services::{Service, ensure_installed, or_skip};
use dlq_sql::postgres::PostgresStore;
use dlq_testkit::fixtures;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};
use tokio::task::JoinSet;

const NAME: &str = "processes_share_letters_also_when_killed";
const PROCESSES: usize = 4;
const CLAIMERS: usize = 4;
const BATCH: u32 = 8;
/// How long all of it may take at most.
const PATIENCE: Duration = Duration::from_secs(300);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, what, url, journal] = &arguments[..]
        && flag == "--child"
    {
        return block_on(child(what, url, Path::new(journal)));
    }
    if arguments.iter().any(|argument| argument == "--list") {
        println!("{NAME}: test");
        return;
    }
    let filters: Vec<_> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let is_wanted = filters.is_empty() || filters.iter().any(|filter| NAME.contains(*filter));
    if is_wanted && or_skip(Service::Postgres, ensure_installed(Service::Postgres)).is_ok() {
        // Processes are killed and not the machine, so that nobody has to wait for the disk.
        let server = Service::Postgres.builder().setting("fsync", "off").start().unwrap();
        each_letter_runs_once(server.url());
        only_what_was_in_flight_runs_again(server.url());
        operations_share_the_letters(server.url());
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).enable_all().build().unwrap().block_on(future)
}

/// Numbers that look random (xorshift by Marsaglia, 2003).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

async fn child(what: &str, url: &str, journal: &Path) {
    let store = PostgresStore::builder(url).max_connections(CLAIMERS as u32 + 1).open();
    let store = store.await.unwrap();
    let owner = journal.file_name().unwrap().to_string_lossy().into_owned();
    let journal = OpenOptions::new().append(true).create(true).open(journal).unwrap();
    println!("ready");
    if what == "start" {
        // All begin at the same word.
        std::io::stdin().read_line(&mut String::new()).unwrap();
        let spec = OperationSpec::replay(Filter::new());
        let operation = store.start(spec, Actor::new(&owner)).await.unwrap();
        (&journal).write_all(format!("froze {}\n", operation.progress.total).as_bytes()).unwrap();
    }
    let journal = Arc::new(journal);
    let mut claimers = JoinSet::new();
    for _ in 0..CLAIMERS {
        claimers.spawn(work(store.clone(), Arc::clone(&journal), owner.clone()));
    }
    claimers.join_all().await;
}

/// Claims, runs and finishes letters until nothing is left to wait for.
async fn work(store: PostgresStore, journal: Arc<File>, owner: String) {
    loop {
        // No lease ends by itself: the parent ends those of processes that it has killed.
        let request = ClaimRequest::due([fixtures::CONSUMER], BATCH, Duration::from_secs(3600));
        let claims = store.claim(request.owner(&owner)).await.unwrap();
        if claims.is_empty() {
            // Also what somebody else holds is something to wait for.
            if store.next_due(Vec::new()).await.unwrap().is_none() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        }
        // What the handler does, noted in one write: a process that is killed has noted all of it or nothing.
        let run = claims.iter().map(|claim| format!("run {}\n", claim.token.letter));
        (&*journal).write_all(run.collect::<String>().as_bytes()).unwrap();
        println!("step");
        let success = || Finish::Resolved(Resolution::Succeeded);
        let ends = store.finish(claims.iter().map(|claim| (claim.token, success())).collect());
        assert!(
            ends.await.unwrap().iter().all(|end| *end == Finished::Applied),
            "a claim was lost"
        );
        let done = claims.iter().map(|claim| format!("done {}\n", claim.token.letter));
        (&*journal).write_all(done.collect::<String>().as_bytes()).unwrap();
    }
}

/// A place of its own for each test: a database, and a directory of journals.
struct TestDatabase {
    url: String,
    store: PostgresStore,
    journals: tempfile::TempDir,
}

impl TestDatabase {
    async fn new(server: &str, name: &str, letters: u64) -> Self {
        let mut conn = PgConnection::connect(server).await.unwrap();
        conn.execute(AssertSqlSafe(format!("CREATE DATABASE {name}"))).await.unwrap();
        let (place, _) = server.rsplit_once('/').unwrap();
        let url = format!("{place}/{name}");
        let store = PostgresStore::connect(&url).await.unwrap();
        for first in (0..letters).step_by(1_000) {
            let some = first..letters.min(first + 1_000);
            store.put(some.map(fixtures::letter).collect()).await.unwrap();
        }
        Self { url, store, journals: tempfile::tempdir().unwrap() }
    }

    /// Half of the letters are sent back by an operation, half by the schedule.
    async fn send_back(&self, letters: u64) -> OperationId {
        let spec = OperationSpec::replay(Filter::new()).limit(letters / 2);
        let operation = self.store.start(spec, Actor::new("ana")).await.unwrap().id;
        let schedule = Schedule::enabled().batch(letters as u32).all_classes();
        let run = ScheduleRun { consumer: fixtures::CONSUMER.to_owned(), schedule };
        assert_eq!(self.store.run_schedule(run).await.unwrap().0, letters / 2);
        operation
    }

    fn process(&self, what: &str, owner: &str) -> (Child, impl Iterator<Item = String> + use<>) {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--child", what, &self.url])
            .arg(self.journals.path().join(owner))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        assert_eq!(lines.next().as_deref(), Some("ready"));
        (child, lines)
    }

    /// What each process noted.
    fn journal(&self, owner: &str) -> Vec<(String, String)> {
        let text = std::fs::read_to_string(self.journals.path().join(owner)).unwrap();
        // A line that is not whole was not said.
        let whole = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
        let words = whole.map(|line| line.split_once(' ').unwrap());
        words.map(|(word, rest)| (word.to_owned(), rest.to_owned())).collect()
    }

    async fn is_completed(&self, operation: OperationId, letters: u64) {
        let mut resolved = Filter::new();
        resolved.statuses.push(Status::Resolved);
        assert_eq!(self.store.count(resolved).await.unwrap(), letters);
        let operation = self.store.operation(operation).await.unwrap().unwrap();
        assert_eq!(operation.state, OperationState::Completed);
        assert_eq!(operation.progress.with_outcome(ItemOutcome::Succeeded), letters / 2);
    }
}

/// Waits for its end; it went well.
fn ends_well((mut child, lines): (Child, impl Iterator<Item = String>)) {
    lines.for_each(drop);
    assert!(child.wait().unwrap().success(), "a process failed");
}

fn each_letter_runs_once(server: &str) {
    const LETTERS: u64 = 10_000;
    let place = block_on(TestDatabase::new(server, "once", LETTERS));
    let operation = block_on(place.send_back(LETTERS));
    let began = Instant::now();
    let owners: Vec<_> = (0..PROCESSES).map(|n| format!("process-{n}")).collect();
    let processes: Vec<_> = owners.iter().map(|owner| place.process("work", owner)).collect();
    std::thread::scope(|scope| {
        for process in processes {
            scope.spawn(|| ends_well(process));
        }
    });
    let took = began.elapsed();
    let runs = owners.iter().flat_map(|owner| place.journal(owner));
    let runs: Vec<_> = runs.filter(|(word, _)| word == "run").map(|(_, id)| id).collect();
    let different: BTreeSet<_> = runs.iter().collect();
    println!(
        "{} claimers in {PROCESSES} processes ran {} letters {} times in {took:.1?}",
        PROCESSES * CLAIMERS,
        different.len(),
        runs.len()
    );
    assert_eq!((different.len() as u64, runs.len() as u64), (LETTERS, LETTERS));
    block_on(place.is_completed(operation, LETTERS));
}

fn only_what_was_in_flight_runs_again(server: &str) {
    const LETTERS: u64 = 10_000;
    let kills = number("DLQ_KILL_RUNS", 24);
    // Never zero, of which xorshift would make zeros for ever.
    let seed = number("DLQ_KILL_SEED", u64::from(std::process::id())) | 1 << 40;
    let place = block_on(TestDatabase::new(server, "killed", LETTERS));
    let operation = block_on(place.send_back(LETTERS));
    let killed: Mutex<Vec<String>> = Mutex::default();
    let lived: Mutex<Vec<String>> = Mutex::default();
    std::thread::scope(|scope| {
        let slots: Vec<_> = (0..PROCESSES as u64)
            .map(|slot| {
                let (place, killed, lived) = (&place, &killed, &lived);
                let kills = kills / PROCESSES as u64 + u64::from(slot < kills % PROCESSES as u64);
                let mut random = Random(seed + slot);
                scope.spawn(move || {
                    for n in 0..kills {
                        let owner = format!("process-{slot}-{n}");
                        let (mut child, mut lines) = place.process("work", &owner);
                        // Also before the first step.
                        let steps = random.below(30);
                        lines.by_ref().take(steps as usize).for_each(drop);
                        child.kill().unwrap();
                        child.wait().unwrap();
                        killed.lock().unwrap().push(owner);
                    }
                    let owner = format!("process-{slot}-last");
                    let process = place.process("work", &owner);
                    lived.lock().unwrap().push(owner);
                    ends_well(process);
                })
            })
            .collect();
        block_on(async {
            let mut conn = PgConnection::connect(&place.url).await.unwrap();
            let began = Instant::now();
            while !slots.iter().all(std::thread::ScopedJoinHandle::is_finished) {
                assert!(began.elapsed() < PATIENCE, "it goes on for ever (seed {seed})");
                // The leases of those who live last for an hour, those of the dead end now. What the last
                // statement of a dead one still holds waits for the next turn: whoever waits for many in an
                // order of their own may be waited for.
                let dead = killed.lock().unwrap().clone();
                let end = "UPDATE dlq_events SET claim_until = now(), available_at = now() \
                           WHERE ctid = ANY(ARRAY(SELECT ctid FROM dlq_events \
                           WHERE claim_owner = ANY($1) AND claim_until > now() FOR UPDATE SKIP LOCKED))";
                sqlx::query(end).bind(dead).execute(&mut conn).await.unwrap();
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
    });
    let (killed, lived) = (killed.into_inner().unwrap(), lived.into_inner().unwrap());
    // Whoever was told that a letter is finished was the last to run it.
    let mut runs: BTreeMap<String, u64> = BTreeMap::new();
    let mut in_flight: BTreeMap<String, u64> = BTreeMap::new();
    for owner in killed.iter().chain(&lived) {
        let mut open = BTreeSet::new();
        for (word, id) in place.journal(owner) {
            if word == "run" {
                *runs.entry(id.clone()).or_default() += 1;
                open.insert(id);
            } else {
                open.remove(&id);
            }
        }
        assert!(killed.contains(owner) || open.is_empty(), "{owner} lived and left something");
        open.into_iter().for_each(|id| *in_flight.entry(id).or_default() += 1);
    }
    let again: BTreeMap<_, _> = runs.iter().filter(|(_, runs)| **runs > 1).collect();
    println!(
        "{} processes killed (seed {seed}): {} letters ran, {} were in flight at a kill, {} of them ran again",
        killed.len(),
        runs.len(),
        in_flight.len(),
        again.len()
    );
    assert_eq!(runs.len() as u64, LETTERS, "every letter ran");
    for (id, runs) in again {
        let excused = in_flight.get(id).copied().unwrap_or(0);
        assert!(
            *runs <= excused + 1,
            "{id} ran {runs} times, and was in flight at {excused} kills"
        );
    }
    block_on(place.is_completed(operation, LETTERS));
}

fn operations_share_the_letters(server: &str) {
    const LETTERS: u64 = 200;
    let place = block_on(TestDatabase::new(server, "shared", LETTERS));
    let owners: Vec<_> = (0..PROCESSES).map(|n| format!("process-{n}")).collect();
    let mut processes: Vec<_> = owners.iter().map(|owner| place.process("start", owner)).collect();
    for (child, _) in &mut processes {
        child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    }
    processes.into_iter().for_each(ends_well);
    let (mut froze, mut runs) = (Vec::new(), Vec::new());
    for (word, rest) in owners.iter().flat_map(|owner| place.journal(owner)) {
        match &*word {
            "froze" => froze.push(rest.parse::<u64>().unwrap()),
            "run" => runs.push(rest),
            _ => {}
        }
    }
    println!("{} operations at once froze {froze:?} of {LETTERS} letters", froze.len());
    assert_eq!(froze.iter().sum::<u64>(), LETTERS);
    assert_eq!(runs.len() as u64, LETTERS, "each letter ran once");
    assert_eq!(runs.iter().collect::<BTreeSet<_>>().len() as u64, LETTERS);
}

//! G1, G2 and G6 against SIGKILL: a process that buries, claims and replays is killed again and again, and so is the server,
//! and whatever had been confirmed is there.
//!
//! The program starts itself as the process that is killed. That process notes each confirmation in a journal, flushed to
//! the disk, after the store gave it. `DLQ_KILL_RUNS` sets how often it is killed (12), `DLQ_KILL_SEED` the random numbers.
//! Every fourth time the server is killed in its place, and restarted on its append-only file.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use dlq_core::store::{
    Actor, CheckLimits, ClaimRequest, Claims, Finish, Finished, Letters, Maintenance,
    OperationSpec, Operations, Sink,
};
use dlq_core::{Clock, Filter, LetterId, Resolution, RetryQueue, Status, StoreError, Timestamp};
use dlq_redis::RedisConfig;
use dlq_redis::store::RedisStore;
use dlq_services::{Redis, Service, ensure_installed, or_skip};
use dlq_testkit::fixtures::{self, ManualClock};

const NAME: &str = "what_was_confirmed_survives_sigkill";
const BATCH: u32 = 5;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, url, directory, run, seed] = &arguments[..]
        && flag == "--child"
    {
        let seed = Random(seed.parse().unwrap());
        return block_on(child(url, Path::new(directory), run.parse().unwrap(), seed));
    }
    if arguments.iter().any(|argument| argument == "--list") {
        println!("{NAME}: test");
        return;
    }
    let filters: Vec<_> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    if filters.is_empty() || filters.iter().any(|filter| NAME.contains(filter.as_str())) {
        block_on(parent());
    }
}

fn block_on(future: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future);
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

/// Returns the clock of a run, by which every lease of an earlier one has ended.
fn clock_of(run: u64) -> ManualClock {
    let start = Timestamp::from_millis(1_790_000_000_000);
    ManualClock::starting_at(start.after(Duration::from_secs(3600 * run)))
}

async fn open(url: &str, clock: &ManualClock) -> RedisStore {
    let client = RedisConfig::new().response_timeout(Duration::from_secs(60)).open(url).await;
    let builder = RedisStore::builder(&client.unwrap()).prefix("{kill}").clock(clock.shared());
    builder.open().await.unwrap()
}

/// Confirmations that the child was given, in their order.
struct Journal(File);

impl Journal {
    fn note(&mut self, lines: &str) {
        self.0.write_all(lines.as_bytes()).unwrap();
        self.0.sync_data().unwrap();
        println!("step");
    }
}

/// Works until it is killed, or its server is.
async fn child(url: &str, directory: &Path, run: u64, mut random: Random) {
    let clock = clock_of(run);
    let store = open(url, &clock).await;
    let journal = OpenOptions::new().append(true).create(true).open(directory.join("journal"));
    let mut journal = Journal(journal.unwrap());
    let mut next = run * 1_000_000;
    loop {
        clock.advance(Duration::from_millis(10));
        if let Err(error) = step(&store, &clock, &mut journal, &mut random, &mut next, run).await {
            assert!(error.is_transient(), "{error:?}");
            // Nobody knows what became of it. Waits to be killed.
            println!("gone");
            std::future::pending::<()>().await;
        }
    }
}

async fn step(
    store: &RedisStore,
    clock: &ManualClock,
    journal: &mut Journal,
    random: &mut Random,
    next: &mut u64,
    run: u64,
) -> Result<(), StoreError> {
    match random.below(8) {
        0..=2 => {
            let count = 1 + random.below(20);
            let letters: Vec<_> = (*next..*next + count).map(fixtures::letter).collect();
            *next += count;
            let ids: String = letters.iter().map(|letter| format!("put {}\n", letter.id)).collect();
            store.put(letters).await?;
            journal.note(&ids);
        }
        3 => {
            let record = fixtures::letter(*next);
            let delayed_retry = fixtures::delayed_retry(&record, 1, clock.now());
            *next += 1;
            store.enqueue(delayed_retry).await?;
            journal.note(&format!("put {}\n", record.id));
        }
        4 => {
            let spec = OperationSpec::replay(Filter::new()).limit(1 + random.below(30));
            let operation = store.start(spec, Actor::new("child")).await?;
            journal.note(&format!("operation {}\n", operation.id));
        }
        _ => {
            let request = ClaimRequest::due([fixtures::CONSUMER], BATCH, Duration::from_secs(600));
            let claims = store.claim(request).await?;
            let line = |claim: &dlq_core::store::Claim| {
                format!("run {} {} {run}\n", claim.token.letter, claim.token.fence)
            };
            // The handler's effect: noted once the claim is confirmed, before its end is recorded.
            journal.note(&claims.iter().map(line).collect::<String>());
            let succeeded = Finish::Resolved(Resolution::Succeeded);
            let ends = claims.iter().map(|claim| (claim.token, succeeded.clone()));
            let ends = store.finish(ends.collect()).await?;
            assert!(ends.iter().all(|end| *end == Finished::Applied), "a live claim was lost");
            let done = claims.iter().map(|claim| format!("done {}\n", claim.token.letter));
            journal.note(&done.collect::<String>());
        }
    }
    Ok(())
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

async fn parent() {
    if or_skip(Service::Redis, ensure_installed(Service::Redis)).is_err() {
        return;
    }
    let mut server = Redis::builder().ours().start().unwrap();
    let kills = number("DLQ_KILL_RUNS", 12);
    let seed = number("DLQ_KILL_SEED", u64::from(std::process::id())) | 1 << 40;
    let mut random = Random(seed);
    let directory = tempfile::tempdir().unwrap();
    let (mut of_server, url) = (0, server.url().to_owned());
    for run in 1..=kills {
        let steps = 1 + random.below(40);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--child", &url])
            .arg(directory.path())
            .args([run.to_string(), random.below(u64::MAX).max(1).to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // Kept until the child is gone, so that it dies of the signal and not of a closed pipe.
        let output = child.stdout.take().unwrap();
        let mut lines = BufReader::new(output).lines().map_while(Result::ok);
        let seen = lines.by_ref().take(steps as usize).count();
        assert_eq!(seen as u64, steps, "the child of run {run} ended by itself");
        // Into the middle of what it does next; at most some milliseconds.
        (0..random.below(2_000_000)).for_each(|_| std::hint::spin_loop());
        if run.is_multiple_of(4) {
            server.kill().unwrap();
            // Whatever it was told by then is in its journal.
            assert!(lines.by_ref().any(|line| line == "gone"), "the child hears of it");
            server.restart().unwrap();
            of_server += 1;
        }
        child.kill().unwrap();
        let end = child.wait().unwrap();
        assert_eq!(end.code(), None, "the child of run {run} ended by itself: {end}");
    }
    let found = Recorded::read(&directory.path().join("journal"));
    let clock = clock_of(kills + 1);
    let store = open(&url, &clock).await;
    assert_eq!(damage(&store).await, Vec::<String>::new(), "seed {seed}");
    let extra = found.verify(&store, kills).await;
    let rest = finish_the_rest(&store, &clock).await;
    assert_eq!(damage(&store).await, Vec::<String>::new(), "seed {seed}");
    println!(
        "test {NAME} ... ok: {kills} kills, {of_server} of them of the server, {} letters confirmed, {} runs, {extra} of them \
         repeated, {} operations, {rest} letters finished afterwards; none lost (seed {seed})",
        found.put.len(),
        found.runs.values().map(Vec::len).sum::<usize>(),
        found.operations.len(),
    );
}

async fn damage(store: &RedisStore) -> Vec<String> {
    let findings = store.check(CheckLimits::default().deep(true)).await.unwrap().into_iter();
    findings.filter(|it| it.setting == "integrity").map(|it| it.to_string()).collect()
}

/// Contents of the journal.
#[derive(Default)]
struct Recorded {
    put: BTreeSet<LetterId>,
    /// Fencing token and run of the program, by letter.
    runs: BTreeMap<LetterId, Vec<(u64, u64)>>,
    done: BTreeSet<LetterId>,
    operations: Vec<String>,
    runs_after_done: Vec<LetterId>,
}

impl Recorded {
    fn read(journal: &Path) -> Self {
        let text = std::fs::read_to_string(journal).unwrap();
        let mut found = Self::default();
        // A line that was being written when the child was killed had no newline yet.
        for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
            let words: Vec<_> = line.split_whitespace().collect();
            let id = |text: &str| text.parse::<LetterId>().unwrap();
            match words[..] {
                ["put", letter] => _ = found.put.insert(id(letter)),
                ["done", letter] => _ = found.done.insert(id(letter)),
                ["operation", operation] => found.operations.push(operation.to_owned()),
                ["run", letter, fence, run] => {
                    let letter = id(letter);
                    if found.done.contains(&letter) {
                        found.runs_after_done.push(letter);
                    }
                    let numbers = (fence.parse().unwrap(), run.parse().unwrap());
                    found.runs.entry(letter).or_default().push(numbers);
                }
                _ => panic!("`{line}` is no line of a journal"),
            }
        }
        found
    }

    /// Nothing confirmed is missing, nothing ran that was done, nothing ran twice but what a kill interrupted. Returns how
    /// many runs were repetitions.
    async fn verify(&self, store: &RedisStore, kills: u64) -> u64 {
        for id in &self.put {
            let letter = store.get(*id).await.unwrap();
            let letter = letter.unwrap_or_else(|| panic!("letter {id} was confirmed and is lost"));
            if self.done.contains(id) {
                assert_eq!(letter.state.status, Status::Resolved, "letter {id} was finished");
            }
        }
        for operation in &self.operations {
            let found = store.operation(operation.parse().unwrap()).await.unwrap();
            assert!(found.is_some(), "operation {operation} was confirmed and is lost");
        }
        assert_eq!(self.runs_after_done, [], "these ran again after their success was confirmed");
        let mut fences = BTreeSet::new();
        let mut extra = 0;
        for (letter, runs) in &self.runs {
            let is_new = |(fence, _): &(u64, u64)| fences.insert(*fence);
            assert!(runs.iter().all(is_new), "a token was given out twice");
            let processes: BTreeSet<_> = runs.iter().map(|(_, run)| run).collect();
            assert_eq!(processes.len(), runs.len(), "{letter} ran twice in one process");
            extra += runs.len() as u64 - 1;
        }
        let in_flight = kills * u64::from(BATCH);
        assert!(extra <= in_flight, "{extra} runs were repeated, {in_flight} were in flight");
        assert!(!self.put.is_empty() && !self.done.is_empty(), "the children did too little");
        extra
    }
}

/// Everything that is left can be brought to its end.
async fn finish_the_rest(store: &RedisStore, clock: &ManualClock) -> u64 {
    let spec = OperationSpec::replay(Filter::new());
    store.start(spec, Actor::new("parent")).await.unwrap();
    let mut count = 0;
    loop {
        clock.advance(Duration::from_secs(1));
        let request = ClaimRequest::due([fixtures::CONSUMER], 100, Duration::from_secs(600));
        let claims = store.claim(request).await.unwrap();
        if claims.is_empty() {
            break;
        }
        count += claims.len() as u64;
        let succeeded = Finish::Resolved(Resolution::Succeeded);
        let ends = claims.iter().map(|claim| (claim.token, succeeded.clone()));
        store.finish(ends.collect()).await.unwrap();
    }
    let stats = store.stats(Filter::new()).await.unwrap();
    assert_eq!(stats.total, stats.with_status(Status::Resolved), "some letters are stuck");
    let operations = store.operations(u32::MAX).await.unwrap();
    assert!(operations.iter().all(|it| it.state.is_final()), "some operations are stuck");
    count
}

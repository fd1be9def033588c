//! G1, G2 and G6 against SIGKILL: a process that buries, claims and replays is killed again and again, and whatever it
//! had been told is there.
//!
//! The program starts itself as the process that is killed. That process notes each confirmation in a journal, flushed
//! to the disk, after the store gave it. `DLQ_KILL_RUNS` sets how often it is killed (50), `DLQ_KILL_SEED` the random
//! numbers.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use dlq_core::store::{
    Actor, ArchiveFilter, ClaimRequest, Claims, Finish, Finished, Letters, Maintenance,
    OperationSpec, Operations, Selection, Sink,
};
use dlq_core::{Clock, Filter, LetterId, Resolution, RetryQueue, Status, Timestamp};
use dlq_sql::sqlite::SqliteStore;
use dlq_testkit::fixtures::{self, ManualClock};

const NAME: &str = "what_was_confirmed_survives_sigkill";
const BATCH: u32 = 5;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, directory, run, seed] = &arguments[..]
        && flag == "--child"
    {
        let run = run.parse().expect("the parent passes a number");
        let seed = seed.parse().expect("the parent passes a number");
        return block_on(child(Path::new(directory), run, Random(seed)));
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
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.expect("a runtime of one thread needs nothing").block_on(future);
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

/// By the clock of a run every lease of an earlier one has ended.
fn clock_of(run: u64) -> ManualClock {
    let start = Timestamp::from_millis(1_790_000_000_000);
    ManualClock::starting_at(start.after(Duration::from_secs(3600 * run)))
}

async fn open(directory: &Path, clock: &ManualClock) -> SqliteStore {
    let builder = SqliteStore::builder().path(directory.join("dlq.db")).clock(clock.shared());
    builder.open().await.expect("the store opens, however it was left")
}

/// What the child was told, in the order in which it was told.
struct Journal(File);

impl Journal {
    fn note(&mut self, lines: &str) {
        self.0.write_all(lines.as_bytes()).expect("the journal can be written");
        self.0.sync_data().expect("the journal can be flushed");
        println!("step");
    }
}

async fn child(directory: &Path, run: u64, mut random: Random) {
    let clock = clock_of(run);
    let store = open(directory, &clock).await;
    let journal = OpenOptions::new().append(true).create(true).open(directory.join("journal"));
    let mut journal = Journal(journal.expect("the journal can be opened"));
    // The letters of each run have numbers of their own.
    let mut next = run * 1_000_000;
    loop {
        clock.advance(Duration::from_millis(10));
        match random.below(10) {
            0..=2 => {
                let count = 1 + random.below(20);
                let letters: Vec<_> = (next..next + count).map(fixtures::letter).collect();
                next += count;
                let ids = letters.iter().map(|letter| format!("put {}\n", letter.id));
                let ids: String = ids.collect();
                store.put(letters).await.expect("put answers");
                journal.note(&ids);
            }
            3 => {
                let record = fixtures::letter(next);
                let delayed_retry = fixtures::delayed_retry(&record, 1, clock.now());
                let id = record.id;
                next += 1;
                store.enqueue(delayed_retry).await.expect("enqueue answers");
                journal.note(&format!("put {id}\n"));
            }
            4 => {
                let spec = OperationSpec::replay(Filter::new()).limit(1 + random.below(30));
                let operation =
                    store.start(spec, Actor::new("child")).await.expect("start answers");
                journal.note(&format!("operation {}\n", operation.id));
            }
            5 => {
                // It leaves the store and is in the archive, or neither.
                let id = fixtures::letter(next.saturating_sub(random.below(30))).id;
                let deleted = store.delete(Selection::id(id), Actor::new("child")).await;
                deleted.expect("delete answers");
                println!("step");
            }
            6 => {
                let restored = store.undelete(ArchiveFilter::new(), Actor::new("child")).await;
                assert_eq!(restored.expect("undelete answers").skipped, 0, "it was in both");
                println!("step");
            }
            _ => work(&store, &mut journal, run).await,
        }
    }
}

/// Claims, runs and finishes some letters.
async fn work(store: &SqliteStore, journal: &mut Journal, run: u64) {
    let request = ClaimRequest::due([fixtures::CONSUMER], BATCH, Duration::from_secs(600));
    let claims = store.claim(request).await.expect("claim answers");
    let line = |claim: &dlq_core::store::Claim| {
        format!("run {} {} {run}\n", claim.token.letter, claim.token.fence)
    };
    // The handler's effect: noted once the claim is confirmed, before its end is recorded.
    journal.note(&claims.iter().map(line).collect::<String>());
    let ends = claims.iter().map(|claim| (claim.token, Finish::Resolved(Resolution::Succeeded)));
    let ends = store.finish(ends.collect()).await.expect("finish answers");
    assert!(ends.iter().all(|end| *end == Finished::Applied), "a live claim was lost");
    let done = claims.iter().map(|claim| format!("done {}\n", claim.token.letter));
    journal.note(&done.collect::<String>());
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

async fn parent() {
    let kills = number("DLQ_KILL_RUNS", 50);
    // Never zero, of which xorshift would make zeros for ever.
    let seed = number("DLQ_KILL_SEED", u64::from(std::process::id())) | 1 << 40;
    let mut random = Random(seed);
    let directory = tempfile::tempdir().expect("there is room for a directory");
    for run in 1..=kills {
        let steps = 1 + random.below(40);
        kill_after(directory.path(), run, steps, &mut random);
    }
    let found = Recorded::read(&directory.path().join("journal"));
    let clock = clock_of(kills + 1);
    let store = open(directory.path(), &clock).await;
    assert_eq!(store.verify().await.expect("check answers"), Vec::<String>::new(), "seed {seed}");
    let restored = store.undelete(ArchiveFilter::new(), Actor::new("parent")).await;
    assert_eq!(restored.expect("undelete answers").skipped, 0, "seed {seed}: it was in both");
    let extra = found.verify(&store, kills).await;
    let rest = finish_the_rest(&store, &clock).await;
    assert_eq!(store.verify().await.expect("check answers"), Vec::<String>::new(), "seed {seed}");
    println!(
        "test {NAME} ... ok: {kills} kills, {} letters confirmed, {} runs, {extra} of them repeated, \
         {} operations, {rest} letters finished afterwards; none lost (seed {seed})",
        found.put.len(),
        found.runs.values().map(Vec::len).sum::<usize>(),
        found.operations.len(),
    );
}

/// Starts a child, and kills it after so many of its steps and a moment.
fn kill_after(directory: &Path, run: u64, steps: u64, random: &mut Random) {
    let program: PathBuf = std::env::current_exe().expect("the program knows where it is");
    let mut child = Command::new(program)
        .arg("--child")
        .arg(directory)
        .args([run.to_string(), random.below(u64::MAX).max(1).to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program can be started again");
    let output = child.stdout.take().expect("the output was asked for");
    // Kept until the child is gone, so that it dies of the signal and not of a closed pipe.
    let mut lines = BufReader::new(output).lines().map_while(Result::ok);
    let seen = lines.by_ref().take(steps as usize).count();
    assert_eq!(seen as u64, steps, "the child of run {run} ended by itself");
    // Into the middle of what it does next; at most some milliseconds.
    (0..random.below(2_000_000)).for_each(|_| std::hint::spin_loop());
    child.kill().expect("the child is still there to be killed");
    let end = child.wait().expect("the child has ended");
    assert_eq!(end.code(), None, "the child of run {run} ended by itself: {end}");
}

/// What the journal says.
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
        let text = std::fs::read_to_string(journal).expect("the journal can be read");
        let mut found = Self::default();
        // A line that was being written when the child was killed had no newline yet.
        for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
            let words: Vec<_> = line.split_whitespace().collect();
            let id = |text: &str| text.parse::<LetterId>().expect("the journal holds ids");
            match words[..] {
                ["put", letter] => _ = found.put.insert(id(letter)),
                ["done", letter] => _ = found.done.insert(id(letter)),
                ["operation", operation] => found.operations.push(operation.to_owned()),
                ["run", letter, fence, run] => {
                    let letter = id(letter);
                    if found.done.contains(&letter) {
                        found.runs_after_done.push(letter);
                    }
                    let numbers =
                        (fence.parse().expect("a number"), run.parse().expect("a number"));
                    found.runs.entry(letter).or_default().push(numbers);
                }
                _ => panic!("`{line}` is no line of a journal"),
            }
        }
        found
    }

    /// Nothing confirmed is missing, nothing ran that was done, nothing ran twice but what a kill interrupted. Returns
    /// how many runs were repetitions.
    async fn verify(&self, store: &SqliteStore, kills: u64) -> u64 {
        for id in &self.put {
            let letter = store.get(*id).await.expect("get answers");
            let letter = letter.unwrap_or_else(|| panic!("letter {id} was confirmed and is lost"));
            if self.done.contains(id) {
                assert_eq!(letter.state.status, Status::Resolved, "letter {id} was finished");
            }
        }
        for operation in &self.operations {
            let id = operation.parse().expect("the journal holds ids");
            let operation = store.operation(id).await.expect("operation answers");
            assert!(operation.is_some(), "operation {id} was confirmed and is lost");
        }
        assert_eq!(self.runs_after_done, [], "these ran again after their success was confirmed");
        let mut fences = BTreeSet::new();
        let mut extra = 0;
        for (letter, runs) in &self.runs {
            assert!(
                runs.iter().all(|(fence, _)| fences.insert(*fence)),
                "a token was given out twice"
            );
            let processes: BTreeSet<_> = runs.iter().map(|(_, run)| run).collect();
            assert_eq!(processes.len(), runs.len(), "{letter} ran twice in one process");
            extra += runs.len() as u64 - 1;
        }
        let in_flight = kills * u64::from(BATCH);
        assert!(
            extra <= in_flight,
            "{extra} runs were repeated and at most {in_flight} were in flight"
        );
        assert!(!self.put.is_empty() && !self.done.is_empty(), "the children did too little");
        extra
    }
}

/// Everything that is left can be brought to its end.
async fn finish_the_rest(store: &SqliteStore, clock: &ManualClock) -> u64 {
    let spec = OperationSpec::replay(Filter::new());
    store.start(spec, Actor::new("parent")).await.expect("start answers");
    let mut count = 0;
    loop {
        clock.advance(Duration::from_secs(1));
        let request = ClaimRequest::due([fixtures::CONSUMER], 100, Duration::from_secs(600));
        let claims = store.claim(request).await.expect("claim answers");
        if claims.is_empty() {
            break;
        }
        count += claims.len() as u64;
        let ends =
            claims.iter().map(|claim| (claim.token, Finish::Resolved(Resolution::Succeeded)));
        store.finish(ends.collect()).await.expect("finish answers");
    }
    let stats = store.stats(Filter::new()).await.expect("stats answer");
    assert_eq!(stats.total, stats.with_status(Status::Resolved), "some letters are stuck");
    let operations = store.operations(u32::MAX).await.expect("operations answer");
    assert!(
        operations.iter().all(|operation| operation.state.is_final()),
        "some operations are stuck"
    );
    count
}

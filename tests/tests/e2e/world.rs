//! A consumer on servers, of which the one and the others are killed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use dlq_tests::work::{CONSUMER, Kind, kind};
use dlq_tests::{Entry, JOURNAL, Journal};
use dlq_tower::core::{DeadLetter, Reason};

use crate::random::Random;
use crate::servers::Servers;
use crate::victim::{Deaths, Victim};

/// How long a process that is started again when it ends may take to come to its end.
const PATIENCE: Duration = Duration::from_secs(180);

/// Servers with messages on them.
pub(crate) trait World {
    fn servers(&mut self) -> &mut Servers;

    /// How many messages there are.
    fn messages(&self) -> u64;

    /// A process that consumes them.
    fn victim(&self, folder: &Path) -> Victim;

    /// The letters as they are read, each with its message.
    async fn letters(&self) -> Vec<(u64, DeadLetter)>;
}

/// Lets a process come to its end; it still kills itself now and then.
pub(crate) fn finish(world: &impl World, folder: &Path, deaths: &mut Deaths) {
    let late = Instant::now() + PATIENCE;
    while Instant::now() < late {
        let (_, status) = world.victim(folder).end();
        deaths.count(status);
        if status.success() {
            return;
        }
    }
    panic!("it does not come to its end");
}

/// Kills a consumer again and again while it works; says what was found.
pub(crate) async fn kill_consumer(world: impl World, kills: u64) -> String {
    let (mut random, mut deaths) = (Random::new(), Deaths::default());
    let folder = tempfile::tempdir().unwrap();
    // Two lines for a message; so that they die in the middle of the work, and work is left for the last of them.
    let most = (2 * world.messages() / kills.max(1)).max(1);
    tokio::task::block_in_place(|| {
        // Those that abort themselves do not count.
        for _ in 0..2 * kills {
            if deaths.killed == kills {
                break;
            }
            let victim = world.victim(folder.path());
            victim.progress(1 + random.below(most));
            deaths.count(victim.kill());
        }
        finish(&world, folder.path(), &mut deaths);
    });
    assert_eq!(deaths.killed, kills, "there was nothing left to do: {deaths}");
    let found = check(&world, folder.path()).await;
    format!("{deaths}; {found}")
}

/// Kills servers while a consumer works; says what was found.
pub(crate) async fn kill_servers(mut world: impl World, kills: u64) -> String {
    let folder = tempfile::tempdir().unwrap();
    let mut deaths = Deaths::default();
    let before = world.servers().starts();
    tokio::task::block_in_place(|| {
        let lines = usize::try_from(world.messages() / kills.max(1)).unwrap();
        let mut victim = world.victim(folder.path());
        for turn in 0..kills {
            while victim.progress(lines) < lines {
                let (_, status) = victim.end();
                deaths.count(status);
                victim = world.victim(folder.path());
                if status.success() {
                    // Nothing is left.
                    break;
                }
            }
            world.servers().restart(turn);
        }
        deaths.count(victim.end().1);
        finish(&world, folder.path(), &mut deaths);
    });
    assert_eq!(u64::from(world.servers().starts() - before), kills, "they were really killed");
    let found = check(&world, folder.path()).await;
    format!("{kills} kills, {deaths}; {found}")
}

/// What was noted in this folder and in those in it, one of each process.
pub(crate) fn journals(folder: &Path) -> Vec<Entry> {
    let folders = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let all = folders.filter(|path| path.is_dir()).chain([folder.to_owned()]);
    all.flat_map(|folder| Journal::read(&folder.join(JOURNAL)).unwrap()).collect()
}

/// Checks G1 and G2, and says what was found.
pub(crate) async fn check(world: &impl World, folder: &Path) -> String {
    let (mut runs, mut succeeded) = (0, BTreeMap::<u64, u64>::new());
    for entry in journals(folder) {
        match entry.what.as_str() {
            "run" => runs += 1,
            "ok" => *succeeded.entry(entry.message).or_default() += 1,
            _ => {}
        }
    }
    let mut dead = BTreeSet::new();
    for (n, letter) in world.letters().await {
        assert!(dead.insert(n), "message {n} has two letters");
        let reason = match kind(n) {
            Kind::Poison => Reason::Permanent,
            Kind::Kills => Reason::MaxCrashes,
            other => panic!("message {n}, {other:?}, has a letter: {letter:?}"),
        };
        assert_eq!((letter.reason, letter.consumer.as_str()), (reason, CONSUMER), "{n}");
        assert_eq!(letter.message.payload().unwrap(), n.to_string().as_bytes());
    }
    for n in 0..world.messages() {
        let is_good = matches!(kind(n), Kind::Good | Kind::Flaky);
        assert_eq!(succeeded.contains_key(&n), is_good, "message {n}");
        assert_eq!(dead.contains(&n), !is_good, "message {n} is lost");
    }
    let twice = succeeded.values().filter(|times| **times > 1).count();
    let (messages, good, dead) = (world.messages(), succeeded.len(), dead.len());
    format!(
        "{messages} messages, {runs} runs: {good} succeeded, {twice} of them more than once, {dead} have one letter, none lost"
    )
}

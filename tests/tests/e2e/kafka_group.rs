//! `kill -9` of consumers of one group while its partitions are being shared out anew.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::sleep;
use std::time::{Duration, Instant};

use dlq_tests::kafka::Group;

use crate::kafka::Kafka;
use crate::random::{Random, number};
use crate::victim::{Deaths, SILENCE, Victim};
use crate::world::{World as _, check};

/// How many consume at the same time.
const CREW: usize = 3;
/// How many die at a time.
const AT_ONCE: u64 = 2;

/// The processes of a group, each with a folder of its own.
struct Crew<'a> {
    kafka: &'a Kafka,
    folder: &'a Path,
    group: Group,
    victims: Vec<Victim>,
    /// Were told to stop.
    leaving: Vec<Victim>,
    started: u32,
    said: Sender<String>,
    lines: Receiver<String>,
    deaths: Deaths,
}

impl<'a> Crew<'a> {
    fn new(kafka: &'a Kafka, folder: &'a Path) -> Self {
        let (said, lines) = mpsc::channel();
        let group = Group::at(&kafka.bootstrap).unwrap();
        let (victims, leaving, deaths) = (Vec::new(), Vec::new(), Deaths::default());
        Self { kafka, folder, group, victims, leaving, started: 0, said, lines, deaths }
    }

    fn start(&mut self) {
        self.started += 1;
        let folder: PathBuf = self.folder.join(self.started.to_string());
        std::fs::create_dir(&folder).unwrap();
        let program = env!("CARGO_BIN_EXE_kafka-victim");
        let flags = [&*self.kafka.bootstrap];
        self.victims.push(Victim::telling(program, &folder, &flags, self.said.clone()));
    }

    /// Counts those that have ended. Whether some are left.
    fn count(&mut self) -> bool {
        for crew in [&mut self.victims, &mut self.leaving] {
            crew.retain_mut(|victim| match victim.ended() {
                Some(status) => {
                    self.deaths.count(status);
                    false
                }
                None => true,
            });
        }
        !self.victims.is_empty()
    }

    /// Replaces those that have ended.
    fn fill(&mut self) {
        self.count();
        while self.victims.len() < CREW {
            self.start();
        }
    }

    /// Waits until they have noted so many things.
    fn progress(&mut self, mut lines: usize) {
        let mut heard = Instant::now();
        while lines > 0 {
            match self.lines.recv_timeout(Duration::from_millis(100)) {
                Ok(_) => (lines, heard) = (lines - 1, Instant::now()),
                Err(RecvTimeoutError::Timeout) => {
                    assert!(heard.elapsed() < SILENCE, "they have said nothing for {SILENCE:?}");
                    if matches!(self.group.is_done(), Ok(true)) {
                        return;
                    }
                    // Those that killed themselves.
                    self.fill();
                }
                Err(RecvTimeoutError::Disconnected) => unreachable!("we can say something, too"),
            }
        }
    }

    /// Waits until partitions move.
    fn moves(&self) {
        let since = Instant::now();
        while self.group.is_stable().unwrap() {
            assert!(since.elapsed() < SILENCE, "nothing moves");
            sleep(Duration::from_millis(2));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_on_kafka_consumers_killed_during_rebalances_lose_nothing() {
    let Some(kafka) = Kafka::new(Kafka::one(), number("DLQ_KAFKA_MESSAGES", 10_000)).await else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let kills = number("DLQ_KAFKA_KILLS", 50);
    let found = tokio::task::block_in_place(|| kill(&kafka, folder.path(), kills));
    println!("{found}; {}", check(&kafka, folder.path()).await);
    println!("{}", kafka.copies().text());
}

fn kill(kafka: &Kafka, folder: &Path, kills: u64) -> String {
    let mut random = Random::new();
    let mut crew = Crew::new(kafka, folder);
    let turns = kills.div_ceil(AT_ONCE);
    // Two lines for a message; most of them die in the middle of the work.
    let most = kafka.messages() / turns;
    let (mut moving, mut told) = (0, 0);
    for turn in 0..turns {
        crew.fill();
        crew.progress(1 + random.below(most));
        // Somebody comes, and now and then somebody goes in good order.
        if turn % 4 == 3 {
            let victim = crew.victims.swap_remove(random.below(crew.victims.len() as u64));
            victim.signal("TERM");
            crew.leaving.push(victim);
            told += 1;
        }
        crew.start();
        crew.moves();
        sleep(Duration::from_millis(random.below(300) as u64));
        for _ in 0..AT_ONCE.min(crew.victims.len() as u64) {
            moving += u64::from(!crew.group.is_stable().unwrap());
            let victim = crew.victims.swap_remove(random.below(crew.victims.len() as u64));
            crew.deaths.count(victim.kill());
        }
    }
    let begun = Instant::now();
    while !matches!(crew.group.is_done(), Ok(true)) {
        crew.progress(100);
    }
    let ended = begun.elapsed();
    while crew.count() || !crew.leaving.is_empty() {
        assert!(begun.elapsed() - ended < SILENCE, "they do not come to their end");
        sleep(Duration::from_millis(20));
    }
    assert!(crew.deaths.killed * 2 > kills, "most of the kills missed: {}", crew.deaths);
    assert!(moving * 2 > kills, "only {moving} were killed while partitions moved");
    format!(
        "{}, {moving} of them while partitions moved, {told} told to stop, of {} in all",
        crew.deaths, crew.started
    )
}

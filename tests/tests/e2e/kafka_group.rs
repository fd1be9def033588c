//! `kill -9` of consumers of one group while its partitions are being shared out anew.
//!
//! | a process dies after | what is there | what happens |
//! |---|---|---|
//! | it fetched a message | the offset of the owner before | the next owner runs it |
//! | it handled the message | the same | it runs again |
//! | a retry record or a letter was confirmed | the record, and the same offset | a copy is written, and passed over by who reads |
//! | the offset was committed | the record and its offset | nothing |
//!
//! Who is told to stop commits before it leaves, so that there are copies of the dead only. While partitions move, the one
//! that dies may be before, in or after each of its own steps: saying what it did, giving up, joining, and saying that a
//! partition is its own.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::sleep;
use std::time::{Duration, Instant};

use dlq_tests::kafka::Group;
use dlq_tests::{JOURNAL, Journal, START};

use crate::kafka::{Copies, Kafka};
use crate::random::{Random, number};
use crate::victim::{Deaths, SILENCE, Victim};
use crate::world::{World as _, check};

/// How many consume at the same time.
const CREW: usize = 3;
/// How many die at a time.
const AT_ONCE: u64 = 2;

/// The processes of a group, each with a number and a folder of its own.
struct Crew<'a> {
    kafka: &'a Kafka,
    folder: &'a Path,
    group: Group,
    victims: Vec<(u32, Victim)>,
    /// Were told to stop.
    leaving: Vec<(u32, Victim)>,
    started: u32,
    say: Sender<u32>,
    said: Receiver<u32>,
    /// Who was at work last.
    last: u32,
    /// Who did not end in good order.
    dead: BTreeSet<u32>,
    deaths: Deaths,
}

impl<'a> Crew<'a> {
    fn new(kafka: &'a Kafka, folder: &'a Path) -> Self {
        let (say, said) = mpsc::channel();
        let group = Group::at(&kafka.bootstrap).unwrap();
        let (victims, leaving) = (Vec::new(), Vec::new());
        let (dead, deaths) = (BTreeSet::new(), Deaths::default());
        Self {
            kafka,
            folder,
            group,
            victims,
            leaving,
            started: 0,
            say,
            said,
            last: 0,
            dead,
            deaths,
        }
    }

    fn folder_of(&self, number: u32) -> PathBuf {
        self.folder.join(number.to_string())
    }

    fn start(&mut self) {
        self.started += 1;
        let (number, say) = (self.started, self.say.clone());
        std::fs::create_dir(self.folder_of(number)).unwrap();
        let program = env!("CARGO_BIN_EXE_kafka-victim");
        let flags = [&*self.kafka.bootstrap];
        let say = move |line: String| line.starts_with(START) || say.send(number).is_ok();
        let victim = Victim::telling(program, &self.folder_of(number), &flags, say);
        self.victims.push((number, victim));
    }

    fn count(&mut self, number: u32, status: ExitStatus) {
        self.deaths.count(status);
        if !status.success() {
            self.dead.insert(number);
        }
    }

    /// Counts those that have ended.
    fn look(&mut self) {
        let mut ended = Vec::new();
        for crew in [&mut self.victims, &mut self.leaving] {
            crew.retain_mut(|(number, victim)| {
                let status = victim.ended();
                ended.extend(status.map(|status| (*number, status)));
                status.is_none()
            });
        }
        for (number, status) in ended {
            self.count(number, status);
        }
    }

    /// Replaces those that have ended.
    fn fill(&mut self) {
        self.look();
        while self.victims.len() < CREW {
            self.start();
        }
    }

    fn is_done(&self) -> bool {
        matches!(self.group.left(), Ok(None))
    }

    /// Waits until they have noted so many things from now on, or nothing is left.
    fn progress(&mut self, mut lines: usize) {
        while self.said.try_recv().is_ok() {}
        let mut heard = Instant::now();
        while lines > 0 {
            match self.said.recv_timeout(Duration::from_millis(100)) {
                Ok(number) => (lines, heard, self.last) = (lines - 1, Instant::now(), number),
                Err(RecvTimeoutError::Timeout) => {
                    assert!(heard.elapsed() < SILENCE, "they have said nothing for {SILENCE:?}");
                    if self.is_done() {
                        return;
                    }
                    // Those that killed themselves.
                    self.fill();
                }
                Err(RecvTimeoutError::Disconnected) => unreachable!("we could say something, too"),
            }
        }
    }

    /// Tells whoever noted something last to stop. Whether it was still there.
    fn dismiss(&mut self) -> bool {
        let found = self.victims.iter().position(|(number, _)| *number == self.last);
        let Some(index) = found else { return false };
        let (number, mut victim) = self.victims.swap_remove(index);
        if let Some(status) = victim.ended() {
            self.count(number, status);
            return false;
        }
        victim.signal("TERM");
        self.leaving.push((number, victim));
        true
    }

    /// Another process comes: waits until partitions move, or have moved.
    fn moves(&mut self) {
        let (_, before) = self.standing();
        self.start();
        let since = Instant::now();
        while self.standing() == (true, before.clone()) {
            assert!(since.elapsed() < SILENCE, "nothing moves");
            sleep(Duration::from_millis(2));
        }
    }

    /// Whether nothing of the group moves, and its members.
    fn standing(&self) -> (bool, BTreeSet<String>) {
        let since = Instant::now();
        loop {
            match self.group.standing() {
                Ok(standing) => return standing,
                Err(error) => assert!(since.elapsed() < SILENCE, "{error}"),
            }
        }
    }

    /// Whether it was still there, and partitions moved.
    fn kill(&mut self, index: usize) -> bool {
        let (number, victim) = self.victims.swap_remove(index);
        let (before, moves) = (self.deaths.killed, !self.standing().0);
        let status = victim.kill();
        self.count(number, status);
        moves && self.deaths.killed > before
    }

    /// Waits until nothing is left, and all have ended.
    fn finish(&mut self) {
        while !self.is_done() {
            self.progress(100);
        }
        let since = Instant::now();
        while !self.victims.is_empty() || !self.leaving.is_empty() {
            assert!(since.elapsed() < SILENCE, "they do not come to their end");
            sleep(Duration::from_millis(20));
            self.look();
        }
    }

    /// A copy is there only where a process died that ran the message: what it wrote was not yet told to be done.
    fn explains(&self, copies: &Copies) {
        let mut cut_off = BTreeMap::<u64, usize>::new();
        for number in &self.dead {
            let journal = Journal::read(&self.folder_of(*number).join(JOURNAL)).unwrap();
            for entry in journal.into_iter().filter(|entry| entry.what == "run") {
                *cut_off.entry(entry.message).or_default() += 1;
            }
        }
        for (n, times) in copies.letters.iter().chain(&copies.hops) {
            let explained = cut_off.get(n).copied().unwrap_or_default();
            assert!(times - 1 <= explained, "message {n} was written {times} times");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_on_kafka_consumers_killed_during_rebalances_lose_nothing() {
    let kills = number("DLQ_KAFKA_KILLS", 50);
    // Enough that there is work in flight at the last.
    let messages = number("DLQ_KAFKA_MESSAGES", (60 * kills).max(10_000));
    let Some(kafka) = Kafka::new(Kafka::one(), messages).await else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut crew = Crew::new(&kafka, folder.path());
    let done = tokio::task::block_in_place(|| run_with_kills(&mut crew, kills));
    let found = check(&kafka, folder.path()).await;
    let copies = kafka.copies();
    println!("{done}; {found}; {copies}");
    crew.explains(&copies);
}

/// Kills so many, and lets the others come to their end.
fn run_with_kills(crew: &mut Crew<'_>, kills: u64) -> String {
    let mut random = Random::new();
    // Two lines for a message; so most of them die in the middle of the work.
    let most = (AT_ONCE * crew.kafka.messages() / kills.max(1)).max(1);
    let (mut turn, mut moving, mut dismissed) = (0, 0, 0);
    while crew.deaths.killed < kills {
        turn += 1;
        crew.fill();
        crew.progress(1 + random.below(most));
        // Somebody comes, and now and then somebody goes in good order.
        if turn % 4 == 0 {
            dismissed += u32::from(crew.dismiss());
        }
        crew.moves();
        sleep(Duration::from_millis(random.below(300) as u64));
        for _ in 0..AT_ONCE {
            let index = random.below(crew.victims.len() as u64);
            moving += u64::from(crew.kill(index));
        }
    }
    crew.finish();
    let Crew { deaths, started, .. } = crew;
    assert!(moving * 2 > kills, "only {moving} were killed while partitions moved");
    assert_eq!(deaths.refused, 0, "{dismissed} were told to stop, and end in good order");
    format!("{deaths}, {moving} while partitions moved; {dismissed} told to stop; {started} in all")
}

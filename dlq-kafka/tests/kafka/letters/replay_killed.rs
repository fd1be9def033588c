//! A replay whose process dies, or is stopped for a while, wherever it is, and the next one.

use std::collections::BTreeSet;
use std::env;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use dlq_core::Filter;
use dlq_core::Status;
use futures_util::future::join_all;
use tokio::time::timeout;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::fixture_reading::Look as _;
use crate::fixture_replay::{PATIENCE, Shop, broker, run, to_origin};

pub(super) const LETTERS: u32 = 8;
/// So that they come in transactions of four.
pub(super) const RATE: u32 = 16;
/// The step at which it commits the last of them.
pub(super) const LAST_COMMIT: u32 = 13;
/// How many are killed beside one another: they wait for the broker most of the time.
const AT_ONCE: u32 = 4;
const CHILD: &str = "letters::replay_killed::the_process_that_is_killed";

/// Sends a signal at the n-th step of a replay.
struct Signal {
    at: u32,
    signal: String,
    /// To which process.
    whom: u32,
    /// After how long, so that it falls into what the step does.
    after: Duration,
    seen: AtomicU32,
    last: Mutex<String>,
}

impl Subscriber for Signal {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let is_of = |module| metadata.target().starts_with(module);
        (is_of("dlq_kafka::dead::replay") || is_of("dlq_kafka::dead::session"))
            && *metadata.level() == tracing::Level::TRACE
    }

    fn event(&self, event: &Event<'_>) {
        struct Text(String);
        impl Visit for Text {
            fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
                if field.name() == "message" {
                    self.0 = format!("{value:?}");
                }
            }
        }
        if self.seen.fetch_add(1, Ordering::SeqCst) + 1 != self.at {
            return;
        }
        let mut text = Text(String::new());
        event.record(&mut text);
        println!("\nstep: {}", text.0);
        *self.last.lock().unwrap() = text.0;
        let (signal, id, after) = (self.signal.clone(), self.whom.to_string(), self.after);
        let send = move || {
            // Spun and not slept: a sleep is too coarse to fall into a commit.
            let until = Instant::now() + after;
            while Instant::now() < until {
                std::hint::spin_loop();
            }
            Command::new("kill").args([&signal, &id]).status().unwrap();
        };
        if after.is_zero() {
            send();
        } else {
            std::thread::spawn(send);
        }
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// What the others start, and kill.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_process_that_is_killed() {
    let Ok(told) = env::var("DLQ_KAFKA_CHILD") else { return };
    let [url, name, at, signal, after, whom] =
        told.split(' ').collect::<Vec<_>>().try_into().unwrap();
    let after = Duration::from_micros(after.parse().unwrap());
    let (signal, seen) = (signal.to_owned(), AtomicU32::new(0));
    let whom = match whom.parse().unwrap() {
        0 => std::process::id(),
        whom => whom,
    };
    let (at, last) = (at.parse().unwrap(), Mutex::default());
    let steps = Signal { at, signal, whom, after, seen, last };
    tracing::subscriber::set_global_default(steps).unwrap();
    let letters = Shop::at(url.to_owned(), name).letters();
    let report = run(to_origin(&letters, 1).rate(RATE)).await;
    println!("\nended: {}", report.sent);
}

/// Starts it; it sends this signal at this step, to itself (0) or another process.
pub(super) fn start(url: &str, name: &str, at: u32, signal: &str, after: u32, whom: u32) -> Child {
    Command::new(env::current_exe().unwrap())
        .args(["--exact", CHILD, "--nocapture", "--test-threads=1"])
        .env("DLQ_KAFKA_CHILD", format!("{url} {name} {at} {signal} {after} {whom}"))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// What it said of itself: the step it came to, and how many it sent if it came to the end.
fn said(output: &[u8]) -> (Option<String>, Option<u64>) {
    let text = String::from_utf8_lossy(output);
    let after =
        |word: &str| text.lines().find_map(|line| Some(line.strip_prefix(word)?.to_owned()));
    (after("step: "), after("ended: ").map(|sent| sent.parse().unwrap()))
}

async fn fresh(name: &str) -> Option<Shop> {
    let shop = Shop::open(name).await?;
    shop.bury(&shop.dead(0..LETTERS)).await;
    Some(shop)
}

/// Sends the rest, and makes sure that each was sent once.
pub(super) async fn finish(shop: &Shop, by_the_dead: &str) -> u64 {
    let letters = shop.letters();
    let report = run(to_origin(&letters, 2)).await;
    assert_eq!((report.failed, report.doubtful), (0, 0), "{by_the_dead}: {report}");
    shop.assert_once(0..LETTERS).await;
    let sent = Filter::new().with_status(Status::Sent);
    assert_eq!(letters.count(sent).await.unwrap(), u64::from(LETTERS), "{by_the_dead}");
    let again = run(to_origin(&letters, 3)).await;
    assert_eq!(again.sent, 0, "{by_the_dead}: {again}");
    report.sent
}

/// What became of a replay that was killed.
struct Killed {
    /// Where it was killed, if it was.
    step: Option<String>,
    /// How many it said that it sent, if it came to its end.
    ended: Option<u64>,
    /// How many the next one sent.
    rest: u64,
}

/// Kills one at this step, so many microseconds into it, and lets the next one send the rest.
async fn killed(url: &str, name: String, at: u32, after: u32) -> Killed {
    let shop = fresh(&name).await.unwrap();
    let child = start(url, &name, at, "-KILL", after, 0);
    let waiting = tokio::task::spawn_blocking(|| child.wait_with_output().unwrap());
    let output = waiting.await.unwrap();
    let (step, ended) = said(&output.stdout);
    assert!(ended.is_some() || !output.status.success());
    let rest = finish(&shop, &format!("killed {after} us after {step:?}")).await;
    Killed { step, ended, rest }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_killed_at_any_step_each_letter_arrives_once() {
    let Some(url) = broker() else { return };
    let (mut steps, mut rest, mut at) = (BTreeSet::new(), BTreeSet::new(), 1);
    let mut has_ended = false;
    while !has_ended {
        let some = (at..at + AT_ONCE).map(|at| killed(&url, format!("killed-{at}"), at, 0));
        for round in join_all(some).await {
            rest.insert(round.rest);
            match round.ended {
                Some(sent) => assert_eq!((sent, round.step), (u64::from(LETTERS), None)),
                None => _ = steps.insert(round.step.expect("it said where it was killed")),
            }
            has_ended |= round.ended.is_some();
        }
        at += AT_ONCE;
    }
    // Otherwise a change of the traced steps would leave kills out without a word.
    assert!(steps.len() >= 6, "it has as many kinds of steps: {steps:?}");
    assert_eq!(rest, BTreeSet::from([0, 4, 8]), "none, one or both transactions were committed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_killed_while_it_commits_each_letter_arrives_once() {
    let Some(url) = broker() else { return };
    for first in [0, AT_ONCE] {
        let some = (first..first + AT_ONCE).map(|round| {
            killed(&url, format!("killed-committing-{round}"), LAST_COMMIT, 1 + round * 1_000)
        });
        for Killed { step, rest, .. } in join_all(some).await {
            assert!(
                step.as_ref().is_some_and(|step| step.contains("is to be committed")),
                "{step:?}"
            );
            assert!(rest == 0 || rest == 4, "all of a transaction or none: {rest}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_stopped_at_any_step_it_sends_nothing_twice() {
    let Some(url) = broker() else { return };
    join_all([3, 5, 8, 9, 13].map(|at| stopped(&url, at))).await;
}

/// Stops one at this step, lets the next one send the rest, and lets the first go on.
async fn stopped(url: &str, at: u32) {
    let name = format!("stopped-{at}");
    let shop = fresh(&name).await.unwrap();
    let child = start(url, &name, at, "-STOP", 0, 0);
    let id = child.id();
    // Asked of the system, since a stopped process says nothing any more.
    let is_stopped = || {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap();
        stat.rsplit_once(')').unwrap().1.trim_start().starts_with('T')
    };
    let until = Instant::now() + PATIENCE;
    while !is_stopped() {
        assert!(Instant::now() < until, "process {id} stops");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let rest = finish(&shop, &format!("stopped at step {at}")).await;
    Command::new("kill").args(["-CONT", &id.to_string()]).status().unwrap();
    let ending = tokio::task::spawn_blocking(|| child.wait_with_output().unwrap());
    let ended = timeout(PATIENCE, ending).await.expect("it ends when it goes on").unwrap();
    let (_, sent) = said(&ended.stdout);
    assert_eq!(sent, Some(u64::from(LETTERS) - rest), "it says what it sent; stopped at {at}");
    shop.assert_once(0..LETTERS).await;
}

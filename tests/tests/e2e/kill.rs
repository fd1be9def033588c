//! `kill -9` at random, many times: every message either succeeded or has exactly one letter.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use dlq_sql::sqlite::SqliteStore;
use dlq_tests::{CONSUMER, Journal, KILLER, Kind, MESSAGES, kind};
use dlq_tower::core::store::{Actor, ItemOutcome, Letters as _, OperationSpec, OperationState};
use dlq_tower::core::{
    DeadLetter, DeadLetters, Filter, PageRequest, Position, Reason, Resolution, Status,
};

use crate::victim::Victim;

/// A generator of numbers: xorshift (Marsaglia, 2003).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound).unwrap()
    }
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

/// Kills it so many times after a random progress, then lets it come to its end. Returns how often it died.
fn run_with_kills(
    folder: &Path,
    flags: &[&str],
    kills: u64,
    most: u64,
    random: &mut Random,
) -> u64 {
    let mut deaths = 0;
    for _ in 0..kills {
        let mut victim = Victim::start(folder, flags);
        victim.progress(random.below(most));
        victim.kill();
        deaths += 1;
    }
    // It still kills itself now and then.
    for _ in 0..20 {
        let (report, status) = Victim::start(folder, flags).end();
        if status.success() {
            return deaths;
        }
        assert_eq!(status.code(), None, "it ended by itself: {report}");
        deaths += 1;
    }
    panic!("it does not come to its end");
}

/// Every letter by message.
async fn letters(store: &SqliteStore) -> BTreeMap<u64, Vec<DeadLetter>> {
    let mut found: BTreeMap<u64, Vec<DeadLetter>> = BTreeMap::new();
    let all = store.list(Filter::new(), PageRequest::new().with_limit(10_000)).await.unwrap();
    for summary in all.letters {
        let letter = store.get(summary.id).await.unwrap().unwrap();
        let Position::Offset(n) = letter.origin.position() else { panic!("{}", letter.origin) };
        found.entry(n).or_default().push(letter);
    }
    found
}

#[tokio::test]
async fn g1_every_message_succeeds_or_has_exactly_one_letter() {
    let seed = number("DLQ_E2E_SEED", 7);
    let kills = number("DLQ_E2E_KILLS", 25);
    let mut random = Random(seed.max(1));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();

    let deaths = run_with_kills(path, &[], kills, 40, &mut random);
    let store = SqliteStore::open(path.join("dlq.db")).await.unwrap();
    let succeeded: BTreeSet<u64> =
        Journal::read(&path.join("work.journal"), "ok").unwrap().into_iter().collect();
    let runs = Journal::read(&path.join("work.journal"), "run").unwrap();
    let dead = letters(&store).await;

    for n in 0..MESSAGES {
        let found = dead.get(&n).map_or(&[][..], Vec::as_slice);
        let ran = runs.iter().filter(|run| **run == n).count() as u64;
        match kind(n) {
            Kind::Good | Kind::Flaky => {
                assert!(succeeded.contains(&n) && found.is_empty(), "message {n}: {found:?}");
            }
            other => {
                assert!(!succeeded.contains(&n), "message {n}");
                let [letter] = found else { panic!("message {n} has {} letters", found.len()) };
                assert_eq!((letter.consumer.as_str(), letter.generation), (CONSUMER, 0));
                assert_eq!(letter.state.status, Status::Pending);
                let reason = match other {
                    Kind::Kills => Reason::MaxCrashes,
                    Kind::Down => Reason::Exhausted,
                    _ => Reason::Permanent,
                };
                assert_eq!(letter.reason, reason, "message {n}: {letter:?}");
            }
        }
        // Only a run that was cut off, or whose end was not recorded, is made again.
        let expected = match kind(n) {
            Kind::Good | Kind::Permanent | Kind::Panics => 1,
            Kind::Flaky => 2,
            Kind::Down => 3,
            Kind::Kills => 5,
        };
        assert!(
            (1..=expected + deaths).contains(&ran),
            "message {n} ran {ran} times, {deaths} deaths"
        );
    }
    let total = runs.len() as u64;
    let repeated = total
        - (0..MESSAGES)
            .map(|n| match kind(n) {
                Kind::Flaky => 2,
                Kind::Down => 3,
                Kind::Kills => 5,
                _ => 1,
            })
            .sum::<u64>()
            .min(total);
    // What was in hand when it died is all that may have been repeated.
    assert!(repeated <= deaths * 32, "{repeated} runs were repeated after {deaths} deaths");
    let findings = store.check().await.unwrap();
    assert!(findings.is_empty(), "{findings:?}");
    println!(
        "{MESSAGES} messages, {deaths} deaths: {} succeeded, {} letters, {total} runs, {repeated} of them repeated, none lost",
        succeeded.len(),
        dead.len()
    );

    replay_what_was_down(path, &store, &mut random).await;
}

/// The other side is repaired; an operator sends back what it had refused, and the consumer is killed meanwhile.
async fn replay_what_was_down(path: &Path, store: &SqliteStore, random: &mut Random) {
    let letters_of = DeadLetters::new(store.clone());
    let spec = OperationSpec::replay(Filter::new().with_reason(Reason::Exhausted));
    let operation =
        letters_of.replay(spec, Actor::new("test").with_note("repaired")).await.unwrap();
    let down = (0..MESSAGES).filter(|n| kind(*n) == Kind::Down).count() as u64;
    assert_eq!(operation.progress.total, down);

    let deaths = run_with_kills(path, &["--repaired", "--slow"], 3, 2, random);
    let operation = letters_of.operation(operation.id).await.unwrap();
    assert_eq!(operation.state, OperationState::Completed);
    assert_eq!(operation.progress.with_outcome(ItemOutcome::Succeeded), down);
    let succeeded = Journal::read(&path.join("work.journal"), "ok").unwrap();
    for (n, found) in letters(store).await {
        let [letter] = found.as_slice() else { panic!("message {n} has {} letters", found.len()) };
        if kind(n) != Kind::Down {
            assert_eq!(letter.state.status, Status::Pending, "message {n}");
            continue;
        }
        assert_eq!(letter.state.status, Status::Resolved, "message {n}");
        let how = letter.state.resolution;
        assert!(
            matches!(how, Some(Resolution::Succeeded | Resolution::Duplicate)),
            "message {n}: {how:?}"
        );
        let times = succeeded.iter().filter(|ok| **ok == n).count() as u64;
        assert!((1..=1 + deaths).contains(&times), "message {n} succeeded {times} times");
    }
    assert!(store.check().await.unwrap().is_empty());
    println!("{down} letters sent back, {deaths} deaths: all resolved");
}

#[test]
fn the_feed_has_every_kind() {
    let kinds = |wanted| (0..MESSAGES).filter(|n| kind(*n) == wanted).count();
    let all = [Kind::Good, Kind::Flaky, Kind::Permanent, Kind::Down, Kind::Panics, Kind::Kills]
        .map(kinds);
    assert!(all.iter().all(|count| *count > 0), "{all:?}");
    assert_eq!(kind(KILLER), Kind::Kills);
}

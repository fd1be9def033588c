//! `kill -9` at random, many times: every message either succeeded or has exactly one letter.

use std::collections::BTreeMap;
use std::path::Path;

use dlq_sql::sqlite::SqliteStore;
use dlq_tests::{
    CONSUMER, FORGOTTEN, JOURNAL, Journal, KILLER, Kind, MAX_CRASHES, MESSAGES, STORE, kind,
};
use dlq_tower::core::store::{Actor, ItemOutcome, Letters as _, OperationSpec, OperationState};
use dlq_tower::core::{
    DeadLetter, DeadLetters, Filter, PageRequest, Position, Reason, Resolution, Status,
};

use crate::history::History;
use crate::random::{Random, number};
use crate::victim::{Deaths, Victim};

/// Kills it so many times, each after a random progress of fewer than `most` lines, then lets it come to its end.
fn run_with_kills(
    folder: &Path,
    flags: &[&str],
    kills: u64,
    most: u64,
    random: &mut Random,
) -> Deaths {
    let mut deaths = Deaths::default();
    for _ in 0..kills {
        let victim = Victim::start(folder, flags);
        victim.progress(1 + random.below(most));
        deaths.count(victim.kill());
    }
    // It still kills itself now and then.
    for _ in 0..20 {
        let (_, status) = Victim::start(folder, flags).end();
        deaths.count(status);
        if status.success() {
            return deaths;
        }
    }
    panic!("it does not come to its end");
}

/// Every letter by message.
async fn letters(store: &SqliteStore) -> BTreeMap<u64, Vec<DeadLetter>> {
    let mut found: BTreeMap<u64, Vec<DeadLetter>> = BTreeMap::new();
    let all = store.list(Filter::new(), PageRequest::new().limit(10_000)).await.unwrap();
    for summary in all.letters {
        let letter = store.get(summary.id).await.unwrap().unwrap();
        let &Position::Offset(n) = letter.origin.position() else { panic!("{}", letter.origin) };
        found.entry(n).or_default().push(letter);
    }
    found
}

/// Runs that a message takes when nothing interrupts it.
fn undisturbed(kind: Kind) -> u64 {
    match kind {
        Kind::Good | Kind::Permanent | Kind::Panics => 1,
        Kind::Flaky => 2,
        Kind::Down => 3,
        Kind::Kills => u64::from(MAX_CRASHES),
    }
}

#[tokio::test]
async fn g1_every_message_succeeds_or_has_exactly_one_letter() {
    let mut random = Random::new();
    let kills = number("DLQ_E2E_KILLS", 25);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();

    let deaths = run_with_kills(path, &[], kills, 120, &mut random);
    assert!(deaths.killed * 2 > kills, "most of the kills missed: {deaths}");
    let store = SqliteStore::open(path.join(STORE)).await.unwrap();
    let history = History::of(path, 0);
    let repeated = history.no_run_after_success();
    let dead = letters(&store).await;
    let mut succeeded = 0;
    for n in 0..MESSAGES {
        let found = dead.get(&n).map_or(&[][..], Vec::as_slice);
        let (runs, cut_off) = (history.count("run", n), history.cut_off(n));
        let kind = kind(n);
        assert!(runs > 0, "message {n} did not run");
        match kind {
            Kind::Kills => assert!(runs <= undisturbed(kind), "message {n} ran {runs} times"),
            _ => history.runs_at_most(n, undisturbed(kind)),
        }
        let is_handled = history.count("ok", n) > 0;
        if matches!(kind, Kind::Good | Kind::Flaky) {
            assert!(is_handled && found.is_empty(), "message {n}: {found:?}");
            succeeded += 1;
            continue;
        }
        assert!(!is_handled, "message {n}");
        let [letter] = found else { panic!("message {n} has {} letters", found.len()) };
        assert_eq!((letter.consumer.as_str(), letter.generation), (CONSUMER, 0));
        assert_eq!(letter.state.status, Status::Pending);
        let reason = match kind {
            Kind::Kills => Reason::MaxCrashes,
            Kind::Down => Reason::Exhausted,
            _ => Reason::Permanent,
        };
        assert_eq!(letter.reason, reason, "message {n}: {letter:?}");
        // The letter tells of every run that failed in the life that wrote it.
        let told = letter.history.len();
        assert!(told <= runs && (cut_off > 0 || told == runs), "message {n}: {told} of {runs}");
    }
    check(&store).await;
    println!(
        "{MESSAGES} messages, {deaths}: {succeeded} succeeded, {} letters, {} runs, {repeated} succeeded twice, none lost",
        dead.len(),
        history.total("run"),
    );

    replay_what_was_down(path, &store, &mut random, history.length()).await;
    hand_everything_out_again(path, &store, &mut random).await;
}

/// The other side is repaired; an operator sends back what it had refused, and the consumer is killed meanwhile.
async fn replay_what_was_down(
    path: &Path,
    store: &SqliteStore,
    random: &mut Random,
    before: usize,
) {
    let letters_of = DeadLetters::new(store.clone());
    let spec = OperationSpec::replay(Filter::new().with_reason(Reason::Exhausted));
    let operation =
        letters_of.replay(spec, Actor::new("test").with_note("repaired")).await.unwrap();
    let down = (0..MESSAGES).filter(|n| kind(*n) == Kind::Down).count() as u64;
    assert_eq!(operation.progress.total, down);

    let deaths = run_with_kills(path, &["--repaired", "--slow"], 5, 2 * down / 3, random);
    assert!(deaths.killed > 0, "the kills missed: {deaths}");
    let operation = letters_of.operation(operation.id).await.unwrap();
    assert_eq!(operation.state, OperationState::Completed);
    assert_eq!(operation.progress.with_outcome(ItemOutcome::Succeeded), down);
    let history = History::of(path, before);
    let repeated = history.no_run_after_success();
    for (n, found) in letters(store).await {
        let [letter] = found.as_slice() else { panic!("message {n} has {} letters", found.len()) };
        if kind(n) != Kind::Down {
            assert_eq!(letter.state.status, Status::Pending, "message {n}");
            assert_eq!(history.count("run", n), 0, "message {n} was not sent back");
            continue;
        }
        assert_eq!(letter.state.status, Status::Resolved, "message {n}");
        let how = letter.state.resolution;
        assert!(
            matches!(how, Some(Resolution::Succeeded | Resolution::Duplicate)),
            "message {n}: {how:?}"
        );
        let times = history.count("ok", n);
        assert!((1..=1 + history.cut_off(n)).contains(&times), "message {n} ran {times} times");
    }
    check(store).await;
    println!("{down} letters sent back, {deaths}: all resolved, {repeated} succeeded twice");
}

/// The broker forgets what was acknowledged: what was handled is not run again, and what died keeps its one letter.
async fn hand_everything_out_again(path: &Path, store: &SqliteStore, random: &mut Random) {
    let known = letters(store).await;
    let before = History::of(path, 0);
    Journal::open(&path.join(JOURNAL)).unwrap().note(FORGOTTEN, 0).unwrap();
    let deaths = run_with_kills(path, &["--repaired"], 5, 120, random);
    let history = History::of(path, before.length());
    for n in 0..MESSAGES {
        assert!(history.count("ack", n) > 0, "message {n} was not settled");
        let was_handled = before.count("ok", n) > 0;
        let runs = history.count("run", n);
        assert!(!was_handled || runs == 0, "message {n} was handled, and ran {runs} times more");
    }
    let found = letters(store).await;
    assert!(found.keys().eq(known.keys()));
    assert!(found.values().all(|letters| letters.len() == 1));
    check(store).await;
    println!(
        "handed out again, {deaths}: {} runs, no second letter, nothing handled twice",
        history.total("run")
    );
}

async fn check(store: &SqliteStore) {
    assert_eq!(store.verify().await.unwrap(), Vec::<String>::new());
}

#[test]
fn the_feed_has_every_kind() {
    let kinds = |wanted| (0..MESSAGES).filter(|n| kind(*n) == wanted).count();
    let all = [Kind::Good, Kind::Flaky, Kind::Permanent, Kind::Down, Kind::Panics, Kind::Kills]
        .map(kinds);
    assert!(all.iter().all(|count| *count > 0), "{all:?}");
    assert_eq!(kind(KILLER), Kind::Kills);
}

//! Letters are sent back as often as they should be, and the report says so.

use std::future::{pending, ready};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dlq_core::replay::{ReplayOutcome, Skipped};
use dlq_core::store::Letters;
use dlq_core::{ErrorClass, Filter, LetterId, PageRequest, Status};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{BrokerFixture, Check, ReplaySpec, ReplayTarget};
use crate::fixtures::died_again;

use ReplayTarget::Origin;

/// The letters that were sent.
fn sent() -> Filter {
    Filter::new().with_status(Status::Sent)
}

/// A death that was sent back is not sent again, whoever asks, and reads as `sent` (G6).
pub async fn g6_what_was_sent_is_not_sent_again<F: BrokerFixture>(check: Check<F>) {
    let letters = check.bury(0..10).await;
    assert_eq!(check.run(ReplaySpec::to_origin(1).limit(4)).await.sent, 4);
    // From here on only the ledger keeps a letter from being sent twice.
    check.fixture.forget().await;
    assert_eq!(letters.count(sent()).await.expect("letters are counted"), 4);
    let stats = letters.stats(Filter::new()).await.expect("letters are counted");
    assert_eq!((stats.with_status(Status::Sent), stats.with_status(Status::Pending)), (4, 6));
    let report = check.run(ReplaySpec::to_origin(2)).await;
    assert_eq!((report.sent, report.skipped[&Skipped::Sent]), (6, 4));
    check.fixture.forget().await;
    let report = check.run(ReplaySpec::to_origin(3)).await;
    assert_eq!((report.sent, report.skipped[&Skipped::Sent]), (0, 10));
    check.assert_once(Origin, 0..10).await;
    let page = letters.list(sent(), PageRequest::new()).await.expect("letters are listed");
    assert_eq!(page.letters.len(), 10);
    assert!(page.letters.iter().all(|l| (l.state.replays, l.state.retry_count) == (1, 1)));
}

/// Two replays of the same letters at once send each of them once, and neither waits for the other to be done (G6).
pub async fn g6_two_at_once_send_each_letter_once<F: BrokerFixture>(check: Check<F>) {
    const MANY: u32 = 1_200;
    let (one, two) = (check.bury(0..MANY).await, check.fixture.letters());
    // Both have read before either begins.
    let counts = (one.count(Filter::new()).await, two.count(Filter::new()).await);
    assert_eq!((counts.0.expect("it counts"), counts.1.expect("it counts")), (1_200, 1_200));
    // So slowly that neither is done before the other has begun.
    let first = check.fixture.replay(&one, ReplaySpec::to_origin(1).rate(600));
    let second = check.fixture.replay(&two, ReplaySpec::to_origin(2).rate(600));
    let (first, second) =
        tokio::join!(F::run(&first, pending(), |_, _| {}), F::run(&second, pending(), |_, _| {}));
    let (first, second) = (first.expect("a replay is run"), second.expect("a replay is run"));
    assert!(first.is_complete() && second.is_complete(), "{first}; {second}");
    assert_eq!(first.sent + second.sent, u64::from(MANY), "{first}; {second}");
    check.assert_once(Origin, 0..MANY).await;
}

/// A cancelled replay stops soon, has marked what it sent and left the rest to the next one, which waits for nobody (G6).
pub async fn g6_cancelling_stops_at_once<F: BrokerFixture>(check: Check<F>) {
    const MANY: u32 = 300;
    let letters = check.bury(0..MANY).await;
    let (cancel, told) = (CancellationToken::new(), AtomicU64::new(0));
    // So slow that little is on its way, also where confirmations are late.
    let spec = ReplaySpec::to_origin(1).rate(50).lease(Duration::from_secs(3_600));
    let replay = check.fixture.replay(&letters, spec);
    let report = F::run(&replay, cancel.cancelled(), |_, outcome| {
        assert!(matches!(outcome, ReplayOutcome::Sent), "{outcome:?}");
        if told.fetch_add(1, Ordering::SeqCst) + 1 == 20 {
            cancel.cancel();
        }
    });
    let report = report.await.expect("a replay is run");
    assert_eq!(report.sent, told.load(Ordering::SeqCst));
    assert!((20..150).contains(&report.sent), "what was on its way still arrives: {report}");
    assert_eq!(report.sent + report.left, u64::from(MANY), "{report}");
    assert!(!report.is_complete() && report.stopped.is_none(), "{report}");
    assert_eq!(check.sent_to(Origin).await.len() as u64, report.sent);
    let marked = letters.count(sent()).await.expect("letters are counted");
    assert_eq!(marked, report.sent, "all of them are marked");
    let rest = check.run(ReplaySpec::to_origin(2)).await;
    assert_eq!(rest.sent, report.left);
    check.assert_once(Origin, 0..MANY).await;
}

/// A replay that is cancelled before it begins sends nothing.
pub async fn g6_what_has_not_begun_does_not_begin<F: BrokerFixture>(check: Check<F>) {
    let letters = check.bury(0..5).await;
    let replay = check.fixture.replay(&letters, ReplaySpec::to_origin(1));
    let report = F::run(&replay, ready(()), |_, _| {}).await.expect("a replay is run");
    assert_eq!((report.sent, report.left), (0, 5), "{report}");
    check.assert_once(Origin, []).await;
    assert_eq!(letters.count(sent()).await.expect("letters are counted"), 0);
}

/// Copies of a death are sent once, also when another one comes later (G6).
pub async fn g6_copies_of_a_death_are_sent_once<F: BrokerFixture>(check: Check<F>) {
    for _ in 0..3 {
        check.bury_in_order(check.dead(0..4)).await;
    }
    assert_eq!(check.run(ReplaySpec::to_origin(1)).await.sent, 4);
    check.fixture.forget().await;
    check.bury(0..4).await;
    let report = check.run(ReplaySpec::to_origin(2)).await;
    assert_eq!((report.sent, report.skipped[&Skipped::Sent]), (0, 4));
    check.assert_once(Origin, 0..4).await;
}

/// A letter that was sent back as often as the cap allows is skipped; the cap can be another, or none (G7).
pub async fn g7_a_letter_at_the_cap_is_not_sent<F: BrokerFixture>(check: Check<F>) {
    let mut dead = check.dead(0..3);
    dead[1].state.replays = 9;
    dead[2].state.replays = 10;
    check.fixture.bury(dead).await;
    let report = check.run(ReplaySpec::to_origin(1)).await;
    assert_eq!((report.sent, report.skipped[&Skipped::MaxReplays]), (2, 1));
    check.assert_once(Origin, 0..2).await;
    let report = check.run(ReplaySpec::to_origin(2).again().cap(2)).await;
    assert_eq!((report.sent, report.skipped[&Skipped::MaxReplays]), (1, 2));
    assert_eq!(check.run(ReplaySpec::to_origin(3).cap(0)).await.sent, 1);
    assert_eq!(check.sent_to(Origin).await["2"], 1);
}

/// A letter that died again after it was sent back is pending, can be sent again, and knows how often it was.
pub async fn a_death_after_a_replay_is_news<F: BrokerFixture>(check: Check<F>) {
    let letters = check.bury(0..3).await;
    assert_eq!(check.run(ReplaySpec::to_origin(1)).await.sent, 3);
    let mut again = died_again(&check.dead([1])[0]);
    again.state.replays = 1;
    check.fixture.bury(vec![again.clone()]).await;
    let found = letters.get(again.id).await.expect("a letter is shown").expect("it is there");
    let state = (found.generation, found.state.status, found.state.replays);
    assert_eq!(state, (1, Status::Pending, 1));
    let report = check.run(ReplaySpec::to_origin(2)).await;
    assert_eq!((report.sent, report.skipped[&Skipped::Sent]), (1, 2));
    let arrived = check.fixture.arrived(Origin).await;
    let counts: Vec<_> = arrived.iter().filter(|arrived| arrived.text() == "1").collect();
    let counts: Vec<_> = counts.iter().map(|arrived| arrived.header("replay.count")).collect();
    assert_eq!(counts, [Some("1"), Some("2")]);
    let found = letters.get(again.id).await.expect("a letter is shown").expect("it is there");
    assert_eq!((found.state.status, found.state.replays), (Status::Sent, 2));
}

/// Letters are sent in the order in which they died, so that a limit takes the oldest.
pub async fn the_oldest_are_sent_first<F: BrokerFixture>(check: Check<F>) {
    // One key, so that they stand in one partition where the broker has them.
    let mut dead = check.dead((0..20).rev());
    for letter in &mut dead {
        letter.message = letter.message.clone().with_key("customer-7");
    }
    let letters: Vec<LetterId> = dead.iter().map(|letter| letter.id).collect();
    check.bury_in_order(dead).await;
    let mut told = Vec::new();
    for operation in [1, 2] {
        let spec = ReplaySpec::to_origin(operation).limit(operation * 8);
        let replay = check.fixture.replay(&check.fixture.letters(), spec);
        let report = F::run(&replay, pending(), |id, outcome| {
            if matches!(outcome, ReplayOutcome::Sent) {
                told.push(id);
            }
        });
        assert!(report.await.expect("a replay is run").is_complete());
        // Answers come in any order, so that it counts which letters went, and not when.
        let (mut first, mut wanted) = (told.clone(), letters[..told.len()].to_vec());
        first.sort_unstable();
        wanted.sort_unstable();
        assert_eq!(first, wanted, "the oldest");
    }
    assert_eq!(told.len(), 20);
    let arrived: Vec<String> =
        check.fixture.arrived(Origin).await.iter().map(super::Arrived::text).collect();
    let wanted: Vec<String> = (0..20).rev().map(|number| number.to_string()).collect();
    assert_eq!(arrived, wanted, "they arrive in their order");
}

/// No more letters are sent in a second than asked for.
pub async fn a_rate_is_kept<F: BrokerFixture>(check: Check<F>) {
    let letters = check.bury(0..30).await;
    let replay = check.fixture.replay(&letters, ReplaySpec::to_origin(1).rate(20));
    let (began, mut times) = (Instant::now(), Vec::new());
    let report = F::run(&replay, pending(), |_, _| times.push(began.elapsed()));
    assert_eq!(report.await.expect("a replay is run").sent, 30);
    // Some brokers send what is due in a quarter of a second together.
    let all = times.last().copied().unwrap_or_default();
    assert!(all >= Duration::from_millis(1_000), "30 letters took {all:?}");
    check.assert_once(Origin, 0..30).await;
}

/// On purpose a letter is sent once more, and once by each operation, however often that is run.
pub async fn a_letter_is_sent_again_on_purpose_and_once_by_each_operation<F: BrokerFixture>(
    check: Check<F>,
) {
    let letters = check.bury(0..3).await;
    assert_eq!(check.run(ReplaySpec::to_origin(1)).await.sent, 3);
    for _ in 0..2 {
        let _ = check.run(ReplaySpec::to_origin(2).again()).await;
        check.fixture.forget().await;
    }
    let times = check.sent_to(Origin).await;
    assert!(times.len() == 3 && times.values().all(|times| *times == 2), "{times:?}");
    let one = check.dead([1])[0].id;
    let found = letters.get(one).await.expect("a letter is shown").expect("it is there");
    assert_eq!((found.state.replays, found.state.status), (2, Status::Sent));
    let arrived = check.fixture.arrived(Origin).await;
    let second = arrived.iter().filter(|arrived| arrived.header("replay.count") == Some("2"));
    assert_eq!(second.count(), 3);
}

/// A letter that does not match is neither planned nor sent.
pub async fn a_filter_says_which<F: BrokerFixture>(check: Check<F>) {
    let mut dead = check.dead(0..20);
    for letter in &mut dead[5..8] {
        letter.class = ErrorClass::Permanent;
    }
    check.fixture.bury(dead).await;
    let some = ReplaySpec::to_origin(1).of(Filter::new().with_class(ErrorClass::Permanent));
    assert_eq!(check.plan(some.clone()).await.letters, 3);
    assert_eq!(check.run(some).await.sent, 3);
    check.assert_once(Origin, 5..8).await;
}

/// A plan names what would be sent and what would be skipped, and neither sends nor marks anything.
pub async fn a_plan_says_what_would_be_done_and_changes_nothing<F: BrokerFixture>(check: Check<F>) {
    let mut dead = check.dead(0..12);
    dead[11].state.replays = 10;
    let first = dead[0].id;
    check.bury_in_order(dead).await;
    for _ in 0..2 {
        let plan = check.plan(ReplaySpec::to_origin(1)).await;
        assert_eq!((plan.letters, plan.sample.len()), (11, 10));
        assert_eq!((plan.sample[0].id, plan.sample[0].payload_size), (first, Some(1)));
        assert_eq!(plan.skipped[&Skipped::MaxReplays], 1);
    }
    check.assert_once(Origin, []).await;
    let letters = check.fixture.letters();
    assert_eq!(letters.count(sent()).await.expect("letters are counted"), 0);
    assert_eq!(check.run(ReplaySpec::to_origin(1)).await.sent, 11);
    assert_eq!(check.plan(ReplaySpec::to_origin(2)).await.letters, 0);
}

/// A replay sends nothing but what its plan has come to: not what died since, nor what others have sent since.
pub async fn what_dies_after_the_plan_is_not_sent_with_it<F: BrokerFixture>(check: Check<F>) {
    check.bury_in_order(check.dead(0..5)).await;
    let letters = check.fixture.letters();
    let replay = check.fixture.replay(&letters, ReplaySpec::to_origin(1));
    assert_eq!(F::plan(&replay).await.expect("it is planned").letters, 5);
    // While the operator thinks: more die, one of the five once more, and one is sent by somebody else.
    check.bury_in_order(check.dead(5..20)).await;
    check.fixture.bury(vec![died_again(&check.dead([3])[0])]).await;
    assert_eq!(check.run(ReplaySpec::to_origin(2).limit(1)).await.sent, 1);
    let report = F::run(&replay, pending(), |_, _| {}).await.expect("a replay is run");
    assert_eq!((report.sent, report.skipped[&Skipped::Sent], report.left), (3, 1, 0), "{report}");
    check.assert_once(Origin, [0, 1, 2, 4]).await;
    // Nor are those behind the limit, when others have sent some of what was shown.
    let replay = check.fixture.replay(&letters, ReplaySpec::to_origin(3).limit(4));
    assert_eq!(F::plan(&replay).await.expect("it is planned").letters, 4);
    assert_eq!(check.run(ReplaySpec::to_origin(4).limit(2)).await.sent, 2);
    let report = F::run(&replay, pending(), |_, _| {}).await.expect("a replay is run");
    assert_eq!(report.sent, 2, "{report}");
    assert_eq!(check.plan(ReplaySpec::to_origin(5)).await.letters, 12);
}

/// A letter that cannot be sent is told, is not marked, and keeps no other from being sent.
pub async fn one_letter_does_not_stop_the_others<F: BrokerFixture>(check: Check<F>) {
    let mut dead = check.dead(0..6);
    dead[2].origin = crate::fixtures::origin(2);
    let lost = dead[2].id;
    check.fixture.bury(dead).await;
    let letters = check.fixture.letters();
    for (operation, wanted) in [(1, 5), (2, 0)] {
        let replay = check.fixture.replay(&letters, ReplaySpec::to_origin(operation));
        let mut not_sent = Vec::new();
        let report = F::run(&replay, pending(), |id, outcome| match outcome {
            ReplayOutcome::Failed(_) | ReplayOutcome::Skipped(Skipped::NoOrigin) => {
                not_sent.push(id)
            }
            _ => {}
        });
        let report = report.await.expect("a replay is run");
        assert!(report.is_complete(), "{report}");
        assert_eq!((report.sent, not_sent), (wanted, vec![lost]), "{report}");
    }
    check.assert_once(Origin, [0, 1, 3, 4, 5]).await;
    let found = letters.get(lost).await.expect("a letter is shown").expect("it is there");
    assert_eq!(found.state.status, Status::Pending);
}

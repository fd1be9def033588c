//! The consumer keeps its promises whatever goes wrong at whatever step, and the explorer finds programs that do not.
//!
//! `DLQ_EXPLORE=all` tries every pair of faults, `DLQ_EXPLORE=NUMBER` so many of each scenario. A case that was found is
//! run alone with the text that the report gives for it: `DLQ_EXPLORE_CASE='SCENARIO PLAN'`.

use std::future::poll_fn;
use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dlq_core::{Disposition, Settle, Source};
use dlq_testkit::explorer::{
    Depth, Explorer, Flaw, Parts, Plan, Program, Report, Running, Scenario, scenarios,
};
use dlq_tower::dead_letter::DeadLetterLayer;
use tower_layer::Layer;
use tower_service::Service;

/// Pairs of faults tried per scenario when nothing else is asked for.
const PAIRS: usize = 600;

/// How many distinct crash points these come to at least, per scenario.
const CRASHES: usize = 385;

/// Crash points of all scenarios that have been explored. No two of a scenario are the same plan.
static EXPLORED: AtomicUsize = AtomicUsize::new(0);

fn depth() -> Depth {
    match std::env::var("DLQ_EXPLORE").as_deref() {
        Ok("all") => Depth::All,
        Ok(number) => Depth::Pairs(number.parse().expect("DLQ_EXPLORE is `all` or a number")),
        Err(_) => Depth::Pairs(PAIRS),
    }
}

fn scenario(name: &str) -> Scenario {
    let all = scenarios();
    let found = all.into_iter().find(|scenario| scenario.name() == name);
    found.unwrap_or_else(|| panic!("there is no scenario `{name}`"))
}

fn explore(name: &str) {
    let explorer = Explorer::new(scenario(name)).depth(depth());
    let report = match std::env::var("DLQ_EXPLORE_CASE") {
        Ok(case) => {
            let (scenario, plan) = case.split_once(' ').expect("a case is `SCENARIO PLAN`");
            if scenario != name {
                return;
            }
            explorer.replay(&plan.parse().expect("the plan can be read"))
        }
        Err(_) => {
            let report = explorer.explore();
            assert!(depth() != Depth::Pairs(PAIRS) || report.deaths >= CRASHES, "{report}");
            report
        }
    };
    // Past the capture of the test harness: how much was explored is to be seen in every run.
    let so_far = EXPLORED.fetch_add(report.deaths, Ordering::Relaxed) + report.deaths;
    let _ = writeln!(std::io::stderr(), "{report}; {so_far} distinct crash points so far");
    assert!(report.findings.is_empty(), "{report}");
}

fn explore_optimistically(name: &str) {
    if std::env::var_os("DLQ_EXPLORE_CASE").is_none() {
        let report = briefly(Explorer::new(scenario(name)).conflicts(7));
        assert!(report.findings.is_empty(), "{report}");
    }
}

macro_rules! explored {
    ($($name:ident),+ $(,)?) => {
        mod consumer {
            $(#[test] fn $name() { super::explore(stringify!($name)); })+
        }

        /// The same over a store that has no locks.
        mod optimistic {
            $(#[test] fn $name() { super::explore_optimistically(stringify!($name)); })+
        }

        #[test]
        fn every_scenario_is_explored() {
            let explored = [$(stringify!($name)),+];
            let all: Vec<_> = scenarios().iter().map(Scenario::name).collect();
            assert_eq!(all, explored);
            assert!(all.len() * CRASHES >= 10_000, "fewer crash points than are promised");
        }
    };
}

explored!(
    success,
    late_success,
    transient_then_success,
    permanent,
    permanent_to_stream,
    exhausted,
    panic,
    undecodable,
    deferral,
    idempotent_duplicate,
    idempotent_failures,
    idempotent_duplicate_fails,
    sent_to_retry_queue,
    retried_over_stream,
    retried_over_store,
    replay_succeeds,
    replay_dies_then_succeeds,
    replay_is_retried_later,
    replay_idempotent,
    replay_past_the_cap,
    automatic_schedule,
    canary_fails,
    canary_succeeds,
    ordered,
    ordered_with_long_delay,
    killer,
    suspect_waits_beside_a_killer,
    killer_at_a_later_attempt,
    ordered_killer_at_a_later_attempt,
    idempotent_killer,
    idempotent_killer_to_stream,
    refused_letter,
    refused_letter_to_stream,
    second_sink_down,
    second_sink_down_then_replay,
    forged_copy,
    forged_identity,
    forged_generation,
    forged_to_stream,
    forged_to_queue,
    forged_replay,
    forged_to_store,
);

#[test]
fn a_plan_can_be_written_and_read() {
    for text in [
        "none",
        "7:error",
        "3:crash-before,12:crash-after,13:stop,14:freeze",
        "1:hang,2:unheard,3:slow",
    ] {
        assert_eq!(text.parse::<Plan>().unwrap().to_string(), text);
    }
    let error = "7:eror".parse::<Plan>().unwrap_err().to_string();
    assert!(error.contains("7:eror") && error.contains("crash-before"), "{error}");
}

/// Explores single faults and a few pairs.
fn briefly(explorer: Explorer) -> Report {
    explorer.depth(Depth::Pairs(40)).explore()
}

/// Every kind of thing that was found.
fn found(report: &Report) -> String {
    report
        .findings
        .iter()
        .flat_map(|finding| finding.violations.clone())
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
fn acknowledging_on_receipt_is_found() {
    let report = briefly(Explorer::new(scenario("permanent")).flaw(Flaw::AcknowledgesOnReceipt));
    assert!(found(&report).contains("G1: after step 1 (acknowledge on receipt)"), "{report}");
    let crash =
        &report.findings.iter().find(|finding| finding.plan.to_string() == "2:crash-before");
    let lost =
        crash.expect("a crash after the early acknowledgement is found").violations.join("\n");
    assert!(lost.contains("ended not handled, with the letter None"), "{lost}");
}

#[test]
fn letters_that_are_confirmed_and_not_written_are_found() {
    for name in ["permanent", "permanent_to_stream", "exhausted", "panic"] {
        let report = briefly(Explorer::new(scenario(name)).flaw(Flaw::ConfirmsUnwrittenLetters));
        assert!(
            found(&report).contains("is settled, not handled, and nowhere recorded"),
            "{report}"
        );
    }
}

#[test]
fn records_that_are_confirmed_and_not_written_are_found() {
    for name in ["sent_to_retry_queue", "retried_over_stream", "retried_over_store"] {
        let report = briefly(Explorer::new(scenario(name)).flaw(Flaw::ConfirmsUnwrittenRecords));
        assert!(
            found(&report).contains("is settled, not handled, and nowhere recorded"),
            "{report}"
        );
    }
}

#[test]
fn a_store_that_ignores_the_fence_is_found() {
    let explorer = Explorer::new(scenario("replay_dies_then_succeeds")).flaw(Flaw::IgnoresFence);
    let report = explorer.depth(Depth::Pairs(600)).explore();
    assert!(!report.findings.is_empty(), "{report}");
    assert!(found(&report).contains("G3") || found(&report).contains("G2"), "{report}");
}

#[test]
fn a_letter_that_two_are_given_is_found() {
    let report = briefly(Explorer::new(scenario("replay_succeeds")).flaw(Flaw::HandsOutTwice));
    assert!(
        found(&report).contains("G6: message 1 was handled 2 times; faults explain 0 repetitions"),
        "{report}"
    );
}

#[test]
fn a_deferral_that_is_counted_is_found() {
    let report = briefly(Explorer::new(scenario("deferral")).flaw(Flaw::CountsDeferrals));
    // It waits for its key, and is given back where its process stops meanwhile.
    let counted = "G10: message 1 is at attempt 2 after 0 runs, and was given back 1 times";
    assert!(found(&report).contains(counted), "{report}");
}

/// A run loop of one message at a time, right or with a mistake that loops in the field make.
#[derive(Clone, Copy, Debug)]
enum Loop {
    Right,
    /// Acknowledges a message that could neither be handled nor written.
    AcknowledgesWhatWasNotWritten,
    /// Acknowledges, and writes the letter then.
    SettlesFirst,
    /// Ends when the source fails once.
    EndsWhenTheSourceFails,
}

impl Program for Loop {
    fn run(&self, parts: Parts) -> Running {
        let mistake = *self;
        let Parts { mut source, handler, store, clock, stop, .. } = parts;
        let mut stack = DeadLetterLayer::new(store).clock(clock).layer(handler);
        Box::pin(async move {
            while !stop.is_cancelled() {
                let next = tokio::select! {
                    biased;
                    () = stop.cancelled() => break,
                    next = source.next() => next,
                };
                let (delivery, settle) = match next {
                    Ok(Some(next)) => next,
                    Ok(None) => break,
                    Err(_) if matches!(mistake, Self::EndsWhenTheSourceFails) => break,
                    Err(_) => {
                        tokio::time::sleep(Duration::from_secs(1)).await;
                        continue;
                    }
                };
                if matches!(mistake, Self::SettlesFirst) {
                    let _ = settle.settle(Disposition::Succeeded).await;
                    let _ = stack.call(delivery).await;
                    continue;
                }
                let Ok(()) = poll_fn(|cx| stack.poll_ready(cx)).await else { continue };
                let disposition = match stack.call(delivery).await {
                    Ok(settlement) => settlement.into_disposition(),
                    Err(_) if matches!(mistake, Self::AcknowledgesWhatWasNotWritten) => {
                        Disposition::Succeeded
                    }
                    Err(_) => Disposition::Deferred { after: Duration::from_secs(1) },
                };
                // An unconfirmed settlement comes again.
                let _ = settle.settle(disposition).await;
            }
            source.close().await;
        })
    }
}

const PLAIN: [&str; 5] = ["success", "transient_then_success", "permanent", "exhausted", "panic"];

#[test]
fn a_right_loop_passes() {
    for name in PLAIN {
        let report = briefly(Explorer::new(scenario(name)).program(Loop::Right));
        assert!(report.findings.is_empty(), "{report}");
    }
}

#[test]
fn a_loop_that_acknowledges_what_was_not_written_is_found() {
    for name in ["permanent", "exhausted", "panic", "undecodable"] {
        let wrong = Loop::AcknowledgesWhatWasNotWritten;
        let report = briefly(Explorer::new(scenario(name)).program(wrong));
        assert!(found(&report).contains("(settle) message 1 is settled, not handled"), "{report}");
    }
}

#[test]
fn a_loop_that_settles_first_is_found() {
    for name in PLAIN {
        let report = briefly(Explorer::new(scenario(name)).program(Loop::SettlesFirst));
        assert!(found(&report).contains("(settle) message 1 is settled, not handled"), "{report}");
    }
}

#[test]
fn a_loop_that_ends_when_the_source_fails_is_found() {
    let report = briefly(Explorer::new(scenario("success")).program(Loop::EndsWhenTheSourceFails));
    assert!(found(&report).contains("G9: the consumer has ended by itself"), "{report}");
}

/// The same plan shows the same steps: what was found can be looked at again.
#[test]
fn a_case_is_deterministic() {
    for name in ["automatic_schedule", "idempotent_failures", "killer"] {
        let explorer = Explorer::new(scenario(name)).flaw(Flaw::ConfirmsUnwrittenLetters);
        let steps = || {
            let report =
                briefly(Explorer::new(scenario(name)).flaw(Flaw::ConfirmsUnwrittenLetters));
            report
                .findings
                .into_iter()
                .map(|finding| (finding.plan, finding.steps))
                .collect::<Vec<_>>()
        };
        let first = steps();
        assert_eq!(first, steps());
        let (plan, steps) = first.first().expect("the flaw is found");
        assert_eq!(&explorer.replay(plan).findings[0].steps, steps);
    }
}

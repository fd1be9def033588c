//! Letters arrive at their origin, elsewhere, or at their handler, as they were.

use std::future::pending;
use std::time::Duration;

use dlq_core::replay::{ReplayOutcome, Skipped};
use dlq_core::{DeliveredFrom, Disposition, Message, Settle, Source, StoreErrorKind};
use tokio::time::timeout;

use super::check::has_headers_of;
use super::{BrokerFixture, Check, ReplaySpec, ReplayTarget};
use crate::fixtures::hostile_messages;

/// A letter arrives where it was born with its key, payload and headers, and with those that say what sent it back, from
/// where and how often (G6).
pub async fn g6_a_letter_is_sent_to_its_origin<F: BrokerFixture>(check: Check<F>) {
    check.bury(0..5).await;
    let spec = ReplaySpec::to_origin(1);
    let operation = spec.rules.operation.to_string();
    assert_eq!(check.run(spec).await.sent, 5);
    check.assert_once(ReplayTarget::Origin, 0..5).await;
    for arrived in check.fixture.arrived(ReplayTarget::Origin).await {
        let letter = check.dead([arrived.text().parse().expect("a number")]).remove(0);
        assert_eq!(arrived.0.key(), letter.message.key());
        assert!(has_headers_of::<F>(&arrived, &letter.message), "{arrived:?}");
        let wanted = [
            ("retry.count", "0"),
            ("replay.count", "1"),
            ("replay.id", &operation),
            ("dlq.id", &letter.id.to_string()),
            ("dlq.consumer", F::CONSUMER),
            ("original.topic", letter.origin.stream()),
        ];
        for (name, value) in wanted {
            assert_eq!(arrived.header(name), Some(value), "{name}");
        }
        let at = arrived.header("replay.timestamp").expect("it says when");
        assert!(at.parse::<dlq_core::Timestamp>().is_ok(), "{at}");
        assert!(arrived.header("replay.from-dlq").is_some(), "it says from where");
        assert_eq!(arrived.header("retry.due"), None, "it waits for nothing");
    }
}

/// A letter goes to a place that is named, and not to its origin; wherever it was sent, it was sent.
pub async fn g6_a_letter_is_sent_elsewhere<F: BrokerFixture>(check: Check<F>) {
    check.bury(0..3).await;
    assert_eq!(check.run(ReplaySpec::to(ReplayTarget::Elsewhere, 1)).await.sent, 3);
    for target in [ReplayTarget::Elsewhere, ReplayTarget::Origin] {
        let report = check.run(ReplaySpec::to(target, 2)).await;
        assert_eq!((report.sent, report.skipped[&Skipped::Sent]), (0, 3));
    }
    check.assert_once(ReplayTarget::Elsewhere, 0..3).await;
    check.assert_once(ReplayTarget::Origin, []).await;
    for arrived in check.fixture.arrived(ReplayTarget::Elsewhere).await {
        let letter = check.dead([arrived.text().parse().expect("a number")]).remove(0);
        assert_eq!(arrived.header("original.topic"), Some(letter.origin.stream()));
    }
}

/// The consumer whose letter it is runs its handler again, with a fresh count and the history of the letter; no other
/// consumer hears of it, and it is sent once (G6). Without such a consumer nothing is sent.
pub async fn g6_a_letter_is_sent_to_its_handler_and_to_nobody_else<F: BrokerFixture>(
    check: Check<F>,
) {
    let dead = check.dead(0..3);
    check.bury(0..3).await;
    // Nobody would hear it.
    let to_handler = |operation| ReplaySpec::to(ReplayTarget::Handler, operation);
    let replay = check.fixture.replay(&check.fixture.letters(), to_handler(1));
    match F::run(&replay, pending(), |_, _| {}).await {
        Ok(report) => assert_eq!((report.sent, report.failed), (0, 3), "{report}"),
        Err(error) => println!("nothing is sent: {error}"),
    }
    let Some(mut source) = check.fixture.source(F::CONSUMER).await else {
        return check.left_out("there is nothing that hears what is sent to the handler");
    };
    let other = check.fixture.source("shipping").await;
    let mut other = other.expect("where there is one consumer there can be another");
    let replay = check.fixture.replay(&check.fixture.letters(), to_handler(1));
    let sent = F::run(&replay, pending(), |_, outcome| {
        assert!(matches!(outcome, ReplayOutcome::Sent), "{outcome:?}");
    });
    assert_eq!(sent.await.expect("a replay is run").sent, 3);
    assert_eq!(check.run(to_handler(2)).await.sent, 0);
    let mut seen = Vec::new();
    while seen.len() < 3 {
        let next = timeout(F::PATIENCE, source.next()).await.expect("what was sent comes");
        let (delivery, settle) = match next {
            Ok(next) => next.expect("the source has not ended"),
            Err(error) if error.is_transient() => continue,
            Err(error) => panic!("the source failed: {error}"),
        };
        let death = delivery.death(F::CONSUMER);
        let letter = dead.iter().find(|letter| letter.id == death.letter);
        let letter = letter.unwrap_or_else(|| panic!("{death} is none of them"));
        assert_eq!((delivery.delivered_from(), delivery.attempt()), (DeliveredFrom::Retry, 1));
        assert_eq!((delivery.delayed_retries(), delivery.replays()), (0, 1));
        assert_eq!((death.generation, delivery.history()), (1, &letter.history));
        assert_eq!(delivery.message().payload(), letter.message.payload());
        assert_eq!(delivery.message().key(), letter.message.key());
        assert_eq!(delivery.message().headers(), letter.message.headers());
        settle.settle(Disposition::Succeeded).await.expect("it is acknowledged");
        seen.push(letter.id);
    }
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 3, "each comes once");
    for source in [&mut source, &mut other] {
        let more = timeout(Duration::from_millis(500), source.next()).await;
        assert!(!matches!(more, Ok(Ok(Some(_)))), "nobody hears it a second time");
    }
    check.assert_once(ReplayTarget::Origin, []).await;
}

/// Whatever a broker can carry arrives byte for byte, also when it is larger than what readers keep; what it cannot carry
/// fails alone (G8).
pub async fn g8_whatever_it_holds_comes_out_byte_for_byte<F: BrokerFixture>(check: Check<F>) {
    let mut dead = Vec::new();
    let mut bury = |name: &str, message: Message| {
        let number = u32::try_from(dead.len()).unwrap_or(0);
        dead.push(check.letter(number, message.with_header("name", name.to_owned())));
    };
    for (name, message) in hostile_messages() {
        if !F::carries(&message) {
            check.left_out(&format!("the broker cannot carry {name}"));
            continue;
        }
        let mut plain = Message::tombstone(check.fixture.subject())
            .with_payload(message.payload().cloned())
            .with_headers(
                message.headers().iter().filter(|h| h.name != "dlq.id").cloned().collect(),
            );
        if let Some(key) = message.key() {
            plain = plain.with_key(key.clone());
        }
        bury(name, plain);
    }
    for size in [1_024, 1_025, 20_000] {
        let text = size.to_string();
        bury(&text, Message::new(check.fixture.subject(), vec![b'x'; size]));
    }
    check.bury_in_order(dead.clone()).await;
    let report = check.run(ReplaySpec::to_origin(1)).await;
    assert_eq!(report.sent + report.failed, dead.len() as u64, "{report}");
    let arrived = check.fixture.arrived(ReplayTarget::Origin).await;
    assert_eq!(arrived.len() as u64, report.sent);
    for arrived in arrived {
        let name = arrived.header("name").expect("it says which one it is").to_owned();
        let named = |letter: &&dlq_core::DeadLetter| {
            letter.message.headers().get_str("name") == Some(&name)
        };
        let letter = dead.iter().find(named).expect("it is one of them");
        assert_eq!(arrived.0.payload(), letter.message.payload(), "payload of {name}");
        assert_eq!(arrived.0.key(), letter.message.key(), "key of {name}");
        assert!(has_headers_of::<F>(&arrived, &letter.message), "headers of {name}: {arrived:?}");
    }
    // A broker that had carried nothing would have passed all of the above.
    assert!(report.sent > 10, "{report}");
}

/// A place that nobody keeps is refused when the replay is planned, and nothing is sent there by mistake.
pub async fn a_target_that_is_not_there_is_refused<F: BrokerFixture>(check: Check<F>) {
    let letters = check.bury(0..2).await;
    let replay = check.fixture.replay(&letters, ReplaySpec::to(ReplayTarget::Nowhere, 1));
    let planned = F::plan(&replay).await.expect_err("nobody keeps it");
    let run = F::run(&replay, pending(), |_, _| {}).await.expect_err("nobody keeps it");
    assert_eq!((planned.kind(), run.kind()), (StoreErrorKind::Refused, StoreErrorKind::Refused));
    assert_eq!(check.run(ReplaySpec::to_origin(2)).await.sent, 2, "nothing was marked");
    check.assert_once(ReplayTarget::Origin, 0..2).await;
}

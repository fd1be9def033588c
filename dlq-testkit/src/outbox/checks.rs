use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use dlq_core::outbox::{Address, Once, Outbox, Outboxes, Outgoing, Sent, Settled};
use dlq_core::protocol::{self, Replay, names};
use dlq_core::replay::Skipped;
use dlq_core::store::Target;
use dlq_core::{Clock, DeadLetter, Message, OperationId, Origin, SystemClock, Timestamp};
use tokio::time::{Instant, timeout};

use super::OutboxFixture;
use crate::fixtures::died_again;

/// Time that a call may take. Long, so that no check depends on the speed of the machine.
const TIME: Duration = Duration::from_secs(60);

fn operation(n: u64) -> OperationId {
    OperationId::of("check", Timestamp::EPOCH, n)
}

fn outgoing(outbox: &impl Outbox, letter: DeadLetter, operation: OperationId) -> Outgoing {
    let to = outbox.route(&letter, &Target::Origin).expect("it was born here");
    let once = Once::in_operation(letter.death(), operation);
    let from = format!("letters/{}", letter.id);
    let replay =
        Replay { operation, count: 1, from, at: Timestamp::from_millis(1_790_000_000_000) };
    Outgoing { letter: Arc::new(letter), to, replay, once }
}

async fn send(outbox: &impl Outbox, batch: Vec<Outgoing>) -> Vec<Sent> {
    let count = batch.len();
    let sent = outbox.send(batch, Instant::now() + TIME).await.expect("the broker is there");
    assert_eq!(sent.len(), count, "{sent:?}");
    sent
}

#[track_caller]
fn confirmed(sent: &[Sent]) {
    assert!(sent.iter().all(Sent::is_confirmed), "{sent:?}");
}

fn payload(message: &Message) -> &[u8] {
    message.payload().map(|payload| &payload[..]).unwrap_or_default()
}

/// Counts the arrivals of each payload.
async fn counts<F: OutboxFixture>(fixture: &F) -> BTreeMap<Vec<u8>, usize> {
    let mut counts = BTreeMap::new();
    for message in fixture.arrived().await {
        *counts.entry(payload(&message).to_vec()).or_default() += 1;
    }
    counts
}

/// The same letter under the same identity is kept once, also in one batch; under another operation, and when it has died
/// again, it is kept again.
pub async fn g6_what_is_sent_twice_arrives_once<F: OutboxFixture>(fixture: F) {
    let outbox = fixture.outbox("one").await;
    let (first, second) = (fixture.letter(1), fixture.letter(2));
    let of = |letter: &DeadLetter, n| outgoing(&outbox, letter.clone(), operation(n));
    confirmed(&send(&outbox, vec![of(&first, 1), of(&second, 1)]).await);
    confirmed(&send(&outbox, vec![of(&first, 1), of(&second, 1), of(&first, 1)]).await);
    assert_eq!(fixture.arrived().await.len(), 2);
    confirmed(&send(&outbox, vec![of(&first, 2), of(&died_again(&second), 1)]).await);
    assert_eq!(fixture.arrived().await.len(), 4);
}

/// Another sender learns what arrived of those that have died.
pub async fn g6_settle_says_what_arrived<F: OutboxFixture>(fixture: F) {
    let since = SystemClock.now();
    let dead = fixture.outbox("dead").await;
    let all: Vec<DeadLetter> = (1..=6).map(|n| fixture.letter(n)).collect();
    let of = |letter: &DeadLetter| outgoing(&dead, letter.clone(), operation(1));
    confirmed(&send(&dead, all[..3].iter().map(of).collect()).await);
    let heir = fixture.outbox("heir").await;
    // Others arrive meanwhile, also the same letters by another operation.
    let others = all[3..].iter().map(|letter| outgoing(&heir, letter.clone(), operation(2)));
    confirmed(&send(&heir, others.collect()).await);
    // Asking changes nothing, so the second answer is the same.
    for _ in 0..2 {
        let batch = all.iter().map(of).collect();
        let settled = heir.settle(dead.sender().to_owned(), since, batch).await;
        let settled = settled.expect("the broker is there");
        let arrived: Vec<bool> =
            settled.iter().map(|one| matches!(one, Settled::Arrived(_))).collect();
        assert_eq!(arrived, [true, true, true, false, false, false], "{settled:?}");
        assert!(settled[3..].iter().all(|one| *one == Settled::Not), "{settled:?}");
    }
    // What did not arrive is sent now, under its identity.
    confirmed(&send(&heir, all[3..].iter().map(of).collect()).await);
    assert_eq!(fixture.arrived().await.len(), 9);
}

/// A send that is dropped somewhere between its beginning and its answer has sent what settle says, and no more.
pub async fn g6_a_killed_send_is_settled_truthfully<F: OutboxFixture>(fixture: F) {
    let since = SystemClock.now();
    let heir = fixture.outbox("heir").await;
    let mut expected = BTreeMap::new();
    for round in 0..8_u64 {
        let outbox = fixture.outbox(&format!("dead-{round}")).await;
        let batch = || -> Vec<Outgoing> {
            let letters = (1..=4).map(|n| fixture.letter(round * 10 + n));
            letters.map(|letter| outgoing(&outbox, letter, operation(1))).collect()
        };
        // Wherever it is by then, which differs from run to run.
        let killed_after = Duration::from_micros(round.pow(4) * 100);
        drop(timeout(killed_after, outbox.send(batch(), Instant::now() + TIME)).await);
        // What is on its way may still arrive. Only after this `settle` can tell for good.
        fixture.calm(&outbox).await;
        let settled = heir.settle(outbox.sender().to_owned(), since, batch()).await;
        let settled = settled.expect("the broker is there");
        for (one, settled) in batch().iter().zip(settled) {
            let times = match settled {
                Settled::Arrived(_) => 1,
                Settled::Not => 0,
                Settled::Unclear(why) => panic!("it can be found out: {why}"),
            };
            expected.insert(payload(&one.letter.message).to_vec(), times);
        }
    }
    let found = counts(&fixture).await;
    expected.retain(|_, times| *times > 0);
    assert_eq!(found, expected);
}

/// A letter that the broker does not take leaves those beside it alone, and is not tried again by itself.
pub async fn a_refused_letter_concerns_it_alone<F: OutboxFixture>(fixture: F) {
    let outbox = fixture.outbox("one").await;
    let refused = fixture.unacceptable(&outbox, 3);
    let letters = [fixture.letter(1), refused, fixture.letter(2)];
    let batch = letters.into_iter().map(|letter| outgoing(&outbox, letter, operation(1)));
    let sent = send(&outbox, batch.collect()).await;
    assert!(sent[0].is_confirmed() && sent[2].is_confirmed(), "{sent:?}");
    assert!(matches!(sent[1], Sent::Refused(_)), "{sent:?}");
    assert_eq!(fixture.arrived().await.len(), 2);
    confirmed(&send(&outbox, vec![outgoing(&outbox, fixture.letter(4), operation(1))]).await);
}

/// Payload, key and the producer's headers come back as they were, with the headers of a replay.
pub async fn a_letter_goes_back_as_it_was<F: OutboxFixture>(fixture: F) {
    let outbox = fixture.outbox("one").await;
    let letter = fixture.letter(1);
    confirmed(&send(&outbox, vec![outgoing(&outbox, letter.clone(), operation(1))]).await);
    let arrived = fixture.arrived().await;
    let [message] = &arrived[..] else { panic!("{arrived:?}") };
    assert_eq!(message.subject(), letter.message.subject());
    assert_eq!(message.payload(), letter.message.payload());
    assert_eq!(message.key(), letter.message.key());
    for header in letter.message.headers() {
        let name = std::str::from_utf8(&header.name).expect("fixtures have such names");
        assert_eq!(message.headers().get(name), header.value.as_deref(), "{name}");
    }
    let said = |name| message.headers().get_str(name);
    assert_eq!(said(names::REPLAY_COUNT), Some("1"));
    assert_eq!(said(names::REPLAY_ID), Some(&*operation(1).to_string()));
    assert_eq!(said(names::DLQ_ID), Some(&*letter.id.to_string()));
    assert_eq!(said(names::ORIGINAL_TOPIC), Some(letter.origin.stream()));
    assert_eq!(said(protocol::names::RETRY_COUNT), Some("0"));
}

/// A letter that was born elsewhere is skipped, and its cluster is named.
pub async fn a_letter_of_another_cluster_has_no_address<F: OutboxFixture>(fixture: F) {
    let outbox = fixture.outbox("one").await;
    let mut letter = fixture.letter(1);
    letter.origin = letter.origin.with_cluster("elsewhere");
    assert_eq!(outbox.route(&letter, &Target::Origin), Err(Skipped::NoOrigin));
    let mut outboxes = Outboxes::new();
    outboxes.add(outbox).expect("it is the first");
    let error = outboxes.route(&letter, &Target::Origin).expect_err("it was born elsewhere");
    assert_eq!(error.skipped(), Skipped::NoOutbox);
    let text = error.to_string();
    assert!(text.contains("`elsewhere`") && text.contains("`default`"), "{text}");
    // To a subject that is named it can go, since there is one place only where that can be.
    let (_, to) =
        outboxes.route(&letter, &Target::Subject("other".to_owned())).expect("there is one");
    assert_eq!((&*to.subject, &*to.cluster), ("other", "default"));
    // A second one of the same cluster is refused.
    let error = outboxes.add(fixture.outbox("two").await).expect_err("there is one");
    assert!(error.to_string().contains("two addresses"), "{error}");
    letter.origin = Origin::new("elsewhere", "orders", letter.origin.position().clone());
    let error = outboxes.route(&letter, &Target::Origin).expect_err("it was born elsewhere");
    assert!(error.to_string().contains("elsewhere"), "{error}");
}

/// A batch whose time is over is not sent, and can be sent later.
pub async fn nothing_is_sent_after_its_time<F: OutboxFixture>(fixture: F) {
    let outbox = fixture.outbox("one").await;
    let batch = || vec![outgoing(&outbox, fixture.letter(1), operation(1))];
    let sent = outbox.send(batch(), Instant::now()).await.expect("the broker is there");
    assert!(matches!(sent[..], [Sent::Later(_)]), "{sent:?}");
    assert!(fixture.arrived().await.is_empty());
    confirmed(&send(&outbox, batch()).await);
    assert_eq!(fixture.arrived().await.len(), 1);
}

/// The survey names the consumers that receive letters, and sends nothing.
pub async fn the_survey_names_who_listens<F: OutboxFixture>(fixture: F) {
    let outbox = fixture.outbox("one").await;
    let to = || -> Address { outgoing(&outbox, fixture.letter(1), operation(1)).to };
    if !fixture.listen("shipping").await {
        return;
    }
    let survey = outbox.survey([to()].into()).await.expect("the broker is there");
    assert!(
        survey.subscribers.iter().any(|subscriber| subscriber.consumer == "shipping"),
        "{survey:?}"
    );
    assert!(survey.closed.is_empty(), "{survey:?}");
    assert!(fixture.arrived().await.is_empty(), "nothing is sent by it");
}

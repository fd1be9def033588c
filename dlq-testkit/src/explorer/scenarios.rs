use std::time::Duration;

use dlq_core::Reason;
use dlq_core::store::Schedule;

use super::headers::Forgery;
use super::scenario::{Act, Ending, Order, Record, Scenario, Story};

const HANDLED: Ending = Ending::Handled;
const EXHAUSTED: Ending = Ending::Dead(Reason::Exhausted);
const PERMANENT: Ending = Ending::Dead(Reason::Permanent);

/// A message that is handled at once.
fn healthy(number: u32) -> Story {
    Story::new(number, &[Act::Succeed], HANDLED)
}

/// A message that is handled at the last attempt it is granted: it has inherited nothing.
fn unlucky(number: u32) -> Story {
    Story::new(number, &[Act::Transient, Act::Transient, Act::Succeed], HANDLED)
}

const REPLAY: Order = Order::Replay { canary: None, max_replays: 10 };

/// The scenarios that the consumer of `dlq-tower` is held to.
#[must_use]
pub fn scenarios() -> Vec<Scenario> {
    // Longer than any wait in the process, so that the retry goes over a record.
    let long = Duration::from_secs(60);
    // Beside most of them is a healthy message, to show that a fault of one is not paid for by another.
    vec![
        Scenario::new("success", [healthy(1), healthy(2)]),
        Scenario::new("late_success", [Story::new(1, &[Act::SucceedLate], HANDLED), healthy(2)]),
        Scenario::new(
            "transient_then_success",
            [Story::new(1, &[Act::Transient, Act::Transient, Act::Succeed], HANDLED), healthy(2)],
        ),
        Scenario::new("permanent", [Story::new(1, &[Act::Permanent], PERMANENT), healthy(2)]),
        Scenario::new(
            "permanent_to_stream",
            [Story::new(1, &[Act::Permanent], PERMANENT), healthy(2)],
        )
        .record(Record::Stream),
        Scenario::new("exhausted", [Story::new(1, &[Act::Transient], EXHAUSTED), healthy(2)]),
        Scenario::new("panic", [Story::new(1, &[Act::Panic], PERMANENT), healthy(2)]),
        Scenario::new(
            "undecodable",
            [Story::new(1, &[Act::Succeed], PERMANENT).undecodable(), healthy(2)],
        ),
        Scenario::new("deferral", [healthy(1).held_elsewhere(Duration::from_secs(45)), healthy(2)])
            .idempotent(),
        Scenario::new("idempotent_duplicate", [healthy(1).keyed("one"), healthy(2).keyed("one")])
            .idempotent(),
        Scenario::new(
            "idempotent_failures",
            [
                Story::new(1, &[Act::Transient], EXHAUSTED).keyed("one"),
                healthy(2),
                unlucky(3).keyed("one").later(),
            ],
        )
        .idempotent()
        .order(Order::Publish),
        Scenario::new(
            "idempotent_duplicate_fails",
            [1, 2].map(|number| Story::new(number, &[Act::Transient], EXHAUSTED).keyed("one")),
        )
        .idempotent(),
        Scenario::new(
            "sent_to_retry_queue",
            [
                Story::new(1, &[Act::Transient, Act::Transient, Act::Succeed], HANDLED),
                Story::new(2, &[Act::Transient], EXHAUSTED),
            ],
        )
        .delay(long)
        .record(Record::StoreAndQueue),
        Scenario::new(
            "retried_over_stream",
            [Story::new(1, &[Act::Transient], EXHAUSTED), healthy(2)],
        )
        .delay(long)
        .record(Record::Stream),
        Scenario::new(
            "retried_over_store",
            [
                Story::new(1, &[Act::Transient, Act::Transient, Act::Succeed], HANDLED),
                Story::new(2, &[Act::Transient], EXHAUSTED),
            ],
        )
        .delay(long),
        Scenario::new(
            "replay_succeeds",
            [Story::new(1, &[Act::Permanent], HANDLED).then(&[Act::Succeed]), healthy(2)],
        )
        .order(REPLAY),
        Scenario::new(
            "replay_dies_then_succeeds",
            [Story::new(1, &[Act::Permanent], HANDLED)
                .then(&[Act::Transient])
                .then(&[Act::Succeed])],
        )
        .order(REPLAY)
        .order(REPLAY),
        Scenario::new(
            "replay_is_retried_later",
            [Story::new(1, &[Act::Transient], HANDLED).then(&[Act::Transient, Act::Succeed])],
        )
        .delay(long)
        .order(REPLAY),
        Scenario::new(
            "replay_idempotent",
            [Story::new(1, &[Act::Permanent], HANDLED).then(&[Act::Succeed]), healthy(2)],
        )
        .idempotent()
        .order(REPLAY),
        Scenario::new(
            "replay_past_the_cap",
            [Story::new(1, &[Act::Permanent], Ending::Quarantined(Reason::MaxReplays))],
        )
        .order(Order::Replay { canary: None, max_replays: 1 })
        .order(Order::Replay { canary: None, max_replays: 1 }),
        Scenario::new(
            "automatic_schedule",
            [
                Story::new(1, &[Act::Transient], HANDLED).then(&[Act::Succeed]),
                Story::new(2, &[Act::Transient], EXHAUSTED),
            ],
        )
        .schedule(Schedule::enabled().every(Duration::from_secs(600)).max_retries(2)),
        Scenario::new(
            "canary_fails",
            [1, 2, 3].map(|number| Story::new(number, &[Act::Permanent], PERMANENT)),
        )
        .order(Order::Replay { canary: Some(1), max_replays: 10 })
        .order(Order::Cancel)
        .most_replayed(1),
        Scenario::new(
            "canary_succeeds",
            [1, 2, 3]
                .map(|number| Story::new(number, &[Act::Permanent], HANDLED).then(&[Act::Succeed])),
        )
        .order(Order::Replay { canary: Some(1), max_replays: 10 }),
        Scenario::new(
            "ordered",
            [
                Story::new(1, &[Act::Transient, Act::Succeed], HANDLED).of_customer("a"),
                healthy(2).of_customer("a"),
                Story::new(3, &[Act::Permanent], PERMANENT).of_customer("a"),
                healthy(4).of_customer("a"),
            ],
        )
        .ordered(),
        Scenario::new(
            "ordered_with_long_delay",
            [
                Story::new(1, &[Act::Transient, Act::Succeed], HANDLED).of_customer("a"),
                healthy(2).of_customer("a"),
            ],
        )
        .delay(long)
        .ordered(),
        Scenario::new(
            "killer",
            [healthy(1), Story::new(2, &[Act::Kill], Ending::Dead(Reason::MaxCrashes)), healthy(3)],
        ),
        // The second kills the process while the first waits for its next attempt, a suspect like itself: that is nobody
        // else's crash.
        Scenario::new(
            "suspect_waits_beside_a_killer",
            [
                Story::new(1, &[Act::Transient], EXHAUSTED),
                Story::new(2, &[Act::Kill], Ending::Dead(Reason::MaxCrashes)),
                healthy(3),
            ],
        ),
        // Each attempt is marked anew.
        Scenario::new(
            "killer_at_a_later_attempt",
            [Story::new(1, &[Act::KillLater], Ending::Dead(Reason::MaxCrashes)), healthy(2)],
        ),
        // Between its attempts it waits outside of any run.
        Scenario::new(
            "ordered_killer_at_a_later_attempt",
            [Story::new(1, &[Act::KillLater], Ending::Dead(Reason::MaxCrashes)), healthy(2)],
        )
        .delay(long)
        .ordered(),
        Scenario::new(
            "idempotent_killer",
            [
                healthy(1),
                Story::new(2, &[Act::Kill], Ending::Dead(Reason::MaxCrashes)).keyed("one"),
                unlucky(3).keyed("one").later(),
            ],
        )
        .idempotent()
        .order(Order::Publish),
        // Without a store there are no crash marks: only the claims tell.
        Scenario::new(
            "idempotent_killer_to_stream",
            [
                Story::new(1, &[Act::Kill], Ending::Dead(Reason::MaxCrashes)).keyed("one"),
                unlucky(2).keyed("one").later(),
            ],
        )
        .idempotent()
        .record(Record::Stream)
        .order(Order::Publish),
        // What is handled at once waits for no letter that is refused, and that one is written when it is taken.
        Scenario::new(
            "refused_letter",
            [
                Story::new(1, &[Act::Permanent], PERMANENT),
                Story::new(2, &[Act::Permanent], PERMANENT),
                healthy(3).later(),
                healthy(4).later(),
            ],
        )
        .refused(1)
        .order(Order::Publish)
        .order(Order::Mend),
        Scenario::new(
            "refused_letter_to_stream",
            [Story::new(1, &[Act::Permanent], PERMANENT), healthy(2).later()],
        )
        .record(Record::Stream)
        .refused(1)
        .order(Order::Publish)
        .order(Order::Mend),
        // Its handler would succeed by now, which is not asked.
        Scenario::new(
            "second_sink_down",
            [
                Story::new(
                    1,
                    &[Act::Permanent, Act::Succeed],
                    Ending::DeadUnlessHandled(Reason::Permanent),
                ),
                healthy(2),
            ],
        )
        .feed(3),
        Scenario::new(
            "second_sink_down_then_replay",
            [Story::new(1, &[Act::Permanent, Act::Succeed], HANDLED).then(&[Act::Succeed])],
        )
        .feed(3)
        .order(REPLAY),
        // A handler copies the headers of a message that was sent back onto one of its own.
        Scenario::new(
            "forged_copy",
            [
                Story::new(1, &[Act::Permanent], HANDLED).then(&[Act::Succeed]),
                Story::new(2, &[Act::Permanent], PERMANENT).forged(Forgery::Copied(1)),
                healthy(3).forged(Forgery::Copied(1)),
            ],
        )
        .order(REPLAY),
        // Another message claims to be the first: each keeps its letter, whoever dies first.
        Scenario::new(
            "forged_identity",
            [
                Story::new(1, &[Act::Transient], EXHAUSTED),
                Story::new(2, &[Act::Permanent], PERMANENT)
                    .forged(Forgery::Claimed { number: 1, generation: 0 }),
                healthy(3).forged(Forgery::Claimed { number: 1, generation: 0 }),
            ],
        ),
        Scenario::new(
            "forged_generation",
            [
                Story::new(1, &[Act::Permanent], HANDLED).then(&[Act::Succeed]),
                Story::new(2, &[Act::Permanent], PERMANENT)
                    .forged(Forgery::Claimed { number: 1, generation: 5 }),
                // At the end of its range a generation must not overflow when the message dies once more.
                Story::new(3, &[Act::Permanent], PERMANENT)
                    .forged(Forgery::Claimed { number: 1, generation: u32::MAX - 1 }),
            ],
        )
        .order(REPLAY),
        Scenario::new(
            "forged_to_stream",
            [
                Story::new(1, &[Act::Transient], EXHAUSTED),
                Story::new(2, &[Act::Permanent], PERMANENT)
                    .forged(Forgery::Claimed { number: 1, generation: 7 }),
                Story::new(3, &[Act::Transient], EXHAUSTED).forged(Forgery::Elsewhere),
                healthy(4).forged(Forgery::Claimed { number: 1, generation: 0 }),
            ],
        )
        .delay(long)
        .record(Record::Stream),
        Scenario::new(
            "forged_to_queue",
            [
                Story::new(1, &[Act::Transient, Act::Transient, Act::Succeed], HANDLED),
                Story::new(2, &[Act::Transient], EXHAUSTED)
                    .forged(Forgery::Claimed { number: 1, generation: 0 }),
                Story::new(3, &[Act::Transient], EXHAUSTED)
                    .forged(Forgery::Claimed { number: 1, generation: u32::MAX }),
            ],
        )
        .delay(long)
        .record(Record::StoreAndQueue),
        // A message that was sent back and one that claims to be it wait for the same attempt of the same death.
        Scenario::new(
            "forged_replay",
            [
                Story::new(1, &[Act::Permanent], HANDLED).then(&[Act::Transient, Act::Succeed]),
                Story::new(2, &[Act::Permanent], PERMANENT),
                Story::new(3, &[Act::Transient], EXHAUSTED)
                    .forged(Forgery::Claimed { number: 1, generation: 0 })
                    .later(),
            ],
        )
        .delay(long)
        .record(Record::Stream)
        .order(Order::SendBack)
        .order(Order::Publish),
        Scenario::new(
            "forged_to_store",
            [
                Story::new(1, &[Act::Transient, Act::Transient, Act::Succeed], HANDLED),
                Story::new(2, &[Act::Transient], EXHAUSTED)
                    .forged(Forgery::Claimed { number: 1, generation: 0 }),
            ],
        )
        .delay(long),
    ]
}

//! The outbox of the broker in memory passes every check, and does what a test tells it to do wrong.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::Arc;
use std::time::Duration;

use dlq_core::memory::{MemoryBroker, MemoryOutbox};
use dlq_core::outbox::{Once, Outbox, Outgoing, Sent, Settled};
use dlq_core::protocol::Replay;
use dlq_core::store::Target;
use dlq_core::{OperationId, Timestamp};
use dlq_testkit::doubles::{FaultyOutbox, OutboxFault};
use dlq_testkit::fixtures::letter;
use tokio::time::Instant;

mod memory {
    dlq_testkit::outbox_conformance!(dlq_testkit::outbox::MemoryOutboxFixture);
}

fn outgoing(outbox: &impl Outbox, n: u64) -> Outgoing {
    let (letter, operation) = (letter(n), OperationId::from_bytes([1; 16]));
    Outgoing {
        to: outbox.route(&letter, &Target::Origin).unwrap(),
        once: Once::in_operation(letter.death(), operation),
        replay: Replay { operation, count: 1, from: String::new(), at: Timestamp::EPOCH },
        letter: Arc::new(letter),
    }
}

#[tokio::test(start_paused = true)]
async fn g6_each_fault_is_settled_as_it_was() {
    let broker = MemoryBroker::new().stream("orders");
    let outbox = FaultyOutbox::new(MemoryOutbox::new(&broker));
    let until = || Instant::now() + Duration::from_secs(15);
    let settle = async |n| {
        let batch = vec![outgoing(&outbox, n)];
        let settled = outbox.settle("memory".to_owned(), Timestamp::EPOCH, batch).await.unwrap();
        matches!(settled[..], [Settled::Arrived(_)])
    };
    for (n, fault, arrived) in
        [(1, OutboxFault::DiesBefore, false), (2, OutboxFault::DiesAfter, true)]
    {
        outbox.fail([fault]);
        let send = outbox.send(vec![outgoing(&outbox, n)], until());
        tokio::select! {
            sent = send => panic!("it was to die: {sent:?}"),
            () = outbox.death() => {}
        }
        assert_eq!(settle(n).await, arrived, "{fault:?}");
    }
    outbox.fail([OutboxFault::LosesAnswers, OutboxFault::IsLate]);
    for n in [3, 4] {
        let sent = outbox.send(vec![outgoing(&outbox, n)], until()).await.unwrap();
        assert!(matches!(sent[..], [Sent::Unknown(_)]), "{sent:?}");
    }
    assert!(settle(3).await && !settle(4).await);
    // What comes late has the same identity as what was sent again meanwhile.
    let sent = outbox.send(vec![outgoing(&outbox, 4)], until()).await.unwrap();
    assert!(sent[0].is_confirmed());
    outbox.deliver_late().await.unwrap();
    assert_eq!(broker.messages().len(), 3);
    outbox.set_away(true);
    let error = outbox.send(vec![outgoing(&outbox, 5)], until()).await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    assert_eq!(broker.messages().len(), 3);
}

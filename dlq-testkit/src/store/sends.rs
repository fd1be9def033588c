//! A dispatcher that sends a store's letters to a broker in memory, and dies between any two of its steps.

use std::collections::BTreeMap;
use std::future::pending;
use std::time::Duration;

use dlq_core::memory::{MemoryBroker, MemoryOutbox};
use dlq_core::outbox::{Dispatcher, Outboxes};
use dlq_core::store::{
    BoxStore, CheckLimits, Cluster, Control, ItemOutcome, Operation, OperationSpec, OperationState,
    Target,
};
use dlq_core::{Filter, Status, StoreErrorKind};
use tokio::time::timeout;

use super::check::by;
use super::check::powers::*;
use super::{Check, StoreFixture};
use crate::doubles::{FaultyOutbox, OutboxFault};

/// Time in which a condition must come true.
const PATIENCE: Duration = Duration::from_secs(60);

/// A broker, and processes that send to it.
struct Sending<'c, F: StoreFixture> {
    check: &'c Check<F>,
    broker: MemoryBroker,
    outbox: FaultyOutbox<MemoryOutbox>,
}

impl<'c, F: StoreFixture> Sending<'c, F> {
    fn new(check: &'c Check<F>) -> Self {
        let broker = MemoryBroker::new().stream("orders");
        let outbox = FaultyOutbox::new(MemoryOutbox::new(&broker).sender("first"));
        Self { check, broker, outbox }
    }

    /// A process that has died in its first step.
    async fn dead(check: &'c Check<F>, fault: OutboxFault) -> (Self, Operation) {
        let sending = Self::new(check);
        let operation = sending.start().await;
        sending.outbox.fail([fault]);
        sending.die_in_a_step(&operation).await;
        (sending, operation)
    }

    async fn start(&self) -> Operation {
        let clusters = [Cluster::new("memory", "default")];
        let spec = OperationSpec::replay(Filter::new()).target(Target::Origin, clusters);
        self.check.start(spec).await
    }

    /// A process that fails as it is told to.
    fn dispatcher(&self) -> Dispatcher {
        self.of(self.outbox.clone())
    }

    /// Another process, which does not fail.
    fn other(&self) -> Dispatcher {
        self.of(FaultyOutbox::new(MemoryOutbox::new(&self.broker).sender("second")))
    }

    fn of(&self, outbox: FaultyOutbox<MemoryOutbox>) -> Dispatcher {
        let mut outboxes = Outboxes::new();
        outboxes.add(outbox).expect("it is the only one");
        let store = BoxStore::new(self.check.store.clone());
        // Fewer than the letters of some checks, so that these take several steps.
        Dispatcher::new(store, outboxes).lease(self.check.lease()).batch(10)
    }

    /// Runs a step until its process dies.
    async fn die_in_a_step(&self, operation: &Operation) {
        let dispatcher = self.dispatcher();
        tokio::select! {
            step = dispatcher.step(operation.id) => panic!("it went on: {step:?}"),
            died = timeout(PATIENCE, self.outbox.death()) => died.expect("it dies in the send"),
        }
    }

    /// Returns the number of arrivals of each letter, by its producer's id.
    fn arrived(&self) -> BTreeMap<String, usize> {
        let mut arrived = BTreeMap::new();
        for message in self.broker.messages() {
            *arrived.entry(message.id().unwrap_or_default().to_owned()).or_default() += 1;
        }
        arrived
    }

    /// Every letter has arrived once, is sent, and is counted once.
    async fn each_is_sent_once(&self, operation: &Operation, count: usize) {
        let arrived = self.arrived();
        assert_eq!(arrived.len(), count, "{arrived:?}");
        assert!(arrived.values().all(|times| *times == 1), "{arrived:?}");
        let operation = self.check.operation(operation).await;
        assert_eq!(operation.state, OperationState::Completed);
        assert_eq!(operation.progress.with_outcome(ItemOutcome::Sent), count as u64);
        for item in self.check.items(&operation).await {
            let state = self.check.state(item.letter).await;
            assert_eq!((state.status, state.replays, state.retry_count), (Status::Sent, 1, 1));
        }
    }
}

/// Letters go back to where they came from, with the headers of a replay.
pub async fn letters_go_back_to_their_origin<F: StoreFixture>(check: Check<F>) {
    let letters = check.bury(25).await;
    let sending = Sending::new(&check);
    let operation = sending.start().await;
    let sent = timeout(PATIENCE, sending.dispatcher().run(operation.id, pending(), |_| {})).await;
    let sent = sent.expect("it ends with the operation").expect("it runs");
    assert_eq!((sent.confirmed, sent.doubtful, sent.refused), (25, 0, 0));
    sending.each_is_sent_once(&operation, 25).await;
    let message = sending.broker.messages().into_iter().next().expect("there is one");
    assert_eq!(message.payload(), letters[0].message.payload());
    assert_eq!(message.subject(), letters[0].message.subject());
    let id = operation.id.to_string();
    assert!(
        message.headers().iter().any(|header| header.value.as_deref() == Some(id.as_bytes())),
        "{message:?}"
    );
}

/// Letters that are on their way to a broker are no damage, however long nobody hears of them.
pub async fn letters_on_their_way_are_no_damage<F: StoreFixture>(check: Check<F>) {
    check.bury(3).await;
    let _sending = Sending::dead(&check, OutboxFault::DiesBefore).await;
    let found = check.store.check(CheckLimits::default().deep(true)).await;
    assert_eq!(found.expect("check answers"), []);
}

/// The process dies after it took the letters, and before it sent any.
pub async fn g6_it_dies_before_it_sends<F: StoreFixture>(check: Check<F>) {
    check.bury(3).await;
    let (sending, operation) = Sending::dead(&check, OutboxFault::DiesBefore).await;
    let step = sending.other().step(operation.id).await.expect("it takes");
    assert_eq!(step.taken, 0, "they are held until the lease has ended");
    check.outlast_leases().await;
    let step = sending.other().step(operation.id).await.expect("it takes");
    assert_eq!((step.taken, step.confirmed), (3, 3));
    sending.each_is_sent_once(&operation, 3).await;
}

/// The process dies after the broker has the letters, and before the store knows.
pub async fn g6_it_dies_before_it_records<F: StoreFixture>(check: Check<F>) {
    check.bury(3).await;
    let (sending, operation) = Sending::dead(&check, OutboxFault::DiesAfter).await;
    assert_eq!(sending.arrived().len(), 3);
    check.outlast_leases().await;
    let outbox = FaultyOutbox::new(MemoryOutbox::new(&sending.broker).sender("second"));
    let step = sending.of(outbox.clone()).step(operation.id).await.expect("it takes");
    assert_eq!((step.taken, step.confirmed, step.doubtful), (3, 3, 0));
    // A broker that forgets what it has would have it twice.
    assert_eq!(outbox.handed_over(), 0, "what has arrived is recorded, and not sent");
    sending.each_is_sent_once(&operation, 3).await;
}

/// The answers of the broker are lost: the letters are settled once the lease has ended.
pub async fn g6_answers_are_lost<F: StoreFixture>(check: Check<F>) {
    check.bury(3).await;
    let sending = Sending::new(&check);
    let operation = sending.start().await;
    sending.outbox.fail([OutboxFault::LosesAnswers]);
    let step = sending.dispatcher().step(operation.id).await.expect("it takes");
    assert_eq!((step.unknown, step.confirmed), (3, 0));
    check.outlast_leases().await;
    let step = sending.dispatcher().step(operation.id).await.expect("it takes");
    assert_eq!((step.taken, step.confirmed), (3, 3));
    assert_eq!(sending.outbox.handed_over(), 3, "none is sent again");
    sending.each_is_sent_once(&operation, 3).await;
}

/// A process is stopped beyond its lease and goes on: what it sends then has the id of what another has sent.
pub async fn g6_a_late_sender_sends_the_same<F: StoreFixture>(check: Check<F>) {
    check.bury(3).await;
    let sending = Sending::new(&check);
    let operation = sending.start().await;
    sending.outbox.fail([OutboxFault::IsLate]);
    let step = sending.dispatcher().step(operation.id).await.expect("it takes");
    assert_eq!(step.unknown, 3);
    check.outlast_leases().await;
    let step = sending.other().step(operation.id).await.expect("it takes");
    assert_eq!((step.taken, step.confirmed), (3, 3));
    sending.outbox.deliver_late().await.expect("it goes on");
    sending.each_is_sent_once(&operation, 3).await;
}

/// The broker is away for a while: letters wait, and are sent once it is back.
pub async fn g10_the_broker_is_away<F: StoreFixture>(check: Check<F>) {
    check.bury(3).await;
    let sending = Sending::new(&check);
    let operation = sending.start().await;
    sending.outbox.set_away(true);
    let step = sending.dispatcher().step(operation.id).await.expect("it takes");
    assert_eq!((step.later, step.confirmed), (3, 0));
    assert!(step.error.is_some());
    let progress = check.operation(&operation).await.progress;
    assert_eq!(progress.with_outcome(ItemOutcome::Queued), 3, "nobody has to wait for a lease");
    sending.outbox.set_away(false);
    let step = sending.dispatcher().step(operation.id).await.expect("it takes");
    assert_eq!(step.confirmed, 3);
    sending.each_is_sent_once(&operation, 3).await;
}

/// A letter that the broker refuses for good concerns itself alone.
pub async fn g4_one_letter_is_refused<F: StoreFixture>(check: Check<F>) {
    let letters = check.bury(3).await;
    let sending = Sending::new(&check);
    let operation = sending.start().await;
    sending.outbox.refuse(letters[1].id);
    let step = sending.dispatcher().step(operation.id).await.expect("it takes");
    assert_eq!((step.confirmed, step.refused.len()), (2, 1));
    assert_eq!(step.refused[0].0, letters[1].id);
    assert_eq!(check.status(letters[1].id).await, Status::Pending);
    assert_eq!(check.operation(&operation).await.state, OperationState::Completed);
}

/// A letter of another cluster is skipped and named.
pub async fn a_letter_without_an_address_is_skipped<F: StoreFixture>(check: Check<F>) {
    let mut letters = check.bury(1).await;
    let mut elsewhere = crate::fixtures::letter(77);
    elsewhere.origin = elsewhere.origin.with_cluster("elsewhere");
    check.put_one(&elsewhere).await;
    letters.push(elsewhere);
    let sending = Sending::new(&check);
    let operation = sending.start().await;
    let step = sending.dispatcher().step(operation.id).await.expect("it takes");
    assert_eq!(step.confirmed, 1);
    assert_eq!(step.refused.len(), 1);
    assert!(step.refused[0].1.contains("elsewhere"), "{:?}", step.refused);
    let items = check.items(&operation).await;
    assert!(items[1].why.as_deref().is_some_and(|why| why.contains("elsewhere")), "{items:?}");
}

/// An operation is cancelled while a process that died has letters on their way: none is sent after that.
pub async fn g6_what_is_cancelled_is_not_sent<F: StoreFixture>(check: Check<F>) {
    let letters = check.bury(3).await;
    let (sending, operation) = Sending::dead(&check, OutboxFault::DiesBefore).await;
    check.store.control(operation.id, Control::Cancel, by()).await.expect("it is cancelled");
    check.outlast_leases().await;
    let dispatcher = sending.other();
    let run = timeout(PATIENCE, dispatcher.run(operation.id, pending(), |_| {})).await;
    assert_eq!(run.expect("it ends").expect("it runs").confirmed, 0);
    assert!(sending.arrived().is_empty());
    for letter in &letters {
        assert_eq!(check.status(letter.id).await, Status::Pending);
    }
}

/// A process dies after the broker has the letters, nobody can say so, and the operation is paused: they are not put back as if
/// they had not been sent. Sent once more when it goes on, they count as doubtful.
pub async fn g6_what_is_unclear_stays_so_in_a_pause<F: StoreFixture>(check: Check<F>) {
    check.bury(3).await;
    let (sending, operation) = Sending::dead(&check, OutboxFault::DiesAfter).await;
    sending.outbox.set_unclear(true);
    check.store.control(operation.id, Control::Pause, by()).await.expect("it is paused");
    check.outlast_leases().await;
    let step = sending.dispatcher().step(operation.id).await.expect("it takes");
    assert_eq!((step.taken, step.unknown, step.later), (3, 3, 0));
    check.store.control(operation.id, Control::Resume, by()).await.expect("it goes on");
    check.outlast_leases().await;
    let step = sending.dispatcher().step(operation.id).await.expect("it takes");
    assert_eq!((step.confirmed, step.doubtful), (3, 3));
}

/// The same, and the operation is cancelled, or the broker does not take it a second time: the letters are quarantined, since
/// to send them from the store would be to send them twice, perhaps.
pub async fn g6_what_is_unclear_at_the_end_is_quarantined<F: StoreFixture>(check: Check<F>) {
    let letters = check.bury(3).await;
    let (sending, operation) = Sending::dead(&check, OutboxFault::DiesAfter).await;
    sending.outbox.set_unclear(true);
    sending.outbox.refuse(letters[0].id);
    check.outlast_leases().await;
    sending.outbox.fail([OutboxFault::LosesAnswers]);
    let step = sending.dispatcher().step(operation.id).await.expect("it takes");
    assert_eq!((step.refused.len(), step.unknown), (1, 2));
    assert_eq!(check.status(letters[0].id).await, Status::Quarantined);
    check.store.control(operation.id, Control::Cancel, by()).await.expect("it is cancelled");
    check.outlast_leases().await;
    let dispatcher = sending.dispatcher();
    let run = timeout(PATIENCE, dispatcher.run(operation.id, pending(), |_| {})).await;
    let run = run.expect("it ends").expect("it runs");
    assert_eq!((run.confirmed, run.refused), (0, 2));
    for item in check.items(&operation).await {
        assert_eq!(item.outcome, ItemOutcome::Skipped);
        let why = item.why.unwrap_or_default();
        assert!(why.contains("perhaps sent"), "{why}");
        let state = check.state(item.letter).await;
        assert_eq!((state.status, state.operation), (Status::Quarantined, None));
    }
}

/// A process without the outbox of a letter does not touch what another has on its way: it could not ask what was sent.
pub async fn g6_who_has_not_all_outboxes_sends_nothing<F: StoreFixture>(check: Check<F>) {
    check.bury(3).await;
    let (sending, operation) = Sending::dead(&check, OutboxFault::DiesAfter).await;
    check.outlast_leases().await;
    let elsewhere = MemoryOutbox::new(&sending.broker).cluster("elsewhere").sender("third");
    let dispatcher = sending.of(FaultyOutbox::new(elsewhere));
    let refused = dispatcher.step(operation.id).await.expect_err("it lacks one");
    assert_eq!(refused.kind(), StoreErrorKind::InvalidConfig);
    assert!(refused.to_string().contains("memory"), "{refused}");
    let refused = timeout(PATIENCE, dispatcher.run(operation.id, pending(), |_| {})).await;
    assert!(refused.expect("it ends").is_err());
    let step = sending.other().step(operation.id).await.expect("it takes");
    assert_eq!((step.taken, step.confirmed), (3, 3));
    sending.each_is_sent_once(&operation, 3).await;
}

/// Two processes send one operation: each letter once.
pub async fn g6_two_processes_send_each_letter_once<F: StoreFixture>(check: Check<F>) {
    check.bury_at_once(200).await;
    let sending = Sending::new(&check);
    let operation = sending.start().await;
    let (one, other) = (sending.dispatcher(), sending.other());
    let both = async {
        tokio::join!(
            one.run(operation.id, pending(), |_| {}),
            other.run(operation.id, pending(), |_| {})
        )
    };
    let (one, other) = timeout(PATIENCE, both).await.expect("both end");
    let (one, other) = (one.expect("it runs"), other.expect("it runs"));
    assert_eq!(one.confirmed + other.confirmed, 200);
    sending.each_is_sent_once(&operation, 200).await;
}

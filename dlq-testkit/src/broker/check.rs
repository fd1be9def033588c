use std::collections::BTreeMap;
use std::future::{Future, pending};
use std::time::Duration;

use dlq_core::replay::{ReplayPlan, ReplayReport};
use dlq_core::store::Letters;
use dlq_core::{
    DeadLetter, Filter, LetterId, LetterSummary, Message, Order, PageRequest, Timestamp,
};

use super::{Arrived, BrokerFixture, ReplaySpec, ReplayTarget};
use crate::account::Entry;
use crate::fixtures::letter_of;

/// Time that one check may take: some begin anew at dozens of places.
const DEADLINE: Duration = Duration::from_secs(600);

/// The tools of a check: a place of its own, and shorthands that panic when the broker does not answer.
#[derive(Debug)]
pub struct Check<F: BrokerFixture> {
    name: &'static str,
    /// The place.
    pub fixture: F,
}

/// Runs one check at a fresh place; does nothing where there is no broker to be had.
///
/// # Panics
///
/// When the broker breaks the promise that the check is about.
pub fn run<F: BrokerFixture, R: Future<Output = ()>>(
    name: &'static str,
    check: impl FnOnce(Check<F>) -> R,
) {
    if Entry::new::<F>("broker", name).begin(F::is_available()) {
        // Boxed: a check that does several things at once is large, and threads of tests are small.
        let checked = async { check(Check { name, fixture: F::fresh(name).await }).await };
        crate::run::run_within(DEADLINE, name, Box::pin(checked));
    }
}

impl<F: BrokerFixture> Check<F> {
    /// Says that the check is left out.
    pub(super) fn left_out(&self, why: &str) {
        Entry::new::<F>("broker", self.name).left_out(why);
    }

    /// Another place of the same check.
    pub(super) async fn beside(&self, number: u32) -> Self {
        Self { name: self.name, fixture: F::fresh(&format!("{}-{number}", self.name)).await }
    }

    /// A letter for the `number`-th message, which was this one.
    pub(super) fn letter(&self, number: u32, message: Message) -> DeadLetter {
        let message = message.with_published_at(Timestamp::from_millis(1_790_000_000_000));
        let mut letter = letter_of(message, u64::from(number));
        letter.origin = self.fixture.origin(number);
        letter.consumer = F::CONSUMER.to_owned();
        letter.id = LetterId::of(&letter.origin, letter.message.published_at(), &letter.consumer);
        letter
    }

    /// Letters for messages of which each is its number.
    pub(super) fn dead(&self, numbers: impl IntoIterator<Item = u32>) -> Vec<DeadLetter> {
        let one = |number: u32| {
            let message = Message::new(self.fixture.subject(), number.to_string());
            let message = message.with_header("traceparent", "00-1-2-01");
            self.letter(number, message.with_key(format!("customer-{}", number % 7)))
        };
        numbers.into_iter().map(one).collect()
    }

    /// Writes letters of these numbers, and opens them.
    pub(super) async fn bury(&self, numbers: impl IntoIterator<Item = u32>) -> F::Letters {
        self.fixture.bury(self.dead(numbers)).await;
        self.fixture.letters()
    }

    /// Writes letters one after another, each in a millisecond of its own: by that brokers know their order.
    pub(super) async fn bury_in_order(&self, letters: Vec<DeadLetter>) {
        for letter in letters {
            self.fixture.bury(vec![letter]).await;
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Plans a replay of the letters as another process would.
    pub(super) async fn plan(&self, spec: ReplaySpec) -> ReplayPlan {
        let replay = self.fixture.replay(&self.fixture.letters(), spec);
        F::plan(&replay).await.expect("a replay is planned")
    }

    /// Runs a replay of the letters as another process would, to its end.
    pub(super) async fn run(&self, spec: ReplaySpec) -> ReplayReport {
        let replay = self.fixture.replay(&self.fixture.letters(), spec);
        let report = F::run(&replay, pending(), |_, _| {}).await.expect("a replay is run");
        assert!(report.is_complete(), "{report}");
        report
    }

    /// Counts how often each payload was sent back to this target.
    pub(super) async fn sent_to(&self, target: ReplayTarget) -> BTreeMap<String, u32> {
        let mut sent = BTreeMap::new();
        for arrived in self.fixture.arrived(target).await {
            *sent.entry(arrived.text()).or_default() += 1;
        }
        sent
    }

    /// Makes sure that each of these numbers was sent back to this target once, and nothing else was.
    pub(super) async fn assert_once(
        &self,
        target: ReplayTarget,
        numbers: impl IntoIterator<Item = u32>,
    ) {
        let mut sent = self.sent_to(target).await;
        let numbers = numbers.into_iter().map(|number| number.to_string());
        let not_once: Vec<_> =
            numbers.map(|n| (sent.remove(&n), n)).filter(|n| n.0 != Some(1)).collect();
        assert!(
            not_once.is_empty() && sent.is_empty(),
            "not once: {not_once:?}; not asked: {sent:?}"
        );
    }
}

/// Every letter that matches, by pages of seven.
pub(super) async fn listed(
    letters: &impl Letters,
    filter: &Filter,
    order: Order,
) -> Vec<LetterSummary> {
    let mut page = PageRequest::new().order(order).limit(7);
    let mut all = Vec::new();
    loop {
        let found = letters.list(filter.clone(), page).await.expect("letters are listed");
        assert!(found.letters.len() <= 7, "a page is no longer than asked for");
        all.extend(found.letters);
        if found.next.is_none() {
            return all;
        }
        page = page.after(found.next);
    }
}

/// Returns true if what has arrived has every header of the message that died: in their order and before all others, where
/// the broker keeps that.
pub(super) fn has_headers_of<F: BrokerFixture>(arrived: &Arrived, message: &Message) -> bool {
    let (found, sent) = (arrived.0.headers(), message.headers());
    if F::KEEPS_ORDER_OF_HEADERS {
        return found.iter().take(sent.iter().count()).eq(sent.iter());
    }
    sent.iter().all(|header| found.iter().any(|found| found == header))
}

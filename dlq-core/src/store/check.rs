//! Findings about a store: the data that each store gathers, and its interpretation.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{ItemOutcome, Operation, OperationState};
use crate::policy::duration;
use crate::{Finding, Severity, Status, Timestamp};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// From where on something in a store is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct CheckLimits {
    /// A letter that could be claimed this long ago, and that nobody has claimed since.
    pub overdue: Duration,
    /// An unresolved letter of this age, such as the time for which letters are to be kept.
    pub age: Duration,
    /// An operation that has letters to release, could, and has released none for this long.
    pub idle: Duration,
    /// This many rows in the processing audit.
    pub processed: u64,
    /// A letter that is due so far in the future.
    pub ahead: Duration,
    /// A letter that was stored so far in the future.
    pub skew: Duration,
    /// True to look for damage too, which reads everything that is stored.
    pub is_deep: bool,
}

impl Default for CheckLimits {
    /// Sets one hour overdue, seven days old, ten minutes idle, ten million rows, due in seven days, five minutes of skew;
    /// not deep.
    fn default() -> Self {
        Self {
            overdue: Duration::from_secs(3600),
            age: 7 * DAY,
            idle: Duration::from_secs(600),
            processed: 10_000_000,
            ahead: 7 * DAY,
            skew: Duration::from_secs(300),
            is_deep: false,
        }
    }
}

impl CheckLimits {
    /// Sets how long a letter may wait for somebody to claim it. Defaults to one hour.
    pub const fn overdue(mut self, overdue: Duration) -> Self {
        self.overdue = overdue;
        self
    }

    /// Sets how old an unresolved letter may be. Defaults to seven days.
    pub const fn age(mut self, age: Duration) -> Self {
        self.age = age;
        self
    }

    /// Sets for how long an operation may release nothing. Defaults to ten minutes.
    pub const fn idle(mut self, idle: Duration) -> Self {
        self.idle = idle;
        self
    }

    /// Sets how many rows the processing audit may have. Defaults to ten million.
    pub const fn processed(mut self, rows: u64) -> Self {
        self.processed = rows;
        self
    }

    /// Sets how far ahead a letter may be due. Defaults to seven days.
    pub const fn ahead(mut self, ahead: Duration) -> Self {
        self.ahead = ahead;
        self
    }

    /// Sets how far clocks may differ. Defaults to five minutes.
    pub const fn skew(mut self, skew: Duration) -> Self {
        self.skew = skew;
        self
    }

    /// Also looks for damage, which reads everything that is stored. Defaults to no.
    pub const fn deep(mut self, deep: bool) -> Self {
        self.is_deep = deep;
        self
    }
}

/// A letter that can be claimed, or can be at a later time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// `replaying` when the lease of a claim has ended, `retrying` for a retry record, `pending` for a letter that was
    /// released or scheduled.
    pub status: Status,
    /// Consumer that should claim the letter.
    pub consumer: String,
    /// Time from which the letter can be claimed.
    pub since: Timestamp,
}

/// Facts that a store finds out about itself without reading its letters, for [`Maintenance::check`](super::Maintenance::check).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Vitals {
    /// The time by the store's clock.
    pub now: Timestamp,
    /// For each consumer the [`Vitals::MOST`] letters that have waited longest for it to claim them.
    pub waiting: Vec<Waiting>,
    /// For each consumer the letter that is due last.
    pub latest: Vec<Waiting>,
    /// When the earliest unresolved letter was stored.
    pub oldest_unresolved: Option<Timestamp>,
    /// When the latest letter was stored.
    pub newest: Option<Timestamp>,
    /// Operations that may release letters, or whose letters are being frozen.
    pub operations: Vec<Operation>,
    /// Approximate number of rows in the processing audit.
    pub processed: u64,
}

impl Vitals {
    /// Maximum number of waiting letters that are examined.
    pub const MOST: u32 = 1000;

    /// A store at this time about which nothing else is known yet.
    #[must_use]
    pub const fn new(now: Timestamp) -> Self {
        Self {
            now,
            waiting: Vec::new(),
            latest: Vec::new(),
            oldest_unresolved: None,
            newest: None,
            operations: Vec::new(),
            processed: 0,
        }
    }

    /// Returns the problems among these facts.
    #[must_use]
    pub fn findings(&self, limits: &CheckLimits) -> Vec<Finding> {
        let mut findings = self.nobody_takes(limits);
        findings.extend(self.latest.iter().filter_map(|letter| self.too_late(letter, limits)));
        findings
            .extend(self.operations.iter().filter_map(|operation| self.stuck(operation, limits)));
        findings.extend(self.too_old(limits));
        findings.extend(self.in_the_future(limits));
        findings.extend(self.long_audit(limits));
        findings
    }

    fn nobody_takes(&self, limits: &CheckLimits) -> Vec<Finding> {
        let latest = self.now.before(limits.overdue);
        let mut lines: BTreeMap<(Status, &str), (u64, Timestamp)> = BTreeMap::new();
        for Waiting { status, consumer, since } in &self.waiting {
            if *since <= latest {
                let (count, first) = lines.entry((*status, consumer)).or_insert((0, *since));
                *count += 1;
                *first = (*first).min(*since);
            }
        }
        let mut looked_at: BTreeMap<&str, u32> = BTreeMap::new();
        for waiting in &self.waiting {
            *looked_at.entry(&waiting.consumer).or_default() += 1;
        }
        let overdue = duration::format(limits.overdue);
        let finding = |((status, consumer), (count, since)): ((Status, &str), (u64, Timestamp))| {
            let (setting, advice) = match status {
                Status::Replaying => (
                    "unfinished claims",
                    format!(
                        "whoever held these letters has died, and nobody has taken them since; start a consumer `{consumer}` on \
                         this store, or put them back: dlq mark pending --status replaying --consumer '{consumer}'"
                    ),
                ),
                Status::Retrying => (
                    "overdue retries",
                    format!(
                        "these messages wait for their next attempt and nobody makes it; start a consumer `{consumer}` on this \
                         store (if it was renamed, once more under this name)"
                    ),
                ),
                _ => (
                    "overdue letters",
                    format!(
                        "these letters are to run again and nobody takes them; start a consumer `{consumer}` on this store, or \
                         call it off: dlq mark pending --status pending --consumer '{consumer}'"
                    ),
                ),
            };
            // The list has a bound for each consumer. If it is full, there may be more letters than it has.
            let is_all = looked_at.get(consumer).is_none_or(|count| *count < Self::MOST);
            let more = if is_all { "" } else { "at least " };
            Finding::new(Severity::Warning, &format!("consumer `{consumer}`"), setting)
                .found(
                    format!("{more}{count}, the first since {since}"),
                    format!("none for longer than {overdue}"),
                )
                .advice(advice)
        };
        lines.into_iter().map(finding).collect()
    }

    /// The delay of an error had no bound once, and a clock may be wrong.
    fn too_late(&self, letter: &Waiting, limits: &CheckLimits) -> Option<Finding> {
        let Waiting { status, consumer, since: due } = letter;
        // A claimed letter is due when its lease ends, which says nothing of a delay.
        if *status == Status::Replaying || due.since(self.now) <= limits.ahead {
            return None;
        }
        let ahead = duration::format(limits.ahead);
        Some(
            Finding::new(Severity::Warning, &format!("consumer `{consumer}`"), "latest due time")
                .found(due.to_string(), format!("within {ahead} from now"))
                .advice(format!(
                    "a letter waits for that long, most likely because of a wrong `retry_after` or a wrong clock; bound what \
                     errors may ask for (`max_retry_after` of the policy), and call the wait off: dlq mark pending --status \
                     {status} --consumer '{consumer}', then dlq replay"
                )),
        )
    }

    fn stuck(&self, operation: &Operation, limits: &CheckLimits) -> Option<Finding> {
        if operation.state == OperationState::Preparing {
            return self.abandoned(operation, limits);
        }
        let queued = operation.progress.with_outcome(ItemOutcome::Queued);
        // An operator has paused the others on purpose.
        let releases = matches!(operation.state, OperationState::Running | OperationState::Canary);
        // A rate may put the next letter off for long, so the time counts from then on.
        let since = operation.updated_at.max(operation.next_release);
        // A canary that is out waits for its outcome, not for a consumer.
        if queued == 0 || !releases || self.now.since(since) < limits.idle {
            return None;
        }
        if operation.advance(self.now, u64::MAX).release == 0 {
            return None;
        }
        let id = operation.id;
        let advice = if operation.spec.target.is_handler() {
            format!(
                "no consumer of these letters takes any; dlq op show {id} says which letters wait; start their consumers on \
                 this store, or call it off: dlq op cancel {id}"
            )
        } else {
            format!(
                "nobody sends these letters to their broker; dlq op send {id} --via URL does, or dlq serve --replay; or call it \
                 off: dlq op cancel {id}"
            )
        };
        Some(
            Finding::new(Severity::Warning, &format!("operation {id}"), "letters to release")
                .found(
                    format!("{queued}, and none was released since {since}"),
                    format!("one within {}", duration::format(limits.idle)),
                )
                .advice(advice),
        )
    }

    /// An operation whose letters nobody freezes any more.
    fn abandoned(&self, operation: &Operation, limits: &CheckLimits) -> Option<Finding> {
        let (id, since) = (operation.id, operation.updated_at);
        (self.now.since(since) >= limits.idle).then(|| {
            Finding::new(Severity::Warning, &format!("operation {id}"), "letters to freeze")
                .found(
                    format!("{}, and none was added since {since}", operation.progress.total),
                    format!("one within {}", duration::format(limits.idle)),
                )
                .advice(format!(
                    "it is preparing still, and whoever started it is most likely gone; to send the letters that it has: dlq op \
                     resume {id}, to give it up: dlq op cancel {id}"
                ))
        })
    }

    fn too_old(&self, limits: &CheckLimits) -> Option<Finding> {
        let oldest = self.oldest_unresolved?;
        let age = duration::format(limits.age);
        (self.now.since(oldest) >= limits.age).then(|| {
            Finding::new(Severity::Warning, "letters", "oldest unresolved")
                .found(oldest.to_string(), format!("younger than {age}"))
                .advice(format!(
                    "decide about letters before nobody knows any more what they were: dlq groups --until {age}; then dlq replay, \
                     dlq mark resolved or dlq delete with the same filter"
                ))
        })
    }

    fn in_the_future(&self, limits: &CheckLimits) -> Option<Finding> {
        // A letter from the future is the only trace of a wrong clock that a store can see.
        let newest = self.newest?;
        (newest > self.now.after(limits.skew)).then(|| {
            Finding::new(Severity::Warning, "clock", "latest letter")
                .found(
                    format!("stored at {newest}, and it is {} here", self.now),
                    format!("no later than {} from now", duration::format(limits.skew)),
                )
                .advice(
                    "clocks differ: leases, due times and ages are wrong by as much; synchronise the clocks of the machines that \
                     write to this store, and of this one",
                )
        })
    }

    fn long_audit(&self, limits: &CheckLimits) -> Option<Finding> {
        (self.processed >= limits.processed).then(|| {
            Finding::new(Severity::Warning, "processing audit", "rows")
                .found(format!("about {}", self.processed), format!("fewer than {}", limits.processed))
                .advice(
                    "it has a row for each event and is never shortened by itself; delete old rows of it with SQL, in portions, or \
                     switch it off in consumers that need none",
                )
        })
    }
}

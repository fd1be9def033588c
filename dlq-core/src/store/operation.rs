use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Actor;
use crate::failure::words;
use crate::filter::searchable;
use crate::policy::duration;
use crate::{
    DeadLetter, Filter, LetterId, LetterSummary, OperationId, Order, Origin, Reason, Status,
    Timestamp,
};

/// Destination of letters that are sent back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Target {
    /// To the handler that failed, and to nobody else: its consumer claims them.
    #[default]
    Handler,
    /// To where they came from; everyone who listens there sees them again.
    Origin,
    /// To another subject or topic.
    Subject(String),
}

impl Target {
    /// Returns true if consumers claim the letters; false if somebody sends them through an outbox.
    #[must_use]
    pub const fn is_handler(&self) -> bool {
        matches!(self, Self::Handler)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Handler => f.write_str("handler"),
            Self::Origin => f.write_str("origin"),
            Self::Subject(subject) => f.write_str(subject),
        }
    }
}

/// A cluster of a kind of broker, by its alias: `nats` is the one called `default`, `nats/eu` the one called `eu`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", from = "String")]
pub struct Cluster {
    /// The kind of broker, e.g. `nats` or `kafka`.
    pub transport: String,
    /// The alias of the cluster.
    pub alias: String,
}

impl Cluster {
    /// The cluster of `transport` called `alias`.
    pub fn new(transport: impl Into<String>, alias: impl Into<String>) -> Self {
        Self { transport: transport.into(), alias: alias.into() }
    }

    /// The cluster that a message came from.
    #[must_use]
    pub fn of(origin: &Origin) -> Self {
        Self::new(origin.transport(), origin.cluster())
    }
}

impl fmt::Display for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.alias.as_str() {
            // Most installations have one cluster of a kind, so its alias is left out.
            "default" => f.write_str(&self.transport),
            alias => write!(f, "{}/{alias}", self.transport),
        }
    }
}

impl From<Cluster> for String {
    fn from(cluster: Cluster) -> Self {
        cluster.to_string()
    }
}

impl From<String> for Cluster {
    fn from(text: String) -> Self {
        // The first slash is the border: names of transports have none, and an alias may have any.
        match text.split_once('/') {
            Some((transport, alias)) => Self::new(transport, alias),
            None => Self::new(text, "default"),
        }
    }
}

/// Specification of an operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
#[must_use]
pub struct OperationSpec {
    /// Letters that the operation is about. Only `pending` ones can be sent back; the plan counts what else matched.
    pub filter: Filter,
    /// Destination.
    pub target: Target,
    /// Maximum number of letters, the first ones in `order`; `None` for all.
    pub limit: Option<u64>,
    /// In which order.
    pub order: Order,
    /// The pause between two letters; `None` for no limit.
    pub pace: Option<Pace>,
    /// Send this many first, and stop by itself when one of them fails again.
    pub canary: Option<u32>,
    /// Letters that operators sent back this often are quarantined instead; 0 for no cap.
    pub max_replays: u32,
    /// Texts of errors that are never retried, upper and lower case alike: letters whose latest error contains one are
    /// quarantined instead. The cap is looked at first.
    // Stores keep specifications as JSON. Fields that later versions added may be missing there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub terminal: Vec<String>,
    /// Brokers that letters are sent to, where the target is not their handler. Letters of others are skipped.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub via: BTreeSet<Cluster>,
    /// Time that a canary of letters which were sent, and of which nothing was heard, counts as outstanding.
    #[serde(default, with = "duration", skip_serializing_if = "Duration::is_zero")]
    pub canary_wait: Duration,
}

impl OperationSpec {
    /// The default cap on replays of one letter by operators.
    pub const MAX_REPLAYS: u32 = 10;

    /// Sends the letters that match back to their handlers, oldest first, without a limit.
    pub fn replay(filter: Filter) -> Self {
        Self {
            filter,
            target: Target::Handler,
            limit: None,
            order: Order::OldestFirst,
            pace: None,
            canary: None,
            max_replays: Self::MAX_REPLAYS,
            terminal: Vec::new(),
            via: BTreeSet::new(),
            canary_wait: Duration::ZERO,
        }
    }

    /// The default time that a canary of letters which were sent counts as outstanding.
    pub const CANARY_WAIT: Duration = Duration::from_secs(30);

    /// Sends letters to brokers instead, through outboxes of these clusters. A canary waits for
    /// [`CANARY_WAIT`](Self::CANARY_WAIT) after the last letter.
    pub fn target(mut self, target: Target, via: impl IntoIterator<Item = Cluster>) -> Self {
        self.target = target;
        self.via = via.into_iter().collect();
        self.canary_wait = Self::CANARY_WAIT;
        self
    }

    /// Sets how long a canary waits for news of letters that were sent.
    pub fn canary_wait(mut self, wait: Duration) -> Self {
        self.canary_wait = wait;
        self
    }

    /// Sets how many at most. Defaults to all.
    pub fn limit(mut self, limit: u64) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Sets how fast at most. Defaults to no limit.
    pub fn pace(mut self, pace: Pace) -> Self {
        self.pace = Some(pace);
        self
    }

    /// Sends this many first and stops by itself when one of them fails again. Defaults to none.
    pub fn canary(mut self, canary: u32) -> Self {
        self.canary = (canary > 0).then_some(canary);
        self
    }

    /// Sets the cap on replays of one letter; 0 for none. Defaults to 10.
    pub fn max_replays(mut self, max_replays: u32) -> Self {
        self.max_replays = max_replays;
        self
    }

    /// Quarantines letters whose latest error contains `text`, instead of sending them. Defaults to none.
    pub fn terminal(mut self, text: impl Into<String>) -> Self {
        self.terminal.push(text.into());
        self
    }

    /// Returns why a whole letter is quarantined instead of being sent: the reason, and a text for people.
    #[must_use]
    pub fn sets_aside(&self, letter: &DeadLetter) -> Option<(Reason, String)> {
        let replays = letter.state.replays;
        if self.is_past_cap(replays) {
            return Some((
                Reason::MaxReplays,
                format!("sent back {replays} times, which is the cap"),
            ));
        }
        let text = terminal(&self.terminal, letter)?;
        Some((Reason::TerminalError, format!("its error contains `{text}`")))
    }

    /// Returns true if a letter that was sent back `replays` times has reached the cap.
    #[must_use]
    pub const fn is_past_cap(&self, replays: u32) -> bool {
        self.max_replays != 0 && replays >= self.max_replays
    }
}

/// Returns the first of these texts that the latest error of a whole letter contains, upper and lower case alike.
pub(super) fn terminal<'t>(texts: &'t [String], letter: &DeadLetter) -> Option<&'t str> {
    // Most operations name no text, and folding the whole error of each letter for nothing would cost time.
    if texts.is_empty() {
        return None;
    }
    let error = searchable(&letter.error());
    texts.iter().map(String::as_str).find(|text| error.contains(&searchable(text)))
}

/// A rate: how much time passes between two letters. Its text form is `50/s`, `10/m` or `1/h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Pace {
    count: u32,
    per: Duration,
}

/// A text that is not a rate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a rate; write a number above zero and a unit, e.g. `50/s`, `10/m`, `1/h`")]
pub struct InvalidPace {
    text: String,
}

impl Pace {
    /// `count` letters a second; `None` for zero.
    #[must_use]
    pub const fn per_second(count: u32) -> Option<Self> {
        if count == 0 { None } else { Some(Self { count, per: Duration::from_secs(1) }) }
    }

    /// Reads a rate, or `none`: no limit.
    ///
    /// # Errors
    ///
    /// When the text is neither.
    pub fn or_none(text: &str) -> Result<Option<Self>, InvalidPace> {
        if text.trim() == "none" { Ok(None) } else { text.parse().map(Some) }
    }

    /// The time between two letters.
    #[must_use]
    pub fn interval(self) -> Duration {
        // More than a billion a second round to no time at all, by which `take` would divide.
        (self.per / self.count).max(Duration::from_nanos(1))
    }

    /// Returns the number of letters, at most `most`, that may go at `now` if the next one may go at `next`, and the
    /// time at which the following ones may go.
    ///
    /// A pause does not save up: after it at most a tenth of a second's worth (at least one letter) goes at once, so that no
    /// second sees more than the rate and a tenth. This is the generic cell rate algorithm (ITU-T I.371) with that burst.
    #[must_use]
    pub fn take(self, next: Timestamp, now: Timestamp, most: u64) -> (u64, Timestamp) {
        // Without a burst, each late call would lose the letters of the time by which it was late, and the rate would
        // never be reached.
        const BURST: Duration = Duration::from_millis(100);
        if next > now || most == 0 {
            return (0, next);
        }
        let interval = self.interval().as_nanos();
        let burst = (BURST.as_nanos() / interval).max(1);
        let waited = now.since(next).as_nanos() / interval;
        // After a long pause the start moves forward, so that the time before it earns nothing.
        let (from, earned) = if waited >= burst {
            (now.before(nanos(interval * (burst - 1))), burst)
        } else {
            (next, waited + 1)
        };
        let count = earned.min(u128::from(most));
        (u64::try_from(count).unwrap_or(u64::MAX), from.after(nanos(interval * count)))
    }
}

/// At most about 585 years, which is longer than any [`Timestamp`] reaches.
fn nanos(count: u128) -> Duration {
    Duration::from_nanos(u64::try_from(count).unwrap_or(u64::MAX))
}

impl fmt::Display for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = match self.per.as_secs() {
            1 => "s",
            60 => "m",
            _ => "h",
        };
        write!(f, "{}/{unit}", self.count)
    }
}

impl FromStr for Pace {
    type Err = InvalidPace;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // A number without a unit is a rate in a second.
        let (count, unit) = text.split_once('/').unwrap_or((text, "s"));
        let seconds = match unit.trim() {
            "s" => Some(1),
            "m" => Some(60),
            "h" => Some(3600),
            _ => None,
        };
        let count = count.trim().parse::<u32>().ok().filter(|count| *count > 0);
        seconds
            .zip(count)
            .map(|(seconds, count)| Self { count, per: Duration::from_secs(seconds) })
            // The text may come from a request and have any length; the error stays readable.
            .ok_or_else(|| InvalidPace { text: text.chars().take(80).collect() })
    }
}

impl TryFrom<String> for Pace {
    type Error = InvalidPace;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Pace> for String {
    fn from(pace: Pace) -> Self {
        pace.to_string()
    }
}

words! {
    /// State of an operation.
    OperationState("operation state") {
        /// Its letters are being frozen; nothing is sent before all of them are. If whoever started it has died it stays
        /// so: resume it to go on with the letters that it has, or cancel it.
        Preparing = "preparing",
        /// Its canary is out; the rest waits for its outcome.
        Canary = "canary",
        /// It sends letters back.
        Running = "running",
        /// An operator paused it.
        Paused = "paused",
        /// It stopped because letters of its canary failed again, by itself or when it was resumed; resume it or cancel it.
        Stopped = "stopped",
        /// Every letter has an outcome.
        Completed = "completed",
        /// An operator cancelled it; what was not sent is untouched.
        Cancelled = "cancelled",
    }
}

impl OperationState {
    /// Returns true if the state is final.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Completed | Self::Cancelled)
    }
}

words! {
    /// Outcome of an operation for one letter.
    ItemOutcome("outcome") {
        /// It waits its turn.
        Queued = "queued",
        /// It is due, or being run, or being retried.
        Released = "released",
        /// Somebody sends it; nobody else does until it is known what became of it.
        Sending = "sending",
        /// It was published; whether it succeeded is not known.
        Sent = "sent",
        /// Its handler succeeded, or it had been handled before.
        Succeeded = "succeeded",
        /// It died again.
        FailedAgain = "failed_again",
        /// It was not sent; the item says why.
        Skipped = "skipped",
    }
}

/// Number of letters of an operation in each state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Letters frozen.
    pub total: u64,
    /// Number by outcome; outcomes without a letter are missing.
    pub by_outcome: BTreeMap<ItemOutcome, u64>,
}

impl Progress {
    /// Letters with this outcome.
    #[must_use]
    pub fn with_outcome(&self, outcome: ItemOutcome) -> u64 {
        self.by_outcome.get(&outcome).copied().unwrap_or(0)
    }

    /// Letters whose outcome is final.
    #[must_use]
    // `Sent` counts as final: a broker does not tell whether a handler succeeded, and the operation has to end all the
    // same.
    pub fn done(&self) -> u64 {
        self.total
            - self.with_outcome(ItemOutcome::Queued)
            - self.with_outcome(ItemOutcome::Released)
            - self.with_outcome(ItemOutcome::Sending)
    }

    /// Letters that were sent back, whatever became of them.
    #[must_use]
    // Letters that are still on their way count. Otherwise more letters than the canary has could be released
    // meanwhile.
    pub fn sent(&self) -> u64 {
        self.total
            - self.with_outcome(ItemOutcome::Queued)
            - self.with_outcome(ItemOutcome::Skipped)
    }

    /// Returns true if every letter's outcome is final.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.done() == self.total
    }
}

/// Many letters being sent back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// Its identity.
    pub id: OperationId,
    /// Specification of the operation.
    pub spec: OperationSpec,
    /// State of the operation.
    pub state: OperationState,
    /// Person or program that started the operation, and the reason.
    pub by: Actor,
    /// When it was started.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// When the next letter may be released, by its rate.
    pub next_release: Timestamp,
    /// Progress of the operation.
    pub progress: Progress,
}

impl Operation {
    /// Decides what is to be done now: how many queued letters to release, when the next may go, and the state it is
    /// then in. Pure; every store asks it and carries the answer out in the same transaction.
    ///
    /// `room` is how many can be handed out at once. Letters are released only when somebody is there to take them, so
    /// that pausing and cancelling stop at once.
    #[must_use]
    pub fn advance(&self, now: Timestamp, room: u64) -> Advance {
        let progress = &self.progress;
        let queued = progress.with_outcome(ItemOutcome::Queued);
        let mut state = self.state;
        let mut quota = queued;
        match state {
            // A set that is not frozen yet is never complete, even if each of its letters has an outcome: more may come.
            OperationState::Preparing => {
                return Advance { release: 0, next_release: self.next_release, state };
            }
            OperationState::Canary => {
                let canary = u64::from(self.spec.canary.unwrap_or(0));
                let sent = progress.sent();
                // A single letter that failed again stops the canary, whatever is still outstanding.
                if progress.with_outcome(ItemOutcome::FailedAgain) > 0 {
                    state = OperationState::Stopped;
                    quota = 0;
                } else if sent < canary && queued > 0 {
                    quota = (canary - sent).min(queued);
                } else if self.is_canary_outstanding(now) {
                    quota = 0;
                } else {
                    state = OperationState::Running;
                }
            }
            OperationState::Running => {}
            _ => quota = 0,
        }
        // A paused or stopped operation completes as well: nothing is left to resume.
        if !state.is_final() && progress.is_complete() {
            return Advance {
                release: 0,
                next_release: self.next_release,
                state: OperationState::Completed,
            };
        }
        let most = quota.min(room);
        let (release, next_release) = match self.spec.pace {
            Some(pace) => pace.take(self.next_release, now, most),
            None => (most, self.next_release),
        };
        Advance { release, next_release, state }
    }

    /// Returns true if a letter of the canary may still fail: one that runs or is being sent; and, until nothing was heard for
    /// the wait of the canary, one that was sent.
    fn is_canary_outstanding(&self, now: Timestamp) -> bool {
        let progress = &self.progress;
        progress.with_outcome(ItemOutcome::Released) > 0
            || progress.with_outcome(ItemOutcome::Sending) > 0
            || (progress.with_outcome(ItemOutcome::Sent) > 0
                && now < self.updated_at.after(self.spec.canary_wait))
    }

    /// Returns when more letters may be released, by the clock alone; `None` if that takes more than time.
    #[must_use]
    pub fn next_chance(&self, now: Timestamp) -> Option<Timestamp> {
        let can = |at| self.advance(at, u64::MAX).release > 0;
        let canary = (self.state == OperationState::Canary)
            .then(|| self.updated_at.after(self.spec.canary_wait));
        // At these moments only can time alone make a difference, so that each is tried.
        let times = [Some(now), Some(self.next_release), canary];
        times.into_iter().flatten().filter(|at| *at >= now && can(*at)).min()
    }

    /// Returns when letters can be released to their handlers; `None` if that takes more than time, or if they are sent
    /// through an outbox.
    #[must_use]
    pub fn next_to_handlers(&self, now: Timestamp) -> Option<Timestamp> {
        if self.spec.target.is_handler() { self.next_chance(now) } else { None }
    }

    /// Returns when the last queued letter may be released, by the rate alone; `None` without a rate, and if none may be
    /// released now.
    #[must_use]
    pub fn estimated_end(&self, now: Timestamp) -> Option<Timestamp> {
        let queued = self.progress.with_outcome(ItemOutcome::Queued);
        let is_open = matches!(self.state, OperationState::Canary | OperationState::Running);
        let pace = self.spec.pace.filter(|_| is_open && queued > 0)?;
        let rest = nanos(pace.interval().as_nanos().saturating_mul(u128::from(queued - 1)));
        Some(self.next_release.max(now).after(rest))
    }

    /// Returns when the next letter may be released if the rate is `pace` from `now` on.
    ///
    /// The last release keeps its time, and the next one follows it by the new interval: who changes the rate often sends no
    /// more than the fastest of the rates allows.
    #[must_use]
    pub fn next_release_at(&self, pace: Option<Pace>, now: Timestamp) -> Timestamp {
        match (self.spec.pace, pace) {
            (_, None) => self.next_release.min(now),
            // Without a rate no time is kept.
            (None, Some(_)) => self.next_release.max(now),
            // The first letter follows none.
            (Some(_), Some(_)) if self.progress.sent() == 0 => self.next_release,
            (Some(old), Some(new)) => {
                self.next_release.before(old.interval()).after(new.interval())
            }
        }
    }

    /// The state that `control` leads to; the present one when there is nothing to change, `None` when the operation
    /// has ended and cannot be steered that way. Pure; every store asks it.
    ///
    /// Pausing one that stopped by itself leaves it stopped. Resuming one that was paused goes on with its canary
    /// unless the canary is through. One that is being prepared can be paused before it has begun, and then waits once its
    /// letters are frozen; who resumes it lets it go on with the letters that it has. A canary that failed while the operation was paused stops it: who resumes it may not
    /// have seen the failure, and resumes it once more to go on without a canary.
    #[must_use]
    pub fn steer(&self, control: Control) -> Option<OperationState> {
        use OperationState::{Canary, Cancelled, Completed, Paused, Preparing, Running, Stopped};
        match (control, self.state) {
            (_, Completed) | (Control::Pause | Control::Resume, Cancelled) => None,
            // Cancelling twice is no error, since an operator whose answer was lost asks again.
            (Control::Cancel, _) => Some(Cancelled),
            (Control::Pause, Preparing | Canary | Running) => Some(Paused),
            (Control::Pause, state) => Some(state),
            (Control::Resume, Stopped) => Some(Running),
            (Control::Resume, Preparing | Paused) => {
                // More letters than the canary has are sent only after it went through, so the counts tell what was paused.
                let in_canary = self
                    .spec
                    .canary
                    .is_some_and(|canary| self.progress.sent() <= u64::from(canary));
                let failed = self.progress.with_outcome(ItemOutcome::FailedAgain) > 0;
                Some(match (in_canary, failed) {
                    (true, true) => Stopped,
                    (true, false) => Canary,
                    (false, _) => Running,
                })
            }
            (Control::Resume, state) => Some(state),
        }
    }
}

/// Next step of an operation; see [`Operation::advance`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advance {
    /// Number of queued letters to make due.
    pub release: u64,
    /// When the next one may be released.
    pub next_release: Timestamp,
    /// The state it is in from now on.
    pub state: OperationState,
}

/// A letter of an operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationItem {
    /// Its place in the frozen order, from 0.
    pub index: u64,
    /// The letter.
    pub letter: LetterId,
    /// The generation that was frozen.
    pub generation: u32,
    /// Outcome for the letter.
    pub outcome: ItemOutcome,
    /// Reason why the letter was skipped.
    pub why: Option<String>,
    /// When it last changed.
    pub at: Timestamp,
}

/// A piece of an operation's items.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ItemPage {
    /// The items.
    pub items: Vec<OperationItem>,
    /// Number of items to skip for the next page; `None` on the last page.
    pub next: Option<u64>,
}

/// Plan of an operation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Letters that would be frozen: pending, matching, within the limit, of no other operation.
    pub count: u64,
    /// Number of these letters that have reached the cap on replays and would be quarantined instead.
    pub past_cap: u64,
    /// Letters that match but cannot be sent back, by status; pending ones here belong to another operation.
    pub ineligible: BTreeMap<Status, u64>,
    /// The first letters that would go, in order; at most 10.
    pub sample: Vec<LetterSummary>,
}

words! {
    /// Command that steers an operation.
    Control("control") {
        /// Release no more letters for now.
        Pause = "pause",
        /// Go on; after a canary that failed, without a canary. A paused operation whose canary failed meanwhile stops
        /// first.
        Resume = "resume",
        /// Release no more letters, for good.
        Cancel = "cancel",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    #[test]
    fn a_pace_neither_exceeds_its_rate_nor_saves_up() {
        let pace: Pace = "10/s".parse().unwrap();
        let all = u64::MAX;
        assert_eq!(pace.take(at(0), at(0), all), (1, at(100)));
        assert_eq!(pace.take(at(100), at(50), all), (0, at(100)));
        assert_eq!(pace.take(at(100), at(199), all), (1, at(200)), "on schedule");
        assert_eq!(pace.take(at(100), at(450), all), (1, at(550)));
        let pace: Pace = "100/s".parse().unwrap();
        assert_eq!(pace.take(at(100), at(145), all), (5, at(150)));
        assert_eq!(pace.take(at(100), at(145), 2), (2, at(120)));
        assert_eq!(pace.take(at(0), at(60_000), all), (10, at(60_010)));
        assert_eq!(pace.take(at(0), at(60_000), 0), (0, at(0)));
        assert_eq!("1/h".parse::<Pace>().unwrap().take(at(0), at(0), all).0, 1);
        for text in ["0/s", "x", "10/y", "", "-1/s"] {
            assert!(text.parse::<Pace>().is_err(), "{text}");
        }
        assert_eq!("50".parse::<Pace>().unwrap().to_string(), "50/s");
    }

    /// However late and however often it is asked.
    #[test]
    fn no_limit_is_said_in_a_word() {
        assert_eq!(Pace::or_none("none"), Ok(None));
        assert_eq!(Pace::or_none("50/s"), Ok(Pace::per_second(50)));
        assert!(Pace::or_none("").is_err() && Pace::or_none("0/s").is_err());
    }

    #[test]
    fn no_second_sees_more_letters_than_the_rate_and_a_tenth() {
        for (rate, step) in [(200, 5), (200, 1), (200, 130), (200, 700), (7, 40), (1_000, 3)] {
            let pace = Pace::per_second(rate).unwrap();
            let (mut next, mut taken) = (at(0), Vec::new());
            // Begun long after it was planned, and paused from the third second to the ninth.
            let times = (5_000..8_000).chain(14_000..20_000).step_by(step);
            for now in times {
                let (count, then) = pace.take(next, at(now), u64::MAX);
                next = then;
                taken.push((now, count));
            }
            let limit = u64::from(rate) + u64::from(rate).div_ceil(10) + 1;
            for (index, (begin, _)) in taken.iter().enumerate() {
                let within = taken[index..].iter().take_while(|(now, _)| now - begin < 1_000);
                let count: u64 = within.map(|(_, count)| count).sum();
                assert!(
                    count <= limit,
                    "{rate}/s asked each {step} ms: {count} from {begin} ms on"
                );
            }
        }
    }

    fn operation(state: OperationState, outcomes: &[(ItemOutcome, u64)]) -> Operation {
        Operation {
            id: OperationId::of("t", at(0), 0),
            spec: OperationSpec::replay(Filter::new()).canary(2),
            state,
            by: Actor::new("t"),
            created_at: at(0),
            updated_at: at(0),
            next_release: at(0),
            progress: Progress {
                total: outcomes.iter().map(|(_, count)| count).sum(),
                by_outcome: outcomes.iter().copied().collect(),
            },
        }
    }

    #[test]
    fn who_changes_the_rate_often_sends_no_faster_than_the_fastest() {
        let mut running = operation(OperationState::Running, &[(ItemOutcome::Queued, 100_000)]);
        running.spec.pace = "10/s".parse().ok();
        let mut sent = 0;
        for now in 0..10_000 {
            let advance = running.advance(at(now), u64::MAX);
            running.next_release = advance.next_release;
            sent += advance.release;
            running.progress.by_outcome =
                [(ItemOutcome::Queued, 100_000 - sent), (ItemOutcome::Succeeded, sent)].into();
            let other = if now % 2 == 0 { "1/h" } else { "10/s" }.parse().ok();
            running.next_release = running.next_release_at(other, at(now));
            running.spec.pace = other;
        }
        assert!((90..=101).contains(&sent), "{sent} in ten seconds");
        assert!(running.next_release_at(None, at(0)) <= at(0));
    }

    #[test]
    fn the_end_follows_from_the_rate() {
        let mut running = operation(OperationState::Running, &[(ItemOutcome::Queued, 21)]);
        assert_eq!(running.estimated_end(at(0)), None);
        running.spec.pace = "10/s".parse().ok();
        assert_eq!(running.estimated_end(at(500)), Some(at(2_500)));
        running.next_release = at(600);
        assert_eq!(running.estimated_end(at(500)), Some(at(2_600)));
        running.state = OperationState::Paused;
        assert_eq!(running.estimated_end(at(500)), None);
    }

    #[test]
    fn a_canary_holds_the_rest_until_its_outcome_is_known() {
        use ItemOutcome::{FailedAgain, Queued, Released, Skipped, Succeeded};
        use OperationState::{Canary, Completed, Running, Stopped};
        type Case<'a> = (&'a [(ItemOutcome, u64)], u64, OperationState);
        let cases: [Case<'_>; 7] = [
            (&[(Queued, 5)], 2, Canary),
            (&[(Queued, 3), (Skipped, 2)], 2, Canary),
            (&[(Queued, 3), (Released, 2)], 0, Canary),
            (&[(Queued, 3), (Released, 1), (Succeeded, 1)], 0, Canary),
            (&[(Queued, 3), (Succeeded, 2)], 3, Running),
            (&[(Queued, 3), (Succeeded, 1), (FailedAgain, 1)], 0, Stopped),
            (&[(Succeeded, 2)], 0, Completed),
        ];
        for (outcomes, release, state) in cases {
            let next = operation(Canary, outcomes).advance(at(1), u64::MAX);
            assert_eq!((next.release, next.state), (release, state), "{outcomes:?}");
        }
        let paused = operation(OperationState::Paused, &[(Queued, 3)]);
        assert_eq!(paused.advance(at(1), u64::MAX).release, 0);
        for outcomes in [&[(Queued, 3)][..], &[(Skipped, 3)], &[]] {
            let next = operation(OperationState::Preparing, outcomes).advance(at(1), u64::MAX);
            assert_eq!((next.release, next.state), (0, OperationState::Preparing), "{outcomes:?}");
        }
        assert_eq!(operation(Running, &[(Queued, 3)]).advance(at(1), 2).release, 2);
    }

    #[test]
    fn an_operation_is_steered_only_while_it_lasts() {
        use ItemOutcome::{FailedAgain, Queued, Succeeded};
        use OperationState::{Canary, Cancelled, Completed, Paused, Preparing, Running, Stopped};
        let steer = |state, outcomes: &[_], control| operation(state, outcomes).steer(control);
        let queued = [(Queued, 9)];
        assert_eq!(steer(Running, &queued, Control::Pause), Some(Paused));
        assert_eq!(steer(Stopped, &queued, Control::Pause), Some(Stopped));
        assert_eq!(steer(Paused, &queued, Control::Resume), Some(Canary));
        assert_eq!(steer(Paused, &[(Queued, 9), (Succeeded, 3)], Control::Resume), Some(Running));
        assert_eq!(steer(Paused, &[(Queued, 9), (FailedAgain, 1)], Control::Resume), Some(Stopped));
        let past_canary = [(Queued, 9), (Succeeded, 2), (FailedAgain, 1)];
        assert_eq!(steer(Paused, &past_canary, Control::Resume), Some(Running));
        assert_eq!(steer(Stopped, &queued, Control::Resume), Some(Running));
        assert_eq!(steer(Preparing, &queued, Control::Pause), Some(Paused));
        assert_eq!(steer(Preparing, &queued, Control::Resume), Some(Canary));
        assert_eq!(steer(Preparing, &queued, Control::Cancel), Some(Cancelled));
        assert_eq!(steer(Cancelled, &queued, Control::Cancel), Some(Cancelled));
        assert_eq!(steer(Cancelled, &queued, Control::Resume), None);
        assert_eq!(steer(Completed, &[], Control::Cancel), None);
    }
}

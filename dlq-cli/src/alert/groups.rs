//! Alerts about groups of errors: each transition is told once to each receiver, and many as one message.
//!
//! In a round the groups are read, and for each receiver the alerts that are due are claimed in the store, sent, and noted
//! there. Several processes on one store share the alerts by their claims.
//!
//! # If the process dies here
//!
//! | died | the alert |
//! |---|---|
//! | before the claim | is sent by whoever looks next |
//! | between the claim and the answer of the receiver | is sent by whoever looks first after [`LEASE`] |
//! | between the answer and the note | is sent a second time then |
//! | after the note | is never sent again |
//!
//! An alert that is not accepted stays due in the store, and is tried again with growing pauses. It is dropped only if it is no
//! longer due before it was accepted.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::Future;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use dlq_core::store::{
    AlertKind, AlertUpdate, Group, GroupKey, GroupRecord, GroupUpdate, TriagedGroup,
};
use dlq_core::{
    Clock as _, DeadLetters, Filter, Fingerprint, Status, StoreError, SystemClock, Timestamp,
};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::http::client;
use super::message::DueAlert;
use super::receiver::Receiver;
use super::{Counts, send};
use crate::ask;
use crate::cli::GroupAlertArgs;
use crate::error::{CliError, chain};

/// Time for which a claim is good: longer than sending takes.
const LEASE: Duration = Duration::from_secs(120);
/// Groups are looked at in which something was stored or died in this time.
// It bounds the reading, and for how long an alert that nobody accepts stays due.
const REACH: Duration = Duration::from_secs(3 * 24 * 3600);
/// Number of groups, largest first, that are looked at.
const GROUPS: u32 = 2_000;
/// Number of fingerprints in one filter.
// Databases bound the parameters of a query, and there may be thousands of fingerprints.
const CHUNK: usize = 100;
/// Number of alerts for one receiver in a round of one message, and in a round of a message for each.
const DIGEST: usize = 100;
// Each is a request of its own, and a round should end before the claims do that it began with.
const EVENTS: usize = 20;
/// Time limit of one request to the store.
const PATIENCE: Duration = Duration::from_secs(30);
/// The longest pause after an alert that was not accepted.
const LONGEST_PAUSE: Duration = Duration::from_secs(15 * 60);
/// Time limit for what is being sent when the process is asked to end.
// Orchestrators kill a process some 30 s after they asked it to end. A claim that is left then ends by itself.
const REST: Duration = Duration::from_secs(15);
/// The shortest interval.
const SHORTEST: Duration = Duration::from_millis(100);

/// Access to the store whose groups are told.
pub(crate) trait StoreSource {
    /// Returns the store, opened if it is not.
    async fn store(&mut self) -> Result<DeadLetters, CliError>;

    /// Opens the store anew next time.
    fn forget(&mut self);
}

impl StoreSource for DeadLetters {
    async fn store(&mut self) -> Result<DeadLetters, CliError> {
        Ok(self.clone())
    }

    fn forget(&mut self) {}
}

/// Sender of alerts about the groups of a store.
pub(crate) struct GroupAlerts<S> {
    source: S,
    /// The store, without a password.
    shown: String,
    outbound: Vec<Outbound>,
    every: Duration,
    holder: String,
    trouble: Option<String>,
}

/// Receiver with what this process knows of its alerts.
struct Outbound {
    receiver: Receiver,
    counts: Arc<Counts>,
    /// Groups whose alert was not accepted, with the time of the alert before.
    failed: BTreeMap<GroupKey, Option<Timestamp>>,
    /// Accepted alerts that the store does not know of yet.
    unnoted: Vec<DueAlert>,
    pause: Duration,
    not_before: Option<Instant>,
}

/// Group that an alert may be about.
struct Candidate {
    group: TriagedGroup,
    waiting: u64,
}

impl GroupAlerts<()> {
    /// Returns the sender, still without a store; `None` where no receiver is named.
    pub(crate) fn new(
        args: &GroupAlertArgs,
        shown: &str,
        counts: &Arc<Counts>,
    ) -> Result<Option<Self>, CliError> {
        // A set: the same receiver named twice would be told twice.
        let texts: BTreeSet<_> = args.alert.iter().filter(|text| !text.is_empty()).collect();
        if texts.is_empty() {
            return Ok(None);
        }
        if args.alert_every < SHORTEST {
            return Err(CliError::refused(format!(
                "--alert-every {} is too often; the shortest is 100ms",
                dlq_core::policy::duration::format(args.alert_every)
            )));
        }
        let client = client(args.alert_ca.as_deref())?;
        let outbound = texts.into_iter().map(|text| {
            let receiver = Receiver::parse(&client, text)?;
            Ok(Outbound::new(receiver, Arc::clone(counts)))
        });
        let outbound = outbound.collect::<Result<Vec<_>, CliError>>()?;
        // Hashers begin with random keys, by which no two processes have the same name.
        let holder = format!("{:016x}", RandomState::new().build_hasher().finish());
        let (shown, every) = (shown.to_owned(), args.alert_every);
        Ok(Some(Self { source: (), shown, outbound, every, holder, trouble: None }))
    }

    /// Sets the store.
    pub(crate) fn source<S: StoreSource>(self, source: S) -> GroupAlerts<S> {
        let Self { shown, outbound, every, holder, trouble, .. } = self;
        GroupAlerts { source, shown, outbound, every, holder, trouble }
    }
}

impl<S: StoreSource> GroupAlerts<S> {
    /// Tells at this interval until `stop` resolves; what is being sent then is finished, for a while.
    pub(crate) async fn run(mut self, stop: impl Future<Output = ()>) {
        let mut stop = pin!(stop);
        let mut ticks = interval(self.every);
        // A round that took long is followed by a whole pause and not by a burst.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = &mut stop => return,
                _ = ticks.tick() => {}
            }
            // A round is not dropped when the process is asked to end: an alert that was accepted has to be noted, or it
            // is sent again.
            let mut round = pin!(self.round());
            tokio::select! {
                _ = &mut round => {}
                () = &mut stop => {
                    let _ = timeout(REST, round).await;
                    return;
                }
            }
        }
    }

    /// Tells what is due; false if something was not told.
    pub(crate) async fn round(&mut self) -> bool {
        match self.attempt().await {
            Ok(is_told) => {
                self.trouble = None;
                is_told
            }
            Err(why) => {
                self.source.forget();
                // The same trouble is told once.
                if self.trouble.as_ref() != Some(&why) {
                    tracing::warn!(why, "cannot tell what is new in the store; retrying");
                    self.trouble = Some(why);
                }
                false
            }
        }
    }

    async fn attempt(&mut self) -> Result<bool, String> {
        let store = self.source.store().await.map_err(CliError::into_message)?;
        let now = SystemClock.now();
        // The groups are read once for all receivers; what each of them has had is in the record of the group.
        let candidates = within(candidates(&store, now)).await?;
        let mut is_told = true;
        for outbound in &mut self.outbound {
            let at = AlertStore { store: &store, shown: &self.shown, holder: &self.holder };
            // A receiver that does not accept does not keep others from being told. Only an error of the store ends the
            // round.
            is_told &= outbound.tell(at, &candidates, now).await?;
        }
        Ok(is_told)
    }
}

/// Store of a round, and the name of this process in its claims.
#[derive(Clone, Copy)]
struct AlertStore<'a> {
    store: &'a DeadLetters,
    shown: &'a str,
    holder: &'a str,
}

impl AlertStore<'_> {
    async fn update(&self, key: GroupKey, alert: AlertUpdate) -> Result<GroupRecord, String> {
        let update = GroupUpdate::new().alert(alert);
        within(self.store.update_group(key, update, ask::actor(None))).await
    }
}

impl Outbound {
    fn new(receiver: Receiver, counts: Arc<Counts>) -> Self {
        let (failed, unnoted) = (BTreeMap::new(), Vec::new());
        Self { receiver, counts, failed, unnoted, pause: Duration::ZERO, not_before: None }
    }

    /// Sends what is due to this receiver; false if it was not accepted.
    async fn tell(
        &mut self,
        at: AlertStore<'_>,
        candidates: &[Candidate],
        now: Timestamp,
    ) -> Result<bool, String> {
        // What was accepted in an earlier round is noted before anything else, as it would count as due and be sent
        // again.
        self.note(at).await?;
        // What is due is decided from the records that were just read, in which other processes note what they have
        // told.
        let mut due = self.due(candidates, now);
        // This comes before the pause is looked at, so that an alert which ceases to be due during the pause is counted
        // too.
        self.count_dropped(candidates, &due);
        if due.is_empty() || self.not_before.is_some_and(|time| time > Instant::now()) {
            // A one-shot run has to know that something is due and was not told.
            return Ok(due.is_empty());
        }
        let per_message = self.receiver.alerts_per_message();
        // The rest stays due in the store and is told in the next round, the most urgent first.
        due.truncate(if per_message == 1 { EVENTS } else { DIGEST });
        // All are claimed before the first is sent, so that a digest of many is one message and not one for each claim.
        let claimed = self.claim(at, due).await?;
        for alerts in claimed.chunks(per_message) {
            let message = self.receiver.message(at.shown, alerts);
            if let Err(refusal) = send(|| self.receiver.webhook.post(&message)).await {
                self.fail(alerts, &refusal.why);
                // The claims of the rest are kept until their lease ends: other processes would meet the same receiver
                // in the same state.
                return Ok(false);
            }
            self.counts.sent(self.receiver.format_name(), alerts.len());
            (self.pause, self.not_before) = (Duration::ZERO, None);
            // It is remembered before the store is told: if the store fails now, the next round notes it and does not
            // send it again.
            self.unnoted.extend_from_slice(alerts);
            self.note(at).await?;
        }
        Ok(true)
    }

    /// Returns the alerts that are due, the most urgent first.
    fn due(&self, candidates: &[Candidate], now: Timestamp) -> Vec<DueAlert> {
        let due = candidates.iter().filter_map(|Candidate { group, waiting }| {
            let kind = group.alert_due(&self.receiver.id, now)?;
            // Letters that were all dealt with already are nobody's concern.
            let is_news = kind == AlertKind::Resolved || *waiting > 0;
            (is_news && self.receiver.takes(kind)).then(|| DueAlert {
                kind,
                group: group.clone(),
                waiting: *waiting,
            })
        });
        let mut due: Vec<_> = due.collect();
        due.sort_by_key(|alert| (alert.kind, std::cmp::Reverse(alert.waiting)));
        due
    }

    /// Claims alerts, and returns those that this process may send.
    async fn claim(&self, at: AlertStore<'_>, due: Vec<DueAlert>) -> Result<Vec<DueAlert>, String> {
        let mut claimed = Vec::with_capacity(due.len());
        for alert in due {
            let (key, record) = (alert.group.group.key(), &alert.group.record);
            let claim = AlertUpdate::claim(&self.receiver.id, at.holder, LEASE, record);
            // The store decides by compare and swap. What comes back says whose claim it is, which may be another
            // process's.
            if at.update(key, claim).await?.is_claimed(&self.receiver.id, at.holder) {
                claimed.push(alert);
            }
        }
        Ok(claimed)
    }

    /// Notes what was accepted.
    async fn note(&mut self, at: AlertStore<'_>) -> Result<(), String> {
        // An alert leaves the list only after the store has it, so that an error in between loses none.
        while let Some(alert) = self.unnoted.last() {
            let (key, record) = (alert.group.group.key(), &alert.group.record);
            let accepted = AlertUpdate::accepted(&self.receiver.id, at.holder, alert.kind, record);
            at.update(key.clone(), accepted).await?;
            self.failed.remove(&key);
            self.unnoted.pop();
        }
        Ok(())
    }

    fn fail(&mut self, alerts: &[DueAlert], why: &str) {
        self.counts.failed(self.receiver.format_name(), alerts.len());
        for alert in alerts {
            let last = alert.group.record.alerts.get(&self.receiver.id);
            self.failed.insert(alert.group.group.key(), last.and_then(|alert| alert.at));
        }
        self.pause = (self.pause * 2).clamp(Duration::from_secs(1), LONGEST_PAUSE);
        self.not_before = Some(Instant::now() + self.pause);
        // The URL is a secret of the receiver, so the log has its format and host alone.
        let receiver = self.receiver.shown();
        let retry_in = self.pause.as_secs();
        tracing::warn!(
            receiver,
            why,
            alerts = alerts.len(),
            retry_in,
            "alert was not accepted; retrying"
        );
    }

    /// Counts alerts that were not accepted and are no longer due, unless another process has sent them.
    fn count_dropped(&mut self, candidates: &[Candidate], due: &[DueAlert]) {
        if self.failed.is_empty() {
            return;
        }
        let due: BTreeSet<_> = due.iter().map(|alert| alert.group.group.key()).collect();
        let alert_at = |candidate: &Candidate| {
            let alert = candidate.group.record.alerts.get(&self.receiver.id);
            (candidate.group.group.key(), alert.and_then(|alert| alert.at))
        };
        let told: BTreeMap<_, _> = candidates.iter().map(alert_at).collect();
        let mut dropped = 0;
        self.failed.retain(|key, before| {
            let is_due = due.contains(key);
            let is_sent = told.get(key).is_some_and(|at| at > before);
            dropped += usize::from(!is_due && !is_sent);
            is_due
        });
        if dropped > 0 {
            self.counts.dropped(self.receiver.format_name(), dropped);
        }
    }
}

/// Returns the groups in which something was stored or died of late.
async fn candidates(store: &DeadLetters, now: Timestamp) -> Result<Vec<Candidate>, StoreError> {
    let since = now.before(REACH);
    let mut recent = BTreeSet::new();
    // A letter that died anew was stored long ago, so both times have to be asked for.
    for filter in [Filter::new().since(since), Filter::new().died_since(since)] {
        recent.extend(store.groups(filter, GROUPS).await?.iter().map(Group::key));
    }
    if recent.is_empty() {
        return Ok(Vec::new());
    }
    let mut unresolved = Filter::new();
    unresolved.statuses = vec![Status::Pending, Status::Held, Status::Quarantined];
    // All groups, since one that died of late may be small among those that wait.
    let unresolved = store.groups(unresolved, i32::MAX.unsigned_abs()).await?;
    let waiting: HashMap<_, _> =
        unresolved.iter().map(|group| (group.key(), group.count)).collect();
    let fingerprints: BTreeSet<Fingerprint> = recent.iter().map(|key| key.fingerprint).collect();
    let fingerprints: Vec<_> = fingerprints.into_iter().collect();
    let mut candidates = Vec::with_capacity(recent.len());
    for chunk in fingerprints.chunks(CHUNK) {
        let mut filter = Filter::new();
        filter.fingerprints = chunk.to_vec();
        // Several consumers may have groups of one fingerprint.
        for group in store.triaged_groups(filter, GROUPS).await? {
            let key = group.group.key();
            if recent.contains(&key) {
                let waiting = waiting.get(&key).copied().unwrap_or_default();
                candidates.push(Candidate { group, waiting });
            }
        }
    }
    Ok(candidates)
}

async fn within<T>(asked: impl Future<Output = Result<T, StoreError>>) -> Result<T, String> {
    match timeout(PATIENCE, asked).await {
        Ok(answered) => answered.map_err(|error| chain(&error)),
        Err(_) => Err(format!("the store did not answer within {} s", PATIENCE.as_secs())),
    }
}

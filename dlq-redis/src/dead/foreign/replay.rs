//! Sending letters of another library back to its queue, as the library does it.
//!
//! # The script
//!
//! A script for each letter: it looks whether the letter is still there, puts the job into the queue, notes that in a hash
//! beside the key (`KEY:replays`), and takes the letter away last. The library's own replay takes it away too; a letter that
//! stayed would be sent a second time by that.
//!
//! | the process dies | the server has | and then |
//! |---|---|---|
//! | before a script has run | the letter | the next replay sends it |
//! | after a script has run | the job in its queue, and the note | the letter is not there: nothing sends it again |
//! | after an answer was lost | the same | the script is run again, finds no letter and its own note: sent |
//!
//! Scripts are no transactions: types are looked at before the first write, which puts the job into the queue. Out of memory,
//! or a key of another type, changes nothing. Nothing is trimmed but the events of BullMQ, as it trims them itself.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use dlq_core::log::Range;
use dlq_core::replay::{ReplayOutcome, ReplayPlan, ReplayReport, ReplayRules, Selected, Skipped};
use dlq_core::store::reading;
use dlq_core::{DeadLetter, Death, Filter, OperationId, Status, StoreError, StoreErrorKind};
use dlq_letters::log::Reading;
use redis::Value;
use tokio::time::{Instant, sleep, sleep_until};

use super::entries::{Job, Stands};
use super::kind::Kind;
use super::{Dialect, EntryId, ForeignLetters, chasquimq, entry_id, scripts};
use crate::client::{RedisError, RedisErrorKind, ScriptCall, as_array, as_text};
use crate::dead::Replayed;
use crate::dead::letters::place_of;

const REPLAYING: &str = "send dead letters back";
/// Letters that are handed to the server at once, at most.
const LETTERS: usize = 100;
/// Batches in a second where there is a rate.
const BATCHES: u32 = 20;
/// Pause before letters are handed over again that the server did not take.
const PAUSE: Duration = Duration::from_millis(250);
/// Time for which it goes on while the server takes nothing.
const RETRY_LIMIT: Duration = Duration::from_secs(8);

type Row = reading::Row<EntryId>;

/// Sends letters of another library back to the queue where they were born: those that match a filter, each once, whoever
/// sends it and however often (G6).
///
/// A letter goes as the library's own replay sends it, and is taken away from the dead ones by the same script. Attempts start
/// over in chasquimq, and a retry policy of the job stays; BullMQ and dramatiq run the job once more. For RQ a
/// [plan](Self::plan) is refused, and says what to use instead.
///
/// A letter of which no job can be made, since its bytes could not be decoded or have gone, is skipped.
#[derive(Clone, Debug)]
#[must_use = "nothing is sent until it runs"]
pub struct ForeignReplay {
    letters: ForeignLetters,
    filter: Filter,
    rules: ReplayRules,
}

/// Answer of the server about one letter.
enum SendOutcome {
    Done(ReplayOutcome),
    /// It was not taken, or nobody knows: the same call may be made again.
    Later(StoreError),
}

impl ForeignReplay {
    /// Sends the letters that match, as this operation.
    pub fn new(letters: &ForeignLetters, filter: Filter, operation: OperationId) -> Self {
        Self { letters: letters.clone(), filter, rules: ReplayRules::new(operation) }
    }

    /// Sets how many letters are sent at most, oldest first. Defaults to all.
    pub fn limit(mut self, letters: u64) -> Self {
        self.rules.limit = letters;
        self
    }

    /// Sets how many letters are sent in a second; 0 is read as 1. Defaults to as many as the server takes.
    pub fn rate(mut self, per_second: u32) -> Self {
        self.rules.rate = Some(per_second.max(1));
        self
    }

    /// Sets how often a letter may be sent back; 0 for any number. Defaults to 10.
    pub fn cap(mut self, times: u32) -> Self {
        self.rules.cap = times;
        self
    }

    /// Sends copies too of letters that were sent before. Defaults to not.
    pub fn again(mut self) -> Self {
        self.rules.again = true;
        self
    }

    /// Finds out what it would do now, without doing it.
    ///
    /// # Errors
    ///
    /// `NotFound` when there are no such letters; `Refused` where nothing can be sent to the library, or it shares a cluster
    /// by names that are in several slots; `Unavailable` when the server does not respond.
    pub async fn plan(&self) -> Result<ReplayPlan, StoreError> {
        self.refuse()?;
        let rows = self.rows().await?;
        let mut plan = self.select(&rows).plan();
        let bare = rows.iter().filter(|row| self.barred(&row.letter).is_some()).count();
        if bare > 0 {
            plan.notes.push(format!(
                "{bare} letters have no job that could be sent: their bytes could not be decoded, or have gone"
            ));
        }
        Ok(plan)
    }

    /// Refuses a library of which too little is known, and keys that one script does not reach.
    fn refuse(&self) -> Result<(), StoreError> {
        let text = match self.letters.kind.dialect() {
            Dialect::Rq => {
                "cannot send letters of RQ back: only RQ itself can; use `rq requeue --queue QUEUE JOB_ID`"
            }
            Dialect::Bullmq | Dialect::Dramatiq
                if self.letters.client.is_cluster() && !self.letters.key.starts_with('{') =>
            {
                "cannot send letters back in a cluster: the prefix of their keys is no hash tag, so that they are on several \
                 nodes; use `job.retry()` of BullMQ or `broker.enqueue` of dramatiq"
            }
            Dialect::Chasquimq | Dialect::Bullmq | Dialect::Dramatiq => return Ok(()),
        };
        Err(refused(text))
    }

    async fn rows(&self) -> Result<Vec<Row>, StoreError> {
        let reading = Reading::of(self.letters.clone(), Range::all()).await?;
        let rows = reading.rows(&self.filter).await?.into_iter();
        let row = |row: reading::Row<dlq_core::Origin>| {
            Row::kept(row.letter, place_of(&row.place), row.size, row.bytes)
        };
        Ok(rows.map(row).collect())
    }

    fn select<'a>(&self, rows: &'a [Row]) -> Selected<'a, EntryId> {
        // Copies of what was sent; who has sent it is not asked for.
        let sent: BTreeMap<Death, OperationId> = rows
            .iter()
            .filter(|row| row.letter.state.status == Status::Sent)
            .map(|row| (row.letter.death(), OperationId::from_bytes([0; 16])))
            .collect();
        self.rules.select(rows, |death| sent.get(death).copied(), |letter| self.barred(letter))
    }

    fn barred(&self, letter: &DeadLetter) -> Option<Skipped> {
        // Without an id there is no job: its bytes could not be decoded, or have gone.
        letter.message.id().is_none().then_some(Skipped::NoOrigin)
    }

    /// Sends them, and returns what was done when every letter was come to, `stop` was ready, or the server did not respond.
    /// `tell` hears of every letter as soon as it is known what becomes of it.
    ///
    /// # Errors
    ///
    /// When it cannot begin: as [`plan`](Self::plan).
    ///
    /// # Cancel safety
    ///
    /// Dropping it is what killing the process is: whoever sends these letters next goes on.
    pub async fn run(
        &self,
        stop: impl Future<Output = ()> + Send,
        mut tell: impl FnMut(&Replayed) + Send,
    ) -> Result<ReplayReport, StoreError> {
        self.refuse()?;
        let rows = self.rows().await?;
        let selected = self.select(&rows);
        let mut report = ReplayReport::default();
        let mut told =
            |report: &mut ReplayReport, row: &Row, entry: String, outcome: ReplayOutcome| {
                report.count(&outcome);
                tell(&Replayed { id: row.letter.id, entry, outcome });
            };
        for (row, why) in &selected.skip {
            told(&mut report, row, entry_id(row.place), ReplayOutcome::Skipped(*why));
        }
        let (mut stop, mut turn) = (pin!(stop), Instant::now());
        let mut rest = &selected.send[..];
        let each = self.rules.rate.map_or(LETTERS, |rate| (rate / BATCHES).max(1) as usize);
        while !rest.is_empty() {
            tokio::select! {
                biased;
                () = &mut stop => break,
                () = sleep_until(turn) => {}
            }
            let (batch, left) = rest.split_at(each.min(LETTERS).min(rest.len()));
            if let Some(rate) = self.rules.rate {
                // Time that was lost is not made up for, so that no second sees more than the rate.
                turn = turn.max(Instant::now()) + Duration::from_secs(batch.len() as u64) / rate;
            }
            let (mut open, began) = (batch.to_vec(), Instant::now());
            let mut is_over = false;
            while !open.is_empty() && !is_over {
                let (mut late, mut again) = (None, Vec::new());
                let answers = self.send(&open).await;
                for (row, (entry, answer)) in open.into_iter().zip(answers) {
                    match answer {
                        SendOutcome::Done(outcome) => told(&mut report, row, entry, outcome),
                        SendOutcome::Later(error) => {
                            late.get_or_insert(error);
                            again.push(row);
                        }
                    }
                }
                open = again;
                if let Some(error) = late {
                    if began.elapsed() >= RETRY_LIMIT {
                        report.stopped = Some(error);
                        break;
                    }
                    tokio::select! {
                        biased;
                        () = &mut stop => is_over = true,
                        () = sleep(PAUSE) => {}
                    }
                }
            }
            rest = left;
            if !open.is_empty() {
                report.left += open.len() as u64;
                break;
            }
        }
        report.left += rest.len() as u64;
        Ok(report)
    }

    /// Hands letters over, and returns what the server says of each.
    async fn send(&self, rows: &[&Row]) -> Vec<(String, SendOutcome)> {
        let name = |row: &Row| entry_id(row.place);
        let later = |error: &StoreError| {
            SendOutcome::Later(
                StoreError::new(error.kind(), REPLAYING).with_detail(error.to_string()),
            )
        };
        let all = |error: &StoreError| rows.iter().map(|row| (name(row), later(error))).collect();
        let places: Vec<EntryId> = rows.iter().map(|row| row.place).collect();
        let jobs = match self.letters.jobs_at(&places).await {
            Ok(jobs) => jobs,
            Err(error) => return all(&error),
        };
        let (mut calls, mut answers) = (Vec::new(), Vec::new());
        for (row, job) in rows.iter().zip(jobs) {
            // One that was sent a moment ago has gone, and its own note says by whom.
            let call = match &job {
                Some(job) => self.call(row, job),
                None => Some(self.bare_call(row)),
            };
            let entry = job.as_ref().map_or_else(|| name(row), Job::name);
            match call {
                Some(call) => {
                    calls.push(call);
                    answers.push((entry, None));
                }
                None => {
                    let why = ReplayOutcome::Skipped(Skipped::NoOrigin);
                    answers.push((entry, Some(SendOutcome::Done(why))));
                }
            }
        }
        let mut heard = match self.letters.client.scripts(&calls).await {
            Ok(heard) => heard.into_iter(),
            Err(error) => return all(&error.for_running_store(REPLAYING)),
        };
        let mut next = || match heard.next() {
            Some(answer) => self.answer(answer),
            None => SendOutcome::Later(StoreError::new(StoreErrorKind::Unexpected, REPLAYING)),
        };
        answers
            .into_iter()
            .map(|(entry, answer)| (entry, answer.unwrap_or_else(&mut next)))
            .collect()
    }

    /// A call that only asks who has sent a letter that is not there any more.
    fn bare_call(&self, row: &Row) -> ScriptCall {
        let ledger = self.letters.ledger();
        scripts::SENT_BY.keys(&[&ledger]).arg(row.letter.id.to_string()).arg(self.operation())
    }

    fn operation(&self) -> String {
        self.rules.operation.to_string()
    }

    fn call(&self, row: &Row, job: &Job) -> Option<ScriptCall> {
        let (id, ledger) = (row.letter.id.to_string(), self.letters.ledger());
        match (&self.letters.kind, &job.stands) {
            (Kind::Chasquimq { queue }, Stands::Entry(raw)) => {
                // As its own replay does: with the attempts that it had, the job would die at its next failure.
                let envelope = chasquimq::reset(chasquimq::field(&raw.pairs, "d")?)?;
                let stream = format!("{{chasqui:{queue}}}:stream");
                let call = scripts::CHASQUIMQ
                    .keys(&[&stream, &self.letters.key, &ledger])
                    .arg(id)
                    .arg(self.operation())
                    .arg(entry_id(raw.place))
                    .arg("d")
                    .arg(envelope);
                Some(match chasquimq::field(&raw.pairs, "n") {
                    Some(name) => call.arg("n").arg(&name[..]),
                    None => call,
                })
            }
            (Kind::Dramatiq { base, queue }, Stands::Member(member)) => {
                let dead = &self.letters.key;
                let (all, messages) = (format!("{dead}.msgs"), format!("{base}.msgs"));
                let keys = [dead, &all, base, &messages, &ledger];
                let call = scripts::DRAMATIQ.keys(&keys).arg(id).arg(self.operation());
                Some(call.arg(&member.name[..]).arg(&member.score[..]).arg(queue))
            }
            (Kind::Bullmq { base, .. }, Stands::Member(member)) => {
                let named = |rest: &str| format!("{base}:{rest}").into_bytes();
                let job = [base.as_bytes(), b":", &member.name].concat();
                let rest = ["wait", "prioritized", "pc", "marker", "meta", "events"].map(named);
                let [wait, prioritized, counter, marker, meta, events] = rest;
                let failed = self.letters.key.as_bytes().to_vec();
                let keys = [
                    failed,
                    job,
                    wait,
                    prioritized,
                    counter,
                    marker,
                    meta,
                    events,
                    ledger.into_bytes(),
                ];
                let call = scripts::BULLMQ.keys(&keys).arg(id).arg(self.operation());
                Some(call.arg(&member.name[..]).arg(&member.score[..]))
            }
            _ => None,
        }
    }

    fn answer(&self, answer: Result<Value, RedisError>) -> SendOutcome {
        let failed = |text: String| SendOutcome::Done(ReplayOutcome::Failed(refused(text)));
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                // An error of these kinds is about this letter alone, and another attempt would meet it again.
                let is_its_own =
                    matches!(error.kind(), RedisErrorKind::WrongType | RedisErrorKind::Unexpected);
                let error = error.for_running_store(REPLAYING);
                return match is_its_own {
                    true => SendOutcome::Done(ReplayOutcome::Failed(error)),
                    false => SendOutcome::Later(error),
                };
            }
        };
        let [what, more] = as_array(&answer) else {
            return failed("the server gave no answer to it".to_owned());
        };
        match as_text(what).as_deref() {
            Some("added") => SendOutcome::Done(ReplayOutcome::Sent),
            Some("sent") => SendOutcome::Done(ReplayOutcome::Skipped(Skipped::Sent)),
            Some("gone") => SendOutcome::Done(ReplayOutcome::Skipped(Skipped::Gone)),
            _ => failed(as_text(more).unwrap_or_default()),
        }
    }
}

fn refused(text: impl Into<String>) -> StoreError {
    StoreError::new(StoreErrorKind::Refused, REPLAYING).with_detail(text.into())
}

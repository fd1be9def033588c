use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use dlq_core::log::Log as _;
use dlq_core::protocol::{Replay, of_replay};
use dlq_core::replay::{ReplayOutcome, ReplayReport, Skipped};
use dlq_core::{Clock as _, DeadLetter, Origin, StoreError, SystemClock};
use redis::Value;
use tokio::time::{Instant, sleep, sleep_until};

use super::super::ledger;
use super::super::scan::id;
use super::super::scripts::SEND_BACK;
use super::plan::{lock, refused};
use super::{REPLAYING, RedisReplay, Replayed, Row};
use crate::client::{RedisError, RedisErrorKind, ScriptCall, as_array, as_text};
use crate::consumer::wire::entry;
use crate::consumer::{Keys, millis, unique_name};

/// Letters that are handed to the server at once, at most. Each is a script of its own, so that others get in between.
const LETTERS: usize = 100;
/// Bytes of payload that are handed to the server at once, unless one letter has more.
const BYTES: u64 = 1024 * 1024;
/// The most values of an entry. A script that unpacks more fails.
const VALUES: usize = 7_000;
/// Batches in a second where there is a rate.
const BATCHES: u32 = 20;
/// Pause before letters are handed over again that the server did not take.
const PAUSE: Duration = Duration::from_millis(250);
/// Time for which it goes on while the server takes nothing.
const RETRY_LIMIT: Duration = Duration::from_secs(8);

/// Answer of the server about one letter.
enum SendOutcome {
    Done(ReplayOutcome),
    /// It was not taken, or nobody knows: the same call may be made again.
    Later(StoreError),
    /// The letters are kept in a store since a moment ago.
    Kept(StoreError),
}

impl RedisReplay {
    /// Sends them, and returns what was done when every letter was come to, `stop` was ready, or the server did not
    /// respond. `tell` hears of every letter as soon as it is known what becomes of it.
    ///
    /// When `stop` is ready, nothing more is sent: what was not sent is untouched, and what was sent is noted.
    ///
    /// # Errors
    ///
    /// When it cannot begin: as [`plan`](Self::plan).
    ///
    /// # Cancel safety
    ///
    /// Dropping it is what killing the process is: whoever sends these letters next goes on. It is not told what became of
    /// the letters that were on their way.
    pub async fn run(
        &self,
        stop: impl Future<Output = ()> + Send,
        mut tell: impl FnMut(&Replayed) + Send,
    ) -> Result<ReplayReport, StoreError> {
        // A plan may be old: letters that have gone into a store since would not be known as sent there.
        self.refuse_kept().await?;
        self.refuse_nowhere().await?;
        let agreed = lock(&self.agreed).clone();
        let picture = self.picture(agreed.as_ref().map(|agreed| &agreed.picture)).await?;
        let selected = self.select(&picture, agreed.as_ref());
        let mut report = ReplayReport::default();
        let mut told = |report: &mut ReplayReport, row: &Row, outcome: ReplayOutcome| {
            report.count(&outcome);
            tell(&Replayed { id: row.letter.id, entry: id(row.place), outcome });
        };
        for (row, why) in selected.skip {
            told(&mut report, row, ReplayOutcome::Skipped(why));
        }
        let (mut stop, mut turn) = (pin!(stop), Instant::now());
        let mut rest = &selected.send[..];
        let me = unique_name();
        'sending: while !rest.is_empty() {
            tokio::select! {
                biased;
                () = &mut stop => break,
                () = sleep_until(turn) => {}
            }
            let (batch, left) = rest.split_at(self.batch(rest));
            if let Some(rate) = self.rules.rate {
                // A turn that is late counts from now, so that lost time is not made up for by a burst.
                turn = turn.max(Instant::now()) + Duration::from_secs(batch.len() as u64) / rate;
            }
            let (mut open, began) = (batch.to_vec(), Instant::now());
            loop {
                let mut late = None;
                let answers = self.send(&open, &me).await;
                let mut again = Vec::new();
                for (row, answer) in open.into_iter().zip(answers) {
                    match answer {
                        SendOutcome::Done(outcome) => told(&mut report, row, outcome),
                        SendOutcome::Later(error) => {
                            late.get_or_insert((error, false));
                            again.push(row);
                        }
                        // The store has the letters from now on, and would not learn of what is sent here.
                        SendOutcome::Kept(error) => {
                            late = Some((error, true));
                            again.push(row);
                        }
                    }
                }
                let Some((error, is_final)) = late else { break };
                open = again;
                if is_final || began.elapsed() >= RETRY_LIMIT {
                    report.left = (open.len() + left.len()) as u64;
                    report.stopped = Some(error);
                    rest = &[];
                    break 'sending;
                }
                tokio::select! {
                    biased;
                    () = &mut stop => {
                        report.left = (open.len() + left.len()) as u64;
                        rest = &[];
                        break 'sending;
                    }
                    () = sleep(PAUSE) => {}
                }
            }
            rest = left;
        }
        report.left += rest.len() as u64;
        // Only a letter that was sent has written the lease.
        if report.sent > 0 {
            self.end(&me).await;
        }
        Ok(report)
    }

    /// Tells those who follow that there is nothing to be waited for; where it cannot, they wait until the lease has ended.
    async fn end(&self, me: &str) {
        let letters = &self.letters;
        let mut remove = redis::cmd("ZREM");
        remove.arg(letters.keys.replaying()).arg(me);
        if let Err(error) = letters.client.command(&remove).await {
            tracing::debug!(%error, "a replay could not say that it has ended");
        }
    }

    /// Number of letters that are handed over together.
    fn batch(&self, rows: &[&Row]) -> usize {
        let rated = self.rules.rate.map(|rate| (rate / BATCHES).max(1) as usize);
        let mut bytes = 0;
        let fits = rows.iter().take(rated.unwrap_or(LETTERS).min(LETTERS)).take_while(|row| {
            bytes += row.size.unwrap_or(0);
            bytes <= BYTES
        });
        // A letter that is larger than the bound goes alone.
        fits.count().max(1)
    }

    /// Hands letters over, and returns what the server says of each.
    async fn send(&self, rows: &[&Row], me: &str) -> Vec<SendOutcome> {
        let later = |error: &StoreError| SendOutcome::Later(again(error));
        let whole = match self.whole(rows).await {
            Ok(whole) => whole,
            Err(error) => return rows.iter().map(|_| later(&error)).collect(),
        };
        let (mut calls, mut answers) = (Vec::new(), Vec::new());
        for (row, letter) in rows.iter().zip(whole) {
            let Some(letter) = letter else {
                answers.push(Some(SendOutcome::Done(ReplayOutcome::Skipped(Skipped::Gone))));
                continue;
            };
            match self.call(row, &letter, me) {
                Ok(call) => {
                    calls.push(call);
                    answers.push(None);
                }
                Err(error) => answers.push(Some(SendOutcome::Done(ReplayOutcome::Failed(error)))),
            }
        }
        let mut heard = match self.scripts(&calls).await {
            Ok(heard) => heard.into_iter(),
            Err(error) => {
                // Nobody knows what was carried out. The same calls are made again, and find their own notes in the
                // ledger (G6).
                let error = error.for_running_store(REPLAYING);
                return answers
                    .into_iter()
                    .map(|answer| answer.unwrap_or_else(|| later(&error)))
                    .collect();
            }
        };
        let mut next = || match heard.next() {
            Some(answer) => self.answer(answer),
            None => later(&StoreError::new(dlq_core::StoreErrorKind::Unexpected, REPLAYING)),
        };
        answers.into_iter().map(|answer| answer.unwrap_or_else(&mut next)).collect()
    }

    /// Runs calls; in a cluster all are in one slot.
    async fn scripts(
        &self,
        calls: &[ScriptCall],
    ) -> Result<Vec<Result<Value, RedisError>>, RedisError> {
        self.letters.client.scripts(calls).await
    }

    /// The letters with their payloads; `None` for one of which that has gone.
    async fn whole(&self, rows: &[&Row]) -> Result<Vec<Option<DeadLetter>>, StoreError> {
        let places = rows.iter().filter(|row| row.whole().is_none());
        let places: Vec<Origin> = places.map(|row| self.letters.origin(row.place)).collect();
        let mut found = self.letters.at(places).await?.into_iter();
        let whole = rows.iter().map(|row| match row.whole() {
            Some(letter) => Some(letter.clone()),
            None => row.with_payload(found.next().flatten()?.message.payload()?.clone()),
        });
        Ok(whole.collect())
    }

    fn call(&self, row: &Row, letter: &DeadLetter, me: &str) -> Result<ScriptCall, StoreError> {
        let stream = self.stream_for(letter).ok_or_else(|| refused("it has no place to go to"))?;
        let keys = Keys::of(stream).map_err(|error| refused(error.to_string()))?;
        let letters = &self.letters;
        let replay = Replay {
            operation: self.rules.operation,
            count: letter.state.replays.saturating_add(1),
            from: format!("{}@{}", letters.stream(), id(row.place)),
            at: SystemClock.now(),
        };
        let ours = of_replay(letter, &replay).bound_by(letters.key.as_ref(), letter);
        let message = letter.message.clone().with_headers(ours.onto(letter.message.headers()));
        let values = entry(&message, &self.fields, &keys.subject());
        // Refused here with its reason: the script would fail at each try.
        if values.len() > VALUES {
            let most = VALUES / 2;
            return Err(refused(format!("it has more than {most} headers, which is too many")));
        }
        let call = SEND_BACK
            .keys(&[
                &*keys.stream,
                &letters.keys.ledger(),
                &letters.keys.followers(),
                &letters.keys.replaying(),
            ])
            .arg(ledger::field(&letter.death()))
            .arg(self.rules.operation.to_string())
            .arg(i32::from(self.rules.again))
            .arg(letters.keys.follower(""))
            .arg(me)
            .arg(millis(self.lease));
        Ok(values.into_iter().fold(call, ScriptCall::arg))
    }

    fn answer(&self, answer: Result<Value, RedisError>) -> SendOutcome {
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                // An error of these kinds is about this letter alone, and must not hold up the others.
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
            return SendOutcome::Done(ReplayOutcome::Failed(refused(
                "the server gave no answer to it",
            )));
        };
        let more = as_text(more).unwrap_or_default();
        match as_text(what).as_deref() {
            Some("added") => SendOutcome::Done(ReplayOutcome::Sent),
            // Nobody else has this operation: its answer was lost.
            Some("sent") if more == self.rules.operation.to_string() => {
                SendOutcome::Done(ReplayOutcome::Sent)
            }
            Some("sent") => SendOutcome::Done(ReplayOutcome::Skipped(Skipped::Sent)),
            Some("kept") => {
                SendOutcome::Kept(refused(super::plan::kept(self.letters.stream(), &more)))
            }
            _ => SendOutcome::Done(ReplayOutcome::Failed(refused(format!(
                "its stream is {more}; create it with its consumer group, or name another"
            )))),
        }
    }
}

/// The same error for another letter.
fn again(error: &StoreError) -> StoreError {
    StoreError::new(error.kind(), REPLAYING).with_detail(error.to_string())
}

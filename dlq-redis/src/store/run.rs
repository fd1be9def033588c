//! Verbs are decided over what was read, and written if it is still so.
//!
//! | the process, the server or the connection dies | what is stored | then |
//! |---|---|---|
//! | before the script of the commit has begun | nothing | the call is made again |
//! | while the script runs | all of it or nothing: its effects are one unit of the append-only file | as before or after |
//! | after it, before the answer | all of it | the same call finds it done; a claim, and what operators do, ask by the token of the commit |
//! | after the answer, and the server forgets (see the durability) | nothing | the letter is lost, unless its message is in the same Redis |

use std::time::Duration;

use dlq_core::store::rules;
use dlq_core::{DeadLetter, StoreError, StoreErrorKind};
use dlq_letters::{Done, Needs, Row, Rows, Verb};
use redis::Value;
use tokio::time::{Instant, sleep};

use super::codec;
use super::config::Durability;
use super::fault::{Fault, Result};
use super::names;
use super::scripts::{self, array, bytes, number, parts};
use super::seen::{Seen, Watch};
use super::write::{self, Commit, counted};
use super::{Inner, random};
use crate::client::ScriptCall;
use dlq_letters::Changed;

/// Time in milliseconds for which the outcome of a commit is remembered.
pub(super) const REMEMBERED: u64 = 3_600_000;
/// Time for which a client asks for it.
const OUTCOME_LIMIT: Duration = Duration::from_secs(30);

/// Outcome of a commit.
enum Ended {
    /// It was written; with the number of the last note.
    Written(Option<i64>),
    /// Something had changed, or it was never carried out.
    Again,
}

impl Inner {
    /// Lets a verb decide until what it decided could be written.
    pub(super) async fn decide<V: Verb>(
        &self,
        verb: &V,
    ) -> Result<std::result::Result<Done<V::Output>, StoreError>> {
        let mut lost = 0;
        loop {
            let mut needs = Needs::default();
            verb.needs(&mut needs);
            // All is read anew after a loss: the versions of the last look would lose again.
            let mut seen = Seen::default();
            let first = Box::pin(self.load(&needs, None, lost)).await?;
            let mut rows = Rows::new(first.now);
            first.supply(&mut rows, &mut seen)?;
            let answer = loop {
                match rows.attempt(verb) {
                    Ok(Some(answer)) => break answer,
                    Ok(None) if *rows.missing() == needs => {
                        let detail = format!("the call asks for the same again: {verb:?}");
                        return Err(Fault::new(StoreErrorKind::Unexpected, detail));
                    }
                    Ok(None) => {
                        needs = rows.missing().clone();
                        let more = Box::pin(self.load(&needs, Some(rows.now()), lost)).await?;
                        more.supply(&mut rows, &mut seen)?;
                    }
                    Err(error) => return Ok(Err(error)),
                }
            };
            // What was found done is what the caller relies on. It may have been written by a call whose confirmation failed.
            let is_relied_on =
                self.awaits_replicas() && !(seen.letters.is_empty() && seen.operations.is_empty());
            if rows.is_unchanged() && !is_relied_on {
                return Ok(Ok(Done { answer, note: None }));
            }
            // While a canary is out, counts decide the state, so that the operation has to be known as a whole.
            let canaries = write::to_load(&rows, &seen);
            if !canaries.is_empty() {
                for (id, stored) in self.link.operations(&canaries).await? {
                    seen.operation(id, Watch::Whole, stored);
                }
            }
            // What would not find itself done, were it made again.
            let is_once = !rows.is_unchanged() && (V::ONCE || rows.last_fence().is_some());
            // The script compares all versions that were seen and writes in the same step, so that nothing can change in
            // between.
            let commit = write::commit(&self.link.names, &rows, &seen)?;
            if let Ended::Written(note) = Box::pin(self.write(&commit, is_once)).await? {
                let woken = rows.woken();
                if !woken.is_empty() {
                    self.wake(&woken);
                }
                return Ok(Ok(Done { answer, note }));
            }
            lost += 1;
            self.back_off(lost).await;
        }
    }

    async fn write(&self, commit: &Commit<'_>, is_once: bool) -> Result<Ended> {
        // Most commits need no token, and so leave no key behind at the server.
        let token = if is_once { super::token() } else { String::new() };
        let mut call =
            self.link.call(&scripts::COMMIT).arg(&token).arg(REMEMBERED).arg(commit.checks);
        for arg in commit.compares.iter().chain(&commit.writes) {
            call = call.arg(arg);
        }
        let (answer, confirmed) = match self.durably(&call).await {
            Ok(answer) => answer,
            // Only such a commit has to ask: any other finds itself done when the call is made again.
            Err(fault) if is_once && fault.is_open() => return self.settle(&token, fault).await,
            Err(fault) => return Err(fault),
        };
        let [outcome, what] = parts(answer)?;
        match number(outcome) {
            0 => Ok(Ended::Again),
            // A commit that arrives after its token was settled finds `void` and writes nothing, so that the verb decides
            // anew.
            2.. if bytes_of(&what) == b"void" => Ok(Ended::Again),
            _ => confirmed.map(|()| Ended::Written(note(what))),
        }
    }

    /// Finds out what became of a commit whose answer was lost; if it was not carried out yet, it never will be.
    async fn settle(&self, token: &str, fault: Fault) -> Result<Ended> {
        let call = self.link.call(&scripts::SETTLE).arg(token).arg(REMEMBERED);
        let began = Instant::now();
        loop {
            match self.durably(&call).await {
                Ok((answer, _)) if bytes_of(&answer) == b"void" => return Ok(Ended::Again),
                Ok((answer, confirmed)) => {
                    return confirmed.map(|()| Ended::Written(note(answer)));
                }
                // Every error is waited out: until the server answers, nobody can say whether the commit has happened.
                Err(_) if began.elapsed() < OUTCOME_LIMIT => sleep(Duration::from_millis(50)).await,
                Err(_) => return Err(fault),
            }
        }
    }

    const fn awaits_replicas(&self) -> bool {
        matches!(self.durability, Durability::Replicas(_))
    }

    /// Runs a script. Returns its answer, and whether as many replicas as the store is to wait for have what it wrote or found
    /// written. An error means that it is open whether it was carried out.
    pub(super) async fn durably(&self, call: &ScriptCall) -> Result<(Value, Result<()>)> {
        let Durability::Replicas(wanted) = self.durability else {
            return Ok((self.link.run(call).await?, Ok(())));
        };
        let (answer, have) = self.link.replicated(call, wanted, self.replica_timeout).await?;
        Ok((answer, self.judge_replicas(have, wanted)))
    }

    fn judge_replicas(&self, have: u64, wanted: u32) -> Result<()> {
        if have >= u64::from(wanted) {
            return Ok(());
        }
        let detail = format!(
            "{have} of {wanted} replicas have confirmed the write within {:?}; the master has it, and a fail-over may lose it; \
             check the replicas, then make the call again",
            self.replica_timeout
        );
        Err(Fault::new(StoreErrorKind::Unavailable, detail))
    }

    async fn back_off(&self, lost: u32) {
        if lost > 1 {
            let most = 1_u64 << lost.min(6);
            // The pause is random, so that those who lost against each other do not meet again.
            sleep(Duration::from_micros(random(most * 1_000))).await;
        } else {
            tokio::task::yield_now().await;
        }
        if lost.is_multiple_of(100) {
            tracing::warn!(lost, "a call finds changed again and again what it has read; retrying");
        }
    }

    /// Writes those of these letters that are plainly new.
    pub(super) async fn put_new(&self, letters: &[DeadLetter]) -> Result<Vec<bool>> {
        let names = &self.link.names;
        // The time of a moment ago spares a round trip for each batch, and is never ahead of the server's.
        let now = self.about_now().await?;
        let mut call = self.link.call(&scripts::PUT);
        for letter in letters {
            let row = Row::new(rules::put(letter.clone(), now));
            let (fields, _) = codec::fields(&row, Changed::All);
            call = call.arg(names.letter(letter.id)).arg(fields.len());
            for field in &fields {
                call = call.arg(field);
            }
            let members = names::members(&row);
            call = call.arg(members.len() * 2);
            for member in &members {
                call = call.arg("0").arg(member);
            }
            let sets = names.sets(&row);
            call = call.arg(sets.len() * 2);
            for (key, member) in &sets {
                call = call.arg(key).arg(member);
            }
            let counts = counted(names, &row);
            call = call.arg(counts.len() * 2);
            for (key, field) in counts {
                call = call.arg(key).arg(field);
            }
        }
        let (answer, confirmed) = self.durably(&call).await?;
        // When the call is repeated because its answer was lost, its own letters are there already; the engine tells
        // that they are unchanged.
        let written: Vec<_> = array(answer).into_iter().map(|flag| number(flag) == 1).collect();
        // Letters that were there before go to the engine, whose look at them waits for the replicas.
        if written.contains(&true) {
            confirmed?;
        }
        Ok(if written.is_empty() { vec![false; letters.len()] } else { written })
    }
}

fn bytes_of(value: &Value) -> Vec<u8> {
    bytes(value.clone()).unwrap_or_default()
}

/// The number of a note, if there was one.
fn note(value: Value) -> Option<i64> {
    let number: i64 = String::from_utf8(bytes(value)?).ok()?.parse().ok()?;
    (number >= 0).then_some(number)
}

//! Sending of letters, and finding out which have arrived.

use std::collections::BTreeMap;

use dlq_core::outbox::{Outgoing, Sent, Settled};
use dlq_core::protocol::of_replay;
use dlq_core::{StoreError, StoreErrorKind, Timestamp};
use tokio::time::Instant;

use super::scripts::SEND;
use super::{KEPT, REPLAYING, RedisOutbox};
use crate::client::{RedisError, RedisErrorKind, ScriptCall, as_text};
use crate::consumer::Keys;
use crate::consumer::wire::{entry, position};

/// Letters that are handed to the server at once, at most. Each is a script of its own, so that others get in between.
const LETTERS: usize = 100;
/// Bytes of payload that are handed to the server at once, unless one letter has more.
const BYTES: usize = 1024 * 1024;
/// The most values of an entry. A script that unpacks more fails.
const VALUES: usize = 7_000;
/// Seconds by which the clock of the store may be ahead of that of the server.
const SKEW: u64 = 60;

/// A letter and its place in the batch.
type Numbered<'a> = (usize, &'a Outgoing);

impl RedisOutbox {
    /// Calls of different streams may be for different nodes, so they are handed over apart.
    fn by_stream<'a>(&self, batch: &'a [Outgoing]) -> BTreeMap<&'a str, Vec<Numbered<'a>>> {
        let mut streams: BTreeMap<&str, Vec<Numbered<'_>>> = BTreeMap::new();
        for (number, one) in batch.iter().enumerate() {
            streams.entry(&one.to.subject).or_default().push((number, one));
        }
        streams
    }

    pub(super) async fn send_all(&self, batch: &[Outgoing], until: Instant) -> Vec<Sent> {
        let mut sent: Vec<Option<Sent>> = batch.iter().map(|_| None).collect();
        for (stream, letters) in self.by_stream(batch) {
            let keys = match Keys::of(stream) {
                Ok(keys) => keys,
                Err(error) => {
                    letters.iter().for_each(|(at, _)| sent[*at] = Some(refused(&error)));
                    continue;
                }
            };
            let mut rest = &letters[..];
            while !rest.is_empty() {
                // In parts, and `until` is looked at before each: a large batch takes longer than the lease may have left.
                let (chunk, left) = rest.split_at(chunk(rest));
                rest = left;
                self.send_chunk(&keys, chunk, until, &mut sent).await;
            }
        }
        let missing = || later("the letter was passed over");
        sent.into_iter().map(|sent| sent.unwrap_or_else(missing)).collect()
    }

    async fn send_chunk(
        &self,
        keys: &Keys,
        letters: &[Numbered<'_>],
        until: Instant,
        sent: &mut [Option<Sent>],
    ) {
        // The lease might end while a later letter is on its way, and another sender would take it over. It stays queued.
        if Instant::now() >= until {
            letters.iter().for_each(|(at, _)| sent[*at] = Some(later("its time was over")));
            return;
        }
        let (mut calls, mut called) = (Vec::new(), Vec::new());
        for (at, one) in letters {
            match self.call(keys, one) {
                Ok(call) => {
                    calls.push(call);
                    called.push(*at);
                }
                Err(answer) => sent[*at] = Some(answer),
            }
        }
        match self.client.scripts(&calls).await {
            Ok(answers) => {
                for (at, answer) in called.into_iter().zip(answers) {
                    sent[at] = Some(match answer {
                        Ok(answer) => added(keys, as_text(&answer).as_deref()),
                        Err(error) => failed(&error),
                    });
                }
            }
            // The client repeats calls, so that also after a refused connection an earlier try may have been carried out.
            Err(error) => {
                for at in called {
                    sent[at] = Some(Sent::Unknown(error.for_running_store(REPLAYING)));
                }
            }
        }
    }

    fn call(&self, keys: &Keys, one: &Outgoing) -> Result<ScriptCall, Sent> {
        let Outgoing { letter, replay, once, .. } = one;
        let ours = of_replay(letter, replay).bound_by(self.key.as_ref(), letter);
        let message = letter.message.clone().with_headers(ours.onto(letter.message.headers()));
        let values = entry(&message, &self.fields, &keys.subject());
        if values.len() > VALUES {
            let most = VALUES / 2;
            return Err(refused(&format!("it has more than {most} headers, which is too many")));
        }
        let call = SEND.keys(&[&*keys.stream, &*keys.sent(once)]).arg(KEPT.as_millis() as u64);
        Ok(values.into_iter().fold(call, ScriptCall::arg))
    }

    pub(super) async fn settle_all(
        &self,
        since: Timestamp,
        batch: &[Outgoing],
    ) -> Result<Vec<Settled>, StoreError> {
        let failed = |error: &RedisError| error.for_running_store(REPLAYING);
        let mut settled: Vec<Option<Settled>> = batch.iter().map(|_| None).collect();
        for (stream, letters) in self.by_stream(batch) {
            let keys = Keys::of(stream).map_err(|error| failed(&error))?;
            for letters in letters.chunks(LETTERS) {
                let look = |(_, one): &Numbered<'_>| {
                    let mut get = redis::cmd("GET");
                    get.arg(keys.sent(&one.once));
                    get
                };
                let looks: Vec<_> = letters.iter().map(look).collect();
                let found = self.client.commands(&looks).await.map_err(|error| failed(&error))?;
                for ((at, _), found) in letters.iter().zip(found) {
                    let found = found.map_err(|error| failed(&error))?;
                    settled[*at] = as_text(&found).map(|id| Settled::Arrived(added_at(&id)));
                }
            }
        }
        if settled.iter().all(Option::is_some) {
            return Ok(settled.into_iter().flatten().collect());
        }
        // The time is asked for after the marks: if none of them can have expired by now, none had when it was looked
        // for.
        let now = self.client.time().await.map_err(|error| failed(&error))?;
        // A missing mark says that nothing was sent only as long as no mark of this age can have expired.
        let is_known = now.since(since).as_secs() < KEPT.as_secs() - SKEW;
        let missing = || match is_known {
            true => Settled::Not,
            false => Settled::Unclear("marks of what was sent are kept for 7 days".to_owned()),
        };
        Ok(settled.into_iter().map(|one| one.unwrap_or_else(missing)).collect())
    }
}

/// Number of letters that fit into one round trip.
fn chunk(letters: &[Numbered<'_>]) -> usize {
    let mut bytes = 0;
    let fits = letters.iter().take(LETTERS).take_while(|(_, one)| {
        bytes += one.letter.message.payload().map_or(0, |payload| payload.len());
        bytes <= BYTES
    });
    // A letter that is larger than the bound goes alone.
    fits.count().max(1)
}

/// The answer of the script that sends.
fn added(keys: &Keys, answer: Option<&str>) -> Sent {
    match answer {
        Some(id) if position(id).is_some() => Sent::Confirmed,
        Some("no stream") => refused(&format!(
            "there is no stream `{}`; create it with its consumer group, or name another",
            keys.stream
        )),
        Some(kind) => refused(&format!("`{}` is no stream, it is {kind}", keys.stream)),
        None => refused(&"the server answered with something else than the id of an entry"),
    }
}

/// The time at which an entry was added, which its id says.
fn added_at(id: &str) -> Timestamp {
    let millis = position(id).map_or(0, |(millis, _)| millis);
    Timestamp::from_millis(i64::try_from(millis).unwrap_or(i64::MAX))
}

/// An error with which the server answered the script of one letter, which has written nothing then.
fn failed(error: &RedisError) -> Sent {
    match error.kind() {
        RedisErrorKind::WrongType | RedisErrorKind::Unexpected => {
            Sent::Refused(error.for_running_store(REPLAYING))
        }
        // The server has refused the first write, and with it the whole script.
        _ if error.code().is_some() => Sent::Later(error.for_running_store(REPLAYING)),
        _ => Sent::Unknown(error.for_running_store(REPLAYING)),
    }
}

fn refused(why: &dyn std::fmt::Display) -> Sent {
    Sent::Refused(StoreError::new(StoreErrorKind::Refused, REPLAYING).with_detail(why.to_string()))
}

fn later(why: &str) -> Sent {
    Sent::Later(StoreError::new(StoreErrorKind::Unavailable, REPLAYING).with_detail(why))
}

//! [`UnreadableSearch`]: finds the messages that the client cannot read.
//!
//! A server keeps whatever headers a producer writes. Where the client cannot read one it gives its connection up, and
//! does so each time that the message is handed out to it; at a carriage return in a value its task breaks down, and the
//! client is no more. So each such message would take one process after another with it, one per lease. Nobody says which
//! message it was: it is looked for among those that are out, in the form of JSON that the client can read whatever the
//! headers are.
//!
//! - Where a process begins, it asks for no messages until all were looked at that are out: the message may have ended the
//!   process before.
//! - While it runs, those that have been out for a part of the lease are looked at, so that the process which had the
//!   message is the only one that it takes with it.
//! - How far the consumer is is seen with it, so that one that somebody deletes begins again where it stood then, and not
//!   where it stood weeks ago.
//! - After a second loss of the connection within an hour all are looked at again.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::jetstream::Context;
use dlq_core::StoreError;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::client::leader::{self, Kept, Which};
use crate::consumer::durable::Durable;
use crate::consumer::settle::PROGRESS;

const LOOKING: &str = "look for a message that breaks the connection";
/// Within which time two losses are not bad luck: of many processes each loses its connection seldom.
const AGAIN: Duration = Duration::from_secs(60 * 60);
/// Number of messages of each filter that are looked at while the process runs, beginning with the oldest that is out: it
/// is this one in the end.
const MOST: usize = 32;
/// Number of parts of what is out that are looked at beside each other when a process begins, and the smallest size of one.
const PARTS: u64 = 8;
const PART: u64 = 64;
/// Pause between two first looks of which one failed.
const RETRY: Duration = Duration::from_secs(1);
/// Time for which a process asks for no messages while it looks, at least; a longer lease is waited for.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time for which it then asks for none while the letter of what was found is not written: its lease may have ended, so that
/// the next one who asks gets it.
const UNWRITTEN: Duration = Duration::from_secs(10);
/// The longest time for which a message is given back.
const LONGEST: Duration = Duration::from_secs(60 * 60);

/// Looks for messages that the client cannot read, in the background.
#[derive(Debug)]
pub(crate) struct UnreadableSearch {
    /// The time when the connection was last lost with messages on their way.
    last: Option<Instant>,
    looking: JoinSet<Option<Seen>>,
    looked: Instant,
    /// The time when the look of the beginning began, while it goes on.
    beginning: Option<Instant>,
    /// The last sequence that had been handed out at the last look.
    handed: u64,
    /// The last sequence of each filter that was looked at: messages never change.
    read: Vec<u64>,
    /// The messages found beyond the floor; and the time, where that was at the beginning.
    held: Vec<(u64, Option<Instant>, Held)>,
}

/// The fate of a message that was found. Whoever holds a clone has the message in flight.
#[derive(Clone, Debug, Default)]
pub(crate) struct Held(Arc<Mutex<Fate>>);

#[derive(Debug, Default)]
struct Fate {
    is_settled: bool,
    /// The time when it is to be handed out again.
    not_before: Option<Instant>,
}

impl Held {
    pub(crate) fn settled(&self) {
        self.fate().is_settled = true;
    }

    /// Notes that it was given back for so long.
    pub(crate) fn deferred(&self, after: Duration) {
        self.fate().not_before = Some(Instant::now() + after.min(LONGEST));
    }

    fn is_settled(&self) -> bool {
        self.fate().is_settled
    }

    /// Returns true if nobody has it in flight, although it is not settled.
    fn is_left(&self) -> bool {
        // This list has one reference itself. With no other, whoever had the message has dropped it.
        Arc::strong_count(&self.0) == 1 && !self.is_settled()
    }

    fn is_due(&self) -> bool {
        self.fate().not_before.is_none_or(|due| due <= Instant::now())
    }

    fn fate(&self) -> MutexGuard<'_, Fate> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The messages that are looked at.
#[derive(Debug)]
enum Scope {
    /// All that are out.
    All,
    /// The ones that were out at the last look, beyond what was read of each filter.
    Old(u64, Vec<u64>),
}

/// The result of a look.
#[derive(Debug)]
struct Seen {
    /// The sequence up to which everything is settled; `None` where there is no consumer.
    floor: Option<u64>,
    handed: u64,
    read: Vec<u64>,
    unreadable: Vec<Kept>,
}

impl Default for UnreadableSearch {
    fn default() -> Self {
        Self {
            last: None,
            looking: JoinSet::new(),
            looked: Instant::now(),
            beginning: None,
            handed: 0,
            read: Vec::new(),
            held: Vec::new(),
        }
    }
}

impl UnreadableSearch {
    /// The connection was lost while messages were on their way.
    pub(crate) fn note(&mut self, context: &Context, durable: &Durable) {
        let last = self.last.replace(Instant::now());
        if last.is_some_and(|last| last.elapsed() < AGAIN) {
            self.look(context, durable, Scope::All);
        }
    }

    /// Looks at everything that is out: nobody knows how the process before has ended.
    pub(crate) fn begin(&mut self, context: &Context, durable: &Durable) {
        self.beginning = Some(Instant::now());
        self.look(context, durable, Scope::All);
    }

    /// Stream and consumer were looked for, and may have been made anew: what is being looked at may be of the ones before.
    pub(crate) fn anew(&mut self, context: &Context, durable: &Durable) {
        // Dropping the set aborts the look: what it finds would be of a stream that is no more.
        self.looking = JoinSet::new();
        if self.beginning.is_some() {
            self.look(context, durable, Scope::All);
        }
    }

    /// Looks again when it is time.
    pub(crate) fn again(&mut self, context: &Context, durable: &Durable) {
        // Before the first look has succeeded, nothing of what is out was looked at.
        let (pause, scope) = if self.read.is_empty() {
            let pause = if self.beginning.is_some() { RETRY } else { durable.lease / 4 };
            (pause, Scope::All)
        } else {
            (durable.lease / 4, Scope::Old(self.handed, self.read.clone()))
        };
        if self.looked.elapsed() >= pause {
            self.look(context, durable, scope);
        }
    }

    /// Returns true if messages can be asked for: what is out was looked at, and nothing that was found waits to be handed out
    /// again.
    pub(crate) fn is_clear(&mut self, lease: Duration) -> bool {
        // The time is bounded, so that a server which never answers the look keeps nobody from working.
        let looks = self.beginning.is_some_and(|began| began.elapsed() < lease.max(PATIENCE));
        let waits = |(_, found, held): &(u64, Option<Instant>, Held)| {
            let is_early = found.is_some_and(|found| found.elapsed() < UNWRITTEN);
            is_early && !held.is_settled() && !held.is_left()
        };
        !looks && !self.held.iter().any(waits)
    }

    fn look(&mut self, context: &Context, durable: &Durable, scope: Scope) {
        if !self.looking.is_empty() {
            return;
        }
        self.looked = Instant::now();
        let (context, durable) = (context.clone(), durable.clone());
        // What was given back stays here.
        let left = self.held.iter().filter(|(_, _, held)| held.is_left());
        let left: Vec<u64> = left.map(|(sequence, ..)| *sequence).collect();
        self.looking.spawn(async move {
            // Leases of what was given back are renewed first, since the look may take longer than they last.
            for sequence in left {
                keep(&context, &durable, sequence).await;
            }
            match look(&context, &durable, scope).await {
                Ok(seen) => Some(seen),
                Err(error) => {
                    tracing::debug!(%error, consumer = durable.name, "it could not be seen");
                    None
                }
            }
        });
    }

    /// Returns what was found since, other than what somebody has in flight or has settled. Notes how far the consumer is.
    pub(crate) fn found(&mut self, durable: &mut Durable) -> Vec<(Kept, Held)> {
        let Some(looked) = self.looking.try_join_next() else { return Vec::new() };
        let Ok(Some(seen)) = looked else {
            // A failed look is made again, and ends the beginning only after a while: a user who may not read single
            // messages is not kept from all the others.
            self.beginning = self.beginning.filter(|began| began.elapsed() < PATIENCE);
            return Vec::new();
        };
        let begins = self.beginning.take().map(|_| Instant::now());
        if seen.handed < self.handed {
            // The consumer, or its stream, was made anew.
            self.held.clear();
        }
        (self.handed, self.read) = (seen.handed, seen.read);
        if let Some(floor) = seen.floor {
            // What stands at or below the floor is settled, by whomever.
            self.held.retain(|(sequence, ..)| *sequence > floor);
            durable.stood(floor);
        }
        let mut found = Vec::new();
        for kept in seen.unreadable {
            let known = self.held.iter().find(|(sequence, ..)| *sequence == kept.sequence);
            let held = match known {
                // What was given back comes again from here: the server would hand it to a client.
                Some((_, _, held)) if held.is_left() && held.is_due() => held.clone(),
                Some(_) => continue,
                None => {
                    let held = Held::default();
                    self.held.push((kept.sequence, begins, held.clone()));
                    held
                }
            };
            found.push((kept, held));
        }
        // What was given back is read again.
        let left = self.held.iter().filter(|(_, _, held)| held.is_left());
        if let Some(first) = left.map(|(sequence, ..)| *sequence).min() {
            for read in &mut self.read {
                *read = (*read).min(first.saturating_sub(1));
            }
        }
        found
    }
}

/// The subject by which a message is acknowledged that was not received.
pub(crate) fn reply(durable: &Durable, sequence: u64) -> String {
    // Of deliveries, number, time and what is left the server takes any: it looks at the sequence.
    let (stream, consumer) = (durable.of.name(), &durable.name);
    format!("$JS.ACK.{stream}.{consumer}.1.{sequence}.{sequence}.0.0")
}

/// Has the lease begin anew. Where it cannot be said the message may come once more.
async fn keep(context: &Context, durable: &Durable, sequence: u64) {
    let _ = context.client().publish(reply(durable, sequence), PROGRESS).await;
}

async fn look(context: &Context, durable: &Durable, scope: Scope) -> Result<Seen, StoreError> {
    let info = durable.find(context).await.map_err(|error| error.for_store(LOOKING))?;
    let all = [">".to_owned()];
    let filters = if durable.filters.is_empty() { &all[..] } else { &durable.filters };
    let handed = info.as_ref().map_or(0, |info| info.delivered.stream_sequence);
    let floor = info.as_ref().map(|info| info.ack_floor.stream_sequence);
    let mut seen = Seen { floor, handed, read: vec![0; filters.len()], unreadable: Vec::new() };
    // Nothing is out, so that nothing can have broken a connection.
    if info.is_none_or(|info| info.num_ack_pending == 0) {
        return Ok(seen);
    }
    let floor = floor.unwrap_or(0);
    for (at, filter) in filters.iter().enumerate() {
        let (mut unreadable, read) = match &scope {
            Scope::All => (everything(context, durable, filter, floor + 1, handed).await?, handed),
            Scope::Old(before, read) => {
                // Less is handed out than before only where the consumer was made anew: what was read is of the former
                // one then.
                let read = read.get(at).copied().filter(|_| handed >= *before);
                let first = floor.max(read.unwrap_or(0)) + 1;
                // What was handed out since is looked at next time: most of it is settled by then and costs no request.
                let last = handed.min(*before);
                some(context, durable, filter, first, last, MOST).await?
            }
        };
        seen.read[at] = read;
        seen.unreadable.append(&mut unreadable);
    }
    for kept in &seen.unreadable {
        // Nobody gets it while its letter is written.
        keep(context, durable, kept.sequence).await;
    }
    Ok(seen)
}

/// Returns what cannot be read between these sequences, which may be many.
async fn everything(
    context: &Context,
    durable: &Durable,
    filter: &str,
    first: u64,
    last: u64,
) -> Result<Vec<Kept>, StoreError> {
    let part = last.saturating_sub(first).div_ceil(PARTS).max(PART);
    let parts = (0..PARTS).map(|number| first + number * part).take_while(|first| *first <= last);
    let looks = parts.map(|first| async move {
        // The parts do not overlap, so that a message is found once.
        let last = last.min(first + part - 1);
        some(context, durable, filter, first, last, usize::MAX).await.map(|(found, _)| found)
    });
    let all = stream::iter(looks).buffered(PARTS as usize).try_collect::<Vec<_>>().await?;
    Ok(all.into_iter().flatten().collect())
}

/// Returns what cannot be read of the first messages between these sequences, and up to where it was looked.
async fn some(
    context: &Context,
    durable: &Durable,
    filter: &str,
    first: u64,
    last: u64,
    most: usize,
) -> Result<(Vec<Kept>, u64), StoreError> {
    let (mut next, mut found) = (first, Vec::new());
    for _ in 0..most {
        if next > last {
            break;
        }
        let which = Which::From(filter, next);
        let kept = leader::get(context, LOOKING, durable.of.name(), which).await?;
        // The first message from `next` on stands beyond the part, so the whole part is done.
        let Some(kept) = kept.filter(|kept| kept.sequence <= last) else {
            next = next.max(last + 1);
            break;
        };
        next = kept.sequence + 1;
        if !kept.is_readable() {
            found.push(kept);
        }
    }
    Ok((found, next - 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::consumer::durable::Of;

    async fn told_of_a_failed_look(search: &mut UnreadableSearch) {
        let lease = Duration::from_secs(1);
        let of = Of::Own(Box::default());
        let mut durable = Durable::new(of, "billing".to_owned(), lease);
        search.looking.spawn(async { None });
        while !search.looking.is_empty() {
            assert!(search.found(&mut durable).is_empty());
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_first_look_that_failed_is_no_look_for_a_while() {
        let lease = Duration::from_secs(1);
        let mut search =
            UnreadableSearch { beginning: Some(Instant::now()), ..UnreadableSearch::default() };
        told_of_a_failed_look(&mut search).await;
        assert!(!search.is_clear(lease), "what is out was not looked at");
        tokio::time::advance(PATIENCE).await;
        told_of_a_failed_look(&mut search).await;
        assert!(search.is_clear(lease), "who may not look works all the same");
    }
}

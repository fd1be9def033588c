use std::borrow::Cow;
use std::collections::HashMap;
use std::pin::pin;
use std::time::Duration;

use async_nats::jetstream::context::traits::TimeoutProvider as _;
use dlq_core::replay::{ReplayOutcome, Skipped};
use dlq_core::{Clock, DeadLetter, Death, StoreError, StoreErrorKind, SystemClock};
use futures_util::{StreamExt, stream};
use tokio::sync::SemaphorePermit;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::super::ledger::{CHUNK, Claim, Mark};
use super::super::picture::Row;
use super::reconcile::reconcile;
use super::run::Run;
use super::term::Term;
use crate::client::inboxes::Heard;
use crate::dead::dispatch::{REPLAYING, Unsent};

/// Number of letters of a chunk that are handed to the server at once. All of a chunk may be on their way.
const BATCH: usize = 64;

/// Pause between two tries of a letter that the server could not take: the time it takes to elect a leader.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LAST_PAUSE: Duration = Duration::from_secs(4);
/// Time for which it goes on while the server takes nothing, if leases are too short for all of these tries.
const PATIENCE: Duration = Duration::from_secs(8);

/// Letters with one record in the ledger.
#[derive(Debug)]
pub(super) struct Chunk<'a> {
    pub(super) index: u64,
    pub(super) rows: Vec<&'a Row>,
}

/// Outcome for a letter that was processed.
enum Step {
    Done(ReplayOutcome),
    /// It was too late to send it, or to try it again, as the server could not take it.
    Late(Option<StoreError>),
    /// The server does not answer.
    Broken(StoreError),
}

/// End of sending for half of a lease.
enum Ended {
    /// Unprocessed letters may be sent.
    Well,
    /// The same, but the server could not take something.
    Later(StoreError),
    Broken(StoreError),
}

/// A letter whose turn it is, and the room that it takes on its way.
struct Admitted<'a, 'r> {
    sequence: u64,
    letter: Cow<'a, DeadLetter>,
    room: Option<SemaphorePermit<'r>>,
}

impl<'a> Run<'a> {
    /// Sends the letters of a chunk: whether it is done with. Otherwise somebody else sends it and was not waited for.
    pub(super) async fn work_on(
        &self,
        chunk: &mut Chunk<'a>,
        wait: bool,
    ) -> Result<bool, StoreError> {
        let Chunk { index, rows } = chunk;
        let lease = self.replay.lease;
        let mine = |streams| {
            let lease_ms = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX);
            Some(Claim { owner: self.owner.clone(), lease_ms, streams })
        };
        while !rows.is_empty() && !self.cancel.is_cancelled() {
            let entry = self.ledger.read(*index).await?;
            let mut record = entry.record.clone();
            let mut doubtful = false;
            if let Some(claim) = &entry.record.claim {
                if !self.watch.is_over(*index, claim, &entry) {
                    if !wait {
                        return Ok(false);
                    }
                    self.wait_for(claim).await;
                    continue;
                }
                let (context, from) = (&self.shipment.dispatch.context, &self.shipment.from);
                // The former owner's lease has ended. What it has sent is marked in the same write that claims the chunk
                // anew.
                let found = reconcile(context, from, *index, claim, &entry).await?;
                doubtful = found.doubtful;
                record.marks.extend(found.marks);
                record.claim = None;
            }
            rows.retain(|row| {
                let mark = record.marks.get(&row.letter.death());
                !self.skip_marked(row, mark.map(|mark| mark.operation))
            });
            if rows.is_empty() {
                if record != entry.record {
                    // Whoever was faster has found the same.
                    self.ledger.write(*index, &record, entry.revision).await?;
                }
                break;
            }
            // Where the streams stand is read before anything is sent: whoever comes after a crash reads on from there
            // (G6).
            record.claim = mine(self.stands(rows).await?);
            let mut term = Term::begin(lease);
            let written = self.ledger.write(*index, &record, entry.revision).await?;
            // Somebody else was faster: nothing was sent, and its record is looked at.
            let Some(mut revision) = written else { continue };
            // After the claim: an ingest that has not seen it has made its mark before.
            if let Err(error) = self.replay.letters.refuse_kept().await {
                record.claim = None;
                self.ledger.write(*index, &record, revision).await?;
                return Err(error);
            }
            let mut stuck = None;
            loop {
                let (sent, ended) = self.bite(rows, term).await;
                let broken = match ended {
                    Ended::Well => None,
                    Ended::Broken(error) => Some(error),
                    Ended::Later(error) => {
                        // Each letter that is sent begins this count anew: only a server that takes nothing at all
                        // ends the replay.
                        let stuck = stuck.get_or_insert(term);
                        let is_over = sent.is_empty() && stuck.elapsed() >= PATIENCE;
                        (is_over && !self.cancel.is_cancelled()).then_some(error)
                    }
                };
                if !sent.is_empty() {
                    stuck = None;
                }
                if doubtful {
                    self.doubt(sent.len() as u64);
                }
                let (operation, at) = (self.replay.rules.operation, SystemClock.now());
                for death in sent {
                    let times = record.marks.get(&death).map_or(0, |mark| mark.times);
                    let mark = Mark { operation, at, times: times.saturating_add(1) };
                    record.marks.insert(death, mark);
                }
                let goes_on = !rows.is_empty() && !self.cancel.is_cancelled();
                let mut broken = broken;
                // Where it is broken the old claim stays: messages may be on their way, and a successor has to look from
                // where it stood.
                if broken.is_none() {
                    // Everything that was sent is marked, so that from here on another look begins.
                    match if goes_on { self.stands(rows).await.map(&mine) } else { Ok(None) } {
                        Ok(claim) => record.claim = claim,
                        // What was sent is marked all the same.
                        Err(error) => broken = Some(error),
                    }
                }
                term = Term::begin(lease);
                // What was confirmed is marked before an error is told, so that nobody has to look for it.
                let written = self.ledger.write(*index, &record, revision).await;
                if let Some(error) = broken {
                    return Err(error);
                }
                match written? {
                    Some(next) => revision = next,
                    // The lease had ended: somebody else has found what was sent, and sends the rest.
                    None => break,
                }
                if !goes_on {
                    return Ok(true);
                }
            }
        }
        Ok(true)
    }

    /// Sends what can be sent in this term; `rows` keeps what it did not come to. Returns what was sent and confirmed,
    /// and how it ended; where it is broken something else may have been sent too.
    async fn bite(&self, rows: &mut Vec<&'a Row>, term: Term) -> (Vec<Death>, Ended) {
        let broken = self.cancel.child_token();
        let stopped = broken.clone();
        let stopped = async move {
            tokio::select! {
                () = stopped.cancelled() => {}
                () = sleep_until(term.until()) => {}
            }
        };
        let mut open: HashMap<u64, &Row> = rows.iter().map(|row| (row.place, *row)).collect();
        let letters = self.replay.letters.whole(rows);
        // When the term is over nothing more is begun, and what is on its way is still awaited.
        let sending = letters
            .then(|read| self.admit(read))
            .take_until(stopped)
            .ready_chunks(BATCH)
            .map(|batch| self.send_batch(batch, term))
            .buffer_unordered(CHUNK as usize)
            .flat_map(stream::iter);
        let mut sending = pin!(sending);
        let (mut sent, mut ended, mut is_late) = (Vec::new(), Ended::Well, false);
        while let Some((sequence, step)) = sending.next().await {
            match step {
                Step::Late(why) => {
                    is_late = true;
                    if let (Some(why), Ended::Well) = (why, &ended) {
                        ended = Ended::Later(why);
                    }
                }
                Step::Broken(why) => {
                    if !matches!(ended, Ended::Broken(_)) {
                        ended = Ended::Broken(why);
                    }
                    // Nothing more is begun. What is on its way is awaited, since each confirmation spares a
                    // successor the search.
                    broken.cancel();
                }
                Step::Done(outcome) => {
                    let Some(row) = open.remove(&sequence) else { continue };
                    if matches!(outcome, ReplayOutcome::Sent) {
                        sent.push(row.letter.death());
                    }
                    self.tell(row, outcome);
                }
            }
        }
        rows.retain(|row| open.contains_key(&row.place));
        let is_well = matches!(ended, Ended::Well) && !self.cancel.is_cancelled();
        if is_well && !is_late && !term.is_over() {
            // All that the stream still has was come to, so that the rest has gone from it.
            for row in rows.drain(..) {
                self.tell(row, ReplayOutcome::Skipped(Skipped::Gone));
            }
        }
        (sent, ended)
    }

    /// Waits until there is room for another letter on its way, and its turn has come.
    async fn admit(
        &self,
        read: Result<(u64, Cow<'a, DeadLetter>), StoreError>,
    ) -> Result<Admitted<'a, '_>, StoreError> {
        let (sequence, letter) = read?;
        self.take_turn().await;
        let bytes = letter.message.payload().map_or(0, |payload| payload.len());
        // What is larger than all the room there is takes all of it.
        let room = u32::try_from(bytes / 1024 + 1).unwrap_or(u32::MAX).min(super::run::ROOM);
        let room = self.room.acquire_many(room).await.ok();
        Ok(Admitted { sequence, letter, room })
    }

    /// All of them at once first; by itself, then, what the server did not keep.
    async fn send_batch(
        &self,
        batch: Vec<Result<Admitted<'a, '_>, StoreError>>,
        term: Term,
    ) -> Vec<(u64, Step)> {
        let mut steps = Vec::with_capacity(batch.len());
        let mut admitted = Vec::with_capacity(batch.len());
        for one in batch {
            match one {
                Ok(one) => admitted.push(one),
                // No letter has the sequence 0, so that the error is told of none.
                Err(error) => steps.push((0, Step::Broken(error))),
            }
        }
        let mut alone = Vec::new();
        let heard = self.send_at_once(&admitted, term).await;
        for (one, heard) in admitted.into_iter().zip(heard) {
            let step = match heard {
                Heard::Kept { .. } => Step::Done(ReplayOutcome::Sent),
                // It may have arrived: the replay stops, and a successor looks for it once the lease has ended.
                Heard::Nothing | Heard::Elsewhere => {
                    Step::Broken(self.shipment.unheard(&one.letter))
                }
                Heard::Unsent => Step::Late(None),
                Heard::Refused => {
                    alone.push(self.send_one(one, term));
                    continue;
                }
            };
            steps.push((one.sequence, step));
        }
        let mut alone = pin!(stream::iter(alone).buffer_unordered(BATCH));
        while let Some(step) = alone.next().await {
            steps.push(step);
        }
        steps
    }

    /// Sends a batch and returns the server's answer for each. A letter that cannot be sent this way counts as refused.
    async fn send_at_once(&self, batch: &[Admitted<'a, '_>], term: Term) -> Vec<Heard> {
        let whole = batch.iter().map(|Admitted { sequence, letter, .. }| {
            let is_heard = self.hearing.lacks(&self.shipment, letter).is_none();
            is_heard.then(|| self.shipment.at_once(letter, *sequence)).flatten()
        });
        let may = || !term.is_over() && !self.cancel.is_cancelled();
        let said = self.shipment.dispatch.inboxes.publish_some(whole.collect(), may);
        // One by one the client may take its time for each.
        let end = term.until() + self.shipment.dispatch.context.timeout();
        let said = timeout_at(end, said).await;
        // The answers that had come are dropped with the future: all of them may have arrived, and a successor looks
        // for them.
        said.unwrap_or_else(|_| vec![Heard::Nothing; batch.len()])
    }

    async fn send_one(&self, admitted: Admitted<'a, '_>, term: Term) -> (u64, Step) {
        let Admitted { sequence, letter, room: _room } = admitted;
        if term.is_over() || self.cancel.is_cancelled() {
            return (sequence, Step::Late(None));
        }
        if let Some(why) = self.hearing.lacks(&self.shipment, &letter) {
            let error = StoreError::new(StoreErrorKind::Refused, REPLAYING).with_detail(why);
            return (sequence, Step::Done(ReplayOutcome::Failed(error)));
        }
        let mut pause = FIRST_PAUSE;
        let step = loop {
            match self.shipment.send(&letter, sequence).await {
                Ok(()) => break Step::Done(ReplayOutcome::Sent),
                Err(Unsent::Letter(error) | Unsent::Full(error)) => {
                    break Step::Done(ReplayOutcome::Failed(error));
                }
                Err(Unsent::Server(error)) => break Step::Broken(error),
                // The server takes nothing for longer than an election takes: the replay stops, and can be run again.
                Err(Unsent::Later(error)) if pause > LAST_PAUSE => break Step::Broken(error),
                Err(Unsent::Later(error)) => {
                    let again = term.until().min(Instant::now() + pause);
                    let paused = self.cancel.run_until_cancelled(sleep_until(again)).await;
                    if paused.is_none() || term.is_over() {
                        break Step::Late(Some(error));
                    }
                    pause *= 2;
                }
            }
        };
        (sequence, step)
    }
}

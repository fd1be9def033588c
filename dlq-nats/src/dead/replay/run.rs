use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dlq_core::StoreError;
use dlq_core::replay::{ReplayOutcome, ReplayReport, Skipped};
use futures_util::{StreamExt, stream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::super::ledger::{CHUNK, Claim, Ledger};
use super::super::picture::Row;
use super::super::send::Shipment;
use super::super::watch::{Watch, moment};
use super::chunk::Chunk;
use super::hearing::Hearing;
use super::{NatsReplay, Replayed};
use crate::client::streams::find;
use crate::dead::dispatch::REPLAYING;

/// Number of chunks that are sent at once.
const CHUNKS: usize = 4;
/// KiB of payload that are on their way at once. Each message has to be confirmed in the time that the client gives it,
/// 5 s, also from far away.
pub(super) const ROOM: u32 = 2 * 1024;
/// After how many waits it is said for what.
const PATIENT: u32 = 8;
/// For how long it is known where a stream stands.
const FRESH: Duration = Duration::from_secs(1);

/// Hears what becomes of each letter.
type Tell<'a> = &'a mut (dyn FnMut(&Replayed) + Send);

/// A replay that runs.
pub(super) struct Run<'a> {
    pub(super) replay: &'a NatsReplay,
    pub(super) shipment: Shipment,
    pub(super) ledger: Ledger,
    /// Name of this process in claims.
    pub(super) owner: String,
    /// Ends it: somebody has cancelled it, or the server does not answer.
    pub(super) cancel: CancellationToken,
    pub(super) room: Semaphore,
    /// When the next letter may be sent.
    turn: Mutex<Instant>,
    pub(super) hearing: Hearing,
    /// Positions of streams, and the times at which they were read.
    stands: Mutex<HashMap<String, (Instant, u64)>>,
    /// Claims of others.
    pub(super) watch: Watch,
    /// Number of waits for another process.
    waits: AtomicU32,
    told: Mutex<(ReplayReport, Tell<'a>)>,
}

impl NatsReplay {
    /// Sends them, and returns what was done when every letter was come to, `stop` was ready, or the server did not
    /// answer. `tell` hears of every letter as soon as it is known what becomes of it.
    ///
    /// When `stop` is ready, nothing more is sent: what was not sent is untouched, and what was sent is marked.
    ///
    /// # Errors
    ///
    /// When it cannot begin: as [`plan`](Self::plan), and `Refused` when the stream of dead letters was created again since
    /// it was planned, or its letters are kept in a store, which would not learn of what is sent.
    ///
    /// # Cancel safety
    ///
    /// Dropping it is what killing the process is: whoever sends these letters next waits for the lease to end, and goes
    /// on. Use `stop` instead.
    pub async fn run(
        &self,
        stop: impl Future<Output = ()> + Send,
        mut tell: impl FnMut(&Replayed) + Send,
    ) -> Result<ReplayReport, StoreError> {
        self.letters.refuse_kept().await?;
        let shipment = self.shipment().await?;
        let planned = lock(&self.agreed).as_ref().map(|agreed| Arc::clone(&agreed.picture));
        let picture = self.letters.picture(&self.filter, planned).await?;
        let selected = self.select(&shipment, &picture, self.bound(&picture)?);
        // A plan has looked at the rights already.
        if lock(&self.agreed).is_none() {
            self.permitted(&shipment, &selected.send).await?;
        }
        let letters = selected.send.len() as u64;
        let skips = selected.skip.len() as u64;
        let info = self.letters.info().await?;
        let ledger = Ledger::open(&self.letters.context, &self.letters.ledger, &info.config);
        let run = Run {
            replay: self,
            hearing: Hearing::of(&shipment, &selected.send).await?,
            owner: self.letters.context.client().new_inbox(),
            ledger: ledger.await?,
            shipment,
            cancel: CancellationToken::new(),
            room: Semaphore::new(ROOM as usize),
            turn: Mutex::new(Instant::now()),
            stands: Mutex::default(),
            watch: Watch::default(),
            waits: AtomicU32::new(0),
            told: Mutex::new((ReplayReport::default(), &mut tell)),
        };
        for (row, why) in selected.skip {
            run.tell(row, ReplayOutcome::Skipped(why));
        }
        let mut chunks: BTreeMap<u64, Vec<&Row>> = BTreeMap::new();
        for row in selected.send {
            chunks.entry(row.place / CHUNK).or_default().push(row);
        }
        let chunks = chunks.into_iter().map(|(index, rows)| Chunk { index, rows }).collect();
        run.send_all(chunks, stop).await;
        let (mut report, _) = run.told.into_inner().unwrap_or_else(PoisonError::into_inner);
        let told = report.sent + report.failed + report.skipped.values().sum::<u64>();
        report.left = (letters + skips).saturating_sub(told);
        Ok(report)
    }
}

impl<'a> Run<'a> {
    async fn send_all(&self, mut chunks: Vec<Chunk<'a>>, stop: impl Future<Output = ()>) {
        let sending = async {
            // What others are sending comes last: they may be done with it by then.
            for wait in [false, true] {
                let each: Vec<_> = chunks.drain(..).map(|chunk| self.send(chunk, wait)).collect();
                let each = stream::iter(each).buffer_unordered(CHUNKS);
                chunks = each.filter_map(|busy| async { busy }).collect().await;
            }
        };
        let mut sending = pin!(sending);
        tokio::select! {
            biased;
            // What is on its way is awaited and marked: dropped, its claim would keep others waiting until the lease
            // ends.
            () = stop => {
                self.cancel.cancel();
                sending.await;
            }
            () = &mut sending => {}
        }
    }

    async fn send(&self, mut chunk: Chunk<'a>, wait: bool) -> Option<Chunk<'a>> {
        match self.work_on(&mut chunk, wait).await {
            Ok(true) => None,
            Ok(false) => Some(chunk),
            Err(error) => {
                self.stop(error);
                None
            }
        }
    }

    /// It cannot go on.
    fn stop(&self, error: StoreError) {
        let mut told = lock(&self.told);
        // Those that follow are of the same cause.
        told.0.stopped.get_or_insert(error);
        self.cancel.cancel();
    }

    pub(super) fn tell(&self, row: &Row, outcome: ReplayOutcome) {
        let (report, tell) = &mut *lock(&self.told);
        report.count(&outcome);
        tell(&Replayed { id: row.letter.id, sequence: row.place, outcome });
    }

    pub(super) fn doubt(&self, letters: u64) {
        lock(&self.told).0.doubtful += letters;
    }

    /// Waits until the rate allows another letter.
    pub(super) async fn take_turn(&self) {
        let Some(rate) = self.replay.rules.rate else { return };
        let at = {
            let mut turn = lock(&self.turn);
            let at = (*turn).max(Instant::now());
            // The next turn is noted before this one is waited for, so that all chunks together keep the rate.
            *turn = at + Duration::from_secs(1) / rate;
            at
        };
        tokio::time::sleep_until(at).await;
    }

    /// Returns the current or recent positions of the streams that these letters go to; their receivers are asked for
    /// again.
    pub(super) async fn stands(&self, rows: &[&Row]) -> Result<BTreeMap<String, u64>, StoreError> {
        let mut stands = BTreeMap::new();
        for row in rows {
            let Some(stream) = self.shipment.stream_for(&row.letter) else { continue };
            if stands.contains_key(stream) {
                continue;
            }
            let known = lock(&self.stands).get(stream).copied();
            // A position that is a little old is safe: a successor reads a little more, and misses nothing.
            let known = known.filter(|(at, _)| at.elapsed() < FRESH);
            if let Some((_, last)) = known {
                stands.insert(stream.to_owned(), last);
                continue;
            }
            let info = find(&self.shipment.dispatch.context, stream).await;
            if let Some(info) = info.map_err(|error| error.for_store(REPLAYING))? {
                self.hearing.look(&self.shipment.dispatch.context, &info).await?;
                let last = info.state.last_sequence;
                lock(&self.stands).insert(stream.to_owned(), (Instant::now(), last));
                stands.insert(stream.to_owned(), last);
            }
        }
        Ok(stands)
    }

    /// Waits a moment for somebody else. After some of them the log says for what.
    pub(super) async fn wait_for(&self, claim: &Claim) {
        if self.waits.fetch_add(1, Ordering::Relaxed) == PATIENT {
            tracing::warn!(
                lease = ?claim.lease(),
                "another replay has begun to send letters of these; where it died, it is waited until its lease ends"
            );
        }
        let _ = self.cancel.run_until_cancelled(sleep(moment(claim))).await;
    }

    pub(super) fn skip_marked(&self, row: &Row, operation: Option<dlq_core::OperationId>) -> bool {
        let is_done = self.replay.rules.is_sent(operation);
        if is_done {
            self.tell(row, ReplayOutcome::Skipped(Skipped::Sent));
        }
        is_done
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

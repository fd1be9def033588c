use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use dlq_core::replay::{ReplayOutcome, ReplayReport, Skipped};
use dlq_core::{Death, StoreError, StoreErrorKind};
use rdkafka::error::RDKafkaErrorCode as Code;
use tokio::time::{Instant, sleep, timeout_at};

use super::super::follow::StoreWatch;
use super::super::ledger::{self, Keeps, Ledger, Marks, PATIENCE, random};
use super::super::picture::{LetterPosition, Row};
use super::super::send::{Shipment, now};
use super::super::sent::by_another;
use super::parcels::{Parcel, next_time};
use super::{KafkaReplay, Replayed};
use crate::client::aside::{aside, leave};
use crate::client::brokers::Brokers;
use crate::client::error::SetupError;
use crate::dead::dispatch::{OutgoingRecord, REPLAYING, refused};
use crate::dead::session::{Broken, Session, Written};
use crate::dead::stop::{Stop, StopOnDrop};

/// Maximum number of times that somebody else may take over before anything was sent.
const TAKEN: u32 = 20;
/// Maximum number of restarts because the cluster did not respond.
const BROKEN: u32 = 3;

/// For how long the cluster may take to show what was sent.
const SHOWN: Duration = Duration::from_secs(5);
/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(10);

/// A replay that runs.
pub(super) struct Run<'a, T> {
    pub(super) replay: &'a KafkaReplay,
    pub(super) brokers: Brokers,
    pub(super) shipment: Shipment,
    pub(super) report: ReplayReport,
    pub(super) tell: T,
    /// Content of the ledger at the time when the letters were read.
    pub(super) marks: &'a Marks,
    /// Selected letters that were not sent yet.
    pub(super) rows: VecDeque<&'a Row>,
    /// Parcels that could not be sent together, and are to be tried apart.
    pub(super) parts: VecDeque<Vec<Parcel<'a>>>,
    /// Letters that may have been sent, since nobody has said that they were not.
    pub(super) unsure: HashSet<Death>,
    /// Topics that cannot be written to.
    pub(super) closed: HashMap<Arc<str>, Code>,
    pub(super) stop: Arc<Stop>,
    /// When the next letter may be sent.
    pub(super) turn: Instant,
    /// Last offset that was written into each partition, letters and marks.
    pub(super) written: BTreeMap<Arc<str>, BTreeMap<u32, u64>>,
}

impl KafkaReplay {
    /// Sends them, and returns what was done when every letter was come to, `stop` was ready, or the cluster did not
    /// answer. `tell` hears of every letter as soon as it is known what becomes of it.
    ///
    /// When `stop` is ready, the transaction that is open is aborted unless it is being committed, and nothing more is
    /// sent: what was not sent is untouched, and what was sent is marked.
    ///
    /// # Errors
    ///
    /// When it cannot begin; as [`plan`](Self::plan). The report says [`stopped`](ReplayReport::stopped) with `Refused` where
    /// the letters are kept in a store, perhaps since a moment ago: it would not learn of what is sent.
    ///
    /// # Cancel safety
    ///
    /// Dropping it is what killing the process is. Nothing is lost and nothing is sent twice, but it is not told what was
    /// sent. Use `stop` instead.
    pub async fn run(
        &self,
        stop: impl Future<Output = ()> + Send,
        tell: impl FnMut(&Replayed) + Send,
    ) -> Result<ReplayReport, StoreError> {
        let agreed = self.agreed();
        let before = agreed.as_ref().map(|agreed| Arc::clone(&agreed.picture));
        let picture = self.letters.picture(before).await?;
        let (shipment, selected) = self.prepare(&picture, agreed).await?;
        let stopped = Arc::new(Stop::default());
        // A future that is dropped here stops the thread that has the transaction, which would commit otherwise.
        let _stop = StopOnDrop(Arc::clone(&stopped));
        let mut run = Run {
            replay: self,
            brokers: self.letters.brokers().clone(),
            shipment,
            report: ReplayReport::default(),
            tell,
            marks: picture.sent.marks(),
            rows: selected.send.into(),
            parts: VecDeque::new(),
            unsure: HashSet::new(),
            closed: HashMap::new(),
            stop: Arc::clone(&stopped),
            turn: Instant::now(),
            written: BTreeMap::new(),
        };
        for (row, why) in selected.skip {
            run.tell(row, ReplayOutcome::Skipped(why));
        }
        // `stop` does not drop the sending. The open transaction is aborted, or its commit is awaited, so the report is true.
        let ended = {
            let mut sending = pin!(run.send_all());
            tokio::select! {
                biased;
                () = stop => {
                    stopped.set();
                    sending.await
                }
                ended = &mut sending => ended,
            }
        };
        run.report.stopped = ended.err();
        let apart: usize = run.parts.iter().map(Vec::len).sum();
        run.report.left = (run.rows.len() + apart) as u64;
        Ok(run.report)
    }
}

impl<'a, T: FnMut(&Replayed) + Send> Run<'a, T> {
    /// Sends what is wanted, and begins anew where it was kept from it.
    async fn send_all(&mut self) -> Result<(), StoreError> {
        if self.rows.is_empty() {
            return Ok(());
        }
        let ready =
            ledger::ensure(&self.replay.letters.lookup, &self.shipment.ledger, Keeps::Latest).await;
        ready.map_err(|error| error.for_store(REPLAYING))?;
        let sent = self.send_each(&mut None).await;
        self.await_shown().await;
        sent
    }

    /// Returns when readers see what was sent: the cluster ends a transaction for them a moment after it has said that it
    /// is committed. One partition may not show it for long: where it has no leader at that moment, brokers 4.3 and 4.4 may
    /// take the transaction for ended there (KAFKA-20734), or somebody else has one open before it.
    async fn await_shown(&mut self) {
        let until = Instant::now() + SHOWN;
        let mut hidden = std::mem::take(&mut self.written);
        loop {
            for (topic, partitions) in &mut hidden {
                let some = partitions.keys().copied().collect();
                let asked = self.replay.letters.lookup.some_partitions(topic, some);
                // Who does not answer is asked again.
                let Ok(Ok(found)) = timeout_at(until, asked).await else { continue };
                partitions.retain(|number, last| {
                    found.get(number).is_none_or(|found| found.end <= *last)
                });
            }
            hidden.retain(|_, partitions| !partitions.is_empty());
            if hidden.is_empty() || Instant::now() >= until {
                break;
            }
            sleep(PAUSE).await;
        }
        for (topic, partitions) in hidden {
            let numbers: Vec<String> = partitions.keys().map(u32::to_string).collect();
            self.report.notes.push(format!(
                "who reads only what was committed does not see yet what was sent to `{topic}`, partition {}: a transaction \
                 is open there before it, or a broker has not ended ours there (KAFKA-20734); if it stays so, \
                 `kafka-transactions.sh find-hanging` names it",
                numbers.join(", ")
            ));
        }
    }

    async fn send_each(&mut self, ledger: &mut Option<Ledger>) -> Result<(), StoreError> {
        let (mut taken, mut broken) = (0, 0);
        while self.has_more() && !self.is_stopped() {
            let before = self.report.sent;
            let Err(why) = self.send_some(ledger).await else { continue };
            // Only failures in a row count, so a long replay is not ended by failures that are far apart.
            if self.report.sent > before {
                (taken, broken) = (0, 0);
            }
            match why {
                Broken::Stopped => return Ok(()),
                // Somebody has begun to follow the topic into a store, which is where letters are sent from now on.
                Broken::Kept(why) => return Err(refused(why)),
                // Two replays may take the right from each other. Whoever gives way first lets the other one make progress.
                Broken::Fenced if taken < TAKEN => {
                    taken += 1;
                    self.make_way(ledger).await?;
                }
                Broken::Fenced => {
                    return Err(unavailable(format!(
                        "others have begun to send letters of `{}` {TAKEN} times before one of these was sent; let one \
                         end before the next",
                        self.shipment.from
                    )));
                }
                Broken::Server(error) if broken < BROKEN && !self.is_stopped() => {
                    tracing::warn!(%error, "sending letters back begins anew");
                    broken += 1;
                    self.pause(Duration::from_millis(500) * broken).await;
                }
                Broken::Server(error) | Broken::Refused(error) => {
                    return Err(error.for_store(REPLAYING));
                }
                Broken::Records(_, code) | Broken::Topic(code) => {
                    return Err(refused(format!(
                        "topic `{}`, which says what was sent back, cannot be written to: {code}",
                        self.shipment.ledger
                    )));
                }
            }
        }
        Ok(())
    }

    /// Takes the right to send, and sends until everything was sent, something has to be tried apart, or it is kept from
    /// it.
    async fn send_some(&mut self, ledger: &mut Option<Ledger>) -> Result<(), Broken> {
        let (brokers, from) = (self.brokers.clone(), self.shipment.from.clone());
        let (at, topic) = (brokers.clone(), Arc::from(from.as_str()));
        // The look at the stores is connected first. Later it takes a request for each group while a transaction is open.
        let watch = within(PATIENCE, move || {
            let watch = StoreWatch::open(&at, &topic)?;
            watch.refuse_kept()?;
            Ok(Arc::new(watch))
        });
        let watch = watch.await?;
        let session =
            within(PATIENCE * 3, move || Session::open(&brokers, &format!("dlq-replay.{from}")))
                .await?;
        tracing::trace!("the right to send is taken");
        let session = Arc::new(session);
        let done = self.send_by(&session, &watch, ledger).await;
        // Closing them may block, and nobody waits for it.
        leave(move || drop((session, watch)));
        done
    }

    async fn send_by(
        &mut self,
        session: &Arc<Session>,
        watch: &Arc<StoreWatch>,
        ledger: &mut Option<Ledger>,
    ) -> Result<(), Broken> {
        let is_first = ledger.is_none();
        if is_first {
            // Whoever began a moment ago has said by which alias, and is fenced off by now.
            let open = ledger.insert(self.read_on(None, None).await?);
            if let Some(why) = by_another(&self.shipment.ledger, open.alias(), &self.brokers) {
                return Err(Broken::Refused(SetupError::Config(why)));
            }
        }
        let begun = self.shipment.begun(now());
        let begun =
            begun.map_err(|error| Broken::Refused(SetupError::Config(error.to_string())))?;
        // The right is taken by now, so whatever others have committed stands before this record (G6).
        let begun = self.transact(session, watch, vec![begun]).await;
        if is_first && begun.is_err() {
            // Others may begin before it is tried again: it is to be looked at anew.
            *ledger = None;
        }
        let (_, offset) = begun?[0];
        // Whatever was committed before the begin is read by now, so no letter goes out that has a mark (G6).
        self.read_ledger(ledger, offset).await?;
        loop {
            let parcels = match self.parts.pop_front() {
                Some(parcels) => parcels,
                None if self.rows.is_empty() => return Ok(()),
                None => self.pack(ledger).await?,
            };
            if parcels.is_empty() {
                continue;
            }
            let records = parcels.iter().flat_map(|p| [p.letter.clone(), p.mark.clone()]).collect();
            match self.transact(session, watch, records).await {
                Ok(places) => {
                    let records = parcels.iter().flat_map(|p| [&p.letter, &p.mark]);
                    for (record, (partition, offset)) in records.zip(places) {
                        let topic = self.written.entry(Arc::clone(&record.topic)).or_default();
                        // What the client says of what was written is not negative.
                        if let (Ok(partition), Ok(offset)) =
                            (partition.try_into(), offset.try_into())
                        {
                            topic.insert(partition, offset);
                        }
                    }
                    for parcel in &parcels {
                        self.tell(parcel.row, ReplayOutcome::Sent);
                    }
                }
                // A letter has an even number and its mark the next one. Where a mark is blamed, the ledger is at fault.
                Err(Broken::Records(blamed, code)) if blamed.iter().all(|one| one % 2 == 0) => {
                    self.set_aside(parcels, &blamed, code);
                    return Ok(());
                }
                Err(Broken::Topic(code)) => {
                    self.close_topic(parcels, code);
                    return Ok(());
                }
                Err(why) => {
                    // The answer may have been lost after the commit.
                    // The ledger is read before any of these is sent again (G6).
                    self.unsure.extend(parcels.iter().map(|parcel| parcel.row.letter.death()));
                    self.parts.push_front(parcels);
                    return Err(why);
                }
            }
        }
    }

    async fn transact(
        &self,
        session: &Arc<Session>,
        watch: &Arc<StoreWatch>,
        records: Vec<OutgoingRecord>,
    ) -> Result<Vec<Written>, Broken> {
        let (session, stop) = (Arc::clone(session), Arc::clone(&self.stop));
        let watch = Arc::clone(watch);
        within(PATIENCE * 6, move || session.transact(&records, &stop, || watch.refuse_kept()))
            .await
    }

    /// The ledger, read beyond this offset or, without one, to its end.
    async fn read_on(&self, open: Option<Ledger>, beyond: Option<i64>) -> Result<Ledger, Broken> {
        let (brokers, topic) = (self.brokers.clone(), Arc::clone(&self.shipment.ledger));
        within(PATIENCE * 20, move || {
            let mut open = open.map_or_else(|| Ledger::open(&brokers, &topic), Ok)?;
            open.read(beyond)?;
            Ok(open)
        })
        .await
    }

    /// Reads the ledger beyond this offset, and leaves out what it says was sent.
    async fn read_ledger(
        &mut self,
        ledger: &mut Option<Ledger>,
        offset: i64,
    ) -> Result<(), Broken> {
        let open = self.read_on(ledger.take(), Some(offset)).await?;
        let open = ledger.insert(open);
        tracing::trace!("the ledger is read");
        let mut rows = std::mem::take(&mut self.rows);
        rows.retain(|row| self.is_wanted(row, open));
        self.rows = rows;
        let mut parts = std::mem::take(&mut self.parts);
        for parcels in &mut parts {
            parcels.retain(|parcel| self.is_wanted(parcel.row, open));
            // What others have sent meanwhile is packed anew.
            let is_of_now =
                |parcel: &mut Parcel<'a>| parcel.times == next_time(parcel.row, open.marks());
            let past = parcels.extract_if(.., |parcel| !is_of_now(parcel));
            self.rows.extend(past.map(|parcel| parcel.row));
        }
        self.parts = parts;
        // The ledger has said of each of them by now whether it was sent.
        self.unsure.clear();
        Ok(())
    }

    /// Returns true if a letter is still to be sent; reports it otherwise.
    fn is_wanted(&mut self, row: &Row, ledger: &Ledger) -> bool {
        let death = row.letter.death();
        if let Some(why) = ledger.unclear(&death) {
            self.tell(row, ReplayOutcome::Failed(refused(why.to_owned())));
            return false;
        }
        // It was committed after all, though nobody said so, and others may have sent it again since.
        let rules = &self.replay.rules;
        let is_ours = self.unsure.contains(&death) && ledger.is_sent_by(&death, rules.operation);
        let by = ledger.marks().get(&death).map(|mark| mark.operation);
        if !is_ours && !rules.is_sent(by) {
            return true;
        }
        let skipped = ReplayOutcome::Skipped(Skipped::Sent);
        self.tell(row, if is_ours { ReplayOutcome::Sent } else { skipped });
        false
    }

    /// Waits until nobody else has sent anything for a while, of another length for everybody.
    async fn make_way(&self, ledger: &mut Option<Ledger>) -> Result<(), StoreError> {
        let failed = |error: SetupError| error.for_store(REPLAYING);
        while !self.is_stopped() {
            // The time is random, so two who fence each other off do not come back at the same moment.
            let while_ = Duration::from_millis(1_000 + random() % 2_000);
            let Some(mut open) = ledger.take() else {
                self.pause(while_).await;
                return Ok(());
            };
            let stop = Arc::clone(&self.stop);
            let moved = aside(PATIENCE, move || {
                let moves = open.moves_within(while_, &stop);
                moves.map(|moves| (open, moves))
            });
            // The ledger is lost with the answer, so the next try opens and reads it anew.
            let Some(moved) = moved.await else { return Ok(()) };
            let (open, moves) = moved.map_err(failed)?;
            *ledger = Some(open);
            if !moves {
                break;
            }
        }
        Ok(())
    }

    async fn pause(&self, time: Duration) {
        self.stop.wait_until(Instant::now() + time).await;
    }

    fn has_more(&self) -> bool {
        !self.rows.is_empty() || !self.parts.is_empty()
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stop.is_set()
    }

    pub(super) fn tell(&mut self, row: &Row, outcome: ReplayOutcome) {
        self.report.count(&outcome);
        let LetterPosition { partition, offset, .. } = row.place;
        (self.tell)(&Replayed { id: row.letter.id, partition, offset, outcome });
    }
}

pub(crate) async fn within<V: Send + 'static>(
    time: Duration,
    work: impl FnOnce() -> Result<V, Broken> + Send + 'static,
) -> Result<V, Broken> {
    let silent = || {
        let text = format!("{REPLAYING}: the client has not answered within {time:?}");
        Err(Broken::Server(SetupError::Unavailable(text, None)))
    };
    aside(time, work).await.unwrap_or_else(silent)
}

fn unavailable(text: String) -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, REPLAYING).with_detail(text)
}

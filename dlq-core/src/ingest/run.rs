use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{Incident, IngestReport, Outcome};
use crate::log::{Content, Entries, Entry};
use crate::store::reading::unclear;
use crate::store::{BoxStore, Letters, Maintenance as _, ProcessedEvent, Receipt, Sink};
use crate::{BoxError, DeadLetter, LetterId, StoreError, StoreErrorKind};

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Number of letters in a row at whose refusal the run ends.
// Refused letters are set aside and confirmed. A store that refuses all, for want of a right or of space, must not
// drain the log that way.
const MOST_REFUSED: usize = 10;

/// Puts the letters of a [`Log`](crate::log::Log) that is followed into a sink. See the [module docs](super).
#[derive(Debug)]
#[must_use = "nothing is put before it runs"]
pub struct Ingest<E, S> {
    pub(super) entries: E,
    pub(super) sink: S,
    audit: Option<BoxStore>,
    batch: usize,
    tries: u32,
    patience: Option<Duration>,
    report: IngestReport,
    // How many letters the sink has refused since it took one.
    refused: usize,
    // The sink has failed on letters of this batch, some of which it may have taken all the same.
    unsure: bool,
}

/// Reason why a call was not completed.
enum Ended {
    Stopped,
    Failed(StoreError),
}

impl<E: Entries, S: Sink + Letters> Ingest<E, S> {
    /// Makes an ingest of these entries into this sink.
    pub fn new(entries: E, sink: S) -> Self {
        let report = IngestReport::default();
        Self {
            entries,
            sink,
            audit: None,
            batch: 256,
            tries: 3,
            patience: None,
            report,
            refused: 0,
            unsure: false,
        }
    }

    /// Sets a store whose processing audit gets a row for each letter of which an incident is told; a row may be there
    /// twice where an incident is told twice. Defaults to none.
    pub fn audit(mut self, store: BoxStore) -> Self {
        self.audit = Some(store);
        self
    }

    /// Sets how many letters are put at once, at most. Defaults to 256.
    pub fn batch(mut self, letters: usize) -> Self {
        self.batch = letters.max(1);
        self
    }

    /// Sets how often a letter is put that the store refuses, before it is set aside. Defaults to 3.
    pub fn tries(mut self, tries: u32) -> Self {
        self.tries = tries.max(1);
        self
    }

    /// Sets for how long a store or a broker that is not there is waited for. Defaults to for ever.
    pub fn outage_timeout(mut self, timeout: Duration) -> Self {
        self.patience = Some(timeout);
        self
    }

    /// Returns the report so far.
    pub fn report(&self) -> &IngestReport {
        &self.report
    }

    /// Puts letters until the entries end or `stop` is ready. `tell` is given the incidents of each batch once the store
    /// has it and before they are confirmed.
    ///
    /// A put that has begun when `stop` becomes ready is waited for; what was not confirmed comes again.
    ///
    /// # Errors
    ///
    /// When the store or the broker failed for good or for longer than the [timeout of outages](Self::outage_timeout), when the store
    /// refused several letters in a row and took none, or when `tell` failed. What was not confirmed comes again.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing: what was not confirmed comes again.
    pub async fn run(
        &mut self,
        stop: impl Future<Output = ()>,
        mut tell: impl FnMut(&[Incident]) -> Result<(), BoxError>,
    ) -> Result<(), BoxError> {
        let mut stop = pin!(stop);
        loop {
            let mut fed = match self.next(&mut stop).await {
                Ok(fed) if fed.is_empty() => return Ok(()),
                Ok(fed) => fed,
                Err(Ended::Stopped) => return Ok(()),
                Err(Ended::Failed(error)) => return Err(error.into()),
            };
            let outcomes = match self.put(&fed, &mut stop).await {
                Ok(outcomes) => outcomes,
                Err(Ended::Stopped) => return Ok(()),
                Err(Ended::Failed(error)) => return Err(error.into()),
            };
            // A put that failed may have been made, and its answer lost: what the store knows then was told by nobody.
            if std::mem::take(&mut self.unsure) {
                let known = fed.iter_mut().zip(&outcomes).filter(|(_, it)| it.0 == Outcome::Known);
                known.for_each(|(fed, _)| fed.again = true);
            }
            match self.note(&fed, &outcomes, &mut stop).await {
                Ok(()) => {}
                Err(Ended::Stopped) => return Ok(()),
                Err(Ended::Failed(error)) => return Err(error.into()),
            }
            let incidents = incidents(&fed, &outcomes);
            if !incidents.is_empty() {
                tell(&incidents)?;
            }
            for (fed, (outcome, _)) in fed.iter().zip(&outcomes) {
                self.report.count(*outcome);
                let is_unclear = outcome.is_news() && letter(fed).and_then(unclear).is_some();
                self.report.unclear += u64::from(is_unclear);
            }
            // Confirming comes last: until then the broker has every letter (G1), and if the process dies, the batch comes
            // again and its incidents are told twice at worst.
            match self.entries.confirm().await {
                Ok(()) => {}
                Err(error) if error.is_transient() => {
                    // The letters are in the store, so the run goes on. They come again and are known then.
                    self.report.outages += 1;
                    tracing::warn!(%error, "letters that are stored could not be confirmed: they come again");
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Returns the next entries, once the broker is there.
    async fn next(
        &mut self,
        stop: &mut (impl Future<Output = ()> + Unpin),
    ) -> Result<Vec<Entry>, Ended> {
        let mut outage = Outage::new(self.patience);
        loop {
            let next = tokio::select! {
                biased;
                () = &mut *stop => return Err(Ended::Stopped),
                // `next` may be cut off, since dropping its future loses nothing.
                next = self.entries.next(self.batch) => next,
            };
            match next {
                Ok(fed) => return Ok(fed),
                Err(error) => {
                    self.report.outages += 1;
                    outage.wait(error, stop).await?;
                }
            }
        }
    }

    /// Puts the letters. Returns for each, in order, its outcome and the reason if it was set aside.
    async fn put(
        &mut self,
        fed: &[Entry],
        stop: &mut (impl Future<Output = ()> + Unpin),
    ) -> Result<Vec<(Outcome, Option<String>)>, Ended> {
        let letters: Vec<&DeadLetter> = fed.iter().filter_map(letter).collect();
        let mut put = Vec::with_capacity(letters.len());
        // The whole batch is tried once: a refusal is of one letter, and only puts of single letters tell which.
        match self.try_put(&letters, 1, stop).await? {
            Ok(receipts) => {
                // A batch without letters proves nothing of the store.
                if !receipts.is_empty() {
                    self.refused = 0;
                }
                put.extend(receipts.into_iter().map(|receipt| (receipt.into(), None)));
            }
            // One of them is refused: each is asked for alone.
            Err(_) => {
                let mut refused = Vec::new();
                for &letter in &letters {
                    put.push(match self.try_put(&[letter], self.tries, stop).await? {
                        Ok(receipts) => {
                            (receipts.first().copied().map_or(Outcome::Known, Outcome::from), None)
                        }
                        Err(error) => {
                            let why = error.to_string();
                            refused.push((letter.id, error));
                            (Outcome::SetAside, Some(why))
                        }
                    });
                }
                // This comes before any letter is told of or confirmed.
                self.believe(letters.len(), refused, stop).await?;
            }
        }
        let mut put = put.into_iter();
        let outcome = |fed: &Entry| match &fed.content {
            Content::Letter(_) => put.next().unwrap_or((Outcome::Known, None)),
            Content::Damaged(why) => (Outcome::SetAside, Some(why.clone())),
            Content::Outline(_) => {
                (Outcome::SetAside, Some("the log left its payload out".to_owned()))
            }
            Content::Foreign => (Outcome::Foreign, None),
        };
        Ok(fed.iter().map(outcome).collect())
    }

    /// Returns once it is known that the refusals among so many letters are of these letters: the store has taken another
    /// one, or at least answers. A letter that is set aside is confirmed, so a store that takes nothing must not get here.
    async fn believe(
        &mut self,
        put: usize,
        mut refused: Vec<(LetterId, StoreError)>,
        stop: &mut (impl Future<Output = ()> + Unpin),
    ) -> Result<(), Ended> {
        // The store has taken another letter of the batch, so it works, and the refusals are about their letters.
        if refused.len() < put {
            self.refused = 0;
            return Ok(());
        }
        self.refused += refused.len();
        let Some((letter, why)) = refused.pop() else { return Ok(()) };
        if self.refused >= MOST_REFUSED {
            let detail = format!(
                "the store refused {} letters in a row and took none; see why, then start again: these letters were not confirmed",
                self.refused
            );
            let error = StoreError::new(why.kind(), "put letters");
            return Err(Ended::Failed(error.with_detail(detail).with_source(why)));
        }
        let mut outage = Outage::new(self.patience);
        while let Err(error) = self.sink.get(letter).await {
            self.report.outages += 1;
            outage.wait(error, stop).await?;
        }
        Ok(())
    }

    /// Puts them, once the store is there; the inner error is a refusal.
    async fn try_put(
        &mut self,
        letters: &[&DeadLetter],
        tries: u32,
        stop: &mut (impl Future<Output = ()> + Unpin),
    ) -> Result<Result<Vec<Receipt>, StoreError>, Ended> {
        if letters.is_empty() {
            return Ok(Ok(Vec::new()));
        }
        let mut outage = Outage::new(self.patience);
        let mut left = tries;
        loop {
            // The put does not race `stop`: if it were cut off, nobody would know which letters are stored.
            let put = self.sink.put(letters.iter().copied().cloned().collect()).await;
            let error = match put {
                Ok(receipts) => return Ok(Ok(receipts)),
                Err(error) => error,
            };
            self.unsure = true;
            match error.kind() {
                StoreErrorKind::Unavailable => {
                    self.report.outages += 1;
                    outage.wait(error, stop).await?;
                }
                StoreErrorKind::Refused => {
                    left -= 1;
                    if left == 0 {
                        return Ok(Err(error));
                    }
                    pause(FIRST_PAUSE, stop).await?;
                }
                // Whatever else it is, it is no word about these letters.
                _ => return Err(Ended::Failed(error)),
            }
        }
    }
}

impl<E: Entries, S: Sink + Letters> Ingest<E, S> {
    /// Writes what is news to the processing audit, once that is there.
    async fn note(
        &mut self,
        fed: &[Entry],
        outcomes: &[(Outcome, Option<String>)],
        stop: &mut (impl Future<Output = ()> + Unpin),
    ) -> Result<(), Ended> {
        let Some(audit) = self.audit.clone() else { return Ok(()) };
        let news = fed.iter().zip(outcomes).filter(|(fed, (outcome, _))| is_told(fed, *outcome));
        let rows: Vec<_> =
            news.filter_map(|(fed, _)| letter(fed)).map(ProcessedEvent::dead_lettered).collect();
        if rows.is_empty() {
            return Ok(());
        }
        let mut outage = Outage::new(self.patience);
        while let Err(error) = audit.record_processed(rows.clone()).await {
            self.report.outages += 1;
            outage.wait(error, stop).await?;
        }
        Ok(())
    }
}

fn letter(fed: &Entry) -> Option<&DeadLetter> {
    match &fed.content {
        Content::Letter(letter) => Some(letter),
        Content::Outline(_) | Content::Damaged(_) | Content::Foreign => None,
    }
}

/// Returns true if the letter has to be reported: it is new, or it may be new and nobody was told.
fn is_told(fed: &Entry, outcome: Outcome) -> bool {
    outcome.is_news() || (fed.again && outcome == Outcome::Known)
}

fn incidents(fed: &[Entry], outcomes: &[(Outcome, Option<String>)]) -> Vec<Incident> {
    let told = |(fed, (outcome, detail)): (&Entry, &(Outcome, Option<String>))| {
        is_told(fed, *outcome)
            .then(|| Incident::of(&fed.place, fed.again, letter(fed), *outcome, detail.clone()))
    };
    fed.iter().zip(outcomes).filter_map(told).collect()
}

/// Something that is not there, and since when.
struct Outage {
    patience: Option<Duration>,
    since: Option<Instant>,
    pause: Duration,
}

impl Outage {
    fn new(patience: Option<Duration>) -> Self {
        Self { patience, since: None, pause: FIRST_PAUSE }
    }

    /// Waits, and fails when it will not pass or has lasted too long.
    async fn wait(
        &mut self,
        error: StoreError,
        stop: &mut (impl Future<Output = ()> + Unpin),
    ) -> Result<(), Ended> {
        // The outage is counted from its first error, so one error alone never exceeds a timeout above zero.
        let lasted = self.since.get_or_insert_with(Instant::now).elapsed();
        if !error.is_transient() || self.patience.is_some_and(|most| lasted >= most) {
            return Err(Ended::Failed(error));
        }
        tracing::warn!(%error, "letters wait: nothing is confirmed until it is there again");
        pause(self.pause, stop).await?;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        Ok(())
    }
}

async fn pause(
    pause: Duration,
    stop: &mut (impl Future<Output = ()> + Unpin),
) -> Result<(), Ended> {
    tokio::select! {
        biased;
        () = stop => Err(Ended::Stopped),
        () = sleep(pause) => Ok(()),
    }
}

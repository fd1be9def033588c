use std::future::Future;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use dlq_core::DeadLetters;
use dlq_core::ingest::{Incident, Ingest, Outcome};
use dlq_core::log::Entries;

use super::Mark;
use super::incidents::Incidents;
use crate::alert::{Counts, GroupAlerts, LetterAlerts};
use crate::cli::IngestArgs;
use crate::commands::PARTIAL;
use crate::error::CliError;
use crate::open;
use crate::output::{Output, Progress};
use crate::secret::without_password;
use crate::serve::Counted;
use crate::signals::{beside, until_asked};

/// For how long `--once` waits for a store or a server that is not there.
const PATIENCE: Duration = Duration::from_secs(30);

/// Receivers of incidents, and the store that letters go into.
pub(crate) struct Telling {
    incidents: Incidents,
    alerts: LetterAlerts,
    groups: Option<GroupAlerts<()>>,
}

/// The store of an ingest.
pub(crate) struct Destination {
    store: DeadLetters,
    /// The store by a name that is the same from every folder.
    pub(crate) name: String,
}

impl Telling {
    /// Opens what is told, before anything is asked of the broker.
    pub(crate) fn open(args: &IngestArgs) -> Result<Self, CliError> {
        let incidents = Incidents::open(args.incidents.as_deref())?;
        let shown = without_password(&args.into);
        let groups = GroupAlerts::new(&args.group_alerts, &shown, &Arc::<Counts>::default())?;
        Ok(Self { incidents, alerts: LetterAlerts::start(args)?, groups })
    }
}

/// Opens the store, which is created when it is not there, unless these marks say that it is lost.
pub(crate) async fn store(
    args: &IngestArgs,
    marks: &[Mark],
    shown: &str,
    by: &str,
) -> Result<Destination, CliError> {
    // Opening creates the store, after which nobody could see that the old one is gone.
    if !open::is_there(&args.into).await? {
        Mark::refuse_a_lost_store(marks, shown, by, &without_password(&args.into))?;
    }
    let store = open::store(&args.into, true).await?;
    Ok(Destination { store, name: open::name(&args.into).await? })
}

/// Ingest of a broker's letters into a store.
pub(crate) struct IngestRun<'a> {
    pub(crate) args: &'a IngestArgs,
    /// The broker's letters, for messages.
    pub(crate) shown: &'a str,
    pub(crate) into: Destination,
    pub(crate) telling: Telling,
}

impl IngestRun<'_> {
    /// Puts what a feed yields into the store, and says what was done; also when `refused` ends it, which is then the error.
    pub(crate) async fn run(
        self,
        feed: impl Entries,
        refused: impl Future<Output = CliError>,
        out: &mut Output,
    ) -> Result<ExitCode, CliError> {
        let Self { args, shown, into, telling } = self;
        // The recorder has to be there before the first counter of the ingest and of its alerts.
        let counted = Counted::open(args.metrics.as_deref(), "this ingest").await?;
        let Telling { mut incidents, alerts, groups } = telling;
        let Destination { store, name } = into;
        let mut groups = groups.map(|it| it.source(store.clone()));
        // A run that ends by itself tells at its end what it has stored.
        let beside_it = groups.take_if(|_| !args.once);
        let mut ingest = Ingest::new(feed, store.store().clone()).batch(args.batch);
        if args.once {
            // Without --once an ingest waits for as long as an outage takes: letters stay at the broker meanwhile.
            ingest = ingest.outage_timeout(PATIENCE);
        }
        if args.audit {
            ingest = ingest.audit(store.store().clone());
        }
        let bar = Progress::endless("new letters");
        let run = until_asked(|stop| {
            let (ingest, alerts, bar) = (&mut ingest, &alerts, &bar);
            say!("letters of {shown} go into {name}");
            async move {
                let tell = |new: &[Incident]| {
                    // Only incidents can fail, which ends the ingest before the letters are confirmed. Alerts never do.
                    bar.aside(|| incidents.write(new))?;
                    bar.advance(new.len() as u64);
                    alerts.tell(new);
                    Ok(())
                };
                let mut refusal = None;
                // A refusal stops the ingest as a signal does: a put that has begun is waited for.
                let stop = async {
                    tokio::select! {
                        () = stop => {}
                        error = refused => refusal = Some(error),
                    }
                };
                let ran = ingest.run(stop, tell).await;
                refusal.map_or_else(|| ran.map_err(|error| CliError::caused_by(&*error)), Err)
            }
        });
        // Alerts about groups run beside the ingest, and end after it: what they have claimed is sent and noted first.
        let run = beside(run, beside_it.map(|it| move |stop| it.run(stop)));
        let ran = counted.beside(run).await;
        bar.end();
        let report = ingest.report().clone();
        // Others get its share at once.
        drop(ingest);
        // Alerts are waited for after the letters are in the store and confirmed, so that none of them waits for a
        // receiver.
        let mut are_told = alerts.end().await;
        if let Some(groups) = &mut groups {
            are_told &= groups.round().await;
        }
        // What is in the store is reported also if the run has failed.
        if out.is_table() {
            out.line(&report)?;
        } else {
            out.document(&report)?;
        }
        ran?;
        let is_aside = report.with_outcome(Outcome::SetAside) > 0;
        if is_aside {
            say!(
                "letters that were set aside are named among the incidents, and stay at the broker for as long as it keeps them"
            );
        }
        if report.unclear > 0 {
            say!(
                "letters that may have been sent back are not sent again: `dlq show` says why, and `dlq mark pending` or \
             `dlq mark resolved` what becomes of them"
            );
        }
        Ok(if is_aside || !are_told { ExitCode::from(PARTIAL) } else { ExitCode::SUCCESS })
    }
}

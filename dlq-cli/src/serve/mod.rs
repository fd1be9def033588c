//! `dlq serve`: the gauges of a store, or of the dead letters of a broker, for Prometheus, and their health for probes.
//!
//! A store counts its letters all the time; a broker says how many there are, how old the first is and how far its readers
//! have come, and no letter is read for it.
//!
//! One task looks, at once and then every so often; requests are answered with what it saw last. So it is looked at no
//! more often than it was said, however many ask, and who asks never waits for a look but the first. What is shown is at
//! most one pause older than the question.
//!
//! # States
//!
//! | state | `/metrics` | `/health` |
//! |---|---|---|
//! | before the first look | waits, no longer than a look may take | waits |
//! | it answers | everything, `dlq_store_up` is 1 | 200, `healthy` or `degraded` |
//! | it does not, or not within 8 s | `dlq_store_up` is 0, counts are left out | 503, `unhealthy`, and why |
//!
//! What failed is opened anew at the next look; so is a store whose file was replaced by another.
//!
//! `--console` serves the console of `dlq-admin` beside it, which asks the store itself.
//!
//! `--alert` tells of groups of errors beside it; see [`GroupAlerts`].
//!
//! # If the process dies here
//!
//! But for the notes of alerts it writes nothing, so nothing is lost. Its counters begin at zero again, which Prometheus expects of counters.
//! Asked to end (SIGINT, SIGTERM) it stops listening, drops what it answers, and ends with 0.

#[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
mod broker;
mod console;
#[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
mod counted;
mod http;
mod label;
mod look;
mod names;
mod render;
mod store;
mod written;

#[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
use std::collections::BTreeSet;
use std::future::Future;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

#[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
use dlq_core::outbox::Dispatcher;
#[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
use dlq_core::store::Cluster;
use dlq_core::store::{HealthState, HealthThresholds};
use dlq_core::{DeadLetters, SystemClock};
use tokio::net::TcpListener;
use tokio::time::{MissedTickBehavior, interval};

use crate::alert::{Counts, GroupAlerts};
use crate::cli::ServeArgs;
#[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
use crate::cli::{BrokerArgs, ViaArgs};
use crate::error::CliError;
use crate::open;
use crate::secret::without_password;
use crate::signals::{beside, until_asked};
#[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
use crate::via::Via;
#[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
use broker::Brokered;
use console::Console;
use look::{Looker, Page, Watched};
use store::{Limits, Opened, StoreOpener, Stored};

#[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
pub(crate) use broker::{Measure, QueueDepth, Readers};
#[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
pub(crate) use counted::Counted;

/// The shortest pause between two looks.
const SHORTEST: Duration = Duration::from_millis(100);
/// The most groups with a series of their own.
const MOST_GROUPS: u32 = 1_000;

/// Serves what is at this URL until it is asked to end.
pub(crate) async fn run(
    url: &str,
    #[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))] at: &BrokerArgs,
    args: ServeArgs,
) -> Result<ExitCode, CliError> {
    if args.every < SHORTEST {
        return Err(CliError::refused(format!(
            "--every {} is too often; the shortest is 100ms",
            dlq_core::policy::duration::format(args.every)
        )));
    }
    if args.group_metrics > MOST_GROUPS {
        return Err(CliError::refused(format!(
            "--group-metrics {} is too many for Prometheus; at most {MOST_GROUPS} groups have a series of their own",
            args.group_metrics
        )));
    }
    // Tokens are read before anything is opened, so that a mistake in them ends the command and not a request.
    let tokens = console::tokens(&args).await?;
    let health = HealthThresholds::default().backlog(args.max_backlog).age(args.max_age);
    let shown = without_password(url);
    match url.split_once("://") {
        #[cfg(feature = "kafka")]
        Some(("kafka", rest)) => {
            refuse_what_stores_do(&args, &shown)?;
            let measured = crate::kafka::Measured::new(rest, &shown, at, &args.at_broker)?;
            let console = console::open(url, at, &args, tokens, BTreeSet::new()).await?;
            watch(Brokered { at: measured, thresholds: health }, &shown, args, console).await
        }
        #[cfg(feature = "nats")]
        Some((scheme @ ("nats" | "tls"), rest)) => {
            refuse_what_stores_do(&args, &shown)?;
            let measured = crate::nats::Measured::new(scheme, rest, &shown, at, &args.at_broker)?;
            let console = console::open(url, at, &args, tokens, BTreeSet::new()).await?;
            watch(Brokered { at: measured, thresholds: health }, &shown, args, console).await
        }
        #[cfg(feature = "redis")]
        Some((scheme @ ("redis" | "rediss"), rest)) => {
            refuse_what_stores_do(&args, &shown)?;
            let measured = crate::redis::Measured::new(scheme, rest, &shown, at, &args.at_broker)?;
            let console = console::open(url, at, &args, tokens, BTreeSet::new()).await?;
            watch(Brokered { at: measured, thresholds: health }, &shown, args, console).await
        }
        _ => {
            #[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
            args.at_broker.refuse(&shown)?;
            #[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
            let replaying = Replaying::begin(url, at, &args).await?;
            #[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
            let via = replaying.as_ref().map(|it| it.clusters.clone()).unwrap_or_default();
            #[cfg(not(any(feature = "kafka", feature = "nats", feature = "redis")))]
            let via = Default::default();
            let console = console::open(
                url,
                #[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
                at,
                &args,
                tokens,
                via,
            )
            .await?;
            let counts = Arc::<Counts>::default();
            // Alerts open the store by themselves: their reading of groups may be slow, and the look has eight seconds.
            let source = Opened::new(Url(url.to_owned()));
            let alerts =
                GroupAlerts::new(&args.alerts, &shown, &counts)?.map(|it| it.source(source));
            let limits = Limits { health, overdue: args.overdue, groups: args.group_metrics };
            let stored = Stored::new(Url(url.to_owned()), limits, counts);
            let looker = Looker::new(stored, SystemClock::shared());
            until_asked(|stop| async {
                let serving = serve(looker, &shown, args, console, stop);
                // The alerts outlive the listener by a moment: what they have claimed is sent and noted before the
                // process ends.
                let serving = beside(serving, alerts.map(|it| move |stop| it.run(stop)));
                #[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
                let serving = beside(serving, replaying.map(|it| move |stop| it.run(stop)));
                serving.await
            })
            .await
        }
    }
}

/// Refuses what only a store can do, where the dead letters of a broker are served.
#[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
fn refuse_what_stores_do(args: &ServeArgs, shown: &str) -> Result<(), CliError> {
    if args.alerts.alert.iter().all(String::is_empty) {
        return Ok(());
    }
    Err(CliError::refused(format!(
        "cannot tell of groups of {shown}: it is a broker, and what was told is kept in a store; leave --alert out, or give it to \
         dlq ingest --from {shown} --into sqlite://dlq.db"
    )))
}

/// Sender of letters of operations.
#[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
struct Replaying {
    url: String,
    at: BrokerArgs,
    via: ViaArgs,
    brokers: Vec<Via>,
    clusters: BTreeSet<Cluster>,
    /// `None` while the store or a broker has not answered.
    dispatcher: Option<Dispatcher>,
}

#[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
impl Replaying {
    /// Returns the sender; `None` where that is not asked for. What can be mended by waiting is tried again later, as a store
    /// that does not answer keeps nobody from serving.
    async fn begin(url: &str, at: &BrokerArgs, args: &ServeArgs) -> Result<Option<Self>, CliError> {
        if !args.replay {
            return Ok(None);
        }
        let (at, via) = (at.clone(), args.via.clone());
        let brokers = crate::via::required(&via).await?;
        let clusters = brokers.iter().map(|broker| broker.cluster(&at)).collect();
        let url = url.to_owned();
        let mut replaying = Self { url, at, via, brokers, clusters, dispatcher: None };
        match replaying.open().await {
            Ok(dispatcher) => replaying.dispatcher = Some(dispatcher),
            // Metrics are served all the same, which is how an operator learns of the outage.
            Err(CliError::Failed(why)) => {
                say!("no letter is sent yet, and sending begins once the store answers: {why}");
            }
            Err(error) => return Err(error),
        }
        Ok(Some(replaying))
    }

    async fn open(&self) -> Result<Dispatcher, CliError> {
        let outboxes = crate::via::outboxes(&self.brokers, &self.via, &self.at).await?;
        let store = open::store(&self.url, false).await?;
        Ok(Dispatcher::new(store.store().clone(), outboxes).lease(self.via.send_lease))
    }

    /// Sends until `stop` resolves.
    async fn run(mut self, stop: impl Future<Output = ()>) {
        const PAUSE: Duration = Duration::from_secs(2);
        let mut stop = std::pin::pin!(stop);
        let mut told = None;
        let dispatcher = loop {
            if let Some(dispatcher) = self.dispatcher.take() {
                break dispatcher;
            }
            tokio::select! {
                biased;
                () = &mut stop => return,
                () = tokio::time::sleep(PAUSE) => {}
            }
            let opened = tokio::select! {
                biased;
                () = &mut stop => return,
                opened = self.open() => opened,
            };
            match opened {
                Ok(dispatcher) => self.dispatcher = Some(dispatcher),
                // The same trouble is told once.
                Err(CliError::Failed(why) | CliError::Refused(why)) => {
                    if told.as_ref() != Some(&why) {
                        say!("no letter is sent yet: {why}");
                        told = Some(why);
                    }
                }
                Err(CliError::Closed) => return,
            }
        };
        dispatcher.serve(stop, |_| {}).await;
    }
}

#[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
async fn watch<W: Watched>(
    watched: W,
    shown: &str,
    args: ServeArgs,
    console: Option<Console>,
) -> Result<ExitCode, CliError> {
    let looker = Looker::new(watched, SystemClock::shared());
    until_asked(|stop| serve(looker, shown, args, console, stop)).await
}

async fn serve<W: Watched>(
    mut looker: Looker<W>,
    shown: &str,
    args: ServeArgs,
    console: Option<Console>,
    mut stop: impl Future<Output = ()> + Unpin,
) -> Result<ExitCode, CliError> {
    tokio::select! {
        begun = looker.begin() => begun?,
        () = &mut stop => return Ok(ExitCode::SUCCESS),
    }
    // A URL that is refused ends the command before any probe finds an open port.
    let (listener, address) = listen(&args.metrics).await?;
    if let Some(console) = &console {
        // A name may lead to another address than the one that was looked at before.
        console.check(address.ip())?;
    }
    say!("dlq: {shown} is served at http://{address}/metrics and http://{address}/health");
    if let Some(console) = &console {
        say!("dlq: the console is at http://{address}/{}", console.login());
    }
    let console = console.map(|console| console.router);
    let (pages, seen) = tokio::sync::watch::channel(None);
    tokio::select! {
        // Neither of the first two ends. They write nothing, so they can be dropped wherever they are.
        () = look(looker, args.every, &pages) => {}
        () = http::answer(listener, seen, console) => {}
        () = stop => {}
    }
    Ok(ExitCode::SUCCESS)
}

/// Looks at once and then at this interval.
async fn look<W: Watched>(
    mut looker: Looker<W>,
    every: Duration,
    pages: &tokio::sync::watch::Sender<Option<Arc<Page>>>,
) {
    let mut ticks = interval(every);
    // After a slow look the store has a whole pause: looks that were missed are not made up for.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut is_down = false;
    loop {
        ticks.tick().await;
        let page = looker.look().await;
        let failed = page.health.state == HealthState::Unhealthy;
        // Only changes are said, so that an outage of hours does not fill the log.
        if failed != is_down {
            is_down = failed;
            let why = page.health.findings.join("; ");
            let text = if failed {
                format!("it is not reached: {why}")
            } else {
                "it answers again".to_owned()
            };
            say!("dlq: {}", crate::output::escape(&text));
        }
        pages.send_replace(Some(Arc::new(page)));
    }
}

async fn listen(address: &str) -> Result<(TcpListener, SocketAddr), CliError> {
    // A port alone is not open to the network, since nobody is asked for a password.
    let full = match address.parse::<u16>() {
        Ok(port) => format!("127.0.0.1:{port}"),
        Err(_) => address.to_owned(),
    };
    let host = full
        .rsplit_once(':')
        .filter(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    if host.is_none() {
        return Err(CliError::refused(format!(
            "`{address}` is not where one can listen; say HOST:PORT, e.g. 127.0.0.1:9400, or 0.0.0.0:9400 for everybody"
        )));
    }
    let failed = |error| CliError::failed(format!("cannot listen at {full}: {error}"));
    let listener = TcpListener::bind(&full).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok((listener, address))
}

/// The store of a URL.
struct Url(String);

impl StoreOpener for Url {
    type Identity = Option<(u64, u64)>;

    async fn open(&self) -> Result<DeadLetters, CliError> {
        open::store(&self.0, false).await
    }

    /// A file that was removed or replaced goes on answering those who have it open.
    fn identity(&self) -> Option<(u64, u64)> {
        let path = self.0.strip_prefix("sqlite://")?;
        // Device and inode tell a replaced file from the one that is open, where the path is the same for both.
        identity(std::fs::metadata(path).ok()?)
    }
}

#[cfg(unix)]
fn identity(file: std::fs::Metadata) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt as _;
    Some((file.dev(), file.ino()))
}

#[cfg(not(unix))]
// Elsewhere the standard library has no stable call for such a number, so there a replaced file is noticed by its errors
// alone.
fn identity(_: std::fs::Metadata) -> Option<(u64, u64)> {
    Some((0, 0))
}

//! `dlq serve`: the gauges of a store for Prometheus, and its health for probes.
//!
//! One task looks at the store, at once and then every so often; requests are answered with what it saw last. So a
//! store is looked at no more often than it was said, however many ask, and who asks never waits for it; only the first
//! look is waited for. What is shown is at most one pause older than the question.
//!
//! # States
//!
//! | state | `/metrics` | `/health` |
//! |---|---|---|
//! | before the first look | waits, no longer than a look may take | waits |
//! | the store answers | everything, `dlq_store_up` is 1 | 200, `healthy` or `degraded` |
//! | it does not, or not in time | `dlq_store_up` is 0, counts are left out | 503, `unhealthy`, and why |
//!
//! A store that failed is opened anew at the next look; so is one whose file was replaced by another.
//!
//! # If the process dies here
//!
//! It writes nothing, so nothing is lost. Its counters begin at zero again, which Prometheus expects of counters.
//! Asked to end (SIGINT, SIGTERM) it stops listening, drops what it answers, and ends with 0.

mod http;
mod label;
mod look;
mod names;
mod render;
mod written;

use std::future::Future;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use dlq_core::store::{HealthState, HealthThresholds};
use dlq_core::{DeadLetters, SystemClock};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use crate::cli::ServeArgs;
use crate::error::CliError;
use crate::open::store;
use crate::secret::without_password;
use crate::signals::until_asked;
use look::{Looker, Page, Place};

/// The shortest pause between two looks.
const SHORTEST: Duration = Duration::from_millis(100);

/// Serves the store at this URL until it is asked to end.
pub(crate) async fn run(url: &str, args: ServeArgs) -> Result<ExitCode, CliError> {
    let shown = without_password(url);
    refuse_brokers(url, &shown)?;
    if args.every < SHORTEST {
        return Err(CliError::refused(format!(
            "--every {} is too often; the shortest is 100ms",
            dlq_core::policy::duration::format(args.every)
        )));
    }
    until_asked(|stop| serve(url, &shown, args, stop)).await
}

async fn serve(
    url: &str,
    shown: &str,
    args: ServeArgs,
    mut stop: impl Future<Output = ()> + Unpin,
) -> Result<ExitCode, CliError> {
    let thresholds =
        HealthThresholds::default().with_backlog(args.max_backlog).with_age(args.max_age);
    let mut looker =
        Looker::new(Url(url.to_owned()), thresholds, args.overdue, SystemClock::shared());
    tokio::select! {
        begun = looker.begin() => begun?,
        () = &mut stop => return Ok(ExitCode::SUCCESS),
    }
    let listener = listen(&args.metrics).await?;
    let address = listener
        .local_addr()
        .map_err(|error| CliError::failed(format!("cannot tell where it listens: {error}")))?;
    eprintln!("dlq: {shown} is served at http://{address}/metrics and http://{address}/health");
    let (pages, seen) = watch::channel(None);
    tokio::select! {
        () = look(looker, args.every, &pages) => {}
        () = http::answer(listener, seen) => {}
        () = stop => {}
    }
    Ok(ExitCode::SUCCESS)
}

/// Looks at once and then at this interval.
async fn look<P: Place>(
    mut looker: Looker<P>,
    every: Duration,
    pages: &watch::Sender<Option<Arc<Page>>>,
) {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut is_down = false;
    loop {
        ticks.tick().await;
        let page = looker.look().await;
        let failed = page.health.state == HealthState::Unhealthy;
        if failed != is_down {
            is_down = failed;
            let why = page.health.findings.join("; ");
            let text = if failed {
                format!("it is not reached: {why}")
            } else {
                "it answers again".to_owned()
            };
            eprintln!("dlq: {}", crate::output::escape(&text));
        }
        pages.send_replace(Some(Arc::new(page)));
    }
}

async fn listen(address: &str) -> Result<TcpListener, CliError> {
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
    TcpListener::bind(&full)
        .await
        .map_err(|error| CliError::failed(format!("cannot listen at {full}: {error}")))
}

fn refuse_brokers(url: &str, shown: &str) -> Result<(), CliError> {
    if !matches!(url.split_once("://"), Some(("nats" | "tls" | "kafka", _))) {
        return Ok(());
    }
    Err(CliError::refused(format!(
        "`dlq serve` counts the letters of a store, and {shown} is a broker, where counting means to read them all; \
         drain it into a store (dlq ingest --into sqlite://dlq.db) and serve that"
    )))
}

/// The store of a URL.
struct Url(String);

impl Place for Url {
    type Identity = Option<(u64, u64)>;

    async fn open(&self) -> Result<DeadLetters, CliError> {
        store(&self.0, false).await
    }

    /// A file that was removed or replaced goes on answering those who have it open.
    fn identity(&self) -> Option<(u64, u64)> {
        let path = self.0.strip_prefix("sqlite://")?;
        identity(std::fs::metadata(path).ok()?)
    }
}

#[cfg(unix)]
fn identity(file: std::fs::Metadata) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt as _;
    Some((file.dev(), file.ino()))
}

#[cfg(not(unix))]
fn identity(_: std::fs::Metadata) -> Option<(u64, u64)> {
    Some((0, 0))
}

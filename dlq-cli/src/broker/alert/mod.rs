//! Alerts of new letters: each incident goes to a webhook, or to a program.
//!
//! Letters never wait for an alert: what is to be told stands in a queue, and what does not fit into it is dropped and
//! counted. An alert is a help and no record, which the incidents are: one that is in the queue when the process dies is
//! told no more, and one whose confirmation was lost is told twice; `letter` and `generation` tell copies apart.

mod http;

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dlq_core::ingest::Incident;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::cli::AlertArgs;
use crate::error::CliError;
use http::Webhook;

/// Maximum number of waiting alerts.
const QUEUE: usize = 1000;
/// Time limit of an attempt.
const PATIENCE: Duration = Duration::from_secs(5);
/// Number of attempts for an alert, and the delay after the first.
const TRIES: u32 = 4;
const PAUSE: Duration = Duration::from_millis(250);
/// Time limit for the remaining alerts when there are no more letters.
const REST: Duration = Duration::from_secs(15);

/// Sender of alerts, by a task of its own.
pub(super) struct Alerts {
    queue: Option<mpsc::Sender<Vec<u8>>>,
    counts: Arc<Counts>,
    task: JoinSet<()>,
}

/// Counts of the alerts.
#[derive(Debug, Default)]
struct Counts {
    queued: AtomicU64,
    dropped: AtomicU64,
    sent: AtomicU64,
    failed: AtomicU64,
}

enum Hook {
    Web(Webhook),
    Program(String),
}

/// Reason why an alert was not accepted.
struct Refusal {
    why: String,
    /// True if trying again may help.
    is_transient: bool,
}

impl Alerts {
    /// Starts what is asked for, if anything is.
    pub(super) fn start(args: &AlertArgs) -> Result<Self, CliError> {
        let hook = match (&args.alert_url, &args.alert_command) {
            (Some(url), _) => Some(Hook::Web(Webhook::parse(url)?)),
            (None, Some(command)) => Some(Hook::Program(command.clone())),
            (None, None) => None,
        };
        let (mut task, counts) = (JoinSet::new(), Arc::<Counts>::default());
        let queue = hook.map(|hook| {
            let (queue, waiting) = mpsc::channel(QUEUE);
            task.spawn(run(hook, waiting, Arc::clone(&counts)));
            queue
        });
        Ok(Self { queue, counts, task })
    }

    /// Puts them into the queue; returns at once.
    pub(super) fn tell(&self, incidents: &[Incident]) {
        let Some(queue) = &self.queue else { return };
        for incident in incidents {
            let is_queued =
                serde_json::to_vec(incident).is_ok_and(|incident| queue.try_send(incident).is_ok());
            if is_queued {
                count(&self.counts.queued);
            } else if count(&self.counts.dropped) == 0 {
                // The warning comes once; `end` says how many were dropped.
                tracing::warn!(
                    "alerts are slower than letters: some are dropped; the incidents have them all"
                );
            }
        }
    }

    /// Waits for the rest, for a while; says so and is false when something was not told.
    pub(super) async fn end(mut self) -> bool {
        // Without its sender the queue ends once it is empty, and the task with it.
        if self.queue.take().is_none() {
            return true;
        }
        let _ = timeout(REST, self.task.join_next()).await;
        let [queued, dropped, sent, failed] = {
            let Counts { queued, dropped, sent, failed } = &*self.counts;
            [queued, dropped, sent, failed].map(|count| count.load(Ordering::Relaxed))
        };
        if dropped == 0 && sent == queued {
            return true;
        }
        say!(
            "alerts: {sent} sent, {failed} refused, {dropped} dropped, {} given up at the end; the incidents have them all",
            queued.saturating_sub(sent + failed)
        );
        false
    }
}

/// Adds one and returns the previous value.
fn count(counter: &AtomicU64) -> u64 {
    counter.fetch_add(1, Ordering::Relaxed)
}

/// Sends one after the other, until the queue ends.
async fn run(hook: Hook, mut waiting: mpsc::Receiver<Vec<u8>>, counts: Arc<Counts>) {
    while let Some(incident) = waiting.recv().await {
        let (mut tries, mut pause) = (1, PAUSE);
        loop {
            // A program that takes too long is killed, since its future is dropped here.
            let sent = timeout(PATIENCE, hook.send(&incident)).await;
            let refusal = match sent {
                Ok(Ok(())) => {
                    count(&counts.sent);
                    break;
                }
                Ok(Err(refusal)) => refusal,
                Err(_) => Refusal {
                    why: format!("it took more than {} s", PATIENCE.as_secs()),
                    is_transient: true,
                },
            };
            if !refusal.is_transient || tries == TRIES {
                count(&counts.failed);
                tracing::warn!(why = refusal.why, tries, "an alert could not be sent");
                break;
            }
            sleep(pause).await;
            tries += 1;
            pause *= 4;
        }
    }
}

impl Hook {
    async fn send(&self, incident: &[u8]) -> Result<(), Refusal> {
        match self {
            Self::Web(webhook) => webhook.post(incident).await,
            Self::Program(command) => program(command, incident).await,
        }
    }
}

/// Runs the program with the incident on its standard input; it is killed when this is dropped.
async fn program(command: &str, incident: &[u8]) -> Result<(), Refusal> {
    let failed = |error: std::io::Error| Refusal {
        why: format!("the command cannot be run: {error}"),
        is_transient: true,
    };
    let mut child = Command::new("sh")
        .args(["-c", command])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(failed)?;
    // The pipe closes at the end of this block, which tells the program that the incident is whole.
    if let Some(mut stdin) = child.stdin.take() {
        // One that does not read is asked for its exit code all the same.
        let _ = stdin.write_all(incident).await;
        let _ = stdin.write_all(b"\n").await;
    }
    let status = child.wait().await.map_err(failed)?;
    if status.success() {
        Ok(())
    } else {
        Err(Refusal { why: format!("the command ended with {status}"), is_transient: true })
    }
}

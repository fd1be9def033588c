//! Alerts about new letters: the incident of each goes to a webhook, or to a program.
//!
//! Letters never wait for an alert: what is to be told stands in a queue, and what does not fit into it is dropped and
//! counted. An alert is a help and no record, which the incidents are: one that is in the queue when the process dies is
//! told no more, and one whose confirmation was lost is told twice; `letter` and `generation` tell copies apart.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dlq_core::ingest::Incident;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::counts::{self, count};
use super::http::{Webhook, client};
use super::{Refusal, send};
use crate::cli::IngestArgs;
use crate::error::CliError;

/// Maximum number of waiting alerts.
// A letter's incident is about a kilobyte, so a full queue takes a megabyte.
const QUEUE: usize = 1000;
/// Time limit for the remaining alerts when there are no more letters.
const REST: Duration = Duration::from_secs(15);

/// Sender of alerts about letters, by a task of its own.
pub(crate) struct LetterAlerts {
    queue: Option<mpsc::Sender<Vec<u8>>>,
    format: &'static str,
    totals: Arc<Totals>,
    task: JoinSet<()>,
}

/// Totals of the alerts.
#[derive(Debug, Default)]
struct Totals {
    queued: AtomicU64,
    dropped: AtomicU64,
    sent: AtomicU64,
    refused: AtomicU64,
}

enum Hook {
    Web(Webhook),
    Program(String),
}

impl LetterAlerts {
    /// Starts what is asked for, if anything is.
    pub(crate) fn start(args: &IngestArgs) -> Result<Self, CliError> {
        let of_letters = &args.alert;
        let hook = match (&of_letters.alert_url, &of_letters.alert_command) {
            (Some(url), _) => {
                let client = client(args.group_alerts.alert_ca.as_deref())?;
                Some(Hook::Web(Webhook::parse(&client, url, "--alert-url")?))
            }
            (None, Some(command)) => Some(Hook::Program(command.clone())),
            (None, None) => None,
        };
        let format = if matches!(hook, Some(Hook::Program(_))) { "command" } else { "webhook" };
        let (mut task, totals) = (JoinSet::new(), Arc::<Totals>::default());
        let queue = hook.map(|hook| {
            // The queue is bounded and never waited for: a slow receiver must not keep letters from being stored.
            let (queue, waiting) = mpsc::channel(QUEUE);
            // One task sends one after the other, which keeps the order and spares the receiver a burst.
            task.spawn(run(hook, format, waiting, Arc::clone(&totals)));
            queue
        });
        Ok(Self { queue, format, totals, task })
    }

    /// Puts them into the queue; returns at once.
    pub(crate) fn tell(&self, incidents: &[Incident]) {
        let Some(queue) = &self.queue else { return };
        for incident in incidents {
            let is_queued =
                serde_json::to_vec(incident).is_ok_and(|incident| queue.try_send(incident).is_ok());
            if is_queued {
                add(&self.totals.queued);
                continue;
            }
            count(counts::DROPPED, self.format, 1);
            if add(&self.totals.dropped) == 0 {
                // The warning comes once; `end` says how many were dropped.
                tracing::warn!(
                    "alerts are slower than letters: some are dropped; the incidents have them all"
                );
            }
        }
    }

    /// Waits for the rest, for a while; says so and is false when something was not told.
    pub(crate) async fn end(mut self) -> bool {
        // Without its sender the queue ends once it is empty, and the task with it.
        if self.queue.take().is_none() {
            return true;
        }
        // What is not sent by then is in the incidents, and the process has to come to its end.
        let _ = timeout(REST, self.task.join_next()).await;
        let [queued, dropped, sent, refused] = {
            let Totals { queued, dropped, sent, refused } = &*self.totals;
            [queued, dropped, sent, refused].map(|total| total.load(Ordering::Relaxed))
        };
        if dropped == 0 && sent == queued {
            return true;
        }
        say!(
            "alerts: {sent} sent, {refused} refused, {dropped} dropped, {} given up at the end; the incidents have them all",
            queued.saturating_sub(sent + refused)
        );
        false
    }
}

/// Adds one and returns the previous value.
fn add(total: &AtomicU64) -> u64 {
    total.fetch_add(1, Ordering::Relaxed)
}

/// Sends one after the other, until the queue ends.
async fn run(
    hook: Hook,
    format: &'static str,
    mut waiting: mpsc::Receiver<Vec<u8>>,
    totals: Arc<Totals>,
) {
    while let Some(incident) = waiting.recv().await {
        match send(|| hook.attempt(&incident)).await {
            Ok(()) => {
                add(&totals.sent);
                count(counts::SENT, format, 1);
            }
            Err(refusal) => {
                add(&totals.refused);
                count(counts::DROPPED, format, 1);
                tracing::warn!(why = refusal.why, "alert was not accepted");
            }
        }
    }
}

impl Hook {
    async fn attempt(&self, incident: &[u8]) -> Result<(), Refusal> {
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
        // The command is the operator's own. The incident comes by standard input and never into the command line, where
        // texts of messages could be taken for shell.
        .args(["-c", command])
        .stdin(Stdio::piped())
        // Standard output is for the data of this command; what the program complains of goes to standard error.
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

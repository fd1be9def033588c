//! Output while the program runs and at its end.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::IsTerminal as _;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tower_dlq::consumer::Report;
use tower_dlq::core::memory::MemoryBroker;
use tower_dlq::core::store::{Claims as _, Letters as _, Stats};
use tower_dlq::core::{Cause, Filter, Status};
use tower_dlq::sql::sqlite::SqliteStore;

/// The consumer group that reads the feed.
pub(crate) const GROUP: &str = "payments";

/// A progress line on standard error.
pub(crate) struct Progress {
    bar: ProgressBar,
    messages: u64,
}

impl Progress {
    pub(crate) fn new(messages: u64) -> Self {
        let bar = if std::io::stderr().is_terminal() {
            ProgressBar::new(messages)
        } else {
            ProgressBar::hidden()
        };
        if let Ok(style) = ProgressStyle::with_template("{wide_bar} {pos}/{len} messages") {
            bar.set_style(style);
        }
        Self { bar, messages }
    }

    /// Shows how far it is until the feed is consumed and nothing in the store is due or being run.
    pub(crate) async fn until_idle(&self, broker: &MemoryBroker, store: &SqliteStore) {
        loop {
            self.bar.set_position(self.messages.saturating_sub(broker.pending(GROUP) as u64));
            // A store that does not answer has work left, as far as we know.
            if broker.is_idle(GROUP) && matches!(store.next_due(Vec::new()).await, Ok(None)) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub(crate) fn done(&self) {
        self.bar.finish_and_clear();
    }
}

/// Changes in the store while the program ran.
pub(crate) struct Summary {
    before: Stats,
}

impl Summary {
    pub(crate) async fn begin(store: &SqliteStore) -> Result<Self, Box<dyn Error>> {
        Ok(Self { before: store.stats(Filter::new()).await? })
    }

    pub(crate) async fn print(
        self,
        store: &SqliteStore,
        messages: u64,
        charged: u64,
        report: &Report,
    ) -> Result<(), Box<dyn Error>> {
        let after = store.stats(Filter::new()).await?;
        if messages > 0 {
            println!(
                "{messages} messages: {charged} charged, {} duplicates, {} dead letters in dlq.db",
                report.handled.saturating_sub(charged),
                report.dead
            );
            print_causes(&after.by_cause);
            println!("\nnow type");
            println!("  dlq --from sqlite://dlq.db groups");
            println!("  dlq --from sqlite://dlq.db list --limit 10");
            println!("  dlq --from sqlite://dlq.db replay --class transient --yes");
            println!("  cargo run -p quickstart -- --repaired");
        } else {
            // An operator may delete some while it runs.
            let before = self.before.with_status(Status::Resolved);
            let resolved = after.with_status(Status::Resolved).saturating_sub(before);
            println!(
                "{resolved} letters resolved: {charged} payments charged that had died before"
            );
            println!("{} letters wait for somebody", after.backlog());
            print_causes(&after.by_cause);
        }
        Ok(())
    }
}

fn print_causes(causes: &BTreeMap<Cause, u64>) {
    for (cause, count) in causes {
        println!("  {count:>4}  {cause}");
    }
}

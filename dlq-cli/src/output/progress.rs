//! Progress of long work, on standard error: at a terminal only, and not when told to be quiet.

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressState, ProgressStyle};

/// True if this process shows no progress.
static QUIET: AtomicBool = AtomicBool::new(false);

/// Interval of questions how much is left.
const LOOK: Duration = Duration::from_millis(500);

/// A bar with rate and time left; with a rate alone where nobody knows how much there is.
#[derive(Clone, Debug)]
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// From now on no progress is shown.
    pub(crate) fn be_quiet() {
        QUIET.store(true, Ordering::Relaxed);
    }

    /// Progress over this many `units`.
    pub(crate) fn of(total: u64, units: &str) -> Self {
        let style =
            format!("{{wide_bar}} {{pos}}/{{len}} {units}  {{rate}}  {{eta}} left  {{msg}}");
        Self::new(ProgressBar::new(total), &style)
    }

    /// Progress over a file of this many bytes.
    pub(crate) fn of_bytes(total: u64) -> Self {
        let style = "{wide_bar} {bytes}/{total_bytes}  {bytes_per_sec}  {msg}  {eta} left";
        Self::new(ProgressBar::new(total), style)
    }

    /// Work that tells nothing before its end.
    pub(crate) fn busy(text: impl Into<Cow<'static, str>>) -> Self {
        let bar = Self::new(ProgressBar::no_length(), "{spinner} {msg}  {elapsed}");
        bar.say(text);
        bar
    }

    /// Progress over an unknown number of `units`.
    #[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
    pub(crate) fn endless(units: &str) -> Self {
        let style = format!("{{spinner}} {{pos}} {units}  {{rate}}  {{elapsed}}  {{msg}}");
        Self::new(ProgressBar::no_length(), &style)
    }

    fn new(bar: ProgressBar, style: &str) -> Self {
        if QUIET.load(Ordering::Relaxed) {
            return Self(ProgressBar::hidden());
        }
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style.with_key("rate", rate));
        }
        Self(bar)
    }

    /// Without a bar when `hide`, as where data is written to the same terminal.
    pub(crate) fn hidden_if(self, hide: bool) -> Self {
        if hide { Self(ProgressBar::hidden()) } else { self }
    }

    /// Adds to the finished units.
    pub(crate) fn advance(&self, by: u64) {
        self.0.inc(by);
    }

    /// Sets the number of finished units.
    pub(crate) fn set(&self, done: u64) {
        self.0.set_position(done);
    }

    /// Shows no time left any more: nothing is known of it while nothing is done.
    pub(crate) fn stall(&self) {
        if let Ok(style) = ProgressStyle::with_template("{wide_bar} {pos}/{len}  {msg}") {
            self.0.set_style(style);
        }
    }

    /// Says something beside the bar.
    pub(crate) fn say(&self, text: impl Into<Cow<'static, str>>) {
        self.0.set_message(text);
    }

    /// Takes the bar away while `write` writes to standard error.
    pub(crate) fn aside<T>(&self, write: impl FnOnce() -> T) -> T {
        self.0.suspend(write)
    }

    /// Takes the bar away for good.
    pub(crate) fn end(&self) {
        self.0.finish_and_clear();
    }

    /// Does work that does not tell how far it has come; `left` says how much there is still to do, and is asked only
    /// where a bar is seen.
    pub(crate) async fn during<T>(
        &self,
        work: impl Future<Output = T>,
        mut left: impl AsyncFnMut() -> Option<u64>,
    ) -> T {
        let mut work = pin!(work);
        self.set(0);
        // Where nobody sees the bar the store is not asked for it.
        while !self.0.is_hidden() {
            let look = async {
                tokio::time::sleep(LOOK).await;
                left().await
            };
            tokio::select! {
                // Finished work comes first, and is not kept waiting for a count that nobody needs any more.
                biased;
                done = &mut work => {
                    self.end();
                    return done;
                }
                left = look => {
                    let total = self.0.length().unwrap_or(0);
                    // If it is not known what is left, nothing counts as done.
                    self.set(total.saturating_sub(left.unwrap_or(total)));
                }
            }
        }
        work.await
    }
}

fn rate(state: &ProgressState, out: &mut dyn fmt::Write) {
    let digits = if state.per_sec() < 10.0 { 1 } else { 0 };
    // A bar that cannot be written is not seen.
    let _ = write!(out, "{:.digits$}/s", state.per_sec());
}

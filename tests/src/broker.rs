use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dlq_tower::core::{
    Capabilities, Delivery, Disposition, Ordering, Origin, Position, Settle, Source,
    TransportError, TransportErrorKind,
};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::{Entry, FORGOTTEN, Journal, MESSAGES, message};

/// A broker whose memory is a file: which message was handed out how often, and which were acknowledged.
///
/// The death of a process ends all leases; the next one is handed out what was not acknowledged.
#[derive(Clone, Debug)]
pub struct FileBroker {
    shared: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    journal: Journal,
    changed: Notify,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    ready: VecDeque<u64>,
    later: BTreeSet<(Instant, u64)>,
    handed_out: BTreeMap<u64, u32>,
    in_flight: usize,
}

impl FileBroker {
    /// Goes on where the last process ended, or from the beginning where [`FORGOTTEN`] was noted since.
    ///
    /// # Errors
    ///
    /// When the file cannot be read or written.
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut settled = BTreeSet::new();
        let mut handed_out = BTreeMap::new();
        for Entry { what, message } in Journal::read(path)? {
            match what.as_str() {
                "ack" => _ = settled.insert(message),
                "out" => *handed_out.entry(message).or_insert(0) += 1,
                FORGOTTEN => {
                    settled.clear();
                    handed_out.clear();
                }
                _ => {}
            }
        }
        let ready = (0..MESSAGES).filter(|n| !settled.contains(n)).collect();
        let queue = Queue { ready, handed_out, ..Queue::default() };
        let shared = Inner {
            journal: Journal::open(path)?,
            changed: Notify::new(),
            queue: Mutex::new(queue),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Returns the journal, for others to note in as well.
    #[must_use]
    pub fn journal(&self) -> Journal {
        self.shared.journal.clone()
    }

    /// Returns true if every message is acknowledged.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let queue = self.queue();
        queue.ready.is_empty() && queue.later.is_empty() && queue.in_flight == 0
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next message that is due, or when the next one will be.
    fn take(&self) -> Result<(u64, u32), Option<Instant>> {
        let mut queue = self.queue();
        let now = Instant::now();
        while let Some(&(due, n)) = queue.later.first().filter(|(due, _)| *due <= now) {
            queue.later.remove(&(due, n));
            queue.ready.push_back(n);
        }
        let Some(n) = queue.ready.pop_front() else {
            return Err(queue.later.first().map(|(due, _)| *due));
        };
        queue.in_flight += 1;
        let count = queue.handed_out.entry(n).or_insert(0);
        *count += 1;
        Ok((n, *count))
    }

    fn note(&self, what: &'static str, n: u64) -> Result<(), TransportError> {
        self.shared.journal.note(what, n).map_err(|error| {
            TransportError::new(TransportErrorKind::Unavailable, "write the journal")
                .with_source(error)
        })
    }
}

impl Source for FileBroker {
    type Settle = FileSettle;

    fn capabilities(&self) -> Capabilities {
        Capabilities::none()
            .with_ordering(Ordering::Process)
            .with_counts_deliveries(true)
            .with_delayed_release(true)
    }

    async fn next(&mut self) -> Result<Option<(Delivery, FileSettle)>, TransportError> {
        loop {
            let changed = self.shared.changed.notified();
            match self.take() {
                Ok((n, count)) => {
                    self.note("out", n)?;
                    let origin = Origin::new("file", "work", Position::Offset(n));
                    let delivery = Delivery::new(message(n), origin).with_deliveries(count);
                    return Ok(Some((delivery, FileSettle { broker: self.clone(), n })));
                }
                Err(Some(due)) => tokio::select! {
                    () = sleep_until(due) => {}
                    () = changed => {}
                },
                Err(None) => changed.await,
            }
        }
    }

    async fn close(&mut self) {}
}

/// Acknowledges one message.
#[derive(Debug)]
pub struct FileSettle {
    broker: FileBroker,
    n: u64,
}

impl Settle for FileSettle {
    async fn settle(self, disposition: Disposition) -> Result<(), TransportError> {
        let later = match disposition {
            Disposition::Deferred { after } => Some(Instant::now() + after),
            Disposition::Succeeded
            | Disposition::Duplicate
            | Disposition::Dead(_)
            | Disposition::DelayedRetry { .. } => {
                self.broker.note("ack", self.n)?;
                None
            }
            unknown => return Err(unknown.unsupported()),
        };
        let mut queue = self.broker.queue();
        queue.in_flight -= 1;
        queue.later.extend(later.map(|due| (due, self.n)));
        drop(queue);
        self.broker.shared.changed.notify_one();
        Ok(())
    }

    async fn extend(&mut self) -> Result<(), TransportError> {
        Ok(())
    }

    fn lease(&self) -> Option<Duration> {
        None
    }
}

//! The threads that own the connections: one that writes, a few that read.
//!
//! Calls that wait to write at the same time share a transaction, and so a flush to the disk. Each runs in a savepoint
//! of its own, so that one that fails does not fail the others.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

use dlq_core::StoreErrorKind;
use rusqlite::Connection;
use tokio::sync::oneshot;

use super::names::Names;
use super::open::{self, Location, Tuning};
use super::unit::Unit;
use crate::error::{Fault, Result};

/// Maximum number of calls that share a transaction.
// A bound, so that the first caller of a crowd waits for one flush and not for everybody who comes after it.
const GROUP: usize = 256;

/// A call that waits for its turn. May be run more than once: what an earlier run did was rolled back.
trait Job: Send {
    fn run(&mut self, unit: &mut Unit<'_>) -> Result<()>;
    fn end(self: Box<Self>, end: Result<()>);
}

struct Call<F, T> {
    work: F,
    answer: Option<T>,
    reply: oneshot::Sender<Result<T>>,
}

impl<F, T> Job for Call<F, T>
where
    F: Fn(&mut Unit<'_>) -> Result<T> + Send,
    T: Send,
{
    fn run(&mut self, unit: &mut Unit<'_>) -> Result<()> {
        self.answer = Some((self.work)(unit)?);
        Ok(())
    }

    fn end(self: Box<Self>, end: Result<()>) {
        let Self { answer, reply, .. } = *self;
        let did_not_run = || Fault::new(StoreErrorKind::Unexpected, "the call did not run");
        // Whoever asked may have gone.
        let _ = reply.send(end.and_then(|()| answer.ok_or_else(did_not_run)));
    }
}

/// Error of a call whose thread has gone.
fn gone(cause: Option<String>) -> Fault {
    let cause = cause.unwrap_or_else(|| "it panicked".to_owned());
    Fault::new(
        StoreErrorKind::Unexpected,
        format!(
            "the thread of the store has ended ({cause}); nothing is known of this call, open the store again"
        ),
    )
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().map(str::to_owned);
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.map_or_else(|| "it panicked".to_owned(), |text| format!("it panicked: {text}"))
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    Builder::new().name(name.to_owned()).spawn(body).map_err(|error| {
        Fault::new(StoreErrorKind::Unavailable, format!("no thread could be started: {error}"))
    })
}

/// Runs `work` on a thread of its own.
pub(super) async fn once<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let (reply, answer) = oneshot::channel();
    // It ends by itself; whoever asked may have gone.
    spawn("dlq-sqlite-look", move || drop(reply.send(work())))?;
    answer.await.unwrap_or_else(|_| Err(gone(None)))
}

/// The thread that writes. Dropping it waits until what was asked for is done.
#[derive(Debug)]
pub(super) struct Writer {
    jobs: Option<Sender<Box<dyn Job>>>,
    thread: Option<JoinHandle<()>>,
    cause: Arc<Mutex<Option<String>>>,
}

impl Writer {
    pub(super) async fn start(place: Location, tuning: Tuning, names: Arc<Names>) -> Result<Self> {
        // The queue has no bound, since sending into a full one would block a thread of the runtime. Every caller waits
        // for its answer, so that the queue is no longer than there are callers.
        let (jobs, waiting) = channel();
        let (opened, opens) = oneshot::channel();
        let cause = Arc::new(Mutex::new(None));
        let told = Arc::clone(&cause);
        let thread =
            spawn("dlq-sqlite-writer", move || match open::writer(&place, tuning, &names) {
                Ok(conn) => {
                    let _ = opened.send(Ok(()));
                    write(&conn, &names, &waiting, &told);
                }
                Err(fault) => {
                    let _ = opened.send(Err(fault));
                }
            })?;
        // The writer is made before the wait: a future that is dropped in it joins the thread.
        let writer = Self { jobs: Some(jobs), thread: Some(thread), cause };
        opens.await.unwrap_or_else(|_| Err(gone(None)))?;
        Ok(writer)
    }

    /// Runs `work` in a transaction and returns once it is durable.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl Fn(&mut Unit<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        let job = Box::new(Call { work, answer: None, reply });
        let is_taken = self.jobs.as_ref().is_some_and(|jobs| jobs.send(job).is_ok());
        if !is_taken {
            return Err(self.gone());
        }
        // A caller that is dropped here leaves its call in the queue: it is done all the same, and nobody hears of it.
        answer.await.unwrap_or_else(|_| Err(self.gone()))
    }

    fn gone(&self) -> Fault {
        gone(self.cause.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // This closes the channel: the thread does what is waiting in it, and ends.
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn write(
    conn: &Connection,
    names: &Names,
    waiting: &Receiver<Box<dyn Job>>,
    told: &Mutex<Option<String>>,
) {
    while let Ok(first) = waiting.recv() {
        let mut group = vec![first];
        while group.len() < GROUP
            && let Ok(next) = waiting.try_recv()
        {
            group.push(next);
        }
        match catch_unwind(AssertUnwindSafe(|| together(conn, names, &mut group))) {
            Ok(ends) => group.into_iter().zip(ends).for_each(|(job, end)| job.end(end)),
            Err(panic) => {
                // Nobody knows what state the connection is in: end here, which rolls back.
                let text = panic_text(&*panic);
                tracing::error!(cause = text, "the thread of the store that writes has ended");
                *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(text.clone());
                // Calls that wait are answered as well. Those that come later find the channel closed.
                let rest = std::iter::from_fn(|| waiting.try_recv().ok());
                group
                    .into_iter()
                    .chain(rest)
                    .for_each(|job| job.end(Err(gone(Some(text.clone())))));
                return;
            }
        }
    }
}

/// Reason why a whole transaction failed.
enum Lost {
    /// It did not begin.
    Begin(Fault),
    /// It was rolled back.
    RolledBack(Fault),
}

/// Runs a group in one transaction; when that fails as a whole, each of them in its own.
fn together(conn: &Connection, names: &Names, group: &mut [Box<dyn Job>]) -> Vec<Result<()>> {
    match attempt(conn, names, group) {
        Ok(ends) => ends,
        Err(Lost::RolledBack(fault)) if group.len() == 1 => vec![Err(fault)],
        // One of them may be the reason: each has a transaction of its own now, so that only that one fails.
        Err(Lost::RolledBack(_)) => group
            .chunks_mut(1)
            .map(|one| match attempt(conn, names, one) {
                Ok(mut ends) => ends.pop().unwrap_or(Ok(())),
                Err(Lost::Begin(fault) | Lost::RolledBack(fault)) => Err(fault),
            })
            .collect(),
        // Most often another process has the lock. Each call alone would wait for it as long again.
        Err(Lost::Begin(fault)) => group.iter().map(|_| Err(fault.clone())).collect(),
    }
}

fn attempt(
    conn: &Connection,
    names: &Names,
    group: &mut [Box<dyn Job>],
) -> std::result::Result<Vec<Result<()>>, Lost> {
    let is_shared = group.len() > 1;
    // The lock is taken at once: a transaction that reads first and writes later fails where another process wrote in
    // between.
    execute(conn, "BEGIN IMMEDIATE").map_err(Lost::Begin)?;
    let rolled_back = |fault| {
        // SQLite takes some transactions back by itself, on a full disk for one, and then refuses to do so again.
        if !conn.is_autocommit() {
            let _ = execute(conn, "ROLLBACK");
        }
        Lost::RolledBack(fault)
    };
    let mut ends = Vec::with_capacity(group.len());
    for job in group {
        // A call that is alone needs no savepoint: where it fails, the whole transaction is taken back.
        if is_shared {
            execute(conn, "SAVEPOINT call").map_err(rolled_back)?;
        }
        let mut unit = Unit::new(conn, names);
        let end = job.run(&mut unit);
        match &end {
            Ok(()) if is_shared => execute(conn, "RELEASE call").map_err(rolled_back)?,
            Ok(()) => {}
            // A full disk and the like end the whole transaction.
            Err(fault) if !is_shared || conn.is_autocommit() => {
                return Err(rolled_back(fault.clone()));
            }
            Err(_) => {
                execute(conn, "ROLLBACK TO call").map_err(rolled_back)?;
                execute(conn, "RELEASE call").map_err(rolled_back)?;
            }
        }
        ends.push(end);
    }
    // Answers are given only after this: what a caller is told is on the disk (G1).
    execute(conn, "COMMIT").map_err(rolled_back)?;
    Ok(ends)
}

fn execute(conn: &Connection, sql: &str) -> Result<()> {
    conn.prepare_cached(sql)?.raw_execute()?;
    Ok(())
}

type Look = Box<dyn FnOnce(&Connection) + Send>;

/// The threads that read. Dropping them waits until what was asked for is read.
#[derive(Debug)]
pub(super) struct Readers {
    looks: Option<Sender<Look>>,
    threads: Vec<JoinHandle<()>>,
}

impl Readers {
    pub(super) async fn start(count: usize, place: &Location, tuning: Tuning) -> Result<Self> {
        // All readers take from one channel: a look that takes long keeps one of them, and the others go on.
        let (looks, waiting) = channel::<Look>();
        let waiting = Arc::new(Mutex::new(waiting));
        let mut readers = Self { looks: Some(looks), threads: Vec::with_capacity(count) };
        for _ in 0..count {
            let (opened, opens) = oneshot::channel();
            let (place, waiting) = (place.clone(), Arc::clone(&waiting));
            readers.threads.push(spawn("dlq-sqlite-reader", move || {
                match open::reader(&place, tuning) {
                    Ok(conn) => {
                        let _ = opened.send(Ok(()));
                        read(&conn, &waiting);
                    }
                    Err(fault) => {
                        let _ = opened.send(Err(fault));
                    }
                }
            })?);
            // Where one cannot be opened, the others end with `readers`, which is dropped.
            opens.await.unwrap_or_else(|_| Err(gone(None)))?;
        }
        Ok(readers)
    }

    /// Runs `look` on one state of the database.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        let look: Look = Box::new(move |conn| {
            let _ = reply.send(snapshot(conn, look));
        });
        let is_taken = self.looks.as_ref().is_some_and(|looks| looks.send(look).is_ok());
        if !is_taken {
            return Err(gone(None));
        }
        answer.await.unwrap_or_else(|_| Err(gone(None)))
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        // This closes the channel: the threads do what is waiting in it, and end.
        self.looks = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn read(conn: &Connection, waiting: &Mutex<Receiver<Look>>) {
    loop {
        // The lock is given up before the look runs, so that the next reader takes the next look meanwhile.
        let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(look) = next else { return };
        // Whoever asked learns of a panic by the answer that does not come; nothing was changed, so go on.
        if catch_unwind(AssertUnwindSafe(|| look(conn))).is_err() && !conn.is_autocommit() {
            let _ = execute(conn, "ROLLBACK");
        }
    }
}

fn snapshot<T>(conn: &Connection, look: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
    // All statements of a look see one snapshot, so that pages, counts and sums fit each other.
    execute(conn, "BEGIN")?;
    let seen = look(conn);
    // Nothing was changed, so a COMMIT that fails takes nothing away from what was seen.
    let end = execute(conn, "COMMIT");
    if end.is_err() && !conn.is_autocommit() {
        let _ = execute(conn, "ROLLBACK");
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> (Location, Tuning, Arc<Names>) {
        let tuning = Tuning {
            busy_timeout: std::time::Duration::from_secs(1),
            max_pages: None,
            migrate: true,
        };
        (Location::Memory, tuning, Arc::new(Names::new("dlq_events").unwrap()))
    }

    #[tokio::test]
    async fn after_a_panic_every_call_says_so() {
        let (place, tuning, names) = place();
        let writer = Writer::start(place, tuning, names).await.unwrap();
        let fault = writer.run(|_| -> Result<()> { panic!("boom") }).await.unwrap_err();
        assert!(fault.during("x").to_string().contains("it panicked: boom"));
        let fault = writer.run(|_| Ok(())).await.unwrap_err();
        // No word about what was to be written, and nothing that passes by waiting.
        assert_eq!(fault.kind(), StoreErrorKind::Unexpected);
        assert!(fault.during("x").to_string().contains("it panicked: boom"));
    }

    #[tokio::test]
    async fn a_call_that_fails_does_not_fail_its_group() {
        let (place, tuning, names) = place();
        let writer = Writer::start(place, tuning, names).await.unwrap();
        // While the first call holds the thread, the others queue up and become one group.
        let (go, wait) = channel::<()>();
        let wait = Mutex::new(wait);
        let first = writer.run(move |_| {
            wait.lock().unwrap_or_else(PoisonError::into_inner).recv().map_err(|_| gone(None))
        });
        let mark = |id: u8, ends_well: bool| {
            writer.run(move |unit| {
                unit.conn().execute("INSERT INTO dlq_crash_marks VALUES (?1, 1)", [[id]])?;
                if ends_well { Ok(()) } else { Err(gone(None)) }
            })
        };
        let release = async { go.send(()).unwrap() };
        let (first, one, two, three, ()) =
            tokio::join!(first, mark(1, true), mark(2, false), mark(3, true), release);
        assert!(first.is_ok() && one.is_ok() && two.is_err() && three.is_ok());
        let ids = writer.run(|unit| {
            let mut all = unit.conn().prepare("SELECT letter_id FROM dlq_crash_marks")?;
            let ids = all.query_map([], |row| row.get::<_, Vec<u8>>(0))?;
            Ok(ids.collect::<rusqlite::Result<Vec<_>>>()?)
        });
        assert_eq!(ids.await.unwrap(), [vec![1], vec![3]]);
    }
}

//! [`Calls`]: requests to the server about many deliveries, on one way.
//!
//! One task sends all that were given to it while it waited for the answer before. A lone acknowledgement is sent at once,
//! and under load one round trip serves up to 256.
//!
//! # Acknowledgements that nobody awaits
//!
//! | the process dies | the server has | and then |
//! |---|---|---|
//! | before one is sent | a pending message | it comes again when its lease ends: a duplicate where the key is done |
//! | before it is answered | either | the same, or nothing |
//!
//! If the server does not confirm an acknowledgement, it is sent again until the lease of its message has ended. Letters and
//! retry records are not among them: their acknowledgements are awaited.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, sleep_until, timeout};

use super::scripts::{ACK_WRITTEN, END_RECORDS, EXTEND, GIVE_BACK, NOBODY};
use crate::client::{RedisClient, RedisError, RedisErrorKind, as_array, as_int};
use crate::consumer::place::GroupMember;

/// Number of acknowledgements in one command.
const BATCH: usize = 256;
/// Number of entries in one script: each costs the server some microseconds, in which it serves nobody else.
const SCRIPTED: usize = 200;
/// Number of acknowledgements that nobody awaits. Beyond it they are awaited, so that a silent server is felt.
const POSTED: usize = 1_024;
/// Pause before those that were not confirmed are sent again.
const PAUSE: Duration = Duration::from_millis(100);
/// Time for which they are gathered, while nobody awaits an answer.
const GATHER: Duration = Duration::from_millis(1);

type CallResult = Result<bool, RedisError>;

/// A request about one delivery. Its answer is false where the delivery is no longer ours.
#[derive(Clone, Debug)]
pub(super) enum Request {
    /// With a proof: only where that key exists.
    Ack {
        id: Arc<str>,
        proof: Option<Arc<str>>,
    },
    Extend {
        id: Arc<str>,
        count: u64,
    },
    GiveBack {
        id: Arc<str>,
        count: u64,
        delay: Duration,
    },
    Record {
        name: Arc<str>,
        fence: Arc<str>,
        verb: &'static str,
        time: Duration,
        proof: Option<Arc<str>>,
    },
}

impl Request {
    /// The key that must exist.
    fn proof(&self) -> Option<&str> {
        match self {
            Self::Ack { proof, .. } | Self::Record { proof, .. } => proof.as_deref(),
            Self::Extend { .. } | Self::GiveBack { .. } => None,
        }
    }
}

#[derive(Debug)]
struct Asked {
    request: Request,
    by: By,
}

impl Asked {
    fn is_posted(&self) -> bool {
        matches!(self.by, By::Nobody(_))
    }
}

/// Receiver of an answer.
#[derive(Debug)]
enum By {
    Caller(oneshot::Sender<CallResult>),
    /// No caller: the request is repeated until it is heard, or until this time.
    Nobody(Instant),
}

/// Acknowledgements that nobody awaits.
#[derive(Debug, Default)]
struct Posted {
    open: AtomicUsize,
    fewer: Notify,
    /// Somebody awaits an answer.
    awaited: Notify,
}

impl Posted {
    fn over(&self, requests: usize) {
        self.open.fetch_sub(requests, Ordering::AcqRel);
        self.fewer.notify_waiters();
    }
}

/// The way to the server. The task behind it lives as long as this.
#[derive(Debug)]
pub(super) struct Calls {
    asked: mpsc::UnboundedSender<Asked>,
    posted: Arc<Posted>,
    _task: JoinSet<()>,
}

impl Calls {
    pub(super) fn new(client: RedisClient, place: Arc<GroupMember>) -> Self {
        let (asked, receiver) = mpsc::unbounded_channel();
        let posted = Arc::new(Posted::default());
        let mut task = JoinSet::new();
        task.spawn(run(client, place, receiver, Arc::clone(&posted)));
        Self { asked, posted, _task: task }
    }

    pub(super) async fn send(&self, request: Request) -> CallResult {
        let gone =
            || RedisError::new(RedisErrorKind::Unavailable, "the runtime of the source has ended");
        let (answer, answered) = oneshot::channel();
        let asked = Asked { request, by: By::Caller(answer) };
        self.asked.send(asked).map_err(|_| gone())?;
        // This ends the gathering of posted requests, so that a caller does not wait for them.
        self.posted.awaited.notify_one();
        answered.await.unwrap_or_else(|_| Err(gone()))
    }

    /// Sends a request whose answer nobody awaits, until it is heard or `until` has come. False where that is not
    /// possible.
    pub(super) fn post(&self, request: Request, until: Instant) -> bool {
        // A request is counted before it is handed over: `heard` waits for the count, and would miss one that is
        // counted later.
        let is_room = |open| (open < POSTED).then_some(open + 1);
        let taken = self.posted.open.fetch_update(Ordering::AcqRel, Ordering::Acquire, is_room);
        if taken.is_err() {
            return false;
        }
        let is_sent = self.asked.send(Asked { request, by: By::Nobody(until) }).is_ok();
        if !is_sent {
            self.posted.over(1);
        }
        is_sent
    }

    /// Waits until every request that was posted is heard, or its time is over.
    pub(super) async fn heard(&self) {
        loop {
            // The future is made before the count is read, since `notify_waiters` keeps nothing for those who come later.
            let fewer = self.posted.fewer.notified();
            if self.open() == 0 {
                return;
            }
            fewer.await;
        }
    }

    /// Returns the number of requests that were posted and not heard yet.
    pub(super) fn open(&self) -> usize {
        self.posted.open.load(Ordering::Acquire)
    }
}

async fn run(
    client: RedisClient,
    place: Arc<GroupMember>,
    mut asked: mpsc::UnboundedReceiver<Asked>,
    posted: Arc<Posted>,
) {
    let mut batch = Vec::with_capacity(BATCH);
    let mut unheard: Vec<Asked> = Vec::new();
    let mut again = Instant::now();
    loop {
        tokio::select! {
            biased;
            // Repetitions come first: under load there are always new requests, and repetitions would wait for ever.
            () = sleep_until(again), if !unheard.is_empty() => batch.append(&mut unheard),
            count = asked.recv_many(&mut batch, BATCH) => if count == 0 { return },
        }
        // Those whose turn it is now go with it.
        yield_now().await;
        if batch.len() < BATCH && batch.iter().all(Asked::is_posted) {
            // Where nobody waits for an answer, a millisecond of waiting fills the command. A caller ends it at once (see
            // `send`).
            let _ = timeout(GATHER, posted.awaited.notified()).await;
        }
        while batch.len() < BATCH
            && let Ok(more) = asked.try_recv()
        {
            batch.push(more);
        }
        let (requests, by): (Vec<Request>, Vec<By>) =
            batch.drain(..).map(|asked| (asked.request, asked.by)).unzip();
        let answers = send_all(&client, &place, &requests).await;
        let mut over = 0;
        for ((request, by), said) in requests.into_iter().zip(by).zip(answers) {
            match (by, said) {
                // A caller that was dropped meanwhile does not need the answer.
                (By::Caller(caller), said) => drop(caller.send(said)),
                // It stays among the open ones, so that their bound also limits what a silent server is still to be told.
                (By::Nobody(until), Err(_)) if Instant::now() + PAUSE < until => {
                    unheard.push(Asked { request, by: By::Nobody(until) });
                }
                (By::Nobody(_), said) => {
                    over += 1;
                    if let Err(error) = said {
                        tracing::error!(
                            stream = &*place.keys.stream,
                            %error,
                            "a message that was handled could not be acknowledged: it comes again"
                        );
                    }
                }
            }
        }
        posted.over(over);
        // A time that is still to come is left alone: a steady flow of requests would put repetitions off for ever.
        if again <= Instant::now() {
            again = Instant::now() + PAUSE;
        }
    }
}

/// Sends all of these requests, and returns their answers in order.
pub(super) async fn send_all(
    client: &RedisClient,
    place: &GroupMember,
    requests: &[Request],
) -> Vec<CallResult> {
    let pick = |kind: fn(&Request) -> bool| -> Vec<usize> {
        (0..requests.len()).filter(|at| kind(&requests[*at])).collect()
    };
    // Acknowledgements without a proof go in one plain command, which costs the server less than a script and needs no look.
    let acks = pick(|request| matches!(request, Request::Ack { proof: None, .. }));
    let proven = pick(|request| matches!(request, Request::Ack { proof: Some(_), .. }));
    let extends = pick(|request| matches!(request, Request::Extend { .. }));
    let given_back = pick(|request| matches!(request, Request::GiveBack { .. }));
    let records = pick(|request| matches!(request, Request::Record { .. }));
    // They go out together, on one connection, so that this takes one round trip.
    let (acked, ended, extended, returned, recorded) = tokio::join!(
        acknowledge(client, place, requests, &acks),
        scripted(client, place, requests, &proven),
        scripted(client, place, requests, &extends),
        scripted(client, place, requests, &given_back),
        scripted(client, place, requests, &records),
    );
    let mut answers: Vec<CallResult> = requests.iter().map(|_| Ok(true)).collect();
    for at in acks {
        answers[at] = acked.clone();
    }
    for (at, answer) in [proven, extends, given_back, records]
        .into_iter()
        .flatten()
        .zip([ended, extended, returned, recorded].into_iter().flatten())
    {
        answers[at] = answer;
    }
    answers
}

/// Acknowledges in one command. Success is acknowledged whoever owns the entry: the work is done.
async fn acknowledge(
    client: &RedisClient,
    place: &GroupMember,
    requests: &[Request],
    indexes: &[usize],
) -> CallResult {
    if indexes.is_empty() {
        return Ok(true);
    }
    // The number in the answer is not looked at: an entry that is not pending any more was acknowledged before.
    let mut cmd = redis::cmd("XACK");
    cmd.arg(&*place.keys.stream).arg(&*place.group);
    for at in indexes {
        if let Request::Ack { id, .. } = &requests[*at] {
            cmd.arg(&**id);
        }
    }
    client.command(&cmd).await.map(|_| true)
}

async fn scripted(
    client: &RedisClient,
    place: &GroupMember,
    requests: &[Request],
    indexes: &[usize],
) -> Vec<CallResult> {
    let lease = millis(place.lease);
    let calls: Vec<_> = indexes
        .chunks(SCRIPTED)
        .map(|chunk| {
            let stream = &*place.keys.stream;
            // All of a chunk are of one kind, so that the first tells the script.
            let mut call = match &requests[chunk[0]] {
                Request::Ack { .. } => {
                    let proofs = chunk.iter().filter_map(|at| requests[*at].proof());
                    let keys: Vec<_> = std::iter::once(stream).chain(proofs).collect();
                    ACK_WRITTEN.keys(&keys).arg(&*place.group)
                }
                Request::Record { .. } => END_RECORDS
                    .keys(&[place.keys.due(&place.group)])
                    .arg(place.keys.records(&place.group))
                    .arg(millis(place.window)),
                Request::GiveBack { .. } => GIVE_BACK
                    .keys(&[stream, &place.keys.later(&place.group)])
                    .arg(&*place.group)
                    .arg(&*place.me)
                    .arg(NOBODY)
                    .arg(lease),
                _ => EXTEND.keys(&[stream]).arg(&*place.group).arg(&*place.me),
            };
            for at in chunk {
                call = match &requests[*at] {
                    Request::Ack { id, .. } => call.arg(&**id),
                    Request::Extend { id, count } => call.arg(&**id).arg(*count),
                    Request::GiveBack { id, count, delay } => {
                        call.arg(&**id).arg(*count).arg(millis(*delay))
                    }
                    request @ Request::Record { name, fence, verb, time, .. } => call
                        .arg(&**name)
                        .arg(&**fence)
                        .arg(*verb)
                        .arg(millis(*time))
                        .arg(request.proof().unwrap_or_default()),
                };
            }
            call
        })
        .collect();
    let answers = match client.scripts(&calls).await {
        Ok(answers) => answers,
        // Nobody knows which of the scripts were carried out. Each caller asks again, and finds done what was.
        Err(error) => return indexes.iter().map(|_| Err(error.clone())).collect(),
    };
    let mut outcomes = Vec::with_capacity(indexes.len());
    for (chunk, answer) in indexes.chunks(SCRIPTED).zip(answers) {
        match answer {
            Ok(value) => {
                let said = as_array(&value);
                // 2 counts as well: an entry that was deleted while its handler runs is held to its end, since its bytes
                // are here.
                outcomes.extend(
                    (0..chunk.len()).map(|at| Ok(said.get(at).is_some_and(|one| as_int(one) > 0))),
                );
            }
            // One script fails alone, and with it only the requests of its chunk.
            Err(error) => outcomes.extend(chunk.iter().map(|_| Err(error.clone()))),
        }
    }
    outcomes
}

/// Whole milliseconds, rounded up: nothing is early.
pub(crate) fn millis(time: Duration) -> u64 {
    // The bound keeps its sum with a time whole in Lua, whose numbers are exact up to 2^53.
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX).min(1 << 50)
}

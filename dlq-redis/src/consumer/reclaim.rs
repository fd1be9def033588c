//! Tasks that take over what dead processes held, renew what waits here, and remove names of the dead.

use std::sync::Arc;
use std::time::Duration;

use metrics::counter;
use redis::Value;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::calls;
use super::place::{PREFIX, random};
use super::reader::{taken, texts};
use super::ready::{Fetched, What};
use super::scripts::{NOBODY, RECLAIM, SWEEP};
use super::shared::SourceState;
use crate::client::{RedisError, RedisErrorKind, as_text};

/// Number of entries that were deleted from the stream while they were pending: they are lost.
pub const DLQ_REDIS_TRIMMED_TOTAL: &str = "dlq_redis_trimmed_total";

/// Number of entries that one call takes over.
const AT_ONCE: usize = 100;
const LONGEST: Duration = Duration::from_secs(10);
/// Time after which a name without anything pending is that of a dead process, and between two looks.
const DEAD: Duration = Duration::from_secs(3600);
const SWEEPING: Duration = Duration::from_secs(600);

/// Takes over until it is stopped: three times in a lease, at a time that differs from process to process.
pub(super) async fn reclaim(shared: Arc<SourceState>, stop: CancellationToken) {
    // A third of the lease bounds by how much later than its end a message comes again.
    let every = (shared.place.lease / 3).min(LONGEST).max(Duration::from_millis(10));
    let mut cursor = "0-0".to_owned();
    let mut swept = Instant::now();
    loop {
        let outcome = pass(&shared, &mut cursor).await;
        if let Err(error) = outcome
            // The reader meets a missing group too, and reports it with what to do.
            && error.kind() != RedisErrorKind::NoGroup
        {
            shared.ready.fail(error.for_running_transport("take over messages"));
        }
        if swept.elapsed() >= SWEEPING {
            swept = Instant::now();
            sweep(&shared).await;
        }
        // Three quarters to the whole of the time.
        let jitter = every / 4 * u32::try_from(random() % 1000).unwrap_or(0) / 1000;
        // Where there was no room, soon again: what is left is nobody's.
        let wait = if cursor == "0-0" { every - jitter } else { every / 10 };
        tokio::select! {
            () = stop.cancelled() => return,
            () = shared.wake(Instant::now() + wait) => {}
        }
    }
}

/// Walks what is pending once, or until there is no room.
async fn pass(shared: &SourceState, cursor: &mut String) -> Result<(), RedisError> {
    let place = &shared.place;
    loop {
        // What nobody asks for would be taken from other processes only to wait here.
        if !shared.is_wanted() {
            return Ok(());
        }
        // Room comes first: taking over counts a delivery, so that nothing is taken over that could not be kept here.
        let mut room = Vec::new();
        while room.len() < AT_ONCE
            && let Ok(permit) = Arc::clone(&shared.more_room).try_acquire_owned()
        {
            room.push(permit);
        }
        if room.is_empty() {
            return Ok(());
        }
        let _takes = shared.takes.lock().await;
        // The time is taken before the call, since the new lease begins while the script runs.
        let begun = Instant::now();
        let call = RECLAIM
            .keys(&[&*place.keys.stream, &place.keys.later(&place.group)])
            .arg(&*place.group)
            .arg(&*place.me)
            .arg(NOBODY)
            .arg(calls::millis(place.lease))
            .arg(&*cursor)
            .arg(room.len());
        let Value::Array(mut parts) = shared.client.script(&call).await? else { return Ok(()) };
        let gone = parts.pop().map(|gone| texts(&gone)).unwrap_or_default();
        let entries = parts.pop().map(taken).unwrap_or_default();
        // The next call goes on from here. From the start each time, entries behind a long pending list would never be
        // reached.
        *cursor = parts.pop().and_then(|next| as_text(&next)).unwrap_or_else(|| "0-0".to_owned());
        if !gone.is_empty() {
            let stream = &*place.keys.stream;
            counter!(DLQ_REDIS_TRIMMED_TOTAL, "stream" => stream.to_owned())
                .increment(u64::try_from(gone.len()).unwrap_or(0));
            tracing::error!(
                stream,
                group = &*place.group,
                entries = gone.len(),
                first = gone[0],
                "messages were deleted from the stream while they were pending, and are lost; trim by the lowest pending id"
            );
        }
        let ready = entries.into_iter().zip(room).map(|((id, count, pairs), permit)| {
            let id: Arc<str> = id.into();
            // They are noted before they can be yielded, and so before the reader can come upon them.
            shared.taken_over().insert(Arc::clone(&id));
            Fetched { what: What::Entry { id, count, pairs }, since: begun, _permit: permit }
        });
        shared.ready.push(ready.collect());
        if cursor == "0-0" {
            return Ok(());
        }
    }
}

async fn sweep(shared: &SourceState) {
    let place = &shared.place;
    let call =
        SWEEP.keys(&[&*place.keys.stream]).arg(&*place.group).arg(calls::millis(DEAD)).arg(PREFIX);
    // Names that stay cost little, and the next sweep tries again.
    if let Err(error) = shared.client.script(&call).await {
        tracing::debug!(%error, "names of dead processes were not removed");
    }
}

/// Renews leases of what waits here, as long as somebody wants it.
pub(super) async fn renew(shared: Arc<SourceState>, stop: CancellationToken) {
    // An eighth leaves several tries between a quarter of the lease, when it is due, and three quarters, when it counts as
    // lost.
    let every = (shared.place.lease / 8).max(Duration::from_millis(5));
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = sleep(every) => {}
        }
        let requests = shared.ready.to_renew(&shared.place);
        if requests.is_empty() || !shared.is_wanted() {
            continue;
        }
        let at = Instant::now();
        let answers = calls::send_all(&shared.client, &shared.place, &requests).await;
        for (request, answer) in requests.iter().zip(answers) {
            // What is not known is tried again; a message whose lease ran out meanwhile is not yielded.
            if let Ok(is_ours) = answer {
                shared.ready.renewed(request, is_ours, at);
            }
        }
    }
}

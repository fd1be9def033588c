//! The task that reads a stream, on a connection of its own.
//!
//! A blocked read whose future is dropped goes on at the server: the message that arrives next is then handed out to nobody.
//! So the read is in a task that always awaits it, and what was lost with a connection is looked for among what is pending.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use redis::aio::MultiplexedConnection;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::ready::{Fetched, What};
use super::scripts::RECOVER;
use super::shared::SourceState;
use super::wire;
use crate::client::{RedisError, RedisErrorKind, as_array, as_int, as_text};

/// Time for which the server keeps a read that finds nothing. 6.2 does not wake it when the stream is deleted.
const BLOCK: Duration = Duration::from_secs(1);
/// Time by which an answer may be later.
const SILENCE: Duration = Duration::from_secs(10);
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

const FIRST: &str = "0-0";

/// Reads until it is stopped.
pub(super) async fn read(shared: Arc<SourceState>, stop: CancellationToken) {
    let mut reader = Reader {
        shared,
        stop: stop.clone(),
        connection: None,
        id: None,
        last: FIRST.to_owned(),
        lost: false,
    };
    // Short at first: a connection that has ended can mostly be replaced at once.
    let mut pause = FIRST_PAUSE;
    while !stop.is_cancelled() {
        let room = tokio::select! {
            () = stop.cancelled() => return,
            room = room(&reader.shared) => room,
        };
        let Some(room) = room else { return };
        match reader.turn(room).await {
            Ok(()) => pause = FIRST_PAUSE,
            Err(error) => {
                let error = reader.failed(error).await;
                if let Some(error) = error {
                    reader.shared.ready.fail(error.for_running_transport("read the stream"));
                    tokio::select! {
                        () = stop.cancelled() => return,
                        () = sleep(pause) => {}
                    }
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    }
}

/// Waits until half of the room is free, and takes all that is. A read for each place that becomes free would fetch
/// messages one by one.
async fn room(shared: &SourceState) -> Option<OwnedSemaphorePermit> {
    let half = u32::try_from(shared.prefetch.div_ceil(2)).unwrap_or(u32::MAX);
    let mut room = Arc::clone(&shared.room).acquire_many_owned(half).await.ok()?;
    let rest = shared.room.available_permits();
    if let Ok(rest) =
        Arc::clone(&shared.room).try_acquire_many_owned(u32::try_from(rest).unwrap_or(u32::MAX))
    {
        room.merge(rest);
    }
    Some(room)
}

/// Ends a blocked read, which finds nothing then. Where that is not allowed it goes on for [`BLOCK`] at most.
async fn unblock(shared: &SourceState, id: Option<i64>) {
    let Some(id) = id else { return };
    let told = async {
        // In a cluster the read is at the node that has the stream.
        let mut connection = shared.client.dedicated(&shared.place.keys.stream).await?;
        let mut cmd = redis::cmd("CLIENT");
        cmd.arg("UNBLOCK").arg(id);
        cmd.query_async::<Value>(&mut connection).await.map_err(RedisError::from)
    };
    if let Ok(Err(error)) = timeout(BLOCK, told).await {
        tracing::debug!(%error, "a blocked read is waited for");
    }
}

struct Reader {
    shared: Arc<SourceState>,
    stop: CancellationToken,
    connection: Option<MultiplexedConnection>,
    /// The number that the server gave the connection, if it tells.
    id: Option<i64>,
    /// The greatest id that was received.
    last: String,
    /// True if the answer of a read may have been lost.
    lost: bool,
}

impl Reader {
    async fn turn(&mut self, room: OwnedSemaphorePermit) -> Result<(), RedisError> {
        let place = Arc::clone(&self.shared.place);
        // A connection of its own: a blocked read would hold up every call that shares it.
        if self.connection.is_none() {
            let mut connection = self.shared.client.dedicated(&place.keys.stream).await?;
            let mut ask = redis::cmd("CLIENT");
            ask.arg("ID");
            // Without the number a blocked read is waited for instead of ended, so that an error here is no reason to
            // fail.
            let told = timeout(SILENCE, ask.query_async(&mut connection)).await;
            self.id = told.ok().and_then(Result::ok);
            self.connection = Some(connection);
        }
        let begun = Instant::now();
        // What an earlier read was handed out and never received comes first: nobody renews its lease.
        if self.lost {
            let call = RECOVER
                .keys(&[&*place.keys.stream])
                .arg(&*place.group)
                .arg(&*place.me)
                .arg(&self.last);
            let (found, taken_over) = {
                // What another task takes over at this moment is noted before the lock is free. Otherwise it would be
                // found here as well, and handed out twice.
                let _takes = self.shared.takes.lock().await;
                let found = self.shared.client.script(&call).await?;
                (found, self.shared.taken_over().clone())
            };
            self.lost = false;
            let mut found = taken(found);
            // These are pending under the same name, and may run at this moment.
            found.retain(|(id, ..)| !taken_over.contains(&**id));
            if !found.is_empty() {
                tracing::info!(
                    stream = &*place.keys.stream,
                    entries = found.len(),
                    "found messages of a lost read"
                );
                // More than there was room for may be found: they are few, and in no other process's hands.
                self.received(found, room, begun).await;
                return Ok(());
            }
        }
        // The read asks for no more than there is room for, so that what is fetched stays bounded (G4).
        let mut cmd = redis::cmd("XREADGROUP");
        cmd.arg("GROUP").arg(&*place.group).arg(&*place.me).arg("COUNT").arg(room.num_permits());
        let block = u64::try_from(BLOCK.as_millis()).unwrap_or(1000);
        cmd.arg("BLOCK").arg(block).arg("STREAMS").arg(&*place.keys.stream).arg(">");
        let Some(connection) = &mut self.connection else { return Ok(()) };
        let answer = {
            // The read is awaited to its end even when the source stops: the server would hand the next message to one
            // that was dropped.
            let mut read = pin!(timeout(BLOCK + SILENCE, cmd.query_async::<Value>(connection)));
            tokio::select! {
                answer = &mut read => answer,
                () = self.stop.cancelled() => {
                    unblock(&self.shared, self.id).await;
                    read.await
                }
            }
        };
        let answer = match answer {
            Ok(answer) => answer.map_err(RedisError::from)?,
            // Without a code it counts as a lost connection, so what this read may have been handed is looked for.
            Err(_) => return Err(RedisError::timeout(BLOCK + SILENCE)),
        };
        // The lease began no earlier than the read, which may have blocked since.
        let begun =
            begun.max(Instant::now().checked_sub(self.shared.place.lease / 8).unwrap_or(begun));
        self.received(entries(answer), room, begun).await;
        Ok(())
    }

    async fn received(
        &mut self,
        entries: Vec<Taken>,
        mut room: OwnedSemaphorePermit,
        since: Instant,
    ) {
        let mut ready = Vec::with_capacity(entries.len());
        for (id, count, pairs) in entries {
            // Noted before the entries are passed on: a recovery looks behind it, and would find them a second time.
            if wire::position(&id) > wire::position(&self.last) {
                self.last.clone_from(&id);
            }
            let permit = match room.split(1) {
                Some(permit) => permit,
                None => match Arc::clone(&self.shared.more_room).acquire_owned().await {
                    Ok(permit) => permit,
                    Err(_) => return,
                },
            };
            let what = What::Entry { id: id.into(), count, pairs };
            ready.push(Fetched { what, since, _permit: permit });
        }
        self.shared.ready.push(ready);
    }

    /// Decides what becomes of an error; `None` when it was set right.
    async fn failed(&mut self, error: RedisError) -> Option<RedisError> {
        // An error without a code comes from the connection: entries may have been handed out, and their answer lost.
        let is_answer = error.code().is_some();
        let is_unblocked = error.code() == Some("UNBLOCKED");
        // A server that is demoted ends blocked reads with the same code as one whose stream was deleted; the text tells them
        // apart. To take the group for gone there would be to run again what is in flight.
        let is_demoted = is_unblocked && error.to_string().contains("instance state changed");
        if !is_answer || is_demoted || error.code() == Some("MOVED") || error.ends_connection() {
            self.connection = None;
            self.lost = true;
        }
        let is_gone = error.kind() == RedisErrorKind::NoGroup || (is_unblocked && !is_demoted);
        if !is_gone {
            return Some(error);
        }
        // The pending list has gone with the group, so that there is nothing to recover.
        self.lost = false;
        let place = &self.shared.place;
        let (stream, group) = (&*place.keys.stream, &*place.group);
        // An operator decides: a new group hands out again what was acknowledged, and what was deleted is lost in silence
        // (G9).
        if !self.shared.recreate {
            return Some(RedisError::new(
                RedisErrorKind::Unavailable,
                format!(
                    "consumer group `{group}` of stream `{stream}` is gone while it was read: messages may be lost; create it \
                     with `XGROUP CREATE {stream} {group} 0 MKSTREAM`, or allow that it is recreated"
                ),
            ));
        }
        let mut cmd = redis::cmd("XGROUP");
        // The group begins at the first entry and not at `$`, which would skip what was added since the group disappeared
        // (G1).
        cmd.arg("CREATE").arg(stream).arg(group).arg("0").arg("MKSTREAM");
        match self.shared.client.command(&cmd).await {
            // `BUSYGROUP`: another process of the group was first.
            Err(error) if error.code() != Some("BUSYGROUP") => return Some(error),
            _ => {}
        }
        tracing::error!(
            stream,
            group,
            "consumer group is gone while it was read, and was recreated at the beginning: messages may be lost or come again"
        );
        self.last = FIRST.to_owned();
        None
    }
}

/// Id, counter and fields of an entry.
pub(super) type Taken = (String, u64, Vec<(Vec<u8>, bytes::Bytes)>);

/// The entries of an answer to `XREADGROUP`.
fn entries(answer: Value) -> Vec<Taken> {
    let Value::Array(streams) = answer else { return Vec::new() };
    let mut all = Vec::new();
    for stream in streams {
        let Value::Array(mut parts) = stream else { continue };
        let Some(Value::Array(entries)) = parts.pop() else { continue };
        for entry in entries {
            let Value::Array(parts) = entry else { continue };
            let mut parts = parts.into_iter();
            let (Some(id), Some(fields)) = (parts.next(), parts.next()) else { continue };
            if let Some(id) = as_text(&id) {
                // `>` reads only what nobody was handed before, so this is the first delivery.
                all.push((id, 1, wire::pairs(fields)));
            }
        }
    }
    all
}

/// The entries of an answer of our scripts.
pub(super) fn taken(answer: Value) -> Vec<Taken> {
    let Value::Array(entries) = answer else { return Vec::new() };
    let mut all = Vec::with_capacity(entries.len());
    for entry in entries {
        let Value::Array(parts) = entry else { continue };
        let mut parts = parts.into_iter();
        let (Some(id), Some(count), Some(fields)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        if let Some(id) = as_text(&id) {
            all.push((id, u64::try_from(as_int(&count)).unwrap_or(1), wire::pairs(fields)));
        }
    }
    all
}

/// The texts of an array.
pub(super) fn texts(value: &Value) -> Vec<String> {
    as_array(value).iter().filter_map(as_text).collect()
}

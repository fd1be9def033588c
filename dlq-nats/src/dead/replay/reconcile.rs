use std::collections::BTreeMap;

use async_nats::HeaderMap;
use async_nats::jetstream::Context;
use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::stream::{Info, RetentionPolicy};
use dlq_core::{Death, StoreError, Timestamp};
use futures_util::TryStreamExt;

use super::super::ledger::{CHUNK, Claim, Entry, Mark, SKEW};
use super::super::scan::Scan;
use super::super::send::SentBack;
use crate::client::buckets::timestamp;
use crate::client::leader::{self, Which};
use crate::client::permissions::read_from;
use crate::client::streams::find;
use crate::dead::dispatch::REPLAYING;

/// Messages that the former owner of a claim has sent.
#[derive(Debug, Default)]
pub(in super::super) struct Found {
    pub(in super::super) marks: BTreeMap<Death, Mark>,
    /// True if there may be more that cannot be found.
    pub(in super::super) doubtful: bool,
}

/// Returns the permissions to look for messages that have arrived at a stream.
pub(crate) fn looks(api: &str, info: &Info) -> Vec<String> {
    let name = &info.config.name;
    let mut needed = vec![read_from(api, name)];
    if info.config.retention == RetentionPolicy::Limits {
        needed.push(format!("{api}.CONSUMER.CREATE.{name}.>"));
        needed.push(format!("{api}.CONSUMER.MSG.NEXT.{name}.*"));
    }
    needed
}

/// Looks what has arrived of what the owner of `claim`, whose lease has ended, may have sent of a chunk of the stream
/// `letters`.
pub(in super::super) async fn reconcile(
    context: &Context,
    letters: &str,
    chunk: u64,
    claim: &Claim,
    entry: &Entry,
) -> Result<Found, StoreError> {
    // The former owner sends nothing after its lease, so that the streams are read no further. Their clocks may differ.
    let until = entry.written.after(claim.lease()).after(SKEW);
    let mut found = Found::default();
    for (name, from) in &claim.streams {
        let info = find(context, name).await;
        let Some(info) = info.map_err(|error| error.for_store(REPLAYING))? else {
            // A stream that is gone cannot say what had arrived.
            found.doubtful = true;
            continue;
        };
        let is_anew = is_anew(&info, *from, entry.written);
        // Where the stream before stood says nothing about this one, and what that one had kept is gone.
        let from = if is_anew { 0 } else { *from };
        found.doubtful |= is_anew;
        if info.state.last_sequence <= from {
            continue;
        }
        let limits = info.config.retention == RetentionPolicy::Limits;
        // Only a stream that has lost nothing since then can say that a message is not there.
        let whole = limits
            && info.state.first_sequence <= from + 1
            && info.state.deleted_count.unwrap_or(0) == 0;
        found.doubtful |= !whole;
        let mut take = |headers: &HeaderMap, at: Timestamp| {
            if let Some((death, mark)) = mark_of(letters, chunk, headers, at) {
                // What this operation has sent and marked before counts once.
                let before = entry.record.marks.get(&death);
                if before.is_none_or(|before| before.operation != mark.operation) {
                    let times = before.map_or(0, |before| before.times).saturating_add(1);
                    found.marks.insert(death, Mark { times, ..mark });
                }
            }
            at <= until
        };
        if limits {
            scan(context, &info, from, &mut take).await?;
        } else {
            get(context, &info, from, &mut take).await?;
        }
    }
    Ok(found)
}

/// Returns true if a stream was deleted and created since a claim was written that found it at this position. A stream
/// that was created in between, and has come further since, cannot be told by a clock that is behind.
fn is_anew(info: &Info, from: u64, claimed: Timestamp) -> bool {
    timestamp(info.created) > claimed || info.state.last_sequence < from
}

/// The mark that a message is worth which was sent back, if the record of this chunk is where it belongs. The
/// letter itself may have gone since, or have died again, and there may be any number of others.
fn mark_of(letters: &str, chunk: u64, headers: &HeaderMap, at: Timestamp) -> Option<(Death, Mark)> {
    let SentBack { death, operation, from: (stream, place) } = SentBack::read(headers)?;
    let is_here = stream == letters && place / CHUNK == chunk;
    is_here.then_some((death, Mark { operation, at, times: 1 }))
}

async fn scan(
    context: &Context,
    info: &Info,
    from: u64,
    take: &mut (impl FnMut(&HeaderMap, Timestamp) -> bool + Send),
) -> Result<(), StoreError> {
    let scan = Scan {
        operation: REPLAYING,
        stream: info.config.name.clone(),
        subject: String::new(),
        from: DeliverPolicy::ByStartSequence { start_sequence: from + 1 },
        headers_only: true,
        to: None,
        follow: false,
    };
    let mut messages = scan.run(context.clone());
    while let Some((message, place)) = messages.try_next().await? {
        if !take(&message.headers.clone().unwrap_or_default(), place.published) {
            break;
        }
    }
    Ok(())
}

/// The same where a further consumer would change what the stream keeps, or is refused.
async fn get(
    context: &Context,
    info: &Info,
    from: u64,
    take: &mut (impl FnMut(&HeaderMap, Timestamp) -> bool + Send),
) -> Result<(), StoreError> {
    let name = &info.config.name;
    let mut next = from + 1;
    while next <= info.state.last_sequence {
        let message = leader::get(context, REPLAYING, name, Which::From(">", next)).await?;
        let Some(message) = message else { break };
        if !take(&message.map(), message.time) {
            break;
        }
        next = message.sequence + 1;
    }
    Ok(())
}

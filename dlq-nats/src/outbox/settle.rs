use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::header::{self, HeaderValue};
use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::stream::{Info, RetentionPolicy};
use dlq_core::outbox::{Once, Outgoing, Settled};
use dlq_core::{StoreError, StoreErrorKind, Timestamp};
use futures_util::TryStreamExt as _;

use super::{NatsOutbox, NoKeeper};
use crate::client::buckets::{date_time, timestamp};
use crate::client::leader::{self, Which};
use crate::client::streams::find;
use crate::dead::dispatch::{REPLAYING, once_of};
use crate::dead::scan::Scan;

/// Greatest difference between the clocks of the server and of the store.
const SKEW: Duration = Duration::from_secs(60);
/// Messages at the end of a stream that are looked at where they are fetched one by one.
const LOOKED_AT: u64 = 1_000;

/// Letters that are looked for, and when they came.
type SentTimes = HashMap<Once, Timestamp>;

impl NatsOutbox {
    pub(super) async fn settle_all(
        &self,
        since: Timestamp,
        batch: &[Outgoing],
    ) -> Result<Vec<Settled>, StoreError> {
        let keepers = self.keepers(batch.iter().map(|one| &one.to).collect()).await;
        let mut wanted: BTreeMap<&str, HashSet<Once>> = BTreeMap::new();
        for one in batch {
            match &keepers[&one.to] {
                Ok(stream) => drop(wanted.entry(stream).or_default().insert(one.once)),
                // Where nobody keeps the subject there is nothing to read; these letters are unclear below.
                Err(NoKeeper::None(_)) => {}
                Err(NoKeeper::Unknown(why)) => {
                    let error = StoreError::new(StoreErrorKind::Unavailable, REPLAYING);
                    return Err(error.with_detail(why.as_str()));
                }
            }
        }
        let mut looked = BTreeMap::new();
        for (stream, wanted) in wanted {
            looked.insert(stream, self.look_for(stream, since, &wanted).await?);
        }
        let settled = |one: &Outgoing| {
            let stream = match &keepers[&one.to] {
                Ok(stream) => stream.as_str(),
                Err(why) => return Settled::Unclear(why.why().to_owned()),
            };
            let (found, lost) = &looked[stream];
            match (found.get(&one.once), lost) {
                (Some(at), _) => Settled::Arrived(*at),
                (None, None) => Settled::Not,
                (None, Some(why)) => Settled::Unclear(why.clone()),
            }
        };
        Ok(batch.iter().map(settled).collect())
    }

    /// Finds those of these letters that a stream has, and the reason why there may have been more, if so.
    async fn look_for(
        &self,
        name: &str,
        since: Timestamp,
        wanted: &HashSet<Once>,
    ) -> Result<(SentTimes, Option<String>), StoreError> {
        let mut found = SentTimes::new();
        let lookup = async || {
            let info = find(&self.context, name).await;
            info.map_err(|error| error.for_store(REPLAYING))
        };
        let absent = || Some(format!("there is no stream `{name}` any more"));
        let Some(info) = lookup().await? else { return Ok((found, absent())) };
        let mut take = |headers: &HeaderMap, at: Timestamp| {
            let id = headers.get(header::NATS_MESSAGE_ID.as_ref()).map(HeaderValue::as_str);
            let once = id.and_then(once_of).filter(|once| wanted.contains(once));
            if let Some(once) = once {
                found.entry(once).or_insert(at);
            }
            found.len() < wanted.len()
        };
        if info.config.retention == RetentionPolicy::Limits {
            self.scan(name, since.before(SKEW), &mut take).await?;
        } else {
            self.look_back(&info, &mut take).await?;
        }
        // The stream is looked at after the reading, so that what was removed while it went on counts, too.
        // Once all were found, it does not matter what was removed.
        let lost = match lookup().await? {
            _ if found.len() == wanted.len() => None,
            None => absent(),
            Some(info) => removed(&info, since).map(|why| format!("stream `{name}` {why}")),
        };
        Ok((found, lost))
    }

    async fn scan(
        &self,
        name: &str,
        from: Timestamp,
        take: &mut (impl FnMut(&HeaderMap, Timestamp) -> bool + Send),
    ) -> Result<(), StoreError> {
        let all = DeliverPolicy::All;
        let from =
            date_time(from).map_or(all, |start_time| DeliverPolicy::ByStartTime { start_time });
        let scan = Scan {
            operation: REPLAYING,
            stream: name.to_owned(),
            subject: String::new(),
            from,
            headers_only: true,
            to: None,
            follow: false,
        };
        let mut messages = scan.run(self.context.clone());
        while let Some((message, place)) = messages.try_next().await? {
            if !take(&message.headers.clone().unwrap_or_default(), place.published) {
                break;
            }
        }
        Ok(())
    }

    /// Reads the end of a stream in which a further consumer would change what is kept, or is refused.
    async fn look_back(
        &self,
        info: &Info,
        take: &mut (impl FnMut(&HeaderMap, Timestamp) -> bool + Send),
    ) -> Result<(), StoreError> {
        let (name, last) = (&info.config.name, info.state.last_sequence);
        // Each message costs a request here, and there may be any number.
        let mut next = info.state.first_sequence.max(last.saturating_sub(LOOKED_AT));
        while next <= last {
            let message =
                leader::get(&self.context, REPLAYING, name, Which::From(">", next)).await?;
            let Some(message) = message else { break };
            if !take(&message.map(), message.time) {
                break;
            }
            next = message.sequence + 1;
        }
        Ok(())
    }
}

/// Reason why messages of `since` or later may have been removed from a stream, if they may.
fn removed(info: &Info, since: Timestamp) -> Option<String> {
    let state = &info.state;
    if info.config.retention != RetentionPolicy::Limits {
        return Some("removes what was acknowledged".to_owned());
    }
    if timestamp(info.created) > since {
        return Some("was created since".to_owned());
    }
    // What was removed from between may have been the letter.
    if state.deleted_count.unwrap_or(0) > 0 {
        return Some("has lost messages from between others".to_owned());
    }
    let is_begun =
        state.first_sequence <= 1 || timestamp(state.first_timestamp) <= since.before(SKEW);
    // An empty stream has no first message whose time says anything.
    let is_empty = state.messages == 0 && state.last_sequence > 0;
    (!is_begun || is_empty).then(|| "has lost messages of that time".to_owned())
}

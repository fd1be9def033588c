//! Key-value buckets: created when they are missing, checked when they are there, written by compare-and-set.

use std::time::Duration;

use async_nats::Client;
use async_nats::datetime::{DateTime, parse_rfc3339};
use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use async_nats::jetstream::kv::{Config, Store, UpdateError, UpdateErrorKind};
use async_nats::jetstream::message::StreamMessage;
use async_nats::jetstream::stream::{self, LastRawMessageErrorKind, StorageType};
use async_nats::jetstream::{self, Context, ErrorCode};
use bytes::Bytes;
use dlq_core::{StoreError, StoreErrorKind, Timestamp};
use tokio::time::sleep;

use crate::client::bounds;
use crate::client::difference::{Differences, word};
use crate::client::error::{SetupError, answer};
use crate::client::no_leader::asked;
use crate::client::permissions::{self, unanswered};
use crate::client::publish::is_too_large;
use crate::client::streams;

/// Pause while a write is on its way to all replicas.
const MOMENT: Duration = Duration::from_millis(20);
/// Pause between two tries of a write without an answer, and the number of tries.
const PAUSE: Duration = Duration::from_millis(500);
const TIMES: u32 = 8;

/// The stream that a bucket is.
pub(crate) fn stream_of(bucket: &str) -> String {
    format!("KV_{bucket}")
}

/// Returns the permission to read the bucket as its leader has it.
pub(crate) fn needs(api: &str, bucket: &str) -> String {
    permissions::read_from(api, &stream_of(bucket))
}

/// Returns the permission to write to the bucket, or to a part of it.
pub(crate) fn written(bucket: &str) -> String {
    format!("$KV.{bucket}.>")
}

/// Makes sure of the bucket. One that is there and of which `wrong` finds something is reported, never changed.
pub(crate) async fn ensure(
    context: &Context,
    config: Config,
    wrong: impl FnOnce(&stream::Config) -> Differences,
) -> Result<Store, SetupError> {
    let name = config.bucket.clone();
    let stream = stream_of(&name);
    if streams::find(context, &stream).await?.is_none() {
        let made = context.create_key_value(config).await;
        // Another process may have been faster.
        if let Err(error) = made
            && streams::find(context, &stream).await?.is_none()
        {
            // The client's error says only that it failed; the server's reason is its source.
            let source = std::error::Error::source(&error).map(|source| format!(": {source}"));
            let text = format!("create bucket `{name}`: {error}{}", source.unwrap_or_default());
            return Err(SetupError::unavailable(text, error));
        }
    }
    // A bucket that was made just now is looked up, too: another process may have made it, with other settings.
    let store = context.get_key_value(name.as_str()).await.map_err(|error| {
        SetupError::unavailable(format!("open bucket `{name}`: {error}"), error)
    })?;
    let wrong = wrong(&store.stream.cached_info().config);
    if wrong.0.is_empty() {
        return Ok(store);
    }
    Err(SetupError::Config(format!(
        "bucket `{name}` exists with other settings: {wrong}; change the bucket, or ask for what it has"
    )))
}

/// Reads the entry of a key as the leader has it; a removed entry may have left its marker. Copies elsewhere may be
/// late.
pub(crate) async fn read(
    client: &Client,
    bucket: &Store,
    key: &str,
    doing: &'static str,
) -> Result<Option<StreamMessage>, StoreError> {
    let subject = format!("{}{key}", bucket.prefix);
    let error = match asked(|| bucket.stream.get_last_raw_message_by_subject(&subject)).await {
        Ok(message) => return Ok(Some(message)),
        Err(error) => error,
    };
    let why = match error.kind() {
        LastRawMessageErrorKind::NoMessageFound => return Ok(None),
        LastRawMessageErrorKind::Other => unanswered(client, &needs("$JS.API", &bucket.name)),
        _ => "see that it is there and can be reached".to_owned(),
    };
    let text = format!("bucket `{}` could not be read: {error}; {why}", bucket.name);
    let failed = StoreError::new(StoreErrorKind::Unavailable, doing).with_detail(text);
    Err(failed.with_source(error))
}

/// Returns true if it is the marker of an entry that was removed, by somebody or, in buckets that leave markers, by the
/// server.
pub(crate) fn is_removed(entry: &StreamMessage) -> bool {
    ["KV-Operation", "Nats-Marker-Reason"].iter().any(|mark| entry.headers.get(*mark).is_some())
}

pub(crate) fn timestamp(at: DateTime) -> Timestamp {
    Timestamp::from_nanos(i64::try_from(at.unix_timestamp_nanos()).unwrap_or(i64::MAX))
}

/// The same for the client; `None` for what it cannot say.
pub(crate) fn date_time(at: Timestamp) -> Option<DateTime> {
    parse_rfc3339(&at.to_string()).ok()
}

/// Writes what stands at `revision`, 0 for nothing, anew: the next revision, or `None` when somebody else was faster.
pub(crate) async fn replace(
    client: &Client,
    bucket: &Store,
    key: &str,
    value: Bytes,
    revision: u64,
    doing: &'static str,
) -> Result<Option<u64>, StoreError> {
    let mut times = 0;
    loop {
        let error = match bucket.update(key, value.clone(), revision).await {
            Ok(revision) => return Ok(Some(revision)),
            Err(error) => error,
        };
        match answer(&error).map(jetstream::Error::error_code) {
            Some(ErrorCode::STREAM_WRONG_LAST_SEQUENCE) => return Ok(None),
            // It is known who was faster, and cannot be read yet.
            Some(ErrorCode::STREAM_WRONG_LAST_SEQUENCE_CONSTANT) => {
                sleep(MOMENT).await;
                return Ok(None);
            }
            // Where nobody listened nothing was written, so that it can be said again. Any other silence may hide a
            // write.
            None if times < TIMES && is_unheard(&error) => times += 1,
            _ => return Err(unwritten(client, bucket, error, doing)),
        }
        sleep(PAUSE).await;
    }
}

/// Removes what stands under a key, if anything does.
pub(crate) async fn remove(
    client: &Client,
    bucket: &Store,
    key: &str,
    doing: &'static str,
) -> Result<(), StoreError> {
    let mut times = 0;
    loop {
        // A purge leaves a marker in the place of the entry, whose revision the next write has to name.
        let Err(error) = bucket.purge(key).await else { return Ok(()) };
        if times == TIMES || !is_unheard(&error) {
            return Err(unwritten(client, bucket, error, doing));
        }
        times += 1;
        sleep(PAUSE).await;
    }
}

/// Returns true if nobody listened, as until there is a new leader: then nothing was written.
fn is_unheard(error: &UpdateError) -> bool {
    publishing(error).is_some_and(|error| error.kind() == PublishErrorKind::StreamNotFound)
}

fn publishing(error: &UpdateError) -> Option<&PublishError> {
    std::error::Error::source(error).and_then(|source| source.downcast_ref())
}

fn unwritten(
    client: &Client,
    bucket: &Store,
    error: UpdateError,
    doing: &'static str,
) -> StoreError {
    let why = if error.kind() == UpdateErrorKind::TimedOut {
        unanswered(client, &written(&bucket.name))
    } else if publishing(&error).is_some_and(is_too_large) {
        "raise `max_payload` of the server, and see that the bucket has no bound for values"
            .to_owned()
    } else {
        "see that it is there and can be reached".to_owned()
    };
    let source = std::error::Error::source(&error).map(|source| format!(": {source}"));
    let source = source.unwrap_or_default();
    let text = format!("bucket `{}` could not be written: {error}{source}; {why}", bucket.name);
    StoreError::new(StoreErrorKind::Unavailable, doing).with_detail(text).with_source(error)
}

/// Returns the settings by which a bucket forgets entries, before `age` has passed if that is given; zero is for ever.
pub(crate) fn forgets(found: &stream::Config, age: Option<Duration>) -> Differences {
    let mut wrong = Differences::default();
    let why = "since it would forget everything when its server stops";
    wrong.why("storage", word(&found.storage), word(&StorageType::File), why);
    for (setting, bound) in bounds::forgetting(found) {
        let why = "with `discard` Old: keys would be evicted when it is full";
        wrong.why(setting, bound.to_string(), "-1".to_owned(), why);
    }
    streams::breaks_its_word(found, &mut wrong);
    let is_short = |age: Duration| age.is_zero() || found.max_age < age;
    if let Some(age) = age.filter(|age| !found.max_age.is_zero() && is_short(*age)) {
        let why = "since it would forget too early";
        wrong.why("max_age", word(&found.max_age), format!("{age:?} or more (0 for ever)"), why);
    }
    wrong
}

#[cfg(test)]
mod tests {
    use async_nats::jetstream::stream::DiscardPolicy;

    use super::*;

    #[test]
    fn a_bucket_that_forgets_too_early_is_found() {
        let second = Duration::from_secs(1);
        let of = |max_age| stream::Config { max_age, ..stream::Config::default() };
        for (found, asked, is_wrong) in [
            (second, Some(second), false),
            (second * 2, Some(second), false),
            (Duration::ZERO, Some(second), false),
            (Duration::ZERO, Some(Duration::ZERO), false),
            (second, Some(second * 2), true),
            (second, Some(Duration::ZERO), true),
            (second, None, false),
        ] {
            let wrong = forgets(&of(found), asked);
            assert_eq!(!wrong.0.is_empty(), is_wrong, "{found:?} {asked:?}: {wrong}");
        }
        let mut bounded = stream::Config { max_bytes: 1, ..stream::Config::default() };
        assert!(forgets(&bounded, None).to_string().contains("`max_bytes` is 1"));
        bounded.discard = DiscardPolicy::New;
        assert!(forgets(&bounded, None).0.is_empty());
    }
}

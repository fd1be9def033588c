//! The store that event-dlq 0.7.4 keeps in Redis, to be imported into another.
//!
//! | key | what |
//! |---|---|
//! | `PREFIXby_time` | sorted set of ids by the second in which they were stored; the prefix is `dlq:` unless another was set |
//! | `PREFIXmsg:ID` | hash: `id`, `event_name`, `original_id`, `payload`, `metadata` (JSON), `error`, `retry_count`, `source`, `created_at`, and `retried_at`, `quarantined_at` in seconds |
//!
//! | what the hash says | the letter |
//! |---|---|
//! | `quarantined_at` | quarantined, also if it was retried |
//! | `retried_at` | resolved, as succeeded |
//! | neither | pending |
//! | `error` | one attempt in the history |
//! | `metadata`, an object of texts | a header for each; anything else is the attribute `event-dlq.metadata` |
//!
//! An id without a hash, and a hash that cannot be read, are told apart ([`BadMessage`]); the others are read on. Times are whole
//! seconds. The identity of a letter follows from prefix and id, so that reading it again makes the same letters. Nothing is
//! written.

use std::collections::BTreeMap;

use bytes::Bytes;
use dlq_core::store::rules::born;
use dlq_core::{
    Attempt, Cause, DeadLetter, ErrorClass, Failure, Fingerprint, Header, Headers, History,
    LetterId, Message, Origin, Reason, Resolution, Status, StoreError, StoreErrorKind, Timestamp,
};
use redis::Cmd;

use super::entries::values;
use super::story::position;
use super::zset::{self, Member};
use crate::client::{RedisClient, RedisError, RedisErrorKind, as_int, as_text};

const READING: &str = "read the store of event-dlq";
const FIELDS: [&str; 11] = [
    "id",
    "event_name",
    "original_id",
    "payload",
    "metadata",
    "error",
    "retry_count",
    "source",
    "created_at",
    "retried_at",
    "quarantined_at",
];
/// Messages that are fetched at once, at first and at most.
const FIRST: usize = 32;
const MOST: usize = 512;
/// Bytes of messages from which on fewer are fetched at once.
const LARGE: usize = 4 * 1024 * 1024;

/// A message that is not a letter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("message {id}: {why}")]
#[non_exhaustive]
pub struct BadMessage {
    /// Its id.
    pub id: String,
    /// Reason why it cannot be read.
    pub why: String,
}

/// A store of event-dlq, open for reading; see the [module docs](self).
#[derive(Debug)]
pub struct EventDlq {
    client: RedisClient,
    prefix: String,
    consumer: String,
    service: Option<String>,
    class: ErrorClass,
    last: Option<Member>,
    has_begun: bool,
    members: Vec<Member>,
    size: usize,
}

impl EventDlq {
    /// Opens the store whose keys begin so.
    ///
    /// # Errors
    ///
    /// `NotFound` when there is no index `PREFIXby_time`, `InvalidConfig` when it is of another type, `Unavailable` when the
    /// server does not respond.
    pub async fn open(client: &RedisClient, prefix: &str) -> Result<Self, StoreError> {
        let key = format!("{prefix}by_time");
        let kind = client.command(redis::cmd("TYPE").arg(&key)).await;
        let kind = as_text(&kind.map_err(|error| error.for_store(READING))?).unwrap_or_default();
        let failed = |kind, text| Err(StoreError::new(kind, READING).with_detail(text));
        match kind.as_str() {
            "zset" => {}
            "none" => {
                let text = format!("there is no `{key}`; write the prefix as it is, e.g. `dlq:`");
                return failed(StoreErrorKind::NotFound, text);
            }
            kind => {
                let text = format!("`{key}` is a {kind} and no sorted set; name another prefix");
                return failed(StoreErrorKind::InvalidConfig, text);
            }
        }
        let name = prefix.trim_end_matches(':');
        Ok(Self {
            client: client.clone(),
            consumer: if name.is_empty() { "event-dlq" } else { name }.to_owned(),
            prefix: prefix.to_owned(),
            service: None,
            class: ErrorClass::default(),
            last: None,
            has_begun: false,
            members: Vec::new(),
            size: FIRST,
        })
    }

    /// Sets whose deaths they are, which no message says. Defaults to the prefix without its last colon.
    #[must_use]
    pub fn consumer(mut self, name: impl Into<String>) -> Self {
        self.consumer = name.into();
        self
    }

    /// Sets which program wrote those that do not say so. Defaults to none.
    #[must_use]
    pub fn service(mut self, name: impl Into<String>) -> Self {
        self.service = Some(name.into());
        self
    }

    /// Sets whether another attempt may succeed, which no message says. Defaults to transient.
    #[must_use]
    pub fn class(mut self, class: ErrorClass) -> Self {
        self.class = class;
        self
    }

    /// Returns the number of messages.
    ///
    /// # Errors
    ///
    /// `Unavailable` when the server does not respond.
    pub async fn count(&self) -> Result<u64, StoreError> {
        let count = self.client.command(redis::cmd("ZCARD").arg(self.index())).await;
        let count = as_int(&count.map_err(|error| error.for_running_store(READING))?);
        Ok(u64::try_from(count).unwrap_or(0))
    }

    fn index(&self) -> String {
        format!("{}by_time", self.prefix)
    }

    /// Returns the next messages, oldest first; `None` after the last.
    ///
    /// # Errors
    ///
    /// `Unavailable` when the server does not respond.
    ///
    /// # Cancel safety
    ///
    /// A call that was dropped is made again.
    pub async fn next_page(
        &mut self,
    ) -> Result<Option<Vec<Result<DeadLetter, BadMessage>>>, StoreError> {
        self.fetch().await.map_err(|error| error.for_running_store(READING))
    }

    async fn fetch(&mut self) -> Result<Option<Vec<Result<DeadLetter, BadMessage>>>, RedisError> {
        while self.members.is_empty() {
            let (client, index) = (&self.client, self.index());
            let (page, end) = match self.has_begun {
                false => zset::range(client, &index, 0).await?,
                true => zset::after(client, &index, self.last.as_ref()).await?,
            };
            let Some(end) = end else { return Ok(None) };
            (self.has_begun, self.last, self.members) = (true, Some(end), page);
        }
        let count = self.members.len().min(self.size);
        let look = |member: &Member| {
            let mut get = redis::cmd("HMGET");
            get.arg([self.prefix.as_bytes(), b"msg:", &member.name].concat()).arg(&FIELDS);
            get
        };
        let looks: Vec<Cmd> = self.members[..count].iter().map(look).collect();
        let answers = self.client.commands(&looks).await?;
        let (mut found, mut bytes) = (Vec::with_capacity(count), 0);
        for (member, answer) in self.members[..count].iter().zip(answers) {
            let read = match answer {
                Ok(answer) => {
                    let values = values(answer);
                    bytes += values.iter().flatten().map(Bytes::len).sum::<usize>();
                    self.letter(&member.name, &values)
                }
                // One key that somebody else has written is no reason to import none of the others.
                Err(error) if error.kind() == RedisErrorKind::WrongType => {
                    Err("its key holds a value of another type".to_owned())
                }
                Err(error) => return Err(error),
            };
            let id = String::from_utf8_lossy(&member.name).into_owned();
            found.push(read.map_err(|why| BadMessage { id, why }));
        }
        // They leave the list only now, so that a call that fails or is dropped fetches them again.
        self.members.drain(..count);
        if bytes > LARGE {
            self.size = (self.size / 4).max(1);
        } else if count == self.size {
            self.size = (self.size * 2).min(MOST);
        }
        Ok(Some(found))
    }

    fn letter(&self, id: &[u8], values: &[Option<Bytes>]) -> Result<DeadLetter, String> {
        let field = |name: &str| {
            let at = FIELDS.iter().position(|field| *field == name)?;
            values.get(at)?.as_ref().filter(|value| !value.is_empty())
        };
        if values.iter().all(Option::is_none) {
            return Err("it is in the index, and its hash has gone".to_owned());
        }
        let text = |name: &str| match field(name) {
            None => Ok(None),
            Some(value) => match std::str::from_utf8(value) {
                Ok(text) => Ok(Some(text)),
                Err(_) => Err(format!("its field `{name}` is not UTF-8")),
            },
        };
        let time = |name: &str| -> Result<Option<Timestamp>, String> {
            let Some(text) = text(name)? else { return Ok(None) };
            let seconds: Option<i64> = text.parse().ok();
            // A time that does not fit into nanoseconds would become another one.
            let seconds = seconds.filter(|at| (0..i64::MAX / 1_000_000_000).contains(at));
            let seconds =
                seconds.ok_or_else(|| format!("its field `{name}` is no time in seconds"))?;
            Ok(Some(Timestamp::from_millis(seconds * 1_000)))
        };
        // Without it nobody would know what the message is, or where it could go.
        let event = text("event_name")?.ok_or("it has no field `event_name`")?;
        let created = time("created_at")?;
        let (retried, quarantined) = (time("retried_at")?, time("quarantined_at")?);
        let mut attributes = BTreeMap::new();
        attributes.insert("event-dlq.id".to_owned(), String::from_utf8_lossy(id).into_owned());
        if created.is_none() {
            attributes.insert("import.created-at".to_owned(), "unknown".to_owned());
        }
        for (name, at) in [("retried-at", retried), ("quarantined-at", quarantined)] {
            if let Some(at) = at {
                attributes.insert(format!("event-dlq.{name}"), at.to_string());
            }
        }
        // Not by `field`, which takes an empty value for none: an empty payload is a payload (G8).
        let payload = FIELDS.iter().position(|name| *name == "payload");
        let payload = payload.and_then(|at| values.get(at)?.clone());
        let mut message = Message::tombstone(event).with_payload(payload).with_event(event);
        if let Some(id) = text("original_id")? {
            message = message.with_id(id);
        }
        match headers(field("metadata")) {
            Some(headers) => message = message.with_headers(headers),
            None => {
                let metadata = text("metadata")?.unwrap_or_default().to_owned();
                attributes.insert("event-dlq.metadata".to_owned(), metadata);
            }
        }
        let count = text("retry_count")?.map_or(Ok(0), str::parse);
        let retry_count = count.map_err(|_| "its field `retry_count` is no number".to_owned())?;
        let died_at = created.or(retried).or(quarantined).unwrap_or(Timestamp::EPOCH);
        let failure = text("error")?.map(|error| {
            let mut failure = Failure::new(self.class, Cause::Error, "", error);
            failure.at = died_at;
            failure
        });
        let (status, resolution) = match (retried, quarantined) {
            (_, Some(_)) => (Status::Quarantined, None),
            (Some(_), None) => (Status::Resolved, Some(Resolution::Succeeded)),
            (None, None) => (Status::Pending, None),
        };
        let origin = Origin::new("event-dlq", self.prefix.as_str(), position(id));
        let mut history = History::new();
        let fingerprint = Fingerprint::of(&self.consumer, Reason::Exhausted, failure.as_ref());
        let cause = failure.as_ref().map(|failure| failure.cause);
        let attempts = u32::from(failure.is_some());
        if let Some(failure) = failure {
            history.push(Attempt { number: 1, generation: 0, failure });
        }
        // Whoever's death it is said to be: read again for another consumer, it is the same letter.
        let id = LetterId::of(&origin, None, "");
        let mut letter = DeadLetter::identified(
            id,
            fingerprint,
            message,
            origin,
            self.consumer.as_str(),
            Reason::Exhausted,
        );
        letter.service = text("source")?.map(str::to_owned).or_else(|| self.service.clone());
        letter.class = self.class;
        letter.cause = cause;
        letter.history = history;
        letter.attempts = attempts;
        letter.died_at = died_at;
        letter.attributes = attributes;
        letter.state = born(died_at);
        letter.state.status = status;
        letter.state.resolution = resolution;
        letter.state.retry_count = retry_count;
        letter.state.updated_at =
            [created, retried, quarantined].into_iter().flatten().max().unwrap_or(died_at);
        letter.state.last_retry_at = retried;
        Ok(letter)
    }
}

/// The headers of an object of texts; `None` for anything else.
fn headers(metadata: Option<&Bytes>) -> Option<Headers> {
    let Some(metadata) = metadata else { return Some(Headers::new()) };
    let texts: Option<BTreeMap<String, String>> = serde_json::from_slice(metadata).ok()?;
    let mut headers = Headers::new();
    for (name, value) in texts.unwrap_or_default() {
        headers.push(Header { name: name.into(), value: Some(value.into()) });
    }
    Some(headers)
}

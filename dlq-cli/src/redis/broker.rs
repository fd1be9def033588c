use dlq_core::log::Log as _;
use dlq_core::{StoreError, StoreErrorKind};
use dlq_redis::foreign::ForeignLetters;
use dlq_redis::{RedisLetters, RedisOutbox};

use super::url::RedisUrl;
use crate::broker::Mark;
use crate::cli::BrokerArgs;
use crate::error::CliError;

/// A stream of dead letters, and a connection to its server.
#[derive(Clone, Debug)]
pub(crate) struct Broker {
    pub(super) letters: RedisLetters,
    /// The letters, where another library has written them.
    pub(super) foreign: Option<ForeignLetters>,
    /// The URL, fit to be shown.
    pub(super) shown: String,
}

impl Broker {
    pub(crate) async fn connect(
        scheme: &str,
        rest: &str,
        shown: String,
        args: &BrokerArgs,
    ) -> Result<Self, CliError> {
        let url = RedisUrl::parse(scheme, rest)?;
        if url.key.is_empty() {
            return Err(no_stream(scheme, &shown));
        }
        let client = url.connect().await.map_err(|error| error.about(&shown))?;
        // The key tells by its form whether another library writes there; nothing is asked of the server for it.
        let foreign = ForeignLetters::of(&client, &url.key);
        let key = foreign.as_ref().map_or(&*url.key, ForeignLetters::key);
        let letters = RedisLetters::new(&client, key);
        let mut letters = letters.map_err(|error| CliError::from(error).about(&shown))?;
        if let Some(key) = args.binding_key()? {
            letters = letters.binding_key(key);
        }
        Ok(Self { letters, foreign, shown })
    }

    /// Says what failed here; what was asked for wrongly is refused.
    pub(super) fn failed(&self, error: StoreError) -> CliError {
        failed(error, &self.shown)
    }

    /// The stores into which the letters go.
    pub(super) async fn marks(&self) -> Result<Vec<Mark>, CliError> {
        let marks = self.letters.marks().await.map_err(|error| self.failed(error))?.into_iter();
        let mark = |mark: dlq_core::log::IngestMark| Mark {
            store: mark.store,
            confirmed: (mark.confirmed > 0).then(|| format!("{} entries", mark.confirmed)),
            delete: format!("redis-cli DEL '{}'", self.letters.mark_key(&mark.by)),
            by: mark.by,
        };
        Ok(marks.map(mark).collect())
    }
}

/// Refuses a URL without a key.
pub(super) fn no_stream(scheme: &str, shown: &str) -> CliError {
    CliError::refused(format!(
        "{shown} names no stream of dead letters; write '{scheme}://HOST:PORT/{{STREAM}}:dlq', or {scheme}-store://HOST:PORT \
         for a store"
    ))
}

/// Says what failed at a place; what was asked for wrongly is refused.
pub(super) fn failed(error: StoreError, shown: &str) -> CliError {
    let is_wrong = error.kind() == StoreErrorKind::InvalidConfig;
    match CliError::from(error).about(shown) {
        CliError::Failed(message) if is_wrong => CliError::refused(message),
        error => error,
    }
}

/// The outbox of a cluster: `redis://HOST[:PORT][,HOST…][/DATABASE]`.
pub(crate) async fn outbox(
    scheme: &str,
    rest: &str,
    args: &BrokerArgs,
    alias: &str,
) -> Result<RedisOutbox, CliError> {
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (hosts, database) = place.split_once('/').unwrap_or((place, ""));
    let database = database.trim_end_matches('/');
    if !database.bytes().all(|digit| digit.is_ascii_digit()) {
        return Err(CliError::refused(
            "letters go to the streams where they were born: name a server and no key; write redis://HOST:PORT or \
             redis://HOST:PORT/DATABASE",
        ));
    }
    // In the URL of a stream a number alone would be its key.
    let path = if database.is_empty() { String::new() } else { format!("{database}/") };
    let url = RedisUrl::parse(scheme, &format!("{hosts}/{path}?{query}"))?;
    let client = url.connect().await?;
    let outbox = RedisOutbox::new(&client).cluster(alias);
    Ok(match args.binding_key()? {
        Some(key) => outbox.binding_key(key),
        None => outbox,
    })
}

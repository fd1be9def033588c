//! From a URL to a store or a broker.

#[cfg(any(feature = "kafka", feature = "nats", feature = "postgres", feature = "redis"))]
use std::path::Path;
#[cfg(feature = "postgres")]
use std::time::Duration;

use dlq_core::DeadLetters;
#[cfg(feature = "postgres")]
use dlq_sql::postgres::{PostgresBuilder, PostgresStore};
use dlq_sql::sqlite::SqliteStore;

#[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
use crate::cli::BrokerArgs;
use crate::cli::{Cli, Command};
use crate::error::CliError;
#[cfg(feature = "kafka")]
use crate::kafka;
#[cfg(feature = "mongo")]
use crate::mongo;
#[cfg(feature = "nats")]
use crate::nats;
#[cfg(feature = "redis")]
use crate::redis;
use crate::secret::without_password;

/// Schemes that one may well ask for, and that are no stores here.
const NO_STORES: &[&str] = &[
    "postgres",
    "postgresql",
    "redis",
    "rediss",
    "redis-store",
    "mongodb",
    "mongodb+srv",
    "nats",
    "tls",
    "kafka",
];

/// Time limit for a connection to a database. `dlq serve` waits no longer than eight seconds for all of a look, and
/// then could not say what is wrong.
#[cfg(feature = "postgres")]
const PATIENCE: Duration = Duration::from_secs(5);

/// Place that `--from` names.
pub(crate) enum StoreOrBroker {
    Store(DeadLetters),
    #[cfg(feature = "kafka")]
    Kafka(Box<kafka::Broker>),
    #[cfg(feature = "nats")]
    Nats(Box<nats::Broker>),
    #[cfg(feature = "redis")]
    Redis(Box<redis::Broker>),
}

/// Opens what `--from` names. Creates a store only where that is asked for.
pub(crate) async fn open(cli: &Cli) -> Result<StoreOrBroker, CliError> {
    let url = url(&cli.from)?;
    #[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
    if let Some(broker) = broker(url, &cli.broker).await? {
        return Ok(broker);
    }
    // Of the verbs that get here only an import may create the store: a mistyped path must not look like an empty one.
    let create = matches!(&cli.command, Command::Import(args) if args.create);
    store(url, create).await.map(StoreOrBroker::Store)
}

/// Opens the dead letters of a broker; `None` if the URL names none.
#[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
pub(crate) async fn broker(url: &str, at: &BrokerArgs) -> Result<Option<StoreOrBroker>, CliError> {
    let shown = without_password(url);
    Ok(Some(match url.split_once("://") {
        #[cfg(feature = "kafka")]
        Some(("kafka", rest)) => {
            StoreOrBroker::Kafka(Box::new(kafka::Broker::new(rest, shown, at)?))
        }
        #[cfg(feature = "nats")]
        Some((scheme @ ("nats" | "tls"), rest)) => {
            let broker = nats::Broker::connect(scheme, rest, shown, at).await?;
            StoreOrBroker::Nats(Box::new(broker))
        }
        #[cfg(feature = "redis")]
        Some((scheme @ ("redis" | "rediss"), rest)) => {
            let broker = redis::Broker::connect(scheme, rest, shown, at).await?;
            StoreOrBroker::Redis(Box::new(broker))
        }
        _ => return Ok(None),
    }))
}

/// The URL, which has to be said.
pub(crate) fn url(from: &Option<String>) -> Result<&str, CliError> {
    from.as_deref().ok_or_else(|| {
        CliError::refused(
            "where are the dead letters? say --from sqlite://dlq.db or postgres://HOST/DATABASE, set DLQ_FROM, or name a context (dlq context --help)",
        )
    })
}

/// Returns the places that this build supports, in words.
fn places() -> String {
    let all = [
        (true, "sqlite://PATH"),
        (cfg!(feature = "postgres"), "postgres://HOST/DATABASE"),
        (cfg!(feature = "mongo"), "mongodb://HOST/DATABASE"),
        (cfg!(feature = "nats"), "nats://HOST/STREAM"),
        (cfg!(feature = "kafka"), "kafka://HOST:PORT/TOPIC"),
        (cfg!(feature = "redis"), "redis-store://HOST:PORT"),
        (cfg!(feature = "redis"), "redis://HOST:PORT/KEY"),
    ];
    let ours: Vec<&str> = all.into_iter().filter_map(|(has, place)| has.then_some(place)).collect();
    ours.join(", ")
}

/// Opens a store, as it is: whoever looks at an older one does not change it under the programs that use it.
pub(crate) async fn store(url: &str, create: bool) -> Result<DeadLetters, CliError> {
    match url.split_once("://") {
        Some(("sqlite", path)) if !path.is_empty() => {
            let builder = SqliteStore::builder().path(path).create(create).migrate(false);
            let opened = builder.open().await;
            let store =
                opened.map_err(|error| CliError::from(error).about(&without_password(url)))?;
            Ok(DeadLetters::new(store))
        }
        #[cfg(feature = "postgres")]
        Some(("postgres" | "postgresql", _)) => {
            // Older tables are left alone also where the store may be created: consumers may be using them.
            let is_new = create && !is_there(url).await?;
            let opened = postgres(url).migrate(is_new).open().await;
            let store =
                opened.map_err(|error| CliError::from(error).about(&without_password(url)))?;
            Ok(DeadLetters::new(store))
        }
        #[cfg(feature = "redis")]
        Some((scheme, _)) if redis::is_store(scheme) => {
            let builder = redis::builder(url).await?;
            let failed = |error| redis::not_opened(url, error);
            // Redis has no tables, so that any server looks like an empty store; a mistyped one has to be noticed.
            if !create && !builder.exists().await.map_err(failed)? {
                return Err(CliError::refused(format!(
                    "there is no store at {}; a consumer, `dlq ingest` or `dlq import --create` creates it",
                    without_password(url)
                )));
            }
            Ok(DeadLetters::new(builder.open().await.map_err(failed)?))
        }
        #[cfg(feature = "mongo")]
        Some((scheme, _)) if mongo::is_store(scheme) => {
            let opened = mongo::builder(url).migrate(create).open().await;
            let store =
                opened.map_err(|error| CliError::from(error).about(&without_password(url)))?;
            Ok(DeadLetters::new(store))
        }
        Some((scheme, _)) if NO_STORES.contains(&scheme) => Err(CliError::refused(format!(
            "this build of dlq has no store at `{scheme}://`; it has {}",
            places()
        ))),
        _ => Err(CliError::refused(format!(
            "`{}` does not name dead letters; this build of dlq has {}",
            without_password(url),
            places()
        ))),
    }
}

/// Returns true if there is a store at this URL.
#[cfg(any(feature = "kafka", feature = "nats", feature = "postgres", feature = "redis"))]
pub(crate) async fn is_there(url: &str) -> Result<bool, CliError> {
    match url.split_once("://") {
        #[cfg(feature = "postgres")]
        Some(("postgres" | "postgresql", _)) => {
            let migration = postgres(url).migration().await;
            let migration =
                migration.map_err(|error| CliError::from(error).about(&without_password(url)))?;
            Ok(migration.found.is_some())
        }
        #[cfg(feature = "redis")]
        Some((scheme, _)) if redis::is_store(scheme) => {
            let there = redis::builder(url).await?.exists().await;
            there.map_err(|error| CliError::from(error).about(&without_password(url)))
        }
        #[cfg(feature = "mongo")]
        Some((scheme, _)) if mongo::is_store(scheme) => {
            let there = mongo::is_there(url).await;
            there.map_err(|error| CliError::from(error).about(&without_password(url)))
        }
        Some((_, path)) => Ok(Path::new(path).exists()),
        None => Ok(true),
    }
}

/// The store at this URL by a name that is the same from everywhere, without a login.
#[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
pub(crate) async fn name(url: &str) -> Result<String, CliError> {
    let (scheme, path) = url.split_once("://").unwrap_or(("sqlite", url));
    #[cfg(feature = "postgres")]
    if matches!(scheme, "postgres" | "postgresql") {
        return Ok(postgres(url).place().await?);
    }
    #[cfg(feature = "redis")]
    if redis::is_store(scheme) {
        return Ok(without_password(url));
    }
    #[cfg(feature = "mongo")]
    if mongo::is_store(scheme) {
        return Ok(mongo::builder(url).place().await?);
    }
    // A broker remembers the store by this name, and the next ingest may be started in another folder.
    let path = Path::new(path).canonicalize().map_err(|error| {
        CliError::failed(format!("{url}: the file cannot be found again: {error}"))
    })?;
    Ok(format!("{scheme}://{}", path.display()))
}

/// Returns the builder of the store at this URL: `schema`, `table` and `pooler` in its query are ours, the rest is the
/// driver's.
#[cfg(feature = "postgres")]
pub(crate) fn postgres(url: &str) -> PostgresBuilder {
    // The driver refuses parameters that it does not know, so ours are taken out.
    let (url, ours) = without_ours(url);
    // A command asks for few things at a time, and a database has few connections for all its programs.
    let mut builder = PostgresStore::builder(url).max_connections(4).acquire_timeout(PATIENCE);
    for part in ours {
        builder = match part.split_once('=') {
            Some(("schema", name)) => builder.schema(name),
            Some(("pooler", said)) => builder.pooler(said == "true"),
            // `without_ours` lets three names through, of which this is the last.
            Some((_, name)) => builder.table(name),
            None => builder,
        };
    }
    builder
}

/// The driver's part of a URL of Postgres, and what is ours in its query.
#[cfg(feature = "postgres")]
fn without_ours(url: &str) -> (String, Vec<&str>) {
    let (place, query) = url.split_once('?').unwrap_or((url, ""));
    let parts = query.split('&').filter(|part| !part.is_empty());
    let is_ours =
        |part: &&str| ["schema=", "table=", "pooler="].iter().any(|name| part.starts_with(name));
    let (ours, theirs): (Vec<_>, Vec<_>) = parts.partition(is_ours);
    let url =
        if theirs.is_empty() { place.to_owned() } else { format!("{place}?{}", theirs.join("&")) };
    (url, ours)
}

/// The database that a store's URL names, where it is one of Postgres.
#[cfg(feature = "postgres")]
pub(crate) fn database(url: &str) -> Option<String> {
    let is_postgres = url.starts_with("postgres://") || url.starts_with("postgresql://");
    is_postgres.then(|| without_ours(url).0)
}

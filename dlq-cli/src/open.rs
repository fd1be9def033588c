//! From a URL to a store or a broker.

use dlq_core::DeadLetters;
use dlq_sql::sqlite::SqliteStore;

use crate::cli::Cli;
use crate::error::CliError;
#[cfg(feature = "kafka")]
use crate::kafka;
#[cfg(feature = "nats")]
use crate::nats;

/// What `--from` names.
pub(crate) enum Place {
    Store(DeadLetters),
    #[cfg(feature = "kafka")]
    Kafka(Box<kafka::Broker>),
    #[cfg(feature = "nats")]
    Nats(Box<nats::Broker>),
}

/// Opens what `--from` names. Never creates a store.
pub(crate) async fn open(cli: &Cli) -> Result<Place, CliError> {
    let url = url(&cli.from)?;
    match url.split_once("://") {
        #[cfg(feature = "kafka")]
        Some(("kafka", rest)) => {
            let broker = kafka::Broker::new(rest, without_password(url), &cli.broker)?;
            Ok(Place::Kafka(Box::new(broker)))
        }
        #[cfg(feature = "nats")]
        Some((scheme @ ("nats" | "tls"), rest)) => {
            let shown = without_password(url);
            let broker = nats::Broker::connect(scheme, rest, shown, &cli.broker).await?;
            Ok(Place::Nats(Box::new(broker)))
        }
        _ => store(url, false).await.map(Place::Store),
    }
}

/// What `--from` says, which must be said.
pub(crate) fn url(from: &Option<String>) -> Result<&str, CliError> {
    from.as_deref().ok_or_else(|| {
        CliError::refused("where are the dead letters? say --from sqlite://dlq.db, or set DLQ_FROM")
    })
}

/// Opens a store.
pub(crate) async fn store(url: &str, create: bool) -> Result<DeadLetters, CliError> {
    match url.split_once("://") {
        Some(("sqlite", path)) if !path.is_empty() => {
            let opened = SqliteStore::builder().path(path).create(create).open().await;
            let store = opened.map_err(|error| CliError::from(error).about(url))?;
            Ok(DeadLetters::new(store))
        }
        Some((
            scheme @ ("postgres" | "postgresql" | "redis" | "mongodb" | "nats" | "tls" | "kafka"),
            _,
        )) => Err(CliError::refused(format!(
            "this build of dlq has no store at `{scheme}://`; it has sqlite://PATH"
        ))),
        _ => Err(CliError::refused(format!(
            "`{}` does not name dead letters; expected sqlite://PATH, e.g. sqlite://dlq.db, or \
             nats://HOST/STREAM, or kafka://HOST:PORT/TOPIC",
            without_password(url)
        ))),
    }
}

/// A URL fit to be shown.
pub(crate) fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let authority_end = rest.find('/').unwrap_or(rest.len());
    match rest[..authority_end].rsplit_once('@') {
        // It may be a token.
        Some((secret, _)) if !secret.contains(':') && matches!(scheme, "nats" | "tls") => {
            format!("{scheme}://{}", &rest[secret.len() + 1..])
        }
        Some((user, _)) => {
            let user_name = user.split(':').next().unwrap_or_default();
            format!("{scheme}://{user_name}@{}", &rest[user.len() + 1..])
        }
        None => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::without_password;

    #[test]
    fn a_password_is_never_shown() {
        assert_eq!(without_password("postgres://ana:s3cret@h/db"), "postgres://ana@h/db");
        assert_eq!(without_password("postgres://ana:s@cret@h/db"), "postgres://ana@h/db");
        assert_eq!(without_password("nats://t0ken@h,g/DLQ"), "nats://h,g/DLQ");
        assert_eq!(without_password("nats://ana:s3cret@h,g/DLQ"), "nats://ana@h,g/DLQ");
        assert_eq!(without_password("sqlite://a@b/dlq.db"), "sqlite://a@b/dlq.db");
        assert_eq!(without_password("dlq.db"), "dlq.db");
    }
}

//! The dead letters of a broker in the console.

use dlq_admin::{BrokerLog, LogFuture, LogReplay, PlannedReplay, Snapshot};
use dlq_core::{StoreError, StoreErrorKind};

use super::{Asked, Read};
use crate::cli::{BrokerArgs, ServeArgs};
use crate::error::CliError;
use crate::open::{self, StoreOrBroker};
use crate::secret::without_password;

/// Dead letters of a broker, which is connected to anew for each reading.
// A connection of its own for each: a letter that is looked at later is fetched by the one that has read it, and a broker
// that was away, or credentials that were renewed, need nothing else.
#[derive(Debug)]
pub(crate) struct ConsoleLog {
    url: String,
    at: BrokerArgs,
    #[cfg(feature = "nats")]
    key_header: Option<String>,
}

impl ConsoleLog {
    /// Returns the log of a URL; `None` if it names no broker. Nothing is asked of the broker yet.
    pub(crate) fn of(
        url: &str,
        at: &BrokerArgs,
        args: &ServeArgs,
    ) -> Result<Option<Self>, CliError> {
        #[cfg(not(feature = "nats"))]
        let _ = args;
        match url.split_once("://") {
            #[cfg(feature = "kafka")]
            Some(("kafka", rest)) => {
                crate::kafka::Broker::new(rest, without_password(url), at)?;
            }
            #[cfg(feature = "nats")]
            Some((scheme @ ("nats" | "tls"), rest)) => crate::nats::check_url(scheme, rest)?,
            #[cfg(feature = "redis")]
            Some((scheme @ ("redis" | "rediss"), rest)) => crate::redis::check_url(scheme, rest)?,
            _ => return Ok(None),
        }
        Ok(Some(Self {
            url: url.to_owned(),
            at: at.clone(),
            #[cfg(feature = "nats")]
            key_header: args.via.via_key_header.clone(),
        }))
    }

    async fn open(&self) -> Result<StoreOrBroker, CliError> {
        let broker = open::broker(&self.url, &self.at).await?;
        broker.ok_or_else(|| self.not_a_broker())
    }

    fn not_a_broker(&self) -> CliError {
        CliError::refused(format!("{} is no broker", without_password(&self.url)))
    }

    async fn read_all(&self) -> Result<Read, CliError> {
        match self.open().await? {
            #[cfg(feature = "kafka")]
            StoreOrBroker::Kafka(broker) => crate::kafka::read_all(&broker).await,
            #[cfg(feature = "nats")]
            StoreOrBroker::Nats(broker) => crate::nats::read_all(&broker).await,
            #[cfg(feature = "redis")]
            StoreOrBroker::Redis(broker) => crate::redis::read_all(&broker).await,
            StoreOrBroker::Store(_) => Err(self.not_a_broker()),
        }
    }
}

impl ConsoleLog {
    async fn planned(&self, replay: LogReplay) -> Result<PlannedReplay, CliError> {
        let asked = Asked::in_console(replay)?;
        #[cfg(feature = "nats")]
        let asked = asked.with_key_header(self.key_header.clone());
        match self.open().await? {
            #[cfg(feature = "kafka")]
            StoreOrBroker::Kafka(broker) => crate::kafka::plan(*broker, asked).await,
            #[cfg(feature = "nats")]
            StoreOrBroker::Nats(broker) => crate::nats::plan(*broker, asked).await,
            #[cfg(feature = "redis")]
            StoreOrBroker::Redis(broker) => crate::redis::plan(*broker, asked).await,
            StoreOrBroker::Store(_) => Err(self.not_a_broker()),
        }
    }
}

impl BrokerLog for ConsoleLog {
    fn read(&self) -> LogFuture<'_, Snapshot> {
        Box::pin(async {
            let read = self.read_all().await;
            Ok(read.map_err(|error| shown("read the dead letters", error))?.snapshot())
        })
    }

    fn plan(&self, replay: LogReplay) -> LogFuture<'_, PlannedReplay> {
        Box::pin(async {
            self.planned(replay).await.map_err(|error| shown("plan the replay", error))
        })
    }
}

/// Returns an error as the console shows it, without passwords.
fn shown(operation: &'static str, error: CliError) -> StoreError {
    let kind = match error {
        CliError::Refused(_) => StoreErrorKind::Refused,
        CliError::Failed(_) | CliError::Closed => StoreErrorKind::Unavailable,
    };
    StoreError::new(kind, operation).with_detail(error.into_message())
}
